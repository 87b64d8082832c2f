"""Read the newest artifact of a given name from a workflow run into memory, or say why no artifact is usable."""

from collections.abc import Callable
from typing import TypeVar

from regbot.github.client import Forge, MissingError, TooLargeError
from regbot.records.files import RecordError
from regbot.report.markdown import UntrustedText, Words

T = TypeVar("T")


class UnusableArtifact(Exception):
    """A run's artifact cannot be used. ``reason`` is a sentence in parts. Untrusted parts are ``UntrustedText``."""

    def __init__(self, *reason: str) -> None:
        super().__init__("".join(reason))
        self.reason: Words = reason


class ExpiredArtifact(UnusableArtifact):
    """GitHub has deleted a run's artifact because of its age."""


def read_newest_artifact(forge: Forge, run: int, name: str, max_bytes: int, read: Callable[[bytes], T]) -> T:
    """Download the newest artifact called ``name`` of a run and return ``read(archive)``.

    Raises ForgeError. Raises UnusableArtifact if the run has no usable artifact, or if ``read`` raises RecordError.
    """
    artifacts = [artifact for artifact in forge.artifacts(run, name) if artifact.name == name]
    if not artifacts:
        raise UnusableArtifact(f"the job uploaded no artifact {name}; its log says why")
    available_artifacts = [artifact for artifact in artifacts if not artifact.expired]
    if not available_artifacts:
        raise ExpiredArtifact(f"its artifact {name} has expired")
    newest_artifact = available_artifacts[-1]  # artifacts are listed oldest first
    too_large_error = UnusableArtifact(f"its artifact has more than {max_bytes:,} bytes, and was not read")
    if newest_artifact.size > max_bytes:
        raise too_large_error
    try:
        return read(forge.download(newest_artifact.id, max_bytes))
    except TooLargeError as error:
        raise too_large_error from error
    except RecordError as error:
        raise UnusableArtifact("the job's artifact cannot be read: ", UntrustedText(str(error))) from error


def can_judge_again(forge: Forge, run: int, name: str) -> bool:
    """Return whether a run can be judged again: it exists, its last attempt has not failed, and its artifact ``name``
    has not expired. Raises ForgeError."""
    try:
        has_failed = forge.run(run).conclusion not in (None, "success")  # None while the run is in progress
        artifacts = [artifact for artifact in forge.artifacts(run, name) if artifact.name == name]
    except MissingError:
        return False
    has_expired = bool(artifacts) and all(artifact.expired for artifact in artifacts)
    return not has_failed and not has_expired
