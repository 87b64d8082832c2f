"""Starting a workflow, once for each thing that asked for it.

Whatever asks, a comment or a label, has a nonce of its own, computed and not drawn: when the same event comes again, or
the job that handles it is run again, the nonce is the same. It is in the title of the run that is started, which GitHub
keeps, so the list of runs says what was started; nothing else has to be remembered.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from regbot.forge import checks
from regbot.forge.approval import Refusal, obstacle
from regbot.forge.checks import Held
from regbot.forge.client import Forge, RefusedError
from regbot.forge.types import Conclusion, NewCheck, Pull, WorkflowRun
from regbot.report.markdown import Markdown, Name, Words, sentence

MEASURE = "regbot-measure.yml"
BISECT = "regbot-bisect.yml"
POST = "regbot-post.yml"
LONGEST = timedelta(days=1)
"""No measurement waits and runs for longer: an older run is not looked at."""


@dataclass(frozen=True)
class Measurement:
    """What is to be measured, who asked and when; ``bot``: the login of our own app.

    ``base``: the commit that it is compared with; ``branch``: the default branch.
    """

    pull: Pull
    sha: str
    base: str
    branch: str
    nonce: str
    login: str
    since: datetime
    bot: str
    more: int = 0

    @property
    def title(self) -> str:
        """Of the run of regbot-measure that it becomes."""
        return f"{self._of_commit}{self.nonce}"

    @property
    def _of_commit(self) -> str:
        return f"regbot {self.pull.number} {self.sha} "

    def begun_before(self, runs: Sequence[WorkflowRun]) -> bool:
        """Whether one of ``runs`` is this very measurement."""
        return any(run.title == self.title for run in runs)

    def under_way(self, runs: Sequence[WorkflowRun]) -> WorkflowRun | None:
        """A measurement of the same commit that has not ended."""
        return next((run for run in runs if run.title.startswith(self._of_commit) and run.status != "completed"), None)


def nonce_of(repository: str, *asked: object) -> str:
    """16 hexadecimal digits for one thing that asks. It is no secret: who may start a workflow could make one up."""
    return hashlib.sha256("\n".join([repository, *map(str, asked)]).encode()).hexdigest()[:16]


def started(forge: Forge, workflow: str, nonce: str, since: datetime) -> bool:
    """Whether a run has ``nonce`` in its title. ``since``: when it was asked for."""
    return any(nonce in run.title.split() for run in forge.runs(workflow, since))


def judged_since(forge: Forge, run: int, since: datetime) -> bool:
    """Whether the verdict on ``run`` was to be posted again after ``since``: that post reads all comments made until
    it runs."""
    posts = (post for post in forge.runs(POST, since) if post.conclusion in (None, "success"))
    return any(post.title == f"regbot-post {run}" for post in posts)


def began_since(forge: Forge, run: int, since: datetime) -> bool:
    """Whether a run, 0 for none, began after ``since``; one that is gone did not."""
    if not run:
        return False
    try:
        return forge.run(run).started > since
    except RefusedError as error:
        if error.status == 404:
            return False
        raise


def measure(forge: Forge, asked: Measurement) -> Refusal | bool:
    """Have one commit measured; False where that was done before. A check run says that it is under way.

    What makes an approval void is looked at again between the last two requests; then the check run is as it was.
    Raises ForgeError.
    """
    number, sha = asked.pull.number, asked.sha
    runs = forge.runs(MEASURE, asked.since - LONGEST)
    if asked.begun_before(runs):
        return False
    if busy := asked.under_way(runs):
        return Refusal(("This commit is being measured already, see ", Name(busy.url or str(busy.id)), "."))
    inputs = {
        "pr": str(number),
        "sha": sha,
        "base": asked.base,
        "nonce": asked.nonce,
        "more": str(asked.more),
    }
    held = checks.find(forge, sha, number, asked.bot)
    check = _in_progress(forge, asked, held)
    if void := obstacle(forge.pull(number), sha):
        _give_back(forge, check, asked, held, void)
        return Refusal(void)
    try:
        forge.dispatch(MEASURE, asked.branch, inputs)
    except RefusedError:
        _give_back(forge, check, asked, held, (f"GitHub did not start {MEASURE}.",))
        raise
    return True


def _in_progress(forge: Forge, asked: Measurement, held: Held) -> int:
    """What stood in the check run stays there, for a measurement that comes to nothing."""
    title = f"Timing {asked.more} more pairs" if asked.more else "Measuring"
    told = sentence(("Asked for by ", Name(asked.login), ". The verdict will stand here when the run has ended."))
    check = NewCheck(checks.NAME, asked.sha, _identity(asked), "in_progress", None, title, _above(held, told))
    if not held.runs:
        return forge.create_check(check).id
    forge.update_check(held.runs[0].id, check)
    return held.runs[0].id


def _give_back(forge: Forge, id: int, asked: Measurement, held: Held, why: Words) -> None:
    """The check run as it was, or cancelled where there was none: nothing else will complete it."""
    before = held.runs[0] if held.runs else None
    conclusion = next((known for known in get_args(Conclusion) if before and known == before.conclusion), None)
    if before is not None and conclusion is not None:
        check = NewCheck(
            before.name,
            before.sha,
            before.external_id,
            "completed",
            conclusion,
            before.title,
            before.summary,
        )
    else:
        told = _above(held, sentence(why))
        check = NewCheck(checks.NAME, asked.sha, _identity(asked), "completed", "cancelled", "Not measured", told)
    forge.update_check(id, check)


def _above(held: Held, told: Markdown) -> str:
    known = held.shown or held.kept
    return known.body(note=told) if known is not None else told


def _identity(asked: Measurement) -> str:
    return checks.external_id(asked.pull.number, asked.sha, asked.nonce)
