"""The refresh pull request: one, up to date every night, with its evidence, whatever a node sends and GitHub does."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cmarkgfm
import pytest
from typer.testing import CliRunner

from forge_refresh_cases import CANARY, NOW, Proposal, Site, changing, texts, zipped
from github_fake import FakeGitHub, githttp
from github_fake.fixtures import hub as hub
from ledger_builder import smoke_ledger
from refresh_cases import CONFIG
from regbot.cli import app
from regbot.forge.client import AwayError, ForgeError
from regbot.forge.proposal import ARTIFACT, MEMBER, ProposalError, read_proposal
from regbot.forge.refresh import BRANCH, Given, fetch_proposals, post_refresh
from regbot.forge.remote import Remote
from regbot.records.files import MAX_RECORD_BYTES
from report_cases import HOSTILE


@pytest.fixture
def site(hub: FakeGitHub, tmp_path: Path) -> Site:
    return Site(hub, tmp_path)


# ---- one pull request


def test_a_night_becomes_a_branch_and_a_pull_request_with_its_evidence(site: Site) -> None:
    main = site.tip("main")
    found, data = site.night()
    posted = site.post(data)
    assert posted.number is not None
    pull = site.repo.pulls[posted.number]
    assert (pull.head, pull.base, pull.author, pull.draft) == (BRANCH, "main", "regbot-app[bot]", False)
    assert pull.title == f"Baselines of {str(main)[:12]}: {len(found.files)} files"
    assert "| workload | main against the anchor |" in pull.body
    tip = site.tip()
    assert tip is not None
    assert site.repo.git.run("rev-parse", f"{tip}^") == main, "it is put on the commit that was measured"
    changed = [line.split("\t") for line in site.changed(f"{tip}^", tip)]
    assert {how for how, _ in changed} == {"A"}
    assert {path for _, path in changed} == {f"baselines/{each}" for each in found.files}
    assert all(f"`{path}`" in pull.body for _, path in changed)
    assert site.series() == ["rolling"]
    assert site.tip("main") == main
    assert site.checkout.git("status", "--porcelain") == ""
    assert site.checkout.git("for-each-ref") == ""


def test_a_second_night_brings_the_same_pull_request_up_to_date(site: Site) -> None:
    site.started()
    second = site.post(site.night(1)[1])
    first = site.tip()
    main = site.push_main(train__py="faster")
    third = site.post(site.night(2)[1])
    assert second.number == third.number
    assert [number for number, pull in site.repo.pulls.items() if pull.state == "open"] == [third.number]
    assert site.series() == ["rolling", "anchor", "rolling", "anchor", "rolling"]
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == first, "nothing that stands on the branch is overwritten"
    body = site.repo.pulls[third.number or 0].body
    assert main[:12] in site.repo.pulls[third.number or 0].title
    assert body.count("\n- `") > 2
    assert "All commits, the newest first" in body


def test_a_held_back_night_is_seen_in_the_title_and_joins_as_evidence_only(hub: FakeGitHub, tmp_path: Path) -> None:
    site = Site(hub, tmp_path, CONFIG + '[github.labels]\nFAIL = "regbot: slower"\nPASS = "regbot: fine"\n')
    site.started()
    found, data = site.night(1, slower=0.03)
    assert found.status == "FAIL"
    number = site.post(data).number or 0
    pull = site.repo.pulls[number]
    assert pull.title.startswith("HELD BACK: baselines of ")
    assert "(1 of 1 workload, " in pull.title
    assert "--accept 2.9 --who NAME" in pull.body
    assert pull.labels == ["regbot: slower"]
    assert site.series() == ["rolling", "anchor", "held"]
    site.post(site.night(2)[1])
    assert site.repo.pulls[number].title.startswith("Baselines of ")
    assert "HELD BACK" in site.repo.pulls[number].body, "of the night before, whose evidence is still in there"
    assert site.repo.pulls[number].labels == ["regbot: fine"]


def test_a_slowdown_accepted_by_name_moves_the_anchor_in_the_pull_request(site: Site) -> None:
    site.started()
    main = site.push_main(train__py="slower")
    found, data = site.night(1, slower=0.03, accept_pct=4.0, why="the new router")
    assert found.workloads[0].accepted is not None
    number = site.post(data).number or 0
    moved = [line for line in site.changed("main", BRANCH) if line.startswith("M")]
    assert [line.rpartition("/")[2] for line in moved] == ["anchor.json"]
    assert f'"commit": "{main}"' in site.repo.git.run("show", f"{BRANCH}:{moved[0][2:]}")
    assert "accepted by ada" in site.repo.pulls[number].body


def test_a_session_that_was_held_back_is_replaced_once_it_is_accepted(site: Site) -> None:
    site.started()
    site.push_main(train__py="slower")
    site.post(site.night(1, slower=0.03)[1])
    assert site.series() == ["rolling", "anchor", "held"]
    site.post(site.night(1, slower=0.03, accept_pct=4.0, why="the new router")[1])
    assert site.series() == ["rolling", "anchor", "rolling"], "the very same session"


def test_without_an_anchor_in_main_the_first_one_of_the_pull_request_stays(site: Site) -> None:
    first = site.tip("main")
    site.post(site.night()[1])
    site.push_main(train__py="slower")
    site.post(site.night(1)[1])
    anchors = [
        name for name in site.repo.git.run("ls-tree", "-r", "--name-only", BRANCH).split("\n") if "anchor" in name
    ]
    assert [f'"commit": "{first}"' in site.repo.git.run("show", f"{BRANCH}:{name}") for name in anchors] == [True]
    assert site.series() == ["rolling", "rolling"]


def test_the_nights_of_several_nodes_are_one_pull_request(site: Site) -> None:
    def of_another_class(document: Proposal) -> None:
        for record in [*document["sessions"], *document["anchors"]]:
            if record.get("tier") != "static":
                record["node_class"] = "eight <b>GPUs</b>"
        for number, record in enumerate(document["sessions"]):
            record["session"] = f"{number:064x}"

    _, data = site.night()
    posted = site.post(data, changing(data, of_another_class))
    assert [pull.state for pull in site.repo.pulls.values()] == ["open"]
    assert len(site.repo.git.run("rev-list", f"main..{BRANCH}").split()) == 1
    assert site.series() == ["rolling", "rolling"]
    body = site.repo.pulls[posted.number or 0].body
    assert body.count("| workload |") == 2
    assert "eight <b>GPUs</b>" in re.findall("`(eight[^`]*)`", body)


def test_a_night_that_could_not_be_measured_opens_nothing_and_leaves_what_is_open(site: Site) -> None:
    site.started()

    def emptied(document: Proposal) -> None:
        document.update(sessions=[], ledgers=[], anchors=[])

    empty = changing(site.night(1)[1], emptied)
    before = site.state()
    posted = site.post(empty)
    assert (posted.number, site.state()) == (None, before)
    assert "nothing to store" in posted.summary
    number = site.post(site.night(2)[1]).number
    before = site.state()
    assert site.post(empty).number == number
    assert site.state() == before


# ---- run again, in any order, whatever fails


def test_the_same_night_posted_again_changes_nothing(site: Site) -> None:
    _, data = site.night()
    site.post(data)
    before = site.state()
    site.post(data, days=301)
    assert site.state() == before


def test_an_older_night_posted_again_leaves_the_later_one_standing(site: Site) -> None:
    _, first = site.night()
    site.post(first)
    site.push_main(train__py="other")
    site.post(site.night(1)[1])
    before = site.state()
    assert "A later night stands" in site.post(first).said
    assert site.state() == before


FAULTS = ("502-before", "502-after", "reset-before", "reset-after", "secondary-403", "secondary-429")


@pytest.mark.parametrize("kind", FAULTS)
def test_a_reply_that_is_lost_makes_no_second_pull_request(site: Site, kind: str) -> None:
    site.hub.faults.next(kind, "POST", "*/pulls")
    site.post(site.night()[1])
    assert [pull.state for pull in site.repo.pulls.values()] == ["open"]
    assert len(site.hub.faults.happened) == 1


def test_in_a_storm_there_is_one_pull_request_that_holds_every_night(site: Site) -> None:
    site.started()
    site.hub.faults.plan(0.3, seed=4)
    for number in range(1, 9):
        site.post(site.night(number)[1])
    site.hub.faults.stop()
    assert len([pull for pull in site.repo.pulls.values() if pull.state == "open"]) == 1
    assert site.series().count("rolling") == 9
    assert len(site.hub.faults.happened) > 5


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("service", ["info/refs", "git-upload-pack", "git-receive-pack"])
def test_a_git_server_that_fails_once_is_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, service: str, after: bool
) -> None:
    real, failed = githttp.serve, []

    def failing(hub: Any, method: str, path: str, *rest: Any) -> Any:
        answer = real(hub, method, path, *rest) if after or failed or service not in path else None
        if failed or service not in path:
            return answer
        failed.append(path)
        return 502, {}, b"bad gateway"

    _, data = site.night()
    monkeypatch.setattr(githttp, "serve", failing)
    site.post(data)
    assert failed
    assert site.series() == ["rolling"]
    assert len(site.repo.git.run("rev-list", f"main..{BRANCH}").split()) == 1
    assert len(site.repo.pulls) == 1


def test_a_git_server_that_is_down_ends_with_a_message_and_the_next_run_completes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data = site.night()
    before = site.state()
    with monkeypatch.context() as patched:
        patched.setattr(githttp, "serve", lambda *_: (503, {}, b""))
        with pytest.raises(AwayError, match="run the job again when GitHub is back"):
            site.post(data)
    assert site.state() == before
    assert site.post(data).number is not None


def test_a_branch_that_was_pushed_without_its_pull_request_gets_it_the_next_time(site: Site) -> None:
    _, data = site.night()
    site.hub.faults.plan(1.0, kinds=("503-before",), method="POST", path="*/pulls")
    with pytest.raises(AwayError):
        site.post(data)
    tip = site.tip()
    assert tip is not None
    site.hub.faults.stop()
    assert site.post(data).number is not None
    assert site.tip() == tip


# ---- people


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
    site.post(site.night(1)[1])
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == theirs[0]
    assert site.series() == ["rolling", "rolling"]


def test_a_branch_that_never_rests_ends_with_a_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remote, "push", lambda *_: False)
    with pytest.raises(AwayError, match="was moved 4 times while this ran"):
        site.post(site.night()[1])


def test_what_a_person_closed_is_not_opened_again_without_new_evidence(site: Site) -> None:
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
    assert f"#{closed} was closed without merging. This one has new evidence." in site.repo.pulls[again].body
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == main, "it begins anew: what was refused is not in it"


def test_a_branch_that_is_gone_with_its_closed_pull_request_is_no_new_evidence(site: Site) -> None:
    site.started()
    closed = site.post(site.night(1)[1]).number or 0
    site.repo.close(closed)
    site.repo.git.set_ref(f"refs/heads/{BRANCH}", None)
    assert f"#{closed} was closed" in site.post(site.night(2)[1]).said
    assert site.tip() is None
    site.push_main(train__py="other")
    assert site.post(site.night(3)[1]).number not in (None, closed)


def test_a_slowdown_on_the_commit_that_a_person_closed_is_new_evidence(site: Site) -> None:
    site.started()
    closed = site.post(site.night(1)[1]).number or 0
    site.repo.close(closed)
    assert site.post(site.night(2, slower=0.03)[1]).number not in (None, closed)


def test_after_a_merge_the_branch_begins_anew(site: Site) -> None:
    first = site.post(site.night()[1]).number
    main = site.merge(first)
    second = site.post(site.night(1)[1]).number
    assert second not in (None, first)
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == main
    assert site.series() == ["rolling", "anchor", "rolling"]


def test_a_night_that_main_holds_already_opens_nothing(site: Site) -> None:
    _, data = site.night()
    site.merge(site.post(data).number)
    before = site.state()
    assert "Main holds all of it already" in site.post(data).said
    assert site.state() == before


def test_main_that_has_moved_meanwhile_leaves_the_night_on_the_commit_it_was_measured_at(site: Site) -> None:
    measured = site.tip("main")
    _, data = site.night()
    site.repo.commit({"train.py": "other\n"}, message="meanwhile")
    site.post(data)
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == measured
    assert "does not merge" not in site.repo.pulls[1].body


def test_an_anchor_that_main_moved_meanwhile_is_a_conflict_that_is_said(site: Site) -> None:
    site.started()
    _, data = site.night(1, slower=0.03, accept_pct=4.0, why="the new router")
    site.merge(site.post(site.night(2, slower=0.03, accept_pct=5.0, why="another one")[1]).number)
    number = site.post(data).number or 0
    body = site.repo.pulls[number].body
    assert body.startswith("> **Main has moved and this does not merge:** both changed `baselines/")
    assert "anchor.json" in body.splitlines()[0]


def test_what_was_measured_off_main_is_refused(site: Site) -> None:
    site.checkout.git("commit", "--quiet", "--allow-empty", "--message", "of nobody")
    _, data = site.night()
    before = site.state()
    with pytest.raises(ProposalError, match="is not in the history of main"):
        site.post(data)
    assert site.state() == before


def test_a_shallow_checkout_is_told_how_to_be_whole(site: Site, tmp_path: Path) -> None:
    _, data = site.night()
    shallow = site.checkout
    shallow.git("commit", "--quiet", "--allow-empty", "--message", "two")
    clone = shallow.clone_to(tmp_path / "shallow", "--depth=1")
    site.checkout = clone
    with pytest.raises(Exception, match="fetch-depth: 0"):
        site.post(data)


# ---- what nobody may send


def _first_session(document: Proposal) -> Any:
    return next(each for each in document["sessions"] if each["tier"] == "timed")


def _night(document: Proposal) -> Any:
    return document["refreshed"]["workloads"][0]


def _slow(document: Proposal) -> None:
    against = next(each["against"] for each in document["sessions"] if each["against"])
    against["log_ratios"] = {name: [0.2 + 0.001 * n for n in range(4)] for name in against["log_ratios"]}


def _told_faster(document: Proposal) -> None:
    _slow(document)
    _night(document)["tonight"].update(estimate_pct=-3.0)


HOSTILE_CHANGES: dict[str, tuple[Callable[[Proposal], object], str]] = {
    "a path": (lambda d: d.update(files=[{"path": "../../.ssh/authorized_keys", "text": "x"}]), "files: Extra inputs"),
    "an absolute path": (lambda d: _first_session(d).update(path="/etc/passwd"), "path: Extra inputs"),
    "a workflow": (
        lambda d: d["sessions"].append({"path": ".github/workflows/x.yml", "mode": "120000", "text": "on: push"}),
        "Extra inputs|Field required",
    ),
    "a title": (lambda d: d.update(title="**@everyone** <img src=x>"), "title: Extra inputs"),
    "another schema": (lambda d: d.update(schema="regbot/session@1"), "schema"),
    "a workload that climbs": (lambda d: _first_session(d).update(workload="../../x@1/ep"), "workload: String should"),
    "a variant that climbs": (lambda d: _first_session(d).update(variant="../x"), "variant: String should"),
    "a night of no entry": (lambda d: _night(d).update(name="x](http://evil) @team"), "is no entry of a verdict"),
    "a commit that is none": (lambda d: d["refreshed"].update(commit="HEAD"), "commit: String should"),
    "another commit": (lambda d: _first_session(d).update(commit="f" * 40), "not in this repository's history"),
    "another tree": (lambda d: _first_session(d).update(tree="e" * 40), "has the tree of another commit"),
    "a series that the night does not tell": (lambda d: _night(d).update(series="held", status="FAIL"), "is stored as"),
    "a night that failed and is taken in": (lambda d: _night(d).update(status="FAIL"), "is stored as rolling"),
    "a night that nothing is told of": (lambda d: d["refreshed"].update(workloads=[]), "nothing is stored"),
    "other pairs": (lambda d: _night(d).update(pairs=12), "4 pairs, and 12 are told"),
    "a slowdown that its own pairs prove": (_slow, "would join the reference, and tonight's pairs prove main slower"),
    "a slowdown that is told as none": (_told_faster, r"is told to be -3.00% slower, and its pairs show \+22"),
    "a session twice": (lambda d: d["sessions"].append(d["sessions"][0]), "is there twice"),
    "a ledger of nobody": (
        lambda d: d["ledgers"].append(json.loads(smoke_ledger(variant="other").to_json())),
        "of no session",
    ),
    "a session of the future": (
        lambda d: [each.update(measured="2099-01-01T00:00:00Z") for each in d["sessions"]],
        "would not be sound with it: .*2099",
    ),
    "a time to come": (lambda d: d.update(created="2099-01-01T00:00:00Z"), "of a time to come"),
    "another commit of another node": (lambda d: d["refreshed"].update(commit="c" * 40), "not in the history of main"),
    "a shape that is not there": (
        lambda d: ([each.update(workload="gpt-9@1/ep") for each in d["sessions"]], _night(d).update(name="gpt-9@1/ep")),
        "shape or version that this regbot does not have",
    ),
    "an acceptance without a name": (
        lambda d: d["anchors"].append(
            {
                "schema": "regbot/anchor@1",
                **{key: _first_session(d)[key] for key in ("workload", "variant", "node_class")},
                "commit": d["refreshed"]["commit"],
                "tree": next(each["tree"] for each in d["sessions"] if each["commit"] == d["refreshed"]["commit"]),
                "moved": "2026-06-02T00:00:00Z",
                "who": "mallory",
                "why": "because",
                "previous": _night(d)["anchor"],
            }
        ),
        "moved without somebody who accepted a slowdown by name",
    ),
}


@pytest.fixture(scope="module")
def second_night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, bytes]]:
    """A night that would be taken; whatever is made of it is to change nothing, so all tests share one site."""
    folder = tmp_path_factory.mktemp("second-night")
    with FakeGitHub(folder) as hub:
        site = Site(hub, folder)
        site.started()
        site.push_main(train__py="other")
        _, data = site.night(1, slower=0.001)
        before = site.state()
        yield site, data
        assert site.state() == before
        assert site.post(data).number is not None, "as it is it is taken"
        assert not hub.violations


@pytest.mark.parametrize("name", HOSTILE_CHANGES)
def test_a_hostile_proposal_changes_nothing_and_says_why(second_night: tuple[Site, bytes], name: str) -> None:
    change, why = HOSTILE_CHANGES[name]
    site, data = second_night
    before = site.state()
    with pytest.raises(ProposalError, match=why) as refused:
        site.post(changing(data, change))
    assert site.state() == before
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000


def test_a_session_that_is_stored_with_another_content_is_not_changed(site: Site) -> None:
    _, data = site.night()
    site.merge(site.post(data).number)
    before = site.state()

    def faster(document: Proposal) -> None:
        _first_session(document)["runs"][0]["log_median"] -= 1
        document["anchors"].clear()

    with pytest.raises(ProposalError, match=r"would not be sound with it: .* holds the same session"):
        site.post(changing(data, faster))
    assert site.state() == before


BAD_BYTES = {
    "nothing": (b"", "not valid JSON"),
    "text": (b"hello", "not valid JSON"),
    "NaN": (b'{"schema": NaN}', "NaN is not a number"),
    "a key twice": (b'{"schema": "a", "schema": "b"}', "stands twice"),
    "deep": (b"[" * 100_000, "nested too deeply|not valid JSON"),
    "huge": (b" " * (MAX_RECORD_BYTES + 1), "more than the"),
    "not text": (b"\xff\xfe", "is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_that_are_no_proposal_are_refused(name: str) -> None:
    data, why = BAD_BYTES[name]
    with pytest.raises(ProposalError, match=f"it: .*({why})"):
        read_proposal(data, "it")


BAD_ARCHIVES = {
    "no zip": (b"PK", "not a zip archive"),
    "two members": (zipped((MEMBER, b"{}"), ("x", b"")), "nothing else, and holds 2 files"),
    "the same member twice": (zipped((MEMBER, b"{}"), (MEMBER, b"{}")), "nothing else, and holds 2 files"),
    "a path": (zipped((f"../{MEMBER}", b"{}")), "must hold proposal.json and nothing else"),
    "an absolute path": (zipped((f"/{MEMBER}", b"{}")), "must hold proposal.json and nothing else"),
    "a bomb": (zipped((MEMBER, b" " * (MAX_RECORD_BYTES + 1))), "unpacks to more than"),
    "nothing": (zipped(), "holds 0 files"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_an_archive_that_holds_anything_else_is_refused(site: Site, name: str) -> None:
    archive, why = BAD_ARCHIVES[name]
    run = _run(site)
    run.artifact(ARTIFACT, archive)
    with pytest.raises(ProposalError, match=why):
        fetch_proposals(site.forge, run.id)


def test_a_link_in_an_archive_is_only_bytes(site: Site) -> None:
    run = _run(site)
    run.artifact(ARTIFACT, zipped((MEMBER, b"/etc/passwd"), mode=0o120777))
    (given,) = fetch_proposals(site.forge, run.id)
    with pytest.raises(ProposalError, match="not valid JSON"):
        post_refresh(site.forge, site.remote, [given], NOW)


def test_the_last_artifact_of_each_name_is_what_a_run_proposes(site: Site) -> None:
    run = _run(site)
    for name, data in ((ARTIFACT, b"old"), ("regbot-session", b"other"), (ARTIFACT, b"new"), (f"{ARTIFACT}-b", b"b")):
        run.artifact(name, zipped((MEMBER, data)))
    assert [(each.origin, each.data) for each in fetch_proposals(site.forge, run.id)] == [
        ("artifact regbot-proposal", b"new"),
        ("artifact regbot-proposal-b", b"b"),
    ]


def _run(site: Site) -> Any:
    site.hub.tokens[CANARY].permissions["actions"] = "read"
    return site.repo.workflow_run(".github/workflows/regbot-refresh.yml", "schedule", "main", str(site.tip("main")))


def test_what_the_node_says_is_text_in_the_pull_request(site: Site) -> None:
    def speak(document: Proposal) -> None:
        _night(document).update(reasons=[HOSTILE, "@everyone closes #1"], environment_changes=[HOSTILE])
        document["refreshed"]["warnings"] = [HOSTILE, "![x](http://evil/x.png)"]

    number = site.post(changing(site.night()[1], speak)).number or 0
    pull = site.repo.pulls[number]
    page = cmarkgfm.github_flavored_markdown_to_html(pull.body)
    assert "<img" not in page
    assert "<script" not in page
    assert "<a " not in page
    assert "@everyone" not in page
    assert re.fullmatch(r"Baselines of [0-9a-f]{12}: \d+ files", pull.title)
    message = site.repo.git.run("log", "-1", "--format=%B", BRANCH)
    assert "evil" not in message


# ---- the token


def test_the_token_stands_in_no_argument_no_configuration_no_file_and_no_message(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, data = site.night()
    log = tmp_path / "arguments"
    programs = tmp_path / "programs"
    programs.mkdir()
    exec_path = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    for program in Path(exec_path).iterdir():
        shim = programs / program.name
        if program.name in ("git", "git-remote-http", "git-remote-https"):
            shim.write_text(f'#!/bin/sh\necho "$0 $*" >> "{log}"\nexec "{program}" "$@"\n')
            shim.chmod(0o755)
        else:
            shim.symlink_to(program)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("GIT_EXEC_PATH", str(programs))
    monkeypatch.setenv("GIT_TRACE_CURL", "2")
    monkeypatch.setenv("GIT_CURL_VERBOSE", "1")
    posted = site.post(data)
    assert "git-remote-http" in log.read_text()
    assert "push" in log.read_text()
    secrets = (CANARY, site.remote._secret)
    seen = capfd.readouterr()
    told = [
        posted.said,
        posted.summary,
        seen.out,
        seen.err,
        *texts(tmp_path / "checkout"),
        *texts(tmp_path / "night-0"),
    ]
    told += [log.read_text(), *(f"{pull.title}{pull.body}" for pull in site.repo.pulls.values())]
    assert not [text for text in told for secret in secrets if secret in text]


def test_a_token_that_does_not_work_is_not_in_the_message(site: Site) -> None:
    _, data = site.night()
    before = site.state()
    forge = site.forge
    site.hub.expire(CANARY)
    with pytest.raises(ForgeError, match=r"does not accept the token") as refused:
        site.post(data)
    remote = site.remote
    with pytest.raises(ForgeError, match="contents: write") as also:
        remote.tips("main")
    assert CANARY not in str(refused.value) + str(also.value)
    assert remote._secret not in str(also.value)
    site.hub.tokens[CANARY].expired = False
    site.hub.tokens[CANARY].permissions["contents"] = "read"
    with pytest.raises(ForgeError, match="contents: write"):
        post_refresh(forge, remote, [Given("it", data)], NOW)
    assert site.state() == before
    assert site.waited == [], "what is refused is not asked for again"


def test_credentials_that_a_checkout_left_in_its_settings_are_not_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = site.repo.clone_url.removesuffix("acme/moe.git")
    site.checkout.git("config", f"http.{place}.extraheader", "AUTHORIZATION: basic b3RoZXI6b3RoZXI=")
    real, sent = githttp.serve, set()

    def seeing(hub: Any, method: str, path: str, query: str, headers: Any, body: bytes) -> Any:
        sent.add(tuple(headers.get_all("Authorization") or ()))
        return real(hub, method, path, query, headers, body)

    monkeypatch.setattr(githttp, "serve", seeing)
    site.post(site.night()[1])
    assert sent == {(f"Basic {site.remote._secret}",)}


@pytest.mark.parametrize(
    "url",
    ["https://x-access-token:secret@github.com/acme/moe.git", "git@github.com:acme/moe", "file:///etc", "https:///x"],
)
def test_an_address_with_a_password_or_of_another_protocol_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ForgeError, match="without a user or a password") as refused:
        Remote(tmp_path, url, "token")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "two words", "x\nHost: evil"])
def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(ForgeError, match="there is no token to push with"):
        Remote(tmp_path, "https://github.com/acme/moe.git", token)


# ---- the node


def test_the_node_writes_one_file_and_makes_no_branch(site: Site) -> None:
    found, data = site.night()
    assert (found.branch, found.proposal) == (None, None)
    assert site.checkout.git("for-each-ref") == ""
    document = json.loads(data)
    assert document["schema"] == "regbot/proposal@1"
    assert [each["series"] for each in document["sessions"]] == ["rolling"] * len(document["sessions"])
    assert not re.search(r'"(path|mode|file)"', json.dumps({**document, "ledgers": [], "refreshed": {}}))


def test_a_proposal_instead_of_a_store_or_a_branch(tmp_path: Path) -> None:
    for other in (["--store", str(tmp_path)], ["--branch", "x"]):
        result = CliRunner().invoke(app, ["baseline", "refresh", "--proposal", str(tmp_path / "p.json"), *other])
        assert result.exit_code == 2
        assert "leave out --store and --branch" in result.output
