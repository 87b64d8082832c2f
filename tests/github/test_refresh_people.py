"""The refresh pull request and people, who commit to it, close it, merge it, or move main."""

from pathlib import Path
from typing import Any

import pytest

from regbot.errors import UserError
from regbot.github.client import AwayError
from regbot.github.git_remote import Remote
from regbot.github.refresh import BRANCH
from support.forge_refresh_cases import Site


def test_a_persons_commit_on_the_branch_stays(site: Site) -> None:
    site.post(site.night()[1])
    own = site.repo.commit({"baselines/README.md": "Of the node in the cellar.\n"}, BRANCH, "say which node", "bob")
    site.push_main(train__py="other")
    site.post(site.night(1)[1])
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == own
    assert site.repo.git.run("show", f"{BRANCH}:baselines/README.md") == "Of the node in the cellar."


def test_a_commit_that_comes_during_the_push_is_not_overwritten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.post(site.night()[1])
    site.push_main(train__py="other")
    real, theirs = Remote.push, []

    def late(remote: Remote, *given: Any) -> bool:
        if not theirs:
            theirs.append(site.repo.commit({"note.md": "wait"}, BRANCH, "wait", "bob"))
        return real(remote, *given)

    monkeypatch.setattr(Remote, "push", late)
    _, data = site.night(1)
    with pytest.raises(AwayError, match="run the job again"):
        site.post(data)
    site.post(data)
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == theirs[0]
    assert site.series() == ["rolling", "rolling"]


@pytest.mark.slow
def test_a_pull_request_closed_by_a_person_is_not_reopened_without_new_evidence(site: Site) -> None:
    site.started()
    closed = site.post(site.night(1)[1]).number or 0
    site.repo.close(closed)
    before = site.state()
    posted = site.post(site.night(2)[1])
    assert posted.number is None
    assert f"#{closed} was closed without merging" in posted.summary
    assert site.state() == before
    main = site.push_main(train__py="other")
    again = site.post(site.night(3)[1]).number or 0
    assert again != closed
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == main, "it begins anew: what was refused is not in it"


@pytest.mark.slow
@pytest.mark.parametrize("state", ["open", "closed", "merged"])
def test_a_pull_request_into_another_branch_is_not_ours(site: Site, state: str) -> None:
    site.started()
    site.repo.commit({"other.md": "x"}, branch="other", message="other")
    site.repo.commit({"note.md": "y"}, branch=BRANCH, message="mine", author="carl")
    theirs = site.repo.open_pull(head=BRANCH, base="other", title="mine", author="carl")
    if state != "open":
        site.repo.close(theirs, merge=state == "merged")
    tip = site.tip()
    number = site.post(site.night(1)[1]).number or 0
    assert (site.repo.pulls[number].base, site.repo.pulls[theirs].title) == ("main", "mine")
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == tip, "the branch as it stands, with what a person put there"
    again = site.post(site.night(2)[1])
    assert again.number == number
    assert "was closed without merging" not in site.repo.pulls[number].body


@pytest.mark.slow
def test_an_anchor_that_main_moved_meanwhile_is_still_proposed(site: Site) -> None:
    site.started()
    _, data = site.night(1, slower=0.03, accept_pct=4.0, why="the new router")
    site.merge(site.post(site.night(2, slower=0.03, accept_pct=5.0, why="another one")[1]).number)
    number = site.post(data).number or 0
    assert site.repo.pulls[number].state == "open"
    assert any(line.endswith("anchor.json") for line in site.changed("main", BRANCH))


def test_a_measurement_outside_main_is_refused(site: Site) -> None:
    site.checkout.git("commit", "--quiet", "--allow-empty", "--message", "of nobody")
    _, data = site.night()
    before = site.state()
    with pytest.raises(UserError, match="is not in the history of main"):
        site.post(data)
    assert site.state() == before


def test_a_shallow_checkout_is_refused_with_advice(site: Site, tmp_path: Path) -> None:
    _, data = site.night()
    shallow = site.checkout
    shallow.git("commit", "--quiet", "--allow-empty", "--message", "two")
    clone = shallow.clone_to(tmp_path / "shallow", "--depth=1")
    site.checkout = clone
    with pytest.raises(Exception, match="fetch-depth: 0"):
        site.post(data)
