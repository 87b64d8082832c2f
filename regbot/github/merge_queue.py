"""Start the measurement of a merge group, if the repository is configured with ``[github] queue = "timed"``.

For the event ``merge_group``, GitHub reads workflow files from the merge group. The gate therefore reacts to the
request of a regbot-static run on the group, for which GitHub reads the gate's file from the default branch. Nobody
approves a merge group: queueing a pull request already requires the role write.
"""

from regbot.github import checks
from regbot.github.approval import CommandRefusal, GateOutcome, find_protected
from regbot.github.client import Forge, MissingError
from regbot.github.commands import build_run_command
from regbot.github.metadata import MergeGroup, find_group, has_other_pulls
from regbot.github.types import CommitComparison
from regbot.github.workflow_start import CommandRequest, compute_nonce, request_measurement
from regbot.records.config import GitHub
from regbot.report.markdown import code


def handle_group(forge: Forge, run_id: int, settings: GitHub) -> GateOutcome:
    """Start the measurement of the merge group that the run ``run_id`` of regbot-static traces.

    Raises ForgeError, CheckoutError.
    """
    run = forge.run(run_id)
    group = find_group(forge, run)
    if group is None:
        return GateOutcome("nothing", f"run {run.id} traces no merge group")
    if settings.queue != "timed":
        return GateOutcome("nothing", "merge groups are not timed here: see queue in the table [github]")
    change = forge.compare(group.base, group.sha)
    nonce = compute_nonce(forge.repository, "merge group", group.sha)
    request = CommandRequest(0, "merge queue", "none", nonce, run.started)

    def check_again() -> None:
        _check_group(forge, group, change, settings)

    try:
        return request_measurement(forge, request, group.sha, change.merge_base, settings.bot, check_again)
    except CommandRefusal as refusal:
        return GateOutcome("refused", refusal.reason)


def _check_group(forge: Forge, group: MergeGroup, change: CommitComparison, settings: GitHub) -> None:
    """Check that a merge group may be measured. Raises CommandRefusal.

    The queue may have dropped it. If it changes protected files, it must contain a single pull request, whose head was
    measured before: that measurement required the approval of these files.
    """
    try:
        is_present = forge.tip(group.branch) == group.sha
    except MissingError:
        is_present = False
    if not is_present:
        raise CommandRefusal("The merge queue has dropped this group.")
    protected_files = find_protected(forge, change, group.sha, settings.protected)
    if not protected_files:
        return
    head = forge.pull(group.last_pull).head_sha
    if not has_other_pulls(forge, group):
        text = checks.find(forge, head, group.last_pull, settings.bot).completed_text
        if text is not None and text.stamp.tier == "measured":
            return
    line = code(build_run_command(head, protected=True).line)
    raise CommandRefusal(
        f"The merge group of #{group.last_pull} changes {protected_files}. Somebody with the role `maintain` has to "
        f"look at these files, and to type {line} in #{group.last_pull}. After that measurement, queue it again, as "
        "the only pull request of its group."
    )
