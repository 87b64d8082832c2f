"""The source from which the workflows install regbot. The source is never only a name.

This project's distribution is called ``regbot-moe``. On the public package index the name ``regbot`` belongs to
somebody else. A job that installed it would run that code with a token that can write. So a source is a commit at an
address, an archive with its hash, or a path in the repository.
"""

import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from regbot.records.config import ConfigError
from regbot.records.text.printable import printable

UNSET = "/set/by/regbot-init"
"""Source in the shipped templates. It is a path that does not exist, so that pip fails until a source is set."""
DISTRIBUTION = "regbot-moe"
EXAMPLE = f"{DISTRIBUTION} @ git+https://HOST/OWNER/NAME@COMMIT"

_ADDRESS = r"https://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/[A-Za-z0-9_./~+-]+?"
_FOLDER = r"(?:#subdirectory=[A-Za-z0-9_][A-Za-z0-9_./-]*)?"
_GIT = re.compile(rf"regbot-moe @ git\+(?P<address>{_ADDRESS})@(?P<commit>[0-9a-f]{{40}})(?P<folder>{_FOLDER})")
_ARCHIVE = re.compile(rf"regbot-moe @ {_ADDRESS}\.(?:whl|tar\.gz|zip)#sha256=[0-9a-f]{{64}}")
_PATH = re.compile(r"\.(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


def is_bare_name(source: str) -> bool:
    """Return whether ``source`` is only a name, which pip would look up in a package index."""
    try:
        return Requirement(_strip_quotes_and_comment(source)).url is None
    except InvalidRequirement:
        return False


def _strip_quotes_and_comment(source: str) -> str:
    word = re.sub(r"\s+#.*", "", source).strip()
    is_quoted = word[:1] == word[-1:] and word[:1] in ("'", '"')
    return word[1:-1].strip() if is_quoted else word


def path_in_repository(source: str) -> str:
    """Return the path in the repository from which a job installs regbot, such as ``vendor/regbot``.

    Return '' if the source is not in the repository, or if it is the whole repository.
    """
    plain_source = _strip_quotes_and_comment(source)
    path = PurePosixPath(plain_source)
    is_in_repository = plain_source.startswith("./") and ".." not in path.parts
    is_whole_repository = path == PurePosixPath()
    return path.as_posix() if is_in_repository and not is_whole_repository else ""


def is_usable(source: str) -> bool:
    """Return whether a source is set and is not only a name."""
    return source != UNSET and not is_bare_name(source)


def parse_source(root: Path, text: str) -> str:
    """Return the value of the option ``--source`` in the form for a workflow. Raises ConfigError if it is not safe."""
    option = f"--source {printable(text)!r}"
    if is_bare_name(text):
        raise ConfigError(
            f"{option}: is a bare name, and on the public package index the name regbot is somebody else's: its code "
            f"would get this repository's tokens. Give '{EXAMPLE}' with all 40 digits, or a path in the repository, "
            "such as ./vendor/regbot"
        )
    requirement = re.sub(r"\s*@\s*", " @ ", text.strip(), count=1)
    if _GIT.fullmatch(requirement) or _ARCHIVE.fullmatch(requirement):
        return requirement
    path = "/".join([".", *PurePosixPath(text).parts])
    if text.startswith("/") or not _PATH.fullmatch(path):
        raise ConfigError(
            f"{option}: give a path in the repository, such as ./vendor/regbot, '{EXAMPLE}' with all 40 digits of a "
            f"commit, or '{DISTRIBUTION} @ https://...whl#sha256=...'",
            "leave out user and password: everybody can read the workflow",
        )
    if not (root / path).resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"{option}: leads out of the repository")
    if not (root / path).is_file() and not (root / path / "pyproject.toml").is_file():
        raise ConfigError(f"{option}: is no file and no project", "give a checkout of regbot, or its wheel")
    return path


def own_source() -> str | None:
    """Return the source from which this regbot was installed (PEP 610); None if it is no commit at an https address."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        direct_url = json.loads(text) if text else {}
        vcs = direct_url.get("vcs_info", {})
        if vcs.get("vcs") != "git":
            return None
        address = re.sub(r"(?<=^https://)[^/]*@", "", direct_url["url"])  # without user and password
        folder = f"#subdirectory={direct_url['subdirectory']}" if direct_url.get("subdirectory") else ""
        source = f"{DISTRIBUTION} @ git+{address}@{vcs['commit_id']}{folder}"
    except (PackageNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return source if _GIT.fullmatch(source) else None


def is_same_repository(first: str, second: str) -> bool:
    """Return whether both sources are commits of the same repository, at the same address and folder."""
    first_match, second_match = _GIT.fullmatch(first), _GIT.fullmatch(second)
    if first_match is None or second_match is None:
        return False
    return first_match["address"] == second_match["address"] and first_match["folder"] == second_match["folder"]


def source_for(name: str, source: str) -> str:
    """Return ``source`` as the workflow ``name`` needs it.

    The workflow regbot-static checks the repository out into the folder ``code``. So it needs ``./code`` before a path
    in the repository.
    """
    is_in_repository = source == "." or source.startswith("./")
    return f"./code{source[1:]}" if is_in_repository and name == "regbot-static" else source
