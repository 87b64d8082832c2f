"""Choose the ``regbot.toml`` that a check of two commits uses."""

from dataclasses import replace
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
from regbot.workloads.checkout import target_tip
from regbot.workloads.checkout.git import file_at


def find_config(
    repo: Path,
    base: str,
    head: str,
    *,
    target: str | None = None,
    exact: bool,
    file: Path | LoadedConfig | None = None,
    readable: Path | None = None,
) -> LoadedConfig:
    """Return the configuration of the commit ``base``, so that a pull request cannot weaken its own check.

    If ``base`` has no configuration, the branch ``target`` (None: a guessed branch) and then ``head`` are tried. The
    commit ``head`` is allowed, because a pull request may introduce regbot. With ``exact``, the check
    compares with ``base`` itself and not with a merge base, so ``target`` is not tried. If ``file`` is given, use this
    file in any case. If the configuration comes from ``base`` and that of ``head`` differs, the result has a warning.

    If ``repo`` is a partial clone, ``readable`` is the private clone that has the files of the commits. If it is None,
    only ``repo`` is read.

    Raises ConfigError, CheckoutError.
    """
    if isinstance(file, LoadedConfig):
        return file
    if file is not None:
        return load_file(file)

    # The tip of the target branch may be in ``repo`` only.
    repositories = [repo] if readable is None else [readable, repo]

    def text_at(commit: str) -> str | None:
        texts = (file_at(repository, FILE_NAME, commit) for repository in repositories)
        return next((text for text in texts if text is not None), None)

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

    Raises ConfigError if the code is untrusted and these tables come from the head commit, because code must not choose
    its own confinement. In the error, ``head`` names that commit and ``advice`` says what to do.
    """
    loaded = with_machine_tables(loaded, node_file)
    if untrusted and loaded.machine_source.kind is SourceKind.HEAD:
        raise ConfigError(
            f"--untrusted: only {head} has a {FILE_NAME}, and it must not choose its own confinement", advice
        )
    return loaded
