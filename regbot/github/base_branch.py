"""Load the configuration by which a pull request is judged, from its base commit, and the ``[github]`` settings, from
the default branch. Nothing is read from the pull request."""

from functools import partial
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from regbot.github.source import path_in_repository
from regbot.github.templates import FOLDER, install_sources
from regbot.records.config import (
    FILE_NAME,
    ConfigError,
    ConfigSource,
    GitHub,
    LoadedConfig,
    SourceKind,
    load_first,
    parse_toml,
)
from regbot.records.files import describe_validation_error
from regbot.records.text.clip import short_commit
from regbot.workloads.checkout.git import DEEPEN_ADVICE, CheckoutError, file_at, try_git


def load_base_config(repo: Path, base: str, target: str | None) -> LoadedConfig:
    """Load the first configuration that exists: from the commit ``base``, from the newest commit of ``target``, or from
    the default branch.

    ``target`` is the branch that the pull request merges into. It is None for a measurement on a node: anybody with
    push access can create a branch, so that branch must not supply the thresholds of a measurement.

    Raises CheckoutError, ConfigError.
    """
    if try_git(repo, "cat-file", "-e", f"{base}^{{commit}}").code != 0:
        raise CheckoutError(
            f"the base commit {short_commit(base)} is not in the checkout of regbot-post", DEEPEN_ADVICE
        )
    candidates = [ConfigSource(SourceKind.BASE, base)]
    if target:
        candidates.append(ConfigSource(SourceKind.TARGET, f"refs/remotes/origin/{target}"))
        candidates.append(ConfigSource(SourceKind.TARGET, f"refs/heads/{target}"))
    candidates.append(ConfigSource(SourceKind.DEFAULT_BRANCH, "HEAD"))  # the checkout is of the default branch
    loaded = load_first(partial(file_at, repo, FILE_NAME), candidates)
    if loaded is None:
        branch_name = target or "the default branch"
        raise ConfigError(
            f"neither the base commit nor {branch_name} has a {FILE_NAME}", "merge one first ('regbot init')"
        )
    return loaded


def load_github_settings(repo: Path) -> GitHub:
    """Load the ``[github]`` table of the default branch. Faults in other tables are ignored. Raises ConfigError.

    The field ``protected`` of the returned settings also contains the folder of stored references, and the paths from
    which workflows install regbot.
    """
    tables = parse_toml(file_at(repo, FILE_NAME, "HEAD") or "", f"{FILE_NAME} of the default branch")
    try:
        github = GitHub.model_validate(tables.get("github", {}))
    except ValidationError as error:
        raise ConfigError(f"{FILE_NAME} of the default branch: github: {describe_validation_error(error)}") from error
    baselines = tables.get("baselines")
    folder = baselines.get("folder") if isinstance(baselines, dict) else None
    # Jobs with a token install regbot from these paths. The root of the repository is left out: regbot's own repository
    # is installed from its root, and protecting the root would protect every file.
    workflows = [file_at(repo, f"{FOLDER}/{name}.yml", "HEAD") or "" for name in ("regbot-gate", "regbot-post")]
    paths = [path_in_repository(source) for workflow in workflows for source in install_sources(workflow)]
    # The path "." becomes the pattern "**", which matches all files.
    patterns = [
        f"{PurePosixPath(path)}/**".removeprefix("./")
        for path in dict.fromkeys([folder, *paths])
        if path and isinstance(path, str)
    ]
    return github.model_copy(update={"protected": [*github.protected, *patterns]})
