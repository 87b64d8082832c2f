"""Which changed files cannot affect a run, by git's objects alone."""

from pathlib import Path
from typing import NoReturn

import pytest

from regbot.checkout import CheckoutError, load_inert_rule
from support.git_repos import Repository

CHANGED = ["docs/guide.txt", "tests/helpers.py", "pkg/tests/helpers.py", "README.md", ".github/workflows/ci.yml"]
"""Files that are inert unless another file mentions their folder."""


def inert(repository: Repository, files: dict[str, str]) -> list[str]:
    """Return the inert files among ``CHANGED`` in a repository with ``files``."""
    commit = repository.commit(
        "files", {"train.py": "import torch\n", "tests/test_a.py": "import tests.helpers\n", **files}
    )
    rule = load_inert_rule(repository.path, [commit])
    return [path for path in CHANGED if rule.is_inert(path)]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repository")


def test_documentation_and_tests_that_nothing_mentions_are_inert(repository: Repository) -> None:
    assert inert(repository, {}) == CHANGED
    assert inert(repository, {"model.py": "attests = latest.tested\n", "README.md": "Run the tests.\n"}) == CHANGED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.py", "from tests.helpers import scale\n"),
        ("model.py", "from pkg import (\n    plain, tests as fast,\n)\n"),
        ("model.py", "from \\\n tests import kern\n"),
        ("model.py", "path = f'{root}/tests/data'\n"),
        ("model.py", "# like tests\n"),
        ("regbot.toml", 'entry = "tests.moe:build"\n'),
        ("conf/train.yaml", "model: tests/models/small.yaml\n"),
        ("run.sh", "PYTHONPATH=src:tests python train.py\n"),
        ("Makefile", "build:\n\tcd tests && make\n"),
        ("kernels.cxx", '#include "tests/a.h"\n'),
        ("data.py", "\0 tests\n"),
    ],
)
def test_a_folder_that_another_file_mentions_is_not_inert(repository: Repository, name: str, text: str) -> None:
    assert inert(repository, {name: text}) == [path for path in CHANGED if "tests" not in path]


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.cfg", ".pre-commit-config.yaml", ".github/labels.yml"])
def test_settings_of_tools_may_mention_a_folder(repository: Repository, name: str) -> None:
    assert inert(repository, {name: "paths: tests/a.py\n"}) == CHANGED


def test_a_submodule_is_never_inert(repository: Repository) -> None:
    commit = repository.commit("one", {"model.py": ""})
    for path in ("tests/ext", "third.rst"):
        repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    repository.git("commit", "-qm", "submodules")
    rule = load_inert_rule(repository.path, [repository.git("rev-parse", "HEAD")])
    assert [path for path in ("tests/ext", "third.rst", "tests/a.py", "a.rst") if rule.is_inert(path)] == [
        "tests/a.py",
        "a.rst",
    ]


def test_a_search_that_takes_too_long_leaves_no_folder_inert(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit("one", {"model.py": ""})

    def too_slow(*_: object, **__: object) -> NoReturn:
        raise CheckoutError("git grep took more than 120 seconds")

    monkeypatch.setattr("regbot.checkout.inert._list_mentions", too_slow)
    assert not load_inert_rule(repository.path, [commit]).is_inert("tests/a.py")


def test_a_folder_that_a_mentioned_folder_mentions_is_not_inert(repository: Repository) -> None:
    expected = ["README.md", ".github/workflows/ci.yml"]
    assert inert(repository, {"model.py": "import docs.a\n", "docs/a.py": "import tests\n"}) == expected


def test_the_target_of_a_link_is_not_inert(repository: Repository) -> None:
    (repository.path / "helpers").symlink_to("tests")
    assert "tests/helpers.py" not in inert(repository, {})


def test_a_folder_is_inert_only_if_it_is_so_in_every_commit(repository: Repository) -> None:
    commits = [repository.commit("n", {"model.py": text}) for text in ("import tests\n", "")]
    assert not load_inert_rule(repository.path, commits).is_inert("tests/a.py")
    assert load_inert_rule(repository.path, commits[1:]).is_inert("tests/a.py")


@pytest.mark.parametrize("files", [{"model.py": "import tests\n"}, {"helpers": "-> tests"}])
def test_a_folder_that_a_commit_of_the_range_mentions_is_not_inert(
    repository: Repository, files: dict[str, str]
) -> None:
    good = repository.commit("good", {"model.py": ""})
    for name, text in files.items():
        if text.startswith("-> "):
            (repository.path / name).symlink_to(text.removeprefix("-> "))
        else:
            (repository.path / name).write_text(text)
    repository.commit("mentions the folder")
    for name in files:
        (repository.path / name).unlink()
    bad = repository.commit("bad", {"model.py": ""})
    ends = [good, bad]
    assert load_inert_rule(repository.path, ends).is_inert("tests/a.py")
    assert not load_inert_rule(repository.path, ends, f"{good}..{bad}").is_inert("tests/a.py")
    assert load_inert_rule(repository.path, ends, f"{good}..{bad}").is_inert("docs/a.txt")


def test_a_submodule_of_the_range_is_not_inert(repository: Repository) -> None:
    good = repository.commit("good", {"model.py": ""})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{good},tests/ext")
    repository.git("commit", "-qm", "submodule")
    repository.git("rm", "-q", "--cached", "tests/ext")
    repository.git("commit", "-qm", "no submodule")
    ends = [good, repository.git("rev-parse", "HEAD")]
    assert load_inert_rule(repository.path, ends).is_inert("tests/ext")
    assert not load_inert_rule(repository.path, ends, f"{ends[0]}..{ends[1]}").is_inert("tests/ext")


def test_a_range_that_git_cannot_read_leaves_no_folder_inert(repository: Repository) -> None:
    good = repository.commit("good", {"model.py": ""})
    assert not load_inert_rule(repository.path, [good], f"{'0' * 40}..{good}").is_inert("tests/a.py")


def test_in_a_repository_that_git_cannot_read_no_folder_is_inert(repository: Repository) -> None:
    assert not load_inert_rule(repository.path, ["0" * 40]).is_inert("tests/a.py")


@pytest.mark.parametrize("path", ["src/model.py", "test.py", ".github/scripts/a.py", "latest/a.py"])
def test_other_files_are_not_inert(repository: Repository, path: str) -> None:
    commit = repository.commit("one", {"model.py": ""})
    assert not load_inert_rule(repository.path, [commit]).is_inert(path)
