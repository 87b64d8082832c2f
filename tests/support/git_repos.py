"""Real git repositories for tests, independent of the configuration of the machine."""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "tester@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


class Repository:
    """A repository under test and the few things tests do to one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "Repository":
        path.mkdir(parents=True)
        repository = cls(path)
        repository.git("init", "--quiet", "--initial-branch=main")
        return repository

    def git(self, *arguments: str) -> str:
        command = ("git", "-c", "protocol.file.allow=always", *arguments)
        done = subprocess.run(command, cwd=self.path, env=_ENVIRONMENT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
        return done.stdout.strip()

    def commit(self, message: str, files: Mapping[str, str] | None = None) -> str:
        """Write ``files``, commit everything, and give the commit's id."""
        for name, text in (files or {}).items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def clone_to(self, path: Path, *options: str) -> "Repository":
        self.git("clone", "--quiet", *options, f"file://{self.path}", str(path))
        return Repository(path)

    def add_submodule(self, other: "Repository", path: str, url: str | None = None) -> None:
        """Add ``other`` as a submodule; ``url`` is what .gitmodules then says."""
        self.git("submodule", "--quiet", "add", str(other.path), path)
        if url is not None:
            self.git("config", "--file", ".gitmodules", f"submodule.{path}.url", url)

    def fingerprint(self) -> dict[str, str]:
        """Every file of the repository, work tree and .git, with a hash of its content, and its time."""
        files = sorted(path for path in self.path.rglob("*") if path.is_file() and not path.is_symlink())
        return {
            str(path): f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files
        }
