"""Which changed files cannot affect a run: by their kind, and by the globs of the base, never by what mentions them."""

import subprocess
import sys
from pathlib import Path

import pytest

from regbot.workloads.checkout.changes import list_changed_files
from support.git_repos import Repository

FAST = "tests/fast.py"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repository")


def inert(repository: Repository, base: str, *globs: str) -> list[str]:
    """Return the inert files among those that differ between ``base`` and the newest commit."""
    return list_changed_files(repository.path, base, repository.git("rev-parse", "HEAD"), globs).inert


@pytest.mark.parametrize("loader", ["a folder that begins with a dot", "a submodule"])
def test_a_file_that_code_loads_in_any_way_is_not_inert(repository: Repository, tmp_path: Path, loader: str) -> None:
    folder = ".tools"
    files = {"tests/__init__.py": "", ".tools/train.py": "import tests.fast\n"}
    repository.commit("code", {FAST: "SPEED = 'fast'\nprint(SPEED)\n", **files})
    if loader == "a submodule":
        folder, library = "third_party/lib", Repository.create(tmp_path / "library")
        library.commit("code", {"train.py": "import tests.fast\n"})
        repository.add_submodule(library, folder)
    base = repository.commit("base")
    repository.commit("slow", {FAST: "SPEED = 'slow'\nprint(SPEED)\n"})
    code = f"import sys\nsys.path[:0] = ['.', '{folder}']\nimport train\n"
    process = subprocess.run(
        [sys.executable, "-BIc", code], cwd=repository.path, capture_output=True, text=True, timeout=60
    )
    assert process.stdout == "slow\n", process.stderr  # the file is code
    assert inert(repository, base) == []


INERT = ["README.MD", "docs/guide.rst", "LICENSE", "src/NOTICE", ".github/workflows/ci.yml"]
NOT_INERT = [
    "docs/conf.py", "docs/guide.txt", "tests/fast.py", "requirements.txt", ".github/actions/build.sh", "LICENSES.py",
    "license", "COPYING/fast.py", "x.md/fast.py", ".md", "doc.md.py", "github/workflows/ci.yml", "setup.cfg",
]  # fmt: skip


def test_documentation_licences_and_settings_of_github_are_inert(repository: Repository) -> None:
    base = repository.commit("base")
    repository.commit("files", {**dict.fromkeys(INERT, "x"), **dict.fromkeys(NOT_INERT, "x")})
    assert sorted(inert(repository, base)) == sorted(INERT)


def test_only_regular_files_without_the_executable_bit_are_documentation(repository: Repository) -> None:
    base = repository.commit("base", {"run.md": "", "link.md": "", "module.rst": "", "was_link.md": ""})
    (repository.path / "was_link.md").unlink()
    (repository.path / "was_link.md").symlink_to("fast.py")
    (repository.path / "link.md").unlink()
    (repository.path / "link.md").symlink_to("fast.py")
    (repository.path / "run.md").chmod(0o755)
    repository.commit("links")
    repository.git("update-index", "--cacheinfo", f"160000,{base},module.rst")
    repository.git("commit", "-qm", "a submodule")
    assert inert(repository, base, "*.md", "*.rst") == ["run.md"]
    assert inert(repository, base) == []
    links = repository.git("rev-parse", "HEAD")
    (repository.path / "was_link.md").unlink()
    repository.git("rm", "-q", "--cached", "module.rst")
    repository.commit("text", {"was_link.md": "", "module.rst": ""})
    assert inert(repository, links) == []


def test_globs_of_the_base_add_files_and_take_them_out(repository: Repository) -> None:
    files = ["tests/a.py", "pkg/tests/a.py", "Tests/a.py", "te\u017fts/a.py", "prompts/system.md", "README.md"]
    base = repository.commit("base")
    repository.commit("files", dict.fromkeys(files, "x"))
    assert inert(repository, base, "tests/**") == ["README.md", "prompts/system.md", "tests/a.py"]
    assert inert(repository, base, "**/tests/**", "!prompts/**") == ["README.md", "pkg/tests/a.py", "tests/a.py"]
