"""Start a workflow once for each request.

Every comment or label that requests a run has a nonce. The nonce is computed, not random, so that a repeated event or
job gets the same nonce. The title of the started run contains the nonce. GitHub's list of runs therefore shows which
requests were started, and regbot stores nothing else.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from regbot.github import checks
from regbot.github.approval import CommandRefusal
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge, RefusedError
from regbot.github.types import Conclusion, NewCheck, WorkflowRun
from regbot.report.markdown import Markdown, Name, Words, sentence

MEASURE = "regbot-measure.yml"
BISECT = "regbot-bisect.yml"
POST = "regbot-post.yml"
MEASURE_TITLE = re.compile(
    r"regbot (?P<pr>0|[1-9][0-9]{0,8}) (?P<sha>[0-9a-f]{40}) ((?P<base>[0-9a-f]{40}) )?(?P<nonce>[0-9a-f]{16})"
)
"""Title of a run of ``MEASURE``: pull request or 0 for a merge group, head, base commit, and nonce of the request for
that base. The title that an older version of the workflow defines has no base commit."""
MAX_MEASUREMENT_AGE = timedelta(days=1)
"""Longest time that a measurement may wait and run. Runs that started earlier are ignored."""


@dataclass(frozen=True)
class Measurement:
    """A requested measurement of the pull request ``number``, or of a merge group, for which it is 0. ``login``: who
    requested it. ``since``: time of the request. ``bot``: login of regbot's app.

    ``base``: the commit to compare with. ``branch``: the default branch. ``more``: number of additional pairs.
    """

    number: int
    sha: str
    base: str
    branch: str
    request_nonce: str
    login: str
    since: datetime
    bot: str
    more: int = 0

    @property
    def nonce(self) -> str:
        """Nonce of the request and of the base commit. A request for one base is no request for another base."""
        return _bind_nonce(self.request_nonce, self.base)

    @property
    def title(self) -> str:
        """Title of the regbot-measure run for this request."""
        return f"{self._title_prefix}{self.base} {self.nonce}"

    @property
    def _title_prefix(self) -> str:
        return f"regbot {self.number} {self.sha} "

    def has_begun(self, runs: Sequence[WorkflowRun]) -> bool:
        """Return whether one of ``runs`` is this measurement."""
        old_titles = [f"{self._title_prefix}{nonce}" for nonce in (self.nonce, self.request_nonce)]
        return any(run.title in (self.title, *old_titles) for run in runs)

    def find_unfinished(self, runs: Sequence[WorkflowRun]) -> WorkflowRun | None:
        """Return a run that measures the same commit and has not ended; None without one."""
        return next(
            (run for run in runs if run.title.startswith(self._title_prefix) and run.status != "completed"), None
        )


def compute_nonce(repository: str, *request: object) -> str:
    """Return the nonce of a request, 16 hexadecimal digits. The nonce is no secret. Anybody who may start a workflow
    can use any nonce."""
    return hashlib.sha256("\n".join([repository, *map(str, request)]).encode()).hexdigest()[:16]


def _bind_nonce(request_nonce: str, base: str) -> str:
    return hashlib.sha256(f"{request_nonce}\n{base}".encode()).hexdigest()[:16]


def has_measurement_started(forge: Forge, request_nonce: str, since: datetime) -> bool:
    """Return whether a measurement was started for a request since the time ``since``, against any base.

    A title without a base commit counts if it has the nonce of the request, as older versions of regbot wrote it.
    """
    titles = (MEASURE_TITLE.fullmatch(run.title) for run in forge.runs(MEASURE, since))
    return any(
        match["nonce"] == (_bind_nonce(request_nonce, match["base"]) if match["base"] else request_nonce)
        for match in titles
        if match
    )


def has_run_started(forge: Forge, workflow: str, nonce: str, since: datetime) -> bool:
    """Return whether a run of ``workflow`` since the time ``since`` has ``nonce`` in its title."""
    return any(nonce in run.title.split() for run in forge.runs(workflow, since))


def is_judged_since(forge: Forge, run: int, since: datetime) -> bool:
    """Return whether a regbot-post run for ``run`` was started after ``since``. Such a run reads all comments that
    exist at its start."""
    posts = (post for post in forge.runs(POST, since) if post.conclusion in (None, "success"))
    return any(post.title == f"regbot-post {run}" for post in posts)


def request_measurement(
    forge: Forge, measurement: Measurement, find_obstacle: Callable[[], Words | None]
) -> CommandRefusal | bool:
    """Start the measurement of one commit, and show in the check run that it is in progress. Return False where the
    measurement was started before.

    After the check run is set and before the workflow starts, ``find_obstacle`` looks at GitHub once more and returns
    why the approval has ended. Then the check run is restored and the refusal is returned. Raises ForgeError.
    """
    number, sha = measurement.number, measurement.sha
    runs = forge.runs(MEASURE, measurement.since - MAX_MEASUREMENT_AGE)
    if measurement.has_begun(runs):
        return False
    if unfinished_run := measurement.find_unfinished(runs):
        return CommandRefusal(
            ("This commit is being measured already, see ", Name(unfinished_run.url or str(unfinished_run.id)), ".")
        )
    inputs = {
        "pr": str(number),
        "sha": sha,
        "base": measurement.base,
        "nonce": measurement.nonce,
        "more": str(measurement.more),
    }
    head_checks = checks.find(forge, sha, number, measurement.bot)
    check = _mark_in_progress(forge, measurement, head_checks)
    if obstacle := find_obstacle():
        _restore_check(forge, check, measurement, head_checks, obstacle)
        return CommandRefusal(obstacle)
    try:
        forge.dispatch(MEASURE, measurement.branch, inputs)
    except RefusedError:
        _restore_check(forge, check, measurement, head_checks, (f"GitHub did not start {MEASURE}.",))
        raise
    return True


def _mark_in_progress(forge: Forge, measurement: Measurement, head_checks: HeadChecks) -> int:
    """Show that the measurement is in progress, and return the id of the check run that shows it.

    GitHub does not set a completed check run back to in progress, so a new check run replaces it. The earlier result
    stays in the text of the check run, because it is needed again if the measurement is INVALID.
    """
    title = f"Timing {measurement.more} more pairs" if measurement.more else "Measuring"
    note = sentence(("Asked for by ", Name(measurement.login), ". The verdict will stand here when the run has ended."))
    check = NewCheck(
        checks.NAME,
        measurement.sha,
        _build_external_id(measurement),
        "in_progress",
        None,
        title,
        _prepend_note(head_checks, note),
    )
    waiting_run = head_checks.waiting_run
    if waiting_run is None or head_checks.is_hidden:
        return forge.create_check(check).id
    forge.update_check(waiting_run.id, check)
    return waiting_run.id


def _restore_check(forge: Forge, id: int, measurement: Measurement, head_checks: HeadChecks, reason: Words) -> None:
    """Restore the earlier result of the check run. Where there was none, complete the check run as cancelled, because
    nothing else would complete it."""
    earlier = head_checks.runs[0] if head_checks.runs else None
    conclusion = next(
        (candidate for candidate in get_args(Conclusion) if earlier and candidate == earlier.conclusion), None
    )
    if earlier is not None and conclusion is not None:
        check = NewCheck(
            earlier.name,
            earlier.sha,
            earlier.external_id,
            "completed",
            conclusion,
            earlier.title,
            earlier.summary,
        )
    else:
        note = _prepend_note(head_checks, sentence(reason))
        check = NewCheck(
            checks.NAME,
            measurement.sha,
            _build_external_id(measurement),
            "completed",
            "cancelled",
            "Not measured",
            note,
        )
    forge.update_check(id, check)


def _prepend_note(head_checks: HeadChecks, note: Markdown) -> str:
    text = head_checks.completed_text or head_checks.previous_text
    return text.body(note=note) if text is not None else note


def _build_external_id(measurement: Measurement) -> str:
    return checks.format_external_id(measurement.number, measurement.sha, measurement.nonce)
