"""The one check run of a head: what it is called, which is ours, and how a verdict concludes it.

A job of a pull request may be called as ours is, and GitHub then shows a check run of that name. Ours are known by
their external id, ``PR:SHA:NONCE``, which no job can set; and by the app, because no app may change another's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from regbot.config import GitHub
from regbot.forge.client import Forge
from regbot.forge.shown import Shown, Stamp, strongest
from regbot.forge.types import Annotation, CheckRun, Conclusion, NewCheck
from regbot.records.verdict import Status
from regbot.report.markdown import Markdown

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
_HELD_UP = re.compile(r"^held to #\d+ \([A-Z]+\): ")
_EXTERNAL_ID = re.compile(r"([0-9]{1,10}):([0-9a-f]{40}):([0-9a-f]{16}|static)")


def external_id(number: int, sha: str, nonce: str = STATIC) -> str:
    """Of the check run on ``sha`` for a pull request; 0 for a merge group."""
    return f"{number}:{sha}:{nonce}"


@dataclass(frozen=True)
class Held:
    """Our check runs of one head, oldest first; one, unless two were made at the same moment."""

    runs: Sequence[CheckRun]
    beside: Mapping[int, "Held"] = field(default_factory=dict)
    """Those of other pull requests with the same head, by their numbers."""

    @property
    def shown(self) -> Shown | None:
        """The strongest result that one of them shows, as far as they are completed and of this very commit."""
        return _shown([run for run in self.runs if run.status == "completed"])

    @property
    def kept(self) -> Shown | None:
        """What was shown before the measurement was asked for that one of them waits for."""
        return _shown([run for run in self.runs if run.status != "completed"])

    @property
    def title(self) -> str:
        """Of the first that is completed, '' where none is."""
        titles = (run.title for run in self.runs if run.status == "completed")
        return _HELD_UP.sub("", next(titles, ""))

    @property
    def awaited(self) -> str:
        """The nonce of the measurement that one of them waits for, '' where none does."""
        waiting = (_nonce(run) for run in self.runs if run.status != "completed")
        return next((nonce for nonce in waiting if nonce not in ("", STATIC)), "")

    def of(self, nonce: str, run: int) -> bool:
        """Whether a measurement may be shown: ``nonce`` is of the one that was last asked for, or ``run`` is one that
        a check run of ours has shown."""
        shown = [each for found in (self.shown, self.kept) if found for each in (found, found.void) if each]
        asked = any(each.stamp.tier == "measured" and each.stamp.run == run for each in shown)
        return asked or any(_nonce(each) == nonce for each in self.runs)


def find(forge: Forge, sha: str, number: int, bot: str) -> Held:
    """Our check runs on ``sha`` for a pull request; ``bot``: the login of our app. Raises ForgeError."""
    runs: dict[int, list[CheckRun]] = {}
    for run in forge.checks(sha, NAME):
        found = _EXTERNAL_ID.fullmatch(run.external_id)
        if found is not None and found[2] == sha and run.app == bot.removesuffix("[bot]"):
            runs.setdefault(int(found[1]), []).append(run)
    own = runs.pop(number, [])
    return Held(own, {other: Held(each) for other, each in runs.items()})


def write(
    forge: Forge,
    shown: Shown,
    held: Held,
    github: GitHub,
    title: str,
    annotations: Sequence[Annotation] = (),
    url: str = "",
    peers: Sequence[Stamp] = (),
) -> bool:
    """Have the check run of a head show ``shown``, completed; whether anything was changed. Raises ForgeError.

    ``peers``: of the verdicts on other pull requests with this head: GitHub may take their check run for this one's, so
    all have the strictest conclusion. Annotations cannot be taken back, so they are given once. The external id is left
    alone: a measurement may have been asked for since the check run was looked at.
    """
    check = _check(shown, github, title, url, peers)
    changed = False
    for run in held.runs:
        same = (run.conclusion, run.summary.replace("\r\n", "\n").strip()) == (check.conclusion, check.summary.strip())
        if run.status != "completed" or not same:
            forge.update_check(run.id, replace(check, annotations=() if run.annotations else tuple(annotations)))
            changed = True
    if not held.runs:
        new = external_id(shown.stamp.pr, shown.stamp.head)
        forge.create_check(replace(check, external_id=new, annotations=tuple(annotations)))
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


def _check(shown: Shown, github: GitHub, title: str, url: str, peers: Sequence[Stamp]) -> NewCheck:
    stamp = shown.stamp
    own = conclude(stamp.status, github, stamp.self_reported)
    by, conclusion = stamp, own
    for peer in peers:
        theirs = conclude(peer.status, github, peer.self_reported)
        if _STRICTER.index(theirs) > _STRICTER.index(conclusion):
            by, conclusion = peer, theirs
    return NewCheck(
        name=NAME,
        sha=stamp.head,
        external_id="",
        status="completed",
        conclusion=conclusion,
        title=f"{f'held to #{by.pr} ({by.status}): ' if by is not stamp else ''}{title}"[:TITLE_CHARACTERS],
        summary=shown.body(note=same_head(stamp.pr, peers)),
        details_url=url,
    )


def same_head(number: int, peers: Sequence[Stamp]) -> Markdown | None:
    """What is to be known of a commit that several pull requests end with."""
    if not peers:
        return None
    others = ", ".join(f"#{peer.pr} ({peer.status})" for peer in peers)
    return Markdown(
        f"👥 **This is the verdict on #{number}.** Other pull requests have the same head: {others}. A check run is of "
        "a commit, so the conclusion is the strictest of all. When one of them was closed, run `regbot-static` again."
    )


def _shown(runs: Sequence[CheckRun]) -> Shown | None:
    read = [(run, shown) for run in runs if (shown := Shown.read(run.summary)) is not None]
    own = [shown for run, shown in read if shown.stamp.head == run.sha]
    return strongest(own, own[0].stamp.head) if own else None


def _nonce(run: CheckRun) -> str:
    found = _EXTERNAL_ID.fullmatch(run.external_id)
    return found[3] if found else ""
