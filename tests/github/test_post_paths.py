"""``paths`` of a workload when a result is posted: git decides what a change concerns, and no artifact does."""

from pathlib import Path

import pytest

from github_fake import FakeGitHub
from regbot.baselines.names import session_path
from regbot.baselines.store import record_digest
from regbot.records.session import Session, UnconcernedWorkload
from support.baseline_builder import timed_baseline
from support.forge_cases import TOML, Bench, headline, only

ENTRY = "qwen3-30b-a3b@1/ep"


def bench_with(hub: FakeGitHub, folder: Path, paths: list[str], loaded: list[str] | None = None) -> Bench:
    """A repository whose workload has ``paths``; with ``loaded``, a stored trace of the base lists these files."""
    bench = Bench.make(hub, folder, TOML.replace("[session]", f"paths = {paths}\n[session]"))
    main = bench.repo.commit({"train.py": "x = 1\n"}, message="the training")
    if loaded is not None:
        tree = bench.repo.git.run("rev-parse", f"{main}^{{tree}}").strip()
        trace: dict[str, object] = {"tier": "static", "steps": None, "cut": None, "clock": None, "runs": []}
        trace |= {"workload": ENTRY, "variant": "full", "ledger": "a" * 64, "commit": main, "tree": tree}
        stored = timed_baseline(**trace, loaded_files=loaded)
        name = f"baselines/{session_path(stored, record_digest(stored))}"
        bench.repo.commit({name: stored.to_json()}, message="a reference")
    bench.update()
    return bench


def nothing_run(bench: Bench, number: int, claim: str | None = None) -> Session:
    """The session of a job that ran nothing; ``claim``: what it says of the reason, with a proof."""
    session = bench.session(bench.head(number))
    claims = [UnconcernedWorkload(entry=ENTRY, proof="c" * 40, reason=claim)] if claim else []
    return Session(header=session.header.model_copy(update={"unconcerned": claims}), runs=[])


@pytest.mark.parametrize("fork", ["", "eve"])
def test_a_change_of_no_path_is_neutral(hub: FakeGitHub, tmp_path: Path, fork: str) -> None:
    bench = bench_with(hub, tmp_path, ["train.py"])
    number = bench.pull(fork=fork)
    posted = only(bench.post(bench.static(number, nothing_run(bench, number))))
    assert posted.status == "INCONCLUSIVE"
    assert "no changed file matches the paths of a workload, so nothing was measured" in headline(posted.text)
    assert bench.check(number).conclusion == "neutral"


def test_no_artifact_says_what_a_change_concerns(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = bench_with(hub, tmp_path, ["moe.py"])
    number = bench.pull()
    posted = only(bench.post(bench.static(number, nothing_run(bench, number, claim="trust me"))))
    assert (posted.status, bench.check(number).conclusion) == ("INVALID", "failure")


def test_no_artifact_claims_a_proof(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = bench_with(hub, tmp_path, ["train.py"])
    number = bench.pull()
    posted = only(bench.post(bench.static(number, nothing_run(bench, number, claim="trust me"))))
    assert posted.status == "INCONCLUSIVE"
    assert "trust me" not in posted.text


def test_a_stored_trace_of_the_base_proves_a_pass(hub: FakeGitHub, tmp_path: Path) -> None:
    bench = bench_with(hub, tmp_path, ["train.py"], loaded=["train.py"])
    number = bench.pull()
    assert only(bench.post(bench.static(number, nothing_run(bench, number)))).status == "PASS"
