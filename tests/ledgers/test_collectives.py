"""The table of collective names: that of the readers and that of the guest say the same."""

import pytest

from regbot.ledgers import collectives
from regbot.ledgers.collectives import classify_role, find_kind

guest = pytest.importorskip("regbot_guest.collectives", reason="the guest's table needs torch")


def test_every_operator_of_the_guest_has_the_same_kind() -> None:
    operators = {name: spec.kind for table in guest.COLLECTIVES.values() for name, spec in table.items()}
    assert {name: find_kind(name) for name in operators} == operators


def test_no_operator_that_the_guest_takes_for_local_has_a_kind() -> None:
    assert not [name for names in guest.NOT_COLLECTIVES.values() for name in names if find_kind(name)]


def test_the_limits_of_control_exchanges_are_those_of_the_guest() -> None:
    for name in ("MAX_CONTROL_INDEX_BYTES", "MAX_CONTROL_SMALL_BYTES"):
        assert getattr(collectives, name) == getattr(guest, name)


@pytest.mark.parametrize(
    ("dtypes", "size", "role"),
    [
        (("int64",), 16 * 2**20, "control"),
        (("s32", "pred"), 16 * 2**20 + 1, "payload"),
        (("int8",), 64 * 2**10, "control"),
        (("u8", "s32"), 64 * 2**10 + 1, "payload"),
        (("int64",), None, "payload"),
    ],
)
def test_small_integers_are_control(dtypes: tuple[str, ...], size: int | None, role: str) -> None:
    assert classify_role("all_to_all", size, *dtypes) == role
