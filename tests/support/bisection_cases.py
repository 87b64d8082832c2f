"""One bisection for every answer that a reader can meet, by the name of its golden file; plans likewise; and one whose
authors wanted their text to be more than text.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regbot.bisect.forecast import UNKNOWN_NOISE
from regbot.ledgers.catalogue import ALL_TO_ALL_REPLACED, COUNTS_ADDED
from regbot.records.bisection import (
    Bisection,
    BisectionPlan,
    Candidate,
    Change,
    Estimate,
    Observation,
    Point,
    PointSummary,
    Remainder,
)
from regbot.records.verdict import Finding
from support.report_cases import HOSTILE
from support.sharding_cases import QWEN, finding, ledger

ENTRIES = ["qwen3-30b-a3b@1/ep", "qwen3-30b-a3b@1/ep-dp"]
BUILD_FAILED = "its build failed: ModuleNotFoundError: No module named 'moe_train.router' (exit 1)"
NOTHING_BEFORE = "no other slowdown of 2% or more before it (probability 97%)"
NOTHING_AFTER = "another slowdown after it is possible (probability 19%)"
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


def _count_runs(observations: Any) -> dict[str, object]:
    """The effort that the observations show."""
    seconds = sum(one.wall_s + one.build_s for one in observations)
    return {
        "search_runs": sum(one.purpose == "search" for one in observations),
        "confirm_runs": sum(one.purpose == "confirm" for one in observations),
        "builds": sum(one.built for one in observations),
        "minutes": round(seconds / 60, 1),
    }


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
        **_count_runs(more.get("observations", [])),
        "noise_pct": 2.1,
        "reproduce": f"regbot bisect {_hash('commit 0')[:12]} {_hash('commit 64')[:12]} --on time",
    }
    return Bisection.model_validate({**fields, **more})


def searched(
    levels: Callable[[int], float],
    probable: Mapping[int, float],
    measured: Sequence[int],
    broken: Mapping[int, str] | None = None,
    points: Sequence[Point] = (),
    none: float = 0.001,
) -> dict[str, Any]:
    """Places and observations of a noisy search. ``levels`` are log-ratios to good; what is left of 1 is spread."""
    points = points or [point(number) for number in range(65)]
    broken = broken or {}
    noise = random.Random(11)
    rest = max(0.0, 1.0 - none - sum(probable.values())) / (len(points) - 1)
    seen: dict[int, list[float]] = {}
    observations = []
    for number in measured:
        value = math.log(0.115) + levels(number) + noise.gauss(0, 0.021)
        seen.setdefault(number, []).append(value - math.log(0.115))
        observations.append(
            Observation(
                point=points[number].key,
                purpose="search",
                usable=True,
                values={"median": value, "mean": value + 0.002},
                built=len(seen[number]) == 1,
                build_s=21.5 if len(seen[number]) == 1 else 0.0,
                wall_s=74.0,
            )
        )
    observations += [
        Observation(point=points[number].key, purpose="search", usable=False, reason=why, built=True, wall_s=3.0)
        for number, why in broken.items()
    ]
    level_of_good = sum(seen[0]) / len(seen[0])
    places = [
        PointSummary(
            key=one.key,
            probability=0.0 if number == 0 else probable.get(number, rest),
            runs=len(seen.get(number, [])),
            mean=100 * math.expm1(sum(seen[number]) / len(seen[number]) - level_of_good) if number in seen else None,
            measurable=number not in broken,
        )
        for number, one in enumerate(points)
    ]
    listed = [candidate(points[number], None, why) for number, why in broken.items()]
    return {"places": places, "observations": observations, "unmeasurable": listed}


def confirmations(culprit: Point, parent: Point, pairs: int, effect: float) -> list[Observation]:
    """The runs of a confirmation, in blocks of two pairs."""
    noise = random.Random(5)
    return [
        Observation(
            point=one.key,
            purpose="confirm",
            usable=True,
            values={"median": math.log(0.115) + (effect if one is culprit else 0.0) + noise.gauss(0, 0.01)},
            contrast=culprit.key,
            block=1 + slot // 4,
            slot=slot % 4,
            wall_s=74.0,
        )
        for slot, one in enumerate([culprit, parent, parent, culprit] * (pairs // 2))
    ]


def estimate(pct: float, low: float, high: float, pairs: int = 4, decision: str = "regressed") -> Estimate:
    return Estimate.model_validate({"pct": pct, "low_pct": low, "high_pct": high, "pairs": pairs, "decision": decision})


def change(candidates: Sequence[Candidate], parent: Point, confirmed: str, text: str, **more: object) -> Change:
    fields = {"candidates": list(candidates), "parent": parent.key, "confirmed": confirmed, "text": text}
    return Change.model_validate({**fields, **more})


def _fallback() -> Finding:
    text = (
        "In 48 of 48 MoE layers the expert-parallel all-to-all on ep was replaced by gathering all tokens and summing "
        "the results on ep. The modelled wire time of these collectives is twice as long."
    )
    return finding(ALL_TO_ALL_REPLACED, "FAIL", ledger(QWEN), ledger(QWEN, lambda _: True), text)


def _recounted() -> Finding:
    text = "Token counts are exchanged twice instead of once in each of 48 MoE layers."
    return finding(COUNTS_ADDED, "REVIEW", ledger(QWEN), ledger(QWEN, counts=2), text)


def traced(numbers: Sequence[int], changed: Callable[[int], int]) -> list[Observation]:
    """One trace of each workload of each point; those of the good end come from the cache."""
    return [
        Observation(
            point=point(number).key,
            entry=entry,
            purpose="search",
            usable=True,
            state=hashlib.sha256(f"{entry} {changed(number)}".encode()).hexdigest(),
            cached=number == 0,
            wall_s=0.0 if number == 0 else 6.4,
        )
        for number in numbers
        for entry in ENTRIES
    ]


def _on_ledger(**more: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "on": "ledger",
        "exact": True,
        "search_runs": 14,
        "confirm_runs": 0,
        "cached_runs": 2,
        "builds": 7,
        "minutes": 1.6,
        "noise_pct": None,
        "reproduce": f"regbot bisect {_hash('commit 0')[:12]} {_hash('commit 64')[:12]} --on ledger",
    }
    return {**fields, **more}


def ledger_culprit() -> Bisection:
    """One commit, exact, with its finding."""
    named = candidate(point(41), None)
    found = change(
        [named], point(40), "exact", f"{ALL_TO_ALL_REPLACED} (FAIL)", entries=ENTRIES, findings=[_fallback()]
    )
    return result(
        **_on_ledger(
            found="culprit",
            culprit=named.point.commit,
            candidates=[named],
            changes=[found],
            observations=traced([0, 64, 32, 48, 40, 44, 42, 41], lambda number: number >= 41),
        )
    )


def ledger_two_one_undone() -> Bisection:
    """Two changes of the collectives. A later commit undoes the first one."""
    first, second = candidate(point(12), None), candidate(point(50), None)
    changes = [
        change(
            [first],
            point(11),
            "exact",
            f"{COUNTS_ADDED} (REVIEW); a later commit undid it",
            entries=ENTRIES[:1],
            findings=[_recounted()],
            undone=True,
        ),
        change([second], point(49), "exact", f"{ALL_TO_ALL_REPLACED} (FAIL)", entries=ENTRIES, findings=[_fallback()]),
    ]
    return result(
        **_on_ledger(
            found="culprit",
            culprit=second.point.commit,
            candidates=[second],
            changes=changes[::-1],
            observations=traced([0, 64, 32, 16, 8, 12, 11, 48, 49, 50], lambda number: number >= 50),
        )
    )


MEASURED = [0, 0, 0, 64, 64, 64, 32, 32, 48, 48, 40, 40, 44, 44, 42, 42, 41, 41, 41, 40, 40, 41, 0, 64]


def time_culprit() -> Bisection:
    """One commit, confirmed by pairs against its parent."""
    named = candidate(point(41), 0.968)
    search = searched(lambda number: 0.393 if number >= 41 else 0.0, {41: 0.968}, MEASURED)
    search["observations"] += confirmations(point(41), point(40), 4, 0.393)
    found = change(
        [named],
        point(40),
        "yes",
        f"{point(41).name} is +48.1% [+40.2, +56.9] slower, confirmed against its parent",
        estimate=estimate(48.1, 40.2, 56.9),
    )
    remainders = [
        Remainder(where="before", culprit=point(41).key, none_probability=0.974, text=NOTHING_BEFORE),
        Remainder(where="after", culprit=point(41).key, none_probability=0.81, text=NOTHING_AFTER),
    ]
    return result(
        found="culprit",
        culprit=named.point.commit,
        candidates=[named],
        posterior=0.968,
        none_probability=0.0004,
        changes=[found],
        remainders=remainders,
        reused_runs=8,
        **search,
    )


def time_set() -> Bisection:
    """A culprit beside two commits that cannot be measured: it may be any of the three."""
    broken = {40: BUILD_FAILED, 41: BUILD_FAILED}
    listed = [
        candidate(point(42), 0.352),
        *(Candidate(point=point(number), probability=0.31, measurable=False) for number in (41, 40)),
    ]
    measured = [number for number in MEASURED if number not in (40, 41)] + [39, 39, 42]
    search = searched(lambda n: 0.393 if n >= 41 else 0.0, {42: 0.352, 41: 0.31, 40: 0.31}, measured, broken)
    search["observations"] += confirmations(point(42), point(39), 4, 0.393)
    found = change(
        listed,
        point(39),
        "yes",
        "one of 3 commits is +47.2% [+38.0, +57.0] slower, confirmed against its parent",
        estimate=estimate(47.2, 38.0, 57.0),
    )
    return result(
        found="culprit",
        candidates=listed,
        posterior=0.972,
        none_probability=0.001,
        changes=[found],
        **search,
    )


def time_not_confirmed() -> Bisection:
    """A suspect that the pairs against its parent neither confirm nor clear."""
    named = candidate(point(41), 0.956)
    search = searched(lambda number: 0.03 if number >= 41 else 0.0, {41: 0.956}, MEASURED, none=0.031)
    search["observations"] += confirmations(point(41), point(40), 12, 0.02)
    found = change(
        [named],
        point(40),
        "undecided",
        f"{point(41).name} may or may not be slower than the commit before it",
        estimate=estimate(2.1, -0.6, 4.9, 12, "undecided"),
    )
    return result(
        found="culprit",
        culprit=named.point.commit,
        candidates=[named],
        posterior=0.956,
        none_probability=0.031,
        changes=[found],
        **search,
    )


def time_two() -> Bisection:
    """Two slowdowns in one range, both confirmed."""
    first, second = candidate(point(41), 0.951), candidate(point(13), 0.962)
    search = searched(
        lambda number: (0.393 if number >= 41 else 0.0) + (0.095 if number >= 13 else 0.0),
        {41: 0.951},
        [*MEASURED, 20, 20, 12, 12, 13, 13, 10],
    )
    search["observations"] += confirmations(point(41), point(40), 4, 0.393)
    search["observations"] += confirmations(point(13), point(12), 8, 0.095)
    changes = [
        change([first], point(40), "yes", "", estimate=estimate(48.1, 40.2, 56.9)),
        change([second], point(12), "yes", "", estimate=estimate(9.8, 6.1, 13.6, 8)),
    ]
    remainders = [
        Remainder(where="before", culprit=point(13).key, none_probability=0.97, text=""),
        Remainder(where="after", culprit=point(41).key, none_probability=0.96, text=""),
    ]
    return result(
        found="culprit",
        culprit=first.point.commit,
        candidates=[first],
        posterior=0.951,
        none_probability=0.0,
        changes=changes,
        remainders=remainders,
        **search,
    )


def none_found() -> Bisection:
    """No slowdown that counts between the ends."""
    return result(
        found="none",
        posterior=0.03,
        none_probability=0.97,
        reasons=["with probability 97%, no commit raised the step time by 2% or more"],
        **searched(lambda _: 0.0, {41: 0.004}, [0, 64, 32, 48] * 5, none=0.97),
    )


def undecided_budget() -> Bisection:
    """The budget ended before the posterior was high enough."""
    probable = {33: 0.16, 34: 0.16, 35: 0.21, 36: 0.16, 40: 0.05}
    listed = [candidate(point(number), share) for number, share in sorted(probable.items(), key=lambda item: -item[1])]
    return result(
        found="undecided",
        candidates=listed,
        posterior=0.74,
        none_probability=0.04,
        reasons=[
            (
                "undecided after 14 search runs: the likeliest commit has a probability of 21%, and --posterior "
                "requires 95%"
            ),
            "--budget ended the search after 19 minutes; continue with --resume and a larger budget",
        ],
        **searched(lambda number: 0.05 if number >= 35 else 0.0, probable, MEASURED[:14], none=0.04),
    )


def unmeasurable_end() -> Bisection:
    """The bad end itself cannot be built."""
    return result(
        found="unmeasurable",
        noise_pct=None,
        reasons=[f"bad cannot be measured ({BUILD_FAILED}); name another commit"],
        **searched(lambda _: 0.0, {}, [0, 0], {64: BUILD_FAILED}),
    )


def in_a_merge() -> Bisection:
    """The culprit is a commit of a merged branch, and confirmation was not requested."""
    points = [point(number) for number in range(7)]
    named = candidate(points[4], 0.982)
    told = f"{points[4].name} is about 24% slower, by an estimate from the search runs only"
    found = change([named], points[3], "not asked", told, merge=point(90).commit)
    return result(
        found="culprit",
        culprit=named.point.commit,
        candidates=[named],
        posterior=0.982,
        none_probability=0.002,
        changes=[found],
        good=points[0],
        bad=points[-1],
        commits=6,
        different=6,
        reproduce=f"regbot bisect {points[0].name} {points[-1].name} --on time",
        **searched(lambda n: 0.2 if n >= 4 else 0.0, {4: 0.982}, [0, 0, 6, 6, 3, 3, 4, 4, 4], points=points),
    )


def on_a_dependency() -> Bisection:
    """Versions of a package under one commit."""
    versions = ["1.0.0", "1.1.0", "1.1.1", "1.2.0", "1.2.1", "1.3.0.dev20260301", "1.3.0"]
    points = [point(64, version=version) for version in versions]
    named = candidate(points[3], 0.961)
    found = change([named], points[2], "yes", "", estimate=estimate(12.4, 9.9, 15.0))
    search = searched(lambda n: 0.117 if n >= 3 else 0.0, {3: 0.961}, [0, 0, 6, 6, 3, 3, 2, 2], {5: SKIPPED}, points)
    search["observations"] += confirmations(points[3], points[2], 4, 0.117)
    search["observations"] = [
        one.model_copy(update={"values": {"cost": one.values["median"]} if one.values else {}})
        for one in search["observations"]
    ]
    return result(
        found="culprit",
        culprit=points[3].commit,
        version="1.2.0",
        candidates=[named],
        posterior=0.961,
        none_probability=0.003,
        changes=[found],
        axis="grouped-gemm",
        good=points[0],
        bad=points[-1],
        commits=6,
        different=6,
        reproduce="regbot bisect v1 main --axis grouped-gemm=1.0.0..1.3.0 --command 'python cost.py'",
        blame="grouped-gemm alone is to blame, not the code",
        **{**search, "on": "command"},
    )


def command_exact() -> Bisection:
    """A number that a command prints, compared for equality."""
    named = candidate(point(41), None)
    found = change([named], point(40), "exact", "48 before it, 96 with it", before="48", after="96")
    observations = [
        Observation(
            point=point(number).key,
            purpose="search",
            usable=True,
            state="96" if number >= 41 else "48",
            values={"cost": 96.0 if number >= 41 else 48.0},
            built=True,
            build_s=0.4,
            wall_s=0.2,
        )
        for number in (0, 64, 32, 48, 40, 44, 42, 41)
    ]
    return result(
        found="culprit",
        culprit=named.point.commit,
        candidates=[named],
        changes=[found],
        on="command",
        exact=True,
        search_runs=8,
        confirm_runs=0,
        builds=8,
        minutes=0.1,
        noise_pct=None,
        observations=observations,
        reproduce="regbot bisect v1 main --exact --command 'python count.py'",
    )


def command_left_out() -> Bisection:
    """With --path: two commits between good and the culprit touch none of the paths."""
    named = candidate(point(3), None)
    text = "48 before it, 96 with it"
    found = change([named], point(0), "exact", text, before="48", after="96", left_out=2)
    return command_exact().model_copy(update={"culprit": named.point.commit, "candidates": [named], "changes": [found]})


def hostile() -> Bisection:
    """Every text that an author, a command or a package index can reach is hostile."""
    text = HOSTILE[:480]
    bad = {"subject": text, "author": text, "date": text}
    points = [point(number, **bad) for number in range(6)]
    found = _fallback().model_copy(update={"pattern": text, "axis": text, "text": text, "modules": [text]})
    listed = [candidate(points[3], 0.5), candidate(points[2], 0.45, text)]
    changes = [
        change(listed, points[1], "yes", text, estimate=estimate(5.0, 3.0, 7.0)),
        change(listed[:1], points[2], "exact", text, findings=[found], entries=[text], before=text, after=text),
        change([candidate(point(0, version=text), 0.5)], point(0, version=text), "no", text),
    ]
    search = searched(lambda _: 0.0, {3: 0.5, 2: 0.45}, [0, 5, 3], {2: text, 4: text}, points)
    search["observations"] = [
        one.model_copy(update={"entry": text, "state": text, "stratum": text}) for one in search["observations"]
    ]
    search["places"][1] = search["places"][1].model_copy(update={"key": f"{points[1].commit}+{text[:400]}"})
    return result(
        found="culprit",
        candidates=listed,
        posterior=0.95,
        none_probability=0.01,
        changes=changes,
        remainders=[Remainder(where="before", culprit=points[3].key, none_probability=0.5, text=text)],
        axis=text,
        good=point(0, version="1.0.0"),
        bad=point(5, version="1.1.0"),
        commits=5,
        different=5,
        reasons=[text, text],
        warnings=[text],
        **{**search, "reproduce": text},
    )


CASES: dict[str, Callable[[], Bisection]] = {
    "ledger_culprit": ledger_culprit,
    "ledger_two_one_undone": ledger_two_one_undone,
    "time_culprit": time_culprit,
    "time_set": time_set,
    "time_not_confirmed": time_not_confirmed,
    "time_two": time_two,
    "none": none_found,
    "undecided_budget": undecided_budget,
    "unmeasurable_end": unmeasurable_end,
    "in_a_merge": in_a_merge,
    "on_a_dependency": on_a_dependency,
    "command_exact": command_exact,
    "command_left_out": command_left_out,
    "hostile": hostile,
}


def plan(**more: object) -> BisectionPlan:
    fields: dict[str, object] = {
        "on": "time",
        "exact": False,
        "commits": 64,
        "different": 52,
        "most_runs": 200,
        "ratio": 2.7,
        "expected_runs": 17.6,
        "runs_90": 26.0,
        "expected_builds": 9.2,
        "confirm_runs": 24,
        "expected_min": 52.3,
        "success": 0.974,
        "possible": True,
    }
    return BisectionPlan.model_validate({**fields, **more})


PLANS: dict[str, Callable[[], BisectionPlan]] = {
    "plan_possible": plan,
    "plan_exact": lambda: plan(
        on="ledger",
        exact=True,
        ratio=None,
        expected_runs=14.0,
        runs_90=14.0,
        confirm_runs=0,
        expected_builds=None,
        expected_min=None,
        success=1.0,
        reasons=["the plan assumes one change in the range; each further change takes at most as many again"],
    ),
    "plan_impossible": lambda: plan(
        ratio=0.41,
        expected_runs=None,
        runs_90=None,
        expected_builds=None,
        confirm_runs=0,
        expected_min=None,
        success=None,
        possible=False,
        reasons=[
            (
                "a slowdown of 2% among runs that differ by 4.9% takes too many runs (about 1370); use a quieter node, "
                "or make each run longer"
            )
        ],
    ),
    "plan_no_noise": lambda: plan(
        ratio=None,
        expected_runs=None,
        runs_90=None,
        expected_builds=None,
        expected_min=None,
        success=None,
        reasons=[UNKNOWN_NOISE],
    ),
}
