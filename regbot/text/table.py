"""Tables in plain text and in Markdown."""

from collections.abc import Collection, Iterable, Sequence


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "") -> list[str]:
    """Return one line for each of ``rows``. A column is as wide as its widest cell.

    Columns whose numbers are in ``right`` are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent
        + "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` as a table. The first row is the header and has a rule below it. Columns of numbers are
    right-aligned."""
    numeric = {
        number
        for number, column in enumerate(zip(*rows[1:], strict=True))
        if all(cell[:1].isdigit() or not cell for cell in column)
    }
    head, *body = columns(rows, numeric)
    rule = "  ".join("-" * max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join([head, rule, *body])


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table. The caller escapes bars within ``cells``."""
    return f"| {' | '.join(cells)} |"


def markdown_head(*names: str) -> list[str]:
    """Return the header row of a Markdown table and the rule below it."""
    return [markdown_row(names), markdown_row(["---"] * len(names))]
