"""What a queue of sessions costs on a private Slurm of two pseudo-nodes, and whether one of them is lost in it.

All sessions are asked for at once by one process, a thread for each: real timed sessions of a command without torch, as
short as a session can be, six runs of a fraction of a second. What is left is what regbot and Slurm take. Peers are
batch scripts with the same commands in them, queued by a plain sbatch: one that just runs them, the limit, and one that
runs each as a job step, as somebody without regbot would. Beside that, one step of a seat is held against a bare srun.

With ``--in-queue`` all sessions have a slot, so that they wait as jobs of Slurm's own queue.

    REGBOT_CLUSTER=1 .ci/unprivileged python benchmarks/cluster.py [--sessions N] [--slots N] [--in-queue]

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

from promises import Promise, told
from queued_sessions import ASKS, COMMAND, FIRST, PLACES, WINDOW_S, Found, arms_in, measure, memory, most_per_s, task_of

from regbot.config import SlurmSettings
from regbot.engines import Launch, LocalEngine, Needs, clean_environment
from regbot.engines.slurm import SlurmEngine
from regbot.engines.slurm.commands import Slurm
from slurm_cluster import Cluster, missing

MOST_MB = 256.0
"""A quarter of what a small runner has."""
MOST_GROWTH_MB = 8.0
MOST_BLOCKS = 300.0
"""The runs of one session are 670 blocks and 100 kB, so a driver that kept them would grow by 18 MB in 180 sessions.
Caches of a bounded size take 95 blocks of each of the first sessions. Threads that wait are memory too, which comes
back and hides some of a growth; blocks are counted when none of them is left."""
MOST_POLLS = 2.0
"""Of squeue per second, beside one for each job that is submitted or cancelled: others wait for the controller too."""
MOST_STEP_S = 1.0
MOST_SESSION_S = 12.0
"""Of a node's time, for a session of six runs: three percent of one whose runs take a minute."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--slots", type=int, default=2, help="sessions at a time; the others wait in the driver")
    parser.add_argument("--in-queue", action="store_true", help="a slot for every session: all wait in Slurm's queue")
    parser.add_argument("--peers", type=int, default=40, help="batch scripts of each kind of peer")
    parser.add_argument("--turns", type=int, default=11, help="steps of each kind; 0 to leave them out")
    asked = parser.parse_args()
    if os.geteuid() == 0 or missing():
        print(f"nothing was measured: {', '.join(missing()) or 'a private Slurm is not run as root'}")
        return 1
    slots = asked.sessions if asked.in_queue else asked.slots
    with tempfile.TemporaryDirectory(prefix="rb-") as name, Cluster(Path(name, "slurm")) as cluster:
        folder = Path(name)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
        made = of_steps(steps(cluster, folder / "steps", asked.turns)) if asked.turns else []
        limit, peer = (plain(cluster, folder / kind, asked.peers, kind) for kind in ("script", "steps"))
        measure(cluster, folder / "first", 2, 2)  # imports, and caches for good
        found = measure(cluster, folder / "queue", asked.sessions, slots)
        return told([*of_queue(found, limit, peer), *made])


def plain(cluster: Cluster, folder: Path, jobs: int, kind: str) -> float:
    """Seconds of a node for one batch script with the commands of a session, each of them a job step for ``steps``."""
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


def steps(cluster: Cluster, folder: Path, turns: int) -> dict[str, list[float]]:
    """Seconds of one step of each kind, in turns: what a step of a seat is made of."""
    folder.mkdir()
    launch = Launch(
        command=("/bin/true",), cwd=folder, env=clean_environment({}), log=folder / "output.log",
        record_dir=folder / "record", timeout_s=60, max_output_bytes=2**16, max_dir_bytes=2**16,
    )  # fmt: skip
    found: dict[str, list[float]] = {}
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
            "a launch of the local engine": lambda: LocalEngine().here.run(launch),
        }
        for _ in range(turns):
            for kind, do in kinds.items():
                begun = time.perf_counter()
                do()
                found.setdefault(kind, []).append(time.perf_counter() - begun)
    return found


BARE, STEP = "srun of true", "a step of a seat"


def of_steps(found: dict[str, list[float]]) -> list[Promise]:
    print(f"one step of /bin/true, median and range of {len(found[STEP])}, s")
    for kind, values in found.items():
        print(f"  {kind:<32} {statistics.median(values):.3f}  {min(values):.3f} to {max(values):.3f}")
    bare, step = (statistics.median(found[kind]) for kind in (BARE, STEP))
    more = f"{step - bare:.2f} s, {step / bare:.1f} times"
    return [Promise(f"a step takes at most {MOST_STEP_S:g} s more than srun of true", more, step - bare <= MOST_STEP_S)]


def of_queue(found: Found, limit: float, peer: float) -> list[Promise]:
    number = len(found.spent)
    node_s = found.wall_s * min(2, found.slots) / found.sessions
    print(f"{found.sessions} sessions of {len(PLACES)} runs, {found.slots} slots, 2 nodes: {found.wall_s:.0f} s")
    print(f"  sessions a minute  {60 * found.sessions / found.wall_s:.1f}, load {os.getloadavg()[0]:.1f} at the end")
    print(f"  seconds of a node  {node_s:.2f} for a session")
    print(f"    plain sbatch of its commands {limit:.2f}, the limit: {node_s / limit:.1f} times")
    print(f"    plain sbatch, each a step    {peer:.2f}: {node_s / peer:.1f} times")
    if number:
        shown(found)
    polls = most_per_s(found.asked, ["squeue"], less=["sbatch", "scancel"])
    peak, more = memory(found)
    first, kept = min(FIRST, found.sessions // 2), found.kept / found.sessions
    growth = f"{more:.1f} MB, {1000 * more / (found.sessions - first):.0f} kB a session"
    lost = "; ".join(found.errors[:3]) or f"{number} of {found.sessions} sessions whole"
    return [
        Promise("all finish, with each run exactly once", lost, number == found.sessions and not found.errors),
        Promise("nothing is left", "; ".join(found.left[:3]) or "no job, reservation, thread, open file",
                not found.left),
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


def shown(found: Found) -> None:
    """Where the time of a session goes, and what the controller is asked."""
    mean = {name: statistics.mean(getattr(each, name) for each in found.spent) for name in vars(found.spent[0])}
    held = mean["all"] - mean["slot"]
    over = mean["steps"] - mean["guest"]
    rest = held - mean["queue"] - mean["facts"] - mean["steps"] - mean["release"]
    parts = {
        "Slurm's queue": mean["queue"],
        "asking the nodes what they are": mean["facts"],
        "starting and reporting six runs": over,
        "the commands themselves": mean["guest"],
        "giving the nodes back": mean["release"],
        "the driver": rest,
    }
    print(f"  a session from its submission to its end, {held:.2f} s in the mean (and {mean['slot']:.0f} s for a slot)")
    for what, seconds in parts.items():
        print(f"    {what:<32} {seconds:6.2f} s  {seconds / held:4.0%}")
    times = Counter(word for _, word in found.asked)
    each = ", ".join(f"{word} {times[word] / found.sessions:.1f}" for word in ASKS)
    print(f"  commands for a session: {each}")
    most = ", ".join(
        f"{most_per_s(found.asked, words):.1f} of {what}" for what, words in (("squeue", ["squeue"]), ("all", ASKS))
    )
    print(f"  commands a second at most, in any {WINDOW_S:.0f} s: {most}")


if __name__ == "__main__":
    sys.exit(main())
