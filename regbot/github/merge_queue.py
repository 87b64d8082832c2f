"""Start the measurement of a merge group, where the repository asks for it (``[github] queue = "timed"``).

For the event ``merge_group`` GitHub takes workflow files from the group, which contains changes of pull requests. The
gate therefore acts when a run of regbot-static on the group is requested: for that event GitHub takes the gate from the
default branch. Nobody approves a group. Whoever queued its pull requests has the role write, and a measurement of
protected files needs that of a pull request first.
"""

from regbot.config import GitHub
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
from regbot.report.markdown import Words, code, sentence

LOGIN = "merge queue"
"""Name in the check run of who asked for the measurement."""


def handle_group(forge: Forge, run_id: int, settings: GitHub) -> GateOutcome:
    """Start the measurement of the merge group that the run of regbot-static traces. Raises ForgeError, CheckoutError.

    A group that changes protected files is measured only if it is one pull request, and somebody with the required role
    has had that measured. Otherwise the check run of the group says so, and blocks it.
    """
    run = forge.run(run_id)
    group = find_group(forge, run)
    if group is None:
        return GateOutcome("nothing", f"run {run.id} traces no merge group")
    if settings.queue != "timed":
        return GateOutcome("nothing", "merge groups are not timed here: see queue in the table [github]")
    change = forge.compare(group.base, group.sha)
    nonce = compute_nonce(forge.repository, "merge group", group.sha)
    files = find_protected(list_changed_files(forge, change, group.sha), settings.protected)
    if files and not _is_measured_alone(forge, group, settings.bot):
        reason: Words = (f"Merge group of #{group.last_pull}: it changes ", *files.describe(), ".")
        return _block(forge, group, nonce, reason, settings)
    measurement = Measurement(
        0, group.sha, change.merge_base, forge.default_branch(), nonce, LOGIN, run.started, settings.bot
    )
    started = request_measurement(forge, measurement, lambda: _find_obstacle(forge, group))
    if isinstance(started, CommandRefusal):
        return GateOutcome("refused", str(sentence(started.reason)))
    if not started:
        return GateOutcome("nothing", "this was started before")
    return GateOutcome("started", f"{MEASURE} was started on the merge group {group.sha} of #{group.last_pull}")


def _find_obstacle(forge: Forge, group: MergeGroup) -> Words | None:
    """Return why a group may not be measured any more: the queue has dropped it, for example after a push."""
    try:
        is_present = forge.tip(group.branch) == group.sha
    except RefusedError as error:
        if error.status not in MISSING_STATUSES:
            raise
        is_present = False
    return None if is_present else ("The merge queue has dropped this group.",)


def _is_measured_alone(forge: Forge, group: MergeGroup, bot: str) -> bool:
    """Return whether the group is one pull request, and the head of that was measured. Its measurement needed the
    approval of the protected files."""
    if has_other_pulls(forge, group):
        return False
    head = forge.pull(group.last_pull).head_sha
    text = checks.find(forge, head, group.last_pull, bot).completed_text
    return text is not None and text.stamp.tier == "measured"


def _block(forge: Forge, group: MergeGroup, nonce: str, reason: Words, settings: GitHub) -> GateOutcome:
    """Complete the check run of a group that is not measured, once."""
    outcome = GateOutcome("refused", str(sentence(reason)))
    if checks.find(forge, group.sha, 0, settings.bot).runs:
        return GateOutcome("nothing", "the check run of this merge group exists")
    line = format_command(RunCommand(forge.pull(group.last_pull).head_sha, protected=True))
    advice = (
        f" Somebody with the role `maintain` has to look at them, and to type {code(line)} in #{group.last_pull}. "
        "After that measurement, queue the pull request again, as the only pull request of its group."
    )
    summary = f"{outcome.message}{advice}"
    conclusion: Conclusion = "neutral" if settings.shadow else "action_required"
    external_id = checks.format_external_id(0, group.sha, nonce)
    title = "Not measured: it changes protected files"
    forge.create_check(NewCheck(checks.NAME, group.sha, external_id, "completed", conclusion, title, summary))
    return outcome
