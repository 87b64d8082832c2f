"""Export of a commit's files: the committed bytes, regardless of attributes, and regular files only."""

import importlib
from pathlib import Path

import pytest

from regbot.workloads.checkout.export import export
from regbot.workloads.checkout.git import CheckoutError
from support.git_repos import Repository

export_module = importlib.import_module("regbot.workloads.checkout.export")

FILES = {"refs/a/anchor.json": "{}\n", "refs/ledgers/b.json": "$Format:%H$ $Id$\n", "other.txt": "x\n"}


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


def exported(repo: Repository, commit: str, *paths: str) -> dict[str, bytes]:
    folder = repo.path.parent / f"to-{len(list(repo.path.parent.iterdir()))}"
    export(repo.path, commit, paths, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("folder", ["", "refs/", "refs/a/"])
@pytest.mark.parametrize("attribute", ["export-ignore", "export-subst", "ident", "text eol=crlf", "filter=x"])
def test_attributes_of_the_commit_hide_and_change_nothing(repo: Repository, folder: str, attribute: str) -> None:
    repo.git("config", "filter.x.smudge", "tr a-z A-Z")
    repo.commit("files", FILES)
    commit = repo.commit("attributes", {f"{folder}.gitattributes": f"* {attribute}\n"})
    files = exported(repo, commit, "refs")
    files.pop(f"{folder}.gitattributes", None)
    assert files == {name: text.encode() for name, text in FILES.items() if name.startswith("refs/")}


def test_only_requested_paths_are_exported_and_names_are_not_patterns(repo: Repository) -> None:
    commit = repo.commit("files", {**FILES, "*/x": "star\n", ":(top)y": "magic\n"})
    assert exported(repo, commit, "*", ":(top)y", "refs/a", "gone") == {
        "*/x": b"star\n",
        ":(top)y": b"magic\n",
        "refs/a/anchor.json": b"{}\n",
    }
    assert exported(repo, commit) == {}
    assert "other.txt" in exported(repo, commit, ".")


@pytest.mark.parametrize("target", ["/etc/passwd", "a/anchor.json", "../../outside", "."])
@pytest.mark.parametrize("at", ["refs/link", "refs/a/link", "whole"])
def test_a_link_is_refused_with_its_path(repo: Repository, target: str, at: str) -> None:
    repo.commit("files", FILES)
    (repo.path / at).symlink_to(target)
    commit = repo.commit("link")
    with pytest.raises(CheckoutError, match=rf"{at} of {commit[:12]} is a link; only regular files are allowed"):
        exported(repo, commit, "refs", "whole")


def test_a_path_out_of_its_folder_is_refused(repo: Repository) -> None:
    repo.commit("files", FILES)
    inner = repo.git("rev-parse", "HEAD:refs/a")
    listing = repo.path.parent / "tree"
    listing.write_bytes(b"40000 ..\0" + bytes.fromhex(inner))
    climbing = repo.git("hash-object", "-t", "tree", "-w", "--literally", str(listing))
    listing.write_bytes(b"40000 refs\0" + bytes.fromhex(climbing))
    tree = repo.git("hash-object", "-t", "tree", "-w", "--literally", str(listing))
    with pytest.raises(CheckoutError, match=r"refs/\.\./anchor\.json of .* is outside of its folder"):
        exported(repo, repo.git("commit-tree", "-m", "climb", tree), "refs")
