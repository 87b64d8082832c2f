"""What the guest refuses with is what a record may hold: another kind would make a good refusal a bad record."""

import re
from pathlib import Path
from typing import get_args

import regbot
from regbot.records.run import Refusal

GUEST = Path(regbot.__file__).parent / "guest"
RAISED = re.compile(r"""(?:ContractError|_refusal)\(\s*["'](\w+)["']""")


def test_every_kind_of_refusal_in_the_guest_is_one_of_the_record() -> None:
    kinds = {kind for path in GUEST.rglob("*.py") for kind in RAISED.findall(path.read_text(encoding="utf-8"))}
    assert {"no_torch", "paper_gpu", "revision", "config"} <= kinds
    assert kinds <= set(get_args(Refusal.model_fields["kind"].annotation))
