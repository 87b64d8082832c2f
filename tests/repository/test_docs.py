"""Documentation leads where it says: links to pages and headings, and commands and options that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs_cases import list_options

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md")), *sorted(ROOT.glob("*/README.md"))]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`]+)`")
OPTION = re.compile(r"(?<![\w=-])--[a-z][a-z-]*")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(prose(page))]
    for target in targets:
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in slugs(found), f"{page.name} links to {target}; there are {sorted(slugs(found))}"


CALL = re.compile(r"(?:^|[|&;(] *)(regbot [^|&;#]*)")


def spoken() -> Iterator[tuple[str, str]]:
    """Every ``regbot ...`` that a page has in a code block or a code span, with the page's name."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [match[0].replace("\\\n", " ") for match in FENCE.finditer(text)]
        for block in blocks:
            for line in block.splitlines():
                yield from ((page.name, found) for found in CALL.findall(line.strip()))
        yield from ((page.name, span) for span in SPAN.findall(prose(page)) if re.match("regbot [^@]", span))


def test_every_command_that_is_named_exists_and_has_its_options() -> None:
    commands, seen = list_options(), 0
    for page, line in spoken():
        words = line.split()
        known = [" ".join(words[:n]) for n in (1, 2, 3) if " ".join(words[:n]) in commands]
        command = known[-1]
        said = words[len(command.split()) :]
        group = any(name.startswith(f"{command} ") for name in commands)
        assert not group or not said or said[0].startswith("-"), f"{page}: {line}: there is no such command"
        unknown = set(OPTION.findall(line)) - commands[command]
        assert not unknown, f"{page}: {line}: there is no {unknown}"
        seen += 1
    assert seen
