"""The baseline store: intake and refusals, crashes, git, damage, and comparable sessions."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from regbot.baselines import commands
from regbot.baselines.query import newest_session, read_workload
from regbot.baselines.reference import load_references
from regbot.baselines.store import BaselineError, Store
from regbot.baselines.verify import verify
from regbot.check.references import stored_traces, with_references
from regbot.check.static_trace import WORKING_TREE
from regbot.records.baseline import Acceptance, Baseline, MoveEvidence, format_time
from regbot.records.run import Node, Run
from regbot.records.session import TimedPlan
from support import baseline_cases
from support.baseline_builder import (
    BASELINE,
    CPU,
    calibration,
    distilled,
    load_rolling_reference,
    placebo,
    put,
    session_of,
    timed_baseline,
)
from support.baseline_cases import NOW, add, block_runs, header_of, make_intake, store_one, write_session
from support.git_repos import Repository
from support.ledger_builder import WORKLOAD, backend, smoke_ledger
from support.timed_builder import BASE, NODE, PLAN, statics


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


# ---- intake


def test_a_session_is_stored_as_its_trace_and_its_good_runs(store: Store, tmp_path: Path) -> None:
    file = write_session(tmp_path / "session.jsonl", block_runs(blocks=2))
    added = add(store, file, make_intake(file, container="sha256:abc"), NOW)
    trace, timed = (store.session(PurePosixPath(item)) for item in added.files)
    assert (trace.tier, trace.variant, trace.runs) == ("static", "full", [])
    assert (timed.tier, timed.commit, timed.measured) == ("timed", BASE.commit, "2026-01-01T00:00:00Z")
    assert [(run.block, run.slot) for run in timed.runs] == [(1, 0), (1, 3), (2, 0), (2, 3)], "no warm launch, no head"
    assert timed.provenance.who == "ada"
    assert timed.environment.container == timed.provenance.container == "sha256:abc"
    assert timed.environment.framework == "torch 2.13.0"
    assert timed.environment.driver == "none", "known not to be there: the node has no GPU"
    assert timed.environment.unknown == ["variables"]
    assert "variables" in added.warnings[0]
    assert timed.ledger is not None
    assert store.ledger(timed.ledger).variant == CPU
    assert sorted(path.name for path in store.root.iterdir()) == [
        ".gitattributes", ".gitignore", ".lock", "ledgers", "qwen3-30b-a3b+ep+cpu@1", "qwen3-30b-a3b+ep+full@1",
    ]  # fmt: skip
    assert verify(store, NOW).problems == []


def test_a_session_is_stored_once_even_by_different_users(store: Store, tmp_path: Path) -> None:
    file = write_session(tmp_path / "session.jsonl")
    first = add(store, file, make_intake(file), NOW)
    assert add(store, file, make_intake(file), NOW).files == first.files
    assert add(store, file, make_intake(file, who="bob", why="again"), NOW).files == first.files
    longer = write_session(tmp_path / "longer.jsonl", [*block_runs(), *block_runs(blocks=2)[6:]])
    with pytest.raises(BaselineError, match=r"has the same session .* with 2 runs, and the new one has 4: delete it"):
        add(store, longer, make_intake(longer), NOW)
    assert verify(store, NOW).sessions == 2


def spoiled(tier: str = "timed", **changes: object) -> Callable[[list[Run]], list[Run]]:
    """Return a function that changes the last run of base."""

    def spoil(runs: list[Run]) -> list[Run]:
        last = next(n for n in reversed(range(len(runs))) if (runs[n].arm.name, runs[n].tier) == ("base", tier))
        return [*runs[:last], runs[last].model_copy(update=changes), *runs[last + 1 :]]

    return spoil


REFUSED: dict[str, tuple[Callable[[list[Run]], list[Run]], str]] = {
    "a crash": (spoiled(outcome="crashed", reason="no kernel"), r"ended as 'crashed' \(no kernel\)"),
    "a trace that failed": (spoiled(tier="static", outcome="refused"), "a static run of base ended as 'refused'"),
    "a dirty tree": (spoiled(changed_by_build=["moe.py"]), "was of a dirty tree: .* moe.py"),
    "another commit": (spoiled(arm=BASE.model_copy(update={"commit": "3" * 40})), "333333"),
    "code from elsewhere": (
        spoiled(code=block_runs()[0].code.model_copy(update={"foreign": {"moe": "/opt"}})),  # type: ignore[union-attr]
        "imported moe from outside",
    ),
    "no proof of code": (spoiled(code=None), "does not prove which code"),
    "a fallback": (spoiled(backends={"dispatcher": backend("alltoall", "deepep")}), "executed dispatcher 'alltoall'"),
    "another node": (spoiled(node=Node(name="node-4", node_class=NODE.node_class, cores=2)), "the node differs"),
    "another environment": (
        spoiled(environment=block_runs()[0].environment.model_copy(update={"torch": "2.14"})),  # type: ignore[union-attr]
        "the environment differs between runs",
    ),
    "a dead counter": (
        spoiled(tier="static", ledger=smoke_ledger().model_copy(update={"liveness": None})),
        "not proven to work",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_session_with_any_bad_run_is_refused(store: Store, tmp_path: Path, fault: str) -> None:
    spoil, reason = REFUSED[fault]
    runs = spoil([*statics(), *block_runs()])
    file = tmp_path / "session.jsonl"
    file.write_text("".join(line.to_line() for line in (header_of(0), *runs)))
    with pytest.raises(BaselineError, match=reason) as caught:
        add(store, file, make_intake(file), NOW)
    assert str(caught.value).startswith(f"{file}: ")
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"base": WORKING_TREE.model_copy(update={"name": "base"})}, "uncommitted files"),
        ({"base": BASE.model_copy(update={"overrides": {"dispatcher": "allgather"}})}, "ran with overrides"),
        (
            {"created": format_time(NOW + timedelta(days=2))},
            "was measured at 2026-06-03T00:00:00Z, and it is 2026-06-01",
        ),
    ],
    ids=["no commit", "overrides", "the future"],
)
def test_a_session_with_an_unfit_header_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(BaselineError, match=reason):
        distilled(session_of(0, **changes))


# ---- crashes and full disks


@pytest.fixture
def volatile(tmp_path: Path) -> Iterator[Store]:
    """A store in memory if possible, because these tests do thousands of syncs that a killed process does not need."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Store(Path(folder) / "baselines")


@pytest.mark.slow
def test_two_writers_killed_at_any_moment_leave_a_sound_store_with_all_reported_sessions(volatile: Store) -> None:
    command = [sys.executable, baseline_cases.__file__, str(volatile.root)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    output = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["problems"] for item in output] == [[]] * 32
    files = {file for item in output for file in item["files"]}
    assert len(files) > 32
    for session in (volatile.session(PurePosixPath(file)) for file in files):
        assert session.ledger is None or volatile.ledger(session.ledger)
    names = [session.session for session in read_workload(volatile, WORKLOAD, CPU) if session.tier == "timed"]
    assert len(names) == len(set(names)) >= 16


# ---- git


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Repository, Repository]:
    """Two clones of a repository with one session and its anchor."""
    origin = Repository.create(tmp_path / "origin")
    store = Store(origin.path / "baselines")
    store_one(store.root, tmp_path, 0)
    commands.move_anchor(store, commands.AnchorMove(WORKLOAD, BASE.commit[:7], "ada", "release 1"), NOW)
    origin.commit("baselines")
    assert origin.git("status", "--porcelain") == ""
    return origin.clone_to(tmp_path / "one"), origin.clone_to(tmp_path / "two")


def merge(target: Repository, source: Repository) -> str:
    """Pull ``source`` into ``target``. Return git's output if that fails."""
    target.git("fetch", "-q", str(source.path), "HEAD")
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@e", "merge", "-q", "--no-edit", "FETCH_HEAD"]
    done = subprocess.run(command, cwd=target.path, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_two_refreshes_merge_without_a_conflict(clones: tuple[Repository, Repository], tmp_path: Path) -> None:
    for clone, numbers in zip(clones, ((1, 2, 5), (3, 4, 5)), strict=True):
        for number in numbers:  # the fifth is the same
            store_one(clone.path / "baselines", tmp_path, number)
        clone.commit("refresh")
        assert ".lock" not in clone.git("ls-files")
    assert merge(*clones) == ""
    store = Store(clones[0].path / "baselines")
    assert verify(store, NOW).problems == []
    result = load_rolling_reference(store)
    assert [item.measured[11:13] for item in result.sessions] == ["00", "01", "02", "03", "04", "05"]


def test_two_moves_of_an_anchor_conflict_with_a_clear_message(
    clones: tuple[Repository, Repository], tmp_path: Path
) -> None:
    for number, clone in enumerate(clones):
        store = Store(clone.path / "baselines")
        digit = str(7 + number)
        put(store, timed_baseline(9 + number, commit=digit * 40))
        moved = commands.move_anchor(store, commands.AnchorMove(WORKLOAD, digit * 9, "ada", f"release {digit}"), NOW)
        assert (moved.commit, moved.previous) == (digit * 40, BASE.commit)
        clone.commit("move the anchor")
    assert "CONFLICT" in merge(*clones)
    store = Store(clones[0].path / "baselines")
    (problem,) = verify(store, NOW).problems
    assert "anchor.json: has a merge conflict of two anchors: choose a commit" in problem
    with pytest.raises(BaselineError, match="conflict of two anchors"):
        commands.find_anchors(store, WORKLOAD)
    clones[0].git("checkout", "--theirs", "baselines")
    assert verify(store, NOW).problems == []
    assert [anchor.commit[:1] for anchor in commands.find_anchors(store, WORKLOAD)] == ["8"]


# ---- damage


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def spoil(root: Path, path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return spoil


def replaced(**changes: object) -> Callable[[Path, Path], None]:
    """Put another session into the folder of the first, named after the correct hash."""

    def spoil(root: Path, path: Path) -> None:
        other = Baseline.model_construct(**(timed_baseline(1).model_dump(by_alias=False) | changes))
        text = json.dumps(other.model_dump(by_alias=True, warnings=False), indent=1) + "\n"
        renamed(path.parent, text)

    return spoil


def renamed(folder: Path, text: str) -> None:
    (folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json").write_text(text)


def stored_twice(root: Path, path: Path) -> None:
    result = Baseline.model_validate_json(path.read_bytes())
    put(Store(root), result.model_copy(update={"provenance": result.provenance.model_copy(update={"who": "eve"})}))


def without_ledger(root: Path, path: Path) -> None:
    result = Baseline.model_validate_json(path.read_bytes())
    (root / "ledgers" / f"{result.ledger}.json").unlink()


def linked(root: Path, path: Path) -> None:
    path.rename(root.parent / "elsewhere.json")
    path.symlink_to(root.parent / "elsewhere.json")


def lost_anchor(root: Path, path: Path) -> None:
    anchor = commands.move_anchor(Store(root), commands.AnchorMove(WORKLOAD, BASE.commit, "ada", "release"), NOW)
    Store(root).move_anchor(anchor.model_copy(update={"commit": "9" * 40}))


CONFLICT = b'<<<<<<< HEAD\n "steps": 8,\n=======\n "steps": 9,\n>>>>>>> other\n'
FOUND: dict[str, tuple[Callable[[Path, Path], None], str, str]] = {
    "edited": (rewrite(lambda data: data.replace(b'"steps": 8', b'"steps": 9')), "was edited", "restore it"),
    "conflict": (rewrite(lambda data: data.replace(b' "steps": 8,\n', CONFLICT)), "has conflict markers", "restore"),
    "of the future": (
        replaced(measured="2031-01-01T00:00:00Z"),
        "was written at 2031-01-01T00:00:00Z, and it is",
        "restore it",
    ),
    "another class": (replaced(node_class="8 x B200"), "is in the folder of another workload", "move it to"),
    "stored twice": (stored_twice, "has the same session as", "delete one"),
    "no ledger": (without_ledger, "is missing or unusable", "restore it"),
    "a link": (linked, "is a link", "replace it by the file itself"),
    "an anchor without a session": (lost_anchor, "no session of its commit 999999999999", "add a session of it"),
}


@pytest.mark.parametrize("fault", FOUND)
def test_every_fault_is_one_line_that_names_file_fault_and_remedy(store: Store, tmp_path: Path, fault: str) -> None:
    spoil, what, fix = FOUND[fault]
    (file,) = [file for file in store_one(store.root, tmp_path, 0) if "cpu" in file]
    assert verify(store, NOW).problems == []
    spoil(store.root, store.root / file)
    result = verify(store, NOW)
    (problem,) = result.problems
    assert "\n" not in problem
    named, _, rest = problem.partition(": ")
    assert PurePosixPath(named).parts[0] in (PurePosixPath(file).parts[0], "qwen3-30b-a3b+ep+cpu@99", "notes.txt")
    assert what in rest
    assert f": {fix}" in rest
    assert "1 problem in" in commands.verify_page(result)


def test_a_flipped_bit_is_named_by_verify_and_misleads_no_check(store: Store, tmp_path: Path) -> None:
    """A check names the damaged file, or uses what an intact store gives."""
    stored = store_one(store.root, tmp_path, 0)
    (session,) = (store.session(PurePosixPath(file)) for file in stored if "cpu" in file)
    store.add_calibration(calibration(session, placebo(1, 0.0, 0.001, -0.001)))
    commands.move_anchor(store, commands.AnchorMove(WORKLOAD, BASE.commit, "ada", "release"), NOW)

    def load(root: Path) -> tuple[object, object, list[str]]:
        plan, warnings = with_references(PLAN, Store(root), NODE.node_class)
        traces, trace_warnings = stored_traces(Store(root), [(PLAN.entry, PLAN.variant), (PLAN.entry, "full")], BASE)
        return plan.references, traces, warnings + trace_warnings

    intact = load(store.root)
    files = [path for path in verified_files(store.root) if path.suffix == ".json"]
    assert len(files) == 6
    draw = random.Random(5)
    for number, file in enumerate(files * 4):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(store.root, copy, ignore=shutil.ignore_patterns(".*"))
        data = bytearray((copy / file).read_bytes())
        place, bit = draw.randrange(len(data)), draw.randrange(8)
        data[place] ^= 1 << bit
        (copy / file).write_bytes(data)
        damage = f"bit {bit} of byte {place} of {file}"
        assert any(str(file) in problem for problem in verify(Store(copy), NOW).problems), damage
        references, traces, warnings = load(copy)
        assert (references, traces) == intact[:2] or any(str(file) in warning for warning in warnings), damage


def verified_files(root: Path) -> list[Path]:
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return sorted(file for file in files if not any(part.startswith(".") for part in file.parts))


# ---- comparable sessions


def test_the_last_forty_sessions_of_main_are_the_rolling_reference(store: Store) -> None:
    put(store, *(timed_baseline(number) for number in range(45)), timed_baseline(50, series="anchor"))
    result = load_rolling_reference(store)
    assert [item.measured for item in result.sessions] == [timed_baseline(n).measured for n in range(5, 45)]
    assert "variables of the environment are unknown" in result.warnings[0]
    assert result.refusal == ""


OTHER = BASELINE.environment.model_copy(update={"framework": "torch 2.14.0", "python": None})
OTHER_PLAN = PLAN.model_copy(update={"dispatcher": "deepep", "steps": 9})
REFUSALS: dict[str, tuple[dict[str, Any], TimedPlan, str, str]] = {
    "another class": ({}, PLAN, "8 x H100", "are stored for a processor, 2 cores, and this is 8 x H100"),
    "other terms": (
        {},
        OTHER_PLAN,
        NODE.node_class,
        "2 stored sessions of qwen3-30b-a3b@1/ep cannot be compared: steps is 8 in store, 9 here; dispatcher is '' in",
    ),
    "another series": ({"series": "held"}, PLAN, NODE.node_class, "no session of qwen3-30b-a3b@1/ep (cpu) is stored"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_an_incomparable_session_is_refused_with_the_differing_field(store: Store, case: str) -> None:
    changes, plan, node_class, text = REFUSALS[case]
    put(store, timed_baseline(0, **changes), timed_baseline(1, **changes))
    result = load_references(store, plan, node_class, NOW)
    assert (result.references, result.faults) == ([], [])
    assert text in result.reason


def test_sessions_of_another_environment_or_on_other_terms_are_left_out(store: Store) -> None:
    put(store, timed_baseline(0), timed_baseline(1, environment=OTHER), timed_baseline(2, dispatcher="deepep"))
    result = load_rolling_reference(store)
    assert [session.measured for session in result.sessions] == [timed_baseline(0).measured]
    assert "1 newer stored sessions were timed with other terms" in result.warnings[1]


def test_two_classes_in_one_folder_are_not_compared(store: Store) -> None:
    for number, node_class in enumerate(("8 x H100", "8-x-H100")):
        put(store, timed_baseline(number, node_class=node_class, runs=BASELINE.runs * 2))
    for number, node_class in enumerate(("8 x H100", "8-x-H100")):
        lookup = load_references(store, PLAN, node_class, NOW)
        (reference,) = lookup.references
        assert [session.measured for session in reference.sessions] == [timed_baseline(number).measured]


def test_the_newest_session_is_found_across_environments_and_by_commit_first(store: Store, tmp_path: Path) -> None:
    for number in (0, 1):
        store_one(store.root, tmp_path, number)
    newer = timed_baseline(5, environment=OTHER, commit="5" * 40)
    put(store, newer)
    assert newest_session(store, WORKLOAD, CPU, "timed", "9" * 40) == newer
    of_commit = newest_session(store, WORKLOAD, CPU, "timed", BASE.commit)
    assert of_commit is not None
    assert of_commit.measured == timed_baseline(1).measured
    assert newest_session(store, WORKLOAD, "smoke", "timed", BASE.commit) is None


# ---- commands


def test_what_the_commands_print(store: Store, tmp_path: Path) -> None:
    assert "no session is stored" in commands.list_page(commands.list_groups(store))
    with pytest.raises(BaselineError, match="is not a folder: give the folder"):
        verify(store, NOW)
    store_one(store.root, tmp_path, 0)
    move = commands.AnchorMove(
        WORKLOAD,
        BASE.commit[:8],
        "ada",
        "release 1",
        evidence=MoveEvidence(estimate_pct=1.2, low_pct=0.4, high_pct=2.0, pairs=6),
        accepted=Acceptance(who="bob", slowdown_pct=1.2, why="dropless routing"),
    )
    commands.move_anchor(store, move, NOW)
    page = commands.list_page(commands.list_groups(store))
    assert "qwen3-30b-a3b@1/ep  cpu  timed\n  class        a processor, 2 cores\n" in page
    assert "  sessions     1, 2026-01-01T00:00:00Z to 2026-01-01T00:00:00Z\n  anchor       111111111111\n" in page
    assert "unknown: container, variables" in page
    page = commands.anchor_page(commands.find_anchors(store, WORKLOAD))
    assert "  absorbed   +1.2% [+0.4, +2.0] in 6 pairs\n  accepted   +1.2% by bob: dropless routing" in page
    page = commands.verify_page(verify(store, NOW))
    assert page == "the store is sound: 2 sessions, 2 ledgers, 1 anchors"


def test_an_anchor_needs_a_stored_session_of_its_commit(store: Store, tmp_path: Path) -> None:
    store_one(store.root, tmp_path, 0)
    with pytest.raises(BaselineError, match="0 commits with stored sessions begin with 'abcdef': add a"):
        commands.move_anchor(store, commands.AnchorMove(WORKLOAD, "abcdef", "ada", "why"), NOW)
    with pytest.raises(BaselineError, match="no timed session"):
        commands.move_anchor(store, commands.AnchorMove(WORKLOAD, "1", "ada", "why", node_class="8 x H100"), NOW)
