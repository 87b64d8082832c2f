"""Decide which workloads a change concerns, by the git pathspecs in the setting ``paths`` of each workload.

Git lists the changed files. No report of a training process of the pull request is used. A workload is not concerned if
no changed file matches its pathspecs. Because ``paths`` may be wrong, it passes only if stored sessions of the base,
which a trusted node measured, show that a run loads no changed file. Both conditions must hold:

- The runs loaded only files that match the pathspecs. Otherwise ``paths`` is ignored and the workload measured.
- Every changed file is inert, a stored reference, or a Python file that the base already has. A run does not report
  other files that it reads, and a new file may be loaded from now on. A build reports nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regbot.baselines import Store
from regbot.baselines.query import newest_session
from regbot.records.baseline import Baseline
from regbot.records.config import Config, ConfigError, Workload
from regbot.records.files import RecordError
from regbot.records.run import Tier
from regbot.records.session import UnconcernedWorkload
from regbot.records.text.clip import clip, clip_message, short_commit
from regbot.workloads.checkout.changes import (
    DiffEntry,
    has_matching_path,
    list_changed_paths,
    list_diff_entries,
    list_unmatched_paths,
)
from regbot.workloads.checkout.git import CheckoutError, git, try_git
from regbot.workloads.task import Task, timed_tasks

ANY_GPUS = 2**20
"""A number of GPUs that suffices for every variant. The proof must cover all runs that a node with so many GPUs would
time."""


class LoadEvidence(NamedTuple):
    """A kind of stored session that shows which files a workload loads."""

    entry: str
    tier: Tier
    """``static`` for a trace, ``timed`` for a timed session."""
    variant: str


@dataclass(frozen=True)
class ChangedTrees:
    """A change from one commit to another. ``repo`` has the trees of both commits. It may lack their files."""

    repo: Path
    base: str
    head: str
    stored_folder: str
    """Folder of the stored references in the repository."""
    inert: Sequence[str]
    """The setting of that name of the base: globs of files that cannot affect a run."""


class ConcernResult(NamedTuple):
    unconcerned: list[UnconcernedWorkload]
    """Entries with and without a proof. No changed file matches their pathspecs."""
    warnings: list[str]


def list_evidence(config: Config, tasks: Sequence[Task], timing: bool) -> list[LoadEvidence]:
    """Return the kinds of stored sessions that must show which files the workloads load: a trace, and with ``timing``
    the timed session of a node with enough GPUs. A command does not report its files. Raises ConfigError.
    """
    tasks = [task for task in tasks if task.workload.adapter != "command"]
    timed_sessions = timed_tasks(config, tasks, ANY_GPUS) if timing else []
    traces = [LoadEvidence(task.entry, "static", task.variant.name) for task in tasks]
    return traces + [LoadEvidence(task.entry, "timed", task.variant.name) for task in timed_sessions]


def find_unconcerned(
    change: ChangedTrees, tasks: Sequence[Task], evidence: Sequence[LoadEvidence], store: Store
) -> ConcernResult:
    """Return the entries of ``tasks`` that ``change`` does not concern, with or without a proof from ``store``.

    ``evidence`` is the result of ``list_evidence``. Raises CheckoutError if git cannot read the trees, and ConfigError
    for pathspecs that git refuses.
    """
    result = ConcernResult([], [])
    changed_files = list_diff_entries(change.repo, change.base, change.head)
    for workload_name in dict.fromkeys(task.workload_name for task in tasks if task.workload.paths):
        workload_tasks = [task for task in tasks if task.workload_name == workload_name]
        paths = workload_tasks[0].workload.paths
        try:
            if list_changed_paths(change.repo, change.base, change.head, paths):
                continue
            matches_base = has_matching_path(change.repo, change.base, paths)
        except CheckoutError as error:  # git has compared the same trees above, so the pathspecs are at fault
            raise ConfigError(
                f"workloads.{workload_name}.paths: {error}", "correct the pathspecs (see gitglossary)"
            ) from error
        try:
            if not matches_base:
                raise _WrongPathsError("no file of base matches, so paths is ignored and the workload measured")
            result.unconcerned.extend([_prove(change, task, evidence, store, changed_files) for task in workload_tasks])
        except _WrongPathsError as error:
            result.warnings.append(clip_message(f"workloads.{workload_name}.paths: {error}"))
    return result


class _WrongPathsError(Exception):
    """The pathspecs cannot be right, so they are ignored."""


def _prove(
    change: ChangedTrees, task: Task, evidence: Sequence[LoadEvidence], store: Store, changed_files: Sequence[DiffEntry]
) -> UnconcernedWorkload:
    """Return ``task`` as a workload that the change does not concern. It passes if it has a proof, which needs a usable
    stored session of each kind in ``evidence``. Raises _WrongPathsError if one loaded files that no pathspec matches.
    """
    needed = [kind for kind in evidence if kind.entry == task.entry]
    gap = "" if needed else "a command does not report which files it loads"  # the first one
    proof_commit: str | None = None
    for kind in needed:
        session = None
        with suppress(RecordError):  # an unusable session proves nothing; the check of measured workloads warns of it
            session = newest_session(store, task.entry, kind.variant, kind.tier, change.base)
        noun = "trace" if kind.tier == "static" else "timed session"
        if session is None or session.loaded_files is None:
            gap = gap or f"no stored {noun} of the base lists the files that it loaded"
            continue
        # ``program`` is the training program that the configuration names; '' if it names none.
        loaded_files = [
            file for file in (*session.loaded_files, task.workload.program, task.workload.stand_ins) if file
        ]
        if unmatched_files := list_unmatched_paths(change.repo, loaded_files, task.workload.paths):
            more = f" and {len(unmatched_files) - 1} more" if len(unmatched_files) > 1 else ""
            raise _WrongPathsError(
                f"{session.workload} at {short_commit(session.commit)} loaded {clip(unmatched_files[0], 200)}{more}, "
                "which no pathspec matches. So paths is ignored, and the workload is measured. Add the files to paths"
            )
        proof_commit = proof_commit or session.commit
        session_text = f"the stored {noun} of {short_commit(session.commit)}"
        gap = gap or _find_gap(change, session, session_text, task.workload)
    if not gap and (unreported_file := _find_unreported_file(change, changed_files, task.workload)):
        reader = "its build" if task.workload.build else "a run"
        gap = f"{clip(unreported_file, 200)} changed, and {reader} does not report whether it reads such a file"
    if gap:
        return UnconcernedWorkload(entry=task.entry, proof=None, reason=clip_message(gap))
    reason = "the stored runs of the base loaded none of the changed files"
    return UnconcernedWorkload(entry=task.entry, proof=proof_commit, reason=reason)


def _find_gap(change: ChangedTrees, session: Baseline, session_text: str, workload: Workload) -> str:
    """Return why a stored session shows nothing about the base: a file that differs between its commit and the base. ''
    if it shows something."""
    if session.tree == git(change.repo, "rev-parse", f"{change.base}^{{tree}}").strip():
        return ""
    if try_git(change.repo, "cat-file", "-e", f"{session.commit}^{{tree}}").code != 0:
        return f"{session_text} is of a commit that this repository does not have"
    changed_paths = list_changed_paths(change.repo, session.commit, change.base, workload.paths)
    entries = list_diff_entries(change.repo, session.commit, change.base)
    changed_file = changed_paths[0] if changed_paths else _find_unreported_file(change, entries, workload)
    return f"{clip(changed_file, 200)} has changed since {session_text}" if changed_file else ""


def _find_unreported_file(change: ChangedTrees, changed_files: Sequence[DiffEntry], workload: Workload) -> str:
    """Return the first changed file that a run or its build may read without reporting it; '' if there is none."""
    for file in changed_files:
        is_stored = file.name.startswith(f"{change.stored_folder}/")
        if (workload.build or not file.is_python) and not is_stored and not file.is_inert(change.inert):
            return file.name
    return ""
