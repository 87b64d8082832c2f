"""``regbot bisect``: parse the options, run the search, and print its result."""

import dataclasses
import inspect
from typing import Any, get_type_hints

import typer

from regbot.bisect.options import BisectionOptions
from regbot.cli.console import show
from regbot.cli.options import Json, cache_folder, check_engine, progress, usage_errors
from regbot.errors import UserError


def bisect(*, json: Json = False, **values: Any) -> None:
    """Find the commit that changed the collectives, made the steps slower, or raised the cost that a command prints."""
    options = BisectionOptions(**values, cache=cache_folder())
    options = dataclasses.replace(options, out=options.out.resolve(), repo=options.repo.resolve())
    with usage_errors(resumable=options.out, log="bisection.jsonl"), progress(quiet=json) as watch:
        from regbot.bisect import flow
        from regbot.records.bisection import EXIT_CODES
        from regbot.report.bisection import bisection_text, plan_text

        check_engine(options.engine)
        if options.command is not None and not options.command.strip():
            raise UserError("--command is empty", "give the command that prints the cost of a commit as its last line")
        if options.plan:
            plan = flow.plan_bisection(options)
            show(plan.to_json() if json else plan_text(plan), json)
            return
        result = flow.bisect(options, watch)
    show(result.to_json() if json else bisection_text(result), json)
    raise typer.Exit(EXIT_CODES[result.outcome])


def _signature() -> inspect.Signature:
    """Return the parameters that typer reads: the fields of ``BisectionOptions`` that are options, and ``--json``."""
    hints = get_type_hints(BisectionOptions, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(BisectionOptions)
        if hasattr(hints[field.name], "__metadata__")
    ]
    json = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, annotation=Json, default=False)
    return inspect.Signature([*parameters, json])


bisect.__signature__ = _signature()  # type: ignore[attr-defined]
bisect.__annotations__ = {name: parameter.annotation for name, parameter in _signature().parameters.items()}
