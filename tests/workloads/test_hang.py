"""A run that hangs tells where its ranks were: real gloo ranks that hang, and files that say anything at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from regbot.records.hang import Collective, Hang
from regbot.workloads.hang import read_hang
from regbot_guest import flight_recorder
from support.guest_runs import SCRIPTS, Shared, run_script

FAULTS = ("sleep", "backward", "stop", "lock", "absent")


@pytest.fixture
def hung(shared: Shared) -> Path:
    """What two gloo ranks leave for each fault, all at the same time."""

    def hang(folder: Path) -> None:
        run_script("hanging.py", folder, *FAULTS)

    return shared("hung ranks", hang)


def of(hung: Path, fault: str) -> Hang:
    return read_hang(hung / fault, 2, ["n1", "n2"], SCRIPTS)


def test_real_ranks_are_quoted_by_their_line_and_their_last_collective(hung: Path) -> None:
    waits, sleeps = of(hung, "sleep").ranks
    assert waits.last == Collective(name="gloo:all_to_all", group="ep", number=5, state="scheduled")
    assert sleeps.last == Collective(name="gloo:all_to_all", group="ep", number=4, state="completed")
    assert (waits.code_frame and waits.code_frame.function) == "forward"
    assert (sleeps.code_frame and sleeps.code_frame.function) == "sleep_in_expert"
    waits, sleeps = of(hung, "backward").ranks
    assert waits.last is not None
    assert waits.last.number == 6
    assert [frame.function for frame in sleeps.frames][:3] == ["sleep_in_expert", "fault", "backward"]


def test_a_rank_that_holds_the_interpreters_lock_is_quoted_by_its_stack_alone(hung: Path) -> None:
    waits, stuck = of(hung, "lock").ranks
    assert waits.last is not None
    assert stuck.last is None
    assert stuck.frames[0].function == "stuck_in_c"


def test_the_newest_call_of_all_groups_and_libraries_is_the_last() -> None:
    def call(group: str, number: int, time: int, **more: object) -> dict[str, object]:
        return {
            "process_group": ["7", group], "collective_seq_id": number, "profiling_name": "nccl:all_to_all",
            "time_created_ns": time, "state": "scheduled", "retired": False, **more,
        }  # fmt: skip

    def dump(*calls: object) -> Callable[[], bytes]:
        return lambda: json.dumps({"entries": calls}).encode()

    def last(nccl: list[object], gloo: list[object]) -> dict[str, object] | None:
        torch_has = SimpleNamespace(_dump_nccl_trace_json=dump(*nccl), _dump_fr_trace_json=dump(*gloo))
        return flight_recorder.read_last_call(torch_has)

    name = "nccl:all_to_all"
    ended, of_default = call("dp", 1, 25, retired=True), call("undefined", 9, 30, is_p2p=True)
    assert last([], []) is None
    assert last([call("ep", 4, 10)], [ended]) == {"name": name, "group": "dp", "number": 1, "state": "completed"}
    assert last([of_default], [ended]) == {"name": name, "group": "7", "number": 0, "state": "scheduled"}


@pytest.mark.parametrize(
    "flight",
    [
        b"null",
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_files_that_no_rank_wrote_are_ignored(flight: bytes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('main 0x0000000000000001\nThread 0x0001 (most recent call first):\n  File "s", line 1 in s\n')
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "stacks.0").symlink_to(secret)
    os.mkfifo(folder / "stacks.1")
    (folder / "stacks.2").write_bytes(b"main 0x0000000000000001\nThread 0x0001 (x):\n\xff\x00" + flight)
    (folder / "flight.0").write_bytes(flight)
    found = read_hang(folder, 3, [], tmp_path)
    assert [(rank.frames, rank.last) for rank in found.ranks] == [([], None)] * 3
    assert [rank.answered for rank in found.ranks] == [False, False, True]
