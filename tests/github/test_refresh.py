"""The refresh pull request: exactly one, updated every night with its evidence, under all faults of GitHub."""

import re

import pytest

from github_fake import githttp
from regbot.github.client import AwayError
from regbot.github.refresh import BRANCH
from support.forge_refresh_cases import Proposal, Site, changing

# One pull request


def test_a_night_becomes_a_branch_and_a_pull_request_with_its_evidence(site: Site) -> None:
    main = site.tip("main")
    report, data = site.night()
    posted = site.post(data)
    assert posted.number is not None
    pull = site.repo.pulls[posted.number]
    assert (pull.head, pull.base, pull.author) == (BRANCH, "main", "regbot-app[bot]")
    assert pull.title == f"Baselines of {str(main)[:12]}: {len(report.files)} files"
    assert "| workload | main against the anchor tonight |" in pull.body
    tip = site.tip()
    assert tip is not None
    assert site.repo.git.run("rev-parse", f"{tip}^") == main, "it is put on the commit that was measured"
    changed = [line.split("\t") for line in site.changed(f"{tip}^", tip)]
    assert {how for how, _ in changed} == {"A"}
    assert {path for _, path in changed} == {f"baselines/{file}" for file in report.files}
    assert all(f"`{path}`" in pull.body for _, path in changed)
    assert site.series() == ["rolling"]
    assert site.tip("main") == main
    assert site.checkout.git("status", "--porcelain") == ""
    assert site.checkout.git("for-each-ref") == ""


@pytest.mark.slow
def test_a_second_night_updates_the_same_pull_request(site: Site) -> None:
    site.started()
    second = site.post(site.night(1)[1])
    first = site.tip()
    main = site.push_main(train__py="faster")
    third = site.post(site.night(2)[1])
    assert second.number == third.number
    assert [number for number, pull in site.repo.pulls.items() if pull.state == "open"] == [third.number]
    assert site.series() == ["rolling", "anchor", "rolling", "anchor", "rolling"]
    assert site.repo.git.run("rev-parse", f"{BRANCH}^") == first, "nothing that stands on the branch is overwritten"
    assert main[:12] in site.repo.pulls[third.number or 0].title


@pytest.mark.slow
def test_a_regressed_night_shows_in_the_title_and_is_stored_as_evidence_only(site: Site) -> None:
    site.started()
    report, data = site.night(1, slower=0.05)
    assert report.status == "FAIL"
    number = site.post(data).number or 0
    pull = site.repo.pulls[number]
    assert pull.title.startswith("HELD BACK: baselines of ")
    assert "(1 of 1 workload, " in pull.title
    assert "--accept 4.9 --who NAME" in pull.body
    assert site.series() == ["rolling", "anchor", "held"]
    site.post(site.night(2)[1])
    assert site.repo.pulls[number].title.startswith("Baselines of ")
    assert "HELD BACK" in site.repo.git.run("log", "--format=%s", BRANCH), "GitHub lists the commit of the night before"


@pytest.mark.slow
def test_a_session_outside_the_reference_is_replaced_once_it_is_accepted(site: Site) -> None:
    site.started()
    site.push_main(train__py="slower")
    site.post(site.night(1, slower=0.03)[1])
    assert site.series() == ["rolling", "anchor", "held"]
    site.post(site.night(1, slower=0.03, accept_pct=4.0, why="the new router")[1])
    assert site.series() == ["rolling", "anchor", "rolling"], "the very same session"


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


def test_a_workload_that_is_not_stored_is_reported_beside_a_stored_one(site: Site) -> None:
    def with_another(document: Proposal) -> None:
        night = {**document["refreshed"]["workloads"][0], "name": "qwen3-30b-a3b@1/other", "anchor": None}
        night["not_stored"] = "it was timed on another class"
        document["refreshed"]["workloads"].append(night)

    posted = site.post(changing(site.night()[1], with_another))
    assert posted.number is not None
    assert posted.unmeasured == ("qwen3-30b-a3b@1/other (cpu): it was timed on another class",)
    assert site.post(site.night(1)[1]).unmeasured == ()


# Run again, in any order, whatever fails


def test_an_older_night_posted_again_keeps_the_later_one(site: Site) -> None:
    _, first = site.night()
    site.post(first)
    site.push_main(train__py="other")
    site.post(site.night(1)[1])
    before = site.state()
    assert "already has this night" in site.post(first).message
    assert site.state() == before


def test_an_unreachable_git_server_ends_with_a_message_and_the_next_run_completes_the_work(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, data = site.night()
    before = site.state()
    with monkeypatch.context() as patched:
        patched.setattr(githttp, "serve", lambda *_: (503, {}, b""))
        with pytest.raises(AwayError, match="run the job again when GitHub answers"):
            site.post(data)
    assert site.state() == before
    assert site.post(data).number is not None


# The node
