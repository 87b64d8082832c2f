"""Refreshes of made-up sessions: everything of a refresh but the measuring itself, and git where it is asked."""

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from regbot.check.conclusion import CheckResult
from regbot.check.flow import CheckOptions
from regbot.check.refresh import RefreshOptions, flow, refresh
from regbot.check.sessions.schedule import Slot
from regbot.engines import local
from regbot.judge import judge
from regbot.records.config import Config
from regbot.records.files import write_text
from regbot.records.refresh import RefreshReport
from regbot.records.run import Arm, Run
from regbot.records.session import Session
from support.baseline_cases import COUNTED, NOW, header_of
from support.ledger_builder import smoke_arm
from support.timed_builder import NODE, PLAN, play, statics, timed_run

CONFIG = """
version = 1
[workloads.smoke]
adapter = "smoke"
shapes = ["qwen3-30b-a3b"]
meshes = ["ep"]
variant = "cpu"
"""


def arm(name: str, commit: str) -> Arm:
    return smoke_arm("base" if name == "base" else "head").model_copy(update={"commit": commit, "tree": commit[::-1]})


def night_session(
    number: int, anchor: str, main: str, slower: float, noise: float = 0.002, level: float = 0.1, **changes: object
) -> Session:
    """A night's session: four pairs, main slower than the anchor by ``slower``."""
    draw = random.Random(number)
    base, head = arm("base", anchor), arm("head", main)

    def launch(at: Slot) -> Run:
        usual = level * (1 + slower if at.arm == "head" else 1.0) * (1 + draw.gauss(0, noise))
        steps = [usual * (1 + draw.gauss(0, 0.002)) for _ in range(at.steps)]
        run = timed_run(at, steps, **{"ledger": COUNTED, **changes})
        return run.model_copy(update={"arm": base if at.arm == "base" else head})

    plan = PLAN.model_copy(update={"max_pairs": 4, "even_if_identical": True})
    header = header_of(number, base=base, head=head, timed=[plan], regbot=f"0.1.{number}")
    traces = [run.model_copy(update={"arm": base if run.arm.name == "base" else head}) for run in statics("a")]
    return Session(header=header, runs=[*traces, *play(launch, header)])


def measuring(session: Callable[[CheckOptions], Session]) -> Callable[..., CheckResult]:
    """A stand-in for the check: what it would have measured is ``session``."""

    def check(options: CheckOptions, *_: object) -> CheckResult:
        result = session(options)
        lines = [result.header.to_line(), *(run.to_line() for run in result.runs)]
        write_text(options.out / "session.jsonl", "".join(lines))
        return CheckResult(judge(result, Config()), result, options.out)

    return check


def refreshed(
    root: Path,
    scratch: Path,
    number: int = 0,
    who: str = "ada",
    slower: float = 0.0,
    repo: Path | None = None,
    now: datetime | None = None,
    night: dict[str, Any] | None = None,
    **options: Any,
) -> RefreshReport:
    """One refresh of a made-up night: written to the store ``root``, or proposed to the repository ``repo``.

    Main is another commit every night; ``night`` holds more of what ``night_session`` takes.
    """
    (scratch / "regbot.toml").write_text(CONFIG)
    asked = RefreshOptions(
        **{
            "repo": repo or scratch,
            "cache": scratch / "cache",
            "out": scratch / f"out-{who}-{number}",
            "no_sandbox": True,  # nothing runs: a machine without bubblewrap must pass too
            "who": who,
            "config": scratch / "regbot.toml",
            "store": None if repo else root,
            **options,
        }
    )
    main = arm("head", f"{number + 1:040x}")
    stand_in = measuring(lambda check: night_session(number, str(check.base), check.head, slower, **(night or {})))
    with ExitStack() as stack:
        stack.enter_context(patch.object(flow, "check", stand_in))
        stack.enter_context(patch.object(local, "this_node", lambda: NODE))
        if repo is None:
            stack.enter_context(patch.object(flow, "resolve_arm", lambda *_: main))
        return refresh(asked, now=now or NOW)


def nights(root: Path, scratch: Path, slower: Sequence[float], first: int = 0, **more: Any) -> list[RefreshReport]:
    """One refresh after the other."""
    return [refreshed(root, scratch, first + n, slower=by, **more) for n, by in enumerate(slower)]
