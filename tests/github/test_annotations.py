"""Annotations of the check run: at lines that git lists in the diff, and at no others."""

from github_fake.fixtures import hub as hub
from regbot.github.annotations import MAX_ANNOTATIONS, list_annotations
from regbot.records.changed_lines import ChangedFile, ChangedLines, Hunk
from regbot.records.verdict import FindingLine, FindingLines
from support.forge_cases import FALLBACK, Bench, only
from support.forge_cases import bench as bench
from support.ledger_builder import placed
from support.sharding_cases import with_lines

CALLS = ("other.py:3", "helper"), ("moe.py:1", "MoE.<forward>")
TEXT = "x = 2\n"


def test_the_line_in_the_diff_is_annotated_once_however_often_it_is_posted(bench: Bench) -> None:
    number = bench.pull(text=TEXT, fork="mallory")
    run = bench.static(number, bench.session(bench.head(number), theirs=placed(FALLBACK, "all_gather ep", *CALLS)))
    posted = only(bench.post(run))
    assert posted.title.startswith("self-reported FAIL: all-to-all replaced by gather and sum")
    (annotation,) = bench.check(number).annotations
    assert (annotation["path"], annotation["start_line"], annotation["end_line"]) == ("moe.py", 1, 1)
    assert annotation["annotation_level"] == "failure"
    assert "all-gather" in annotation["message"]
    bench.post(run)
    again = bench.static(number, bench.session(bench.head(number), theirs=placed(FALLBACK, "all_gather ep", *CALLS)))
    bench.post(again)
    assert bench.check(number).annotations == [annotation]
    assert "The annotations are those of the first result" in bench.check(number).summary


def test_a_large_new_file_hides_no_line_of_the_others_and_a_warning_counts_it(bench: Bench) -> None:
    number = bench.pull(text=TEXT)
    bench.repo.commit({"big.py": "x = 1\n" * 200_000}, branch="topic", message="data")
    theirs = placed(FALLBACK, "all_gather ep", *CALLS)
    posted = only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=theirs))))
    assert "the diff of 1 changed Python file could not be read" in posted.text
    assert [annotation["path"] for annotation in bench.check(number).annotations] == ["moe.py"]


def test_no_artifact_says_which_lines_are_in_the_diff(bench: Bench) -> None:
    number = bench.pull(text=TEXT, fork="mallory")
    hunk = Hunk(base_line=3, base_count=1, head_line=3, head_count=1)
    claimed = ChangedLines(files=[ChangedFile(base="other.py", head="other.py", hunks=[hunk])])
    theirs = placed(FALLBACK, "all_gather ep", CALLS[0])
    only(bench.post(bench.static(number, bench.session(bench.head(number), theirs=theirs, changed_lines=claimed))))
    assert bench.check(number).conclusion
    assert bench.check(number).annotations == []


def test_one_request_has_at_most_as_many_as_github_takes() -> None:
    verdict, _ = with_lines()
    entry = verdict.workloads[0]
    assert entry.sharding is not None
    finding = entry.sharding.findings[0]
    lines = FindingLines(head=[FindingLine(path="moe.py", line=number, in_diff=True) for number in range(1, 11)])
    findings = [finding.model_copy(update={"axis": f"a{number}", "lines": lines}) for number in range(30)]
    sharding = entry.sharding.model_copy(update={"findings": findings})
    many = verdict.model_copy(update={"workloads": [entry.model_copy(update={"sharding": sharding})]})
    assert len(list_annotations(many)) == MAX_ANNOTATIONS
