"""The git data of one repository of the fake: a real bare repository, and what the API answers from it."""

import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
_CONFIGURATION = """
[core]
    repositoryformatversion = 0
    bare = true
[uploadpack]
    allowAnySHA1InWant = true
    allowFilter = true
[receive]
    hideRefs = refs/pull
[gc]
    auto = 0
"""


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}"


class GitData:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, default_branch: str, origin: "GitData | None" = None) -> "GitData":
        """A new bare repository; one with an ``origin`` shares its objects, both ways, as forks on GitHub do."""
        (path / "refs/heads").mkdir(parents=True)
        (path / "objects/info").mkdir(parents=True)
        (path / "HEAD").write_text(f"ref: refs/heads/{default_branch}\n")
        (path / "config").write_text(_CONFIGURATION)
        data = cls(path)
        if origin is not None:
            for one, other in ((data, origin), (origin, data)):
                with (one.path / "objects/info/alternates").open("a") as file:
                    file.write(f"{other.path / 'objects'}\n")
            for name, sha in origin.refs("refs/heads").items():
                data.set_ref(name, sha)
        return data

    def run(self, *arguments: str, stdin: str | None = None, **environment: str) -> str:
        command, given = ("git", *arguments), ENVIRONMENT | environment
        done = subprocess.run(
            command, cwd=self.path, env=given, input=stdin, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.rstrip("\n")

    def resolve(self, revision: str) -> str | None:
        """The commit's id, None where there is none."""
        command = ("git", "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}")
        done = subprocess.run(command, cwd=self.path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        return done.stdout.split()[-1] if done.returncode == 0 else None

    def branch(self, name: str) -> str | None:
        """The head of a branch, read without a process: this is asked for at every look at a pull request."""
        loose = self.path / "refs/heads" / name
        if loose.is_file():
            return loose.read_text().strip()
        return self.resolve(f"refs/heads/{name}") if (self.path / "packed-refs").exists() else None

    def refs(self, prefix: str) -> dict[str, str]:
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
        return dict(line.split(" ") for line in lines)

    def set_ref(self, name: str, sha: str | None) -> None:
        self.run("update-ref", *(("-d", name) if sha is None else (name, sha)))

    def commit(
        self, files: Mapping[str, str | None], branch: str, message: str, author: str, date: str, parent: str | None
    ) -> str:
        """Put a commit on ``parent``, and ``branch`` there; a file whose text is None is removed."""
        when = f"{int(datetime.fromisoformat(date).timestamp())} +0000"
        lines = [f"commit refs/heads/{branch}", f"committer {author} <{author}@example.org> {when}", _data(message)]
        lines += [f"from {parent}"] if parent else []
        for name, text in files.items():
            lines += [f"D {name}"] if text is None else [f"M 100644 inline {name}", _data(text)]
        self.run("fast-import", "--quiet", "--force", stdin="\n".join(lines) + "\n")
        return self.branch(branch) or ""

    def merge(self, base: str, head: str, message: str, date: str) -> str:
        """A merge commit of two that do not conflict."""
        tree = self.run("merge-tree", "--write-tree", base, head)
        stamp = {"DATE": date, "NAME": "web-flow", "EMAIL": "web-flow@example.org"}
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in stamp.items()}
        return self.run("commit-tree", tree, "-p", base, "-p", head, stdin=message, **who)

    def merge_base(self, base: str, head: str) -> str:
        return self.run("merge-base", base, head).split("\n")[0]

    def commits(self, base: str, head: str) -> list[str]:
        """Of ``base..head``, oldest first."""
        return self.run("rev-list", "--reverse", f"{base}..{head}").split()

    def parents(self, sha: str) -> list[str]:
        return self.run("show", "-s", "--format=%P", sha).split()

    def files(self, base: str, head: str) -> list[dict[str, Any]]:
        """What differs between two commits, renames found as git does by itself, in GitHub's words."""
        rows = self.run("diff", "--name-status", "-M", "-z", base, head).split("\0")
        found = []
        while rows and rows[0]:
            kind, old = rows.pop(0), rows.pop(0)
            new = rows.pop(0) if kind[0] in "RC" else old
            found.append({"filename": new} | ({"previous_filename": old} if kind[0] in "RC" else {}))
        return found

    def text(self, revision: str, path: str) -> str | None:
        """The text of a file, None where there is none."""
        command = ("git", "cat-file", "blob", f"{revision}:{path}")
        done = subprocess.run(command, cwd=self.path, env=ENVIRONMENT, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None
