"""Start the measurement of a merge group, if the repository is configured with ``[github] queue = "timed"``.

For the event ``merge_group``, GitHub reads workflow files from the merge group, which contains changes of pull
requests. The gate therefore reacts to another event: the request of a regbot-static run on the merge group. For this
event, GitHub reads the gate's workflow file from the default branch.

Nobody approves a merge group: queueing a pull request already requires the role write. If the merge group changes
protected files, its pull request must have been measured first, which requires the approval of these files.

A parameter ``settings`` has the settings of the table ``[github]``.
"""

from regbot.github import checks
from regbot.github.approval import CommandRefusal, find_protected
from regbot.github.changed_files import list_changed_files
from regbot.github.client import Forge, RefusedError
from regbot.github.command_effects import GateOutcome
from regbot.github.commands import RunCommand, format_command
from regbot.github.metadata import MergeGroup, find_group, has_other_pulls
from regbot.github.shared_history import MISSING_STATUSES
from regbot.github.types import Conclusion, NewCheck
from regbot.github.workflow_start import MEASURE, Measurement, compute_nonce, request_measurement
from regbot.records.config import GitHub
from regbot.report.markdown import Words, code, sentence

GROUP_NUMBER = 0
"""Stands for the number of a pull request where a merge group is meant."""
LOGIN = "merge queue"
"""Stands in the check run instead of the account that requested the measurement."""


def handle_group(forge: Forge, run_id: int, settings: GitHub) -> GateOutcome:
    """Start the measurement of the merge group that the run of regbot-static traces. Raises ForgeError, CheckoutError.

    A merge group that changes protected files is measured only under two conditions: it contains a single pull request,
    and this pull request was measured before. Otherwise the check run of the merge group blocks it and says why.

    ``run_id`` is the id of that run.
    """
    run = forge.run(run_id)
    group = find_group(forge, run)
    if group is None:
        return GateOutcome("nothing", f"run {run.id} traces no merge group")
    if settings.queue != "timed":
        return GateOutcome("nothing", "merge groups are not timed here: see queue in the table [github]")
    change = forge.compare(group.base, group.sha)
    nonce = compute_nonce(forge.repository, "merge group", group.sha)
    protected_files = find_protected(list_changed_files(forge, change, group.sha), settings.protected)
    if protected_files and not _is_measured_single_pull(forge, group, settings.bot):
        reason: Words = (f"The merge group of #{group.last_pull} changes ", *protected_files.describe(), ".")
        return _block_group(forge, group, nonce, reason, settings)
    measurement = Measurement(
        number=GROUP_NUMBER,
        sha=group.sha,
        base=change.merge_base,
        branch=forge.default_branch(),
        request_nonce=nonce,
        login=LOGIN,
        since=run.started,
        bot=settings.bot,
    )
    result = request_measurement(forge, measurement, lambda: _find_obstacle(forge, group))
    if isinstance(result, CommandRefusal):
        return GateOutcome("refused", str(sentence(result.reason)))
    is_started_now = result
    if not is_started_now:
        return GateOutcome("nothing", "this measurement was started before")
    return GateOutcome("started", f"{MEASURE} was started on the merge group {group.sha} of #{group.last_pull}")


def _find_obstacle(forge: Forge, group: MergeGroup) -> Words | None:
    """Return why a merge group may no longer be measured: the queue has dropped it, for example after a push. Return
    None if it may be measured."""
    try:
        is_present = forge.tip(group.branch) == group.sha
    except RefusedError as error:
        if error.status not in MISSING_STATUSES:
            raise
        is_present = False
    return None if is_present else ("The merge queue has dropped this group.",)


def _is_measured_single_pull(forge: Forge, group: MergeGroup, bot: str) -> bool:
    """Return whether the merge group contains a single pull request, and the head of this pull request was measured.
    That measurement required the approval of the protected files.

    ``bot`` is the login of regbot's app.
    """
    if has_other_pulls(forge, group):
        return False
    head = forge.pull(group.last_pull).head_sha
    result = checks.find(forge, head, group.last_pull, bot).completed_text
    return result is not None and result.stamp.tier == "measured"


def _block_group(forge: Forge, group: MergeGroup, nonce: str, reason: Words, settings: GitHub) -> GateOutcome:
    """Create the completed check run of a merge group that is not measured, unless the check run exists.

    ``reason`` says why the merge group is not measured. In shadow mode, the check run does not block.
    """
    outcome = GateOutcome("refused", str(sentence(reason)))
    if checks.find(forge, group.sha, GROUP_NUMBER, settings.bot).runs:
        return GateOutcome("nothing", "the check run of this merge group exists")
    line = format_command(RunCommand(forge.pull(group.last_pull).head_sha, protected=True))
    advice = (
        f" Somebody with the role `maintain` has to look at these files, and to type {code(line)} in "
        f"#{group.last_pull}. After that measurement, queue the pull request again, as the only pull request of its "
        "group."
    )
    conclusion: Conclusion = "neutral" if settings.shadow else "action_required"
    check = NewCheck(
        name=checks.NAME,
        sha=group.sha,
        external_id=checks.format_external_id(GROUP_NUMBER, group.sha, nonce),
        status="completed",
        conclusion=conclusion,
        title="Not measured: the merge group changes protected files",
        summary=f"{outcome.message}{advice}",
    )
    forge.create_check(check)
    return outcome
