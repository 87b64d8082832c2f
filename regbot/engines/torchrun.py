"""Commands that start the ranks of one torch world with torch's own launcher. Each node runs one launcher process.

The launcher runs in the workload's interpreter, so the commands use only options that every torch since 2.0 has.
"""

from regbot.engines.launch import Launch


def single_node_command(launch: Launch) -> tuple[str, ...]:
    return _launcher_command(launch, "--standalone", "--nproc-per-node", str(launch.ranks))


def multi_node_command(launch: Launch, nodes: int, node: int, address: str, port: int) -> tuple[str, ...]:
    """Return torchrun's command for one node. ``address`` and ``port`` are those of the first node."""
    ranks_per_node = str(launch.ranks // nodes)
    position = ("--nnodes", str(nodes), "--node-rank", str(node))
    rendezvous = ("--master-addr", address, "--master-port", str(port))
    return _launcher_command(launch, *position, *rendezvous, "--nproc-per-node", ranks_per_node)


def _launcher_command(launch: Launch, *options: str) -> tuple[str, ...]:
    python, *arguments = launch.command
    # Without --log-dir, torchrun would leave a temporary folder behind.
    logs = ("--log-dir", str(launch.record_dir / "torchrun"))
    return (python, "-m", "torch.distributed.run", *options, *logs, *arguments)
