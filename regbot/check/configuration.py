"""Choose the ``regbot.toml`` that a check of two commits uses."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from regbot.records.config import (
    FILE_NAME,
    ConfigError,
    ConfigSource,
    ConfigWarning,
    LoadedConfig,
    SourceKind,
    load_file,
    load_first,
    with_machine_tables,
)
from regbot.records.text.clip import short_commit
from regbot.workloads.checkout.arms import target_tip
from regbot.workloads.checkout.git import file_at


def add_stand_ins(loaded: LoadedConfig, repo: Path) -> LoadedConfig:
    """Return ``loaded`` with the texts of the files that its workloads name in ``stand_ins``. They come from the same
    commit or folder as the configuration, so that a pull request cannot change them. Raises ConfigError.
    """
    workloads = dict(loaded.config.workloads)
    for name, workload in workloads.items():
        if not workload.stand_ins:
            continue
        file = Path(loaded.source.name).parent / workload.stand_ins
        if loaded.source.kind is not SourceKind.FILE:
            text = file_at(repo, workload.stand_ins, loaded.source.name)
        else:
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
        if text is None:
            raise ConfigError(f"workloads.{name}.stand_ins: {loaded.source} names a file that is not there")
        workloads[name] = workload.model_copy(update={"stand_ins_text": text})
    return replace(loaded, config=loaded.config.model_copy(update={"workloads": workloads}))


def find_config(
    repo: Path,
    base: str,
    head: str,
    *,
    target: str | None = None,
    exact: bool,
    file: Path | LoadedConfig | None = None,
) -> LoadedConfig:
    """Return the configuration of the commit ``base``, so that a pull request cannot weaken its own check.

    If ``base`` has none, the branch ``target`` (None: a guessed branch; not with ``exact``) and then ``head`` are
    tried, because a pull request may introduce regbot. ``file`` replaces all of them. A warning says that ``head`` has
    another one. Raises ConfigError, CheckoutError.
    """
    loaded = file if isinstance(file, LoadedConfig) else load_file(file) if file is not None else None
    return add_stand_ins(loaded or _find_commit(repo, base, head, target, exact), repo)


def _find_commit(repo: Path, base: str, head: str, target: str | None, exact: bool) -> LoadedConfig:
    text_at = partial(file_at, repo, FILE_NAME)
    sources = [ConfigSource(SourceKind.BASE, base)]
    if not exact and (tip := target_tip(repo, target)) not in (base, head):
        sources.append(ConfigSource(SourceKind.TARGET, tip))
    loaded = load_first(text_at, [*sources, ConfigSource(SourceKind.HEAD, head)])
    if loaded is None:
        raise ConfigError(
            f"neither {short_commit(base)} nor {short_commit(head)} has a {FILE_NAME}",
            "commit one that names a workload (see docs/configuration.md), or give --config FILE",
        )
    if loaded.source.kind is SourceKind.BASE and text_at(head) != loaded.text:
        return replace(loaded, warnings=(ConfigWarning.HEAD_DIFFERS,))
    return loaded


def confine(loaded: LoadedConfig, node_file: Path | None, untrusted: bool, head: str, advice: str) -> LoadedConfig:
    """Return ``loaded`` with the machine tables (``[sandbox]``, ``[slurm]``, ``[local]``) of ``node_file``, if given.

    Raises ConfigError if untrusted code would choose its own confinement: if these tables come from the head commit,
    which ``head`` names in the error. ``advice`` says what to do.
    """
    loaded = with_machine_tables(loaded, node_file)
    if untrusted and loaded.machine_source.kind is SourceKind.HEAD:
        raise ConfigError(
            f"--untrusted: only {head} has a {FILE_NAME}, and it must not choose its own confinement", advice
        )
    return loaded
