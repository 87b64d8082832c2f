"""Changed files of two commits in real repositories. No file of a pull request can hide a change."""

import os
import time
from pathlib import Path

import pytest

from regbot.workloads.checkout.changes import digest_behaviour, list_changed_files
from support.git_repos import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    home = Repository.create(tmp_path / "home")
    home.commit("first", {"src/moe.py": 'def f():\n    """Says so."""\n    return 1\n', "kernels.cu": "// a\n"})
    return home


def changed(repository: Repository, files: dict[str, str]) -> list[str] | None:
    base = repository.git("rev-parse", "HEAD")
    return list_changed_files(repository.path, base, repository.commit("second", files), []).paths


def test_comments_docstrings_and_layout_are_no_change(repository: Repository) -> None:
    text = 'def f():\n    """Says more."""\n    # why\n    return (1)\n'
    assert changed(repository, {"src/moe.py": text}) == []


LONG = [
    "import os",
    "",
    "x = 1; y = 2",
    "",
    "def f():",
    "    'Says so.'",
    "    return 1",
    "",
    "@f",
    "class A:",
    "    z = 3",
]


def long_with(number: int, *lines: str, replaced: int = 0) -> str:
    """Return LONG with ``lines`` inserted before line ``number`` (from 0), in place of ``replaced`` lines of LONG."""
    return "\n".join([*LONG[:number], *lines, *LONG[number + replaced :]]) + "\n"


@pytest.mark.parametrize(
    ("text", "is_change"),
    [
        (long_with(2, "x = 2; y = 1", replaced=1), True),
        (long_with(3, "'a string that nobody reads'"), True),
        (long_with(3, 'z = """') + '"""\n', True),
        (long_with(6, "    return 1.0", replaced=1), True),
        (long_with(10, "    'Says.'", "    'Says it twice.'"), True),
        (long_with(11, "    z = 3"), True),
        (long_with(2, "x = (1)", "y = 2", replaced=1), False),
        (long_with(0, '"""What it is for, with an unequal \' in it."""', ""), False),
        (long_with(5, '    """Says', "# more", '    of it."""', replaced=1), False),
        (long_with(6, "    return (", "1", ")", replaced=1), False),
        (long_with(0).replace("\n", "\r\n"), False),
    ],
)
def test_only_another_layout_of_the_same_code_is_no_change(repository: Repository, text: str, is_change: bool) -> None:
    repository.commit("long", {"long.py": long_with(0)})
    assert changed(repository, {"long.py": text}) == (["long.py"] if is_change else [])


def test_an_encoding_declaration_that_changes_a_string_is_a_change(repository: Repository) -> None:
    repository.commit("coded", {"coded.py": "#\nx = 1\ny = 'é'\n"})
    assert changed(repository, {"coded.py": "# coding: latin-1\nx = 1\ny = 'é'\n"}) == ["coded.py"]


def test_a_symbolic_link_is_not_parsed_as_python(repository: Repository) -> None:
    (repository.path / "link.py").symlink_to("'one'")
    repository.commit("a link")
    (repository.path / "link.py").unlink()
    (repository.path / "link.py").symlink_to("'two'")
    assert changed(repository, {}) == ["link.py"]


def test_a_path_that_is_not_utf_8_makes_the_result_unknown(repository: Repository) -> None:
    base = repository.git("rev-parse", "HEAD")
    Path(os.fsdecode(os.fsencode(repository.path) + b"/\xff.py")).write_bytes(b"x = 1\n")
    assert list_changed_files(repository.path, base, repository.commit("odd"), []).paths is None


def test_too_many_files_make_the_result_unknown(repository: Repository) -> None:
    assert changed(repository, {f"f{n}.txt": "" for n in range(501)}) is None


def test_a_submodule_that_gitmodules_ignores_is_a_change(repository: Repository, tmp_path: Path) -> None:
    library = Repository.create(tmp_path / "library")
    library.commit("first", {"kernel.cu": "// 1\n"})
    repository.add_submodule(library, "third_party/lib")
    repository.git("config", "--file", ".gitmodules", "submodule.third_party/lib.ignore", "all")
    repository.git("config", "diff.ignoreSubmodules", "all")
    base = repository.commit("with a library")
    newer = library.commit("second", {"kernel.cu": "// 2\n"})
    repository.git("update-index", "--cacheinfo", f"160000,{newer},third_party/lib")
    repository.git("commit", "--quiet", "--allow-empty", "--message", "a newer library")
    assert list_changed_files(repository.path, base, repository.git("rev-parse", "HEAD"), []).paths == [
        "third_party/lib"
    ]


def heads_behave_alike(repository: Repository, first: dict[str, str], second: dict[str, str]) -> bool:
    """Whether two heads of the same base, with the given files, have equal digests."""
    base = repository.git("rev-parse", "HEAD")
    digests = []
    for files in (first, second):
        repository.git("checkout", "-q", "--detach", base)
        head = repository.commit("head", files)
        digests.append(digest_behaviour(repository.path, base, head, []))
    assert None not in digests
    return digests[0] == digests[1]


SLOW = {"src/moe.py": "def f():\n    return 2\n", "kernels.cu": "// b\n", "src/other.py": "x = 1\n"}


@pytest.mark.parametrize(
    ("more", "alike"),
    [
        ({"src/moe.py": "def f():\n    '''Why.'''\n    return 2  # why\n"}, True),
        ({"README.md": "# why\n"}, True),
        ({"src/other.py": "# added\nx = 1\n"}, True),
        ({"src/moe.py": "def f():\n    return 3\n"}, False),
        ({"kernels.cu": "// c\n"}, False),
        ({"src/added.py": "x = 1\n"}, False),
        ({"src/broken.py": "def\n"}, False),
    ],
)
def test_heads_have_one_digest_only_if_they_differ_in_comments_alone(
    repository: Repository, more: dict[str, str], alike: bool
) -> None:
    assert heads_behave_alike(repository, SLOW, {**SLOW, **more}) is alike


def test_the_revert_of_a_gain_is_another_change_than_the_gain(repository: Repository) -> None:
    digests = []
    for before in ("1", "3"):
        base = repository.commit("base", {"src/k.py": f"K = {before}\n"})
        head = repository.commit("head", {"src/k.py": "K = 2\n"})
        digests.append(digest_behaviour(repository.path, base, head, []))
    assert digests[0] != digests[1]


def test_an_updated_branch_has_the_same_digest_and_no_change_has_that_of_its_base(repository: Repository) -> None:
    first = repository.git("rev-parse", "HEAD")
    slow = repository.commit("slow", SLOW)
    repository.git("checkout", "-q", first)
    second = repository.commit("base", {"base.py": "x = 1\n"})
    updated = repository.commit("slow on the new base", SLOW)
    digests = [digest_behaviour(repository.path, *commits, []) for commits in ((first, slow), (second, updated))]
    assert digests[0] == digests[1] is not None
    unchanged = {digest_behaviour(repository.path, commit, commit, []) for commit in (first, second)}
    assert len(unchanged) == 2
    assert digest_behaviour(repository.path, "0" * 40, slow, []) is None


@pytest.mark.parametrize(
    "text",
    ['x = f"' + "{a}" * 100_000 + '"\n', "# coding: utf-7\nx = f+ACI-" + "+AHs-a+AH0-" * 60_000 + "+ACI-\n"],
    ids=["plain", "in another encoding"],
)
def test_python_that_takes_minutes_to_parse_is_a_change(repository: Repository, text: str) -> None:
    base = repository.commit("base", {"slow.py": text})
    head = repository.commit("head", {"slow.py": text + "# a comment\n"})
    start = time.process_time()
    assert list_changed_files(repository.path, base, head, ()).paths == ["slow.py"]
    assert digest_behaviour(repository.path, base, head, ()) is not None
    assert time.process_time() - start < 5


def test_another_executable_bit_is_a_change(repository: Repository) -> None:
    (repository.path / "src/moe.py").chmod(0o755)
    assert changed(repository, {}) == ["src/moe.py"]
