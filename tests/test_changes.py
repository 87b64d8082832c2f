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
