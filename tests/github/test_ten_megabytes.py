"""Ten megabytes where a line is meant: what GitHub is sent stays below its limits, says the verdict first and is whole;
or it is refused with a message. Neither takes long, nor much memory.
"""

import json
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from github_fake import FakeGitHub
from github_fake.fixtures import hub as hub
from regbot.errors import UserError
from regbot.github.bisection import ARTIFACT, MEMBER
from regbot.github.client import ForgeError
from regbot.github.metadata import BISECT
from regbot.github.post import PostedResult
from regbot.github.refresh import BRANCH
from regbot.github.stamped_text import StampedText
from regbot.github.workflow_start import compute_nonce
from regbot.records.ledger import Ledger
from support.forge_cases import A2A, FALLBACK, Bench, lines_of, only, zipped
from support.forge_refresh_cases import Site, changing
from support.gate_scene import Scene
from support.hostile import Page

MEGABYTES = 10 * 2**20
LONG = "x| `@a " * (MEGABYTES // 7 + 1)
GITHUB_TAKES = 65_536
MOST_S = 120
MOST_GROWTH_KIB = 2 * 2**20
"""Allowed growth of the process: a few copies of the input."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {MOST_S} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH_KIB


@pytest.fixture
def bench(hub: FakeGitHub, tmp_path: Path) -> Bench:
    return Bench.make(hub, tmp_path)


@pytest.fixture
def scene(hub: FakeGitHub, tmp_path: Path) -> Scene:
    return Scene(hub, tmp_path)


def fits(text: str) -> None:
    """Check that GitHub accepts it, its first visible line is the verdict, and folds and tables are complete."""
    assert len(text) < GITHUB_TAKES
    assert len(text.encode()) < 4 * GITHUB_TAKES
    stamped_text = StampedText.read(text)
    assert stamped_text is not None
    assert stamped_text.text.startswith("### ")
    page = Page(text)
    assert page.found == []
    assert page.tags.count("h3") == 1


def posted(bench: Bench, number: int, run: Any) -> PostedResult:
    post = only(bench.post(run))
    fits(bench.comment(number))
    check = bench.check(number)
    fits(check.summary or "")
    assert len(check.title or "") <= 200
    assert check.status == "completed"
    assert len(post.text) < GITHUB_TAKES
    return post


def with_long(lines: list[bytes], change: Callable[[Any, Any], object]) -> bytes:
    """Return the artifact after ``change`` of the header and of the head's first run, as JSON."""
    parsed = [json.loads(line) for line in lines]
    change(parsed[0], next(record for record in parsed[1:] if record["arm"]["name"] == "head"))
    return zipped([json.dumps(record).encode() + b"\n" for record in parsed])


FIELDS: dict[str, Callable[[Any, Any], object]] = {
    "an operator's name": lambda _, run: run["ledger"]["entries"][0].update(where=LONG),
    "an axis": lambda _, run: run["ledger"]["entries"][0].update(axis=LONG),
    "a log line": lambda _, run: run.update(outcome="crashed", log_tail=LONG),
    "a log of short lines": lambda _, run: run.update(outcome="crashed", log_tail="x\n" * (MEGABYTES // 2)),
    "a reason": lambda _, run: run.update(outcome="crashed", reason=LONG),
    "a warning": lambda header, _: header["warnings"].append(LONG),
    "a commit subject": lambda header, _: header["head"].update(subject=LONG),
    "a revision": lambda header, _: header["head"].update(revision=LONG),
    "a workload": lambda header, run: (header["workloads"].append(LONG), run.update(workload=LONG)),
    "a file": lambda header, _: header["changed_files"].append(LONG),
    "a key": lambda header, _: header.update({LONG: 1}),
    "a rank": lambda _, run: run["ledger"]["rank_digests"].update({LONG: "x"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_one_text_of_ten_megabytes_in_an_artifact_is_refused_in_one_sentence(bench: Bench, field: str) -> None:
    number = bench.pull(fork="mallory")
    content = with_long(lines_of(bench.session(bench.head(number))), FIELDS[field])
    assert posted(bench, number, bench.static(number, content)).status == "INVALID"
    assert "cannot be read" in bench.comment(number).splitlines()[1]
    assert len(bench.comment(number)) < 6_000


def wide(ledger: Ledger, names: int) -> Ledger:
    """Return the ledger with each entry under many long names."""
    entries = [
        entry.model_copy(update={"where": f"layers.{n}.{entry.where}.{'|' * 440}"})
        for n in range(names)
        for entry in ledger.entries
    ]
    return ledger.model_copy(update={"entries": entries})


@pytest.mark.slow
def test_ten_megabytes_of_short_names_are_judged_and_cut(bench: Bench) -> None:
    number = bench.pull(fork="mallory")
    base, head = wide(A2A, 700), wide(FALLBACK, 700)
    session = bench.session(bench.head(number), base, head, warnings=["`" * 3990 + str(n) for n in range(2600)])
    content = zipped(session)
    assert sum(map(len, lines_of(session))) > 2 * MEGABYTES
    assert posted(bench, number, bench.static(number, content)).status == "FAIL"
    assert "see the report" in bench.comment(number)


@pytest.mark.slow
def test_a_title_a_text_and_a_label_of_ten_megabytes_change_nothing(bench: Bench) -> None:
    number = bench.pull(fork="mallory", title=LONG)
    pull = bench.repo.pulls[number]
    pull.body = LONG
    pull.labels.append(LONG)
    assert posted(bench, number, bench.static(number, bench.session(bench.head(number)))).status == "PASS"
    assert "x| `@a x|" not in bench.comment(number)


@pytest.mark.slow
def test_a_run_with_a_branch_or_title_of_ten_megabytes_is_ignored_or_posted(bench: Bench) -> None:
    number = bench.pull(fork="mallory")
    session = bench.session(bench.head(number))
    measured = bench.measured(number, session, title=f"regbot {number} {LONG}")
    assert "was not started by regbot-gate" in str(bench.post(measured))
    ignored = str(bench.post(bench.static(number, session, head_branch=LONG)))
    assert "no open pull request comes from the branch of run" in ignored
    assert len(ignored) < 2000
    with pytest.raises(ForgeError) as refused:  # older workflow files do not name the pull request in the title
        bench.post(bench.static(number, session, head_branch=LONG, title="regbot-static"))
    assert "414" in str(refused.value)
    assert len(str(refused.value)) < 2000
    assert bench.repo.comments(number) == []


# The gate


def test_an_event_with_a_title_of_ten_megabytes_is_handled(scene: Scene) -> None:
    event = scene.labelled("tom")
    event["pull_request"].update(title=LONG, body="short")
    assert scene.pulled(event).effect != "started"
    assert scene.started == []
    assert all(len(reply) < 6_000 for reply in scene.replies)


def test_an_event_beyond_githubs_own_limit_is_refused(scene: Scene) -> None:
    event = scene.labelled()
    event["pull_request"].update(title=LONG, body=LONG + LONG)
    with pytest.raises(UserError, match="more than the"):
        scene.pulled(event)
    assert scene.started == []


@pytest.mark.slow
@pytest.mark.parametrize("line", ["/regbot {}", "/regbot run {}", "/regbot expect {}@ep@*: x", "/regbot accept {}: {}"])
def test_a_command_of_ten_megabytes_gets_a_short_reply(scene: Scene, line: str) -> None:
    """The comment is longer than GitHub allows."""
    scene.comment(line.replace("{}", LONG), "mia")
    assert scene.started == []
    assert scene.reactions() == ["confused"]
    (reply,) = scene.replies
    assert len(reply) < 6_000
    assert Page(reply).found == []


# The refresh


@pytest.fixture
def site(hub: FakeGitHub, tmp_path: Path) -> Site:
    return Site(hub, tmp_path)


@pytest.mark.slow
def test_commit_subjects_of_ten_megabytes_do_not_affect_the_refresh(site: Site) -> None:
    site.repo.commit({"train.py": "long\n"}, message=LONG, author="mallory")
    site.pull_main()
    site.post(site.night()[1])
    site.repo.commit({"note.md": "x"}, BRANCH, message=LONG, author="mallory")
    site.push_main(train__py="other")
    number = site.post(site.night(1)[1]).number
    assert number is not None
    body = site.repo.pulls[number].body
    assert len(body) < 10_000
    assert body.startswith("Main was timed in pairs")
    assert Page(body).found == []


NIGHTS: dict[str, Callable[[Any], object]] = {
    "a reason": lambda night: night["refreshed"]["workloads"][0]["reasons"].append(LONG),
    "a workload": lambda night: night["refreshed"]["workloads"][0].update(name=LONG),
    "an operator's name": lambda night: night["ledgers"][0]["entries"][0].update(where=LONG),
    "a class": lambda night: night["sessions"][0].update(node_class=LONG),
    "a key": lambda night: night.update({LONG: 1}),
}


@pytest.mark.parametrize("field", NIGHTS)
def test_a_night_with_a_text_of_ten_megabytes_is_refused_in_a_sentence(site: Site, field: str) -> None:
    data = changing(site.night()[1], NIGHTS[field])
    before = site.state()
    with pytest.raises(UserError) as refused:
        site.post(data)
    assert len(str(refused.value)) < 2000
    assert site.state() == before


@pytest.mark.slow
def test_a_night_of_ten_megabytes_in_short_reasons_is_cut(site: Site) -> None:
    def speak(night: Any) -> None:
        night["refreshed"]["warnings"] = [LONG[:3990] + str(n) for n in range(2700)]

    data = changing(site.night()[1], speak)
    assert len(data) > MEGABYTES
    number = site.post(data).number
    assert number is not None
    body = site.repo.pulls[number].body
    assert len(body) < GITHUB_TAKES
    assert body.startswith("Main was timed in pairs")
    assert "more warnings" in body
    assert Page(body).found == []


# The bisection


def test_a_result_with_a_subject_of_ten_megabytes_is_refused(bench: Bench) -> None:
    number = bench.pull()
    good, bad = str(bench.repo.git.branch("main")), bench.head(number)
    bench.repo.member("walt", "write")
    comment_id = bench.repo.comment(number, "walt", f"/regbot bisect {good}..{bad}")
    nonce = compute_nonce(bench.repo.full_name, number, "comment", comment_id)
    run = bench.measured(number, None, path=BISECT, title=f"regbot-bisect {number} {good} {bad} {nonce}")
    content = json.dumps({"schema": "regbot/bisection@1", "good": {"commit": good, "subject": LONG}, LONG: LONG})
    run.artifact(ARTIFACT, zipped([content.encode()], MEMBER))
    bench.post(run)
    (_, reply) = bench.repo.comments(number)
    assert "NO ANSWER" in reply.body.splitlines()[1]
    assert len(reply.body) < 6_000
    assert Page(reply.body).found == []
