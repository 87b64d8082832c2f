"""A night of regbot-refresh in which all that an attacker can reach is hostile: merged commits, branches, what the node
says of operators, workloads and machines. The proposal is posted by the real regbot, in the shipped workflow.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.github.refresh import BRANCH as PROPOSED
from regbot.records.run import Run
from regbot.records.session import Session
from support.forge_refresh_cases import Proposal, Site, changing
from support.hostile import BRANCH, CANARY, LINES, SHELL, TEXTS, inert, leaks
from support.workflow_rules import SHIPPED
from support.workflows_act import Actions, Ran, needs_act

pytestmark = needs_act

GITHUB_TAKES = 65_536


class Night(Site):
    """A repository into which hostile commits were merged, and a node whose records hold ``text``."""

    text = ""

    def opened(self, text: str) -> None:
        """There is an anchor, and everything is hostile from here on."""
        self.started()
        shipped = {f".github/workflows/{path.name}": path.read_text() for path in SHIPPED}
        self.repo.commit({**shipped, "a'; touch $CANARY; '.py": text}, message=f"{SHELL}\n\n{LINES}", author="mallory")
        self.repo.commit({"b.py": text}, branch=BRANCH, message=LINES, author="mallory")
        self.pull_main()
        self.text = text
        self.actions = Actions(self.hub, self.repo, self.scratch / "runs", record=True)
        self.actions.variables = {"REGBOT_CLIENT_ID": "Iv1.canary"}
        self.actions.secrets = {"REGBOT_PRIVATE_KEY": "-----BEGIN CANARY KEY-----"}
        self.actions.environment = {"STUB_REAL": "github", CANARY: str(self.scratch / CANARY)}

    def _session(self, *given: Any) -> Session:
        made = super()._session(*given)
        return Session(header=made.header, runs=[self._told(run) for run in made.runs])

    def _told(self, run: Run) -> Run:
        said = self.text[:480]
        if run.ledger is None or not said:
            return run
        entries = [
            each.model_copy(update={"where": f"{n} {said}"[:500], "axis": said, "dtype": said})
            for n, each in enumerate(run.ledger.entries)
        ]
        more = {"entries": entries, "warnings": [self.text], "patches": [said], "guesses": [self.text], "source": said}
        return run.model_copy(update={"ledger": run.ledger.model_copy(update=more), "warnings": [self.text]})

    def proposed(self, data: bytes) -> Ran:
        """The workflow, on a night of which the node leaves ``data``."""
        file = self.scratch / "left.json"
        file.write_bytes(data)
        self.actions.environment["STUB_PROPOSAL"] = str(file)
        ran = self.actions.execute("regbot-refresh", "schedule", {"schedule": "17 2 * * *"}, "propose")
        assert leaks(self.actions) == []
        return ran


@pytest.fixture(params=list(TEXTS))
def night(hub: FakeGitHub, tmp_path: Path, request: pytest.FixtureRequest) -> Night:
    made = Night(hub, tmp_path)
    made.opened(TEXTS[request.param])
    return made


@pytest.mark.slow
def test_a_hostile_night_becomes_an_inert_pull_request(night: Night) -> None:
    text = night.text

    def speak(document: Proposal) -> None:
        document["refreshed"]["warnings"] = [text]
        document["refreshed"]["workloads"][0].update(reasons=[text], environment_changes=[text])

    night.repo.commit({"note.md": text}, PROPOSED, message=SHELL, author="mallory")  # a person's, in the same branch
    data = changing(night.night(1, who=text[:480])[1], speak)
    assert json.dumps(text[:400])[1:-1].encode() in data
    ran = night.proposed(data)
    assert ran.code == 0, ran.log
    (pull,) = [each for each in night.repo.pulls.values() if each.state == "open"]
    assert re.fullmatch(r"Baselines of [0-9a-f]{12}: \d+ files", pull.title)
    assert inert(pull.body) == []
    assert not re.search("[\u202a-\u202e\x1b\x00]", pull.body)
    assert len(pull.body) < GITHUB_TAKES
    assert "touch" in pull.body  # what was said is told, as text
    changed = night.repo.git.run("show", "--name-only", "--format=", PROPOSED).splitlines()
    assert changed
    assert all(name.startswith("baselines/") for name in changed)


def of_a_class(document: Proposal, text: str) -> None:
    for record in [*document["sessions"], *document["anchors"]]:
        if record.get("tier") != "static":
            record["node_class"] = text[:480]


REFUSED: dict[str, Callable[[Proposal, str], object]] = {
    "a workload": lambda document, text: document["refreshed"]["workloads"][0].update(name=text[:480]),
    "a workload of a session": lambda document, text: document["sessions"][0].update(workload=text[:180]),
    "a variant": lambda document, text: document["sessions"][0].update(variant=text[:60]),
    "a node class": of_a_class,  # which has no anchor to be beside
    "a commit": lambda document, text: document["refreshed"].update(commit=text[:40]),
    "a key": lambda document, text: document.update({text: text}),
    "a schema": lambda document, text: document.update(schema=text),
}


@pytest.mark.slow
def test_a_night_with_hostile_names_changes_nothing_and_says_why(night: Night) -> None:
    good = night.night(1)[1]
    before = night.state()
    for name, change in REFUSED.items():
        ran = night.proposed(changing(good, lambda document, change=change: change(document, night.text)))
        assert ran.code != 0, name
        assert "regbot: artifact regbot-proposal: " in ran.log or "regbot: the proposal" in ran.log, name
        assert night.state() == before, name
    assert night.proposed(good).code == 0  # as it is it is taken
    assert night.state() != before
