"""Layers of which the last rank fails in the second step: one crashes, one sleeps. They are entries for regbot."""

import os
import time
from typing import Any

from regbot_guest import moe

FAULTY_STEP = 3


class FaultyLayer(moe.MoE):
    """regbot's layer. In its third forward pass the last rank calls ``fail``."""

    def __init__(self, fault: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault, self.passes = fault, 0

    def forward(self, x: Any) -> Any:
        self.passes += 1
        if self.passes == FAULTY_STEP and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            if self.fault == "crash":
                raise RuntimeError("the planted crash")
            time.sleep(3600)
        return super().forward(x)


def build_crash(config: dict[str, Any], mesh: Any, device: Any, dtype: Any) -> Any:
    return FaultyLayer("crash", config, mesh["ep"].get_group(), device, dtype)


def build_hang(config: dict[str, Any], mesh: Any, device: Any, dtype: Any) -> Any:
    return FaultyLayer("hang", config, mesh["ep"].get_group(), device, dtype)
