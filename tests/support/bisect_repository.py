"""A real git repository for bisections: a long history of the demo's MoE layer, with faults planted where one asks.

Three kinds of faults: the sharding change of the demo (all-to-all becomes all-gather + reduce-scatter), its slowdown
(the same collectives, the experts compute on padding), and commits that cannot be imported. All other commits are
harmless. Commit ids depend on the arguments alone: authors and dates are made up, no configuration is read.
"""

import os
import random
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Literal

from support.bisect_catalogue import HEADINGS, harmless_edits
from support.bisect_edits import Edit, Kind, render

Planted = Literal["sharding", "slow"]
Role = Literal["sharding", "slow", "merge", "broken", "fix"]

MERGES = 10
_PATCHES: Mapping[Planted, str] = {"sharding": "fallback", "slow": "slow"}
_WEIGHTS: Mapping[Kind, int] = {"docs": 36, "code": 42, "tests": 9, "config": 13}
_AUTHORS = (
    "Ines Moreau <ines@moetrain.example>",
    "Tomasz Lind <tomasz@moetrain.example>",
    "Priya Raman <priya@moetrain.example>",
    "Søren Ødegård <soren@moetrain.example>",
    "dependabot <bot@forge.example>",
)
_FIRST_DATE = 1_773_045_000  # 9 March 2026
_FAULTS = tuple(
    # The second line of the module, so that the import fails before torch has been loaded.
    Edit("code", "src/moetrain/moe.py", "after", ((subject, f"{text}\n"),), at='"""The MoE layer')
    for subject, text in (
        ("Use the fused combine where there is one", "from moetrain.kernels import fused_combine"),
        ("Read the mesh from the launcher", "from moetrain.launcher import mesh_from_environment"),
        ("Bring the branch of last week up to date", "<<<<<<< HEAD\n=======\nimport typing\n>>>>>>> last-week"),
        ("Check the version of torch at import", "require_torch(2, 8)"),
        ("Import the modules together", "from moetrain import (collectives, dispatch"),
        ("Prefer the native router", "import moetrain_native"),
    )
)
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "LC_ALL": "C",
}


@dataclass(frozen=True)
class BisectRepository:
    """A repository with its branch ``main`` checked out at ``bad``; ids are full.

    ``commits`` is the first-parent line: ``commits[0]`` is good, ``commits[i]`` the i-th after it. Where there are
    merges, ``sharding`` lies in a side branch, ``merge`` brings it in, and ``kinds`` has the side branches too.
    """

    path: Path
    good: str
    bad: str
    commits: list[str]
    sharding: str | None
    slow: str | None
    broken: tuple[str, ...]
    merge: str | None
    kinds: dict[str, Kind | Role]


@dataclass
class _Tree:
    """What a commit holds: how far every edit has gone, and which changes have been planted."""

    gone: Counter[Edit] = field(default_factory=Counter)
    planted: set[Planted] = field(default_factory=set)

    def copy(self) -> "_Tree":
        return _Tree(Counter(self.gone), set(self.planted))


@dataclass
class _Commit:
    subject: str
    files: Mapping[str, str]
    parents: Sequence[int]
    kind: Kind | Role


def build(
    destination: Path,
    seed: int = 0,
    sharding_at: int | None = 137,
    slow_at: int | None = 58,
    broken: int = 10,
    commits: int = 200,
    merges: bool = False,
) -> BisectRepository:
    """Make the repository in ``destination``, a folder that is not there yet.

    ``commits`` is the length of the first-parent line after good; the planted changes are the ``sharding_at``-th and
    the ``slow_at``-th of them, and None plants none. Raises ValueError where they do not fit in.
    """
    roles = _roles(random.Random(f"roles {seed}"), sharding_at, slow_at, broken, commits, merges)
    history = _History(random.Random(f"history {seed}"))
    history.begin()
    for number in range(1, commits + 1):
        history.go_on(roles, number, planted="sharding" if merges and number == sharding_at else None)

    destination.mkdir(parents=True)
    _git(destination, "init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch=main")
    ids = _imported(destination, history.commits)
    _git(destination, "reset", "--quiet", "--hard")

    line = [ids[mark] for mark in history.line]
    kinds = {ids[mark]: commit.kind for mark, commit in enumerate(history.commits)}
    of_kind = {kind: commit for commit, kind in kinds.items()}
    return BisectRepository(
        path=destination,
        good=line[0],
        bad=line[-1],
        commits=line,
        sharding=of_kind.get("sharding"),
        slow=of_kind.get("slow"),
        broken=tuple(commit for commit in line if kinds[commit] == "broken"),
        merge=line[sharding_at] if merges and sharding_at is not None else None,
        kinds=kinds,
    )


def _roles(
    random_: random.Random, sharding_at: int | None, slow_at: int | None, broken: int, commits: int, merges: bool
) -> dict[int, Role]:
    """What each place of the first-parent line is for; the rest is harmless."""
    roles: dict[int, Role] = {}
    changes: tuple[tuple[int | None, Role], ...] = ((sharding_at, "merge" if merges else "sharding"), (slow_at, "slow"))
    for place, role in changes:
        if place is not None:
            if not 1 <= place <= commits or place in roles:
                raise ValueError(f"commit {place} of {commits} cannot hold a change; give another place, each its own")
            roles[place] = role
    for size in _runs(broken):
        # The run, and the commit that mends it: bad is not broken, and neither is the parent of a planted change.
        starts = [s for s in range(1, commits - size + 1) if not any(s + i in roles for i in range(size + 1))]
        if not starts:
            raise ValueError(f"{broken} broken commits do not fit into {commits}; ask for fewer")
        start = random_.choice(starts)
        roles.update(dict.fromkeys(range(start, start + size), "broken"))
        roles[start + size] = "fix"
    if merges:
        free = [place for place in range(2, commits) if place not in roles]
        roles.update(dict.fromkeys(random_.sample(free, min(MERGES - 1, len(free))), "merge"))
    return roles


def _runs(broken: int) -> list[int]:
    """Sizes of the runs of neighbours: where there are enough, one of three and one of two."""
    long = [size for size, enough in ((3, 8), (2, 2)) if broken >= enough]
    return [*long, *[1] * (broken - sum(long))]


class _History:
    """Commits by mark, in the order of their making, and the marks of the first-parent line from good on."""

    def __init__(self, random_: random.Random) -> None:
        self.commits: list[_Commit] = []
        self.line: list[int] = []
        self._random = random_
        self._edits = harmless_edits()
        self._sources = demo_sources()
        self._changes = {change: _changed(self._sources, patch) for change, patch in _PATCHES.items()}
        self._trees: list[_Tree] = []
        self._number = 40
        self._faults: list[Edit] = []

    def begin(self) -> None:
        """The code, then the configuration of regbot, then good."""
        without = {name: text for name, text in self._sources.items() if name != "regbot.toml"}
        for subject, content in (
            ("MoE layer with expert parallelism", without),
            ("Count the collectives of every pull request", self._sources),
        ):
            parents = [len(self.commits) - 1] if self.commits else []
            self.commits.append(_Commit(subject, content, parents, "config"))
            self._trees.append(_Tree())
        self.line.append(self._harmless(len(self.commits) - 1))

    def go_on(self, roles: Mapping[int, Role], number: int, planted: Planted | None) -> None:
        """The commit at place ``number``; ``planted`` is what the side branch that is merged there brings."""
        role, tip = roles.get(number), self.line[-1]
        if role is None:
            self.line.append(self._harmless(tip))
        elif role == "merge":
            broken = [place for place in range(number) if roles.get(place) == "broken"]
            back = [place for place in range(max(0, number - 4), number) if place not in broken]
            self.line.append(self._merge(tip, self.line[self._random.choice(back)], planted))
        elif role == "broken":
            self.line.append(self._broken(tip, first=roles.get(number - 1) != "broken"))
        elif role == "fix":
            self.line.append(self._fix(tip))
        else:
            self.line.append(self._plant(tip, role))

    def _harmless(self, parent: int, keep: Sequence[Edit] = (), kind: Role | None = None, side: bool = False) -> int:
        """A commit on ``parent`` that takes one edit further, none of ``keep``."""
        tree = self._trees[parent].copy()
        wanted = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        left = [edit for edit in self._edits if edit not in keep and not edit.exhausted(tree.gone[edit])]
        pool = [edit for edit in left if edit.kind == wanted] or left
        (edit,) = self._random.choices(pool, [0.3 if edit.endless else 1.0 for edit in pool])
        tree.gone[edit] += 1
        subject, _ = edit.version(tree.gone[edit])
        return self._add(subject if side else self._numbered(subject), tree, [parent], kind or edit.kind)

    def _plant(self, parent: int, change: Planted, side: bool = False) -> int:
        tree = self._trees[parent].copy()
        tree.planted.add(change)
        subject = _subject(_PATCHES[change])
        return self._add(subject if side else self._numbered(subject), tree, [parent], change)

    def _broken(self, parent: int, first: bool) -> int:
        """The first of a run cannot be imported, and the others do not mend that."""
        if not first:
            return self._harmless(parent, kind="broken")
        self._faults = self._faults or self._random.sample(_FAULTS, len(_FAULTS))
        fault = self._faults.pop()
        tree = self._trees[parent].copy()
        tree.gone[fault] = 1
        return self._add(self._numbered(fault.version(1)[0]), tree, [parent], "broken")

    def _fix(self, parent: int) -> int:
        tree = self._trees[parent].copy()
        fault = next(fault for fault in _FAULTS if tree.gone[fault])
        tree.gone[fault] = 0
        subjects = (f'Revert "{fault.version(1)[0]}"', "Make moetrain.moe importable again")
        return self._add(self._numbered(self._random.choice(subjects)), tree, [parent], "fix")

    def _merge(self, tip: int, fork: int, planted: Planted | None) -> int:
        """A side branch of two to four commits from ``fork``, merged into ``tip``; ``planted`` is in its middle."""
        before, now = self._trees[fork], self._trees[tip]
        moved = [edit for edit in self._edits if before.gone[edit] != now.gone[edit]]
        side, size = fork, self._random.randint(3 if planted else 2, 4)
        for place in range(size):
            if planted and place == 1:
                side = self._plant(side, planted, side=True)
            else:
                side = self._harmless(side, keep=moved, side=True)
        tree = now.copy()
        tree.gone.update({edit: self._trees[side].gone[edit] - before.gone[edit] for edit in self._edits})
        tree.planted |= self._trees[side].planted
        branch = re.sub(r"\W+", "-", self.commits[side].subject.lower()).strip("-")
        subject = f"Merge pull request #{self._next_number()} from {self._random.choice(('ines', 'priya'))}/{branch}"
        return self._add(subject, tree, [tip, side], "merge")

    def _add(self, subject: str, tree: _Tree, parents: Sequence[int], kind: Kind | Role) -> int:
        sources = dict(self._sources)
        for change in tree.planted:
            sources.update(self._changes[change])
        self.commits.append(_Commit(subject, render(sources, tree.gone.items(), HEADINGS), parents, kind))
        self._trees.append(tree)
        return len(self.commits) - 1

    def _numbered(self, subject: str) -> str:
        """Nine of ten come from a pull request."""
        return f"{subject} (#{self._next_number()})" if self._random.random() < 0.9 else subject

    def _next_number(self) -> int:
        self._number += self._random.randint(1, 3)
        return self._number


def demo_sources() -> dict[str, str]:
    """The files of the demo's base, by path in the repository."""
    root = Path(str(files("regbot.demo"))) / "sources"
    paths = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _patch(name: str) -> Path:
    return Path(str(files("regbot.demo"))) / "patches" / f"{name}.patch"


def _subject(name: str) -> str:
    found = re.search(r"^Subject: \[PATCH\] (.*)$", _patch(name).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, name
    return found.group(1)


def _changed(sources: Mapping[str, str], name: str) -> dict[str, str]:
    """The files that the patch changes or makes, as they are after it."""
    names = re.findall(r"^\+\+\+ b/(.*)$", _patch(name).read_text(encoding="utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        for path in set(names) & set(sources):
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(sources[path], encoding="utf-8")
        # In the folder of another repository git would leave its files alone.
        _git(Path(folder), "apply", str(_patch(name)), env={"GIT_CEILING_DIRECTORIES": str(Path(folder).parent)})
        return {path: (Path(folder) / path).read_text(encoding="utf-8") for path in names}


def _imported(repository: Path, commits: Sequence[_Commit]) -> list[str]:
    """Write the commits, the last of which becomes ``main``; their ids."""
    random_ = random.Random(len(commits))
    date, stream = _FIRST_DATE, bytearray()
    for mark, commit in enumerate(commits):
        date += random_.randint(20, 400) * 60
        author = random_.choice(_AUTHORS)
        stream += f"commit refs/heads/main\nmark :{mark + 1}\n".encode()
        stream += f"author {author} {date - 600} +0100\ncommitter {author} {date} +0100\n".encode()
        stream += _data(f"{commit.subject}\n")
        for word, parent in zip(("from", "merge"), commit.parents, strict=False):
            stream += f"{word} :{parent + 1}\n".encode()
        before = commits[commit.parents[0]].files if commit.parents else {}
        for path, text in commit.files.items():
            if before.get(path) != text:
                stream += f"M 100644 inline {path}\n".encode() + _data(text)
        stream += "".join(f"D {path}\n" for path in before if path not in commit.files).encode()
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks"
        _git(repository, "fast-import", "--quiet", f"--export-marks={marks}", given=bytes(stream))
        found = dict(line.split() for line in marks.read_text().splitlines())
    return [found[f":{mark + 1}"] for mark in range(len(commits))]


def _data(text: str) -> bytes:
    content = text.encode()
    return b"data %d\n%s\n" % (len(content), content)


def _git(at: Path, *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> None:
    command = ("git", "-c", "core.attributesFile=/dev/null", "-c", "core.autocrlf=false", *arguments)
    done = subprocess.run(command, cwd=at, env={**_ENVIRONMENT, **(env or {})}, input=given, capture_output=True)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode()}"
