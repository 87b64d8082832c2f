"""The memory of a rotation: a damaged file counts as no memory."""

from pathlib import Path

import pytest

from regbot.engines.slurm.rotation import Rotation


def test_each_name_has_its_own_last_hosts(tmp_path: Path) -> None:
    rotation = Rotation(tmp_path)
    rotation.save("qwen3 / smoke", ["n2", "n1"])
    rotation.save("mixtral", ["n3"])
    assert Rotation(tmp_path).last_hosts("qwen3 / smoke") == {"n1", "n2"}
    assert rotation.last_hosts("mixtral") == {"n3"}
    assert rotation.last_hosts("../other") == frozenset()


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"[[1]]", b"\xff"])
def test_a_damaged_file_counts_as_no_memory(content: bytes, tmp_path: Path) -> None:
    rotation = Rotation(tmp_path)
    rotation.save("qwen3", ["n1"])
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert rotation.last_hosts("qwen3") == frozenset()
