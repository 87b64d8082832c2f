"""Parse the nodes' messages from srun's output, and combine their reports about one launch into one result."""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from regbot.engines.launch import LaunchResult
from regbot.engines.local import TAIL_CHARACTERS, plain_tail
from regbot.engines.slurm.node import END, RESULT
from regbot.records.health import MAX_GPUS, Health
from regbot.records.text.clip import clip_message

Reports = Mapping[int, Mapping[str, Any]]
"""Report of each node, by the node's number in the seat."""

MAX_MESSAGES = 100
"""Number of srun's own lines that are kept."""
_IGNORED_MESSAGE = "lacks support for cpu binding"


class Inbox:
    """Sorts srun's output into messages of the nodes and words of srun. Thread-safe."""

    def __init__(self, nonce: str) -> None:
        """``nonce`` marks the lines of the nodes."""
        self._marked = re.compile(rf"^{nonce} (\d{{1,6}}) (.*)$")
        self._rest = ""
        self._pieces: dict[int, list[str]] = defaultdict(list)
        self._reports: dict[str, dict[int, Any]] = defaultdict(dict)
        self._srun_lines: list[str] = []
        self.changed = threading.Condition()
        """Notified after each output."""

    def receive(self, data: bytes) -> None:
        with self.changed:
            *lines, self._rest = (self._rest + data.decode("utf-8", "replace")).split("\n")
            for line in lines:
                if match := self._marked.match(line):
                    self._receive_piece(int(match.group(1)), match.group(2))
                elif _IGNORED_MESSAGE not in line:
                    self._srun_lines = [*self._srun_lines, line][-MAX_MESSAGES:]
            self.changed.notify_all()

    def reports(self, launch_id: str) -> Reports:
        """Return the reports about one launch that have arrived."""
        with self.changed:
            return dict(self._reports[launch_id])

    @property
    def srun_messages(self) -> str:
        with self.changed:
            return plain_tail("\n".join([*self._srun_lines, self._rest]))

    def _receive_piece(self, number: int, piece: str) -> None:
        if piece != END:
            self._pieces[number].append(piece)
            return
        with suppress(ValueError):
            message = json.loads("".join(self._pieces.pop(number, [])))
            self._reports[message.pop("id")][number] = message


def combine_reports(reports: Reports, hosts: Sequence[str]) -> LaunchResult:
    """Combine the nodes' results into one. Exit code and log are those of the nodes that timed out, else of those that
    failed, else of the first. Of several, the exit code is that of the node that ended first. The failure of one rank
    ends the ranks of other nodes, and a node may notice it before the failed rank's own node does, so the logs of the
    two nodes that ended first are kept."""
    results = {number: RESULT.validate_json(json.dumps(reports[number]["result"])) for number in sorted(reports)}
    all_results = list(results.values())
    timed_out_nodes = [number for number, result in results.items() if result.timed_out]
    failed_nodes = [number for number, result in results.items() if result.exit_code != 0]
    by_end = sorted(timed_out_nodes or failed_nodes or [min(results)], key=lambda number: results[number].wall_s)
    log_tail = results[by_end[0]].log_tail
    if len(by_end) > 1:
        ends = (f"{hosts[number]}:\n{results[number].log_tail[-TAIL_CHARACTERS // 2 + 300 :]}" for number in by_end[:2])
        log_tail = "\n".join(ends)  # 300 characters are for the name of a host
    health_by_host = {hosts[number]: result.health for number, result in results.items() if result.health}
    return replace(
        results[by_end[0]],
        timed_out=bool(timed_out_nodes),
        output_truncated=any(result.output_truncated for result in all_results),
        excess=next((result.excess for result in all_results if result.excess), ""),
        left_behind=sum(result.left_behind for result in all_results),
        unkilled=sum(result.unkilled for result in all_results),
        wall_s=max(result.wall_s for result in all_results),
        log_tail=log_tail,
        health=_combine_health(health_by_host) if health_by_host else None,
        warnings=tuple(f"{hosts[number]}: {text}" for number, result in results.items() for text in result.warnings),
    )


def _combine_health(health_by_host: Mapping[str, Health]) -> Health:
    """Combine the first node's processors and all nodes' GPUs and causes."""
    first, *others = all_health = list(health_by_host.values())
    gpus = [gpu for health in all_health for gpu in health.during.gpus][:MAX_GPUS]
    samples = min(health.during.samples for health in all_health)
    causes = [
        cause.model_copy(update={"text": clip_message(f"{host}: {cause.text}")} if others else {})
        for host, health in health_by_host.items()
        for cause in health.causes
    ]
    return Health(
        before=[gpu for health in all_health for gpu in health.before][:MAX_GPUS],
        during=first.during.model_copy(update={"samples": samples, "gpus": gpus}),
        causes=causes,
    )


def find_missing_file(folder: Path, reports: Reports) -> tuple[int, str] | None:
    """Return node and name of the first file that is missing or incomplete in ``folder``; None if there is none."""
    for number, report in reports.items():
        for name, size in report["files"].items():
            path = folder / name
            if not path.exists() or path.stat().st_size < size:
                return number, name
    return None
