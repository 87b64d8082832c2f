"""How the commits of a made-up history change files.

A tree is rendered from how far each edit has gone, never patched: edits cannot clash with each other, nor with a change
that is planted among them, as long as the lines that they stand next to are there.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["docs", "tests", "code", "config"]
How = Literal["end", "before", "after", "instead", "name"]

_ORDER: tuple[How, ...] = ("instead", "before", "after", "end", "name")  # lines are found by what they first were


@dataclass(frozen=True)
class Edit:
    """One place of the code, and the versions that it goes through: the subject of a commit, and what it writes.

    ``at`` is how the one line begins that the text stands "before" or "after", or the words that it stands "instead"
    of; for a "name", how the line of the function begins, and ``old`` is the name of a local variable there. An
    ``endless`` edit has one version, in which ``{n}`` counts.
    """

    kind: Kind
    path: str
    how: How
    versions: tuple[tuple[str, str], ...]
    at: str = ""
    old: str = ""
    endless: bool = False

    def exhausted(self, gone: int) -> bool:
        return not self.endless and gone >= len(self.versions)

    def version(self, number: int) -> tuple[str, str]:
        """Subject and text of version ``number``, from 1."""
        if not self.endless:
            return self.versions[number - 1]
        subject, text = self.versions[0]
        return subject.replace("{n}", str(number)), text.replace("{n}", str(number))


def render(sources: Mapping[str, str], gone: Iterable[tuple[Edit, int]], headings: Mapping[str, str]) -> dict[str, str]:
    """The files of a tree: ``sources`` with every edit at the version that it has gone to, 0 for not begun.

    ``headings`` is how the files begin that only edits write.
    """
    files = dict(sources)
    for edit, number in sorted(gone, key=lambda pair: _ORDER.index(pair[0].how)):
        if number:
            text = files.get(edit.path, headings.get(edit.path, ""))
            files[edit.path] = _written(text, edit, edit.version(number)[1])
    return files


def _written(text: str, edit: Edit, new: str) -> str:
    if edit.how == "end":
        return text + new
    if edit.how == "instead":
        assert text.count(edit.at) == 1, f"{edit.path}: {edit.at!r} is there {text.count(edit.at)} times"
        return text.replace(edit.at, new)
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.startswith(edit.at)]
    assert len(places) == 1, f"{edit.path}: {len(places)} lines begin with {edit.at!r}"
    if edit.how == "name":
        return _renamed(lines, places[0], edit.old, new)
    place = places[0] + (edit.how == "after")
    return "".join([*lines[:place], new, *lines[place:]])


def _renamed(lines: list[str], start: int, old: str, new: str) -> str:
    """The function that begins in line ``start`` with its local ``old`` called ``new``; attributes keep their names."""
    depth = _indent(lines[start])
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > depth):
        end += 1
    function = "".join(lines[start:end])
    assert not re.search(rf"\b{new}\b", function), f"{new} is in {lines[start].strip()!r} already"
    return "".join([*lines[:start], re.sub(rf"(?<![.\w]){old}\b", new, function), *lines[end:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
