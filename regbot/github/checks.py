"""regbot's check run on a head commit: find it, write it, and choose its conclusion for a verdict.

regbot recognizes its own check run by the app that created it, and by the external id ``PR:SHA:NONCE``, which no job
can set. A job of a pull request may also be called ``regbot``. Such a *foreign* check run could replace regbot's
result, because a required check looks at the newest one of a name. regbot's check run is then at least as strict as
INVALID, and is created again if the foreign one is newer. More check runs than regbot reads are treated alike.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from regbot.github.client import Forge
from regbot.github.stamped_text import Stamp, StampedText, Tier
from regbot.github.types import Annotation, CheckRun, Conclusion, NewCheck
from regbot.records.config import GitHub
from regbot.records.text.clip import clip
from regbot.records.verdict import Status

NAME = "regbot"
STATIC_NONCE = "static"
"""Replaces the nonce in the external id of a static result. A static result needs no approval, so it has no nonce."""
TITLE_CHARACTERS = 200
BLOCKING_CONCLUSIONS = ("failure", "action_required")
CONCLUSIONS: Mapping[Status, Conclusion] = {
    "PASS": "success",
    "FAIL": "failure",
    "INVALID": "failure",
    "REVIEW": "action_required",
    "INCONCLUSIVE": "neutral",
}
_BY_STRICTNESS: Sequence[Conclusion] = ("success", "neutral", "action_required", "failure")
"""Conclusions that the ``[github]`` table may name, the most lenient first."""
MAX_LOOKUPS = 3
_FOREIGN_PREFIX = f"INVALID, a job is also called {NAME}: "
_TITLE_PREFIX = re.compile(rf"^({re.escape(_FOREIGN_PREFIX)})?(conclusion of #\d+ \([A-Z]+\): )?")
_EXTERNAL_ID = re.compile(r"([0-9]{1,10}):([0-9a-f]{40}):([0-9a-f]{16}|static)")
"""Pull request or 0, head commit, and nonce."""


def format_external_id(number: int, sha: str, nonce: str = STATIC_NONCE) -> str:
    """Return the external id of the check run on ``sha`` for the pull request ``number``. For a merge group, the number
    is 0."""
    return f"{number}:{sha}:{nonce}"


@dataclass(frozen=True)
class HeadChecks:
    """regbot's check runs on one head for one pull request.

    A new measurement of a judged commit gets a new check run, because GitHub does not set a completed check run back to
    in progress. GitHub shows only the newest check run of a name.
    """

    run: CheckRun | None = None
    """The check run that waits for a measurement, otherwise the newest; None without a check run."""
    newest: CheckRun | None = None
    """The check run that GitHub shows: the newest on the commit, of any pull request, or a foreign one."""
    others: Sequence[Stamp] = ()
    requested_nonce: str = ""
    """Nonce of the last requested measurement; '' without one."""
    has_foreign: bool = False
    """Whether the commit has a foreign check run: with regbot's name and app, but not created by regbot."""
    is_complete: bool = True
    """Whether all check runs called ``NAME`` were read. If False, the commit has older ones, which may be foreign."""

    @property
    def is_waiting(self) -> bool:
        return self.run is not None and self.run.status != "completed"

    @property
    def pending_nonce(self) -> str:
        """Nonce of the measurement that the check run waits for; '' if it does not wait."""
        return self.requested_nonce if self.is_waiting else ""

    @property
    def text(self) -> StampedText | None:
        """The result in the check run; None without a result on its commit. A check run keeps its earlier result while
        it waits for a measurement, because an INVALID measurement does not replace it."""
        return _read_text(self.run) if self.run is not None else None

    @property
    def completed_text(self) -> StampedText | None:
        """The result in the completed check run; None without one."""
        return None if self.is_waiting else self.text

    @property
    def title(self) -> str:
        """Title of the result in a completed check run, without the prefixes of ``_TITLE_PREFIX``; '' without one."""
        return "" if self.run is None or self.is_waiting else _TITLE_PREFIX.sub("", self.run.title)

    def is_hidden(self, conclusion: Conclusion | None = None) -> bool:
        """Return whether GitHub shows another check run than ``run``, which may let the commit pass: a foreign one, or
        that of another pull request that is completed with another conclusion than ``conclusion``."""
        if self.run is None or self.newest is None or self.newest.id == self.run.id:
            return False
        if _find_owner(self.newest) is None:
            return True
        return self.newest.status == "completed" and self.newest.conclusion != conclusion

    def can_show(self, nonce: str, run_id: int) -> bool:
        """Return whether the measurement by the workflow run ``run_id`` may be shown.

        It may be shown if ``nonce`` belongs to the last requested measurement, or if the check run already contains the
        result of this workflow run.
        """
        results = [result for result in (self.text, self.text and self.text.void) if result is not None]
        measured_runs = [result.stamp.run for result in results if result.stamp.tier == "measured"]
        return nonce == self.requested_nonce or run_id in measured_runs


def find(forge: Forge, sha: str, number: int, bot: str) -> HeadChecks:
    """Return regbot's check runs on ``sha`` for the pull request ``number``, or for a merge group if it is 0.

    ``bot`` is the login of regbot's app. Raises ForgeError.
    """
    listed, is_complete = forge.checks(sha, NAME)
    app_runs = [run for run in listed if run.app == bot.removesuffix("[bot]")]  # oldest first
    newest_by_pull = {_find_owner(run): run for run in app_runs}
    own_runs = [run for run in app_runs if _find_owner(run) == number]
    requested = next((run for run in reversed(own_runs) if not run.external_id.endswith(f":{STATIC_NONCE}")), None)
    is_waiting = requested is not None and requested.status != "completed"
    others = [_read_text(run) for pull, run in newest_by_pull.items() if pull not in (None, 0, number)]
    return HeadChecks(
        run=requested if is_waiting else next(reversed(own_runs), None),
        newest=app_runs[-1] if app_runs else None,
        others=[text.stamp for text in others if text is not None],
        requested_nonce=requested.external_id.rpartition(":")[2] if requested is not None else "",
        has_foreign=None in newest_by_pull,
        is_complete=is_complete,
    )


def _find_owner(run: CheckRun) -> int | None:
    """Return the number of the pull request that a check run of regbot's app belongs to; 0 for a merge group, None if
    regbot did not create the check run."""
    match = _EXTERNAL_ID.fullmatch(run.external_id)
    return int(match[1]) if match is not None and match[2] == run.sha else None


def write(
    forge: Forge,
    stamped_text: StampedText,
    head_checks: HeadChecks,
    github: GitHub,
    title: str,
    url: str = "",
    annotations: Sequence[Annotation] = (),
) -> None:
    """Complete the check run of a head with ``stamped_text``. Raises ForgeError.

    A check run is created if there is none, or if GitHub shows another one instead (``HeadChecks.is_hidden``). It gets
    the strictest conclusion of this and of other pull requests with this head, because a required check does not
    distinguish them. ``title`` is the title of the result, and ``url`` is the page of its workflow run; '' if unknown.
    A check run that has annotations keeps them, because GitHub does not replace any. A note then says so.
    """
    run, stamp = head_checks.run, stamped_text.stamp
    conclusion = _conclude_stamp(stamp, github)
    note = ""
    stricter = _find_stricter(forge, head_checks, stamp, github)
    if stricter is not None:
        conclusion = _conclude_stamp(stricter, github)
        title = f"conclusion of #{stricter.pr} ({stricter.status}): {title}"
        note = (
            f"👥 **This is the verdict on #{stamp.pr}.** #{stricter.pr} has the same head, and its verdict is "
            f"{stricter.status}. A required check cannot distinguish the two, so this check run has the stricter "
            f"conclusion. When #{stricter.pr} is closed, run the workflow `regbot-static` of #{stamp.pr} again."
        )
    if head_checks.has_foreign or not head_checks.is_complete:
        conclusion = max(conclusion, conclude("INVALID", github), key=_BY_STRICTNESS.index)
        title = f"{_FOREIGN_PREFIX}{title}"
        note = _FOREIGN_NOTE
    check = NewCheck(
        name=NAME,
        sha=stamp.head,
        external_id=run.external_id if run is not None else format_external_id(stamp.pr, stamp.head),
        status="completed",
        conclusion=conclusion,
        title=clip(title, TITLE_CHARACTERS),
        summary=stamped_text.body(note=note),
        details_url=url,
        annotations=annotations,
    )
    if run is not None:
        shown = (run.status, run.conclusion, run.title, run.summary.strip())  # GitHub may change outer whitespace
        if shown != ("completed", conclusion, check.title, check.summary.strip()):
            # Somebody may have requested a measurement since the check run was read, so its external id is kept.
            update = replace(check, external_id="")
            if run.annotations:
                kept_note = f"{note} {_KEPT_NOTE}".strip()
                update = replace(update, annotations=(), summary=stamped_text.body(note=kept_note))
            forge.update_check(run.id, update)
    if run is None or head_checks.is_hidden(conclusion):
        forge.create_check(check)


def _find_stricter(forge: Forge, head_checks: HeadChecks, stamp: Stamp, github: GitHub) -> Stamp | None:
    """Return the strictest verdict on another open pull request with this head, if it is stricter than ``stamp``.

    Anybody can open pull requests with the same head, so only ``MAX_LOOKUPS`` are looked up. The others count as open,
    so that nobody can hide a verdict behind many pull requests.
    """

    def get_strictness(verdict: Stamp) -> int:
        return _BY_STRICTNESS.index(_conclude_stamp(verdict, github))

    if not stamp.pr:
        return None
    stricter = [other for other in head_checks.others if get_strictness(other) > get_strictness(stamp)]
    for lookups, other in enumerate(sorted(stricter, key=get_strictness, reverse=True)):
        if lookups == MAX_LOOKUPS:
            return other
        pull = forge.pull(other.pr)
        if pull.open and pull.head_sha == stamp.head:
            return other
    return None


def show_waiting(forge: Forge, head_checks: HeadChecks) -> None:
    """If a foreign check run hides the check run that waits for a measurement, create the waiting check run again.
    Raises ForgeError."""
    run = head_checks.run
    if run is not None and head_checks.is_waiting and head_checks.has_foreign and head_checks.is_hidden():
        waiting = NewCheck(NAME, run.sha, run.external_id, "in_progress", None, run.title, run.summary)
        forge.create_check(waiting)


def conclude(status: Status, github: GitHub, mildest: Conclusion = "success") -> Conclusion:
    """Return the conclusion of a check run for a verdict. In shadow mode the conclusion is always neutral."""
    return "neutral" if github.shadow else conclude_without_shadow(status, github, mildest)


def conclude_without_shadow(status: Status, github: GitHub, mildest: Conclusion = "success") -> Conclusion:
    """Return the conclusion that applies without shadow mode: the configured conclusion for ``status``, or ``mildest``
    if ``mildest`` is stricter."""
    configured = github.conclusions.get(status, CONCLUSIONS[status])
    return max(configured, mildest, key=_BY_STRICTNESS.index)


def get_mildest_conclusion(github: GitHub, tier: Tier, number: int) -> Conclusion:
    """Return the most lenient conclusion that a result may have. ``number`` is the pull request; 0 for a merge group.

    A measured result may have any conclusion, and ``success`` is the mildest. For a self-reported result, the mildest
    is ``github.self_reported``. For a merge group, the milder one of ``github.self_reported`` and ``neutral`` is used:
    nobody can start a measurement of a traced merge group, so nothing could unblock a stricter conclusion.
    """
    if tier == "measured":
        return "success"
    is_merge_group = number == 0
    return min(github.self_reported, "neutral", key=_BY_STRICTNESS.index) if is_merge_group else github.self_reported


def _conclude_stamp(stamp: Stamp, github: GitHub) -> Conclusion:
    return conclude(stamp.status, github, get_mildest_conclusion(github, stamp.tier, stamp.pr))


_KEPT_NOTE = "The annotations are those of the first result in this check run: GitHub does not replace them."
_FOREIGN_NOTE = (
    f"⛔ **INVALID:** this commit has another check run called `{NAME}`, which regbot did not create, or more of them "
    "than the 100 that regbot reads. A required check cannot distinguish them. A job of the pull request may have this "
    "name. Rename that job and push."
)


def _read_text(run: CheckRun) -> StampedText | None:
    text = StampedText.read(run.summary)
    return text if text is not None and text.stamp.head == run.sha else None
