"""Read what the stages wrote, with the same code that reads every timed run of regbot."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from gpu_hour.launcher import MARKS
from regbot.engines import LaunchResult
from regbot.records.run import Arm, Node, Position, Run
from regbot.workloads.guest import RawRecord
from regbot.workloads.hang import add_hang_report
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, smoke_task
from regbot.workloads.timed import RunSpec, read_ranks


@dataclass(frozen=True)
class StageRecords:
    """The folder of one stage, ``out/STAGE``."""

    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.json("settings.json")
        return settings

    @cached_property
    def launches(self) -> Mapping[str, dict[str, Any]]:
        """The launches of the stage by name. A launch that was left out for lack of time has the key ``skipped``."""
        return {launch["name"]: launch for launch in self.json("launches.json")}

    @property
    def on_gpu(self) -> bool:
        return bool(self.settings["device"] == "cuda")

    def json(self, *parts: str) -> Any:
        """Return the JSON document in a file of the stage's folder. Raises FileNotFoundError."""
        return json.loads(self.folder.joinpath(*parts).read_text(encoding="utf-8"))

    def record(self, launch: str, name: str) -> Path:
        """Return the path of a file in a launch's record folder."""
        return self.folder / launch / "record" / name

    def node(self) -> Node:
        """Return the stage's machine. Its class is that of ``regbot run`` on the same machine."""
        gpus, driver = self.settings["gpu_names"], self.settings["driver"]
        names = {name: gpus.count(name) for name in gpus}
        node_class = " + ".join(f"{count} x {name}" for name, count in names.items()) or "processors"
        return Node(name="first-hour", node_class=node_class, cores=self.settings["cores"], gpus=gpus, driver=driver)

    def task(self, launch: str) -> Task:
        """Return the task that a launch of the smoke model runs."""
        request = self.json(launch, "request.json")
        shape = load_shape(request["workload"].partition("@")[0])
        return smoke_task(shape, request["variant"], world=request["world"], ep=request["ep"])

    def run(self, launch: str, arm: Literal["base", "head"] = "head", position: Position | None = None) -> Run:
        """Return a launch of timed steps as ``regbot run`` records it. ``position`` is its place in a session."""
        entry, request = self.launches[launch], self.json(launch, "request.json")
        folder = self.record(launch, "")
        for mark, changed_ns in entry["marks_ns"].items():  # a copy of the folder may have lost them
            if mark in MARKS:
                os.utime(folder / mark, ns=(changed_ns, changed_ns))
        result = LaunchResult(
            exit_code=entry["code"],
            timed_out=entry["timed_out"],
            output_truncated=False,
            excess="",
            left_behind=0,
            unkilled=0,
            wall_s=entry["wall_s"],
            log_tail=self.log(launch),
        )
        spec = RunSpec(position or Position(block=0, slot=0, order="ABBA"), 1, request["steps"], request["warmup"])
        record = RawRecord(folder / "raw.{rank}.json", request["request"])
        commit = Arm(name=arm, revision="first hour", commit="0" * 40, tree="0" * 40)
        run = read_ranks(self.task(launch), spec, commit, result, record, self.node())
        run = run.model_copy(update={"node": self.node(), "started_unix_s": entry["started_unix_s"]})
        return add_hang_report(run, folder, request["world"], Path(request["root"]))

    def log(self, launch: str) -> str:
        """Return the last lines of a launch's output."""
        lines = (self.folder / launch / "output.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-20:])[-3000:]

    def missing(self, launch: str) -> str:
        """Return why a launch has no result, '' if it ended with exit code 0."""
        entry = self.launches.get(launch)
        if entry is None or entry.get("skipped"):
            return "left out: the stage had no time for it" if entry else "was not launched"
        if entry["timed_out"]:
            return f"did not end within {entry['wall_s']:.0f} s"
        if entry["code"]:
            lines = [line for line in self.log(launch).splitlines() if "Error" in line or "refus" in line]
            return f"exit code {entry['code']}: {(lines or [''])[-1].strip()[:200]}"
        return ""
