"""The source lines of a finding, and the lines of ledgers that are no change."""

from collections import Counter
from collections.abc import Callable

import pytest

from regbot.judge.sharding import judge_sharding
from regbot.ledgers.rows import build_rows
from regbot.ledgers.source_lines import find_lines
from regbot.records.changed_lines import ChangedFile, ChangedLines, Hunk, Side
from regbot.records.config import Config
from regbot.records.ledger import ComputeRow, Entry, Frame, Holder, HostWait, Ledger, Program
from regbot.records.verdict import Finding
from regbot.workloads.checkout.changed_lines import parse_diff
from regbot.workloads.ranks import digest
from support.ledger_builder import placed, smoke_ledger

CALL, CALLER, TRAIN = ("moe/comm.py:12", "exchange"), ("moe/layer.py:40", "MoE.forward"), ("train.py:7", "main")
BASE = placed(smoke_ledger(2), "all_to_all", CALL, CALLER, TRAIN)


def hunk(path: str, base: str, head: str) -> str:
    """A diff of one hunk, such as ``-40 +40,2``, whose lines do not matter."""
    numbers = [int(side.partition(",")[2] or 1) for side in (base, head)]
    lines = ["-- a/other.py"] * numbers[0] + ["++ b/other.py"] * numbers[1]  # lines that look like headers
    signed = [f"{'-' if number < numbers[0] else '+'}{line}" for number, line in enumerate(lines)]
    header = [f"diff --git a/{path} b/{path}", f"--- a/{path}", f"+++ b/{path}", f"@@ -{base} +{head} @@ def f():"]
    return "\n".join([*header, *signed, ""])


def find(head: Ledger, diff: str, base: Ledger = BASE) -> Finding:
    section = judge_sharding(base, head, Config(), changed_lines=parse_diff(diff))
    return section.findings[0]


def show(finding: Finding) -> tuple[list[str], list[str]]:
    base, head = (
        [f"{line.path}:{line.line}{' in diff' if line.in_diff else ''}" for line in lines]
        for lines in (finding.lines.base, finding.lines.head)
    )
    return base, head


def shifted(ledger: Ledger, rename: Callable[[str], str]) -> Ledger:
    entries = [entry.model_copy(update={"line": rename(entry.line)}) for entry in ledger.entries]
    frames = {rename(line): frame for line, frame in ledger.frames.items()}
    return ledger.model_copy(update={"entries": entries, "frames": frames})


@pytest.mark.parametrize("new", ["moe/comm.py:90", "moe/renamed.py:12", ""])
def test_code_that_only_moved_is_no_change(new: str) -> None:
    moved = shifted(BASE, lambda line: new if line == CALL[0] else line)
    assert digest(moved) == digest(BASE)
    for base, head in ((BASE, moved), (moved, BASE)):
        assert not judge_sharding(base, head, Config()).findings
        assert not any(row.changed for row in build_rows(base, head))


def test_one_call_that_became_two_lines_is_no_change() -> None:
    def split(entry: Entry, line: str) -> Entry:
        return entry.model_copy(update={"count": entry.count // 2, "bytes": entry.bytes // 2, "line": line})

    twice = [entry for entry in BASE.entries if entry.count == 2]
    base = BASE.model_copy(update={"entries": twice})
    lines = ("moe/comm.py:12", "moe/comm.py:14")
    head = BASE.model_copy(update={"entries": [split(entry, line) for entry in twice for line in lines]})
    assert head.without_lines() == base.without_lines()
    assert digest(head) == digest(base)
    assert not judge_sharding(base, head, Config()).findings


def test_a_program_whose_code_only_moved_is_stored_alike() -> None:
    def store(*numbers: int) -> Ledger:
        lines = [f"moe.py:{number}" for number in numbers]
        share = 8 // len(lines)
        row = ComputeRow(
            flop_class="matmul",
            dtype="bfloat16",
            phase="forward",
            where="moe",
            flops=share,
            bytes=share,
            launches=share,
        )
        wait = HostWait(kind="read", phase="forward", where="moe", count=share)
        holder = Holder(kind="temporary", where="moe", bytes=share, count=share)
        program = Program(
            flops=8,
            flops_by={"matmul": 8},
            bytes_moved=8,
            launches=8,
            peak_bytes=8,
            rows=[row.model_copy(update={"line": line}) for line in lines],
            waits=[wait.model_copy(update={"line": line}) for line in lines],
            holders=[holder.model_copy(update={"line": line}) for line in lines],
        )
        return BASE.model_copy(update={"program": program}).without_lines()

    assert store(12).to_json() == store(90).to_json() == store(12, 14).to_json()
    assert "moe.py" not in store(12, 14).to_json()


GATHERED = placed(
    placed(smoke_ledger(2, dispatcher="allgather"), "all_gather ep", ("moe/comm.py:30", "gather"), CALLER),
    "reduce_scatter ep",
    ("moe/comm.py:50", "scatter"),
    CALLER,
)
REPLACED = [
    # The call itself, or one of its callers, is in the diff.
    ("moe/comm.py", "12", "20", ["moe/comm.py:12 in diff"], ["moe/comm.py:30", "moe/comm.py:50"]),
    ("moe/comm.py", "0,0", "29,3", ["moe/comm.py:12"], ["moe/comm.py:30 in diff", "moe/comm.py:50"]),
    (
        "moe/layer.py",
        "38,4",
        "38,4",
        ["moe/layer.py:40 in diff", "moe/comm.py:12"],
        ["moe/layer.py:40 in diff", "moe/comm.py:30", "moe/comm.py:50"],
    ),
    ("other.py", "12", "30", ["moe/comm.py:12"], ["moe/comm.py:30", "moe/comm.py:50"]),
]


@pytest.mark.parametrize(("path", "base", "head", "went", "came"), REPLACED)
def test_a_finding_names_the_lines_of_both_arms_first_those_in_the_diff(
    path: str, base: str, head: str, went: list[str], came: list[str]
) -> None:
    diff = hunk("a.py", "1", "1") + hunk(path, base, head)
    assert show(find(GATHERED, diff)) == (went, came)
    assert show(find(GATHERED, "")) == (["moe/comm.py:12"], ["moe/comm.py:30", "moe/comm.py:50"])


def test_where_both_arms_issue_something_each_is_found_in_the_diff_by_itself() -> None:
    frames = {**BASE.frames, CALL[0]: Frame(function="exchange", function_lines=(5, 14))}
    base = BASE.model_copy(update={"frames": frames})
    diff = hunk("moe/comm.py", "6", "3,90") + hunk("moe/layer.py", "0,0", "38,4")
    assert show(find(GATHERED, diff, base))[1][:2] == ["moe/comm.py:30 in diff", "moe/comm.py:50 in diff"]
    diff = hunk("moe/comm.py", "6", "3") + hunk("moe/layer.py", "0,0", "38,4")
    assert show(find(GATHERED, diff, base))[1][0] == "moe/layer.py:40 in diff"


def test_swapped_arms_swap_the_lines() -> None:
    finding, inverse = find(GATHERED, ""), find(BASE, "", base=GATHERED)
    assert (finding.lines.base, finding.lines.head) == (inverse.lines.head, inverse.lines.base)


def test_a_change_elsewhere_in_the_function_is_named_also_if_head_issues_nothing() -> None:
    frames = {**BASE.frames, CALL[0]: Frame(function="exchange", function_lines=(5, 14))}
    base = BASE.model_copy(update={"frames": frames})
    local = smoke_ledger(2, dispatcher="local")
    assert show(find(local, hunk("moe/comm.py", "6,0", "7,2"), base)) == (["moe/comm.py:12"], ["moe/comm.py:7 in diff"])
    assert show(find(local, hunk("moe/comm.py", "4,0", "5,2"), base)) == (["moe/comm.py:12"], [])  # before the function


def test_a_changed_argument_of_a_call_of_several_lines_is_in_the_diff() -> None:
    base = placed(smoke_ledger(2), "all_to_all", CALL, last_line=15)
    finding = find(GATHERED, hunk("moe/comm.py", "14", "14"), base)
    assert show(finding)[0] == ["moe/comm.py:14 in diff", "moe/comm.py:12"]


def test_one_call_more_in_one_function_is_the_one_that_came() -> None:
    more = [entry for entry in BASE.entries if entry.kind == "all_to_all" and entry.phase == "forward"]
    added = [entry.model_copy(update={"line": "moe/layer.py:44"}) for entry in more]
    frames = {**BASE.frames, "moe/layer.py:44": Frame(function="MoE.forward")}
    head = BASE.model_copy(update={"entries": [*BASE.entries, *added], "frames": frames})
    for finding in judge_sharding(BASE, head, Config()).findings:
        assert show(finding) == ([], ["moe/layer.py:44"])


def test_a_diff_of_many_hunks_is_not_searched_whole_whatever_extents_a_ledger_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = range(1, 20_000, 2)
    hunks = [Hunk(base_line=number, base_count=1, head_line=number, head_count=1) for number in numbers]
    changed = ChangedLines(files=[ChangedFile(base="a.py", head="a.py", hunks=hunks)])
    callers = [f"a.py:{number}" for number in range(1, 33)]
    extents = [(2**53, (1, 2**53)), (9_000, (1, 9_000))]
    visits: list[int] = []
    lines = Hunk.lines

    def count(self: Hunk, side: Side) -> range:
        visits.append(1)
        return lines(self, side)

    monkeypatch.setattr(Hunk, "lines", count)
    for last_line, function_lines in extents:
        frame = Frame(function="f", last_line=last_line, function_lines=function_lines, callers=callers)
        ledger = BASE.model_copy(update={"frames": dict.fromkeys(callers, frame)})
        found = find_lines(Counter(callers[:1]), Counter(), ledger, ledger, changed)
        assert (found.base[0].line, found.base[0].in_diff) == (1, True)
    assert len(visits) < 2 * 33 * 150
