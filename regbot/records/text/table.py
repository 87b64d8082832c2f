"""Tables in plain text and in Markdown."""

from collections.abc import Collection, Iterable, Sequence


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = (), indent: str = "") -> list[str]:
    """Return one line for each of ``rows``. ``right`` has the numbers of the right-aligned columns."""
    widths = _column_widths(rows)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def _column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` as a table with a rule below the first row. Columns of numbers are right-aligned."""
    body_columns = zip(*rows[1:], strict=True)
    numeric = {number for number, cells in enumerate(body_columns) if all(map(_is_number_or_empty, cells))}
    header, *body = columns(rows, right=numeric)
    rule = "  ".join("-" * width for width in _column_widths(rows))
    return "\n".join([header, rule, *body])


def _is_number_or_empty(cell: str) -> bool:
    """Return whether a cell begins with a digit, such as ``8 GiB``, or is empty."""
    return not cell or cell[0].isdigit()


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a Markdown table. The caller escapes bars within ``cells``."""
    return f"| {' | '.join(cells)} |"


def markdown_head(*names: str) -> list[str]:
    """Return the header row of a Markdown table and the rule below it."""
    return [markdown_row(names), markdown_row(["---"] * len(names))]
