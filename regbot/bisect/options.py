"""Options of a bisection. The command line reads its options from this class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True)
class BisectionOptions:
    """Options of one bisection. A field with a ``typer`` annotation is an option of ``regbot bisect``."""

    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit without the change.")]
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A commit with the change.")]
    workloads: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None
    on: Annotated[
        Literal["ledger", "time", "command"] | None,
        typer.Option("--on", metavar="WHAT", help="ledger (default): exact counts, no GPU; time: noisy step times."),
    ] = None
    command: Annotated[
        str | None, typer.Option("--command", metavar="CMD", help="Bisect the cost that CMD prints as its last line.")
    ] = None
    exact: Annotated[bool, typer.Option("--exact", help="The command's cost has no noise.")] = False
    axis: Annotated[
        str,
        typer.Option("--axis", metavar="PKG=V1..V2", help="Search versions of a dependency, at BAD, and not commits."),
    ] = ""
    check: Annotated[
        Path | None, typer.Option("--check", metavar="DIR", help="Reuse the runs of this check. Default: regbot-out.")
    ] = None
    effect_pct: Annotated[
        float | None, typer.Option("--effect", metavar="PCT", min=0.01, help="Smallest slowdown to look for.")
    ] = None
    noise_pct: Annotated[
        float | None, typer.Option("--noise", metavar="PCT", min=0.001, help="Known sd of one run, in percent.")
    ] = None
    summary: Annotated[
        Literal["median", "mean"],
        typer.Option("--summary", metavar="S", help="Step time of a run: median or mean of its steps."),
    ] = "median"
    most_runs: Annotated[int, typer.Option("--runs", metavar="N", min=2, help="Limit on the number of runs.")] = 200
    build: Annotated[
        list[str] | None,
        typer.Option("--build", metavar="CMD", help="With --command: build command of a new checkout."),
    ] = None
    timeout_min: Annotated[
        float, typer.Option("--timeout", metavar="MIN", min=0.01, help="With --command: time limit of one command.")
    ] = 10.0
    engine: Annotated[str, typer.Option("--engine", metavar="E", help="Where runs execute: local, slurm.")] = "local"
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Use this regbot.toml instead of the good commit's.")
    ] = None
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Refuse to run the code without a sandbox (docs/operator.md).")
    ] = False
    plan: Annotated[bool, typer.Option("--plan", help="Print the expected cost, and start nothing.")] = False
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted bisection in DIR.")] = False
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the log and the result.")] = Path(
        "regbot-bisect"
    )
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path()
    cache: Path = Path()
    """Cache folder of this machine."""
