"""The summary of a job on GitHub Actions: Markdown that GitHub shows on the page of the run."""

import os
from pathlib import Path

import typer


def write_job_summary(markdown: str) -> None:
    """Append ``markdown`` to the summary of this job. Outside of GitHub Actions nothing is written.

    The summary is not the result of the command. A file that cannot be written is therefore only a warning.
    """
    summary_file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary_file:
        return
    try:
        with Path(summary_file).open("a", encoding="utf-8") as file:
            file.write(f"{markdown}\n")
    except OSError as error:
        typer.echo(f"regbot: warning: the job's summary was not written: {error.strerror}", err=True)
