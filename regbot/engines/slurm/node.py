"""The program that runs on every node of a seat, in regbot's own interpreter, as long as regbot holds the seat. regbot
sends it lines of JSON on standard input: first the setup, then launches. For each it prints a report. If standard input
closes or stays silent, regbot is gone: the program ends, and with it its launches."""

import ctypes
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from regbot.engines.availability import unavailable_reason
from regbot.engines.health.machine import this_node, without_gpus
from regbot.engines.launch import NO_GPUS, EngineError, Launch, LaunchResult, NoSeatError
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import bubblewrap_version
from regbot.records.config import SandboxSettings

STDIN = 0
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
NUM_PORTS = 16
LINE_CHARACTERS, END = 400, "=end"
"""Maximum length of a line of a message, and the line that ends a message."""
FACTS = "facts"
"""The id of the first message of a node, which has facts about it."""
HEARTBEAT = "heartbeat"
"""File in the folder of a reservation. A node that does not see it does not share the folder."""
PR_SET_DUMPABLE = 4

LAUNCH, RESULT = TypeAdapter(Launch), TypeAdapter(LaunchResult)
SANDBOX: TypeAdapter[SandboxSettings | None] = TypeAdapter(SandboxSettings | None)


class NodeProgram:
    def __init__(self, nonce: str) -> None:
        """``nonce`` marks the lines of this program."""
        self._nonce = nonce
        self._number = int(os.environ["SLURM_PROCID"])
        """Number of this node in the seat, from 0."""
        self._print_lock = threading.Lock()
        self._aborted: set[str] = set()
        """Ids of launches that have failed on another node."""

    def serve(self, requests: Iterator[bytes]) -> None:
        """Begin the launches that regbot requests, until there are no more requests."""
        for line in requests:
            request = json.loads(line)
            if "abort" in request:
                self._aborted.add(request["abort"])
            elif self._number < len(request["commands"]):
                threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def print_message(self, message: dict[str, Any]) -> None:
        """Print ``message`` in short lines that begin with nonce and node number. srun would split longer lines."""
        text = json.dumps(message)
        pieces = [text[start : start + LINE_CHARACTERS] for start in range(0, len(text), LINE_CHARACTERS)]
        with self._print_lock:
            sys.stdout.write("".join(f"{self._nonce} {self._number} {piece}\n" for piece in (*pieces, END)))
            sys.stdout.flush()

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            report = self._run_part(request)
        except Exception as error:
            report = {"error": str(error) or type(error).__name__, "no_room": isinstance(error, NoSeatError)}
            if request["id"] in self._aborted:
                report = {}
        self.print_message({"id": request["id"], **report})

    def _run_part(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run this node's part of a launch. Return its result, and the sizes of the files in its record."""

        def check() -> None:
            if request["id"] in self._aborted:
                raise EngineError("failed on another node")

        launch = LAUNCH.validate_python(request["launch"])
        command, log = tuple(request["commands"][self._number]), Path(request["logs"][self._number])
        env = dict(launch.env)
        if not NO_GPUS.items() <= env.items():  # a launch that hides all GPUs keeps its environment
            env |= {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}
        # The command already starts the ranks of this node.
        launch = replace(launch, command=command, log=log, env=env, ranks=0)
        engine = LocalEngine(sandbox=SANDBOX.validate_python(request["sandbox"]), check=check)
        result = engine.unlocked_seat.run(launch)
        return {
            "result": RESULT.dump_python(result, mode="json", by_alias=True),
            "files": file_sizes(launch.record_dir),
        }


def collect_facts(setup: dict[str, Any]) -> dict[str, Any]:
    """Return the job, this node, whether it sees the reservation's folder, free ports, and why the sandbox does not
    work."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("", 0))) for _ in range(NUM_PORTS)]
        ports = [listener.getsockname()[1] for listener in listeners]
    heartbeat = Path(setup["folder"], HEARTBEAT)
    deadline = time.monotonic() + setup["lag_s"]
    while not heartbeat.exists() and time.monotonic() < deadline:
        time.sleep(1.0)
    node = this_node() if setup["has_gpus"] else without_gpus(this_node())
    sandbox = SANDBOX.validate_python(setup["sandbox"])
    return {
        "job": os.environ["SLURM_JOB_ID"],
        "host": os.environ["SLURMD_NODENAME"],
        "node": node.model_dump(),
        "sees_folder": heartbeat.exists(),
        "ports": ports,
        "sandbox": bubblewrap_version() if sandbox is not None else "",
        "sandbox_fault": unavailable_reason(sandbox) if sandbox is not None else "",
    }


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of a record's files. regbot waits until a shared file system shows files of these sizes."""
    entries = sorted(folder.iterdir())[:10_000]
    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file() and not entry.is_symlink()}


def read_lines(silent_s: float) -> Iterator[bytes]:
    """Yield the lines of standard input, until it closes or nothing comes for ``silent_s`` seconds. A heartbeat is an
    empty line."""
    rest = b""
    while select.select([STDIN], [], [], silent_s)[0] and (data := os.read(STDIN, 65536)):
        *lines, rest = (rest + data).split(b"\n")
        yield from filter(None, lines)


def main() -> None:
    # The guest, a process of the same user, may not write to this process's output, which regbot trusts.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    requests = read_lines(float(sys.argv[1]))
    if line := next(requests, b""):
        setup = json.loads(line)
        program = NodeProgram(setup["nonce"])
        program.print_message({"id": FACTS, **collect_facts(setup)})
        program.serve(requests)
    os._exit(0)  # the supervisors of unfinished launches then kill all their processes
