"""Parse the nodes' reports about one launch from srun's output, and combine them into one result."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regbot.engines.conversation import SupervisorOutput
from regbot.engines.launch import LaunchResult
from regbot.engines.local import log_tail, plain_tail
from regbot.engines.slurm.node import BEGUN, END
from regbot.records.health import MAX_GPUS, Health, NodeSnapshot, NodeUsage
from regbot.records.text.clip import clip_message

Reports = Mapping[int, Mapping[str, Any]]
"""Report of each node, by the node's number in the seat."""

_MARKED = re.compile(r"^([0-9a-f]+) (\d{1,6}) (.*)$")
"""A line of a node's program: nonce, number of the node, text."""
_IGNORED_MESSAGE = "lacks support for cpu binding"


def parse_messages(output: SupervisorOutput, nonce: str, nodes: int) -> dict[int, list[Any]]:
    """Return the complete messages of each node, by the node's number: BEGUN, and the node's report.

    ``nonce`` marks the lines of this job step. Other lines, such as messages of srun, are left out.
    """
    pieces: dict[int, list[str]] = {}
    messages: dict[int, list[Any]] = {number: [] for number in range(nodes)}
    for line in output.text.decode("utf-8", "replace").split("\n"):
        match = _MARKED.match(line)
        if match is None:
            continue
        line_nonce, number_text, piece = match.groups()
        number = int(number_text)
        if line_nonce != nonce or number not in messages:
            continue
        if piece != END:
            pieces.setdefault(number, []).append(piece)
            continue
        text = "".join(pieces.pop(number, []))
        with suppress(ValueError):
            messages[number].append(text if text == BEGUN else json.loads(text))
    return messages


def combine_reports(
    reports: Mapping[int, Mapping[str, Any]], hosts: Sequence[str], logs: Sequence[Path]
) -> LaunchResult:
    """Combine the nodes' results into one. Exit code and log are those of the first node that timed out, else of the
    first that failed, else of the first."""
    results = list(reports.values())
    timed_out_nodes = [number for number, report in reports.items() if report["timed_out"]]
    failed_nodes = [number for number, report in reports.items() if report["exit_code"] != 0]
    worst_node = min(timed_out_nodes or failed_nodes or reports)
    reports_in_order = [(hosts[number], report) for number, report in sorted(reports.items())]
    return LaunchResult(
        exit_code=reports[worst_node]["exit_code"],
        timed_out=any(report["timed_out"] for report in results),
        output_truncated=any(report["output_truncated"] for report in results),
        excess=next((report["excess"] for report in results if report["excess"]), ""),
        left_behind=sum(report["left_behind"] for report in results),
        unkilled=sum(report["unkilled"] for report in results),
        wall_s=max(report["wall_s"] for report in results),
        log_tail=log_tail(logs[worst_node]),
        health=_combine_health({host: report["health"] for host, report in reports_in_order if report["health"]}),
        warnings=tuple(f"{host}: {text}" for host, report in reports_in_order for text in report["warnings"]),
    )


def _combine_health(health_by_host: Mapping[str, Any]) -> Health | None:
    """Combine the first node's processors and all nodes' GPUs and causes."""
    if not health_by_host:
        return None
    by_host = {host: Health.model_validate(health) for host, health in health_by_host.items()}
    first = next(iter(by_host.values()))

    def combine_snapshots(name: str) -> NodeSnapshot:
        snapshots = [getattr(health, name) for health in by_host.values()]
        return NodeSnapshot(gpus=[gpu for snapshot in snapshots for gpu in snapshot.gpus][:MAX_GPUS])

    during = NodeUsage(
        seconds=first.during.seconds,
        samples=min(health.during.samples for health in by_host.values()),
        cpu=first.during.cpu,
        gpus=[gpu for health in by_host.values() for gpu in health.during.gpus][:MAX_GPUS],
    )
    causes = [
        cause.model_copy(update={"text": clip_message(f"{host}: {cause.text}")} if len(by_host) > 1 else {})
        for host, health in by_host.items()
        for cause in health.causes
    ]
    return Health(before=combine_snapshots("before"), during=during, after=combine_snapshots("after"), causes=causes)


def srun_messages(output: SupervisorOutput) -> str:
    lines = output.text.decode("utf-8", "replace").split("\n")
    own_lines = [line for line in lines if not _MARKED.match(line) and _IGNORED_MESSAGE not in line]
    return plain_tail("\n".join(own_lines))


def find_missing_file(folder: Path, reports: Reports) -> tuple[int, str] | None:
    """Return node and name of the first file that is missing or incomplete in ``folder``; None if there is none."""
    for number, report in reports.items():
        for name, size in report["files"].items():
            path = folder / name
            if not path.exists() or path.stat().st_size < size:
                return number, name
    return None
