"""List the lines of Python files that differ between two commits, by git's diff of them."""

import re
from itertools import islice
from pathlib import Path

from regbot.records.changed_lines import MAX_CHANGED_FILES, MAX_HUNKS, ChangedFile, ChangedLines, Hunk
from regbot.records.text.words import count
from regbot.workloads.checkout.changes import MAX_PATH_CHARACTERS, list_diff_entries
from regbot.workloads.checkout.git import OFFLINE, CheckoutError, common_dir, git, try_git

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_OPTIONS = ("-r", "-p", "--unified=0", "--find-renames", "--text", "--no-color", "--no-ext-diff", "--no-textconv")
_NO_FILE = "/dev/null"


def list_changed_lines(repo: Path, base: str, head: str) -> ChangedLines | None:
    """Return the changed lines between two commits; None if they are unknown, because git fails or there are too many.
    A file whose name git has to quote is left out, and one that a partial clone lacks.
    """
    unread: list[str] = []
    try:
        diff = (f"--git-dir={common_dir(repo)}", "diff-tree", *_OPTIONS, base, head, "--", "*.py")
        result = try_git(repo, *diff, env=OFFLINE)
        if result.code != 0:
            unread = _list_missing_files(repo, base, head)
            result = try_git(repo, *diff, *(f":(exclude,literal){path}" for path in unread), env=OFFLINE)
    except CheckoutError:
        return None
    changed = parse_diff(result.out) if result.code == 0 else None
    return changed.model_copy(update={"unread": len(unread)}) if changed is not None else None


def describe_unread(changed: ChangedLines | None) -> list[str]:
    """Return the warning about a diff that is not known whole."""
    unread = count(changed.unread, "changed Python file") if changed is not None else "the changed Python files"
    reason = "could not be read: no line of them is named as one in the diff"
    return [f"the diff of {unread} {reason}"] if changed is None or changed.unread else []


def _list_missing_files(repo: Path, base: str, head: str) -> list[str]:
    """Return the changed Python files that a partial clone lacks. Nothing is fetched. Raises CheckoutError."""
    objects = git(repo, "rev-list", "--objects", "--no-walk", "--missing=print", base, head, env=OFFLINE)
    missing = {line[1:] for line in objects.splitlines() if line.startswith("?")}
    return [entry.name for entry in list_diff_entries(repo, base, head, ["*.py"]) if missing.intersection(entry.blobs)]


def parse_diff(text: str) -> ChangedLines | None:
    """Return the changed lines in the output of ``git diff --unified=0``; None if there are too many."""
    files: list[tuple[list[str], list[Hunk]]] = []
    lines = iter(text.split("\n"))
    signed_lines = (line for line in lines if line.startswith(("+", "-")))  # without "\ No newline at end of file"
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
            for _ in islice(signed_lines, base_count + head_count):
                pass
    if len(files) > MAX_CHANGED_FILES or sum(len(hunks) for _, hunks in files) > MAX_HUNKS:
        return None
    named = [(paths, hunks) for paths, hunks in files if len(paths) == 2 and any(paths)]
    return ChangedLines(files=[ChangedFile(base=paths[0], head=paths[1], hunks=hunks) for paths, hunks in named])


def _read_path(word: str) -> str:
    """Return a path without its prefix ``a/`` or ``b/``; '' for no file, and for a path that is quoted or too long."""
    path = word.removesuffix("\t")  # git marks the end of a path with spaces by a tab
    is_usable = path != _NO_FILE and not path.startswith('"') and len(path) <= MAX_PATH_CHARACTERS
    return path[2:] if is_usable and path.isprintable() else ""
