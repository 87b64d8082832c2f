"""Workloads with ``sparse``: what is checked out is measured, and a missing file is never the pull request's fault."""

import json
from pathlib import Path

import pytest

from support.check_cases import Case, only
from support.layers import CONFIG, GOOD_LAYER, TIMED_CONFIG

SPARSE = 'timeout_min = 1\nsparse = ["userpkg"]\n'
SPARSE_CONFIG = CONFIG.replace("timeout_min = 1\n", SPARSE)
IMPORTING = f"import libs.fast\n{GOOD_LAYER}"
FALLING_BACK = f"try:\n    import libs.fast\nexcept ImportError:\n    pass\n{GOOD_LAYER}"
READING = GOOD_LAYER.replace(
    "    return Layer(", "    open(__file__.replace('userpkg/moe.py', 'libs/table.json')).close()\n    return Layer("
)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    case = Case(tmp_path)
    case.repository.commit("libraries", {"libs/fast.py": "speed = 1\n", "libs/table.json": "{}\n", "web/a.html": "<p>"})
    return case


@pytest.mark.slow
def test_a_check_of_a_sparse_workload_passes_and_its_worktrees_are_sparse(case: Case) -> None:
    case.pull_request("# why\n" + GOOD_LAYER, config=SPARSE_CONFIG)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert all(run["sparse"] == ["userpkg"] and run["code"]["missing"] == [] for run in case.runs())
    trees = [path for path in (case.home / "cache").glob("repositories/*/worktrees/*") if path.is_dir()]
    assert len(trees) == 2
    for tree in trees:
        names = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
        assert names == {".git", "regbot.toml", "userpkg/__init__.py", "userpkg/moe.py"}


@pytest.mark.slow
@pytest.mark.parametrize("head", [IMPORTING, FALLING_BACK], ids=["imports", "falls back"])
def test_a_head_that_imports_a_file_that_is_not_checked_out_is_invalid(case: Case, head: str) -> None:
    case.pull_request(head, config=SPARSE_CONFIG)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    (reason,) = only(verdict)["validity"]["reasons"]
    assert "It looked for libs/fast.py" in reason
    assert "which the commit has and the sparse checkout lacks." in reason
    assert "Add 'libs' to 'sparse' of the workload" in reason
    comment = (case.home / "out" / "comment.md").read_text()
    assert "libs/fast.py" in comment


@pytest.mark.slow
def test_the_same_head_passes_with_the_folder_that_the_message_names(case: Case) -> None:
    case.pull_request(FALLING_BACK, config=SPARSE_CONFIG.replace('"userpkg"]', '"userpkg", "libs"]'))
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (0, "PASS")


@pytest.mark.slow
def test_a_head_that_reads_a_file_that_is_not_checked_out_is_invalid(case: Case) -> None:
    case.pull_request(READING, config=SPARSE_CONFIG)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    (reason,) = only(verdict)["validity"]["reasons"]
    assert "libs/table.json" in reason
    assert "The checkout has only userpkg and the files of parent folders" in reason


@pytest.mark.slow
def test_a_base_that_needs_more_says_what_to_add(case: Case) -> None:
    case.pull_request("# why\n" + IMPORTING, base=IMPORTING, config=SPARSE_CONFIG)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert any("Add 'libs' to 'sparse'" in reason for reason in only(verdict)["validity"]["reasons"])


@pytest.mark.slow
def test_an_installed_package_does_not_stand_in_for_a_folder_that_is_not_checked_out(case: Case) -> None:
    case.repository.commit("a package of the repository", {"packaging/__init__.py": "OWN = 1\n"})
    case.pull_request(
        "# why\nimport packaging\n" + GOOD_LAYER, base="import packaging\n" + GOOD_LAYER, config=SPARSE_CONFIG
    )
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    assert any("imported packaging from" in reason for reason in only(verdict)["validity"]["reasons"])


@pytest.mark.slow
def test_a_timed_head_that_imports_a_file_that_is_not_checked_out_is_invalid(case: Case) -> None:
    late = GOOD_LAYER.replace("    def forward(self, x):\n", "    def forward(self, x):\n        import libs.fast\n")
    config = TIMED_CONFIG.replace("timeout_min = 1\n", SPARSE)
    case.pull_request(late, config=config)
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")


def test_a_folder_that_neither_commit_has_is_refused(case: Case) -> None:
    case.pull_request("# why\n" + GOOD_LAYER, config=SPARSE_CONFIG.replace('"userpkg"', '"userpgk"'))
    refused = case.regbot("check", "--base", "main", "--out", str(case.home / "out"))
    assert refused.returncode == 2
    assert "workloads.moe.sparse: neither base nor head has a folder 'userpgk'" in refused.stderr


@pytest.mark.slow
def test_a_folder_that_only_head_has_is_checked_out_there(case: Case) -> None:
    case.commit(GOOD_LAYER, SPARSE_CONFIG.replace('"userpkg"', '"userpkg", "kernels"'))
    case.repository.git("checkout", "-q", "-b", "pr")
    case.commit("import kernels.new\n" + GOOD_LAYER, None, **{"kernels/new.py": "speed = 2\n"})
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (0, "PASS")
    [head_run] = [run for run in case.runs() if run["arm"]["name"] == "head"]
    assert "kernels/new.py" in json.dumps(head_run["code"]["files"])


@pytest.mark.slow
def test_a_check_in_a_sparse_partial_clone_fetches_what_it_needs_and_writes_nothing_there(case: Case) -> None:
    """``git clone --filter=blob:none --sparse`` of a monorepo: the clone lacks regbot.toml of base, and all of web."""
    case.pull_request("# why\n" + GOOD_LAYER, config=SPARSE_CONFIG)
    origin = case.repository
    origin.git("config", "uploadpack.allowFilter", "true")
    origin.git("checkout", "-q", "main")
    clone = case.repository = origin.clone_to(case.home / "clone", "--filter=blob:none", "--sparse", "--branch=pr")
    clone.git("sparse-checkout", "set", "userpkg")
    assert not (clone.path / "web").exists()
    before = clone.fingerprint()
    code, verdict = case.check("--base", "origin/main")
    assert (code, verdict["verdict"]) == (0, "PASS")
    assert only(verdict)["sharding"]["identical_program"] is True
    assert clone.fingerprint() == before
    origin.path.rename(case.home / "gone")
    assert case.check("--base", "origin/main")[0] == 0, "all files are in the cache"


def test_a_check_in_a_partial_clone_without_its_remote_is_refused_by_name(case: Case) -> None:
    case.pull_request("# why\n" + GOOD_LAYER)
    origin = case.repository
    origin.git("config", "uploadpack.allowFilter", "true")
    case.repository = origin.clone_to(case.home / "clone", "--filter=blob:none", "--branch=pr")
    origin.path.rename(case.home / "gone")
    refused = case.regbot("check", "--base", "origin/main", "--out", str(case.home / "out"))
    assert refused.returncode == 2
    assert "lacks files of these commits" in refused.stderr
    assert "git fetch --refetch --no-filter" in refused.stderr


@pytest.mark.slow
def test_a_build_of_head_that_needs_a_file_that_is_not_checked_out_is_invalid(case: Case) -> None:
    config = SPARSE_CONFIG.replace("timeout_min = 1\n", 'timeout_min = 1\nbuild = ["sh userpkg/build.sh"]\n')
    case.commit(GOOD_LAYER, config, **{"userpkg/build.sh": "true\n"})
    case.repository.git("checkout", "-q", "-b", "pr")
    case.commit(GOOD_LAYER, None, **{"userpkg/build.sh": "cat libs/table.json\n"})
    code, verdict = case.check()
    assert (code, verdict["verdict"]) == (4, "INVALID")
    (reason,) = only(verdict)["validity"]["reasons"]
    assert "The checkout has only userpkg" in reason
