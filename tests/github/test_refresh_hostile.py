"""Hostile proposals for the refresh pull request, and secrecy of the token."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub, githttp
from regbot.errors import UserError
from regbot.github.client import ForgeError
from regbot.github.git_remote import Remote
from regbot.github.proposal import ARTIFACT, MEMBER
from regbot.github.refresh import BRANCH, fetch_proposals
from regbot.workloads.checkout.export import export
from regbot.workloads.checkout.git import CheckoutError
from support.forge_refresh_cases import CANARY, Proposal, Site, changing, texts, zipped
from support.hostile import LINES, inert
from support.ledger_builder import smoke_ledger
from support.report_cases import HOSTILE

# What nobody may send


def _first_session(document: Proposal) -> Any:
    return next(session for session in document["sessions"] if session["tier"] == "timed")


def _night(document: Proposal) -> Any:
    return document["refreshed"]["workloads"][0]


def _slow(document: Proposal) -> None:
    against = next(session["against"] for session in document["sessions"] if session["against"])
    against["log_ratios"] = {name: [0.2 + 0.001 * n for n in range(4)] for name in against["log_ratios"]}


def _keep_one_pair(document: Proposal) -> None:
    for against in (session["against"] for session in document["sessions"] if session["against"]):
        against["log_ratios"] = {name: [0.5] for name in against["log_ratios"]}
    _night(document).update(pairs=1)


def _drop_anchor(document: Proposal) -> None:
    _night(document)["anchor"] = None
    document["sessions"] = [session for session in document["sessions"] if session["series"] != "anchor"]
    for session in document["sessions"]:
        if session["against"]:
            session["against"]["commit"] = document["refreshed"]["commit"]


def _change_shape(document: Proposal) -> None:
    _drop_anchor(document)
    _night(document).update(name="gpt-9@1/ep")
    for session in document["sessions"]:
        session.update(workload="gpt-9@1/ep")


def _keep_traces(document: Proposal) -> None:
    document["sessions"] = [session for session in document["sessions"] if session["tier"] == "static"]


HOSTILE_CHANGES: dict[str, tuple[Callable[[Proposal], object], str]] = {
    "a path": (lambda d: _first_session(d).update(path="/etc/passwd"), "path: Extra inputs"),
    "a key of several lines": (lambda d: d.update({LINES: 1, "x" * 10**6: 1}), "Extra inputs"),
    "a workload that climbs": (lambda d: _first_session(d).update(workload="../../x@1/ep"), "workload: String should"),
    "a variant that climbs": (lambda d: _first_session(d).update(variant="../x"), "variant: String should"),
    "a night of no entry": (
        lambda d: _night(d).update(name="x](http://evil) @team"),
        "is not the name of a workload",
    ),
    "a commit that is none": (lambda d: d["refreshed"].update(commit="HEAD"), "commit: String should"),
    "no anchor, and the store has one": (_drop_anchor, "names the anchor none, which is not that of the store"),
    "another commit": (
        lambda d: _first_session(d).update(commit="f" * 40),
        "not in this repository's history with this tree",
    ),
    "another tree": (lambda d: _first_session(d).update(tree="e" * 40), "in this repository's history with this tree"),
    "a series that the night does not tell": (lambda d: _night(d).update(series="held", status="FAIL"), "is stored as"),
    "a night that failed and is taken in": (
        lambda d: _night(d).update(status="FAIL"),
        "is stored as rolling, but the night is FAIL",
    ),
    "a night that nothing is told of": (lambda d: d["refreshed"].update(workloads=[]), "the night stores nothing"),
    "one pair of +65%": (_keep_one_pair, "would join the reference with too few pairs for an estimate"),
    "a traced session of a night without a timed one": (_keep_traces, "no stored night is of"),
    "a slowdown that its own pairs prove": (
        _slow,
        "would join the reference, and tonight's pairs prove that main is slower",
    ),
    "a ledger of nobody": (
        lambda d: d["ledgers"].append(json.loads(smoke_ledger(variant="other").to_json())),
        "belongs to no session",
    ),
    "a session of the future": (
        lambda d: [session.update(measured="2099-01-01T00:00:00Z") for session in d["sessions"]],
        "would be invalid with this commit: .*2099",
    ),
    "a time to come": (lambda d: d.update(created="2099-01-01T00:00:00Z"), "time is in the future"),
    "another commit of another node": (lambda d: d["refreshed"].update(commit="c" * 40), "not in the history of main"),
    "a shape that is not there": (
        _change_shape,
        "shape or version that this regbot does not have",
    ),
    "an acceptance without a name": (
        lambda d: d["anchors"].append(
            {
                "schema": "regbot/anchor@1",
                **{key: _first_session(d)[key] for key in ("workload", "variant", "node_class")},
                "commit": d["refreshed"]["commit"],
                "tree": next(
                    session["tree"] for session in d["sessions"] if session["commit"] == d["refreshed"]["commit"]
                ),
                "moved": "2026-06-02T00:00:00Z",
                "who": "mallory",
                "why": "because",
                "previous": _night(d)["anchor"],
            }
        ),
        "moved, but no named person accepted a slowdown",
    ),
}


@pytest.fixture(scope="module")
def second_night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, bytes]]:
    """A valid night. Its hostile variants must change nothing, so all tests share one site."""
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


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_CHANGES)
def test_a_hostile_proposal_changes_nothing_and_says_why(second_night: tuple[Site, bytes], name: str) -> None:
    change, why = HOSTILE_CHANGES[name]
    site, data = second_night
    before = site.state()
    with pytest.raises(UserError, match=why) as refused:
        site.post(changing(data, change))
    assert site.state() == before
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "baselines/"])
def test_attributes_that_hide_the_store_from_an_archive_hide_no_anchor(site: Site, where: str) -> None:
    site.started()
    _, anchored = site.night(1, slower=0.03)
    site.repo.commit({f"{where}.gitattributes": "* -text\n**/anchor.json export-ignore\n"}, message="hide")
    site.pull_main()
    report, data = site.night(1, slower=0.03)
    assert report.workloads[0].anchor == json.loads(anchored)["refreshed"]["workloads"][0]["anchor"] is not None
    site.post(data)
    assert [line for line in site.changed("main", BRANCH) if not line.startswith("A")] == []
    assert site.series() == ["rolling", "anchor", "held"]


def test_files_that_the_store_did_not_read_are_not_overwritten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    _, data = site.night()
    site.merge(site.post(data).number)

    def half(repo: Path, commit: str, paths: Sequence[str], to: Path) -> None:
        export(repo, commit, paths, to)
        for path in to.rglob("anchor.json"):
            path.unlink()

    monkeypatch.setattr("regbot.github.proposal.export", half)
    before = site.state()
    site.push_main(train__py="other")
    monkeypatch.setattr("regbot.check.refresh.flow.export", half)
    _, data = site.night(1)
    with pytest.raises(UserError, match=r"anchor\.json would be added, but [0-9a-f]{12} already has this file"):
        site.post(data)
    assert site.state()[1:] == before[1:]
    assert site.tip() == before[0].get(f"refs/heads/{BRANCH}")


@pytest.mark.parametrize("target", ["/etc/passwd", "README.md"])
def test_a_link_on_the_branch_ends_with_a_message(site: Site, target: str) -> None:
    _, data = site.night()
    person = site.checkout.clone_to(site.scratch / "person")
    (person.path / "baselines").mkdir()
    (person.path / "baselines" / "x").symlink_to(target)
    person.commit("link")
    person.git("push", "--quiet", str(site.repo.git.path), f"HEAD:refs/heads/{BRANCH}")
    before = site.state()
    with pytest.raises(CheckoutError, match=r"baselines/x of [0-9a-f]{12} is a link; only regular files are allowed"):
        site.post(data)
    assert site.state() == before


def test_a_stored_session_with_other_content_is_not_changed(site: Site) -> None:
    _, data = site.night()
    site.merge(site.post(data).number)
    before = site.state()

    def faster(document: Proposal) -> None:
        _first_session(document)["runs"][0]["log_median"] -= 1
        document["anchors"].clear()

    with pytest.raises(UserError, match=r"would be invalid with this commit: .* has the same session"):
        site.post(changing(data, faster))
    assert site.state() == before


def test_a_run_proposes_the_newest_artifact_of_every_name(site: Site) -> None:
    run, nights = _run(site), [site.night(number)[1] for number in range(3)]
    for name, number in ((ARTIFACT, 0), ("regbot-session", 0), (ARTIFACT, 1), (f"{ARTIFACT}-b", 2)):
        run.artifact(name, zipped((MEMBER, nights[number])))
    created = [json.loads(nights[number])["created"] for number in (1, 2)]
    assert [proposal.created for proposal in fetch_proposals(site.forge, run.id)] == created


def _run(site: Site) -> Any:
    site.hub.tokens[CANARY].permissions["actions"] = "read"
    return site.repo.workflow_run(".github/workflows/regbot-refresh.yml", "schedule", "main", str(site.tip("main")))


def test_text_of_the_node_is_inert_in_the_pull_request(site: Site) -> None:
    def speak(document: Proposal) -> None:
        _night(document).update(reasons=[HOSTILE, "@everyone closes #1"])
        document["refreshed"]["warnings"] = [HOSTILE, "![x](http://evil/x.png)"]

    number = site.post(changing(site.night()[1], speak)).number or 0
    pull = site.repo.pulls[number]
    assert inert(pull.body) == []
    assert re.fullmatch(r"Baselines of [0-9a-f]{12}: \d+ files", pull.title)
    message = site.repo.git.run("log", "-1", "--format=%B", BRANCH)
    assert "evil" not in message


# The token


def test_the_token_is_in_no_argument_configuration_file_or_message(
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
    outputs = [
        posted.message,
        posted.summary,
        seen.out,
        seen.err,
        *texts(tmp_path / "checkout"),
        *texts(tmp_path / "night-0"),
    ]
    outputs += [log.read_text(), *(f"{pull.title}{pull.body}" for pull in site.repo.pulls.values())]
    assert not [text for text in outputs for secret in secrets if secret in text]


def test_credentials_in_the_checkouts_settings_are_not_sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ForgeError, match="no user or password") as refused:
        Remote(tmp_path, url, "token")
    assert "secret" not in str(refused.value)
