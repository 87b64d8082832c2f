"""The one check run of a head: what it is called, which is ours, and how a verdict concludes it.

A job of a pull request may be called as ours is, and GitHub then shows a check run of that name. Ours are known by
their external id, ``PR:SHA:NONCE``, which no job can set; and by the app, because no app may change another's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbot.config import GitHub
from regbot.forge.client import Forge
from regbot.forge.shown import Shown, strongest
from regbot.forge.types import Annotation, CheckRun, Conclusion, NewCheck
from regbot.records.verdict import Status

NAME = "regbot"
STATIC = "static"
"""In place of the nonce, where nobody approved anything: the check run of a static result."""
TITLE_CHARACTERS = 200
STOPPING = ("failure", "action_required")
"""Conclusions that a required check does not let through."""
CONCLUSIONS: Mapping[Status, Conclusion] = {
    "PASS": "success",
    "FAIL": "failure",
    "INVALID": "failure",
    "REVIEW": "action_required",
    "INCONCLUSIVE": "neutral",
}
_STRICTER: Sequence[Conclusion] = ("success", "neutral", "action_required", "failure")
"""What ``[github]`` may name, the most lenient first."""
_EXTERNAL_ID = re.compile(r"([0-9]{1,10}):([0-9a-f]{40}):([0-9a-f]{16}|static)")


def external_id(number: int, sha: str, nonce: str = STATIC) -> str:
    """Of the check run on ``sha`` for a pull request; 0 for a merge group."""
    return f"{number}:{sha}:{nonce}"


@dataclass(frozen=True)
class Held:
    """Our check runs of one head, oldest first; one, unless two were made at the same moment."""

    runs: Sequence[CheckRun]

    @property
    def shown(self) -> Shown | None:
        """The strongest result that one of them shows, as far as they are completed and of this very commit."""
        done = [run for run in self.runs if run.status == "completed"]
        read = [(run, shown) for run in done if (shown := Shown.read(run.summary)) is not None]
        own = [shown for run, shown in read if shown.stamp.head == run.sha]
        return strongest(own, own[0].stamp.head) if own else None

    @property
    def awaited(self) -> str:
        """The nonce of the measurement that one of them waits for, '' where none does."""
        waiting = (_nonce(run) for run in self.runs if run.status != "completed")
        return next((nonce for nonce in waiting if nonce not in ("", STATIC)), "")

    def of(self, nonce: str) -> bool:
        """Whether ``nonce`` is of the measurement that was last asked for."""
        return any(_nonce(run) == nonce for run in self.runs)


def find(forge: Forge, sha: str, number: int, bot: str) -> Held:
    """Our check runs on ``sha`` for a pull request; ``bot``: the login of our app. Raises ForgeError."""
    runs = []
    for run in forge.checks(sha, NAME):
        found = _EXTERNAL_ID.fullmatch(run.external_id)
        ours = found is not None and (int(found[1]), found[2]) == (number, sha)
        if ours and run.app == bot.removesuffix("[bot]"):
            runs.append(run)
    return Held(runs)


def write(
    forge: Forge, shown: Shown, held: Held, github: GitHub, title: str, annotations: Sequence[Annotation], url: str
) -> bool:
    """Have the check run of a head show ``shown``, completed; whether anything was changed. Raises ForgeError.

    Annotations cannot be taken back, so they are given once. The external id is left alone: a measurement may have been
    asked for since the check run was looked at.
    """
    stamp = shown.stamp
    conclusion = conclude(stamp.status, github, stamp.self_reported)
    changed = False
    for run in held.runs:
        current = run.status == "completed" and run.conclusion == conclusion and Shown.read(run.summary) == shown
        if not current:
            new = () if run.annotations else tuple(annotations)
            forge.update_check(run.id, _check(shown, "", conclusion, title, new, url))
            changed = True
    if not held.runs:
        forge.create_check(_check(shown, external_id(stamp.pr, stamp.head), conclusion, title, tuple(annotations), url))
        changed = True
    return changed


def conclude(status: Status, github: GitHub, self_reported: bool = False) -> Conclusion:
    """The conclusion that a verdict has in a repository. In shadow mode none stops anything."""
    return "neutral" if github.shadow else would_be(status, github, self_reported)


def would_be(status: Status, github: GitHub, self_reported: bool = False) -> Conclusion:
    """The same without shadow mode. What a pull request's own job says of it is held to the stricter of the verdict's
    conclusion and ``github.self_reported``."""
    own = github.conclusions.get(status, CONCLUSIONS[status])
    return max(own, github.self_reported, key=_STRICTER.index) if self_reported else own


def _check(
    shown: Shown, identity: str, conclusion: Conclusion, title: str, annotations: tuple[Annotation, ...], url: str
) -> NewCheck:
    return NewCheck(
        name=NAME,
        sha=shown.stamp.head,
        external_id=identity,
        status="completed",
        conclusion=conclusion,
        title=title[:TITLE_CHARACTERS],
        summary=shown.body(),
        annotations=annotations,
        details_url=url,
    )


def _nonce(run: CheckRun) -> str:
    found = _EXTERNAL_ID.fullmatch(run.external_id)
    return found[3] if found else ""
