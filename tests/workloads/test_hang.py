"""A run that hangs tells who was where: real gloo ranks that hang in every way, and files that say anything at all."""

import faulthandler
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from regbot.records.hang import Collective, Frame, Hang, RankHang
from regbot.workloads import hang as reader
from regbot.workloads.hang import read_hang, read_notes, read_stacks
from regbot.workloads.hang_text import describe_waiting
from regbot_guest import flight_recorder, hang_recorder
from support.guest_runs import SCRIPTS, Shared, run_script

FAULTS = ("sleep", "backward", "kind", "group", "stop", "lock", "absent", "late", "functional")


@pytest.fixture
def hung(shared: Shared) -> Path:
    """What two gloo ranks leave for each fault, all at the same time."""

    def hang(folder: Path) -> None:
        run_script("hanging.py", folder, *FAULTS)

    return shared("hung ranks", hang)


def of(hung: Path, fault: str) -> Hang:
    return read_hang(hung / fault, 2, ["n1", "n2"], SCRIPTS)


# ---- real ranks


@pytest.mark.slow
def test_a_rank_that_sleeps_in_its_expert_is_the_one_the_others_wait_for(hung: Path) -> None:
    found = of(hung, "sleep")
    waits, sleeps = found.ranks
    assert found.text.startswith("rank 0 (n1) waits in all_to_all #5 of ep (1.1) since ")
    assert "; rank 1 (n2) has not begun it: it is in hanging.py:" in found.text
    assert "sleep_in_expert (1.1)" in found.text
    assert waits.inside is not None
    assert (waits.inside.kind, waits.inside.number, waits.inside.bytes) == ("all_to_all", 5, 4 * 8 * 4)
    assert 1 < (waits.inside_s or 0) < 6
    assert (sleeps.inside, sleeps.issued) == (None, {"ep [0,1]": 4})


@pytest.mark.slow
def test_a_rank_that_sleeps_in_backward_is_located_there(hung: Path) -> None:
    assert "rank 0 (n1) waits in all_to_all #6 of ep" in of(hung, "backward").text
    assert [frame.function for frame in of(hung, "backward").ranks[1].frames][:3] == [
        "sleep_in_expert",
        "fault",
        "backward",
    ]


def test_collectives_of_different_kinds_are_set_side_by_side(hung: Path) -> None:
    text = of(hung, "kind").text
    assert text.startswith("different collectives: rank 0 (n1) in all_to_all #5 of ep (hanging.py:"), text
    assert "rank 1 (n2) in all_gather #5 of ep (hanging.py:" in text


def test_ranks_that_wait_for_each_other_in_two_groups_are_set_side_by_side(hung: Path) -> None:
    text = of(hung, "group").text
    assert text.startswith("different collectives: rank 0 (n1) in all_to_all #5 of ep"), text
    assert "rank 1 (n2) in all_reduce #1 of default_pg" in text


def test_a_stopped_rank_leaves_no_stacks_and_is_named_by_its_last_collective(hung: Path) -> None:
    text = of(hung, "stop").text
    assert "rank 1 (n2) has not begun it: it did not write its stacks in time (it is stopped" in text
    assert "after all_to_all #4 of ep" in text


def test_a_rank_stuck_in_c_with_the_interpreters_lock_still_writes_its_stacks(hung: Path) -> None:
    assert "rank 1 (n2) has not begun it: it is in hanging.py:" in of(hung, "lock").text
    assert of(hung, "lock").ranks[1].frames[0].function == "stuck_in_c"


def test_a_rank_that_never_began_has_left_no_sign(hung: Path) -> None:
    assert of(hung, "absent").text == (
        "rank 1 (n2) left no sign (never began, or its files have not arrived); rank 0 (n1) waits for all ranks to join"
    )


def test_a_rank_that_began_and_never_joined_is_located(hung: Path) -> None:
    text = of(hung, "late").text
    assert text.startswith("rank 0 (n1) waits for all ranks to join; rank 1 (n2) has not joined: it is in hanging.py:")
    assert "rank_of" in text


def test_a_collective_that_torch_issued_from_c_is_named_by_the_flight_recorder(hung: Path) -> None:
    found = of(hung, "functional")
    assert found.text.startswith("no rank waits for another in a collective that Python issued")
    assert found.text.endswith(
        "; last launched by torch's Flight Recorder: rank 0 (n1) all_reduce #7 of ep (launched), "
        "rank 1 (n2) all_to_all #6 of ep (ended)"
    )
    assert found.ranks[0].flight == Collective(
        kind="all_reduce", group="ep", number=7, state="launched", backend="gloo"
    )


def test_a_rank_that_holds_the_interpreters_lock_leaves_no_flight_recorder(hung: Path) -> None:
    assert [rank.flight is None for rank in of(hung, "lock").ranks] == [False, True]


@pytest.mark.parametrize(
    "calls",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"[1]",
        b'[{"name": "nccl:all_reduce"}]',
        b'[{"name": "nccl:all_reduce", "group": "ep", "number": -1, "state": "started"}]',
        b'[{"name": "nccl:all_reduce", "group": "ep", "number": "1", "state": "started"}]',
        b'[{"name": "nccl:all_reduce", "group": "ep", "number": 1, "state": ["started"]}]',
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_calls_that_torch_did_not_write_are_ignored(calls: bytes) -> None:
    assert reader.read_flight(calls) is None


def test_calls_of_nccl_have_kind_group_number_and_state() -> None:
    call = b'[{"name": "nccl:_reduce_scatter_base", "group": "ep\\u001b[31m", "number": 12, "state": "started"}]'
    assert reader.read_flight(call) == Collective(
        kind="reduce_scatter", group="ep", number=12, state="started", backend="nccl"
    )


def test_a_flight_recorder_that_is_off_by_default_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in flight_recorder.BUFFER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that the value is restored after the test
        monkeypatch.delenv(name)
    old, new = SimpleNamespace(_dump_nccl_trace_json=None), SimpleNamespace(_dump_fr_trace_json=None)
    for torch_has, name in ((old, "TORCH_NCCL_TRACE_BUFFER_SIZE"), (new, "TORCH_FR_BUFFER_SIZE")):
        flight_recorder.switch_on(torch_has)
        assert os.environ[name] == "2000"
        monkeypatch.setenv(name, "10")
        flight_recorder.switch_on(torch_has)
        assert os.environ[name] == "10", "the user's size stays"
        monkeypatch.delenv(name)


def test_the_newest_call_of_all_groups_and_libraries_comes_first() -> None:
    def call(group: str, number: int, time: int, **more: object) -> dict[str, object]:
        return {
            "process_group": ["7", group], "collective_seq_id": number, "profiling_name": "nccl:all_to_all",
            "time_created_ns": time, "state": "scheduled", "retired": False, **more,
        }  # fmt: skip

    def dump(*calls: object) -> Callable[[], bytes]:
        return lambda: json.dumps({"entries": calls}).encode()

    torch_has = SimpleNamespace(
        _dump_nccl_trace_json=dump(call("ep", 4, 10), call("undefined", 9, 30), call("ep", 5, 20, is_p2p=True)),
        _dump_fr_trace_json=dump(call("dp", 1, 25, retired=True)),
    )
    calls = flight_recorder.read_latest_calls(torch_has)
    assert [(call["group"], call["number"], call["state"]) for call in calls] == [
        ("7", 9, "scheduled"),
        ("dp", 1, "completed"),
        ("ep", 0, "scheduled"),
        ("ep", 4, "scheduled"),
    ]


def test_a_single_host_is_not_named(hung: Path) -> None:
    assert read_hang(hung / "sleep", 2, ["n1"], SCRIPTS).text.startswith("rank 0 waits in")


# ---- the odd one out, of many ranks


def inside(number: int, kind: str = "all_to_all", group: str = "ep", ranks: Sequence[int] = range(4), **more: object):  # type: ignore[no-untyped-def]
    return Collective(
        kind=kind,
        group=f"{group} [x]",
        ranks=list(ranks),
        number=number,
        state="launched",
        backend="gloo",
    ).model_copy(update=more)


def rank(number: int, waits: Collective | None, issued: dict[str, int] | None = None, **more: object) -> RankHang:
    return RankHang(
        rank=number,
        started=True,
        answered=True,
        inside=waits,
        inside_s=None if waits is None else 41.0,
        recent=[] if waits is None else [waits],
        issued=issued or ({waits.group: waits.number} if waits is not None else {}),
    ).model_copy(update=more)


AT = Frame(file="experts.py", line=88, function="forward")


def test_the_rank_that_has_not_begun_what_the_others_wait_in_is_named() -> None:
    ranks = [rank(n, inside(120), module="layers.1.moe") for n in (0, 2, 3)]
    ranks.insert(1, rank(1, None, {"ep [x]": 119}, code_frame=AT))
    assert describe_waiting(ranks) == (
        "ranks 0, 2, 3 wait in all_to_all #120 of ep (layers.1.moe) since 41 s; "
        "rank 1 has not begun it: it is in experts.py:88 forward"
    )


def test_of_a_chain_the_rank_that_waits_for_nobody_is_named() -> None:
    """0 waits for 1 in dp, 1 for 2 in ep, 2 for nobody."""
    ranks = [
        rank(0, inside(7, group="dp", ranks=[0, 1])),
        rank(1, inside(3, group="ep", ranks=[1, 2]), {"ep [x]": 3, "dp [x]": 6}),
        rank(2, None, {"ep [x]": 2}, code_frame=AT),
    ]
    assert describe_waiting(ranks).endswith("rank 2 has not begun it: it is in experts.py:88 forward")


def test_where_all_are_in_the_same_collective_nobody_is_to_blame() -> None:
    text = describe_waiting([rank(n, inside(57)) for n in range(4)])
    assert text == (
        "all ranks are in the same collective all_to_all #57 of ep since 41 s: one of them waits for the network"
    )


def test_different_sizes_of_one_collective_are_reported() -> None:
    text = describe_waiting([rank(n, inside(57, "all_reduce", bytes=100 + n, ranks=[0, 1])) for n in range(2)])
    assert text.endswith("with different sizes: rank 0 100 bytes, rank 1 101 bytes")


def test_a_collective_of_a_device_has_been_launched_and_nothing_is_claimed_of_its_end() -> None:
    ranks = [
        rank(0, None, {"ep [x]": 9}, recent=[inside(9, ranks=[0, 1], backend="nccl")]),
        rank(1, None, {"ep [x]": 8}, recent=[inside(8, ranks=[0, 1], backend="nccl")], code_frame=AT),
    ]
    assert describe_waiting(ranks) == (
        "rank 0 has launched all_to_all #9 of ep; rank 1 has not begun it: it is in experts.py:88 forward"
    )


def test_a_rank_that_waits_for_its_device_in_the_code_under_test_is_not_to_blame() -> None:
    """The host of rank 0 reads a value that its device computes after the collective."""
    ranks = [
        rank(0, None, {"ep [x]": 9}, recent=[inside(9, ranks=[0, 1], backend="nccl")], code_frame=AT),
        rank(1, None, {"ep [x]": 8}, recent=[inside(8, ranks=[0, 1], backend="nccl")], code_frame=AT),
    ]
    assert describe_waiting(ranks) == (
        "rank 0 has launched all_to_all #9 of ep; rank 1 has not begun it: it is in experts.py:88 forward"
    )


def test_a_collective_that_all_ranks_have_launched_is_not_what_a_rank_in_its_own_code_waits_for() -> None:
    launched = [inside(9, ranks=[0, 1], backend="nccl")]
    ranks = [rank(n, None, {"ep [x]": 9}, recent=launched, code_frame=AT) for n in range(2)]
    assert describe_waiting(ranks).startswith("no rank waits for another in a collective that Python issued")


def test_sends_and_receives_have_no_common_order_and_blame_nobody() -> None:
    ranks = [rank(n, inside(0, "send_recv"), {"ep [x]": 4}, code_frame=AT) for n in range(2)]
    assert describe_waiting(ranks).startswith(
        "no rank waits for another in a collective that Python issued: ranks 0, 1 are"
    )


def test_many_ranks_are_listed_as_ranges() -> None:
    ranks = [rank(n, inside(5, ranks=range(64))) for n in range(63)] + [rank(63, None, {"ep [x]": 4}, code_frame=AT)]
    assert describe_waiting(ranks).startswith(
        "ranks 0-62 wait in all_to_all #5 of ep since 41 s; rank 63 has not begun it"
    )


# ---- files that anybody may have written


def test_the_guest_writes_what_the_reader_reads() -> None:
    for name in (
        "MAGIC",
        "FILE_BYTES",
        "KINDS",
        "HEADER_OFFSET",
        "DUMP_TIME_OFFSET",
        "GROUP_COUNT_OFFSET",
        "MODULE_OFFSET",
        "GROUP_TABLE_OFFSET",
        "SLOT_TABLE_OFFSET",
    ):
        assert getattr(reader, name) == getattr(hang_recorder, name), name
    for name in ("HEADER", "UINT64", "GROUP", "SLOT"):
        assert getattr(reader, name).format == getattr(hang_recorder, name).format, name
    numbers = (hang_recorder.ISSUING, hang_recorder.LAUNCHED, hang_recorder.WAITED)
    assert dict(zip(numbers, ("issuing", "launched", "ended"), strict=True)) == reader.STATES
    assert (reader.MODULE_BYTES, reader.MAX_GROUPS, reader.NUM_SLOTS) == (
        hang_recorder.MODULE_BYTES,
        hang_recorder.MAX_GROUPS,
        hang_recorder.NUM_SLOTS,
    )
    assert (
        hang_recorder.GROUP_TABLE_OFFSET + hang_recorder.MAX_GROUPS * hang_recorder.GROUP.size
        == hang_recorder.SLOT_TABLE_OFFSET
    )
    assert (
        hang_recorder.SLOT_TABLE_OFFSET + hang_recorder.NUM_SLOTS * hang_recorder.SLOT.size <= hang_recorder.FILE_BYTES
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_read_as_something_or_nothing(seed: int, tmp_path: Path) -> None:
    import random

    noise = random.Random(seed).randbytes(hang_recorder.FILE_BYTES - len(hang_recorder.MAGIC))
    (tmp_path / "last.0").write_bytes(hang_recorder.MAGIC + noise)
    (tmp_path / "stacks.0").write_bytes(b"main 0x0000000000000001\nThread 0x0001 (x):\n" + noise)
    Hang.model_validate_json(read_hang(tmp_path, 1, [], tmp_path).model_dump_json())


def test_a_link_a_pipe_and_a_short_page_are_no_sign(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('main 0x0000000000000001\nThread 0x0001 (most recent call first):\n  File "s", line 1 in s\n')
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "stacks.0").symlink_to(secret)
    os.mkfifo(folder / "stacks.1")
    (folder / "last.2").write_bytes(hang_recorder.MAGIC)
    found = read_hang(folder, 3, [], tmp_path)
    assert [each.frames for each in found.ranks] == [[], [], []]
    assert [each.started for each in found.ranks] == [False, False, True]
    assert read_notes(hang_recorder.MAGIC) == reader.CollectiveNotes()


def test_escapes_in_names_are_not_printed() -> None:
    text = 'main 0x0000000000000001\nThread 0x00000001 (x):\n  File "a\x1b[31m.py", line 1 in f\x07'
    assert read_stacks(text, Path("/checkout")).main == (Frame(file="a.py", line=1, function="f"),)


def test_of_several_threads_the_main_one_and_the_one_it_waits_for_are_reported(tmp_path: Path) -> None:
    (tmp_path / "stacks.0").write_text(
        "main 0x00000002\nTimeout (0:00:05)!\n".replace("0x00000002", "0x0000000000000002")
        + "Thread 0x0000000000000003 (most recent call first):\n"
        + f'  File "{tmp_path}/moe.py", line 7 in backward\n'
        + "\nThread 0x0000000000000002 (most recent call first):\n"
        + '  File "/x/site-packages/torch/autograd/graph.py", line 1 in _engine_run_backward\n'
        + f'  File "{tmp_path}/train.py", line 3 in step\n'
    )
    found = read_hang(tmp_path, 1, [], tmp_path).ranks[0]
    assert found.code_frame == Frame(file="moe.py", line=7, function="backward")


# ---- when


def test_stacks_are_written_before_the_limit_however_short_it_is() -> None:
    assert hang_recorder.margin_s(1) == 0.25
    assert hang_recorder.margin_s(60) == 2.0
    assert hang_recorder.margin_s(1200) == 24.0
    assert hang_recorder.margin_s(10**5) == 30.0


def test_the_time_that_starting_took_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    own = hang_recorder.seconds_since_launch()
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert 0 < own <= hang_recorder.seconds_since_launch()


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path) -> None:
    import torch.distributed as dist

    before = dist.Work.wait
    hang_recorder.HangRecorder(tmp_path / "missing", 0, 3600).record_collectives(dist)
    assert dist.Work.wait is before


def test_whoever_records_collectives_switches_the_flight_recorder_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in flight_recorder.BUFFER_VARIABLES:
        monkeypatch.setenv(name, "")  # so that the value is restored after the test
        monkeypatch.delenv(name)
    distributed = SimpleNamespace(ProcessGroup=type("ProcessGroup", (), {}), Work=type("Work", (), {"wait": None}))
    recorder = hang_recorder.HangRecorder(tmp_path, 0, 3600)
    recorder.schedule_dump(3600)
    recorder.record_collectives(distributed)
    faulthandler.cancel_dump_traceback_later()
    assert any(name in os.environ for name in flight_recorder.BUFFER_VARIABLES)
