"""One bisection for every answer that a reader can meet, by the name of its golden file; and one whose authors wanted
their text to be more than text."""

import hashlib
from collections.abc import Callable, Sequence

from regbot.judge.sharding import judge_ledgers
from regbot.records.bisection import Bisection, Candidate, Change, Estimate, Point
from regbot.records.config import Config
from regbot.records.verdict import Finding
from support.report_cases import HOSTILE
from support.sharding_cases import QWEN, ledger

ENTRIES = ["qwen3-30b-a3b@1/ep", "qwen3-30b-a3b@1/ep-dp"]
BUILD_FAILED = "its build failed: ModuleNotFoundError: No module named 'moe_train.router' (exit 1)"
SKIPPED = "the command exited with 125, which means: not measurable"


def point(number: int, **more: object) -> Point:
    """The commit of that number on the example's main branch; 0 is good."""
    fields: dict[str, object] = {
        "commit": _hash(f"commit {number}"),
        "tree": _hash(f"tree {number}"),
        "parents": [_hash(f"commit {number - 1}")],
        "subject": f"Split the router's capacity by layer, part {number} (#{400 + number})",
        "author": "Ada Example" if number % 2 else "Bo Example",
        "date": f"2026-03-{1 + number % 28:02}T09:30:00+00:00",
        "pull_request": 400 + number,
    }
    return Point.model_validate({**fields, **more})


def _hash(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def candidate(one: Point, probability: float | None, reason: str = "") -> Candidate:
    return Candidate(point=one, probability=probability, measurable=not reason, reason=reason)


def result(**more: object) -> Bisection:
    """A bisection of 64 commits on time; ``more`` has whatever is different."""
    fields: dict[str, object] = {
        "culprit": None,
        "candidates": [],
        "posterior": None,
        "on": "time",
        "exact": False,
        "good": point(0),
        "bad": point(64),
        "commits": 64,
        "different": 52,
        "search_runs": 28,
        "confirm_runs": 8,
        "builds": 9,
        "minutes": 84.2,
        "noise_pct": 2.1,
    }
    return Bisection.model_validate({**fields, **more})


def exact(**more: object) -> Bisection:
    fields = {"on": "ledger", "exact": True, "search_runs": 14, "confirm_runs": 0, "minutes": 1.6, "noise_pct": None}
    return result(**{**fields, **more})


def change(candidates: Sequence[Candidate], parent: Point, confirmed: str, **more: object) -> Change:
    return Change.model_validate({"candidates": list(candidates), "parent": parent.key, "confirmed": confirmed, **more})


def estimate(pct: float, low: float, high: float, pairs: int, decision: str) -> Estimate:
    return Estimate.model_validate({"pct": pct, "low_pct": low, "high_pct": high, "pairs": pairs, "decision": decision})


def _fallback() -> Finding:
    (found,) = judge_ledgers(ledger(QWEN), ledger(QWEN, lambda _: True), Config()).findings
    return found


def ledger_culprit() -> Bisection:
    """One commit of a merged branch, exact, with its finding."""
    named = candidate(point(41), None)
    found = change(
        [named],
        point(40),
        "exact",
        entries=ENTRIES,
        findings=[_fallback()],
        merge=_hash("merge"),
        before="a",
        after="b",
    )
    return exact(found="culprit", culprit=named.point.commit, candidates=[named], changes=[found])


def command_two_changes() -> Bisection:
    """Two changes, one of them by one of several commits."""
    several = [candidate(point(50), None), candidate(point(49), None, SKIPPED)]
    changes = [
        change([candidate(point(12), None)], point(11), "exact", before="1000", after="1064"),
        change(several, point(48), "exact", before="1064", after="1096"),
    ]
    return exact(
        found="culprit", culprit=point(12).commit, candidates=changes[0].candidates, changes=changes, on="command"
    )


def time_culprit() -> Bisection:
    named = candidate(point(20), 0.9991)
    found = change([named], point(19), "yes", estimate=estimate(10.9, 8.8, 13.0, 4, "regressed"), entries=ENTRIES[:1])
    return result(
        found="culprit",
        culprit=named.point.commit,
        candidates=[named],
        changes=[found],
        reused_runs=16,
        unmeasurable=[candidate(point(33), None, BUILD_FAILED)],
        warnings=["uncommitted changes are not measured (1 file: train.py)"],
    )


def time_not_confirmed() -> Bisection:
    named = candidate(point(20), 0.96)
    found = change([named], point(19), "undecided", estimate=estimate(1.1, -0.8, 3.0, 12, "undecided"))
    return result(found="culprit", culprit=named.point.commit, candidates=[named], changes=[found])


def undecided() -> Bisection:
    return result(
        found="undecided",
        candidates=[candidate(point(20), 0.61), candidate(point(21), 0.2, BUILD_FAILED)],
        reasons=["the likeliest commit has a probability of 61%, and 95% are needed; continue with --resume"],
    )


def none() -> Bisection:
    return exact(found="none", reasons=["the ledgers of good and bad are the same: there is nothing to find"])


def unmeasurable() -> Bisection:
    return result(found="unmeasurable", reasons=[f"good cannot be measured ({BUILD_FAILED}); name another commit"])


def versions() -> Bisection:
    """A search over versions of a dependency."""
    first, second, third = (point(64, version=version) for version in ("2.8.0", "2.9.0", "2.9.1"))
    found = change([candidate(second, None)], first, "exact", before="1104", after="1120")
    return exact(
        found="culprit",
        culprit=second.commit,
        version="2.9.0",
        candidates=found.candidates,
        changes=[found],
        on="command",
        axis="torch",
        good=first,
        bad=third,
        commits=2,
        different=2,
    )


def hostile() -> Bisection:
    """Every text that an author or a program can reach is hostile."""
    text, label = HOSTILE, HOSTILE[:480]
    evil = point(5, subject=label, author=label, date=label)
    named = candidate(evil, None, text)
    hostile_finding = _fallback().model_copy(update={"pattern": label, "axis": label, "text": text})
    found = change(
        [named, named], point(4), "exact", entries=[label], findings=[hostile_finding], before=label, after=label
    )
    return exact(
        found="culprit",
        on="command",
        axis=label,
        candidates=[named],
        changes=[found.model_copy(update={"parent": f"{label}+{label}"})],
        reasons=[text],
        warnings=[text],
        unmeasurable=[candidate(point(7), None, text)],
    )


CASES: dict[str, Callable[[], Bisection]] = {
    case.__name__: case
    for case in (
        ledger_culprit,
        command_two_changes,
        time_culprit,
        time_not_confirmed,
        undecided,
        none,
        unmeasurable,
        versions,
        hostile,
    )
}
