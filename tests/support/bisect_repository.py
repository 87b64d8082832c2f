"""A real git repository for bisections: a line of 200 commits of the demo's MoE layer, with planted faults.

Three kinds of faults: the sharding change of the demo (all-to-all becomes all-gather + reduce-scatter), its slowdown
(the same collectives, the experts compute on padding), and commits that cannot be imported. All other commits are
harmless. Commit ids are always the same.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regbot.cli.demo.repository import PullRequest, build_repository
from support.git_repos import Repository

COMMITS, SLOW, SHARDING = 200, 58, 137
"""The length of the line after good, and the places of the planted changes."""
BROKEN = (20, 82, 83, 84, 110, 111, 140, 160, 175, 190)
"""Places of the commits that cannot be imported. The commit after each run of them mends it."""
_LAYER = "src/moetrain/moe.py"
_FIRST_DATE = 1_773_045_000  # 9 March 2026


@dataclass(frozen=True)
class BisectRepository:
    """A repository with its branch ``main`` checked out at ``bad``; ids are full. ``commits[0]`` is good."""

    path: Path
    good: str
    bad: str
    commits: list[str]
    sharding: str
    slow: str
    broken: tuple[str, ...]


def build(destination: Path) -> BisectRepository:
    """Make the repository in ``destination``, a folder that is not there yet."""
    destination.mkdir(parents=True)
    repository = Repository(destination)
    repository.git("init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch=main")
    history = _History(destination)
    sources, slow = _demo("slow")
    fallback = _demo("fallback")[1]
    layer = sources[_LAYER]
    line = [history.commit("MoE layer with expert parallelism", sources)]
    for place in range(1, COMMITS + 1):
        changed = {"src/moetrain/steps.py": f"STEP = {place}\n"}
        if place in BROKEN or place - 1 in BROKEN:
            head = "from moetrain import missing\n" if place in BROKEN else ""
            changed[_LAYER] = layer.replace('"""\n\n', f'"""\n\n{head}', 1)
        if place == SLOW:
            changed |= slow
            layer = changed.get(_LAYER, layer)
        if place == SHARDING:
            layer = fallback.get(_LAYER, layer)
            changed |= fallback
        line.append(history.commit(f"Change {place} (#{40 + place})", changed))
    ids = history.write()
    repository.git("reset", "--quiet", "--hard")
    return BisectRepository(
        path=destination,
        good=ids[line[0]],
        bad=ids[line[-1]],
        commits=[ids[mark] for mark in line],
        sharding=ids[line[SHARDING]],
        slow=ids[line[SLOW]],
        broken=tuple(ids[line[place]] for place in BROKEN),
    )


class _History:
    """A stream for git fast-import. A commit is named by its mark, from 1."""

    def __init__(self, repository: Path) -> None:
        self._repository, self._stream, self._mark = repository, bytearray(), 0

    def commit(self, subject: str, changed: Mapping[str, str]) -> int:
        self._mark += 1
        author = f"Ada Example <ada@example.org> {_FIRST_DATE + 600 * self._mark} +0100"
        self._stream += f"commit refs/heads/main\nmark :{self._mark}\nauthor {author}\ncommitter {author}\n".encode()
        self._stream += _data(f"{subject}\n")
        if self._mark > 1:
            self._stream += f"from :{self._mark - 1}\n".encode()
        for path, text in changed.items():
            self._stream += f"M 100644 inline {path}\n".encode() + _data(text)
        return self._mark

    def write(self) -> dict[int, str]:
        """Write the commits, and return the id of each."""
        with tempfile.TemporaryDirectory() as folder:
            marks = Path(folder) / "marks"
            command = ["git", "fast-import", "--quiet", f"--export-marks={marks}"]
            subprocess.run(command, cwd=self._repository, input=bytes(self._stream), check=True)
            found = dict(line.split() for line in marks.read_text().splitlines())
        return {int(mark[1:]): commit for mark, commit in found.items()}


def _demo(pull_request: PullRequest) -> tuple[dict[str, str], dict[str, str]]:
    """The demo's files, and those that a pull request changes or makes, as they are after it."""
    with tempfile.TemporaryDirectory() as folder:
        demo = Repository(build_repository(Path(folder) / "demo", pull_request).path)
        head = {name: (demo.path / name).read_text(encoding="utf-8") for name in demo.git("ls-files").splitlines()}
        demo.git("checkout", "--quiet", "main")
        base = {name: (demo.path / name).read_text(encoding="utf-8") for name in demo.git("ls-files").splitlines()}
    return base, {name: text for name, text in head.items() if base.get(name) != text}


def _data(text: str) -> bytes:
    content = text.encode()
    return b"data %d\n%s\n" % (len(content), content)


def run_bisect(home: Path, repository: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Run ``regbot bisect`` on a repository, which stays the same, byte for byte. Return exit code and answer."""
    before = Repository(repository).fingerprint()
    env = {**os.environ, **variables, "REGBOT_CACHE": str(home / "cache")}
    regbot = str(Path(sys.executable).with_name("regbot"))
    command = [regbot, "bisect", *arguments, "--json", "--out", str(home / "out")]
    result = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, timeout=3600, check=False)
    assert Repository(repository).fingerprint() == before
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)
