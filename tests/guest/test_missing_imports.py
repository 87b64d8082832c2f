"""A package that the layer tries to import, and goes on without, is named: it ran as another program."""

from pathlib import Path

import pytest

from support.guest_runs import TINY, answer, ask, run_guest
from support.layers import GOOD_LAYER

OPTIONAL = "try:\n    from kernels_of_nobody import ops\nexcept ImportError:\n    ops = None\n\n" + GOOD_LAYER


@pytest.mark.parametrize("needed", [False, True])
def test_a_package_that_the_layer_goes_on_without_is_named(needed: bool, tmp_path: Path) -> None:
    code = "return Exchange.apply(F.silu"
    layer = OPTIONAL.replace(code, f"assert ops is not None\n        {code}") if needed else OPTIONAL
    (tmp_path / "layer.py").write_text(layer)
    run_guest(ask(tmp_path, "trace", entry="layer:build_layer", geometry=TINY, world=4, ep=2))
    record = answer(tmp_path, "trace")
    told = record["refusal"]["message"] if needed else " ".join(record["ledger"]["warnings"])
    assert "not installed: kernels_of_nobody (imported in layer.py)" in told
