"""Files of a commit as they were committed, whatever its attributes say, and nothing that is no plain file."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from git_repos import Repository
from regbot.checkout import CheckoutError, export
from regbot.stored import store_at

exporting = importlib.import_module("regbot.checkout.export")

FILES = {"refs/a/anchor.json": "{}\n", "refs/ledgers/b.json": "$Format:%H$ $Id$\n", "other.txt": "x\n"}


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "repo")


def exported(repo: Repository, commit: str, *paths: str) -> dict[str, bytes]:
    to = repo.path.parent / f"to-{len(list(repo.path.parent.iterdir()))}"
    export(repo.path, commit, paths, to)
    return {str(path.relative_to(to)): path.read_bytes() for path in sorted(to.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("where", ["", "refs/", "refs/a/"])
@pytest.mark.parametrize("attribute", ["export-ignore", "export-subst", "ident", "text eol=crlf", "filter=x"])
def test_attributes_of_the_commit_hide_and_change_nothing(repo: Repository, where: str, attribute: str) -> None:
    repo.git("config", "filter.x.smudge", "tr a-z A-Z")
    repo.commit("files", FILES)
    commit = repo.commit("attributes", {f"{where}.gitattributes": f"* {attribute}\n"})
    found = exported(repo, commit, "refs")
    found.pop(f"{where}.gitattributes", None)
    assert found == {name: text.encode() for name, text in FILES.items() if name.startswith("refs/")}


def test_the_store_of_a_base_whose_attributes_hide_it_is_read(repo: Repository) -> None:
    name = "baselines/qwen3-30b-a3b+ep+cpu@1/node/anchor.json"
    commit = repo.commit("files", {name: "{}\n", ".gitattributes": "baselines/** export-ignore\n"})
    with store_at(repo.path, commit, "baselines", None, [("qwen3-30b-a3b@1/ep", "cpu")]) as store:
        assert (store.root.parent / name).read_text() == "{}\n"


def test_only_what_was_asked_for_is_there_and_names_are_no_patterns(repo: Repository) -> None:
    commit = repo.commit("files", {**FILES, "*/x": "star\n", ":(top)y": "magic\n"})
    assert exported(repo, commit, "*", ":(top)y", "refs/a", "gone") == {
        "*/x": b"star\n",
        ":(top)y": b"magic\n",
        "refs/a/anchor.json": b"{}\n",
    }
    assert exported(repo, commit, "gone") == {}
    assert exported(repo, commit) == {}
    assert exported(repo, commit, "./refs/").keys() == exported(repo, commit, "refs").keys()
    assert "other.txt" in exported(repo, commit, ".")


def test_any_bytes_and_names_come_through_in_more_than_one_batch(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = exporting.try_git, []

    def counting(*given: Any, **more: Any) -> Any:
        asked.append(more["stdin"])
        return real(*given, **more)

    monkeypatch.setattr(exporting, "AT_ONCE_BYTES", 300)
    monkeypatch.setattr(exporting, "try_git", counting)
    content = {f"refs/{n}\n\xe9.bin": bytes([n, 10, 255, 0, 13]) * (n * 20) for n in range(9)}
    for name, data in content.items():
        (repo.path / name).parent.mkdir(exist_ok=True)
        (repo.path / name).write_bytes(data)
    assert exported(repo, repo.commit("bytes"), "refs") == content
    assert len(asked) > 3


@pytest.mark.parametrize("target", ["/etc/passwd", "a/anchor.json", "../../outside", "."])
@pytest.mark.parametrize("at", ["refs/link", "refs/a/link", "whole"])
def test_a_link_is_refused_by_its_name(repo: Repository, target: str, at: str) -> None:
    repo.commit("files", FILES)
    (repo.path / at).symlink_to(target)
    commit = repo.commit("link")
    with pytest.raises(CheckoutError, match=rf"{at} of {commit[:12]} is a link; there may be plain files only"):
        exported(repo, commit, "refs", "whole")


def test_a_submodule_is_refused_by_its_name(repo: Repository, tmp_path: Path) -> None:
    other = Repository.create(tmp_path / "other")
    other.commit("one", {"x": "y"})
    repo.add_submodule(other, "refs/sub")
    with pytest.raises(CheckoutError, match=r"refs/sub of .* is a submodule"):
        exported(repo, repo.commit("sub"), "refs")


def test_a_name_that_climbs_is_refused(repo: Repository) -> None:
    repo.commit("files", FILES)
    inner = repo.git("rev-parse", "HEAD:refs/a")
    listing = repo.path.parent / "tree"
    listing.write_bytes(b"40000 ..\0" + bytes.fromhex(inner))
    climbing = repo.git("hash-object", "-t", "tree", "-w", "--literally", str(listing))
    listing.write_bytes(b"40000 refs\0" + bytes.fromhex(climbing))
    tree = repo.git("hash-object", "-t", "tree", "-w", "--literally", str(listing))
    with pytest.raises(CheckoutError, match=r"refs/\.\./anchor\.json of .* is outside of its folder"):
        exported(repo, repo.git("commit-tree", "-m", "climb", tree), "refs")


def test_a_file_that_no_record_is_as_large_as_is_refused(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repo.commit("files", FILES)
    monkeypatch.setattr(exporting, "MAX_RECORD_BYTES", 10)
    with pytest.raises(CheckoutError, match=r"refs/ledgers/b\.json of .* is of 17 bytes, more than the 10"):
        exported(repo, commit, "refs")


def test_a_repository_that_lacks_an_object_is_told_as_such(repo: Repository) -> None:
    commit = repo.commit("files", FILES)
    blob = repo.git("rev-parse", "HEAD:refs/ledgers/b.json")
    (repo.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(CheckoutError, match=r"refs/ledgers/b\.json of .* is not in this repository's objects"):
        exported(repo, commit, "refs")


def test_a_file_and_a_folder_of_one_name_are_a_message(repo: Repository) -> None:
    commit = repo.commit("files", FILES)
    (repo.path.parent / "to").mkdir()
    (repo.path.parent / "to" / "refs").write_text("in the way")
    with pytest.raises(CheckoutError, match=r"refs/a/anchor\.json of .* cannot be written: "):
        export(repo.path, commit, ["refs"], repo.path.parent / "to")
