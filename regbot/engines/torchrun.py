"""Commands that start the ranks of one torch world with torch's own launcher. Each node runs one launcher process.

The launcher runs in the workload's interpreter, so the commands use only options that every torch since 2.0 has.
"""

from pathlib import Path

from regbot.engines.launch import Launch

LAUNCHER = ("-m", "torch.distributed.run")


def single_node_command(launch: Launch) -> tuple[str, ...]:
    return _launcher_command(launch, "--standalone", "--nproc-per-node", str(launch.ranks))


def multi_node_command(launch: Launch, nodes: int, node: int, address: str, port: int) -> tuple[str, ...]:
    """Return torchrun's command for one node. ``address`` and ``port`` are those of the first node."""
    ranks_per_node = str(launch.ranks // nodes)
    position = ("--nnodes", str(nodes), "--node-rank", str(node))
    rendezvous = ("--master-addr", address, "--master-port", str(port))
    return _launcher_command(launch, *position, *rendezvous, "--nproc-per-node", ranks_per_node)


def launcher_logs(launch: Launch) -> Path:
    """Return the folder for torchrun's logs. Without --log-dir, torchrun would leave a temporary folder behind."""
    return launch.record_dir / "torchrun"


def _launcher_command(launch: Launch, *options: str) -> tuple[str, ...]:
    python, *arguments = launch.command
    return (python, *LAUNCHER, *options, "--log-dir", str(launcher_logs(launch)), *arguments)
