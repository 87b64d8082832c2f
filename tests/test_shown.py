"""What is shown of a verdict: its stamp, and which of several results of one commit stands."""

import random
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_cases import OTHER, SHA, shown
from regbot.forge.shown import Shown, Stamp, strongest
from regbot.records.verdict import Status
from regbot.report.markdown import Markdown

# The stamp


def test_the_stamp_is_the_marker_that_is_agreed() -> None:
    line = Stamp(12, SHA, "measured", 77, 2, "FAIL", 5).line()
    assert line.startswith(f'<!-- regbot:verdict {{"pr":12,"head":"{SHA}","tier":"measured","run":77,"attempt":2')
    assert line.endswith(" -->")
    assert Stamp.read(line) == Stamp(12, SHA, "measured", 77, 2, "FAIL", 5)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<!-- regbot:verdict -->",
        "<!-- regbot:verdict {} -->",
        "<!-- regbot:verdict [1] -->",
        f'<!-- regbot:verdict {{"pr":"12","head":"{SHA}","tier":"static","run":1,"attempt":1,"status":"PASS"}} -->',
        f'<!-- regbot:verdict {{"pr":true,"head":"{SHA}","tier":"static","run":1,"attempt":1,"status":"PASS"}} -->',
        f'<!-- regbot:verdict {{"pr":1,"head":"{SHA}","tier":"best","run":1,"attempt":1,"status":"PASS"}} -->',
        f'<!-- regbot:verdict {{"pr":1,"head":"{SHA}","tier":["static"],"run":1,"attempt":1,"status":"PASS"}} -->',
        f'<!-- regbot:verdict {{"pr":1,"head":"{SHA[1:]}","tier":"static","run":1,"attempt":1,"status":"PASS"}} -->',
        '<!-- regbot:verdict {"pr":1,"head":7,"tier":"static","run":1,"attempt":1,"status":"PASS"} -->',
        f'<!-- regbot:verdict {{"pr":1,"head":"{SHA}","tier":"static","run":1,"attempt":1,"status":"GREEN"}} -->',
        "<!-- regbot:verdict {" + '"a":' * 5000 + " -->",
        '<!-- regbot:verdict {"a":' + "[" * 100_000 + "} -->",
    ],
)
def test_what_is_no_stamp_is_none(line: str) -> None:
    assert Stamp.read(line) is None


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=200), st.booleans(), st.booleans())
def test_what_is_shown_is_read_back(text: str, stale: bool, crlf: bool) -> None:
    one = shown(text=f"### PASS\n\n{text}")
    body = one.body(OTHER if stale else SHA)
    assert ("**Stale:**" in body.partition("### ")[0]) is stale
    assert Shown.read(body.replace("\n", "\r\n") if crlf else body) == one


def test_the_live_head_comes_first_then_measured_then_the_newest() -> None:
    ranked = [
        shown(head=OTHER, run=1),
        shown(head=OTHER, run=9),
        shown(head=OTHER, run=2, tier="measured"),
        shown(head=SHA, run=3),
        shown(head=SHA, run=4),
        shown(head=SHA, run=1, tier="measured"),
        shown(head=SHA, run=1, tier="measured", post=8),
    ]
    for n in range(1, len(ranked) + 1):
        mixed = ranked[:n]
        random.Random(n).shuffle(mixed)
        assert strongest(mixed, SHA) == ranked[n - 1]


# Which of two results of one commit stands

KINDS = [(tier, status) for tier in ("measured", "static") for status in get_args(Status)]
LETTERS = {"P": "PASS", "F": "FAIL", "R": "REVIEW", "U": "INCONCLUSIVE", "0": "INVALID"}
PAIRS = """
     mP mF mR mU m0 sP sF sR sU s0
mP   n  n  n  n  O  o  o  o  o  o
mF   n  n  n  n  O  o  o  o  o  o
mR   n  n  n  n  O  o  o  o  o  o
mU   n  n  n  n  O  o  o  o  o  o
m0   n  n  n  n  n  o  N  N  o  o
sP   n  n  n  n  n  n  n  n  n  n
sF   n  n  n  n  O  n  n  n  n  n
sR   n  n  n  n  O  n  n  n  n  n
sU   n  n  n  n  n  n  n  n  n  n
s0   n  n  n  n  n  n  n  n  n  n
"""
"""Rows: measured or static, what was there. Columns: what came later. n, N: the newer stands; o, O: the older. In upper
case the other one is told above it. 0 is INVALID, U undecided."""


def kind(name: str, run: int, post: int = 0) -> Shown:
    status = LETTERS[name[1]]
    tier = "measured" if name[0] == "m" else "static"
    text = f"### ⛔ INVALID: the job was cancelled\n\nThe log is in [the run](https://github.com/a/b/runs/{run}).\n"
    return shown(run=run, tier=tier, status=status, post=post, text=text if name[1] == "0" else f"### {status}: x\n")  # type: ignore[arg-type]


def pairs() -> list[tuple[str, str, str]]:
    columns, *rows = PAIRS.strip("\n").splitlines()
    return [
        (row.split()[0], column, cell)
        for row in rows
        for column, cell in zip(columns.split(), row.split()[1:], strict=True)
    ]


def test_the_table_is_of_all_pairs() -> None:
    assert len(pairs()) == len(KINDS) ** 2


@pytest.mark.parametrize(("there", "later", "cell"), pairs())
def test_of_two_results_of_one_commit_this_one_stands(there: str, later: str, cell: str) -> None:
    old, new = kind(there, 1), kind(later, 2)
    stands, other = (new, old) if cell in "nN" else (old, new)
    for order in ([old, new], [new, old]):
        found = strongest(order, SHA)
        assert replace(found, void=None) == stands
        assert (found.void is not None) == cell.isupper()
        assert strongest([found, *order], SHA) == found
        if found.void is not None:
            assert found.void.stamp == other.stamp
            assert found.void.text == (
                "### ⛔ INVALID: the job was cancelled. The log is in "
                f"[the run](https://github.com/a/b/runs/{other.stamp.run})."
            )
            assert "**A measurement of this commit came to nothing" in found.body()
            assert Shown.read(found.body(note=Markdown("told"))) == found


@pytest.mark.parametrize("tier", ["m", "s"])
@pytest.mark.parametrize("was", LETTERS)
@pytest.mark.parametrize("is_", LETTERS)
def test_a_run_that_is_judged_again_says_what_it_says_now(tier: str, was: str, is_: str) -> None:
    now = kind(tier + is_, 1, post=9)
    assert strongest([kind(tier + was, 1, post=8), now], SHA) == now
    assert strongest([now, kind(tier + was, 1, post=8)], SHA) == now


def test_a_measurement_that_is_done_again_in_vain_leaves_what_came_of_it_first() -> None:
    first, again = kind("mF", 1), kind("m0", 1)
    again = replace(again, stamp=replace(again.stamp, attempt=2))
    assert strongest([again, first], SHA) == replace(first, void=strongest([first, again], SHA).void)
    assert strongest([again, first], SHA).void is not None


def test_what_came_to_nothing_is_forgotten_once_something_was_measured() -> None:
    told = strongest([kind("sF", 1), kind("m0", 2)], SHA)
    assert told.void is not None
    assert strongest([told, kind("mP", 3)], SHA) == kind("mP", 3)


def test_a_reason_of_any_length_is_told_in_a_line() -> None:
    long = replace(kind("m0", 2), text=f"### ⛔ INVALID: {'x' * 64_000}\n\nmore\n")
    told = strongest([kind("sF", 1), long], SHA)
    assert told.void is not None
    assert told.void.text == "### ⛔ INVALID: see run 2."
