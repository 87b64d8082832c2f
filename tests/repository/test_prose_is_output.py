"""No branch depends on the wording of a message: text is made at the edge and never read back."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import regbot
from regbot.bisect.noisy import MOVED_MARKER
from regbot.compare.completeness import find_omissions
from regbot.compare.run_files import StepFile
from regbot.engines.escape import ATTEMPTS
from regbot.github.stamped_text import INVALID_HEADING, VOID_BANNER, VOID_BANNER_END
from regbot.ledgers.catalogue import EXPLANATIONS
from regbot.report import comment, comment_parts, html
from regbot.report.comment import MARKER
from regbot.stats.steady import steady_state
from support.report_cases import CASES

PACKAGE = Path(regbot.__file__).parent
FOREIGN = {
    "[Rampup Batch Size Phase]": "MaxText has no other sign of it",
    "lacks support for cpu binding": "Slurm has no other sign of it",
    INVALID_HEADING: "results are kept in comments, and the heading of one goes into the next",
    VOID_BANNER: "results are kept in comments, and the heading of one goes into the next",
    VOID_BANNER_END: "results are kept in comments, and the heading of one goes into the next",
    "invalid job id": "Slurm has no other sign of it",
    "not a git repository": "git has no other sign of it",
    'unknown command "index"': "pip has no other sign of it",
    "No matching distribution": "pip has no other sign of it",
    "No module named pip": "Python has no other sign of it",
}
NAMES = {*EXPLANATIONS, *ATTEMPTS, MOVED_MARKER}
"""Patterns and deeds are called by a sentence, and keys of stored bisections hold one."""
TESTS_OF_TEXT = ("startswith", "endswith", "partition", "rpartition", "removeprefix", "find", "index", "count")


def words(node: ast.expr, constants: dict[str, str]) -> str:
    """The fixed part of a text: of a literal, an f-string, or a constant by its name."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(words(part, constants) for part in parts)
        case ast.Name(id=name):
            return constants.get(name, "")
    return ""


def compared(tree: ast.AST) -> Iterator[ast.expr]:
    """What texts are compared with or searched for."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                yield from (left, *others)
            case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in TESTS_OF_TEXT:
                yield from first.elts if isinstance(first, ast.Tuple) else (first,)


def constants_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and (text := words(node.value, {})):
            yield from ((target.id, text) for target in node.targets if isinstance(target, ast.Name))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def module_of(path: Path) -> str:
    return ".".join(("regbot", *path.relative_to(PACKAGE).with_suffix("").parts))


def test_nothing_is_decided_by_a_sentence() -> None:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(PACKAGE / "guest") and "sources" not in path.parts
    }
    own = {path: dict(constants_of(tree)) for path, tree in trees.items()}
    everywhere = {f"{module_of(path)}.{name}": text for path, found in own.items() for name, text in found.items()}
    for path, tree in trees.items():
        own[path] |= {name: everywhere[origin] for name, origin in imported(tree) if origin in everywhere}
    found = {
        f"{path.relative_to(PACKAGE)}:{node.lineno}": text
        for path, tree in trees.items()
        for node in compared(tree)
        if len((text := words(node, own[path])).split()) >= 3 and "<!--" not in text
    }
    assert {place: text for place, text in found.items() if text not in {*FOREIGN, *NAMES}} == {}


def test_a_restart_is_seen_whatever_its_warning_says() -> None:
    times = (1.0,) * 60 + (9.0, 8.0, 1.4) + (1.0,) * 60
    steady = replace(steady_state(times), warnings=("other words",))
    assert steady.restart == 60
    file = StepFile(Path("a.csv"), times, steady.cut, tuple(range(len(times))), steady=steady)
    assert [*find_omissions(file)] == ["seems to contain a restarted process; check why the first one ended"]


def test_the_comment_is_its_parts() -> None:
    for case in CASES.values():
        parts = comment_parts(*case())
        text = comment(*case())
        assert text.startswith(f"{MARKER}\n{parts.heading}\n\n{parts.body}\n\n{parts.sections}".rstrip("\n"))
        assert "<details>" not in parts.body
        assert "\n" not in parts.heading


def test_a_headline_names_the_wall_whatever_its_sentence_says() -> None:
    verdict, session = CASES["throughput_fail"]()
    for entry in verdict.workloads:
        if entry.throughput is not None:
            entry.throughput.__dict__.update(wall="other words", wall_kind="communication")
    assert ": communication" in comment_parts(verdict, session).heading
    assert "other words" in html(verdict, session)
