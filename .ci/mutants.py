"""Mutation testing: find planted faults that no test detects. Usage: ``.ci/mutants.py sample|run FILE``.

``sample`` writes a seeded sample of mutants to FILE. A mutant changes one operator, constant or condition in one of the
packages that decide (PACKAGES). ``run`` plants each mutant in a clone of HEAD, and runs the tests that cover its line,
quickest first, until one fails. It writes the results beside FILE. A mutant is identified by its function and by the
text that it replaces, not by its file, so that a sample can be run again after code has moved.

The interpreter must be able to run the tests, and must have pytest-cov, which the extra dev installs. A test covers a
line only if the process of the test ran this line. Lines that run only in a started ``regbot`` command do not count as
covered. Tests marked slow or long are left out.
"""

import argparse
import ast
import copy
import itertools
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from coverage import CoverageData

PACKAGES = {  # folders of regbot, and the number of mutants of each
    "judge": 45, "stats": 35, "ledgers": 30, "records": 10, "sessions": 15, "github": 15,
}  # fmt: skip
SEED = 18
WORKERS = 2
MAX_TESTS = 400
"""Largest number of tests that are run for one mutant."""
TIMEOUT_S = 300
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change in ``function``: occurrence ``number`` (from 0) of the expression ``before`` becomes ``after``."""

    file: str
    function: str
    number: int
    before: str
    after: str


def mutants_of(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name, function in functions_of(tree):
        occurrences: dict[str, int] = {}
        for node in own_nodes(function):
            before = ast.unparse(node) if isinstance(node, ast.expr) else ""
            for after in changes(node):
                number = occurrences.get(before, 0)
                yield Mutant(str(path.relative_to(root)), name, number, before, after)
            if before:
                occurrences[before] = occurrences.get(before, 0) + 1


def functions_of(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield qualified name and node of every function. A function inside another function is a part of it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, f"{prefix}{node.name}.")


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without annotations, decorators, docstrings and f-strings."""
    for statement in function.body:  # type: ignore[attr-defined]
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield from without_text(statement)


def without_text(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and all nodes below it except f-strings, because their positions are wrong before Python 3.12."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    yield from without_text(item)


def changes(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may replace an expression."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare) and len(changed.ops) == 1 and type(changed.ops[0]) in SWAPS:
        changed.ops = [SWAPS[type(changed.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(changed, (ast.BinOp, ast.BoolOp)) and type(changed.op) in SWAPS:
        if isinstance(changed, ast.BinOp) and any(
            isinstance(side, (ast.JoinedStr, ast.Constant, ast.List, ast.Tuple, ast.Dict)) and not is_number(side)
            for side in (changed.left, changed.right)
        ):
            return  # the operator joins texts or lists
        changed.op = SWAPS[type(changed.op)]()  # type: ignore[assignment]
    elif isinstance(changed, ast.UnaryOp) and isinstance(changed.op, ast.Not):
        changed = changed.operand
    elif isinstance(changed, ast.Constant) and isinstance(changed.value, bool):
        changed.value = not changed.value
    elif is_number(changed):
        changed.value = changed.value + 1  # type: ignore[attr-defined]
    elif isinstance(changed, ast.IfExp):
        changed.body, changed.orelse = changed.orelse, changed.body
    else:
        return
    yield ast.unparse(changed)


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def sample(root: Path) -> list[Mutant]:
    """Return a seeded sample of the mutants of all packages."""
    chooser = random.Random(SEED)
    chosen: list[Mutant] = []
    for package, number in PACKAGES.items():
        paths = sorted((root / "regbot" / package).rglob("*.py"))
        pool = [mutant for path in paths for mutant in mutants_of(path, root)]
        chosen += chooser.sample(pool, number)
    return chosen


def plant(mutant: Mutant, root: Path) -> "tuple[Path, str, int] | None":
    """Return the file, its text with the fault, and the line; None if the code no longer exists.

    The file of the mutant is searched first.
    """
    same = root / mutant.file
    candidates = [same] if same.exists() else []
    paths = sorted((root / "regbot").rglob("*.py"))
    candidates += [path for path in paths if path != same and "guest" not in path.parts]
    candidates.sort(key=lambda path: (path != same, path.name != same.name))
    for path in candidates:
        text = path.read_text(encoding="utf-8")
        if mutant.function.rsplit(".", 1)[-1] not in text:
            continue
        for name, function in functions_of(ast.parse(text)):
            if name != mutant.function:
                continue
            nodes = [
                node
                for node in own_nodes(function)
                if isinstance(node, ast.expr) and ast.unparse(node) == mutant.before
            ]
            if mutant.number < len(nodes):
                node = nodes[mutant.number]
                return path, replaced(text, node, f"({mutant.after})"), node.lineno
    return None


def replaced(text: str, node: ast.expr, after: str) -> str:
    """Return ``text`` with ``node`` replaced by ``after``. The columns of a syntax tree count bytes."""
    whole = text.encode()
    starts = [0, *itertools.accumulate(map(len, whole.splitlines(keepends=True)))]
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return (whole[:start] + after.encode() + whole[end:]).decode()


def cover(clone: Path, work: Path) -> tuple[dict[str, dict[int, set[str]]], dict[str, float]]:
    """Run the quick tests with coverage. Return the tests by file and line, and the seconds of each test."""
    data, report = work / "coverage", work / "times.json"
    settings = work / "coveragerc"
    settings.write_text(f"[run]\nsource = regbot\ndata_file = {data}\n")
    plugin = work / "times_plugin.py"
    plugin.write_text(TIMES_PLUGIN.format(path=str(report)))
    options = ["-n", str(WORKERS), "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    python_path = f"{clone}{os.pathsep}{work}"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "times_plugin", *options],
        cwd=clone, env={**os.environ, "PYTHONPATH": python_path}, check=False,
    )  # fmt: skip
    covered = CoverageData(str(data))
    covered.read()
    tests = {
        str(Path(name).relative_to(clone)): {
            line: {context.rsplit("|", 1)[0] for context in contexts if context}
            for line, contexts in covered.contexts_by_lineno(name).items()
        }
        for name in covered.measured_files()
    }
    return tests, json.loads(report.read_text())


TIMES_PLUGIN = """
import json
from pathlib import Path
seconds = {{}}
def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        Path({path!r}).write_text(json.dumps(seconds))
"""


def main() -> None:
    """Run the command, and print the number of mutants with each outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["sample", "run"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    if options.what == "sample":
        options.file.write_text(json.dumps([asdict(mutant) for mutant in sample(root)], indent=1))
        return
    mutants = [Mutant(**item) for item in json.loads(options.file.read_text())]
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(mutants, root, Path(folder))
    out = options.file.with_suffix(".results.json")
    out.write_text(json.dumps(results, indent=1))
    for kind in ("killed", "lives", "uncovered", "gone"):
        print(f"{kind}: {sum(result['outcome'] == kind for result in results)}")


def run_all(mutants: list[Mutant], root: Path, work: Path) -> list[dict[str, object]]:
    """Return the outcome of each mutant. Each worker has its own clone, and uses the interpreter of this script."""
    clones = [work / f"clone{number}" for number in range(WORKERS)]
    for clone in clones:
        subprocess.run(["git", "clone", "-q", str(root), str(clone)], check=True)
    tests, seconds = cover(clones[0], work)
    free_clones = queue.SimpleQueue[Path]()
    for clone in clones:
        free_clones.put(clone)

    def run(mutant: Mutant) -> dict[str, object]:
        clone = free_clones.get()
        try:
            result = outcome_of(mutant, clone, tests, seconds)
        finally:
            free_clones.put(clone)
        print(result["outcome"], mutant.file, mutant.function, mutant.before, "->", mutant.after, flush=True)
        return {**asdict(mutant), **result}

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(run, mutants))


def outcome_of(
    mutant: Mutant, clone: Path, tests: dict[str, dict[int, set[str]]], seconds: dict[str, float]
) -> dict[str, object]:
    """Run the tests that cover a mutant.

    Return the outcome: ``killed`` with the first test that fails, ``lives`` if all tests pass, ``uncovered`` if no test
    covers the line, or ``gone`` if the code no longer exists.
    """
    planted = plant(mutant, clone)
    if planted is None:
        return {"outcome": "gone"}
    path, text, line = planted
    covering = tests.get(str(path.relative_to(clone)), {}).get(line, set())
    if not covering:
        return {"outcome": "uncovered"}
    quickest = sorted(covering, key=lambda test: (seconds.get(test, 9.0), test))[:MAX_TESTS]
    before = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *quickest],
            cwd=clone, env=environment(clone), capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        killer = failed[0] if failed else f"exit code {done.returncode}"
        return {"outcome": "killed", "by": killer} if done.returncode else {"outcome": "lives", "tests": len(quickest)}
    except subprocess.TimeoutExpired:
        return {"outcome": "killed", "by": "a timeout"}
    finally:
        path.write_text(before, encoding="utf-8")


def environment(clone: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(clone)}


if __name__ == "__main__":
    main()
