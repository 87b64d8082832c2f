"""regbot's check run on a head commit: find it, write it, and choose its conclusion for a verdict.

A job of a pull request may also be called ``regbot``. GitHub then shows a second check run of this name. regbot
recognizes its own check run by two properties: the app that created it, and the external id ``PR:SHA:NONCE``, which no
job can set. GitHub lets no app change the check run of another app.

A *foreign* check run has regbot's name and app, but no external id of regbot. A required check looks at the newest
check run of a name, so a foreign check run could replace regbot's result. regbot therefore does two things:

- On a commit with a foreign check run, regbot's check run is at least as strict as INVALID. A commit with more check
  runs than regbot reads is treated in the same way.
- If the foreign check run is newer, regbot creates its own check run again.

A parameter ``github`` has the settings of the table ``[github]``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from regbot.github.client import Forge
from regbot.github.stamped_text import Stamp, StampedText, Tier, select_strongest
from regbot.github.types import Annotation, CheckRun, Conclusion, NewCheck
from regbot.records.config import GitHub
from regbot.records.text.clip import clip
from regbot.records.verdict import Status
from regbot.report.markdown import Markdown

NAME = "regbot"
"""Name of regbot's check run."""
STATIC_NONCE = "static"
"""Replaces the nonce in the external id of a static result. A static result needs no approval, so it has no nonce."""
TITLE_CHARACTERS = 200
"""Largest length of a check run's title."""
BLOCKING_CONCLUSIONS = ("failure", "action_required")
"""Conclusions that block the merge where regbot is a required check."""
CONCLUSIONS: Mapping[Status, Conclusion] = {
    "PASS": "success",
    "FAIL": "failure",
    "INVALID": "failure",
    "REVIEW": "action_required",
    "INCONCLUSIVE": "neutral",
}
"""Default conclusion for each status. The ``[github]`` table can replace it."""
_BY_STRICTNESS: Sequence[Conclusion] = ("success", "neutral", "action_required", "failure")
"""Conclusions that the ``[github]`` table may name, the most lenient first."""
MAX_NAMED_PEERS = 10
"""Largest number of pull requests with the same head that a note names."""
_FOREIGN_PREFIX = f"INVALID, a job is also called {NAME}: "
"""Start of the title on a commit that has, or may have, a foreign check run."""
_TITLE_PREFIX = re.compile(rf"^({re.escape(_FOREIGN_PREFIX)})?(conclusion of #\d+ \([A-Z]+\): )?")
"""Words that ``write`` puts before the title of a result."""
_EXTERNAL_ID = re.compile(r"([0-9]{1,10}):([0-9a-f]{40}):([0-9a-f]{16}|static)")
"""Pull request or 0, head commit, and nonce."""


def format_external_id(number: int, sha: str, nonce: str = STATIC_NONCE) -> str:
    """Return the external id of the check run on ``sha`` for the pull request ``number``. For a merge group, the number
    is 0."""
    return f"{number}:{sha}:{nonce}"


@dataclass(frozen=True)
class HeadChecks:
    """regbot's present check runs on one head for one pull request."""

    runs: Sequence[CheckRun]
    """The present check runs, oldest first. There is at most one, or two if two jobs created them at the same moment.

    A new measurement of a judged commit gets a new check run, because GitHub does not set a completed check run back to
    in progress. The earlier check run is then left out, because GitHub shows only the newest check run of a name.
    """
    other_pulls: Mapping[int, "HeadChecks"] = field(default_factory=dict)
    """Check runs of other pull requests with the same head, by pull request number."""
    foreign_runs: Sequence[CheckRun] = ()
    """Foreign check runs, oldest first: they have regbot's name and app, but regbot did not create them."""
    is_complete: bool = True
    """Whether all check runs called ``NAME`` were read. If False, the commit has older ones, which may be foreign."""

    @property
    def is_unique(self) -> bool:
        """Whether the commit certainly has no foreign check run."""
        return self.is_complete and not self.foreign_runs

    @property
    def is_hidden(self) -> bool:
        """Whether GitHub shows a foreign check run instead of regbot's check run, because the foreign one is newer."""
        if not self.foreign_runs or not self.runs:
            return False
        return self.foreign_runs[-1].id > self.runs[-1].id  # a newer check run has a larger id

    def is_hidden_by_pull(self, conclusion: Conclusion | None, peers: Sequence[Stamp]) -> bool:
        """Return whether GitHub shows the check run of another pull request with the same head, and that check run
        has a conclusion other than ``conclusion``. A closed pull request can leave such a check run behind.

        Check runs of ``peers``, the other open pull requests, do not count: ``regbot.github.same_head`` corrects them.
        """
        newest_runs = {number: other.runs[-1] for number, other in self.other_pulls.items() if other.runs}
        if not newest_runs or not self.runs:
            return False
        number = max(newest_runs, key=lambda other: newest_runs[other].id)
        newest_run = newest_runs[number]
        is_newer = newest_run.id > self.runs[-1].id
        is_peer = any(peer.pr == number for peer in peers)
        is_other_result = newest_run.status == "completed" and newest_run.conclusion != conclusion
        return is_newer and is_other_result and not is_peer

    @property
    def completed_text(self) -> StampedText | None:
        """The strongest result in the completed check runs; None if they contain no result on their commit. Results are
        ranked by ``stamped_text.STRENGTH``."""
        return _select_text([run for run in self.runs if run.status == "completed"])

    @property
    def previous_text(self) -> StampedText | None:
        """The earlier result in a check run that waits for a measurement; None without an earlier result.

        A check run keeps its result when a measurement is requested, because an INVALID measurement does not replace
        the result.
        """
        return _select_text([run for run in self.runs if run.status != "completed"])

    @property
    def title(self) -> str:
        """Title of the oldest completed check run, without the prefixes of ``_TITLE_PREFIX``; '' if no check run is
        completed."""
        titles = [run.title for run in self.runs if run.status == "completed"]
        return _TITLE_PREFIX.sub("", titles[0]) if titles else ""

    @property
    def waiting_run(self) -> CheckRun | None:
        """The newest check run that waits for a measurement; None if no check run waits."""
        return next((run for run in reversed(self.runs) if run.status != "completed"), None)

    @property
    def pending_nonce(self) -> str:
        """Nonce of the measurement that a check run waits for; '' if no check run waits. The check run of a static
        result has no such nonce."""
        nonces = [_read_nonce(run) for run in self.runs if run.status != "completed"]
        return next((nonce for nonce in nonces if nonce and nonce != STATIC_NONCE), "")

    def can_show(self, nonce: str, run_id: int) -> bool:
        """Return whether the measurement by the workflow run ``run_id`` may be shown.

        It may be shown if ``nonce`` belongs to the last requested measurement, or if a check run already contains the
        result of this workflow run.
        """
        results = [result for result in (self.completed_text, self.previous_text) if result is not None]
        # A text may have a banner about a later measurement that gave no result (INVALID).
        results += [result.void for result in results if result.void is not None]
        measured_runs = [result.stamp.run for result in results if result.stamp.tier == "measured"]
        is_requested = any(_read_nonce(run) == nonce for run in self.runs)
        return is_requested or run_id in measured_runs


def find(forge: Forge, sha: str, number: int, bot: str) -> HeadChecks:
    """Return regbot's check runs on ``sha`` for the pull request ``number``, or for a merge group if it is 0.

    ``bot`` is the login of regbot's app. Raises ForgeError.
    """
    runs_by_pull: dict[int, list[CheckRun]] = {}
    foreign_runs: list[CheckRun] = []
    listed, is_complete = forge.checks(sha, NAME)
    for run in listed:
        if run.app != _app_of(bot):  # a check run of another app is not foreign in the sense of this module
            continue
        pull_number = find_owner(run, bot)
        if pull_number is not None:
            runs_by_pull.setdefault(pull_number, []).append(run)
        else:
            foreign_runs.append(run)
    present_runs = {pull: _select_present(runs) for pull, runs in runs_by_pull.items()}
    own_runs = present_runs.pop(number, [])
    other_pulls = {
        other: HeadChecks(runs, foreign_runs=foreign_runs, is_complete=is_complete)
        for other, runs in present_runs.items()
    }
    return HeadChecks(own_runs, other_pulls, foreign_runs, is_complete)


def find_owner(run: CheckRun, bot: str) -> int | None:
    """Return the number of the pull request that a check run belongs to; 0 for a merge group.

    The result is None if regbot did not create the check run. ``bot`` is the login of regbot's app.
    """
    match = _EXTERNAL_ID.fullmatch(run.external_id)
    if match is None or run.app != _app_of(bot) or run.name != NAME:
        return None
    number, sha, _ = match.groups()
    return int(number) if sha == run.sha else None


def _app_of(bot: str) -> str:
    """Return the short name of the app whose login is ``bot``. The login of an app ends with ``[bot]``."""
    return bot.removesuffix("[bot]")


def write(
    forge: Forge,
    stamped_text: StampedText,
    head_checks: HeadChecks,
    github: GitHub,
    title: str,
    *,
    annotations: Sequence[Annotation] = (),
    url: str = "",
    peers: Sequence[Stamp] = (),
) -> bool:
    """Complete the check run of a head with ``stamped_text``. Return whether anything changed. Raises ForgeError.

    A check run is created if there is none, or if GitHub shows a newer one instead (``is_hidden``).
    ``title`` is the title of the result, and ``url`` is the page of its workflow run; '' if unknown.
    ``peers`` are the stamps of the verdicts on other pull requests with this head. GitHub does not distinguish the
    check runs of pull requests with the same head, so all these check runs get the strictest conclusion. Annotations
    cannot be removed from a check run, so they are sent only once. An existing check run keeps its external id, because
    somebody may have requested a measurement after ``head_checks`` was read.
    """
    check = _build_check(stamped_text, github, title, url, peers, head_checks)
    has_changed = False
    for run in head_checks.runs:
        if not _has_content(run, check):
            new_annotations = () if run.annotations else tuple(annotations)
            forge.update_check(run.id, replace(check, annotations=new_annotations))
            has_changed = True
    is_hidden = head_checks.is_hidden or head_checks.is_hidden_by_pull(check.conclusion, peers)
    if not head_checks.runs or is_hidden:
        external_id = format_external_id(stamped_text.stamp.pr, stamped_text.stamp.head)
        if head_checks.runs:
            external_id = head_checks.runs[-1].external_id
        forge.create_check(replace(check, external_id=external_id, annotations=tuple(annotations)))
        has_changed = True
    return has_changed


def is_current(stamped_text: StampedText, head_checks: HeadChecks, github: GitHub, peers: Sequence[Stamp] = ()) -> bool:
    """Return whether the existing check runs show ``stamped_text`` with the conclusion that ``write`` would give it."""
    # Titles and URLs are not compared, so they may be empty.
    check = _build_check(stamped_text, github, title="", url="", peers=peers, head_checks=head_checks)
    return all(_has_content(run, check) for run in head_checks.runs)


def _has_content(run: CheckRun, check: NewCheck) -> bool:
    """Return whether a check run is completed with the conclusion and summary of ``check``. Titles are not compared."""
    summary = run.summary.replace("\r\n", "\n").strip()  # GitHub may change line ends and outer whitespace
    has_same_result = run.status == "completed" and run.conclusion == check.conclusion
    return has_same_result and summary == check.summary.strip()


def show_waiting(forge: Forge, head_checks: HeadChecks) -> bool:
    """If a foreign check run hides the check run that waits for a measurement, create the waiting check run again.

    Return whether a check run was created. Raises ForgeError.
    """
    waiting_run = head_checks.waiting_run
    if waiting_run is None or not head_checks.is_hidden:
        return False
    forge.create_check(
        NewCheck(
            name=NAME,
            sha=waiting_run.sha,
            external_id=waiting_run.external_id,
            status="in_progress",
            conclusion=None,
            title=waiting_run.title,
            summary=waiting_run.summary,
        )
    )
    return True


def conclude(status: Status, github: GitHub, mildest: Conclusion = "success") -> Conclusion:
    """Return the conclusion of a check run for a verdict. In shadow mode the conclusion is always neutral.

    ``mildest`` is the most lenient conclusion that the result may have (``get_mildest_conclusion``).
    """
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
    is_self_reported = tier == "static"
    if not is_self_reported:
        return "success"
    is_merge_group = number == 0
    if is_merge_group:
        return min(github.self_reported, "neutral", key=_BY_STRICTNESS.index)
    return github.self_reported


def _conclude_stamp(stamp: Stamp, github: GitHub) -> Conclusion:
    """Return the conclusion of a check run for the result with ``stamp``."""
    return conclude(stamp.status, github, get_mildest_conclusion(github, stamp.tier, stamp.pr))


def get_strictness(stamp: Stamp, github: GitHub) -> int:
    """Return a number for the conclusion of a result: the stricter the conclusion, the higher the number."""
    return _BY_STRICTNESS.index(_conclude_stamp(stamp, github))


def _build_check(
    stamped_text: StampedText, github: GitHub, title: str, url: str, peers: Sequence[Stamp], head_checks: HeadChecks
) -> NewCheck:
    """Return the completed check run for ``stamped_text``, with notes about other pull requests and foreign check runs.

    ``url`` is the page of the workflow run. The check run has the strictest conclusion of ``stamped_text`` and
    ``peers``, the stamps of other pull requests with this head. If the commit may have a foreign check run, the
    conclusion is at least that of INVALID.
    """
    stamp = stamped_text.stamp
    strictest = max((stamp, *peers), key=lambda candidate: get_strictness(candidate, github))
    conclusion = _conclude_stamp(strictest, github)
    title_prefix = f"conclusion of #{strictest.pr} ({strictest.status}): " if strictest is not stamp else ""
    same_head_note = write_same_head_note(stamp.pr, peers, strictest)
    notes = [same_head_note] if same_head_note is not None else []
    if not head_checks.is_unique:
        conclusion = max(conclusion, conclude("INVALID", github), key=_BY_STRICTNESS.index)
        title_prefix = f"{_FOREIGN_PREFIX}{title_prefix}"
        notes.insert(0, _FOREIGN_NOTE if head_checks.is_complete else _MANY_NOTE)
    return NewCheck(
        name=NAME,
        sha=stamp.head,
        external_id="",  # keeps the external id of an existing check run
        status="completed",
        conclusion=conclusion,
        title=clip(f"{title_prefix}{title}", TITLE_CHARACTERS),
        summary=stamped_text.body(note=Markdown("\n> ".join(notes)) if notes else None),
        details_url=url,
    )


_FOREIGN_NOTE = Markdown(
    f"⛔ **INVALID:** this commit has another check run called `{NAME}`, which regbot did not create. A required "
    "check cannot distinguish the two check runs. A job of the pull request may have this name. Rename that job and "
    "push."
)


_MANY_NOTE = Markdown(
    f"⛔ **INVALID:** this commit has more than 100 check runs called `{NAME}`, and regbot reads only 100. Perhaps "
    f"jobs of the pull request are called `{NAME}`, or other pull requests have the same head. Rename these jobs, or "
    "push another commit."
)


def write_same_head_note(number: int, peers: Sequence[Stamp], strictest: Stamp) -> Markdown | None:
    """Return the note that other pull requests have the same head; None if ``peers`` is empty.

    ``number`` is the pull request of the check run. ``peers`` are the stamps of the verdicts on the other pull
    requests. ``strictest`` is the stamp with the strictest conclusion, which the check run gets.
    """
    if not peers:
        return None
    peer_names = ", ".join(f"#{peer.pr} ({peer.status})" for peer in peers[:MAX_NAMED_PEERS])
    if len(peers) > MAX_NAMED_PEERS:
        peer_names = f"{peer_names} and {len(peers) - MAX_NAMED_PEERS} more"
    advice = ""
    if strictest.pr != number:
        advice = f" When #{strictest.pr} is closed, run the workflow `regbot-static` of #{number} again."
    return Markdown(
        f"👥 **This is the verdict on #{number}.** Other pull requests have the same head: {peer_names}. A required "
        "check cannot distinguish the check runs of these pull requests. So this check run has the conclusion of the "
        f"strictest verdict, which is the {strictest.status} of #{strictest.pr}.{advice}"
    )


def _select_present(runs: Sequence[CheckRun]) -> list[CheckRun]:
    """Return the check runs with the external id of the newest check run. ``runs`` are the check runs of one pull
    request, oldest first. Each measurement has its own external id."""
    return [run for run in runs if run.external_id == runs[-1].external_id]


def _select_text(runs: Sequence[CheckRun]) -> StampedText | None:
    """Return the strongest result in the summaries of ``runs``; None without a result on the commit of the check runs.
    All ``runs`` are on one commit."""
    own_texts: list[StampedText] = []
    for run in runs:
        text = StampedText.read(run.summary)
        if text is not None and text.stamp.head == run.sha:
            own_texts.append(text)
    return select_strongest(own_texts, own_texts[0].stamp.head) if own_texts else None


def _read_nonce(run: CheckRun) -> str:
    """Return the nonce in the external id of a check run; '' if regbot did not create the check run."""
    match = _EXTERNAL_ID.fullmatch(run.external_id)
    return match[3] if match else ""
