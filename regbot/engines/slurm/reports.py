"""What the nodes of a seat say of one launch: read from srun's output, and put together as one end."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regbot.engines.conversation import Answer
from regbot.engines.engine import Ended
from regbot.engines.local import log_tail, plain_tail
from regbot.engines.slurm.node import BEGUN, END
from regbot.records.health import MAX_GPUS, During, Health, Moment

Reports = Mapping[int, Mapping[str, Any]]
"""What nodes reported, by their number in the seat."""

_SEALED = re.compile(r"^([0-9a-f]+) (\d{1,6}) (.*)$")
_HARMLESS = "lacks support for cpu binding"


def spoken(answer: Answer, nonce: str, nodes: int) -> dict[int, list[Any]]:
    """By the number of the node, what it said in whole: that it has begun, and its report.

    Other lines, such as srun's complaints, and what was cut off are left out; of more reports the first one holds.
    """
    parts: dict[int, list[str]] = {}
    found: dict[int, list[Any]] = {number: [] for number in range(nodes)}
    for line in answer.text.decode("utf-8", "replace").split("\n"):
        match = _SEALED.match(line)
        if match is None or match[1] != nonce or int(match[2]) not in found:
            continue
        number = int(match[2])
        if match[3] != END:
            parts.setdefault(number, []).append(match[3])
            continue
        text = "".join(parts.pop(number, []))
        with suppress(ValueError):
            found[number].append(text if text == BEGUN else json.loads(text))
    return found


def ended_of(reports: Mapping[int, Mapping[str, Any]], hosts: Sequence[str], logs: Sequence[Path]) -> Ended:
    """How a launch ended on all its nodes: as it did where it ended worst."""
    every = list(reports.values())
    worst = min(reports, key=lambda n: (not reports[n]["timed_out"], reports[n]["exit_code"] == 0, n))
    return Ended(
        exit_code=reports[worst]["exit_code"],
        timed_out=any(each["timed_out"] for each in every),
        output_truncated=any(each["output_truncated"] for each in every),
        dir_overflow=any(each["dir_overflow"] for each in every),
        left_behind=sum(each["left_behind"] for each in every),
        unkilled=sum(each["unkilled"] for each in every),
        wall_s=max(each["wall_s"] for each in every),
        log_tail=log_tail(logs[worst]),
        health=_health({hosts[number]: each["health"] for number, each in sorted(reports.items()) if each["health"]}),
        warnings=tuple(
            f"{hosts[number]}: {text}" for number, each in sorted(reports.items()) for text in each["warnings"]
        ),
    )


def _health(told: Mapping[str, Any]) -> Health | None:
    """Of all nodes as one: the first one's processors, everybody's GPUs, causes with the host's name."""
    if not told:
        return None
    found = {host: Health.model_validate(each) for host, each in told.items()}
    first = next(iter(found.values()))

    def moment(name: str) -> Moment:
        every = [getattr(each, name) for each in found.values()]
        return Moment(cpu=every[0].cpu, gpus=[gpu for each in every for gpu in each.gpus][:MAX_GPUS])

    during = During(
        seconds=first.during.seconds,
        samples=min(each.during.samples for each in found.values()),
        cpu=first.during.cpu,
        gpus=[gpu for each in found.values() for gpu in each.during.gpus][:MAX_GPUS],
    )
    causes = [
        cause.model_copy(update={"text": f"{host}: {cause.text}"[:4000]} if len(found) > 1 else {})
        for host, each in found.items()
        for cause in each.causes
    ]
    return Health(before=moment("before"), during=during, after=moment("after"), causes=causes)


def complaints(answer: Answer) -> str:
    """What srun itself said, the end of it."""
    lines = answer.text.decode("utf-8", "replace").split("\n")
    return plain_tail("\n".join(line for line in lines if not _SEALED.match(line) and _HARMLESS not in line))


def missing(folder: Path, reports: Reports) -> tuple[int, str] | None:
    """A file that a node says it wrote, and that is not seen here yet: the node, the name; None where all are."""
    for number, report in reports.items():
        for name, size in report["files"].items():
            path = folder / name
            if not path.exists() or path.stat().st_size < size:
                return number, name
    return None
