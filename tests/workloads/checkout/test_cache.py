"""The cache folder of a repository: one for each origin, whatever the path of the clone."""

from pathlib import Path

import pytest

from regbot.workloads.checkout.cache import repository_cache
from support.git_repos import Repository


def repository_with_origin(path: Path, origin: str = "") -> Repository:
    repository = Repository.create(path)
    if origin:
        repository.git("remote", "add", "origin", origin)
    return repository


def test_clones_of_one_origin_have_one_folder_whatever_their_path_and_token(tmp_path: Path) -> None:
    origins = [
        "https://forge.example/acme/moe",
        "https://x-access-token:secret@forge.example/acme/moe",
        "https://another@forge.example/acme/moe",
    ]
    clones = [repository_with_origin(tmp_path / str(n), origin).path for n, origin in enumerate(origins)]
    (folder,) = {repository_cache(tmp_path / "cache", clone) for clone in clones}
    assert folder.parent == tmp_path / "cache" / "repositories"


def test_two_origins_at_one_path_have_two_folders(tmp_path: Path) -> None:
    repository = repository_with_origin(tmp_path / "code", "https://forge.example/acme/moe")
    acme = repository_cache(tmp_path, repository.path)
    repository.git("remote", "set-url", "origin", "https://forge.example/other/moe")
    assert repository_cache(tmp_path, repository.path) != acme


@pytest.mark.parametrize("origin", ["", "../upstream.git", "upstream", "./a:b"])
def test_a_repository_without_an_absolute_origin_is_identified_by_its_path(tmp_path: Path, origin: str) -> None:
    first, second = (repository_with_origin(tmp_path / name / "moe", origin) for name in ("acme", "other"))
    assert repository_cache(tmp_path, first.path) != repository_cache(tmp_path, second.path)
