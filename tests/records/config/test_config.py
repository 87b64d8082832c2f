"""Parsing of regbot.toml. Every error names its key and a fix."""

from pathlib import Path

import pytest

from regbot.records.config import ConfigError, Workload, load_config, override, parse_config, parse_override

GOOD = """
version = 1
[workloads.moe]
adapter = "module"
entry = "pkg.moe:build_layer"
"""


def test_a_small_configuration_is_enough() -> None:
    workload = parse_config(GOOD, "regbot.toml").workloads["moe"]
    assert workload.shapes == ["qwen3-30b-a3b", "mixtral-8x7b"]
    assert workload.meshes == ["ep", "ep-dp"]
    assert workload.variant == "full"


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("version = 2", "version", "use one of these values"),
        ("versoin = 1", "versoin", "docs/configuration.md"),
        ("[workloads.moe]\nadapter = 'module'", "workloads.moe", "entry = 'package.module:function'"),
        ("[workloads.moe]\nadapter = 'modul'", "workloads.moe.adapter", "'smoke', 'module'"),
        ("[workloads.moe]\nadapter = 'module'\nentry = 'pkg.moe'", "workloads.moe.entry", "'package.module:function'"),
        ("[workloads.moe]\nadapter = 'smoke'\nentry = 'a:b'", "workloads.moe", "adapter = 'module'"),
        (GOOD + "timeout_min = '5'", "workloads.moe.timeout_min", "write a number"),
        (GOOD + "shapes = 'qwen3-30b-a3b'", "workloads.moe.shapes", "write a list"),
        (GOOD + "source_roots = ['../other']", "workloads.moe.source_roots", "relative to its root"),
        (GOOD + "paths = 'userpkg/'", "workloads.moe.paths", "write a list"),
        (GOOD + "paths = ['/userpkg']", "workloads.moe.paths", "relative to its root"),
        (GOOD + "paths = [':(top)../userpkg']", "workloads.moe.paths", "relative to its root"),
        (GOOD + "paths = [':(attr:lfs)userpkg']", "workloads.moe.paths", "'attr:lfs'"),
        (GOOD + "[workloads.moe.config]\ntop_k = 1", "workloads.moe.config", "choose another shape"),
        (GOOD + "meshes = ['tp']", "workloads.moe.meshes", "use one of these values"),
        (GOOD + "gpu = 'H200'", "workloads.moe.gpu", "did you mean 'h200'?"),
        (GOOD + "device = 'cpu'\ngpu = 'h200'", "workloads.moe", "gpu: a CPU program has no paper GPU"),
        ("[wire]\ngpus_per_node = 0", "wire.gpus_per_node", "greater than 0"),
    ],
)
def test_an_error_names_its_key_and_a_fix(text: str, key: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "regbot.toml")
    assert f"regbot.toml: {key}" in str(caught.value)
    assert fix in str(caught.value)


def test_paths_may_be_all_pathspecs_that_git_has() -> None:
    pathspecs = ["userpkg/", "*.py", ":(glob)userpkg/**/*.cu", ":(top,icase)USERPKG", ":/userpkg", ":!userpkg/docs"]
    assert parse_config(f"{GOOD}paths = {pathspecs}", "regbot.toml").workloads["moe"].paths == pathspecs


def test_invalid_toml_is_reported_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "regbot.toml").write_text("version = \n")
    with pytest.raises(ConfigError, match=r"regbot\.toml: is not TOML: .*line 1"):
        load_config(tmp_path / "regbot.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dispatcher=allgather", ("dispatcher", "allgather")),
        ("chunks=4", ("chunks", 4)),
        ("overlap=true", ("overlap", True)),
        ("name=a=b", ("name", "a=b")),
    ],
)
def test_an_override_value_is_toml_or_else_text(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text, "--head-set") == expected


def test_overrides_reach_the_workload_or_its_config() -> None:
    workload = Workload(adapter="smoke")
    changed = override(workload, {"dispatcher": "allgather", "chunks": 4})
    assert changed.dispatcher == "allgather"
    assert changed.config == {"chunks": 4}
    with pytest.raises(ConfigError, match="routing"):
        override(workload, {"routing": "random"})
    for key in ("device", "gpu"):
        with pytest.raises(ConfigError, match=f"set workloads.NAME.{key} instead"):
            override(workload, {key: "h200"})


@pytest.mark.parametrize("folder", ["perf", "./perf", "perf/", "perf//"])
def test_the_baselines_folder_is_normalized(folder: str) -> None:
    assert parse_config(f'[baselines]\nfolder = "{folder}"\n', "regbot.toml").baselines.folder == "perf"


@pytest.mark.parametrize("folder", ["", ".", "/perf", "../perf", "a/../.."])
def test_the_baselines_folder_must_lie_in_the_repository(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"baselines\.folder: .*write a path"):
        parse_config(f'[baselines]\nfolder = "{folder}"\n', "regbot.toml")
