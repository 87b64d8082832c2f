"""What attackers write, through the whole path of a post: from the bytes of an artifact to the comment, the check run,
and the job's page. Each must hold it as text, and say the verdict first.
"""

import json
import unicodedata
from collections.abc import Callable

import pytest

from github_fake import Run as FakeRun
from regbot.cli.github import print_safely
from regbot.github.stamped_text import StampedText
from regbot.records.hang import Frame, Hang, RankHang
from regbot.records.ledger import Ledger
from regbot.records.run import Run
from regbot.records.session import Session
from support.forge_cases import A2A, FALLBACK, OTHER_PROGRAM, Bench, lines_of, only, zipped
from support.hostile import COMMIT, LINES, Page, inert
from support.timed_builder import noisy

HEAD = "0" * 40
STAMP = f'<!-- regbot:verdict {{"pr":1,"head":"{HEAD}","tier":"measured","run":9,"attempt":1,"status":"PASS"}} -->'
WILD = {
    "lines": LINES,
    "image": "![x](http://evil.example/x.png) <img src=http://evil.example/x onerror=alert(1)> [l](http://evil.example)",
    "mention": f"@org/team @everyone closes #1, GH-1, {COMMIT} <a href=http://evil.example>@bob</a> http://evil.example/@ann",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x9b31m \x07\x08\x00",
    "bidi": "a\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c \u200b\ufeff \u2028\u2029 \ue000",
    "marker": f"{STAMP}\n{STAMP} <!-- regbot:stale --> <!-- regbot:answer 1 --> <!-- <h1> -->",
    "marker below": f"\n\n{STAMP}\n### \u2705 PASS: trust me\n",
    "fence": "```\n````\n~~~\n~~~\n``````\n``````\n# evil\n</code></pre></details><h1>evil</h1>\n```sh\nrm -rf /\n",
    "fold": "</details>\n\n<details open><summary>evil</summary>\n\n# evil\n\n> quote\n\n---\n===\n",
    "table": "| a | b |\n|---|---|\n| evil | \\| |\n",
}
QUICK = ("lines", "marker", "fold")
"""Texts for every test run: runner commands, forged verdicts, open HTML. The others are slow."""
CONTROLS = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
OWN = "\n\u2060\u2068\u2069\ufe0f"
"""Line ends, and the characters that regbot itself isolates text with."""
SAME = noisy(1.0, 0.002)


def poisoned(ledger: Ledger, text: str) -> Ledger:
    """Return the ledger with operators, axes and types named ``text``."""
    label = text[:400]
    entries = [
        entry.model_copy(update={"where": f"{n} {label}", "dtype": label if n % 2 else entry.dtype})
        for n, entry in enumerate(ledger.entries)
    ]
    more = {"entries": entries, "warnings": [text], "patches": [label], "guesses": [text], "config": {"d": label}}
    return ledger.model_copy(update=more)


def spoken(session: Session, text: str, change: Callable[[Run], Run] = lambda run: run) -> Session:
    """Return ``session`` with ``text`` in every field that a job can choose."""
    label = text[:400]

    def with_text(run: Run) -> Run:
        more = {"warnings": [text], "arm": arms[run.arm.name], "changed_by_build": [label]}
        return change(run.model_copy(update=more))

    header = session.header
    arms = {
        arm.name: arm.model_copy(update={"subject": label, "revision": label}) for arm in (header.base, header.head)
    }
    header = header.model_copy(update={**arms, "warnings": [text], "changed_files": [label], "regbot": label})
    return Session(header=header, runs=[with_text(run) for run in session.runs])


def crashing(text: str) -> Callable[[Run], Run]:
    """Return a session whose head crashes in its trace with a log that ends with ``text``."""

    def change(run: Run) -> Run:
        if run.arm.name != "head" or run.tier != "static":
            return run
        return run.model_copy(update={"outcome": "crashed", "reason": text, "log_tail": text, "ledger": None})

    return change


def hanging(text: str) -> Callable[[Run], Run]:
    """Return a session whose head hangs in a timed run, in a function named ``text``."""

    def change(run: Run) -> Run:
        if run.arm.name != "head" or run.tier != "timed":
            return run
        frame = Frame(file="moe/layer.py", line=7, function=text[:400])
        evil = Frame(file=f"moe/{text[:100]}.py", line=7, function=text[:400])
        ranks = [RankHang(rank=n, answered=True, code_frame=at) for n, at in enumerate((frame, frame, evil))]
        hang = Hang(ranks=ranks, text=text)
        return run.model_copy(
            update={"outcome": "hung", "hang": hang, "reason": text, "log_tail": text, "timing": None, "loss": []}
        )

    return change


def after_a_trace(bench: Bench, number: int, text: str) -> FakeRun:
    """Post an INVALID measurement above a failed trace."""
    bench.post(bench.static(number, bench.session(bench.head(number), theirs=FALLBACK)))
    bench.approve(number)
    return bench.measured(number, spoken(bench.session(bench.head(number), timed=SAME), text, hanging(text)))


def unreadable(bench: Bench, number: int, text: str) -> FakeRun:
    """Return an artifact with a key named ``text``."""
    header, *rest = lines_of(bench.session(bench.head(number)))
    return bench.static(number, zipped([json.dumps({text: 1, **json.loads(header)}).encode() + b"\n", *rest]))


CASES: dict[str, Callable[[Bench, int, str], FakeRun]] = {
    "unreadable": unreadable,
    "after a trace": after_a_trace,
    "traced": lambda bench, number, text: bench.static(
        number,
        spoken(bench.session(bench.head(number), poisoned(A2A, text), poisoned(FALLBACK, text)), text),
    ),
    "crashed": lambda bench, number, text: bench.static(
        number, spoken(bench.session(bench.head(number)), text, crashing(text))
    ),
    "measured": lambda bench, number, text: bench.measured(
        number,
        spoken(bench.session(bench.head(number), poisoned(A2A, text), poisoned(OTHER_PROGRAM, text), timed=SAME), text),
    ),
    "hung": lambda bench, number, text: bench.measured(
        number, spoken(bench.session(bench.head(number), timed=SAME), text, hanging(text))
    ),
}


def check_inert(text: str) -> None:
    """Check that GitHub renders one verdict with closed folds, and that text of others is inert."""
    assert inert(text) == []
    page = Page(text)
    stamped_text = StampedText.read(text)
    assert (page.tags.count("h3"), page.comments) == (1, 1 if stamped_text.void is None else 2)
    assert stamped_text.text.startswith("### ")
    assert StampedText.read(stamped_text.text) is None
    plain(text)


def plain(text: str) -> None:
    """Check that no character is invisible or moves other text."""
    assert {c for c in text if unicodedata.category(c) in CONTROLS} <= set(OWN)


@pytest.mark.parametrize(
    "wild", [wild if wild in QUICK else pytest.param(wild, marks=pytest.mark.slow) for wild in WILD]
)
@pytest.mark.parametrize("case", CASES)
def test_text_of_attackers_is_inert_in_every_post(bench: Bench, case: str, wild: str) -> None:
    text = WILD[wild]
    number = bench.pull(fork="mallory", title=text)
    bench.repo.pulls[number].body = text
    if case in ("measured", "hung"):
        bench.approve(number)
    posted = only(bench.post(CASES[case](bench, number, text)))
    if case == "after a trace":
        bench.update_head(number)
    check = bench.check(number)
    assert check.status == "completed"
    check_inert(check.summary or "")
    plain(check.title or "")
    assert "\n" not in (check.title or "")
    assert len(check.title or "") <= 200
    body = bench.comment(number)
    check_inert(body)
    stamped_text = StampedText.read(body)
    assert (stamped_text.stamp.pr, stamped_text.stamp.head) == (number, bench.head(number))
    if case == "after a trace":
        assert stamped_text.void is not None
        assert (stamped_text.stamp.status, stamped_text.void.stamp.status) == ("FAIL", "INVALID")
    else:
        assert stamped_text.stamp.status == posted.status
        assert posted.text.strip() in body


def test_no_line_in_a_jobs_log_is_a_command_to_the_runner(capsys: pytest.CaptureFixture[str]) -> None:
    """A runner obeys lines that begin with "::", and "##[" anywhere."""
    commands = "  ::add-mask::x\n\x1b[0m::stop-commands::x\nfine ##[add-path]/evil ##[set-env name=PATH;]/evil"
    print_safely(f"{LINES}\n{commands}")
    output = capsys.readouterr().out
    assert "/evil" in output
    assert not [line for line in output.splitlines() if line.lstrip().startswith("::") or "##[" in line]
    plain(output)
