"""Traces of profiled steps, as a guest may leave them: which of them become a ledger, and what each fault is called."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regbot.errors import UserError
from regbot.records.ledger import Axis, Ledger
from regbot.records.run import RawProfile
from regbot.workloads import guest_file
from regbot.workloads.guest import RawRecord
from regbot.workloads.guest_file import GuestFileError
from regbot.workloads.read_guest_files import read_files
from regbot.workloads.step_profile import describe_dispatcher, ledger_of_profile
from regbot.workloads.task import Task
from regbot.workloads.timed import add_profile
from support.layers import layer_task
from support.ledger_builder import smoke_arm, smoke_run
from traces.writer import Event, Writer, event, operator, step, text, write

MAX_BYTES = 2**18
STEP_US = 1000
RANKS = "[0, 1]"
INFO = {"backend": "nccl", "rank": 0, "world_size": 2}
EXCHANGE = {"name": "all_to_all", "elements": (64, 64), "ranks": RANKS, "description": "ep"}
GATHER = {"name": "_allgather_base", "elements": (32, 64), "ranks": RANKS, "description": "dp", "group": "2"}


def steps(*steps_with_calls: Sequence[dict[str, object]]) -> list[Event]:
    """Events of steps with these calls."""
    writer = Writer()
    for number, calls in enumerate(steps_with_calls):
        writer.add(step(number, STEP_US * number, STEP_US - 1))
        for position, call in enumerate(calls):
            start = STEP_US * number + 50 * position + 10
            writer.call(host=start, start=start + 20, length=10, **call)  # type: ignore[arg-type]
    return writer.events


def planted(number: int = 2, kernels: bool = True) -> list[Event]:
    """Events of ``number`` planted all-reduces."""
    writer = Writer()
    for position in range(number):
        writer.call("allreduce", 100.0 * position, 100.0 * position + 20, 10, ranks=RANKS, description=f"g{position}")
    return writer.events if kernels else [one for one in writer.events if one["cat"] == "cpu_op"]


CLAIM = RawProfile(
    reason="torch.compile compiled 2 frames of it",
    trace="profile.json.gz",
    planted_trace="profile.planted.json.gz",
    planted=2,
    sequence_advances=[3, 3, 3],
    axes={"ep": Axis(size=2, ranks=[0, 1]), "edp": Axis(size=1, ranks=[0]), "dp": Axis(size=2, ranks=[0, 1])},
    config={"world": 2},
)
GOOD_STEP = (EXCHANGE, EXCHANGE, GATHER)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces are read in this process, which is faster. ``test_guest_file`` tests the other process."""

    def read_here(reader: str, files: Sequence[tuple[Path, str]], max_bytes: int, options: object) -> list[object]:
        paths = [str(path) for path, _ in files]
        try:
            return read_files({"reader": reader, "paths": paths, "max_bytes": max_bytes, "options": options})
        except UserError as error:
            raise GuestFileError(str(error)) from error

    monkeypatch.setattr(guest_file, "run_program", read_here)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Ledger]:
    """Returns the ledger of a guest's traces."""

    def ledger(
        traced: Sequence[Event] | None = None,
        plants: Sequence[Event] | None = None,
        info: dict[str, object] = INFO,
        **claims: object,
    ) -> Ledger:
        events = traced if traced is not None else steps(GOOD_STEP, GOOD_STEP, GOOD_STEP)
        write(tmp_path / "profile.json.gz", text(events, info))
        write(tmp_path / "profile.planted.json.gz", text(planted() if plants is None else plants, info))
        return ledger_of_profile(CLAIM.model_copy(update=claims), layer_task(), tmp_path, MAX_BYTES)

    return ledger


def counts(ledger: Ledger) -> dict[tuple[str, str], tuple[int, int]]:
    return {(entry.kind, entry.axis): (entry.count, entry.bytes) for entry in ledger.entries}


def test_a_profile_gives_the_ledger_of_one_step(read: Callable[..., Ledger]) -> None:
    ledger = read()
    assert (ledger.source, ledger.scope, ledger.steps, ledger.rank) == ("kineto:metadata", "step", 3, 0)
    assert counts(ledger) == {("all_to_all", "ep"): (2, 256), ("all_gather", "dp"): (1, 128)}
    assert (ledger.workload, ledger.variant, ledger.world_size) == ("mixtral-8x7b@1/ep", "cpu", 2)
    assert ledger.config == {"world": 2}
    assert ledger.liveness is not None
    assert ledger.liveness.proven
    assert (ledger.liveness.seen, ledger.liveness.sequence_counted) == (2, 9)


@pytest.mark.parametrize(
    ("change", "value"), [("sequence_advances", [3, 4, 3]), ("sequence_advances", []), ("planted", 3), ("planted", 0)]
)
def test_a_collective_that_the_profile_missed_leaves_its_liveness_unproven(
    read: Callable[..., Ledger], change: str, value: object
) -> None:
    ledger = read(**{change: value})
    assert ledger.liveness is not None
    assert not ledger.liveness.proven


def test_planted_collectives_of_nccl_need_kernels(read: Callable[..., Ledger]) -> None:
    """Without kernels, the collectives of a replayed CUDA graph would be in no trace."""
    ledger = read(plants=planted(kernels=False))
    assert ledger.liveness is not None
    assert (ledger.liveness.seen, ledger.liveness.proven) == (0, False)


def replayed() -> list[Event]:
    """Steps whose collectives are in a CUDA graph: their kernels run, and no call names them."""
    writer = Writer(steps(GOOD_STEP, GOOD_STEP, GOOD_STEP))
    for number in range(3):
        start = STEP_US * number + 900
        writer.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, 5, start - 2)
    return writer.events


def test_collectives_of_a_replayed_graph_are_unknown(read: Callable[..., Ledger]) -> None:
    with pytest.raises(GuestFileError, match="without a call of a known kind, as in a replayed CUDA graph"):
        read(replayed())


def test_steps_that_differ_give_no_ledger(read: Callable[..., Ledger]) -> None:
    """The reader takes the middle one of three steps, so the sequence numbers must show that another one is like it."""
    differing = steps(GOOD_STEP, GOOD_STEP[:2], GOOD_STEP[:1])
    for advances in ([3, 2, 1], None):
        with pytest.raises(GuestFileError, match="its steps are not alike"):
            read(differing, sequence_advances=advances)
    with pytest.raises(GuestFileError, match=r"its 2 steps are not equal \(3, 2 collectives\)"):
        read(steps(GOOD_STEP, GOOD_STEP[:2]))


@pytest.mark.parametrize("info", [{**INFO, "rank": 1}, {**INFO, "world_size": 4}])
def test_a_trace_of_another_rank_or_world_is_refused(read: Callable[..., Ledger], info: dict[str, object]) -> None:
    with pytest.raises(GuestFileError, match="but rank 0 of 2 was requested"):
        read(info=info)


def test_a_trace_without_collectives_is_no_ledger_of_zero(read: Callable[..., Ledger]) -> None:
    with pytest.raises(GuestFileError, match="no collective was recorded"):
        read(steps((), (), ()))


def requesting(dispatcher: str) -> Task:
    """The task of the layer, whose workload requests a dispatcher."""
    return layer_task().at({"dispatcher": dispatcher})


def test_the_dispatcher_is_the_one_whose_payload_ran(read: Callable[..., Ledger]) -> None:
    backend = describe_dispatcher(read(), requesting("deepep"))["dispatcher"]
    assert (backend.requested, backend.executed) == ("deepep", "alltoall")
    assert backend.evidence == "2 all_to_all per profiled step on axis ep, via nccl"


GLOO = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [
    {"pg_name": "0", "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 1]},
    {"pg_name": "1", "pg_desc": "undefined", "pg_size": 2, "ranks": [0, 2]},
]}  # fmt: skip
"""Two groups of one size and different ranks. Rows of gloo name no group, so a call may be of either of them."""


def gloo_steps() -> list[Event]:
    """Three steps with one all-gather of gloo, which writes rows of the dispatcher only."""
    events = []
    for number in range(3):
        start = STEP_US * number
        events += [step(number, start, STEP_US - 1), operator("c10d::_allgather_base_", start + 100, 20)]
        events.append(event("user_annotation", "gloo:all_gather", start + 105, 10))
    return events


def test_a_collective_whose_group_is_unknown_gives_no_ledger(read: Callable[..., Ledger]) -> None:
    """Collectives of different groups would be added up, and an exchange of two of them would be no change."""
    plants = [operator("c10d::allreduce_", 10 + 50 * n, 20) for n in range(2)]
    with pytest.raises(GuestFileError, match="the group of all_gather cannot be named: 2 ranks, via gloo"):
        read(gloo_steps(), plants, GLOO, sequence_advances=[1, 1, 1])


def test_a_failed_profile_leaves_no_ledger(tmp_path: Path, read: Callable[..., Ledger]) -> None:
    """The records may have both, because a guest writes them."""
    record = RawRecord(tmp_path / "raw.{rank}.json", "nonce", MAX_BYTES)
    counted = smoke_run(smoke_arm("head"), read())
    run = add_profile(counted, CLAIM.model_copy(update={"problem": "no memory"}), layer_task(), record)
    assert run.profile is not None
    assert (run.ledger, run.profile.problem) == (None, "no memory")
    assert add_profile(counted, CLAIM, layer_task(), record).ledger is not None
