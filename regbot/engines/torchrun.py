"""The ranks of one torch world, started by torch's own launcher: one of it on each node.

The launcher runs in the workload's interpreter, so its options are those that every torch since 2.0 knows.
"""

from pathlib import Path

from regbot.engines.engine import Launch

LAUNCHER = ("-m", "torch.distributed.run")


def standalone(launch: Launch) -> tuple[str, ...]:
    """The command of all ranks on one node."""
    return _words(launch, "--standalone", "--nproc-per-node", str(launch.ranks))


def spread(launch: Launch, nodes: int, node: int, address: str, port: int) -> tuple[str, ...]:
    """The command of node number ``node`` of ``nodes``, where ranks are the same number on each.

    ``address`` is the first node's, as the others reach it; ``port`` is free there.
    """
    each = str(launch.ranks // nodes)
    meeting = ("--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", address, "--master-port", str(port))
    return _words(launch, *meeting, "--nproc-per-node", each)


def launcher_logs(launch: Launch) -> Path:
    """The folder that the launcher makes; without one of ours it leaves one behind."""
    return launch.record_dir / "torchrun"


def _words(launch: Launch, *options: str) -> tuple[str, ...]:
    python, *arguments = launch.command
    return (python, *LAUNCHER, *options, "--log-dir", str(launcher_logs(launch)), *arguments)
