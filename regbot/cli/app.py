"""The command line. Each command parses its options, calls one function, prints the result, and returns an exit code.

Commands import the modules that they need inside their functions, so that ``--help`` is fast.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

# Print plain help texts. rich would take as long to import as all other modules together.
os.environ.setdefault("TYPER_USE_RICH", "0")

import typer
from typer.core import TyperCommand

from regbot.cli import baseline, ledger
from regbot.cli import bisect as bisect_command
from regbot.cli import explain as explain_command
from regbot.cli import github as github_commands
from regbot.cli import push as push_command
from regbot.cli.console import show
from regbot.cli.init import command as init_command
from regbot.cli.job_summary import write_job_summary
from regbot.cli.options import (
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
    check_engine,
    exit_code,
    progress,
    usage_errors,
)

if TYPE_CHECKING:
    from regbot.check.conclusion import CheckResult
    from regbot.cli.demo import PullRequest

app = typer.Typer(
    help="regbot judges pull requests to MoE training code: did the sharding change, did throughput change, and can "
    "the answer be trusted?",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(bisect_command.bisect)
app.command()(explain_command.explain)
app.command()(init_command.init)
app.command()(push_command.pre_push)
app.add_typer(ledger.app, name="ledger")
app.add_typer(baseline.app, name="baseline")
app.add_typer(github_commands.app, name="github")


class _ListOptionsCommand(TyperCommand):
    """A command whose options ``--base`` and ``--head`` take several values: all words up to the next option.

    So a shell pattern such as ``runs/*.csv`` can follow the option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each further value, and let typer parse the words.

        For example, ``--base 1.csv 2.csv`` becomes ``--base 1.csv --base 2.csv``."""
        expanded: list[str] = []
        list_option = ""  # the option whose values follow; '' after another option
        expects_value = False  # whether the last word was the option itself, without a value
        for word in args:
            if word.startswith("-"):
                name = word.partition("=")[0]
                list_option = name if name in ("--base", "--head") else ""
                expects_value = list_option == word
            elif list_option and not expects_value:
                expanded.append(list_option)
            else:
                expects_value = False
            expanded.append(word)
        return super().parse_args(ctx, expanded)


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    # typer calls this function before every command, and also without a command, for which the help text is printed.
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
        bool, typer.Option("--timed", help="Trace both meshes of every shape, and also time base and head.")
    ] = False,
    out: Out = Path("demo-out"),
) -> None:
    """Check a pull request with a planted change in a small demo repository. Needs no GPU.

    By default it traces both shapes on one mesh each, without timing. Exits 0 if regbot sees what was planted.
    """
    if harmless and slow:
        raise typer.BadParameter("--harmless and --slow are different pull requests; give only one of them")
    with usage_errors(), progress() as watch:
        from regbot.cli.demo.run import DemoOptions, run_demo

        pull_request: PullRequest = "fallback"  # the default: the all-to-all becomes all-gather and reduce-scatter
        if harmless:
            pull_request = "harmless"
        elif slow:
            pull_request = "slow"
        demo_options = DemoOptions(pull_request, out=out.resolve(), cache=cache_folder(), timed=timed or slow)
        result = run_demo(demo_options, watch)
    _print_verdict(result.check_result, as_json=False)
    typer.echo(f"\n{result.message}")
    raise typer.Exit(0 if result.as_planted else 1)


@app.command()
def check(
    *,
    base: Annotated[str | None, typer.Option("--base", metavar="REV", help="Default: merge base with main.")] = None,
    head: Annotated[str, typer.Option("--head", metavar="REV")] = "HEAD",
    base_set: Annotated[list[str] | None, typer.Option("--base-set", metavar="K=V", help="Set K to V in base.")] = None,
    head_set: Annotated[list[str] | None, typer.Option("--head-set", metavar="K=V", help="Set K to V in head.")] = None,
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
        Literal["pairs", "stored"] | None,
        typer.Option("--gate", metavar="G", help="What decides: pairs (default) or stored."),
    ] = None,
    more: Annotated[
        int, typer.Option("--more", metavar="N", min=0, help="Time N more pairs, and add earlier pairs of the code.")
    ] = 0,
    baselines: Baselines = None,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Refuse to run the code without a sandbox (docs/operator.md).")
    ] = False,
    no_sandbox: Annotated[
        bool,
        typer.Option("--no-sandbox", help="Run without a sandbox, even if the code is untrusted; the verdict says so."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted check in DIR.")] = False,
    out: Out = Path("regbot-out"),
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
    json: Json = False,
) -> None:
    """Judge a change: compare its collectives exactly without a GPU, and its step times by interleaved runs."""
    with usage_errors(resumable=out.resolve()), progress(quiet=json) as watch:
        from regbot.check.flow import CheckOptions
        from regbot.check.flow import check as run_check
        from regbot.judge import parse_expectation
        from regbot.records.config import parse_override

        check_engine(engine)
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
                more_pairs=more,
                baselines=baselines,
            ),
            watch,
        )
    _print_verdict(result, json)
    if result.out is not None:
        write_job_summary((result.out / "comment.md").read_text(encoding="utf-8"))
    raise typer.Exit(exit_code(result.verdict.verdict))


@app.command()
def run(
    *,
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    rev: Revision = None,
    variant: TimedVariant = None,
    world: Annotated[
        int | None, typer.Option("--world", metavar="N", min=1, help="Ranks. Default: a mesh that fits.")
    ] = None,
    engine: EngineName = "local",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the run record there.")] = None,
    json: Json = False,
) -> None:
    """Time one run of a workload. One run proves nothing: regbot compare needs at least four runs per arm."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.check.single_run import SingleRunOptions, run_once
        from regbot.cli.terminal import run_page
        from regbot.records.files import write_record

        check_engine(engine)
        options = SingleRunOptions(workload, rev=rev, variant=variant, engine=engine, world=world)
        run_record = run_once(options, Path.cwd(), cache_folder(), watch)
        if out is not None:
            write_record(out, run_record)
    show(run_record.to_json() if json else run_page(run_record), json)
    raise typer.Exit(0 if run_record.outcome == "ok" else exit_code("INVALID"))


@app.command()
def calibrate(
    *,
    workload: Annotated[str, typer.Argument(help="A shape's name, or a workload of ./regbot.toml [:SHAPE][/MESH].")],
    pairs: Annotated[
        int, typer.Option("--pairs", metavar="N", min=2, help="Pairs that compare the commit with itself.")
    ] = 20,
    inject: Annotated[
        float | None,
        typer.Option("--inject", metavar="PCT", min=0.1, help="Also make head's steps longer by PCT percent."),
    ] = None,
    injected_pairs: Annotated[
        int, typer.Option("--injected-pairs", metavar="N", min=2, help="Pairs with the injected slowdown.")
    ] = 5,
    rev: Revision = None,
    variant: TimedVariant = None,
    engine: EngineName = "local",
    store: StoreFolder = Path("baselines"),
    who: Who = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted calibration in DIR.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the sessions.")] = Path(
        "regbot-calibration"
    ),
    json: Json = False,
) -> None:
    """Compare a commit with itself to measure the noise of this node and how often the gate errs on it."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.baselines import Store
        from regbot.baselines.commands import default_who
        from regbot.check.calibrate.flow import CalibrationOptions, page
        from regbot.check.calibrate.flow import calibrate as run_calibration
        from regbot.check.single_run import SingleRunOptions

        options = CalibrationOptions(
            run=SingleRunOptions(workload, rev, variant, engine),
            out=out.resolve(),
            who=who or default_who(),
            pairs=pairs,
            injected_pct=inject or 0.0,
            injected_pairs=injected_pairs,
            resume=resume,
        )
        check_engine(engine)
        result = run_calibration(options, Store(store), Path.cwd(), cache_folder(), watch)
        text = result.calibration.to_json() if json else page(result)
    show(text, json)


@app.command()
def judge(
    sessions: Annotated[list[Path], typer.Argument(metavar="SESSION...", help="session.jsonl files.")],
    expect: Expect = None,
    config: ConfigFile = None,
    baselines: Baselines = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write the report there.")] = None,
    json: Json = False,
) -> None:
    """Compute the verdict again from session files, as the trusted half of a check does."""
    with usage_errors():
        from regbot.check.conclusion import judge_sessions
        from regbot.judge import parse_expectation

        result = judge_sessions(sessions, config, [parse_expectation(text) for text in expect or []], out, baselines)
    _print_verdict(result, json)
    raise typer.Exit(exit_code(result.verdict.verdict))


@app.command(cls=_ListOptionsCommand)
def compare(
    *,
    base: Annotated[list[Path], typer.Option("--base", metavar="F...", help="Step times of base, one file per run.")],
    head: Annotated[list[Path], typer.Option("--head", metavar="F...", help="Step times of head, one file per run.")],
    paired: Annotated[
        bool,
        typer.Option(
            "--paired", help="The i-th base file and the i-th head file are a pair, in the order of the session."
        ),
    ] = False,
    order: Annotated[
        Literal["abba", "alternating", "unknown"],
        typer.Option(
            "--order",
            metavar="O",
            help="Order of the runs in pairs, if the files have no start times: abba (base, head, head, base, ...), "
            "alternating, or unknown.",
        ),
    ] = "unknown",
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            metavar="PCT",
            min=0.001,
            help="Known sd of a pair's log-ratio, in percent. With --paired, one pair can suffice.",
        ),
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            "--skip", metavar="N", min=0, help="Warm-up steps to leave out. Default: all before the steady state."
        ),
    ] = None,
    tokens_per_step: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-step", metavar="N", min=1, help="Tokens of one step on one rank, for torchtitan logs."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Judge step times from files: CSV with the header step,step_s, run records, or logs of Megatron-LM, Megatron
    Bridge, MaxText and torchtitan. Golden values and TensorBoard's JSON export are logs too."""
    with usage_errors():
        from regbot.check.compare import ComparisonOptions, compare_page
        from regbot.check.compare import compare as compare_files

        options = ComparisonOptions(
            base=base,
            head=head,
            paired=paired,
            order=order,
            noise_pct=noise,
            skip=skip,
            tokens_per_step=tokens_per_step,
        )
        verdict = compare_files(options)
        text = verdict.to_json() if json else compare_page(verdict)
    show(text, json)
    raise typer.Exit(exit_code(verdict.verdict))


@app.command()
def shapes(
    name: Annotated[str | None, typer.Argument(help="Show this shape in full.")] = None, json: Json = False
) -> None:
    """List the fixed smoke shapes, or show one of them in full."""
    with usage_errors():
        from regbot.cli.terminal import shape_list, shape_page
        from regbot.workloads.shapes import load_shape, shape_names

        if name is None:
            all_shapes = [load_shape(shape_name) for shape_name in shape_names()]
            json_list = "[" + ",\n".join(shape.to_json() for shape in all_shapes) + "]"
            text = json_list if json else shape_list(all_shapes)
        else:
            shape = load_shape(name)
            text = shape.to_json() if json else shape_page(shape)
    show(text, json)


@app.command()
def doctor(
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="Report what this workload of regbot.toml needs to be traced instead.")
    ] = "",
    json: Json = False,
) -> None:
    """Report what this machine supports, and how to get what is missing."""
    with usage_errors():
        from regbot.cli.doctor.diagnosis import examine
        from regbot.cli.doctor.workload import examine_workload
        from regbot.cli.terminal import diagnosis_page

        diagnosis = examine_workload(workload, Path.cwd()) if workload else examine()
    show(diagnosis.to_json() if json else diagnosis_page(diagnosis), json)


@app.command()
def preflight(
    what: Annotated[
        str, typer.Argument(metavar="FILE|WORKLOAD", help="A ledger, run or configuration file, or a workload.")
    ],
    json: Json = False,
) -> None:
    """Report conflicts in a resolved configuration before any node is used, and what to try on this hardware."""
    with usage_errors(), progress(quiet=json) as watch:
        from regbot.check.preflight import examine_configuration
        from regbot.judge.preflight.rules import preflight_page

        result = examine_configuration(what, Path.cwd(), cache_folder(), watch)
        text = result.to_json() if json else preflight_page(result)
    show(text, json)
    is_invalid = any(conflict.severity == "invalid" for conflict in result.conflicts)
    raise typer.Exit(exit_code("INVALID") if is_invalid else 0)


def _print_verdict(result: "CheckResult", as_json: bool) -> None:
    """Print the verdict as JSON, or as a page that also names the files of the report."""
    if as_json:
        show(result.verdict.to_json(), as_json)
        return
    from regbot.cli.terminal import verdict_page
    from regbot.records.text.printable import typed_path

    out = typed_path(result.out) if result.out is not None else None
    show(verdict_page(result.verdict, out, result.session.header))
