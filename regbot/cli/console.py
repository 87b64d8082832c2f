"""Print pages for people, with colours if the output is a terminal, and print records as JSON."""

import sys

import typer

COLOURS = {
    r"\bPASS\b": "green",
    r"\bFAIL\b": "red",
    r"\bINVALID\b": "magenta",
    r"\b(REVIEW|INCONCLUSIVE|WARNING|warning(?=:))\b": "yellow",
    r"(?m)^yes  ": "green",
    r"(?m)^no   ": "red",
}
"""Colour of a word, by regular expression: statuses, warnings, and the yes and no of ``regbot doctor``."""


def show(text: str, json: bool = False) -> None:
    """Print a page, or a record as JSON. A page is coloured on a terminal, unless NO_COLOR is set."""
    text = text.rstrip("\n")
    if json or not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    page = Text(text)
    for pattern, colour in COLOURS.items():
        page.highlight_regex(pattern, colour)
    Console().print(page, soft_wrap=True)
