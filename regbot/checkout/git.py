"""Running the git command so that neither the user's hooks nor the variables of an outer git decide what it does.

Nothing here writes into a repository by itself. Queries take no optional locks: even ``git status`` would otherwise
refresh the index of the repository it looks at.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regbot.text import printable

QUERY_TIMEOUT_S = 120.0
TRANSFER_TIMEOUT_S = 1800.0
"""Fetches and checkouts: the largest training repositories, with their submodules, over a slow line."""

_KEPT = re.compile(
    r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|SSL_\w+|HTTP_\w+|PROXY_\w+|EXEC_PATH|CONFIG_(GLOBAL|SYSTEM"
    r"|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+))"
)
"""How to reach and trust other machines and folders. Every other GIT_ variable (GIT_DIR, GIT_INDEX_FILE, ...) would
redirect our commands, as when regbot is started from a hook."""

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.attributesFile": "/dev/null",
    "submodule.recurse": "false",
    "fetch.prune": "false",
    "fetch.pruneTags": "false",
    "core.quotePath": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.version": "2",  # version 0 refuses to send a commit that no ref reaches
    "i18n.logOutputEncoding": "UTF-8",
    "advice.detachedHead": "false",
}

ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "0"}
"""Without the machine's configuration: attributes of a commit could choose a filter there, which runs on its files."""

DEEPEN = "fetch the rest of the history: git fetch --unshallow, or fetch-depth: 0 of actions/checkout"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


class CheckoutError(Exception):
    """The revisions asked for cannot be checked out: a usage error. The message says what, where and what to do."""


@dataclass(frozen=True)
class Answer:
    """How a git command ended."""

    code: int
    out: str
    error: str

    @property
    def last_word(self) -> str:
        """The line in which git says why, printable; without credentials that a URL may carry."""
        lines = [printable(line) for line in self.error.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        return without_credentials((fatal or lines or [f"exit code {self.code}"])[0])[:500]


def git(at: Path, *arguments: str, timeout_s: float = QUERY_TIMEOUT_S, env: Mapping[str, str] | None = None) -> str:
    """What a git command that must succeed prints. Raises CheckoutError with git's own words."""
    answer = try_git(at, *arguments, timeout_s=timeout_s, env=env)
    if answer.code != 0:
        command = next((word for word in arguments if not word.startswith("-")), "")
        raise CheckoutError(f"{at}: git {command} failed: {answer.last_word}")
    return answer.out


def try_git(
    at: Path,
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
    stdin: str = "",
) -> Answer:
    """Run git in the folder ``at``. Raises CheckoutError where it cannot be run at all or passes its time limit."""
    options = [word for key, value in {**_SETTINGS, **(settings or {})}.items() for word in ("-c", f"{key}={value}")]
    try:
        process = subprocess.Popen(
            ["git", *options, *arguments],
            cwd=at,
            env={**_environment(), **(env or {})},
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # no terminal to ask for a password on, and one group to kill
        )
    except FileNotFoundError as error:
        if not at.is_dir():
            raise CheckoutError(f"{at}: is not a folder; give the path of a git repository") from error
        raise CheckoutError("git was not found on PATH; install git 2.31 or newer") from error
    except (NotADirectoryError, PermissionError) as error:
        raise CheckoutError(f"{at}: cannot be entered: {error.strerror}; give the path of a git repository") from error
    with process:
        try:
            given = stdin.encode("utf-8", "surrogateescape") or None
            out, complaint = process.communicate(given, timeout=timeout_s)
        except BaseException as error:
            kill_group(process.pid)
            if isinstance(error, subprocess.TimeoutExpired):
                words = " ".join(arguments)[:200]
                raise CheckoutError(
                    f"{at}: 'git {words}' did not end within {timeout_s:.0f} s and was ended"
                ) from error
            raise
    return Answer(
        process.returncode, out.decode("utf-8", "surrogateescape"), complaint.decode("utf-8", "surrogateescape")
    )


def kill_group(leader: int) -> None:
    """End the process group of ``leader``, if any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def without_credentials(text: str) -> str:
    """``text`` with the user and password of its URLs left out."""
    return _CREDENTIALS.sub("", text)


def common_dir(repo: Path) -> Path:
    """The folder with the objects of the repository that ``repo`` lies in, shared by all its worktrees."""
    answer = try_git(repo, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if answer.code != 0:
        raise CheckoutError(f"{repo}: cannot be used as a git repository: {answer.last_word}")
    return Path(answer.out.removesuffix("\n")).resolve()


def find_commit(repo: Path, revision: str, option: str) -> str:
    """The full id of the commit that ``revision`` names; ``option`` is where the user gave it, for the error."""
    if revision and "\0" not in revision:
        answer = try_git(repo, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        if answer.code == 0:
            return answer.out.strip()
    advice = f"the repository is shallow, {DEEPEN}" if is_shallow(repo) else "check its spelling, or fetch it first"
    raise CheckoutError(f"{repo}: {option} {revision!r} names no commit here; {advice}")


def is_shallow(repo: Path) -> bool:
    """Was the history cut when ``repo`` was cloned?"""
    return git(repo, "rev-parse", "--is-shallow-repository").strip() == "true"


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or _KEPT.fullmatch(name)}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
    }
