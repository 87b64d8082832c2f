"""One verdict with its session for every state that a reader can meet, by the name of its golden files; and what no
reader should: text that wants to be more than text, and sizes beyond reason.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from regbot.records.ledger import Ledger
from regbot.records.run import Backend, CodeProof, Environment, Node, Run
from regbot.records.verdict import Validity, WorkloadVerdict
from support import timed_cases
from support.sharding_cases import (
    BASE,
    HEAD,
    QWEN,
    Case,
    Shape,
    accepted,
    case,
    demo,
    finding,
    improved,
    invalid_base_without_entry,
    invalid_crash_both,
    invalid_foreign_code,
    invalid_unknown_revision,
    ledger,
    mixed,
    one_workload,
    overrides_shown_not_judged,
    passed,
    review,
    run,
    sharding,
    sharding_fail,
    sharding_fail_one_layer,
    unconcerned,
    validity_fail_head_crashes,
)
from support.throughput_cases import (
    Times,
    both_fail,
    communication_wall,
    drifted_baseline,
    environment_limitation,
    faster,
    head_diverges,
    inconclusive,
    luck_unknown,
    not_begun,
    pass_identical_not_timed,
    pass_no_change,
    slow_launch_of_head,
    stored_fail,
    throughput_fail,
    throughput_fail_mean,
    trains_differently,
    untimed,
    with_a_void_pair,
    with_times,
    within_bound,
    within_stored_baseline,
    without_a_vote,
)

CASES: dict[str, Callable[[], Case]] = {
    "pass": passed,
    "pass_identical_not_timed": pass_identical_not_timed,
    "pass_no_change": pass_no_change,
    "sharding_fail": sharding_fail,
    "sharding_fail_one_layer": sharding_fail_one_layer,
    "demo": demo,
    "one_workload": one_workload,
    "throughput_fail": throughput_fail,
    "throughput_fail_mean": throughput_fail_mean,
    "both_fail": both_fail,
    "review": review,
    "trains_differently": trains_differently,
    "accepted": accepted,
    "improved": improved,
    "faster": faster,
    "within_bound": within_bound,
    "drifted_baseline": drifted_baseline,
    "within_stored_baseline": within_stored_baseline,
    "stored_fail": stored_fail,
    "without_a_vote": without_a_vote,
    "inconclusive": inconclusive,
    "inconclusive_luck_unknown": luck_unknown,
    "inconclusive_not_begun": not_begun,
    "inconclusive_slow_launch_of_head": slow_launch_of_head,
    "mixed": mixed,
    "invalid_crash_both": invalid_crash_both,
    "invalid_base_without_entry": invalid_base_without_entry,
    "invalid_environment": environment_limitation,
    "invalid_untimed": untimed,
    "validity_fail_head_crashes": validity_fail_head_crashes,
    "validity_fail_head_diverges": head_diverges,
    "invalid_foreign_code": invalid_foreign_code,
    "invalid_unknown_revision": invalid_unknown_revision,
    "overrides_shown_not_judged": overrides_shown_not_judged,
    "void_pair": with_a_void_pair,
    "unconcerned": unconcerned,
    "unconcerned_proven": lambda: unconcerned(HEAD.commit),
    "unconcerned_in_part": lambda: unconcerned(measured=[QWEN]),
}
"""Every state by the name of its golden comment."""

WHOLE = (
    "both_fail", "demo", "inconclusive", "pass_no_change", "review", "throughput_fail", "validity_fail_head_crashes",
)  # fmt: skip
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
    text = HOSTILE
    base_arm = BASE.model_copy(update={"subject": text, "revision": text})
    head_arm = HEAD.model_copy(update={"subject": text, "revision": text, "overrides": {}})
    shape = replace(QWEN, entry=text[:480], layers=4)

    def poison(counted: Ledger) -> Ledger:
        entries = [
            e.model_copy(update={"axis": text[:480], "dtype": text[:480], "where": f"layers.{i}.{text[:400]}"})
            for i, e in enumerate(counted.entries)
        ]
        return counted.model_copy(
            update={"entries": entries, "warnings": [text], "patches": [text[:480]], "source": text[:480]}
        )

    base, head = poison(ledger(shape)), poison(ledger(shape, lambda _: True))
    found = [
        finding(
            f"{i} {text}"[:480],
            "FAIL",
            base,
            head,
            text,
            axis=text[:480],
            modules=[f"{i}{text}"[:480]] * 3,
            accepted=None if i % 2 else text,
        )
        for i in range(findings)
    ]
    section = sharding(base, head, "FAIL", found, [text], source=text[:480], config_changes={text: (text, text)})
    crashed = replace(shape, entry=f"crashed {text}"[:480])
    more: dict[str, Any] = {
        "warnings": [text],
        "backends": {text: Backend(requested=text[:480], resolved=text[:480], executed=text[:480], evidence=text)},
        "code": CodeProof(watched={text: text[:480]}, foreign={text: text[:480]}, files={}),
        "environment": Environment(python=text[:480], torch=text[:480], platform=text[:480], packages="e" * 64),
    }
    node = Node(name=text[:480], node_class=text[:480], cores=2, gpus=[text[:480]])
    clock = timed_cases.Clock(shape.entry, base_arm, head_arm, node=node, **more)
    for number in (1, 2):
        clock.block(number, 0.1, 0.12)
    clock.launch("head", None, 3, 0, outcome="crashed", reason=text, log_tail=text)
    times = [_renamed_ranks(one, text[:480]) for one in clock.runs]
    return case(
        [
            WorkloadVerdict(
                name=shape.entry,
                sharding=section,
                throughput=timed_cases.throughput(
                    times, wall=text, reasons=[text, text], node=text[:480], variant=text[:480]
                ),
                validity=Validity(status="PASS", reasons=[text]),
            ),
            WorkloadVerdict(
                name=crashed.entry, sharding=None, throughput=None, validity=Validity(status="INVALID", reasons=[text])
            ),
        ],
        [
            *times,
            run(shape, base_arm, base, **more),
            run(shape, head_arm, head, **more),
            run(crashed, base_arm, None, "crashed", reason=text, log_tail=text),
            run(crashed, head_arm, None, "crashed", reason=text, log_tail=text),
        ],
        base_arm,
        head_arm,
        [text],
        timed=[timed_cases.plan(shape.entry).model_copy(update={"variant": text[:480]})],
        expectations=[text],
    )


def _renamed_ranks(run: Run, text: str) -> Run:
    """The same run with ranks that are no numbers."""
    if run.timing is None:
        return run
    ranks = {f"{text}{name}"[-480:]: steps for name, steps in run.timing.ranks.items()}
    return run.model_copy(update={"timing": run.timing.model_copy(update={"ranks": {**ranks, "": ranks.popitem()[1]}})})


def large(ranks: int = 64, pairs: int = 12) -> Case:
    """Two workloads timed on many ranks, a full session each: two warm launches and 24 or more runs."""

    def times(shape: Shape) -> Times:
        runs = timed_cases.session_runs(shape.entry, BASE, HEAD, 0.115, 0.169, pairs, ranks)
        return runs, timed_cases.throughput(runs, communication_wall(54))

    return with_times(sharding_fail(), times)
