"""Cost of a queue of sessions on a private Slurm with two pseudo-nodes, and a check that no session is lost.

One process requests all sessions at once, with a thread for each. They are real timed sessions of a command without
torch. Each has six runs of a fraction of a second, so nearly all of the time is the overhead of regbot and Slurm. The
peers are batch scripts with the same commands, submitted by plain sbatch. One kind of script runs the commands
directly; it gives the lower limit. The other kind runs each command as a job step. In addition, one step of a seat is
compared with a bare srun.

    REGBOT_CLUSTER=1 .ci/unprivileged python benchmarks/cluster.py [--sessions N]

Needs slurm-wlm and munge, and another user than root.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from promises import Promise, report_promises
from queued_sessions import (
    COMMAND,
    FIRST,
    PLACES,
    PROGRAMS,
    WINDOW_S,
    QueueResult,
    arms_in,
    measure,
    memory,
    most_per_s,
    task_of,
)

from regbot.engines import Launch, LocalEngine, Needs, clean_environment
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.engine import SlurmEngine
from regbot.records.config import SlurmSettings
from support.slurm_cluster import Cluster, missing

MOST_MB = 256.0
"""Limit on the memory of the driver: a quarter of the memory of a small runner."""
MOST_GROWTH_MB = 8.0
MOST_BLOCKS = 300.0
"""Limit on the memory blocks that a session leaves behind.

The runs of one session have 670 blocks and 100 kB, so a driver that kept them would grow by 18 MB in 180 sessions.
Caches of limited size keep 95 blocks of each of the first sessions. Waiting threads use memory that is freed later,
which can hide a growth. Blocks are therefore counted when all threads have ended."""
MOST_POLLS = 2.0
"""Limit on the squeue commands per second, because other users wait for the controller too. One squeue for each job
that is submitted or cancelled is not counted."""
MOST_STEP_S = 1.0
MOST_SESSION_S = 12.0
"""Limit on the overhead of a session of six runs, in seconds of a node: 3% of a session whose runs take a minute."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--peers", type=int, default=40, help="batch scripts of each kind of peer")
    parser.add_argument("--turns", type=int, default=11, help="steps of each kind; 0 to leave them out")
    options = parser.parse_args()
    if os.geteuid() == 0 or missing():
        print(f"nothing was measured: {', '.join(missing()) or 'a private Slurm is not run as root'}")
        return 1
    with tempfile.TemporaryDirectory(prefix="rb-") as name, Cluster(Path(name, "slurm")) as cluster:
        folder = Path(name)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
        step_promises = report_steps(measure_steps(cluster, folder / "steps", options.turns)) if options.turns else []
        limit, peer = (run_scripts(cluster, folder / kind, options.peers, kind) for kind in ("script", "steps"))
        measure(cluster, folder / "first", 2)  # loads modules and fills caches that are kept
        queue = measure(cluster, folder / "queue", options.sessions)
        return report_promises([*report_queue(queue, limit, peer), *step_promises])


def run_scripts(cluster: Cluster, folder: Path, jobs: int, kind: str) -> float:
    """Return the seconds of a node for one batch script with the commands of a session.

    If ``kind`` is ``steps``, the script runs each command as a job step.
    """
    arms_in(folder)
    _, plan = task_of()
    before = "srun --nodes=1 --ntasks=1 --mpi=none " if kind == "steps" else ""
    run = f"{before}{sys.executable} {' '.join(COMMAND)} {plan.steps}"
    script = f"cd {folder / 'base'}\n" + "\n".join([run] * len(PLACES))
    begun = time.monotonic()
    numbers = [cluster.submit(script, "--nodes=1", "--exclusive", "--export=NONE") for _ in range(jobs)]
    while cluster.jobs():
        time.sleep(0.1)
    took = time.monotonic() - begun
    wanted = plan.steps * len(PLACES)
    assert all(cluster.output(number).count("completed step") == wanted for number in numbers)
    return took * len(cluster.nodes) / jobs


def measure_steps(cluster: Cluster, folder: Path, turns: int) -> dict[str, list[float]]:
    """Measure steps of each kind in turns, in seconds. The kinds show what the time of a step of a seat consists of."""
    folder.mkdir()
    launch = Launch(
        command=("/bin/true",), cwd=folder, env=clean_environment({}), log=folder / "output.log",
        record_dir=folder / "record", timeout_s=60, max_output_bytes=2**16, max_dir_bytes=2**16,
    )  # fmt: skip
    seconds_by_kind: dict[str, list[float]] = {}
    environment = Slurm(cluster.environment())
    with (
        SlurmEngine(SlurmSettings(), folder / "shared", environment) as engine,
        engine.seat(Needs(ranks=0)) as seat,
    ):
        srun = ["srun", f"--jobid={seat.allocation.job}", "--nodes=1", "--ntasks=1", "--overlap", "--export=NONE"]
        srun += ["--chdir=/", "--mpi=none"]
        python = [*srun, sys.executable, "-I", "-B", "-X", "utf8", "-c"]
        kinds: dict[str, Callable[[], object]] = {
            BARE: lambda: cluster.run(*srun, "/bin/true").check_returncode(),
            "srun of a bare interpreter": lambda: cluster.run(*python, "").check_returncode(),
            "srun of the node side's imports": lambda: cluster.run(
                *python, "import regbot.engines.slurm.node"
            ).check_returncode(),
            STEP: lambda: seat.run(launch),
            "a launch of the local engine": lambda: LocalEngine().unlocked_seat.run(launch),
        }
        for _ in range(turns):
            for kind, run_step in kinds.items():
                begun = time.perf_counter()
                run_step()
                seconds_by_kind.setdefault(kind, []).append(time.perf_counter() - begun)
    return seconds_by_kind


BARE, STEP = "srun of true", "a step of a seat"


def report_steps(seconds_by_kind: dict[str, list[float]]) -> list[Promise]:
    print(f"one step of /bin/true, median and range of {len(seconds_by_kind[STEP])}, s")
    for kind, values in seconds_by_kind.items():
        print(f"  {kind:<32} {statistics.median(values):.3f}  {min(values):.3f} to {max(values):.3f}")
    bare, step = (statistics.median(seconds_by_kind[kind]) for kind in (BARE, STEP))
    more = f"{step - bare:.2f} s, {step / bare:.1f} times"
    return [Promise(f"a step takes at most {MOST_STEP_S:g} s more than srun of true", more, step - bare <= MOST_STEP_S)]


def report_queue(queue: QueueResult, limit: float, peer: float) -> list[Promise]:
    number = len(queue.times)
    node_s = queue.wall_s * 2 / queue.sessions
    print(f"{queue.sessions} sessions of {len(PLACES)} runs, 2 nodes: {queue.wall_s:.0f} s")
    print(f"  sessions a minute  {60 * queue.sessions / queue.wall_s:.1f}, load {os.getloadavg()[0]:.1f} at the end")
    print(f"  seconds of a node  {node_s:.2f} for a session")
    print(f"    plain sbatch of its commands {limit:.2f}, the limit: {node_s / limit:.1f} times")
    print(f"    plain sbatch, each a step    {peer:.2f}: {node_s / peer:.1f} times")
    if number:
        report_times(queue)
    polls = most_per_s(queue.commands, ["squeue"], less=["sbatch", "scancel"])
    peak, more = memory(queue)
    first, kept = min(FIRST, queue.sessions // 2), queue.kept / queue.sessions
    growth = f"{more:.1f} MB, {1000 * more / (queue.sessions - first):.0f} kB a session"
    lost = "; ".join(queue.errors[:3]) or f"{number} of {queue.sessions} sessions whole"
    return [
        Promise("all finish, with each run exactly once", lost, number == queue.sessions and not queue.errors),
        Promise("nothing is left", "; ".join(queue.left[:3]) or "no job, reservation, thread, open file",
                not queue.left),
        Promise(f"the driver has at most {MOST_MB:.0f} MB", f"{peak:.0f} MB", peak <= MOST_MB),
        Promise(f"it grows by at most {MOST_GROWTH_MB:.0f} MB after {first} sessions", growth,
                more <= MOST_GROWTH_MB),
        Promise(f"a session that has ended keeps at most {MOST_BLOCKS:.0f} blocks of memory", f"{kept:.0f}",
                kept <= MOST_BLOCKS),
        Promise(f"it polls at most {MOST_POLLS:g} times a second in any {WINDOW_S:.0f} s", f"{polls:.1f}",
                polls <= MOST_POLLS),
        Promise(f"a session takes at most {MOST_SESSION_S:g} s more of a node than plain sbatch",
                f"{node_s - limit:.1f} s", node_s - limit <= MOST_SESSION_S),
    ]  # fmt: skip


def report_times(queue: QueueResult) -> None:
    """Print which parts the time of a session has, and how many commands go to the controller."""
    mean = {name: statistics.mean(getattr(times, name) for times in queue.times) for name in vars(queue.times[0])}
    total_s = mean["all"] - mean["submission"]
    overhead_s = mean["steps"] - mean["guest"]
    rest = total_s - mean["queue"] - mean["facts"] - mean["steps"] - mean["release"]
    parts = {
        "Slurm's queue": mean["queue"],
        "asking the nodes what they are": mean["facts"],
        "starting and reporting six runs": overhead_s,
        "the commands themselves": mean["guest"],
        "giving the nodes back": mean["release"],
        "the driver": rest,
    }
    print(f"  a session from its submission to its end, {total_s:.2f} s in the mean")
    for what, seconds in parts.items():
        print(f"    {what:<32} {seconds:6.2f} s  {seconds / total_s:4.0%}")
    counts = Counter(program for _, program in queue.commands)
    per_session = ", ".join(f"{program} {counts[program] / queue.sessions:.1f}" for program in PROGRAMS)
    print(f"  commands for a session: {per_session}")
    most = ", ".join(
        f"{most_per_s(queue.commands, programs):.1f} of {what}"
        for what, programs in (("squeue", ["squeue"]), ("all", PROGRAMS))
    )
    print(f"  commands a second at most, in any {WINDOW_S:.0f} s: {most}")


if __name__ == "__main__":
    sys.exit(main())
