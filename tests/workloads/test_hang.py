"""A run that hangs tells where its ranks were: real gloo ranks that hang, and files that say anything at all."""

import os
from pathlib import Path

import pytest

from regbot.records.hang import Collective, Hang
from regbot.workloads.hang import read_hang
from support.guest_runs import SCRIPTS, Shared, run_script

FAULTS = ("sleep", "backward", "lock")


@pytest.fixture
def hung(shared: Shared) -> Path:
    """What two gloo ranks leave for each fault, all at the same time."""

    def hang(folder: Path) -> None:
        run_script("hanging.py", folder, *FAULTS)

    return shared("hung ranks", hang)


def of(hung: Path, fault: str) -> Hang:
    return read_hang(hung / fault, 2, SCRIPTS)


def test_real_ranks_are_quoted_by_their_line_and_their_last_collective(hung: Path) -> None:
    waits, sleeps = of(hung, "sleep").ranks
    assert waits.last == Collective(name="gloo:all_to_all", group="ep", number=5, state="scheduled")
    assert sleeps.last == Collective(name="gloo:all_to_all", group="ep", number=4, state="completed")
    assert (waits.code_frame and waits.code_frame.function) == "forward"
    assert (sleeps.code_frame and sleeps.code_frame.function) == "sleep_in_expert"
    waits, sleeps = of(hung, "backward").ranks
    assert waits.last is not None
    assert waits.last.number == 6
    assert (sleeps.code_frame and sleeps.code_frame.function) == "sleep_in_expert"


def test_a_rank_that_holds_the_interpreters_lock_is_quoted_by_its_stack_alone(hung: Path) -> None:
    waits, stuck = of(hung, "lock").ranks
    assert waits.last is not None
    assert stuck.last is None
    assert (stuck.code_frame and stuck.code_frame.function) == "stuck_in_c"


@pytest.mark.parametrize("flight", [b"null", b"\x80\x04cos\nsystem\n(S'true'\ntR."])
def test_files_that_no_rank_wrote_are_ignored(flight: bytes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(
        f'main 0x0000000000000001\nThread 0x0001 (most recent call first):\n  File "{tmp_path}/s", line 1 in s\n'
    )
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "stacks.0").symlink_to(secret)
    os.mkfifo(folder / "stacks.1")
    (folder / "stacks.2").write_bytes(b"main 0x0000000000000001\nThread 0x0001 (x):\n\xff\x00" + flight)
    (folder / "flight.0").write_bytes(flight)
    found = read_hang(folder, 3, tmp_path)
    assert [(rank.code_frame, rank.last) for rank in found.ranks] == [(None, None)] * 3
    assert [rank.answered for rank in found.ranks] == [False, False, False]
