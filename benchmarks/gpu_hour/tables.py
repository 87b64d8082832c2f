"""The tables of the first hour: expected and seen values of each stage, and the fixtures that tests keep."""

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from gpu_hour.comparison import compare_with_paper
from gpu_hour.records import StageRecords
from gpu_hour.rows import Row, format_rows
from gpu_hour.stages import BLOCKS, HANG_LIMIT_S, NOISE_SHAPE, PLANTED_PCT, SHAPES, STAGES
from regbot.check.calibrate.flow import build_calibration
from regbot.cli.doctor.diagnosis import guest_checks
from regbot.errors import UserError
from regbot.ledgers.readers import ReadError, read_file
from regbot.records.config.schema import SessionSettings
from regbot.records.files import read_record
from regbot.records.node import RawNodeProbe
from regbot.records.run import Arm, Position, Run
from regbot.records.session import Session, SessionHeader
from regbot.records.settings import ThroughputThresholds
from regbot.stats.calibration import estimate_pair_sd
from regbot.stats.paired import interval
from regbot.workloads.task import plan_of

MAX_FIXTURE_BYTES = 200_000
OVERHEAD_PCT = 1.0
"""Largest cost of the probe in percent of a step."""
TOP_KERNELS = 40
GROUPED_KERNELS = ("GroupProblemShape", "prepare_grouped_gemm_data")
"""Parts of the names of the kernels that torch launches for one grouped product of bfloat16."""
CRASH_SHARE = 0.9
"""Share of the time limit within which a run with a crashed rank has ended."""

Table = Callable[[StageRecords], Iterator[Row]]


def print_tables(out: Path, names: list[str], fixtures: Path | None) -> int:
    """Print the table of each stage in ``out``. Write fixtures if a folder is given. Return 1 if a value differs."""
    differs = False
    for name in names:
        stage = StageRecords(out / name)
        rows = read_table(stage, name)
        print(f"\n{name}: {STAGES[name].title}\n{format_rows(rows)}", flush=True)
        differs |= any(row.agrees is False for row in rows)
        if fixtures is not None:
            write_fixture(stage, name, rows, fixtures)
    return int(differs)


def read_table(stage: StageRecords, name: str) -> list[Row]:
    """Return the table of a stage. If a record is missing or broken, the last row says so."""
    rows: list[Row] = []
    try:
        rows.extend(TABLES[name](stage))
    except (OSError, ValueError, KeyError, UserError) as error:
        rows.append(Row("records", "complete", f"{type(error).__name__}: {error}", False))
    return rows


def write_fixture(stage: StageRecords, name: str, rows: list[Row], folder: Path) -> None:
    """Write the table and the small records of a stage to ``folder/NAME.json.gz``. Raises ValueError if it is large."""
    document = {
        "stage": name,
        "settings": stage.settings,
        "rows": [vars(row) for row in rows],
        "launches": list(stage.launches.values()),
        "records": dict(_small_records(stage)),
    }
    # Without the time of writing, the same records give the same file.
    data = gzip.compress(json.dumps(document, sort_keys=True).encode(), mtime=0)
    if len(data) > MAX_FIXTURE_BYTES:
        raise ValueError(f"the fixture of {name} has {len(data)} bytes, more than {MAX_FIXTURE_BYTES}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json.gz").write_bytes(data)


def _small_records(stage: StageRecords) -> Iterator[tuple[str, Any]]:
    """Yield the records that tests on a CPU can read, by their path in the stage's folder."""
    for pattern in ("capabilities.json", "*/request.json", "*/record/*.json"):
        for path in sorted(stage.folder.glob(pattern)):
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.name.startswith("kernels."):
                document = dict(sorted(document.items(), key=lambda item: -item[1][1])[:TOP_KERNELS])
            elif path.name != "capabilities.json":  # paths of the node, and hashes of regbot's own files
                document = {key: value for key, value in document.items() if key not in ("record", "root", "code")}
            yield str(path.relative_to(stage.folder)), document


def capabilities(stage: StageRecords) -> Iterator[Row]:
    answer = stage.json("capabilities.json")
    for check in guest_checks(answer, "python"):
        required = check.name in ("torch", "static ledger", "GPUs", "grouped GEMM bfloat16", "backend nccl")
        is_known = required and stage.on_gpu
        yield Row(check.name, "yes" if is_known else "", check.detail, check.ok if is_known else None)
    for line in (stage.folder / "gpus.csv").read_text(encoding="utf-8").splitlines():
        yield Row("driver", "", line, None)
    if reason := stage.missing("probe"):
        yield Row("reference probe", "a record", reason, False)
        return
    probe = read_record(stage.record("probe", "node.0.json"), RawNodeProbe)
    size, copied = (stage.json("probe", "request.json")["sizes"][key] for key in ("gemm", "copy_bytes"))
    if probe.gemm is None or probe.copy_ is None:
        yield Row("reference probe", "a record", probe.refusal or "its record is incomplete", False)
        return
    yield Row("matrix product", "", f"{2 * size**3 / probe.gemm.median_s / 1e12:.1f} TFLOP/s", None)
    yield Row("memory copy", "", f"{2 * copied / probe.copy_.median_s / 1e9:.0f} GB/s", None)


def smoke(stage: StageRecords, prefix: str = "") -> Iterator[Row]:
    for shape in SHAPES:
        launch = f"{prefix}{shape}"
        if "skipped" in stage.launches[launch]:
            yield Row(shape, "a run", stage.missing(launch), False)
        else:
            yield from _timed_rows(stage, launch, shape)


def _timed_rows(stage: StageRecords, launch: str, shape: str) -> Iterator[Row]:
    run = stage.run(launch)
    yield Row(f"{shape}: outcome", "ok", f"{run.outcome} {run.reason}".strip(), run.outcome == "ok")
    if run.timing is None or run.ledger is None:
        return
    clock = "cuda_events" if stage.on_gpu else "perf_counter"
    yield Row(f"{shape}: clock", clock, run.timing.clock, run.timing.clock == clock)
    live = run.ledger.liveness
    seen = f"{live.seen} of {live.planted}" if live is not None else "none"
    yield Row(
        f"{shape}: counter proven alive", "all planted seen", seen, live is not None and live.seen == live.planted
    )
    steps = sorted(run.timing.steady_s)
    geometry = stage.task(launch).variant.geometry
    step_s = median(steps)
    yield Row(f"{shape}: step", "", f"{1000 * step_s:.1f} ms, {1000 * steps[0]:.1f} to {1000 * steps[-1]:.1f}", None)
    yield Row(f"{shape}: tokens per second", "", f"{geometry.tokens / step_s:.0f} a rank", None)
    yield Row(f"{shape}: model FLOPs", "", f"{geometry.flops_per_step / step_s / 1e12:.1f} TFLOP/s a rank", None)
    yield Row(f"{shape}: peak memory", "", f"{run.timing.memory_peak_bytes / 1e9:.2f} GB", None)
    slope_share = abs(run.timing.memory_slope_bytes) / run.timing.memory_peak_bytes
    yield Row(f"{shape}: growth of memory", "none", f"{100 * slope_share:.3f}% a step", slope_share < 1e-3)


def steps(stage: StageRecords) -> Iterator[Row]:
    for shape in SHAPES:
        if reason := stage.missing(shape):
            yield Row(f"{shape}: counted step", "a record", reason, False)
        else:
            real = json.loads(stage.record(shape, "step.0.json").read_text(encoding="utf-8"))
            yield from compare_with_paper(shape, stage.json(shape, "request.json"), real)


def faults(stage: StageRecords) -> Iterator[Row]:
    for fault, outcome in (("crash", "crashed"), ("hang", "hung")):
        if "skipped" in stage.launches[fault]:
            yield Row(fault, outcome, stage.missing(fault), False)
            continue
        run = stage.run(fault)
        yield Row(f"{fault}: outcome", outcome, run.outcome, run.outcome == outcome)
        if fault == "crash":
            yield Row("crash: reason", "the planted crash", run.reason, "the planted crash" in run.reason)
            limit_s, wall_s = CRASH_SHARE * HANG_LIMIT_S, stage.launches[fault]["wall_s"]
            yield Row("crash: end", f"within {limit_s:.0f} s", f"{wall_s:.1f} s", wall_s <= limit_s)
        else:
            last = stage.json(fault, "request.json")["world"] - 1
            text = run.hang.text if run.hang is not None else "no report"
            yield Row(
                "hang: report", f"names rank {last} and faults.py", text, f"rank {last}" in text and "faults.py" in text
            )


def profiles(stage: StageRecords) -> Iterator[Row]:
    for mode in ("eager", "compiled"):
        if reason := stage.missing(mode):
            yield Row(f"{mode}: profile", "a trace", reason, False)
            continue
        kernels: Mapping[str, list[float]] = json.loads(
            stage.record(mode, "kernels.0.json").read_text(encoding="utf-8")
        )
        count = sum(int(row[0]) for row in kernels.values())
        total_ms = sum(row[1] for row in kernels.values()) / 1000
        yield Row(
            f"{mode}: kernels", "some" if stage.on_gpu else "", f"{count}, {total_ms:.1f} ms", bool(count) or None
        )
        for name, (launches, us) in sorted(kernels.items(), key=lambda item: -item[1][1])[:5]:
            yield Row(f"{mode}: kernel", "", f"{us / 1000:.2f} ms in {launches:.0f} x {name[:80]}", None)
        if stage.on_gpu and mode == "eager":  # a compiler may choose an implementation of its own
            backends = json.loads(stage.record(mode, "backends.0.json").read_text(encoding="utf-8"))
            yield _grouped_gemm_row(mode, backends["grouped_gemm"], kernels)
        yield _profile_ledger(stage, mode)


def _grouped_gemm_row(mode: str, path: str, kernels: Mapping[str, Any]) -> Row:
    """Return whether the profile has torch's kernel for grouped products exactly if regbot has named it."""
    kernel = next((name for name in kernels if any(part in name for part in GROUPED_KERNELS)), "")
    seen = f"kernel {kernel[:80]}" if kernel else "no grouped kernel"
    return Row(f"{mode}: grouped products", path, seen, path.endswith("_kernel") == bool(kernel))


def _profile_ledger(stage: StageRecords, mode: str) -> Row:
    """Return the row of the collectives in a profile. One rank has none, and the reader says so."""
    alone = stage.json(mode, "request.json")["world"] == 1
    try:
        ledger = read_file(stage.record(mode, "trace.0.json.gz"))
    except ReadError as error:
        return Row(f"{mode}: collectives", "none" if alone else "some", error.message[:200], alone)
    total = sum(entry.count for entry in ledger.entries)
    return Row(f"{mode}: collectives", "none" if alone else "some", f"{total} a step", bool(total) != alone)


def noise(stage: StageRecords) -> Iterator[Row]:
    sessions = [_session(stage, name, pct) for name, pct in (("placebo", 0.0), ("planted", PLANTED_PCT))]
    for session in sessions:
        for run in session.runs:
            if run.outcome != "ok":
                yield Row("run", "ok", f"{run.outcome}: {run.reason}"[:200], False)
    complete = [session for session in sessions if any(run.timing is not None for run in session.runs)]
    if not complete:
        return
    for result in build_calibration(complete, "first hour").sessions:
        name = "planted" if result.injected_pct else "placebo"
        ratios = result.log_ratios["median"]
        yield Row(f"{name}: pairs", "4", str(len(ratios)), len(ratios) == 2 * len(BLOCKS))
        if len(ratios) > 1:
            sd, low, high = estimate_pair_sd(ratios)
            text = f"{100 * sd:.2f}% ({100 * low:.2f} to {100 * high:.2f}%)"
            yield Row(f"{name}: noise of a pair", "", text, None)
            shift = f"{100 * math.expm1(sum(ratios) / len(ratios)):+.2f}%"
            yield Row(f"{name}: difference", f"{result.injected_pct:+.0f}%", shift, result.covered)
        expected = "regressed" if result.injected_pct else "not regressed"
        agrees = (result.decision == "regressed") == bool(result.injected_pct)
        yield Row(f"{name}: decision", expected, result.decision, agrees)


def _session(stage: StageRecords, name: str, injected_pct: float) -> Session:
    """Return the session of the launches ``NAME-BLOCK-SLOT-ARM``, as ``regbot calibrate`` makes it."""
    runs: list[Run] = []
    for block, order in enumerate(BLOCKS, 1):
        for slot, letter in enumerate(order):
            launch = f"{name}-{block}-{slot}-{letter}"
            if "skipped" not in stage.launches.get(launch, {"skipped": True}):
                position = Position(block=block, slot=slot, order=order)
                runs.append(stage.run(launch, "base" if letter == "A" else "head", position))
    launch = f"{name}-1-0-A"
    request, task = stage.json(launch, "request.json"), stage.task(launch)
    settings = SessionSettings(warmup=request["warmup"], steps=request["steps"] - request["warmup"])
    plan = plan_of(task, settings).model_copy(update={"injected_pct": injected_pct})
    arm = Arm(name="base", revision="first hour", commit="0" * 40, tree="0" * 40)
    header = SessionHeader(
        regbot="first hour",
        created="2026-01-01T00:00:00+00:00",
        base=arm,
        head=arm.model_copy(update={"name": "head"}),
        workloads=[plan.entry],
        untraced=[plan.entry],
        timed=[plan],
        throughput=ThroughputThresholds(gate="pairs"),
    )
    return Session(header=header, runs=runs)


def overhead(stage: StageRecords) -> Iterator[Row]:
    if reason := stage.missing(NOISE_SHAPE):
        yield Row("probe", "a result", reason, False)
        return
    result = json.loads(
        next((line for line in stage.log(NOISE_SHAPE).splitlines() if line.startswith("{")), "no result")
    )
    bounds = interval(result["log_ratios"], 0.05)
    low, middle, high = (100 * math.expm1(value) for value in (bounds.low, bounds.estimate, bounds.high))
    text = f"{middle:+.2f}% ({low:+.2f} to {high:+.2f}%)"
    yield Row("cost of the probe", f"at most {OVERHEAD_PCT:g}%", text, low <= OVERHEAD_PCT)
    yield Row("clock readings", "", f"{result['clocks']:.0f} a step", None)


def multi(stage: StageRecords) -> Iterator[Row]:
    yield from smoke(stage, "timed-")
    yield from steps(stage)
    yield from profiles(stage)
    yield from faults(stage)


TABLES: Mapping[str, Table] = {
    "capabilities": capabilities,
    "smoke": smoke,
    "paper": steps,
    "gloo": steps,
    "faults": faults,
    "profiles": profiles,
    "noise": noise,
    "overhead": overhead,
    "multi": multi,
}
