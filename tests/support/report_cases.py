"""One verdict with its session for every state that a reader can meet, by the name of its golden files; and what no
reader should: text that wants to be more than text, and sizes beyond reason.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from regbot.records.ledger import Ledger
from regbot.records.run import Backend, CodeProof, Environment, Node
from regbot.records.verdict import Finding, StoredCollectives, StoredComparison, StoredTimes, Validity
from support import sharding_cases, throughput_cases
from support.sharding_cases import (
    BASE,
    CRASHED,
    HEAD,
    MIXTRAL,
    MIXTRAL_DP,
    QWEN,
    QWEN_DP,
    SHAPES,
    Case,
    case,
    changed,
    failed,
    fallen,
    ledger,
    recounted,
    run,
    traced,
    unconcerned,
    with_lines,
)
from support.throughput_cases import (
    by_stored_sessions,
    failing,
    is_end_of_first_pair,
    launcher,
    not_begun,
    plan,
    slower,
    timed,
)
from support.timed_builder import play

CASES: dict[str, Callable[[], Case]] = {
    "pass": lambda: case(traced()),
    "pass_identical_not_timed": lambda: not_begun(
        throughput_cases.TIMED, ledger, changed_files=["README.md"], inert_files=["README.md"]
    ),
    "pass_no_change": lambda: timed(launcher),
    "sharding_fail": lambda: case(traced(fallen)),
    "sharding_fail_with_lines": with_lines,
    "sharding_fail_one_layer": lambda: case(traced(lambda shape: ledger(shape, lambda layer: layer == 17, "b"))),
    "demo": lambda: case(traced(fallen, (QWEN, MIXTRAL)), command="demo", left_out=[QWEN_DP.entry, MIXTRAL_DP.entry]),
    "one_workload": lambda: case(traced(fallen, (QWEN,)), left_out=[shape.entry for shape in SHAPES[1:]]),
    "throughput_fail": lambda: timed(slower(1.467, peak_bytes=85 * 10**7), budget_min=20.0),
    "throughput_fail_mean": lambda: timed(lambda shape: launcher(shape, stalls=5), [QWEN]),
    "both_fail": lambda: timed(lambda shape: launcher(shape, 1.467, 0.012, wait=0.45), head=fallen),
    "review": lambda: case(traced(recounted)),
    "trains_differently": lambda: timed(lambda shape: launcher(shape, drift=0.21), [QWEN]),
    "accepted": sharding_cases.accepted,
    "improved": lambda: case(traced(changed, base=fallen)),
    "faster": lambda: timed(slower(0.78)),
    "within_bound": throughput_cases.within_bound,
    "drifted_baseline": throughput_cases.drifted_baseline,
    "within_stored_baseline": lambda: by_stored_sessions(lambda _: 0.004),
    "stored_fail": lambda: by_stored_sessions(lambda shape: 0.06 if shape is QWEN else 0.001),
    "without_a_vote": throughput_cases.without_a_vote,
    "inconclusive": lambda: timed(lambda shape: launcher(shape, 1.01, 0.03), budget_min=30.0),
    "inconclusive_luck_unknown": lambda: timed(lambda shape: launcher(shape, 1.018), [QWEN]),
    "inconclusive_not_begun": lambda: not_begun([QWEN], budget_min=5.0),
    "inconclusive_slow_launch_of_head": throughput_cases.slow_launch_of_head,
    "mixed": sharding_cases.mixed,
    "invalid_crash_both": lambda: failed(CRASHED, **CRASHED),
    "invalid_base_without_entry": sharding_cases.invalid_base_without_entry,
    "invalid_environment": throughput_cases.environment_limitation,
    "invalid_untimed": throughput_cases.untimed,
    "validity_fail_head_crashes": lambda: failed(CRASHED),
    "validity_fail_head_diverges": throughput_cases.head_diverges,
    "invalid_foreign_code": sharding_cases.invalid_foreign_code,
    "invalid_unknown_revision": sharding_cases.invalid_unknown_revision,
    "overrides_shown_not_judged": sharding_cases.overrides_shown_not_judged,
    "void_pair": throughput_cases.with_a_void_pair,
    "unconcerned": unconcerned,
    "unconcerned_proven": lambda: unconcerned(HEAD.commit),
    "unconcerned_in_part": lambda: unconcerned(measured=[QWEN]),
}
"""Every state by the name of its golden comment."""

WHOLE = ("both_fail", "demo", "inconclusive", "review", "validity_fail_head_crashes")
"""States whose golden comment is whole. The others have what stands above the first fold."""

HOSTILE = (
    "a`b``c | d <img src=x onerror=alert(1)> <script>alert(1)</script> @octocat/team #12 [l](https://evil.example/x) "
    "![i](http://evil.example/i.png) www.evil.example https://evil.example me@evil.example ** __ ~~ </details>\n"
    "\n# heading\n\n- item\n\n| x | y |\n| --- | --- |\n"
    "\u202egnp.exe\u202c \u05d0\u05d1\u05d2 \x00\x1b[31m &lt;b&gt; \\| $x$ ```\n```"
)
"""What a pull request could put wherever it may put text."""


def hostile(findings: int = 1) -> Case:
    """Every text that an author can reach is hostile."""
    text, short = HOSTILE, HOSTILE[:480]
    arms = (
        BASE.model_copy(update={"subject": text, "revision": text}),
        HEAD.model_copy(update={"subject": text, "revision": text, "overrides": {}}),
    )
    shape = replace(QWEN, entry=short, layers=4)

    def poison(counted: Ledger) -> Ledger:
        entries = [
            e.model_copy(update={"axis": short, "dtype": short, "where": f"layers.{i}.{text[:400]}"})
            for i, e in enumerate(counted.entries)
        ]
        texts = {"warnings": [text], "patches": [short], "source": short, "config": {text: text}}
        return counted.model_copy(update={"entries": entries, **texts})

    more: dict[str, Any] = {
        "warnings": [text],
        "backends": {text: Backend(requested=short, resolved=short, executed=short, evidence=text)},
        "code": CodeProof(watched={text: short}, foreign={text: short}, files={}),
        "environment": Environment(python=short, torch=short, platform=short, packages="e" * 64),
    }
    node = Node(name=short, node_class=short, cores=2, gpus=[short])
    planned = plan(shape, variant=short, world_size=3)
    header = case(traced(fallen, (shape,), arms=arms), arms, timed=[planned])[1].header
    failure = {"outcome": "crashed", "reason": text, "log_tail": text}
    ranks = ("", f"{text}0"[-480:], f"{text}1"[-480:])
    launch = launcher(shape, 1.2, arms=arms, ranks=ranks, node=node, variant=short)
    crashed = replace(shape, entry=f"crashed {text}"[:480])
    runs = [
        *play(failing(launch, is_end_of_first_pair, **failure), header),
        *(run(shape, arm, poison(counted(shape))) for arm, counted in zip(arms, (ledger, fallen), strict=True)),
        *(run(crashed, arm, **failure) for arm in arms),
    ]
    verdict, session = case(runs, arms, timed=[planned], warnings=[text])
    first, second = verdict.workloads
    assert first.sharding is not None
    assert first.throughput is not None
    found = Finding(pattern="", status="FAIL", axis=short, base={}, head={}, text=text)
    several = [
        found.model_copy(
            update={
                "pattern": f"{i} {text}"[:480],
                "modules": [f"{i}{text}"[:480]] * 3,
                "accepted": None if i % 2 else text,
            }
        )
        for i in range(findings)
    ]
    section = {"findings": several, "reasons": [text], "status": "FAIL", "config_changes": {text: (text, text)}}
    texts = {"wall": text, "reasons": [text, text]}
    first = first.model_copy(
        update={
            "sharding": first.sharding.model_copy(update=section),
            "throughput": first.throughput.model_copy(update=texts),
            "validity": Validity(status="PASS", reasons=[text]),
            "stored": StoredComparison(
                times=StoredTimes(reason=text),
                collectives=StoredCollectives(commit="c" * 40, patterns=[text[:400]]),
            ),
        }
    )
    header = session.header.model_copy(update={"expectations": [text]})
    verdict = verdict.model_copy(update={"workloads": [first, second]})
    runs = [one.model_copy(update=more) for one in session.runs]
    return verdict, session.model_copy(update={"header": header, "runs": runs})


def large() -> Case:
    """Two workloads timed on many ranks, a full session each: two warm launches and 24 runs."""
    return timed(lambda shape: launcher(shape, 1.01, 0.03, ranks=list(map(str, range(64)))), head=fallen, ranks=64)
