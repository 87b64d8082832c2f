"""The command line: parse, call one function, print, exit code. What is imported where decides how fast help is."""

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

os.environ.setdefault("TYPER_USE_RICH", "0")  # plain help: rich alone costs as much as everything else together

import typer
from typer.core import TyperCommand

from regbot.commands import baseline, ledger
from regbot.commands import bisect as bisect_command
from regbot.commands import github as github_commands
from regbot.commands import init as init_command
from regbot.commands import node as node_commands
from regbot.commands import shadow as shadow_commands
from regbot.commands.options import (
    Baselines,
    ConfigFile,
    EngineName,
    Expect,
    Json,
    NodeConfigFile,
    Out,
    Revision,
    StoreFolder,
    TimedVariant,
    Who,
    cache_folder,
    exit_code,
    known_engine,
    progress,
    usage_errors,
)

if TYPE_CHECKING:
    from regbot.conclusion import Checked
    from regbot.demo import PullRequest

INTERNAL_ERROR = 70
"""A fault of regbot itself: a code that no verdict has, so that no build takes it for a regression."""

app = typer.Typer(
    help="Did the sharding change, did throughput change, can the answer be trusted: regbot judges pull requests to "
    "MoE training code.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(bisect_command.bisect)
app.command()(init_command.init)
app.add_typer(ledger.app, name="ledger")
app.add_typer(baseline.app, name="baseline")
app.add_typer(shadow_commands.app, name="shadow")
app.add_typer(node_commands.app, name="node")
app.add_typer(github_commands.app, name="github")


class _Lists(TyperCommand):
    """A command whose ``--base`` and ``--head`` take all values up to the next option, as a shell's ``*`` gives."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        option, waiting = "", False
        for word in args:
            if word.startswith("-"):
                name = word.partition("=")[0]
                option = name if name in ("--base", "--head") else ""
                waiting = option == word
            elif option and not waiting:
                spread.append(option)
            else:
                waiting = False
            spread.append(word)
        return super().parse_args(ctx, spread)


def main() -> None:
    """Entry point of the ``regbot`` command."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        print("regbot: this is a fault of regbot; please report it with the lines above", file=sys.stderr)
        sys.exit(INTERNAL_ERROR)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from regbot import __version__

        typer.echo(f"regbot {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    harmless: Annotated[bool, typer.Option("--harmless", help="A pull request that changes nothing.")] = False,
    slow: Annotated[
        bool, typer.Option("--slow", help="A slow pull request with unchanged collectives; implies --timed.")
    ] = False,
    timed: Annotated[
        bool, typer.Option("--timed", help="Trace both meshes of every shape, and time base and head too.")
    ] = False,
    out: Out = Path("demo-out"),
) -> None:
    """The main job on embedded defaults: a small repository, a pull request, a verdict. Needs no GPU.

    Traces both shapes on one mesh each, without timing. Exits 0 when regbot saw what was planted.
    """
    if harmless and slow:
        raise typer.BadParameter("--harmless and --slow are two different pull requests; give one of them")
    with usage_errors(), progress() as watch:
        from regbot.demo.run import DemoOptions, run_demo

        pull_request: PullRequest = "harmless" if harmless else "slow" if slow else "fallback"
        result = run_demo(DemoOptions(pull_request, out.resolve(), cache_folder(), timed or slow), watch)
    print_checked(result.checked, as_json=False)
    typer.echo(f"\n{result.message}")
    raise typer.Exit(0 if result.as_planted else 1)


@app.command()
def check(
    base: Annotated[str | None, typer.Option("--base", metavar="REV", help="Default: merge base with main.")] = None,
    head: Annotated[str, typer.Option("--head", metavar="REV")] = "HEAD",
    base_set: Annotated[list[str] | None, typer.Option("--base-set", metavar="K=V", help="Override at base.")] = None,
    head_set: Annotated[list[str] | None, typer.Option("--head-set", metavar="K=V", help="Override at head.")] = None,
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    engine: EngineName = "local",
    expect: Expect = None,
    config: ConfigFile = None,
    node_config: NodeConfigFile = None,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="MIN", min=0.1, help="Minutes of timed runs. Default: 60.")
    ] = None,
    no_timing: Annotated[bool, typer.Option("--no-timing", help="Only the sharding verdict: time nothing.")] = False,
    gate: Annotated[
        Literal["screen", "pairs", "stored"] | None,
        typer.Option("--gate", metavar="G", help="screen (default): stored sessions first, then pairs; pairs; stored."),
    ] = None,
    more: Annotated[
        int, typer.Option("--more", metavar="N", min=0, help="Add N pairs to what was timed before on the same trees.")
    ] = 0,
    baselines: Baselines = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Block nothing: exit 0, and note down what would have been said.")
    ] = False,
    scoreboard: shadow_commands.Folder = Path("shadow"),
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Run the code in a sandbox, or not at all (docs/sandbox.md).")
    ] = False,
    no_sandbox: Annotated[
        bool, typer.Option("--no-sandbox", help="Run untrusted code without a sandbox; the verdict says so.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the check in DIR that was ended.")] = False,
    out: Out = Path("regbot-out"),
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Judge a change: its collectives exactly and without a GPU, its step times by interleaved runs."""
    with usage_errors(resumable=out.resolve()), progress(quiet=json) as watch:
        from regbot.check import CheckOptions
        from regbot.check import check as run_check
        from regbot.config import parse_override
        from regbot.judge import parse_expectation

        known_engine(engine)
        result = run_check(
            CheckOptions(
                engine=engine,
                untrusted=untrusted,
                no_sandbox=no_sandbox,
                repo=repo,
                cache=cache_folder(),
                out=out.resolve(),
                base=base,
                head=head,
                base_overrides=dict(parse_override(text, "--base-set") for text in base_set or []),
                head_overrides=dict(parse_override(text, "--head-set") for text in head_set or []),
                workloads=workload or [],
                expectations=[parse_expectation(text) for text in expect or []],
                config=config,
                node_config=node_config,
                timing=not no_timing,
                budget_min=budget,
                resume=resume,
                gate=gate,
                more=more,
                baselines=baselines,
            ),
            watch,
        )
        noted = _noted(result, scoreboard) if shadow else ""
    print_checked(result, json)
    if shadow:
        typer.echo(noted, err=json)
        raise typer.Exit(0)
    raise typer.Exit(exit_code(result.verdict.verdict))


@app.command()
def run(
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    rev: Revision = None,
    variant: TimedVariant = None,
    engine: EngineName = "local",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the run record there.")] = None,
    json: Json = False,
) -> None:
    """Time one run of a workload. One run proves nothing: regbot compare wants at least four of each side."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.records.files import write_record
        from regbot.single import Single, run_once
        from regbot.terminal import run_page

        known_engine(engine)
        found = run_once(Single(workload, rev, variant, engine), Path.cwd(), cache_folder(), watch)
        if out is not None:
            write_record(out, found)
    typer.echo((found.to_json() if json else run_page(found)).rstrip("\n"))
    raise typer.Exit(0 if found.outcome == "ok" else exit_code("INVALID"))


@app.command()
def calibrate(
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    pairs: Annotated[int, typer.Option("--pairs", metavar="N", min=2, help="Pairs of the commit against itself.")] = 20,
    inject: Annotated[
        float | None,
        typer.Option("--inject", metavar="PCT", min=0.1, help="Also make head's steps longer by so much."),
    ] = None,
    injected_pairs: Annotated[
        int, typer.Option("--injected-pairs", metavar="N", min=2, help="Pairs with the injected slowdown.")
    ] = 5,
    rev: Revision = None,
    variant: TimedVariant = None,
    engine: EngineName = "local",
    store: StoreFolder = Path("baselines"),
    who: Who = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the calibration in DIR that was ended.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the sessions.")] = Path(
        "regbot-calibration"
    ),
    json: Json = False,
) -> None:
    """Compare a commit with itself: the noise of this node, and how often the gate is wrong on it."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.baselines import Store
        from regbot.baselines.commands import default_who
        from regbot.calibrate import Asked, page
        from regbot.calibrate import calibrate as run_calibration

        asked = Asked(
            workload,
            out.resolve(),
            who or default_who(),
            rev,
            variant,
            pairs,
            inject or 0.0,
            injected_pairs,
            resume,
            engine,
        )
        known_engine(engine)
        found = run_calibration(asked, Store(store), Path.cwd(), cache_folder(), watch)
        text = found.calibration.to_json() if json else page(found)
    typer.echo(text.rstrip("\n"))


@app.command()
def judge(
    sessions: Annotated[list[Path], typer.Argument(metavar="SESSION...", help="session.jsonl files.")],
    expect: Expect = None,
    config: ConfigFile = None,
    baselines: Baselines = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")] = None,
    json: Json = False,
) -> None:
    """The trusted half of check: compute the verdict again from session files."""
    with usage_errors():
        from regbot.conclusion import judge_sessions
        from regbot.judge import parse_expectation

        checked = judge_sessions(sessions, config, [parse_expectation(text) for text in expect or []], out, baselines)
    print_checked(checked, json)
    raise typer.Exit(exit_code(checked.verdict.verdict))


@app.command(cls=_Lists)
def compare(
    base: Annotated[list[Path], typer.Option("--base", metavar="F...", help="Step times of base, one file a run.")],
    head: Annotated[list[Path], typer.Option("--head", metavar="F...", help="Step times of head, one file a run.")],
    paired: Annotated[
        bool, typer.Option("--paired", help="The i-th base and head file are a pair, in session order.")
    ] = False,
    noise: Annotated[
        float | None, typer.Option("--noise", metavar="PCT", help="Known sd of a pair's log-ratio: one run may do.")
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip", metavar="N", help="Steps to leave out as warm-up. Default: those before the steady state."
        ),
    ] = None,
    tokens_per_step: Annotated[
        float | None,
        typer.Option("--tokens-per-step", metavar="N", help="Of one step on one rank, for logs of torchtitan."),
    ] = None,
    json: Json = False,
) -> None:
    """Judge step times from files: CSV with the header step,step_s, Run records, or logs of Megatron-LM, Megatron
    Bridge, MaxText and torchtitan, golden values and TensorBoard's JSON export among them."""
    with usage_errors():
        from regbot.compare import Comparison, compare_page
        from regbot.compare import compare as compare_files

        verdict = compare_files(Comparison(base, head, paired, noise, skip, tokens_per_step))
        text = verdict.to_json() if json else compare_page(verdict)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(exit_code(verdict.verdict))


@app.command()
def shapes(
    name: Annotated[str | None, typer.Argument(help="One shape in full.")] = None,
    json: Json = False,
) -> None:
    """The fixed smoke shapes, or one of them in full."""
    with usage_errors():
        from regbot.shapes import load_shape, shape_names
        from regbot.terminal import shape_list, shape_page

        if name is None:
            found = [load_shape(each) for each in shape_names()]
            text = "[" + ",\n".join(shape.to_json() for shape in found) + "]" if json else shape_list(found)
        else:
            shape = load_shape(name)
            text = shape.to_json() if json else shape_page(shape)
    typer.echo(text.rstrip("\n"))


@app.command()
def doctor(json: Json = False) -> None:
    """What this machine can do, and what is missing for the rest."""
    with usage_errors():
        from regbot.doctor import examine
        from regbot.terminal import diagnosis_page

        diagnosis = examine()
    typer.echo((diagnosis.to_json() if json else diagnosis_page(diagnosis)).rstrip("\n"))


@app.command()
def preflight(
    what: Annotated[
        str, typer.Argument(metavar="FILE|WORKLOAD", help="A ledger, run or configuration; or a workload.")
    ],
    json: Json = False,
) -> None:
    """Conflicts of a resolved configuration, before any node is used, and what to try on this hardware."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.preflight import preflight_page
        from regbot.resolved import examine_configuration

        found = examine_configuration(what, Path.cwd(), cache_folder(), watch)
        text = found.record().to_json() if json else preflight_page(found.conflicts, found.advice, found.unknown)
    typer.echo(text.rstrip("\n"))
    raise typer.Exit(exit_code("INVALID") if found.invalid else 0)


def _noted(checked: "Checked", scoreboard: Path) -> str:
    """Note down what a shadow check would have said; the sentence that tells so."""
    from datetime import UTC, datetime

    from regbot.shadow import BLOCKING, record
    from regbot.shadow.page import shadow_sentence

    status = checked.verdict.verdict
    path = record(checked.verdict, scoreboard, datetime.now(UTC))
    return shadow_sentence(status, status in BLOCKING, path)


def print_checked(checked: "Checked", as_json: bool) -> None:
    if as_json:
        typer.echo(checked.verdict.to_json().rstrip("\n"))
        return
    from regbot.terminal import verdict_page
    from regbot.text import typed_path

    out = typed_path(checked.out) if checked.out is not None else None
    typer.echo(verdict_page(checked.verdict, out, checked.session.header).rstrip("\n"))
