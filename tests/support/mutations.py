"""Files damaged at random, reproducibly: what a reader has to survive.

One mutation is one to three of: flipped bytes, a cut, a span deleted or doubled or moved, a number replaced by another,
half of a surrogate pair in a string.
The same seed gives the same damage.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from regbot.ledgers.readers import Reader, ReadError, Source
from regbot.records.ledger import Ledger
from support.nsys_exports import export

HERE = Path(__file__).parents[1]
_NUMBER = re.compile(rb"\d+")
_STRING = re.compile(rb'"[^"\\]*"')
_NUMBERS = (b"0", b"-1", b"65537", b"9007199254740993", b"99999999999999999999", b"1e999", b"")


def samples(folder: Path) -> dict[str, list[bytes]]:
    """Small valid files of every format, by the reader's name."""
    comms = "ncclCommInitRank", '{"NCCL communicator ID": 99, "No. of ranks": 8}'
    sized = '{"NCCL communicator ID": 99, "Message size [bytes]": 4096}'
    group = ("ncclGroupStart", "ncclSend", "ncclRecv", "ncclSend", "ncclRecv", "ncclGroupEnd")
    kernels = [("ncclDevKernel_AllReduce_Sum_bf16", 0, 100), ("sm90_gemm", 50, 400), ("ncclDevKernel_Generic", 9, 10)]
    database = export(folder / "sample.sqlite", [comms, ("ncclAllReduce", sized), *group], kernels)
    return {
        "hlo": [path.read_bytes() for path in sorted((HERE / "hlo").glob("*.hlo.txt"))],
        "flight-recorder": [(HERE / "dumps" / "flight_recorder_gloo.json").read_bytes()],
        "nccl-inspector": [(HERE / "dumps" / "inspector.jsonl").read_bytes()],
        "nsys": [database.read_bytes()],
        "kineto": [_trace()],
    }


def _trace() -> bytes:
    """Two steps of a Kineto trace with one all-to-all each."""
    events: list[dict[str, object]] = []

    def add(category: str, name: str, start: float, length: float, thread: int, **args: object) -> None:
        head = {"ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 100, "tid": thread}
        events.append({**head, "ts": start, "dur": length, "args": args})

    comms = {"Collective name": "all_to_allv", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 8}
    more = {"dtype": "BFloat16", "Process Group Name": "5", "Process Group Description": "mesh_ep", "Seq": 7}
    ranks = {"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Rank": 0}
    for step in range(4):
        at = 1000.0 * step
        add("user_annotation", f"ProfilerStep#{step}", at, 900, 100, **{"External id": step})
        add("cpu_op", "record_param_comms", at + 10, 20, 100, **comms, **more, **ranks, **{"External id": 10 + step})
        add("cuda_runtime", "cudaLaunchKernelExC", at + 15, 3, 100, correlation=50 + step, **{"External id": 10 + step})
        add("kernel", "ncclDevKernel_SendRecv(x)", at + 40, 100, 20, correlation=50 + step, **comms, **more, **ranks)
        add("kernel", "sm90_gemm", at + 60, 300, 7, correlation=60 + step)
    info = {"backend": "nccl", "rank": 0, "world_size": 8}
    return json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}).encode()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data``, damaged."""
    for _ in range(chance.randint(1, 3)):
        damage: Callable[[bytes, random.Random], bytes] = chance.choice(
            (_flip, _flip, _cut, _delete, _double, _move, _count, _surrogate)
        )
        data = damage(data, chance)
    return data


def outcomes(reader: Reader, sample: list[bytes], runs: int, seed: str, folder: Path) -> Iterator[Ledger | ReadError]:
    """What ``reader`` made of ``runs`` damaged files. Raises whatever else it raised, with the file left behind."""
    chance = random.Random(f"{reader.NAME} {seed}")
    path = folder / f"{reader.NAME}.damaged"
    for number in range(runs):
        path.write_bytes(mutated(sample[number % len(sample)], chance))
        try:
            yield reader.read(Source(path))
        except ReadError as error:
            yield error


def _span(data: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + int(2 ** chance.uniform(0, 10)))


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8) if changed else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _delete(data: bytes, chance: random.Random) -> bytes:
    start, end = _span(data, chance)
    return data[:start] + data[end:]


def _double(data: bytes, chance: random.Random) -> bytes:
    start, end = _span(data, chance)
    return data[:end] + data[start:end] + data[end:]


def _move(data: bytes, chance: random.Random) -> bytes:
    (start, end), (to, _) = _span(data, chance), _span(data, chance)
    return data[:to] + data[start:end] + data[to:]


def _surrogate(data: bytes, chance: random.Random) -> bytes:
    """JSON may say it, and no record can hold it: it is no character."""
    found = _STRING.search(data, chance.randrange(len(data) + 1))
    if found is None:
        return data
    place = found.start() + 1
    return data[:place] + chance.choice((rb"\ud800", rb"\udfff")) + data[place:]


def _count(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    found = _NUMBER.search(data, start)
    return data[: found.start()] + chance.choice(_NUMBERS) + data[found.end() :] if found else data
