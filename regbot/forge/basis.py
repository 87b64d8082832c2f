"""What a pull request is judged by: ``regbot.toml`` and the stored references as its base commit has them.

They are read from a checkout of the default branch with its history. Nothing of the pull request is read: one that
brings a ``regbot.toml`` where there is none is judged when that is merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import tomllib
from pydantic import ValidationError

from regbot.checkout.git import DEEPEN, CheckoutError, try_git
from regbot.config import FILE_NAME, Config, ConfigError, GitHub, parse_config
from regbot.init.source import inside
from regbot.init.templates import FOLDER, sources
from regbot.records.files import describe


@dataclass(frozen=True)
class Basis:
    """The configuration that judges, the commit of the stored references, and what is to be known of both."""

    config: Config
    base: str
    notes: Sequence[str] = ()


def basis_of(repo: Path, base: str, target: str | None) -> Basis:
    """By the commit ``base``; where that has no configuration, by the tip of ``target``, the branch it is merged into,
    or else of the default branch. A measurement has no ``target``: only the default branch's was used beside the base,
    and a branch that anybody may have made does not judge what needed no maintainer. Raises CheckoutError, ConfigError.
    """
    if try_git(repo, "cat-file", "-e", f"{base}^{{commit}}").code != 0:
        raise CheckoutError(f"the base commit {base[:12]} is not in the checkout of regbot-post; {DEEPEN}")
    tips = (f"refs/remotes/origin/{target}", f"refs/heads/{target}") if target else ()
    for place in (base, *tips, "HEAD"):
        text = _configuration(repo, place)
        if text is None:
            continue
        config = parse_config(text, f"{FILE_NAME} at {place[:12] if place == base else place}")
        whose = "the default branch" if place == "HEAD" else str(target)
        told = f"the base commit has no {FILE_NAME}; that of {whose} was used"
        return Basis(config, base, () if place == base else (told,))
    whose = target or "the default branch"
    raise ConfigError(f"neither the base commit nor {whose} has a {FILE_NAME}; merge one first ('regbot init')")


def github_settings(repo: Path) -> GitHub:
    """The ``[github]`` table of the default branch, whatever else that has; the folder of its stored references, and
    what its workflows install regbot from, are protected too. Raises ConfigError."""
    try:
        tables: dict[str, Any] = tomllib.loads(_configuration(repo, "HEAD") or "")
        github = GitHub.model_validate(tables.get("github", {}))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{FILE_NAME} of the default branch: is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{FILE_NAME} of the default branch: github: {describe(error)}") from error
    stored = tables.get("baselines")
    folder = stored.get("folder") if isinstance(stored, dict) else None
    paths = [*([folder] if isinstance(folder, str) else []), *_installed_from(repo)]
    patterns = [f"{PurePosixPath(path)}/**".removeprefix("./") for path in paths]
    return github.model_copy(update={"protected": [*github.protected, *patterns]})


def _installed_from(repo: Path) -> list[str]:
    """Paths of this repository that jobs with a token install regbot from. The whole of it is none: of a repository
    that is regbot every file would be protected."""
    answers = [try_git(repo, "show", f"HEAD:{FOLDER}/{name}.yml") for name in ("regbot-gate", "regbot-post")]
    return list(dict.fromkeys(filter(None, (inside(each) for answer in answers for each in sources(answer.out)))))


def _configuration(repo: Path, commit: str) -> str | None:
    answer = try_git(repo, "show", f"{commit}:{FILE_NAME}")
    return answer.out if answer.code == 0 else None
