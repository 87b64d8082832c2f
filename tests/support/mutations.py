"""Files damaged at random, reproducibly: what a reader has to survive.

One mutation is one to three of: flipped bytes, a cut, a span deleted or doubled or moved, a number replaced by another,
half of a surrogate pair in a string.
The same seed gives the same damage.
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from regbot.ledgers.readers import Reader, ReadError, Source
from regbot.records.ledger import Ledger
from support.nsys_exports import export
from traces.writer import GEMM, Writer, event, step, text

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
    writer = Writer()
    for number in range(4):
        writer.add(step(number, 1000 * number, 900), event("kernel", GEMM, 1000 * number + 60, 300, 7, 0))
        writer.call("all_to_allv", 1000 * number + 10, 1000 * number + 40, 100)
    return text(writer.events).encode()


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
