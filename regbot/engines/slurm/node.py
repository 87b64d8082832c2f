"""What srun starts on every node of a seat.

It runs under regbot's own interpreter, which all nodes see. The order of all nodes comes as one line on standard input,
whose end says that regbot is gone; each node takes its own part, does with it what the local engine does, and reports
in lines of standard output.
"""

import ctypes
import dataclasses
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from regbot.engines.availability import available
from regbot.engines.engine import EngineError, Launch
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox, version
from regbot.node import this_node

GIVEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""Variables by which Slurm tells a job its GPUs."""
PORTS = 16
LINE, END = 400, "=end"
BEGUN = "begun"
PR_SET_DUMPABLE = 4


def facts(folder: Path, sandbox: Sandbox | None) -> dict[str, Any]:
    """What this node is, whether it sees ``folder``, free ports, and what confines here, or why nothing can."""
    sockets = [socket.socket() for _ in range(PORTS)]
    try:
        for each in sockets:
            each.bind(("", 0))
        ports = [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
    return {
        "node": this_node().model_dump(),
        "sees": (folder / "heartbeat").exists(),
        "ports": ports,
        "sandbox": version() if sandbox is not None else "",
        "open": available(sandbox) if sandbox is not None else "",
    }


def launched(order: dict[str, Any], number: int) -> dict[str, Any]:
    """Run the part of node ``number`` to its end: how it ended, and what it left in its folder."""
    launch = Launch(
        command=tuple(order["commands"][number]),
        cwd=Path(order["cwd"]),
        log=Path(order["logs"][number]),
        record_dir=Path(order["record_dir"]),
        env=order["env"] | {name: os.environ[name] for name in GIVEN if name in os.environ},
        readable=tuple(map(Path, order["readable"])),
        writable=tuple(map(Path, order["writable"])),
        timeout_s=order["timeout_s"],
        max_output_bytes=order["max_output_bytes"],
        max_dir_bytes=order["max_dir_bytes"],
    )
    ended = LocalEngine(sandbox=sandbox_told(order["sandbox"]), stamps=number == 0).here.run(launch)
    health = ended.health and ended.health.model_dump(by_alias=True)
    return vars(ended) | {"health": health, "files": sizes(launch.record_dir)}


def order_of(launch: Launch) -> dict[str, Any]:
    """What all nodes are told alike; commands and logs are each node's own."""
    told = {field.name: getattr(launch, field.name) for field in dataclasses.fields(launch)}
    del told["command"], told["log"], told["ranks"]
    return json.loads(json.dumps(told, default=_plain))  # type: ignore[no-any-return]


def sizes(folder: Path) -> dict[str, int]:
    """The files of a record, so that regbot knows when a shared file system shows all of them."""
    entries = sorted(folder.iterdir())[:10_000]
    return {each.name: each.stat().st_size for each in entries if each.is_file() and not each.is_symlink()}


def as_told(sandbox: Sandbox) -> dict[str, Any]:
    """A sandbox as an order carries it."""
    return json.loads(json.dumps(dataclasses.asdict(sandbox), default=_plain))  # type: ignore[no-any-return]


def sandbox_told(told: dict[str, Any] | None) -> Sandbox | None:
    """What an order tells of the sandbox."""
    if told is None:
        return None
    return Sandbox(**{**told, **{name: tuple(map(Path, told[name])) for name in ("read", "write")}})


def sealed(nonce: str, number: int, text: str) -> None:
    """Print ``text`` in short lines, because srun breaks long ones where its buffer ends; each says whose it is."""
    parts = [text[at : at + LINE] for at in range(0, len(text), LINE)]
    for part in (*parts, END):
        sys.stdout.write(f"{nonce} {number} {part}\n")
    sys.stdout.flush()


def unseen() -> None:
    """Keep processes of the same user from opening what this one has open: its output is believed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else dict(value)


def _end_with_regbot() -> None:
    """The end of this process is the sign for its supervisor to kill everything."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    """Answer on standard output. A guest that did not end well is an exit code, so that srun ends the other nodes."""
    unseen()
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            return
        line += data
    order = json.loads(line)
    number = order["hosts"].index(os.environ["SLURMD_NODENAME"])  # Slurm's own numbers follow other orders too
    sealed(order["nonce"], number, BEGUN)
    threading.Thread(target=_end_with_regbot, daemon=True).start()
    result: dict[str, Any]
    try:
        if "facts" in order:
            result = facts(Path(order["facts"]), sandbox_told(order["sandbox"]))
        else:
            result = launched(order, number)
    except (EngineError, OSError) as error:
        result = {"error": str(error)}
    sealed(order["nonce"], number, json.dumps(result))
    if "facts" not in order and result.get("exit_code") != 0:
        sys.exit(1)
