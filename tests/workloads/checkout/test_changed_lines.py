"""The changed lines between two commits, of partial clones and of diffs that are hard to read."""

from pathlib import Path

from regbot.records.changed_lines import MAX_CHANGED_FILES
from regbot.workloads.checkout.changed_lines import describe_unread, list_changed_lines, parse_diff
from support.git_repos import Repository


def test_a_file_that_the_clone_lacks_is_left_out_alone_and_counted(tmp_path: Path) -> None:
    origin = Repository.create(tmp_path / "origin")
    origin.git("config", "uploadpack.allowFilter", "true")
    base = origin.commit("base", {"moe.py": "a = 1\n"})
    head = origin.commit("head", {"moe.py": "a = 2\n", "big[1] .py": "x = 1\n" * 1000, "notes.md": "x" * 2000})
    clone = origin.clone_to(tmp_path / "clone", "--filter=blob:limit=1000", "--no-checkout")
    before = clone.fingerprint()
    whole, partial = (list_changed_lines(each.path, base, head) for each in (origin, clone))
    assert whole is not None
    assert partial is not None
    assert ([file.head for file in whole.files], whole.unread) == (["big[1] .py", "moe.py"], 0)
    assert ([file.head for file in partial.files], partial.unread) == (["moe.py"], 1)
    assert describe_unread(whole) == []
    (warning,) = describe_unread(partial)
    assert warning.startswith("the diff of 1 changed Python file could not be read")
    assert describe_unread(None)
    assert clone.fingerprint() == before


def test_a_diff_of_more_files_than_the_record_takes_is_unknown() -> None:
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    files = [f"diff --git a/f{n}.py b/f{n}.py\n--- a/f{n}.py\n+++ b/f{n}.py\n{hunk}" for n in range(MAX_CHANGED_FILES)]
    assert parse_diff("".join(files)) is not None
    assert parse_diff("".join([files[0], *files])) is None


def test_a_last_line_without_its_newline_that_looks_like_a_header_is_none(tmp_path: Path) -> None:
    origin = Repository.create(tmp_path / "origin")
    base, head = (origin.commit(text, {"moe.py": f"x = (1\n++ {text})"}) for text in ("a/b.py", "a/c.py"))
    changed = list_changed_lines(origin.path, base, head)
    assert changed is not None
    assert [(file.head, len(file.hunks)) for file in changed.files] == [("moe.py", 1)]
