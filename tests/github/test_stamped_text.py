"""The stamped text of a verdict, and which of several results of one commit is shown."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regbot.github.stamped_text import Stamp, StampedText, select_strongest
from regbot.report.markdown import Markdown
from support.forge_cases import OTHER, SHA, build_text

# The stamp


def test_the_stamp_has_the_documented_format() -> None:
    line = Stamp(12, SHA, "measured", 77, 2, "FAIL").line()
    assert line.startswith(f'<!-- regbot:verdict {{"pr":12,"head":"{SHA}","tier":"measured","run":77,"attempt":2')
    assert line.endswith(" -->")
    assert Stamp.read(line) == Stamp(12, SHA, "measured", 77, 2, "FAIL")


def test_a_branch_name_does_not_end_the_stamp() -> None:
    stamp = Stamp(12, SHA, "static", 77, 1, "PASS", target="-->evil")
    assert stamp.line().count("-->") == 1
    assert Stamp.read(stamp.line()) == stamp


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<!-- regbot:verdict -->",
        "<!-- regbot:verdict {} -->",
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
def test_an_invalid_stamp_is_not_read(line: str) -> None:
    assert Stamp.read(line) is None


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=200), st.booleans(), st.booleans())
def test_a_posted_body_is_read_back(text: str, stale: bool, crlf: bool) -> None:
    stamped_text = build_text(text=f"### PASS\n\n{text}")
    body = stamped_text.body(OTHER if stale else SHA)
    assert ("**Stale:**" in body.partition("### ")[0]) is stale
    assert StampedText.read(body.replace("\n", "\r\n") if crlf else body) == stamped_text


# Which of two results of one commit stands

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
"""Rows: the earlier result, measured or static. Columns: the later one. n, N: the newer is shown; o, O: the older. In
upper case the other one is a banner above it. 0 is INVALID, U undecided."""


def kind(name: str, run: int) -> StampedText:
    status = LETTERS[name[1]]
    tier = "measured" if name[0] == "m" else "static"
    text = f"### ⛔ INVALID: the job was cancelled\n\nThe log is in [the run](https://github.com/a/b/runs/{run}).\n"
    text = text if name[1] == "0" else f"### {status}: x\n"
    return build_text(run=run, tier=tier, status=status, text=text)  # type: ignore[arg-type]


def pairs() -> list[tuple[str, str, str]]:
    columns, *rows = PAIRS.strip("\n").splitlines()
    return [
        (row.split()[0], column, cell)
        for row in rows
        for column, cell in zip(columns.split(), row.split()[1:], strict=True)
    ]


@pytest.mark.parametrize(("earlier", "later", "cell"), pairs())
def test_the_documented_result_of_two_is_shown(earlier: str, later: str, cell: str) -> None:
    old, new = kind(earlier, 1), kind(later, 2)
    stands, other = (new, old) if cell in "nN" else (old, new)
    for order in ([old, new], [new, old]):
        strongest = select_strongest(order)
        assert replace(strongest, void=None) == stands
        assert (strongest.void is not None) == cell.isupper()
        assert select_strongest([strongest, *order]) == strongest
        if strongest.void is not None:
            assert strongest.void.stamp == other.stamp
            assert strongest.void.text == (
                "### ⛔ INVALID: the job was cancelled. The log is in "
                f"[the run](https://github.com/a/b/runs/{other.stamp.run})."
            )
            assert "**A measurement of this commit gave no result:**" in strongest.body()
            assert StampedText.read(strongest.body(note=Markdown("told"))) == strongest


@pytest.mark.parametrize("tier", ["m", "s"])
def test_a_run_that_is_judged_again_replaces_its_result(tier: str) -> None:
    for was, is_ in product(LETTERS, LETTERS):
        now = replace(kind(tier + is_, 1), text="### again\n")
        assert select_strongest([kind(tier + was, 1), now]) == now


def test_a_repeated_measurement_that_fails_keeps_the_first_result() -> None:
    first, again = kind("mF", 1), kind("m0", 1)
    again = replace(again, stamp=replace(again.stamp, attempt=2))
    assert select_strongest([again, first]) == replace(first, void=select_strongest([first, again]).void)
    assert select_strongest([again, first]).void is not None


def test_an_invalid_measurement_is_dropped_after_a_valid_one() -> None:
    strongest = select_strongest([kind("sF", 1), kind("m0", 2)])
    assert strongest.void is not None
    assert select_strongest([strongest, kind("mP", 3)]) == kind("mP", 3)


def test_a_reason_of_any_length_fits_in_one_line() -> None:
    long = replace(kind("m0", 2), text=f"### ⛔ INVALID: {'x' * 64_000}\n\nmore\n")
    strongest = select_strongest([kind("sF", 1), long])
    assert strongest.void.text == "### ⛔ INVALID: see run 2."
