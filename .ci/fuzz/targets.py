"""What is fuzzed: a target reads one file. Readers are found by their registration, records by their ``schema`` key."""

import gzip
import importlib
import io
import json
import pkgutil
import random
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from documents import DocumentMaker

from regbot import records
from regbot.engines.launch import LaunchResult
from regbot.errors import UserError
from regbot.github import artifact, bisection, proposal, trusted_runs, verdict_text
from regbot.github.artifact import UnusableArtifact, read_artifact, read_single_file
from regbot.github.metadata import Subject
from regbot.github.trusted_runs import build_trusted_session
from regbot.github.types import WorkflowRun
from regbot.judge import judge
from regbot.judge.preflight.facts import read_dump
from regbot.ledgers.readers import READERS, ReadError, Source
from regbot.records.base import Record
from regbot.records.bisection import Bisection
from regbot.records.config import GitHub, parse_config
from regbot.records.files import MAX_RECORD_BYTES, RecordError, parse_record, read_record
from regbot.records.run import Position, RawRun, Run
from regbot.records.session import SessionHeader
from regbot.report.bisection import bisection_page
from regbot.workloads.checkout.changes import ChangedFiles
from regbot.workloads.guest import RawRecord, build_run
from regbot.workloads.hang import read_stacks
from regbot.workloads.logs import FORMATS, LogError, StepLogFile
from regbot.workloads.task import plan, plan_of, timed_tasks
from regbot.workloads.timed import RunSpec, read_ranks
from support.nsys_exports import export
from support.timed_builder import HEADER, NODE, noisy, play, statics

ROOT = Path(__file__).parents[2]
SMALL_BYTES = 128 * 1024
"""Largest input of a target with the limits ``SMALL``; of an artifact, its compressed size."""


@dataclass(frozen=True)
class Limits:
    """CPU seconds, and megabytes of resident memory with those of Python and regbot, about 100."""

    cpu_s: float
    memory_mb: int


SMALL = Limits(5, 256)
LARGE = Limits(20, 1024)
"""Limits for one record of up to ``MAX_RECORD_BYTES``. It may take ``MAX_RECORD_MEMORY``, for some time twice."""


@dataclass(frozen=True)
class Target:
    """``read`` reads what ``write`` has written to a file, and raises nothing but ``errors``."""

    name: str
    write: Callable[[random.Random, Path], object]
    read: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    limits: Limits = SMALL


# Records


def list_models() -> list[type[Record]]:
    """Return the records that can be a file of their own."""

    def list_subclasses(model: type[Record]) -> Iterator[type[Record]]:
        for subclass in model.__subclasses__():
            yield subclass
            yield from list_subclasses(subclass)

    for module in pkgutil.iter_modules(records.__path__):
        importlib.import_module(f"regbot.records.{module.name}")
    return [model for model in list_subclasses(Record) if "schema_id" in model.model_fields]


def make_document(draw: random.Random, model: type[Record]) -> str:
    return DocumentMaker(draw, model.json_schema(), draw.choice((0, 0, 1)), draw.choice((0, 1, 2))).document()


def write_document(draw: random.Random, path: Path, model: type[Record]) -> None:
    path.write_text(make_document(draw, model), encoding="utf-8")


# Artifacts

TOML = """version = 1
[workloads.moe]
adapter = "smoke"
shapes = ["qwen3-30b-a3b"]
meshes = ["ep"]
[session]
steps = 8
warmup = 2
"""
CONFIG = parse_config(TOML, "regbot.toml")
(TASK,) = plan(CONFIG)
PLANS = [plan_of(task, CONFIG.session) for task in timed_tasks(CONFIG, [TASK], 0)]
TIMED_HEADER = HEADER.model_copy(update={"timed": PLANS})
LINES = [json.loads(record.to_line()) for record in (TIMED_HEADER, *statics(), *play(noisy(1.1, 0.002), TIMED_HEADER))]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKFLOW_RUN = WorkflowRun(
    id=1, path="p", event="e", head_branch="main", head_sha="0" * 40, head_repository="acme/moe", title="t",
    status="completed", conclusion="success", attempt=1, repository="acme/moe", started=NOW,
    updated=NOW + timedelta(hours=9), url="https://github.com/acme/moe/actions/runs/1",
)  # fmt: skip


def write_session(draw: random.Random, path: Path) -> None:
    """Write the artifact of a valid session in which some fields of some lines are drawn anew, or lines repeat."""
    lines = [*LINES]
    picked = set(draw.sample(range(len(lines)), k=draw.choice((1, 2, len(lines)))))
    faults, blows = draw.choice((0, 0, 0, 1)), draw.choice((0, 1, 1, 2))
    texts = []
    for number, line in enumerate(lines):
        model: type[Record] = Run if number else SessionHeader
        text = json.dumps(line)
        if number in picked:
            maker = DocumentMaker(draw, model.json_schema(), faults, blows)
            names = draw.sample(sorted(model.json_schema()["properties"]), k=draw.choice((1, 1, 2, 5)))
            drawn = {name: maker.field(name) for name in names if name != "schema"}
            kept = [f'"{name}":{json.dumps(value)}' for name, value in line.items() if name not in drawn]
            text = "{" + ",".join([*kept, *(f'"{name}":{value}' for name, value in drawn.items())]) + "}"
        copies = draw.choice((2, 50, 2000)) if number and draw.random() < 0.03 else 1
        texts += [text] * min(copies, 10**8 // len(text) + 1)
    pack(path, "".join(f"{text}\n" for text in texts), artifact.MEMBER, draw)


def pack(path: Path, text: str, member: str, draw: random.Random) -> None:
    """Write a zip archive of at most ``SMALL_BYTES``: of a longer one, a text that is cut shorter. Sometimes bytes of
    the archive itself are changed."""
    data = text.encode("utf-8", "replace")[: 10**8]
    while True:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, data)
        if stream.tell() <= SMALL_BYTES:
            break
        data = data[: data.rfind(b"\n", 0, len(data) // 2) + 1] or data[: len(data) // 2]
    packed = stream.getvalue()
    path.write_bytes(mutate(draw, packed) if draw.random() < 0.1 else packed)


def conclude(path: Path) -> None:
    """Judge the artifact of a session as regbot-post does, up to the text of the comment."""
    session = read_artifact(path.read_bytes(), "the artifact")
    header = session.header
    for tier in ("static", "measured"):
        subject = Subject(WORKFLOW_RUN, tier, header.head.commit, 1, 1, "main", ["main"])
        of_git = {
            "resolve_exactly": lambda *_: (header.base, header.head, []),
            "digest_behaviour": lambda *_: None,
            "list_changed_files": lambda *_: ChangedFiles(None, []),
        }
        try:
            with patch.multiple(trusted_runs, **of_git):  # there is no repository with the commits of the artifact
                trusted = build_trusted_session(session, CONFIG, subject, header.base.commit, path.parent)
        except UnusableArtifact:
            continue
        verdict = judge(trusted, CONFIG)
        verdict_text.write_title(verdict, trusted, verdict.verdict, subject, GitHub())
        verdict_text.write_verdict_text(verdict, trusted, subject, None, GitHub())


def write_packed_document(draw: random.Random, path: Path, model: type[Record], member: str) -> None:
    pack(path, make_document(draw, model), member, draw)


def reply_with_bisection(path: Path) -> None:
    data = read_single_file(path.read_bytes(), bisection.MEMBER, MAX_RECORD_BYTES, "the artifact")
    bisection_page(parse_record(data, Bisection, "the artifact"))


def read_packed_proposal(path: Path) -> None:
    proposal.read_proposal(path.read_bytes(), "the artifact")


# Files of the guest

NONCE = "0" * 32
ENDED = LaunchResult(
    exit_code=0, timed_out=False, output_truncated=False, excess="", left_behind=0, unkilled=0, wall_s=9.0,
    log_tail="",
)  # fmt: skip
SPEC = RunSpec(position=Position(block=1, slot=0, order="ABBA"), attempt=1, steps=8, cut=2)


def write_raw_run(draw: random.Random, path: Path) -> None:
    """Write the record of a rank, with the answers that the request expects."""
    maker = DocumentMaker(draw, RawRun.json_schema(), draw.choice((0, 0, 1)), draw.choice((0, 1, 2)))
    fixed = {"request": NONCE, "workload": TASK.entry, "variant": TASK.variant.name, "rank": 0}
    names = [name for name in RawRun.json_schema()["properties"] if name not in fixed and name != "schema"]
    drawn = [f'"{name}":{maker.field(name)}' for name in names if draw.random() < 0.5]
    path.write_text("{" + ",".join([json.dumps(fixed)[1:-1], *drawn]) + "}", encoding="utf-8")


def build_runs(path: Path) -> None:
    """Make the runs of a trace and of a launch with one rank from the guest's record, and store them."""
    record = RawRecord(path, NONCE)
    arm = HEADER.head
    build_run(TASK, arm, ENDED, record, 1).to_line()
    read_ranks(TASK, SPEC, arm, ENDED, record, NODE).to_line()


def read_hang_reports(path: Path) -> None:
    read_stacks(path.read_bytes().decode("utf-8", "replace"))


# Traces, logs and other files: samples with changed bytes

SAMPLES = {
    "golden": b'{"iteration-time": {"start_step": 1, "end_step": 9, "step_interval": 1, "values": {"1": 2, "2": 2}}}',
    "tensorboard": json.dumps([[1.7e9 + step / 4, step, 0.25] for step in range(1, 8)]).encode(),
    "maxtext": b"completed step: 0, seconds: 1.353, TFLOP/s/device: 1674.038, loss: 9\n" * 5,
    "nemo": b"Training epoch 0, iteration 7/29 | global_step: 7 | train_step_timing in s: 2.01 |\n" * 5,
    "megatron": b" iteration        1/     100 | elapsed time per iteration (ms): 212.5 | throughput per GPU "
    b"(TFLOP/s/GPU): 91.3 | lm loss: 1.08E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    * 5,
    "torchtitan": b"step:  1  loss:  6.13972  grad_norm:  2.4066  tps: 350,777  tflops: 25.11  mfu: 2.54%\n" * 5,
}
"""A sample of each log format, by its name. Readers of traces have samples in ``tests``."""
TOKENS = (
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b",",
        b":",
        b"\n",
        b"\\",
        b"(",
        b")",
        b"/*",
        b"\x00",
        b"\xff",
        b"0",
        b"-1",
        b"1e999",
    ),
    *(b"9" * 30, b"9" * 5000, b"NaN", b"null", b'{"traceEvents":[', b'"a":', b"f32[2]{0} ", b"while("),
)


def find_samples(recognises: Callable[[bytes], bool]) -> list[bytes]:
    """Return the files in ``tests`` that have a format, without compression."""
    samples = []
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.is_file() and path.stat().st_size <= 2 * SMALL_BYTES and "/golden/" not in str(path):
            data = path.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            if recognises(data[:65536]):
                samples.append(data[: 2 * SMALL_BYTES])
    return samples


def mutate(draw: random.Random, data: bytes) -> bytes:
    """Return ``data``, at most ``SMALL_BYTES``, with changes to its JSON, to its lines or to its bytes."""
    change = draw.choice((mutate_json, mutate_json, mutate_lines, mutate_bytes))
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        data = change(draw, data)
    return data[:SMALL_BYTES]


def mutate_json(draw: random.Random, data: bytes) -> bytes:
    """Change one value of a JSON document, or of one line of JSON: replace, remove, nest or repeat it."""
    try:
        document = [json.loads(data)]
    except (ValueError, RecursionError):
        *before, line = data.split(b"\n")[: draw.randrange(1, data.count(b"\n") + 2)]
        try:
            document, after = [json.loads(line)], data[len(b"\n".join([*before, line])) :]
        except (ValueError, RecursionError):
            return mutate_lines(draw, data)
    else:
        before, after = [], b""
    container: Any = document
    key: Any = 0
    while isinstance(container[key], dict | list) and container[key] and draw.random() < 0.85:
        container = container[key]
        key = draw.choice(list(container)) if isinstance(container, dict) else draw.randrange(len(container))
    value = container[key]
    match draw.randrange(5):
        case 0:
            container[key] = draw.choice(
                (None, True, -1, 0, 2**63, 10**400, 1e300, 0.5, "", "x" * 5000, [], {}, "9" * 400)
            )
        case 1 if container is not document:
            del container[key]
        case 2:
            for _ in range(draw.choice((1, 20, 600))):
                value = draw.choice(([value], {"a": value}))
            container[key] = value
        case 3 if isinstance(container, list) and container is not document:
            container[key:key] = [value] * min(int(2 ** draw.uniform(0, 14)), SMALL_BYTES // len(json.dumps(value)) + 1)
        case _ if isinstance(container, dict):
            copies = min(int(2 ** draw.uniform(0, 12)), SMALL_BYTES // len(json.dumps(value)) + 1)
            container |= {f"{key}{number}": value for number in range(copies)}
    return b"\n".join([*before, json.dumps(document[0]).encode()]) + after


def mutate_lines(draw: random.Random, data: bytes) -> bytes:
    """Repeat, remove or move some lines. The copies of a line differ in their numbers, or are equal."""
    lines = data.splitlines(keepends=True) or [b""]
    start = draw.randrange(len(lines))
    block = lines[start : start + draw.choice((1, 1, 2, 5, 20))]
    copies = min(int(2 ** draw.uniform(0, 12)), SMALL_BYTES // (len(b"".join(block)) + 1) + 1)
    match draw.randrange(4):
        case 0:
            del lines[start : start + len(block)]
        case 1:
            lines[start:start] = block * copies
        case 2:
            numbered = [re.sub(rb"(?<=[%._ ])\d+", b"%d" % copy, line) for copy in range(copies) for line in block]
            lines[start:start] = numbered
        case 3:
            place = draw.randrange(len(lines))
            lines[place:place] = block
    return b"".join(lines)


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Remove, replace, repeat or move a slice."""
    changed = bytearray(data)
    start = draw.randrange(len(changed) + 1)
    end = min(len(changed), start + int(2 ** draw.uniform(0, 12)))
    part = bytes(changed[start:end])
    match draw.randrange(5):
        case 0:
            changed[start:end] = b""
        case 1:
            changed[start:end] = draw.choice(TOKENS) * int(2 ** draw.uniform(0, 14))
        case 2:
            changed[start:end] = part * int(2 ** draw.uniform(0, 14 - min(12, len(part).bit_length())))
        case 3:
            numbers = [number.span() for number in re.finditer(rb"\d+", part)]
            first, last = draw.choice(numbers) if numbers else (0, 0)
            changed[start + first : start + last] = draw.choice(TOKENS)
        case 4:
            place = draw.randrange(len(changed) + 1)
            changed[place:place] = part
    return bytes(changed)


def write_mutant(draw: random.Random, path: Path, samples: list[bytes]) -> None:
    data = mutate(draw, draw.choice(samples))
    if draw.random() < 0.1:  # a long repetition, which gzip makes small
        data = gzip.compress(data[: draw.randrange(1, 4096)] * int(2 ** draw.uniform(0, 12)))[:SMALL_BYTES]
    path.write_bytes(data)


def nsys_samples() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = export(
            Path(folder) / "x.sqlite",
            ["ncclAllReduce", ("ncclAllToAll", '{"Message size [bytes]": 8}')],
            [("ncclDevKernel_AllReduce", 0, 9)],
        )
        return [path.read_bytes()]


def list_targets() -> Iterator[Target]:
    yield Target("session artifact", write_session, conclude, (RecordError,))
    yield Target(
        "bisection artifact",
        partial(write_packed_document, model=Bisection, member=bisection.MEMBER),
        reply_with_bisection,
        (RecordError,),
    )
    proposal_model = next(model for model in list_models() if model.__name__ == "Proposal")
    yield Target(
        "proposal artifact",
        partial(write_packed_document, model=proposal_model, member=proposal.MEMBER),
        read_packed_proposal,
        (UserError,),
    )
    yield Target("record of the guest", write_raw_run, build_runs, (), LARGE)
    for model in list_models():
        yield Target(
            f"record {model.__name__}",
            partial(write_document, model=model),
            partial(read_record, model=model),
            (RecordError,),
            LARGE,
        )
    for reader in READERS:
        samples = nsys_samples() if reader.NAME == "nsys" else find_samples(reader.recognises)
        yield Target(
            f"reader {reader.NAME}",
            partial(write_mutant, samples=samples),
            lambda path, reader=reader: reader.read(Source(path)),
            (ReadError,),
        )
    for log_format in FORMATS:
        yield Target(
            f"log {log_format.NAME}",
            partial(write_mutant, samples=[SAMPLES[log_format.NAME]]),
            lambda path, log_format=log_format: log_format.read(StepLogFile(path, 1.0)),
            (LogError,),
        )
    documents = find_samples(lambda head: head.lstrip()[:1] == b"{")
    yield Target("configuration dump", partial(write_mutant, samples=documents), read_dump, (RecordError,))
    yield Target("reports of a hang", partial(write_mutant, samples=[*documents, bytes(4096)]), read_hang_reports, ())


TARGETS = list(list_targets())
