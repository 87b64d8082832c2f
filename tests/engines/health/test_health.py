"""Node health: what a monitor records of processors and GPUs around a run, and which faults are the node's.

The GPUs are a stand-in. Tests compare it with the published functions, and with the real module where it is installed.
Processors and processes are real.
"""

import contextlib
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regbot.engines import Launch
from regbot.engines.health import monitor
from regbot.engines.health.cpu import load_shares, parse_ticks
from regbot.engines.health.monitor import GpuWatch, Monitor, visible_devices
from regbot.engines.health.nvml import REASONS, NoNvmlError, NvmlSession, is_descendant, select_visible
from regbot.judge.health import describe_node_effects, describe_outside_cause, find_slowed_blocks
from regbot.records.files import read_record
from regbot.records.health import GpuProcess, Health
from regbot.records.run import Run
from support.guest_runs import Shared
from support.health_builder import cpu, gpu, health, idle
from support.layers import genuine_runs
from support.nvml_stand_in import FUNCTIONS, LOST, NOT_SUPPORTED, Card, StandIn
from support.timed_builder import slot, timed_run

SOMEBODY = GpuProcess(pid=4711, name="python")


def watched(nvml: Any, work: Callable[[], object] | None = None, **options: Any) -> Monitor:
    """A monitor that has watched ``work``, or a dozen samples 10 ms apart. ``nvml``: a stand-in or a function."""
    load = nvml if callable(nvml) else lambda: nvml
    with Monitor(nvml=load, interval_s=0.01, **options) as seen:
        deadline = time.monotonic() + (0.1 if callable(nvml) else 20)
        while work is None and time.monotonic() < deadline and (callable(nvml) or nvml.samples[0] < 13):
            time.sleep(0.01)
        if work is not None:
            work()
    return seen


def kinds(seen: Health) -> list[tuple[str, bool]]:
    return [(cause.kind, cause.outside) for cause in seen.causes]


# ---- processors


STAT = """\
cpu  700 10 90 9000 50 3 7 40 0 0
cpu0 400 10 40 4000 20 1 3 10 0 0
cpu1 200 0 30 3000 20 1 2 20 0 0
cpu12 100 0 20 2000 10 1 2 10 0 0
intr 123 4 5
ctxt 99
"""


def test_busy_and_stolen_time_is_summed_over_the_runs_own_cores() -> None:
    assert parse_ticks(STAT, frozenset({0, 1}), 100) == (6.8, 0.3)
    assert parse_ticks(STAT, frozenset({12}), 100) == (1.2, 0.1)
    assert parse_ticks(STAT, frozenset({5}), 100) is None
    assert parse_ticks("", frozenset({0}), 100) is None


def test_the_runs_own_work_is_not_counted_as_the_work_of_others() -> None:
    first, last = (100.0, 1.0), (115.0, 2.0)
    assert load_shares(first, last, own_s=12.0, total_s=20.0) == pytest.approx((0.15, 0.05))
    assert load_shares(first, last, own_s=15.3, total_s=20.0)[0] == 0.0, "one tick too many makes no negative share"
    assert load_shares(first, None, own_s=1.0, total_s=20.0) == (None, None)


@pytest.mark.slow
def test_a_real_timed_run_carries_the_health_of_its_node(shared: Shared) -> None:
    run = read_record(shared("genuine runs", genuine_runs) / "run.json", Run)
    assert run.health is not None
    assert run.health.during.samples >= 1
    assert run.timing is not None
    stepping = sum(sum(rank.cpu_s) for rank in run.timing.ranks.values())
    assert run.health.during.cpu.own_s > stepping, "own work includes the ranks' steps and their start"
    assert describe_outside_cause(run) == ""


# ---- GPUs: measurements


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed here")
def test_the_published_functions_and_numbers_are_those_of_the_real_module() -> None:
    real = importlib.import_module("pynvml")
    for name in FUNCTIONS:
        parameters = list(inspect.signature(getattr(StandIn, name)).parameters)[1:]
        assert list(inspect.signature(getattr(real, name)).parameters) == parameters, name
    assert (real.NVML_CLOCK_SM, real.NVML_TEMPERATURE_GPU) == (1, 0)
    assert (real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, real.NVML_VOLATILE_ECC) == (1, 0)
    assert (real.nvmlEventTypeXidCriticalError, real.nvmlMemory_v2) == (8, 0x02000028)
    assert (real.NVML_ERROR_GPU_IS_LOST, real.NVML_ERROR_RESET_REQUIRED) == (15, 16)
    bits = {name: getattr(real, f"nvmlClocksEventReason{name}") for name in ("SwPowerCap", "HwSlowdown", "GpuIdle")}
    assert [REASONS[bit] for bit in bits.values()] == ["sw_power_cap", "hw_slowdown", "idle"]
    assert REASONS[real.nvmlClocksEventReasonHwThermalSlowdown] == "hw_thermal"
    assert REASONS[real.nvmlClocksEventReasonHwPowerBrakeSlowdown] == "hw_power_brake"
    assert REASONS[real.nvmlClocksEventReasonSwThermalSlowdown] == "sw_thermal"
    assert REASONS[real.nvmlClocksEventReasonApplicationsClocksSetting] == "application_clocks"


def test_a_healthy_gpu_is_summarized_without_a_cause() -> None:
    nvml = StandIn(Card(clock=lambda n: [1700, 1800, 1750][n % 3], reasons=lambda n: 0x4 if n % 2 else 0), Card())
    seen = watched(nvml)
    assert seen.warnings == []
    assert kinds(seen.health) == []
    first, second = seen.health.during.gpus
    assert first.sm_mhz is not None
    assert (first.sm_mhz.low, first.sm_mhz.median, first.sm_mhz.high, first.sm_max_mhz) == (1700, 1750, 1800, 1980)
    assert 0.3 < first.reasons["sw_power_cap"] < 0.7
    assert (first.temperature_max_c, first.uncorrected_ecc) == (61, 0)
    assert (second.index, second.reasons, second.uuid) == (1, {}, "GPU-1a1b")
    assert [moment.used_bytes for moment in seen.health.before] == [600 * 2**20] * 2
    assert (nvml.open, nvml.watched) == (0, []), "NVML was closed"


def test_clocks_and_temperature_are_those_of_the_steps_and_not_of_the_whole_run() -> None:
    steps = [False]
    nvml = StandIn(Card(clock=lambda _: 1755 if steps[0] else 210, reasons=lambda _: 0x4 if steps[0] else 0x1))

    def work() -> None:
        for steps[0] in (False, True, False):
            target = nvml.samples[0] + 8
            while nvml.samples[0] < target:
                time.sleep(0.01)

    during = watched(nvml, work, in_steps=lambda: steps[0]).health.during
    seen = during.gpus[0]
    assert seen.samples is not None
    assert 0 < seen.samples <= during.samples - 10, "the samples before and after the steps do not count"
    assert seen.sm_mhz is not None
    assert (seen.sm_mhz.low, seen.sm_mhz.high) == (1755, 1755)
    assert seen.reasons == {"sw_power_cap": 1.0}


def test_steps_run_between_the_marks_of_a_launch(tmp_path: Path) -> None:
    launch = Launch((), tmp_path, {}, tmp_path / "log", tmp_path, 1.0, timed_between=("begun", "ended"))
    seen = [launch.is_in_steps()]
    for name in ("begun", "ended"):
        (tmp_path / name).touch()
        seen.append(launch.is_in_steps())
    assert seen == [False, True, False]


def test_an_unsupported_query_gives_an_unknown_value_and_no_error() -> None:
    everything = dict.fromkeys([*FUNCTIONS, "nvmlDeviceGetMemoryInfo_v2"], NOT_SUPPORTED)
    (seen,) = watched(StandIn(Card(raises=everything))).health.during.gpus
    assert (seen.sm_mhz, seen.sm_max_mhz, seen.temperature_max_c) == (None, None, None)
    assert (seen.uncorrected_ecc, seen.reasons, seen.others, seen.lost) == (None, {}, [], False)


@pytest.mark.parametrize(
    ("devices", "first", "expected"),
    [
        (None, None, [0, 1, 2, 3]),
        ("2,3", 2, [2, 3]),
        ("3", None, [3]),
        ("GPU-1a, GPU-3a", 2, [1, 3]),
        ("-1", None, []),
        ("1,9,2", None, [1]),
        ("MIG-3f2a", None, [0, 1, 2, 3]),
        ("0,1", 4, []),
    ],
    ids=["all", "some", "one", "by uuid", "hidden", "an unknown one", "a slice", "too few"],
)
def test_a_run_has_the_gpus_that_cuda_makes_visible(
    devices: str | None, first: int | None, expected: list[int]
) -> None:
    environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    gpus = NvmlSession(StandIn(*[Card()] * 4), visible_devices(environment), first)
    assert [device.index for device in gpus.gpus] == expected
    assert select_visible(gpus.gpus, ["GPU-"]) == ([] if len(gpus.gpus) != 1 else gpus.gpus), (
        "an ambiguous name selects none"
    )


# ---- GPUs: causes


SICK: dict[str, tuple[Card, list[tuple[str, bool]], str]] = {
    "memory errors": (
        Card(ecc=lambda n: 3 if n < 2 else 5),
        [("uncorrected_ecc", True)],
        "GPU 0: 2 uncorrected memory errors (ECC)",
    ),
    "old memory errors": (Card(ecc=7), [], ""),
    "a double bit error": (Card(xids=[(2, 48)]), [("xid", True)], "GPU 0: the driver reported XID 48 during the run"),
    "off the bus": (Card(xids=[(1, 79), (1, 154)]), [("xid", True)], "XID 79 during"),
    "a bad address": (Card(xids=[(2, 31)]), [("xid", False)], "XID 31 during the run, usually an error of the code"),
    "hot before the start": (
        Card(reasons=lambda n: 0x48 if n < 100 else 0, temperature=88),
        [("hardware_slowdown", True)],
        "GPU 0: its hardware slowed it down (hw_thermal, hw_slowdown) before the run began, at 88 C",
    ),
    "slowed while it ran": (Card(reasons=lambda n: 0x48 if n > 2 else 0), [], ""),
    "480 MHz and hot": (
        Card(clock=480, reasons=lambda n: 0x20 if n else 0, temperature=87),
        [("low_clock", True)],
        "GPU 0: never ran above 480 of 1980 MHz at up to 87 C (sw_thermal)",
    ),
    "480 MHz for no reason": (Card(clock=480), [("low_clock", True)], "and no reason is reported"),
    "locked clocks": (Card(clock=1200), [("low_clock", False)], "never ran above 1200 of 1980 MHz"),
    "not used at all": (Card(clock=345, reasons=0x1), [], ""),
    "much memory in use": (
        Card(used=30 * 2**30),
        [("other_process", True)],
        "30.0 GiB of its memory were in use before the run began, by processes that cannot be seen",
    ),
    "lost": (
        Card(raises={"nvmlDeviceGetTemperature": LOST}),
        [("lost", True)],
        "GPU 0: stopped answering; take the node out of service",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", SICK)
def test_every_fault_has_its_cause_and_says_whether_it_is_from_outside(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SETTLE_S", 0.0)
    card, expected, text = SICK[fault]
    seen = watched(StandIn(card)).health
    assert kinds(seen) == expected
    assert text in " ".join(cause.text for cause in seen.causes)
    run = timed_run(slot(1, 0, "base"), 0.1, health=seen)
    assert bool(describe_outside_cause(run)) == any(outside for _, outside in expected)


def test_one_slow_gpu_among_equals_is_a_fault_and_equally_slow_gpus_are_a_setting() -> None:
    seen = watched(StandIn(Card(), Card(clock=1200))).health
    assert [(cause.gpu, cause.outside) for cause in seen.causes] == [(1, True)]
    assert "and another GPU of the run at 1755 MHz" in seen.causes[0].text
    seen = watched(StandIn(Card(clock=1200), Card(clock=1210))).health
    assert [(cause.gpu, cause.outside) for cause in seen.causes] == [(0, False), (1, False)]


@contextlib.contextmanager
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_another_process_on_a_gpu_is_distinguished_from_the_runs_own() -> None:
    with child() as own:
        assert is_descendant(own, os.getpid()) is True
        quiet = watched(StandIn(Card(pids=lambda n: [own] if n else []))).health
        assert kinds(quiet) == []
        shared = watched(StandIn(Card(pids=lambda n: [own, 1] if n else []))).health
    assert [process.pid for process in shared.during.gpus[0].others] == [1]
    assert is_descendant(0, os.getpid()) is None, "a process without an id in this namespace"
    assert "(pid 1), not part of the run, used it during the run; give the run GPUs of its own" in shared.causes[0].text


def test_processes_of_the_previous_run_get_time_to_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "SETTLE_STEP_S", 0.01)
    assert kinds(watched(StandIn(Card(pids=lambda n: [1] if n < 3 else []))).health) == []
    monkeypatch.setattr(monitor, "SETTLE_S", 0.1)
    stays = watched(StandIn(Card(pids=lambda _: [1]))).health
    assert kinds(stays) == [("other_process", True)]


def test_process_ids_of_another_namespace_accuse_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container NVML may list the host's ids. Then the run's own processes cannot be distinguished from others."""
    monkeypatch.setattr(monitor, "has_host_pids", lambda: False)
    known: dict[int, bool | None] = {10: True, 20: False, 645400: None}

    monkeypatch.setattr(monitor, "is_descendant", lambda pid, _: known[pid])
    for listed, others in (([20, 645400], []), ([10, 20, 645400], [20])):
        listing = (lambda pids: lambda _: pids)(listed)
        watch = GpuWatch(NvmlSession(StandIn(Card(pids=listing)), None))
        for _ in range(5):
            watch.sample()
        (seen,) = watch.end()
        assert [process.pid for process in seen.others] == others


# ---- unknown health


def test_a_node_without_gpus_is_not_queried_and_gives_no_warning() -> None:
    def none() -> Any:
        raise AssertionError("NVML was queried")

    seen = watched(none, expected=False)
    assert (seen.warnings, seen.health.during.gpus, kinds(seen.health)) == ([], [], [])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoNvmlError("nvidia-ml-py cannot be used"), "GPU health is not known: nvidia-ml-py cannot be used"),
        (AttributeError("no\x1b[31m such"), "GPU health is not known: AttributeError: no such"),
    ],
)
def test_a_missing_or_broken_nvml_gives_a_warning_and_no_error(error: Exception, words: str) -> None:
    def broken() -> Any:
        raise error

    seen = watched(broken)
    assert (seen.warnings, kinds(seen.health)) == ([words], [])
    assert seen.health.during.samples > 0, "the processors are still monitored"


def test_a_driver_that_never_answers_does_not_block_and_is_a_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def clock(sample: int) -> int:
        if sample > 1:
            released.wait(30)
        return 1700

    nvml = StandIn(Card(clock=clock))
    monkeypatch.setattr(monitor, "CLOSE_S", 0.2)
    begun = time.monotonic()
    seen = watched(nvml, lambda: time.sleep(0.1))
    assert time.monotonic() - begun < 5
    released.set()
    (watcher,) = (thread for thread in threading.enumerate() if thread.name == "health")
    watcher.join(30)
    assert kinds(seen.health) == [("lost", True)]
    assert seen.warnings == ["GPU health is not known: the driver does not answer"]


# ---- the judge


def runs_of(base: list[Health], head: list[Health]) -> list[Run]:
    """Runs in ABBA blocks, with base in slots 0 and 3."""
    runs = []
    for block in range(len(base) // 2):
        for place, arm in enumerate(("base", "head", "head", "base")):
            given = (base if arm == "base" else head)[2 * block + (place > 1)]
            runs.append(timed_run(slot(block + 1, place, arm), 0.1, health=given))
    return runs


WELL = health([gpu()])
CAPPED = health([gpu(0), gpu(1, 1410, {"sw_power_cap": 0.9})])
HOT = health([gpu(0, 1500, {"hw_thermal": 0.5, "hw_slowdown": 0.5})])


def test_only_a_cause_from_outside_the_arm_voids_a_run() -> None:
    assert describe_outside_cause(timed_run(slot(1, 0, "base"), 0.1)) == "", "unknown health voids nothing"
    for sound in (WELL, CAPPED, HOT, health([gpu(xids=[31])]), health([gpu(mhz=1200)])):
        assert describe_outside_cause(timed_run(slot(1, 0, "head"), 0.1, health=sound)) == ""
    run = timed_run(slot(1, 0, "head"), 0.1, health=health([gpu(others=[SOMEBODY], xids=[79])]))
    assert describe_outside_cause(run) == (
        "GPU 0: the driver reported XID 79 during the run; take the node out of service until it has been inspected; "
        "GPU 0: python (pid 4711), not part of the run, used it during the run; give the run GPUs of its own"
    )
    before = [idle(processes=[SOMEBODY])]
    assert "was on it before" in describe_outside_cause(
        timed_run(slot(1, 0, "head"), 0.1, health=health([gpu()], before))
    )


def test_a_hardware_slowdown_voids_a_block_only_if_it_affects_both_arms() -> None:
    both = runs_of([WELL, HOT, WELL, WELL], [HOT, WELL, HOT, HOT])
    assert find_slowed_blocks(both) == {
        (1, 1): "in runs of both arms of a block GPU 0 was slowed down by its hardware (hw_thermal); look at the "
        "node's cooling and power supply"
    }
    again = [run.model_copy(update={"attempt": 2}) for run in both[:4]]
    assert set(find_slowed_blocks([*both, *again])) == {(1, 1), (1, 2)}
    flicker = health([gpu(reasons={"hw_slowdown": 0.1})])
    short = flicker.model_copy(update={"during": flicker.during.model_copy(update={"samples": 10})})
    assert find_slowed_blocks(runs_of([short] * 2, [short] * 2)) == {}, "one sample is a change of clocks"
    assert find_slowed_blocks(runs_of([flicker] * 2, [flicker] * 2)) != {}
    in_steps = health([gpu(reasons={"hw_slowdown": 1 / 3}, samples=3)])
    assert find_slowed_blocks(runs_of([in_steps] * 2, [in_steps] * 2)) == {}, "one of three samples in the steps"
    twice = health([gpu(reasons={"hw_slowdown": 2 / 3}, samples=3)])
    assert find_slowed_blocks(runs_of([twice] * 2, [twice] * 2)) != {}
    seldom = health([gpu(reasons={"hw_slowdown": 0.04})])
    assert find_slowed_blocks(runs_of([seldom] * 2, [seldom] * 2)) == {}
    soft = health([gpu(reasons={"sw_thermal": 1.0, "sw_power_cap": 1.0})])
    assert find_slowed_blocks(runs_of([soft] * 2, [soft] * 2)) == {}


def test_a_limit_that_holds_back_one_arm_only_is_a_finding_about_that_arm() -> None:
    (finding,) = describe_node_effects(runs_of([WELL] * 4, [CAPPED] * 4))
    assert finding == (
        "head is throttled by its power limit on its GPUs in 4 of 4 runs, base in 0 of 4 runs (GPU 1: 90% of the time, "
        "at 1380 MHz): head causes this, so it is part of its cost"
    )
    (finding,) = describe_node_effects(runs_of([CAPPED] * 4, [health([gpu(), gpu(1)])] * 4))
    assert finding.startswith("base is throttled by its power limit")
    assert "at 1380 MHz against 1725 of head" in finding
    heat, hardware = describe_node_effects(runs_of([WELL] * 4, [HOT] * 4))
    assert "head is throttled by heat" in heat
    assert "head is throttled by a hardware slowdown" in hardware


@pytest.mark.parametrize(
    ("base", "head", "runs"),
    [(0, 5, 8), (4, 4, 4), (3, 8, 8), (0, 2, 2), (0, 3, 4), (0, 0, 4)],
    ids=["not all but a few", "both arms", "more often in one", "too few runs", "too few of them", "neither"],
)
def test_a_limit_that_does_not_follow_an_arm_is_no_finding(base: int, head: int, runs: int) -> None:
    assert (
        describe_node_effects(runs_of(*([CAPPED] * capped + [WELL] * (runs - capped) for capped in (base, head)))) == []
    )


def test_other_work_stolen_time_and_slow_cores_get_one_sentence_each_and_void_nothing() -> None:
    busy, stolen, slow = (
        health(processors=usage) for usage in (cpu(other=0.35), cpu(steal=0.06), cpu(other=0.12, mhz=2100))
    )
    runs = runs_of([busy, busy, busy, slow], [health(), stolen, busy, busy])
    assert describe_node_effects(runs) == [
        "other work used up to 35% of the cores during 6 of 8 runs",
        "the hypervisor gave up to 6% of the cores' time to other machines during 1 of 8 runs",
        "the cores ran at only 2100 MHz in 1 of 8 runs, and at up to 3000 MHz in the others",
    ]
    assert [describe_outside_cause(run) for run in runs] == [""] * 8
    unknown = health(processors=cpu(None, None, None))
    assert describe_node_effects(runs_of([unknown] * 2, [unknown] * 2)) == []
