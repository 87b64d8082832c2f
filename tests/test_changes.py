"""Which files two commits disagree on, read from real repositories: nothing a pull request writes may hide one."""

import os
from pathlib import Path

import pytest

from git_repos import Repository
from regbot.checkout import changed_files


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "home")
    made.commit("first", {"src/moe.py": 'def f():\n    """Says so."""\n    return 1\n', "kernels.cu": "// a\n"})
    return made


def changed(repository: Repository, files: dict[str, str]) -> list[str] | None:
    base = repository.git("rev-parse", "HEAD")
    return changed_files(repository.path, base, repository.commit("second", files))


def test_comments_docstrings_and_layout_are_no_change(repository: Repository) -> None:
    told = 'def f():\n    """Says more."""\n    # why\n    return (1)\n'
    assert changed(repository, {"src/moe.py": told}) == []


def test_another_number_is_a_change(repository: Repository) -> None:
    assert changed(repository, {"src/moe.py": "def f():\n    return 2\n"}) == ["src/moe.py"]


def test_a_docstring_that_becomes_code_is_a_change(repository: Repository) -> None:
    assert changed(repository, {"src/moe.py": "def f():\n    return 'Says so.'\n"}) == ["src/moe.py"]


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


def long_with(number: int, *lines: str, instead: int = 0) -> str:
    """A file with ``lines`` put in before its line ``number``, from 0, ``instead`` of some of its own."""
    return "\n".join([*LONG[:number], *lines, *LONG[number + instead :]]) + "\n"


@pytest.mark.parametrize("number", range(len(LONG) + 1))
def test_a_comment_is_no_change_wherever_it_stands(repository: Repository, number: int) -> None:
    repository.commit("long", {"long.py": long_with(0)})
    assert changed(repository, {"long.py": long_with(number, "# told")}) == []


@pytest.mark.parametrize(
    "text",
    [
        long_with(2, "x = 2; y = 1", instead=1),
        long_with(2, "x = 1; x = 1"),
        long_with(2, "+x"),
        long_with(3, "'a string that nobody reads'"),
        long_with(3, "if x:", "    y"),
        long_with(3, '"""', '"""'),
        long_with(3, 'z = """') + '"""\n',
        long_with(6, "    return -1", instead=1),
        long_with(6, "    return 1.0", instead=1),
        long_with(8, instead=1),
        long_with(8, "@f"),
        long_with(10, "    'Says.'", "    'Says it twice.'"),
        long_with(11, "    z = 3"),
        long_with(11, "z = 3"),
    ],
)
def test_a_small_change_is_one_wherever_it_stands(repository: Repository, text: str) -> None:
    repository.commit("long", {"long.py": long_with(0)})
    assert changed(repository, {"long.py": text}) == ["long.py"]


@pytest.mark.parametrize(
    "text",
    [
        long_with(2, "x = (1)", "y = 2", instead=1),
        long_with(0, '"""What it is for, with an unequal \' in it."""', ""),
        long_with(5, '    """Says', "# more", '    of it."""', instead=1),
        long_with(6, "    return (", "1", ")", instead=1),
        long_with(0).replace("\n", "\r\n"),
    ],
)
def test_another_way_to_write_the_same_is_no_change(repository: Repository, text: str) -> None:
    repository.commit("long", {"long.py": long_with(0)})
    assert changed(repository, {"long.py": text}) == []


def test_an_equal_last_line_that_is_code_in_one_version_and_a_text_in_the_other_is_a_change(
    repository: Repository,
) -> None:
    last = '"""; -1 # """\n'
    repository.commit("code", {"odd.py": f'q\nw\n"""\n{last}'})
    assert changed(repository, {"odd.py": f'q\nw\n"\\n"\n{last}'}) == ["odd.py"]


def test_an_else_that_holds_an_if_is_an_elif(repository: Repository) -> None:
    repository.commit("long", {"long.py": "if a:\n    b\nelif c:\n    d\n"})
    assert changed(repository, {"long.py": "if a:\n    b\nelse:\n    if c:\n        d\n"}) == []


def test_a_declared_encoding_that_changes_a_text_is_a_change(repository: Repository) -> None:
    repository.commit("coded", {"coded.py": "#\nx = 1\ny = 'é'\n"})
    assert changed(repository, {"coded.py": "# coding: latin-1\nx = 1\ny = 'é'\n"}) == ["coded.py"]


def test_a_symbolic_link_is_no_python_whatever_its_target_reads_like(repository: Repository) -> None:
    (repository.path / "link.py").symlink_to("'one'")
    repository.commit("a link")
    (repository.path / "link.py").unlink()
    (repository.path / "link.py").symlink_to("'two'")
    assert changed(repository, {}) == ["link.py"]


@pytest.mark.parametrize("name", ["kernels.cu", "README.md", "new.py", "with space.txt"])
def test_every_other_byte_is_a_change(repository: Repository, name: str) -> None:
    assert changed(repository, {name: "// b\n"}) == [name]


def test_python_that_does_not_parse_is_a_change(repository: Repository) -> None:
    assert changed(repository, {"src/moe.py": "def f(:\n"}) == ["src/moe.py"]


def test_a_name_that_is_no_text_makes_everything_unknown(repository: Repository) -> None:
    base = repository.git("rev-parse", "HEAD")
    Path(os.fsdecode(os.fsencode(repository.path) + b"/\xff.py")).write_bytes(b"x = 1\n")
    assert changed_files(repository.path, base, repository.commit("odd")) is None


def test_too_many_files_make_everything_unknown(repository: Repository) -> None:
    assert changed(repository, {f"f{n}.txt": "" for n in range(501)}) is None


def test_a_submodule_that_its_own_file_wants_ignored_is_a_change(repository: Repository, tmp_path: Path) -> None:
    library = Repository.create(tmp_path / "library")
    library.commit("first", {"kernel.cu": "// 1\n"})
    repository.add_submodule(library, "third_party/lib")
    repository.git("config", "--file", ".gitmodules", "submodule.third_party/lib.ignore", "all")
    repository.git("config", "diff.ignoreSubmodules", "all")
    base = repository.commit("with a library")
    newer = library.commit("second", {"kernel.cu": "// 2\n"})
    repository.git("update-index", "--cacheinfo", f"160000,{newer},third_party/lib")
    repository.git("commit", "--quiet", "--allow-empty", "--message", "a newer library")
    assert changed_files(repository.path, base, repository.git("rev-parse", "HEAD")) == ["third_party/lib"]
