"""Shared by the tests of check and others."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.git_repos import Repository
from support.layers import CONFIG, GOOD_LAYER

REGBOT = str(Path(sys.executable).with_name("regbot"))


class Case:
    """A repository with a base on main and a pull request on branch ``pr``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.repository = Repository.create(home / "repository")

    def commit(self, layer: str = GOOD_LAYER, config: str | None = CONFIG, **more: str) -> str:
        files = {"userpkg/__init__.py": "", "userpkg/moe.py": layer, **more}
        if config is not None:
            files["regbot.toml"] = config
        return self.repository.commit("change", files)

    def pull_request(
        self, head: str, base: str = GOOD_LAYER, config: str = CONFIG, head_config: str | None = None
    ) -> None:
        self.commit(base, config)
        self.repository.git("checkout", "-q", "-b", "pr")
        self.commit(head, head_config)

    def regbot(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "REGBOT_CACHE": str(self.home / "cache"), **environment}
        at = self.repository.path
        return subprocess.run(
            [REGBOT, *arguments], cwd=at, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    def check(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code and verdict of ``regbot check``."""
        found = self.regbot("check", "--base", "main", "--json", "--out", str(self.home / "out"), *arguments)
        assert found.stdout, found.stderr
        return found.returncode, json.loads(found.stdout)

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "out" / "session.jsonl").read_text().splitlines()[1:]]


def only(verdict: Mapping[str, Any]) -> dict[str, Any]:
    (entry,) = verdict["workloads"]
    return dict(entry)


def guests_of(home: Path) -> list[str]:
    """Command lines of living processes that mention this test's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"{home}/out/runs" in words:
                found.append(words)
    return found
