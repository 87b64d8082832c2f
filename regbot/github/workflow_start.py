"""Start a workflow once for each request.

The title of a run contains the nonce of the comment or label that requested it, which is computed from the request.
GitHub's list of runs therefore shows for which requests a workflow has started.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge, RefusedError
from regbot.github.types import CheckRun, Conclusion, NewCheck, WorkflowRun
from regbot.report.markdown import Markdown, Name, Words, sentence

MEASURE = "regbot-measure.yml"
BISECT = "regbot-bisect.yml"
POST = "regbot-post.yml"
MEASURE_TITLE = re.compile(
    r"regbot (?P<pr>0|[1-9][0-9]{0,8}) (?P<sha>[0-9a-f]{40}) (?P<base>[0-9a-f]{40}) (?P<nonce>[0-9a-f]{16})"
)
"""Title of a run of ``MEASURE``: pull request (0 for a merge group), head, base commit, and nonce."""
MAX_MEASUREMENT_AGE = timedelta(days=1)
"""Longest time from the request of a measurement to its end. Runs that started earlier are ignored."""


@dataclass(frozen=True)
class Measurement:
    number: int
    """Number of the pull request; 0 for a merge group."""
    sha: str
    base: str
    branch: str
    request_nonce: str
    login: str
    since: datetime
    bot: str
    more: int = 0
    """Number of pairs to add to an earlier measurement; 0 for a new one."""

    @property
    def nonce(self) -> str:
        """Nonce of the measurement, computed from the nonce of the request and the base commit. If the base changes,
        the same request can start a new measurement."""
        return _bind_nonce(self.request_nonce, self.base)

    @property
    def title(self) -> str:
        return f"{self._title_prefix}{self.base} {self.nonce}"

    @property
    def _title_prefix(self) -> str:
        return f"regbot {self.number} {self.sha} "

    def has_begun(self, runs: Sequence[WorkflowRun]) -> bool:
        return any(run.title == self.title for run in runs)

    def find_unfinished(self, runs: Sequence[WorkflowRun]) -> WorkflowRun | None:
        """Return a run that measures the same commit and has not ended; None if there is no such run."""
        same_commit_runs = (run for run in runs if run.title.startswith(self._title_prefix))
        return next((run for run in same_commit_runs if run.status != "completed"), None)


def compute_nonce(repository: str, *request: object) -> str:
    """Return the nonce of a request, 16 hexadecimal digits. The values ``request`` identify the request, for example
    the number of the pull request, the word "comment" and the id of the comment.

    The nonce is no secret: anybody who may start a workflow can start it with any nonce.
    """
    return hashlib.sha256("\n".join([repository, *map(str, request)]).encode()).hexdigest()[:16]


def _bind_nonce(request_nonce: str, base: str) -> str:
    return hashlib.sha256(f"{request_nonce}\n{base}".encode()).hexdigest()[:16]


def has_measurement_started(forge: Forge, request_nonce: str, since: datetime) -> bool:
    """Return whether a measurement against any base was started for a request since the time ``since``."""
    for run in forge.runs(MEASURE, since):
        title = MEASURE_TITLE.fullmatch(run.title)
        if title is None:
            continue
        if title["nonce"] == _bind_nonce(request_nonce, title["base"]):
            return True
    return False


def has_run_started(forge: Forge, workflow: str, nonce: str, since: datetime) -> bool:
    """Return whether a run of ``workflow`` since the time ``since`` has ``nonce`` in its title."""
    return any(nonce in run.title.split() for run in forge.runs(workflow, since))


def is_judged_since(forge: Forge, number: int, since: datetime) -> bool:
    """Return whether regbot-post was started for the pull request ``number`` after ``since``, and has not failed.

    It reads all comments that exist at its start.
    """
    # The conclusion is None while the run is in progress.
    posts = (post for post in forge.runs(POST, since) if post.conclusion in (None, "success"))
    return any(post.title == f"regbot-post {number}" for post in posts)


def request_measurement(
    forge: Forge, measurement: Measurement, find_obstacle: Callable[[], Words | None]
) -> CommandRefusal | GateOutcome:
    """Set the check run of a commit to in progress, and start the measurement of the commit, unless one is in progress.

    ``find_obstacle`` reads the state of the pull request once more, after the check run was set and before the start.
    If it returns an obstacle, for example a new push, the earlier check run is restored. Raises ForgeError.
    """
    number, sha = measurement.number, measurement.sha
    runs = forge.runs(MEASURE, measurement.since - MAX_MEASUREMENT_AGE)
    if measurement.has_begun(runs):
        return GateOutcome("nothing", "this measurement was started before")
    unfinished_run = measurement.find_unfinished(runs)
    if unfinished_run is not None:
        run_name = Name(unfinished_run.url or str(unfinished_run.id))
        return CommandRefusal(("A measurement of this commit is in progress, see ", run_name, "."))
    inputs = {
        "pr": str(number),
        "sha": sha,
        "base": measurement.base,
        "nonce": measurement.nonce,
        "more": str(measurement.more),
    }
    head_checks = checks.find(forge, sha, number, measurement.bot)
    check_id = _mark_in_progress(forge, measurement, head_checks)
    obstacle = find_obstacle()
    if obstacle is not None:
        _restore_check(forge, check_id, measurement, head_checks, obstacle)
        return CommandRefusal(obstacle)
    try:
        forge.dispatch(MEASURE, measurement.branch, inputs)
    except RefusedError:
        _restore_check(forge, check_id, measurement, head_checks, (f"GitHub did not start {MEASURE}.",))
        raise
    return GateOutcome("started", f"{MEASURE} was started on {sha}, for {measurement.login}")


def _mark_in_progress(forge: Forge, measurement: Measurement, head_checks: HeadChecks) -> int:
    """Write a check run with the status in progress, and return the id of this check run.

    GitHub does not set a completed check run back to in progress, so a new check run replaces a completed check run.
    The earlier result stays in the text of the check run, because it is needed again if the measurement is INVALID.
    """
    title = f"Timing {measurement.more} more pairs" if measurement.more else "Measuring"
    note = sentence(("Requested by ", Name(measurement.login), ". The verdict will appear here after the run."))
    check = NewCheck(
        name=checks.NAME,
        sha=measurement.sha,
        external_id=_build_external_id(measurement),
        status="in_progress",
        conclusion=None,
        title=title,
        summary=_prepend_note(head_checks, note),
    )
    if head_checks.run is None or not head_checks.is_waiting or head_checks.is_hidden():
        return forge.create_check(check).id
    forge.update_check(head_checks.run.id, check)
    return head_checks.run.id


def _restore_check(forge: Forge, id: int, measurement: Measurement, head_checks: HeadChecks, reason: Words) -> None:
    """Restore the earlier result in the check run ``id``. Without an earlier result, complete the check run as
    cancelled, because no measurement will complete it. ``reason`` says why the measurement did not start."""
    earlier_run = head_checks.run  # as it was before this measurement was requested
    conclusion = _conclusion_of(earlier_run) if earlier_run is not None else None
    if earlier_run is not None and conclusion is not None:
        check = NewCheck(
            name=earlier_run.name,
            sha=earlier_run.sha,
            external_id=earlier_run.external_id,
            status="completed",
            conclusion=conclusion,
            title=earlier_run.title,
            summary=earlier_run.summary,
        )
    else:
        check = NewCheck(
            name=checks.NAME,
            sha=measurement.sha,
            external_id=_build_external_id(measurement),
            status="completed",
            conclusion="cancelled",
            title="Not measured",
            summary=_prepend_note(head_checks, sentence(reason)),
        )
    forge.update_check(id, check)


def _conclusion_of(run: CheckRun) -> Conclusion | None:
    return next((conclusion for conclusion in get_args(Conclusion) if conclusion == run.conclusion), None)


def _prepend_note(head_checks: HeadChecks, note: Markdown) -> str:
    return head_checks.text.body(note=note) if head_checks.text is not None else note


def _build_external_id(measurement: Measurement) -> str:
    return checks.format_external_id(measurement.number, measurement.sha, measurement.nonce)
