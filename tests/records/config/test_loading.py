"""Loading a configuration also returns its source."""

from pathlib import Path

import pytest

from regbot.check.configuration import confine
from regbot.records.config import (
    ConfigError,
    ConfigSource,
    ConfigWarning,
    SourceKind,
    load_commit,
    load_file,
    load_first,
    with_machine_tables,
)

BASE, TARGET, HEAD = (
    ConfigSource(kind, f"{kind.value:x<40}") for kind in (SourceKind.BASE, SourceKind.TARGET, SourceKind.HEAD)
)
TEXT = "version = 1\n[sandbox]\npids = 20\n"


@pytest.mark.parametrize("source", [BASE, TARGET, HEAD])
def test_the_first_source_that_has_a_file_is_used_and_named(source: ConfigSource) -> None:
    loaded = load_first({source.name: TEXT}.get, (BASE, TARGET, HEAD))
    assert loaded is not None
    assert loaded.source == loaded.machine_source == source
    assert loaded.warnings == (() if source is BASE else (ConfigWarning.BASE_HAS_NONE,))
    assert len(loaded.messages()) == len(loaded.warnings)


def test_an_error_names_the_commit() -> None:
    with pytest.raises(ConfigError, match=r"^regbot\.toml at basexxxxxxxx: version: "):
        load_first({BASE.name: "version = 2"}.get, [BASE])
    with pytest.raises(ConfigError, match=r"^basexxxxxxxx has no regbot\.toml; commit one"):
        load_commit({}.get, BASE.name)


def test_machine_tables_have_their_own_source(tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text("version = 1\n[sandbox]\npids = 99\n")
    loaded = load_first({HEAD.name: TEXT}.get, [HEAD])
    assert loaded is not None
    assert with_machine_tables(loaded, None) == loaded
    moved = with_machine_tables(loaded, node)
    assert (moved.source, moved.machine_source) == (HEAD, load_file(node).source)
    assert moved.config.sandbox.pids == 99


def test_untrusted_code_cannot_choose_its_own_confinement(tmp_path: Path) -> None:
    node = tmp_path / "node.toml"
    node.write_text("version = 1\n")
    for source in (BASE, HEAD):
        loaded = load_first({source.name: TEXT}.get, [source])
        assert loaded is not None
        assert confine(loaded, None, False, "BAD", "") == loaded
        assert confine(loaded, node, True, "BAD", "").config.sandbox.pids != 20
        if source is BASE:
            assert confine(loaded, None, True, "BAD", "") == loaded
            continue
        with pytest.raises(ConfigError, match=r"^--untrusted: only BAD has a regbot\.toml"):
            confine(loaded, None, True, "BAD", "give --config FILE")
