"""List the lines of Python files that differ between two commits, by git's diff of them."""

import re
from itertools import islice
from pathlib import Path

from regbot.records.changed_lines import MAX_HUNKS, ChangedFile, ChangedLines, Hunk
from regbot.workloads.checkout.changes import MAX_PATH_CHARACTERS
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, common_dir, try_git

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_OPTIONS = ("-r", "-p", "--unified=0", "--find-renames", "--text", "--no-color", "--no-ext-diff", "--no-textconv")
_NO_FILE = "/dev/null"


def list_changed_lines(repo: Path, base: str, head: str) -> ChangedLines | None:
    """Return the changed lines between two commits; None if they are unknown, because git fails or there are too many.
    A file whose name git has to quote is left out.
    """
    try:
        git_dir = f"--git-dir={common_dir(repo)}"
        result = try_git(repo, git_dir, "diff-tree", *_OPTIONS, base, head, "--", "*.py", env=OFFLINE)
    except CheckoutError:
        return None
    return parse_diff(result.out) if result.code == 0 else None


def parse_diff(text: str) -> ChangedLines | None:
    """Return the changed lines in the output of ``git diff --unified=0``; None if there are too many."""
    files: list[tuple[list[str], list[Hunk]]] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("diff --git "):
            files.append(([], []))
        elif line.startswith(("--- ", "+++ ")) and files:
            files[-1][0].append(_read_path(line[4:]))
        elif (match := _HUNK.match(line)) and files:
            base_line, base_count, head_line, head_count = (int(number or "1") for number in match.groups())
            # Of an empty side, git gives the line before.
            hunk = Hunk(
                base_line=base_line + (base_count == 0),
                base_count=base_count,
                head_line=head_line + (head_count == 0),
                head_count=head_count,
            )
            files[-1][1].append(hunk)
            # The changed lines themselves can look like headers.
            for _ in islice(lines, base_count + head_count):
                pass
    if sum(len(hunks) for _, hunks in files) > MAX_HUNKS:
        return None
    named = [(paths, hunks) for paths, hunks in files if len(paths) == 2 and any(paths)]
    return ChangedLines(files=[ChangedFile(base=paths[0], head=paths[1], hunks=hunks) for paths, hunks in named])


def _read_path(word: str) -> str:
    """Return a path without its prefix ``a/`` or ``b/``; '' for no file, and for a path that is quoted or too long."""
    path = word.removesuffix("\t")  # git marks the end of a path with spaces by a tab
    is_usable = path != _NO_FILE and not path.startswith('"') and len(path) <= MAX_PATH_CHARACTERS
    return path[2:] if is_usable and path.isprintable() else ""
