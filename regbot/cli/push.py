"""``regbot pre-push``: the check that git runs before a push, as a hook of pre-commit."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from regbot.cli.console import show
from regbot.cli.options import ConfigFile, cache_folder, progress, usage_errors

PUSHED_REVISION_VARIABLES = ("PRE_COMMIT_TO_REF", "PRE_COMMIT_LOCAL_BRANCH")
"""Variables in which pre-commit names the pushed commit and the pushed branch. The commit's variable is not set if a
push includes the first commit of the repository."""


def pre_push(
    *,
    base: Annotated[str | None, typer.Option("--base", metavar="REV", help="Default: merge base with main.")] = None,
    workload: Annotated[list[str] | None, typer.Option("--workload", metavar="W", help="Only these workloads.")] = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder for the report. Default: in regbot's cache.")
    ] = None,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The git repository.")] = Path(),
) -> None:
    """Compare the collectives of main with those of the pushed commit. Only FAIL stops the push.

    This is a hook of pre-commit, which names the commit; by hand it is HEAD. A push with nothing to compare succeeds.
    """
    with usage_errors(), progress(quiet=not sys.stderr.isatty()) as watch:
        from regbot.check.flow import CheckOptions, check
        from regbot.check.push import stops_push, why_nothing_to_compare
        from regbot.cli.terminal import verdict_page
        from regbot.records.text.printable import typed_path
        from regbot.workloads.checkout.cache import repository_cache

        pushed_revisions = filter(None, map(os.environ.get, PUSHED_REVISION_VARIABLES))
        head = next(pushed_revisions, "HEAD")
        reason = why_nothing_to_compare(repo, base, head, config)
        if reason:
            show(f"Nothing to compare: {reason}.")
            return
        cache = cache_folder()
        folder = out.resolve() if out is not None else repository_cache(cache, repo) / "push"
        result = check(
            CheckOptions(
                repo, cache, folder, base=base, head=head, workloads=workload or [], config=config, timing=False
            ),
            watch,
        )
    show(verdict_page(result.verdict, typed_path(folder), result.session.header))
    if stops_push(result.verdict.verdict):
        show("This stops the push. `git push --no-verify` pushes all the same, for others to judge.")
        raise typer.Exit(1)
