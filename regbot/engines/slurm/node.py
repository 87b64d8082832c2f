"""The program that srun starts on every node of a seat, in regbot's own interpreter. Standard input has one line with
the request for all nodes. If it closes, regbot is gone. Each node runs its part with the local engine, and prints its
report."""

import contextlib
import ctypes
import dataclasses
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from regbot.engines.availability import unavailable_reason
from regbot.engines.health.machine import this_node, without_gpus
from regbot.engines.launch import NO_GPUS, EngineError, Launch, NoSeatError
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox, bubblewrap_version

STDIN = 0
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
NUM_PORTS = 16
LINE_CHARACTERS, END = 400, "=end"
"""Maximum length of a line of a message, and the line that ends a message."""
BEGUN = "begun"
"""Message that a node sends before it starts to work on the request."""
PR_SET_DUMPABLE = 4


def collect_facts(folder: Path, sandbox: Sandbox | None, has_gpus: bool) -> dict[str, Any]:
    """Return this node, whether it sees the reservation's ``folder``, free ports, and why the sandbox does not work."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("", 0))) for _ in range(NUM_PORTS)]
        ports = [listener.getsockname()[1] for listener in listeners]
    node = this_node() if has_gpus else without_gpus(this_node())
    return {
        "node": node.model_dump(),
        "sees_folder": (folder / "heartbeat").exists(),
        "ports": ports,
        "sandbox": bubblewrap_version() if sandbox is not None else "",
        "sandbox_fault": unavailable_reason(sandbox) if sandbox is not None else "",
    }


def run_part(request: dict[str, Any], number: int) -> dict[str, Any]:
    """Run the part of node ``number``, from 0. Return its result, and the sizes of the files in its record."""
    env = request["env"]
    if not NO_GPUS.items() <= env.items():  # a launch that hides all GPUs keeps its environment
        env |= {name: os.environ[name] for name in GPU_VARIABLES if name in os.environ}
    launch = Launch(
        command=tuple(request["commands"][number]),
        cwd=Path(request["cwd"]),
        log=Path(request["logs"][number]),
        record_dir=Path(request["record_dir"]),
        env=env,
        readable=tuple(map(Path, request["readable"])),
        writable=tuple(map(Path, request["writable"])),
        timeout_s=request["timeout_s"],
        max_output_bytes=request["max_output_bytes"],
        max_dir_bytes=request["max_dir_bytes"],
        timed_between=request["timed_between"] and tuple(request["timed_between"]),
    )
    # All nodes share the record folder, so only the first one sets the times of its files.
    engine = LocalEngine(sandbox=load_sandbox(request["sandbox"]), sets_file_times=number == 0)
    result = engine.unlocked_seat.run(launch)
    health = result.health and result.health.model_dump(by_alias=True)
    return vars(result) | {"health": health, "files": file_sizes(launch.record_dir)}


def step_request(launch: Launch) -> dict[str, Any]:
    """Return the part of the request that is the same for all nodes, as JSON values. Command and log are left out."""
    fields = {field.name: getattr(launch, field.name) for field in dataclasses.fields(launch)}
    del fields["command"], fields["log"], fields["ranks"]
    return json.loads(json.dumps(fields, default=_to_json))  # type: ignore[no-any-return]


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of a record's files. regbot waits until a shared file system shows files of these sizes."""
    entries = sorted(folder.iterdir())[:10_000]
    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file() and not entry.is_symlink()}


def dump_sandbox(sandbox: Sandbox) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(sandbox), default=_to_json))  # type: ignore[no-any-return]


def load_sandbox(fields: dict[str, Any] | None) -> Sandbox | None:
    if fields is None:
        return None
    paths = {name: tuple(map(Path, fields[name])) for name in ("read", "write")}
    return Sandbox(**{**fields, **paths})


def print_marked(nonce: str, number: int, text: str) -> None:
    """Print ``text`` in short lines that begin with nonce and node number. srun would split longer lines."""
    pieces = [text[start : start + LINE_CHARACTERS] for start in range(0, len(text), LINE_CHARACTERS)]
    for piece in (*pieces, END):
        sys.stdout.write(f"{nonce} {number} {piece}\n")
    sys.stdout.flush()


def hide_process() -> None:
    """Prevent the guest, a process of the same user, from writing to this process's output, which regbot trusts."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _to_json(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else dict(value)


def _exit_with_regbot() -> None:
    """Exit when standard input closes, because regbot is then gone. The supervisor then kills all processes."""
    while os.read(STDIN, 4096):
        pass
    os._exit(1)


def main() -> None:
    """Answer the request on standard input. Exit with code 1 if the guest failed, so that srun ends the other nodes."""
    hide_process()
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(STDIN, 65536)
        if not data:  # regbot is gone
            return
        line += data
    request = json.loads(line)
    # Slurm numbers the nodes in its own order, so regbot's number is the index in the list of hosts.
    number = request["hosts"].index(os.environ["SLURMD_NODENAME"])
    print_marked(request["nonce"], number, BEGUN)
    threading.Thread(target=_exit_with_regbot, daemon=True).start()
    result: dict[str, Any]
    try:
        if "facts" in request:  # a request for facts about this node; its value is the reservation's folder
            result = collect_facts(Path(request["facts"]), load_sandbox(request["sandbox"]), request["has_gpus"])
        else:
            result = run_part(request, number)
    except (EngineError, OSError) as error:
        result = {"error": str(error) or type(error).__name__, "no_room": isinstance(error, NoSeatError)}
    print_marked(request["nonce"], number, json.dumps(result))
    if "facts" not in request and result.get("exit_code") != 0:
        sys.exit(1)
