"""The index of the store: query results always match the files, whatever happens to the index or the files."""

import hashlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from regbot.baselines import commands, database, index
from regbot.baselines.history import history
from regbot.baselines.index import FOLDER
from regbot.baselines.query import RollingReference, load_rolling_reference, stored_ledger
from regbot.baselines.store import BaselineError, Store, record_digest
from regbot.baselines.verify import verify
from regbot.records.baseline import Baseline
from support.baseline_builder import CPU, make_query, put, timed_baseline
from support.baseline_cases import NOW, fork, store_one
from support.git_repos import Repository
from support.ledger_builder import WORKLOAD, smoke_ledger
from support.timed_builder import BASE

SESSIONS = 12
STABLE_AGE_NS = 10**8


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the assumed clock tick: the file system of the tests has ticks of a few milliseconds."""
    monkeypatch.setattr(index, "STABLE_AGE_NS", STABLE_AGE_NS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with some sessions that are not indexed yet."""
    result = Store(tmp_path / "baselines")
    put(result, *(timed_baseline(number) for number in range(SESSIONS)))
    return result


def measured(store: Store, last: int = 40) -> list[str]:
    """Return the times of the sessions in the rolling reference, read with a new store object."""
    asking = Store(store.root)
    result = load_rolling_reference(asking, make_query(), NOW, limit=last)
    asking.index.close()
    assert isinstance(result, RollingReference)
    return [session.measured for session in result.sessions]


def expected(*numbers: int) -> list[str]:
    return [timed_baseline(number).measured for number in numbers]


def only_folder(store: Store) -> PurePosixPath:
    (result,) = store.groups()
    return result


def database_file(store: Store) -> Path:
    (result,) = (store.root / FOLDER).glob("*/sessions.sqlite")
    return result


def problems(store: Store) -> list[str]:
    """Return problems of sessions. Their ledgers are not stored in these tests."""
    return [problem for problem in verify(store, NOW).problems if "its ledger" not in problem]


def settle(store: Store) -> None:
    """Wait until later changes of a folder have another ctime."""
    youngest = max((store.root / group).stat().st_ctime_ns for group in store.groups())
    time.sleep(max(0, STABLE_AGE_NS - (time.time_ns() - youngest)) / 1e9 + 0.01)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that the index opened, and of the folders that it listed."""
    result: list[str] = []
    read_row, names = Store._index_row, Store._session_names

    def read(self: Store, path: PurePosixPath) -> object:
        result.append(path.name)
        return read_row(self, path)

    def listed(self: Store, group: PurePosixPath) -> list[str]:
        result.append("names")
        return names(self, group)

    monkeypatch.setattr(Store, "_index_row", read)
    monkeypatch.setattr(Store, "_session_names", listed)
    return result


# ---- avoided reads


def test_a_file_is_opened_once_and_a_stable_folder_is_not_listed(store: Store, opened: list[str]) -> None:
    assert measured(store) == expected(*range(SESSIONS))
    assert sorted(opened).count("names") >= 1
    assert len({*opened} - {"names"}) == len([name for name in opened if name != "names"]) == SESSIONS
    opened.clear()
    assert measured(store) == expected(*range(SESSIONS))
    assert {*opened} == {"names"}, "the files changed a moment ago: names are listed again"
    settle(store)
    measured(store)
    opened.clear()
    assert measured(store) == expected(*range(SESSIONS))
    assert commands.list_groups(Store(store.root)).groups[0].sessions == SESSIONS
    assert commands.find_session(Store(store.root), record_digest(timed_baseline(3))[:10])[1] == timed_baseline(3)
    assert opened == []


def test_added_sessions_are_indexed_without_being_read_again(store: Store, opened: list[str]) -> None:
    assert len(measured(store)) == SESSIONS
    store = Store(store.root)
    for number in range(SESSIONS, SESSIONS + 5):
        opened.clear()
        store.add([timed_baseline(number)], {})
        assert opened == []
    assert measured(store) == expected(*range(SESSIONS + 5))
    assert {*opened} == {"names"}


# ---- other writers


def add_by_hand(store: Store) -> list[int]:
    put(store, timed_baseline(50))
    return [*range(SESSIONS), 50]


def delete_by_hand(store: Store) -> list[int]:
    (store.root / only_folder(store) / f"{record_digest(timed_baseline(4))}.json").unlink()
    return [*range(4), *range(5, SESSIONS)]


def delete_all(store: Store) -> list[int]:
    for path in store.sessions(only_folder(store)):
        (store.root / path).unlink()
    put(store, timed_baseline(50))
    return [50]


def replace_folder(store: Store) -> list[int]:
    folder = store.root / only_folder(store)
    folder.rename(folder.with_name("gone"))
    put(store, timed_baseline(51), timed_baseline(52))
    shutil.rmtree(folder.with_name("gone"))
    return [51, 52]


def turn_back_the_clock_of_the_folder(store: Store) -> list[int]:
    folder = store.root / only_folder(store)
    before = folder.stat()
    numbers = add_by_hand(store)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [add_by_hand, delete_by_hand, delete_all, replace_folder, turn_back_the_clock_of_the_folder]
)
@pytest.mark.parametrize("settled", [False, True])
def test_external_changes_are_visible_at_once(
    store: Store, change: Callable[[Store], list[int]], settled: bool
) -> None:
    if settled:
        settle(store)
    assert measured(store) == expected(*range(SESSIONS))
    numbers = change(store)
    assert measured(store) == expected(*numbers)
    assert measured(store) == measured(store)


def test_merged_sessions_are_indexed_and_git_ignores_the_index(tmp_path: Path) -> None:
    origin = Repository.create(tmp_path / "origin")
    store = Store(origin.path / "baselines")
    put(store, *(timed_baseline(number) for number in range(3)))
    origin.commit("baselines")
    clone = origin.clone_to(tmp_path / "clone")
    other = Store(clone.path / "baselines")
    assert measured(other) == expected(0, 1, 2)
    assert clone.git("status", "--porcelain") == ""
    put(store, timed_baseline(3))
    (store.root / only_folder(store) / f"{record_digest(timed_baseline(0))}.json").unlink()
    origin.commit("refresh")
    clone.git("pull", "-q")
    assert measured(other) == expected(1, 2, 3)
    assert database_file(other).exists()
    assert problems(other) == []


@pytest.mark.parametrize("within_a_tick", [False, True])
def test_a_session_that_was_deleted_is_stored_again(
    store: Store, within_a_tick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if within_a_tick:
        monkeypatch.setattr(index, "_folder_stamp", lambda folder: ("always the same", time.time_ns()))
    adds = Store(store.root)
    (path,) = adds.add([timed_baseline(4)], {})
    (store.root / path).unlink()
    assert adds.add([timed_baseline(4)], {}) == [path]
    assert store.session(path) == timed_baseline(4)


# ---- damage to the index


def scribble(store: Store) -> None:
    file = database_file(store)
    data = bytearray(file.read_bytes())
    for at in range(1000, len(data), 97):
        data[at] ^= 0xFF
    file.write_bytes(data)


def without_tables(store: Store) -> None:
    with sqlite3.connect(database_file(store)) as db:
        db.execute("DROP TABLE sessions")


def in_its_place(text: str) -> Callable[[Store], None]:
    """Put a file or a link in place of the index folder."""

    def spoil(store: Store) -> None:
        shutil.rmtree(store.root / FOLDER)
        if text == "link":
            (store.root.parent / "precious" / "folder").mkdir(parents=True)
            (store.root / FOLDER).symlink_to(store.root.parent / "precious")
        else:
            (store.root / FOLDER).write_text(text)

    return spoil


FAULTS: dict[str, Callable[[Store], object]] = {
    "deleted": lambda store: shutil.rmtree(store.root / FOLDER),
    "its database deleted": lambda store: database_file(store).unlink(),
    "empty": lambda store: database_file(store).write_bytes(b""),
    "no database": lambda store: database_file(store).write_text("not a database, but more than a hundred bytes " * 9),
    "truncated": lambda store: os.truncate(database_file(store), database_file(store).stat().st_size // 2),
    "scribbled on": scribble,
    "without its tables": without_tables,
    "a journal of another": lambda store: Path(f"{database_file(store)}-wal").write_bytes(os.urandom(100_000)),
    "seen by git in part": lambda store: (store.root / FOLDER / ".gitignore").write_text(""),
    "seen by git": lambda store: (store.root / FOLDER / ".gitignore").unlink(),
    "a file in its place": in_its_place("mine"),
    "a link in its place": in_its_place("link"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_index_changes_no_query_and_no_add(store: Store, fault: str) -> None:
    assert measured(store) == expected(*range(SESSIONS))
    FAULTS[fault](store)
    assert measured(store) == expected(*range(SESSIONS))
    if "place" not in fault:
        FAULTS[fault](store)
    adds = Store(store.root)
    (path,) = adds.add([timed_baseline(30)], {})
    adds.index.close()
    assert store.session(path) == timed_baseline(30)
    assert measured(store) == expected(*range(SESSIONS), 30)
    assert problems(store) == []
    if "place" not in fault:
        assert (store.root / FOLDER / ".gitignore").read_text() == "*\n"
        with sqlite3.connect(database_file(store)) as db:
            assert db.execute("SELECT count(*) FROM sessions").fetchone() == (SESSIONS + 1,), "it was made again"
    elif fault == "a link in its place":
        assert [*(store.root.parent / "precious").iterdir()] == [store.root.parent / "precious" / "folder"]


def test_an_index_of_another_version_is_replaced(store: Store) -> None:
    measured(store)
    now = database_file(store).parent
    now.rename(now.with_name("0123abcd-1"))
    (store.root / FOLDER / "stray").write_text("x")
    assert measured(store) == expected(*range(SESSIONS))
    assert sorted(path.name for path in (store.root / FOLDER).iterdir()) == sorted([".gitignore", now.name])


def lie(store: Store) -> None:
    """Make the index hide the newer half of the sessions by false old times."""
    measured(store)
    with sqlite3.connect(database_file(store)) as db:
        db.execute("UPDATE sessions SET measured = '2001' || substr(measured, 5) WHERE measured > ?", expected(6))


def test_a_foreign_index_is_never_opened(store: Store, tmp_path: Path) -> None:
    """A pull request could add such an index with ``git add -f``."""
    settle(store)
    lie(store)
    with pytest.raises(BaselineError, match=r"differs from its index entry: delete .index"):
        measured(store)
    origin = Repository.create(tmp_path / "origin")
    shutil.copytree(store.root, origin.path / "baselines")
    origin.git("add", "-f", "baselines")
    origin.commit("with an index")
    assert any(FOLDER in line and "sqlite" in line for line in origin.git("ls-files").splitlines())
    clone = origin.clone_to(tmp_path / "clone")
    for copy in (origin, clone):
        assert measured(Store(copy.path / "baselines")) == expected(*range(SESSIONS))
    shutil.copytree(store.root, tmp_path / "copied")
    subprocess.run(["cp", "-a", str(store.root), str(tmp_path / "archived")], check=True)
    assert measured(Store(tmp_path / "copied")) == expected(*range(SESSIONS))
    assert measured(Store(tmp_path / "archived")) == expected(*range(SESSIONS))


def test_no_index_is_written_on_a_nearly_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MIN_FREE_BYTES", 2**62)
    assert measured(store) == expected(*range(SESSIONS))
    assert not (store.root / FOLDER).exists()


def test_a_store_without_sessions_has_no_index(tmp_path: Path) -> None:
    store = Store(tmp_path / "baselines")
    assert commands.list_groups(store).groups == []
    assert stored_ledger(store, WORKLOAD, CPU, "timed") is None
    assert not store.root.exists()


# ---- concurrency


def test_a_locked_database_breaks_neither_a_query_nor_an_add(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.02)
    measured(store)
    opened_before = Store(store.root)
    assert opened_before.index.span(only_folder(store))
    busy = sqlite3.connect(database_file(store), isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    put(store, timed_baseline(40))
    assert measured(store) == expected(*range(SESSIONS), 40)
    for number, writer in ((41, opened_before), (42, Store(store.root))):
        (path,) = writer.add([timed_baseline(number)], {})
        assert store.session(path) == timed_baseline(number)
    assert measured(store) == expected(*range(SESSIONS), 40, 41, 42)
    busy.execute("COMMIT")
    assert measured(store) == expected(*range(SESSIONS), 40, 41, 42)
    with sqlite3.connect(database_file(store)) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (SESSIONS + 3,)


def test_writers_and_readers_at_the_same_time_agree_in_the_end(tmp_path: Path) -> None:
    root = tmp_path / "baselines"

    def write(first: int) -> None:
        for number in range(first, first + 20):
            store_one(root, tmp_path, number)

    def read(_: int) -> None:
        last = 0
        while last < 10:
            result = load_rolling_reference(Store(root), make_query(), NOW)
            now = len(result.sessions) if isinstance(result, RollingReference) else 0
            assert now >= last, "what was seen is not lost"
            last = now

    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=do, args=(first,)) for do, first in ((write, 0), (write, 10), (read, 0), (read, 0))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert measured(Store(root)) == expected(*range(30))
    assert problems(Store(root)) == []


def test_a_slow_reader_does_not_remove_newer_index_entries(store: Store) -> None:
    folder = only_folder(store)
    other = Store(store.root)
    slow = Store(store.root)
    listed = slow.index._list_names

    def dawdle(group: PurePosixPath) -> list[str]:
        names = list(listed(group))
        if slow.index._list_names is dawdle:
            slow.index._list_names = listed
            put(other, timed_baseline(40))
            assert len(measured(other)) == SESSIONS + 1
        return names

    slow.index._list_names = dawdle
    slow.index.span(folder)
    with sqlite3.connect(database_file(store)) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (SESSIONS + 1,)


def test_the_index_works_in_a_process_and_its_forked_child(store: Store) -> None:
    folder = only_folder(store)
    assert store.index.span(folder)
    connected: list[str] = []

    def ask(writing: int) -> None:
        sys.addaudithook(lambda event, _: connected.append(event) if event == "sqlite3.connect" else None)
        store.add([timed_baseline(60)], {})
        os.write(writing, f"{store.index.span(folder)}, {len(connected)} connection\n".encode())

    child, reading = fork(ask)
    with os.fdopen(reading) as pipe:
        output = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    result = store.index.span(folder)
    assert result is not None
    assert result.sessions == SESSIONS + 1
    assert output == f"{result}, 1 connection\n", "the parent's is not used"


# ---- broken sessions


def test_a_broken_session_is_an_error_for_its_users_until_it_is_restored(store: Store) -> None:
    path = store.root / only_folder(store) / f"{record_digest(timed_baseline(2))}.json"
    good = path.read_text()
    path.write_text(good.replace('"log_median": -', '"log_median": -1').replace("2026-01-01T02", "2026-01-01T01"))
    settle(store)
    for ask in (measured, lambda store: measured(store, last=5), lambda store: history(store, WORKLOAD, now=NOW)):
        with pytest.raises(BaselineError, match="was edited"):
            ask(store)
    assert any("was edited" in problem for problem in verify(store, NOW).problems)
    path.write_text(good)
    assert measured(store) == expected(*range(SESSIONS))
    assert history(store, WORKLOAD, now=NOW).trends[0].series[0].sessions == SESSIONS


def test_a_session_broken_after_indexing_is_never_used(store: Store) -> None:
    settle(store)
    measured(store)
    path = store.root / only_folder(store) / f"{record_digest(timed_baseline(2))}.json"
    path.write_text(path.read_text().replace('"log_median": -', '"log_median": -1'))
    with pytest.raises(BaselineError, match="was edited"):
        measured(store)


def test_a_session_with_unreadable_scalars_fails_every_query(store: Store) -> None:
    path = store.root / only_folder(store) / f"{record_digest(timed_baseline(2))}.json"
    path.write_text(path.read_text()[:200])
    for ask in (measured, lambda store: commands.list_groups(store), lambda store: store.add([timed_baseline(3)], {})):
        with pytest.raises(BaselineError, match="is truncated after 200 bytes"):
            ask(store)


def test_a_link_among_the_sessions_is_not_followed(store: Store, tmp_path: Path) -> None:
    (store.root / only_folder(store) / f"{'0' * 64}.json").symlink_to("/dev/zero")
    with pytest.raises(BaselineError, match="is not a regular file"):
        measured(store)


def test_values_that_sqlite_cannot_store_do_no_harm(store: Store) -> None:
    folder = store.root / only_folder(store)
    document = timed_baseline(20).model_dump(by_alias=True)
    for wrong in ({"steps": 10**30}, {"executed": "\ud800"}):
        text = json.dumps(document | wrong, indent=1) + "\n"
        (folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json").write_text(text)
    assert store.index.span(only_folder(store)) == (SESSIONS + 2, *expected(0, 20))
    (refused, loose) = (
        row for row in store.index.newest_first(only_folder(store)) if row.scalars["measured"] > expected(19)[0]
    )
    assert refused.sound != loose.sound


# ---- batches


def test_many_sessions_are_stored_in_one_go_and_each_once(store: Store) -> None:
    ledger = smoke_ledger(variant=CPU)
    many = [timed_baseline(number, ledger=record_digest(ledger)) for number in range(20, 50)]
    again = many[0].model_copy(update={"provenance": many[0].provenance.model_copy(update={"who": "eve"})})
    paths = store.add([*many, again], {record_digest(ledger): ledger})
    assert paths[0] == paths[-1]
    assert [store.session(path) for path in paths[:-1]] == many
    assert store.add(many, {}) == paths[:-1]
    assert problems(store) == []
    other = many[0].model_copy(update={"runs": many[0].runs[:1], "session": "9" * 64})
    with pytest.raises(BaselineError, match=r"has the same session .* with 1 runs, and the new one has 2"):
        store.add([other, other.model_copy(update={"runs": many[0].runs})], {})
    assert not any(session.session == "9" * 64 for session in map(store.session, store.sessions(only_folder(store))))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record file operations in order: renames and syncs."""
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def named(self: Path, target: Path) -> Path:
        done.append((str(self), str(target)))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", named)
    return done


def test_added_sessions_are_on_disk_and_each_folder_is_synced_once(store: Store, disk: list[tuple[str, str]]) -> None:
    ledger = smoke_ledger(variant=CPU)
    store.add([timed_baseline(19)], {})
    disk.clear()
    paths = store.add(
        [timed_baseline(number, ledger=record_digest(ledger)) for number in range(20, 30)],
        {record_digest(ledger): ledger},
    )
    names = {target: (number, source) for number, (source, target) in enumerate(disk) if source != "sync"}
    assert {*names} == {str(store.root / path) for path in paths} | {
        str(store.root / "ledgers" / f"{record_digest(ledger)}.json")
    }
    for target, (number, source) in names.items():
        assert ("sync", source) in disk[:number], "its content before its name"
        assert ("sync", str(Path(target).parent)) in disk[number:], "its name after it was given"
    folder = ("sync", str(store.root / paths[0].parent))
    assert disk.count(folder) == 1
    ledgers = disk.index(("sync", str(store.root / "ledgers")))
    assert all(ledgers < number for target, (number, _) in names.items() if "ledgers" not in target)


def test_the_index_has_the_scalars_of_a_session_file(store: Store) -> None:
    folder = only_folder(store)
    result = [*store.index.newest_first(folder)]
    assert [row.scalars["measured"] for row in result] == expected(*reversed(range(SESSIONS)))
    for row in result:
        scalars = store.read_scalars(folder / row.name)
        assert row.scalars == {name: scalars[name] for name in row.scalars}
        whole: Baseline = store.session(folder / row.name)
        assert row.runs == len(whole.runs) == 2
        assert row.log_median == pytest.approx(sum(run.log_median for run in whole.runs) / 2)
    four = timed_baseline(40, runs=[whole.runs[0]] * 3 + [whole.runs[1]])
    store.add([four], {})
    newest = next(store.index.newest_first(folder))
    assert newest.log_median == pytest.approx(whole.runs[0].log_median)
    assert newest.scalars["commit"] == BASE.commit
