"""Start a workflow once for each request.

The title of a run contains the nonce of the comment or label that requested it, which is computed from the request.
GitHub's list of runs therefore shows for which requests a workflow has started.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import get_args

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge, RefusedError
from regbot.github.types import Conclusion, NewCheck, Role
from regbot.report.markdown import code

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
class CommandRequest:
    """Who requested something, where and when: by a command, a label or a merge queue."""

    number: int
    """Number of the pull request; 0 for a merge group."""
    login: str
    role: Role
    nonce: str
    since: datetime
    """Time of the request. Runs that the request has started cannot be older."""


def compute_nonce(*request: object) -> str:
    """Return the nonce of a request, 16 hexadecimal digits. The values ``request`` identify the request, for example
    the repository, the number of the pull request, the word "comment" and the id of the comment.

    The nonce is no secret: anybody who may start a workflow can start it with any nonce.
    """
    return hashlib.sha256("\n".join(map(str, request)).encode()).hexdigest()[:16]


def request_measurement(
    forge: Forge,
    request: CommandRequest,
    sha: str,
    base: str,
    bot: str,
    check_again: Callable[[], None],
    more: int = 0,
) -> GateOutcome:
    """Set the check run of a commit to in progress, and start the measurement of the commit, unless one is in progress.

    The nonce of the measurement is computed from that of the request and the commit ``base``. If the base changes, the
    same request can start a new measurement. ``check_again`` reads the state of the pull request once more, after the
    check run was set and before the start. If it raises CommandRefusal, for example after a new push, the earlier check
    run is restored. ``more`` is the number of pairs to add to an earlier measurement; 0 for a new one. Raises
    CommandRefusal, ForgeError.
    """
    number, nonce = request.number, compute_nonce(request.nonce, base)
    title_start = f"regbot {number} {sha} "
    for run in forge.runs(MEASURE, request.since - MAX_MEASUREMENT_AGE):
        if run.title == f"{title_start}{base} {nonce}":
            return GateOutcome("nothing", "this measurement was started before")
        if run.title.startswith(title_start) and run.status != "completed":
            raise CommandRefusal(f"A measurement of this commit is in progress, see {code(run.url)}.")
    head_checks = checks.find(forge, sha, number, bot)
    note = f"Requested by {code(request.login)}. The verdict will appear here after the run."
    waiting = NewCheck(
        name=checks.NAME,
        sha=sha,
        external_id=checks.format_external_id(number, sha, nonce),
        status="in_progress",
        conclusion=None,
        title=f"Timing {more} more pairs" if more else "Measuring",
        summary=_prepend_note(head_checks, note),
    )
    # GitHub does not set a completed check run back to in progress, so a new check run replaces a completed check run.
    if head_checks.run is None or not head_checks.is_waiting or head_checks.is_hidden():
        check_id = forge.create_check(waiting).id
    else:
        check_id = head_checks.run.id
        forge.update_check(check_id, waiting)
    try:
        check_again()
        inputs = {"pr": str(number), "sha": sha, "base": base, "nonce": nonce, "more": str(more)}
        forge.dispatch(MEASURE, forge.default_branch(), inputs)
    except (CommandRefusal, RefusedError) as error:
        reason = error.reason if isinstance(error, CommandRefusal) else f"GitHub did not start {MEASURE}."
        _restore_check(forge, check_id, waiting, head_checks, reason)
        raise
    return GateOutcome("started", f"{MEASURE} was started on {sha}, for {request.login}")


def _restore_check(forge: Forge, id: int, waiting: NewCheck, head_checks: HeadChecks, reason: str) -> None:
    """Restore the earlier result in the check run ``id``. Without an earlier result, complete the check run as
    cancelled, because no measurement will complete it. ``reason`` says why the measurement did not start."""
    earlier_run = head_checks.run  # as it was before this measurement was requested
    if earlier_run is not None and earlier_run.conclusion in get_args(Conclusion):
        restored = replace(
            waiting,
            external_id=earlier_run.external_id,
            conclusion=earlier_run.conclusion,
            title=earlier_run.title,
            summary=earlier_run.summary,
        )
    else:
        summary = _prepend_note(head_checks, reason)
        restored = replace(waiting, conclusion="cancelled", title="Not measured", summary=summary)
    forge.update_check(id, replace(restored, status="completed"))


def _prepend_note(head_checks: HeadChecks, note: str) -> str:
    """Return ``note`` above the earlier result, which is needed again if the measurement is INVALID."""
    return head_checks.text.body(note=note) if head_checks.text is not None else note
