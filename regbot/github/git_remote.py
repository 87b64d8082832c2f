"""Fetch from GitHub and push to GitHub with git over HTTP and a token.

The token is passed in git's environment only. It never appears in an argument, a URL, a stored setting or a message. A
push succeeds only if the branch is still at the expected commit. After each push, the branch is read from GitHub to see
whether the push took effect.
"""

import base64
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from regbot.github.transport import AwayError, ForgeError
from regbot.workloads.checkout.git import TRANSFER_TIMEOUT_S, CheckoutError, GitResult, try_git

DELAYS_S = (2.0, 8.0, 30.0, 60.0)
"""Seconds to wait after each failed attempt but the last."""

_REFUSED = re.compile(
    r"Authentication failed|could not read (Username|Password)|returned error: 40[0134]|[Nn]ot found|not our ref|denied"
    r"|\[remote rejected\] \([^)]*\)"
)
"""Messages of git that mean a refusal. A refused command is not repeated."""
_SETTINGS = {
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "credential.helper": "",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
}
"""Settings for every git command: no redirects, no stored passwords, no signed pushes and no pushes of submodules. A
transfer ends after 60 s below 1,000 bytes per second."""
BRANCH_PREFIX = "refs/heads/"


class Remote:
    """The repository at ``url`` on GitHub. Git runs in the checkout ``repo``, whose refs and settings stay unchanged.

    Raises ForgeError if the URL or the token cannot be used.
    """

    def __init__(self, repo: Path, url: str, token: str, sleep: Callable[[float], None] = time.sleep) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ForgeError("the repository's URL must begin with http:// or https:// and have no user or password")
        self.repo = repo
        self.url = url
        self._host_url = f"{parts.scheme}://{parts.netloc}/"
        self._secret = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        self._token = token
        self._sleep = sleep

    def tips(self, *branches: str) -> dict[str, str]:
        """Return the newest commits of ``branches``, by branch name. Branches that do not exist are left out. Raises
        ForgeError."""
        refs = [BRANCH_PREFIX + branch for branch in branches]
        answer = self._repeat("ls-remote", "--quiet", self.url, *refs)
        commits = {}
        for line in answer.out.splitlines():
            commit, ref = line.split("\t", 1)
            commits[ref.removeprefix(BRANCH_PREFIX)] = commit
        # git also lists refs that only end with the given names.
        return {branch: commits[branch] for branch in branches if branch in commits}

    def fetch(self, *commits: str) -> None:
        """Fetch ``commits`` with their history, without creating a ref. Raises ForgeError."""
        self._repeat("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", self.url, *commits)

    def fetch_trees(self, *commits: str, max_file_bytes: int | None = None) -> None:
        """Fetch ``commits`` with their trees, but without their ancestors, and without files above ``max_file_bytes``.
        None fetches no files. Raises ForgeError."""
        # git leaves out files of exactly the limit, too
        files = "blob:none" if max_file_bytes is None else f"blob:limit={max_file_bytes + 1}"
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--depth=1", f"--filter={files}")
        self._repeat("fetch", *options, self.url, *commits)

    def push(self, commit: str, branch: str, expected: str | None) -> bool:
        """Move ``branch`` from the commit ``expected`` to ``commit``. Return False if somebody else has moved the
        branch.

        ``expected`` is None if the branch must not exist yet. Raises ForgeError.
        """
        ref = BRANCH_PREFIX + branch
        # With this option, GitHub moves the branch only if it is at ``expected``. An empty value means that the branch
        # must not exist yet.
        lease = f"--force-with-lease={ref}:{expected or ''}"

        def has_moved(_: GitResult) -> bool:
            return self.tips(branch).get(branch) != expected

        self._repeat("push", "--porcelain", "--no-verify", lease, self.url, f"{commit}:{ref}", is_done=has_moved)
        return self.tips(branch).get(branch) == commit

    def _repeat(self, *arguments: str, is_done: Callable[[GitResult], bool] | None = None) -> GitResult:
        """Run git until ``is_done``, by default until it succeeds. Raises ForgeError if GitHub refuses the request or
        all attempts fail."""
        for delay_s in (*DELAYS_S, None):
            answer = self._run_git(*arguments)
            if is_done(answer) if is_done is not None else answer.code == 0:
                return answer
            refusal = _REFUSED.search(answer.error + answer.out)
            if refusal is not None:
                reason = self._hide_token(f"{answer.error_line} ({refusal[0]})")
                advice = "the app's token needs the permission 'contents: write' for this repository"
                raise ForgeError(f"git {arguments[0]}: GitHub refused: {reason}", advice)
            if delay_s is not None:
                self._sleep(delay_s)
        raise AwayError(
            f"git {arguments[0]}: {len(DELAYS_S) + 1} attempts failed: {self._hide_token(answer.error_line)}",
            "run the job again when GitHub answers: it continues after the last commit that was pushed",
        )

    def _run_git(self, *arguments: str) -> GitResult:
        """Run git once. Raises ForgeError if git cannot be started or takes too long."""
        try:
            return try_git(
                self.repo, *arguments, settings=_SETTINGS, env=self._build_environment(), timeout_s=TRANSFER_TIMEOUT_S
            )
        except CheckoutError as error:
            raise ForgeError(self._hide_token(str(error))) from None

    def _build_environment(self) -> dict[str, str]:
        """Return additional environment variables for git. They send the token as an HTTP header.

        Git reads settings from the variables ``GIT_CONFIG_KEY_<n>`` and ``GIT_CONFIG_VALUE_<n>``. The new settings are
        appended to settings that the caller's environment already has.
        """
        count_text = os.environ.get("GIT_CONFIG_COUNT", "")
        existing_count = int(count_text) if count_text.isdecimal() else 0
        key = f"http.{self._host_url}.extraheader"
        # git reads GIT_CONFIG_COUNT settings from numbered variables. The empty value removes all headers that other
        # settings add.
        settings: Sequence[tuple[str, str]] = ((key, ""), (key, f"Authorization: Basic {self._secret}"))
        environment = {"GIT_ASKPASS": "", "SSH_ASKPASS": ""}
        for number, (name, value) in enumerate(settings, start=existing_count):
            environment[f"GIT_CONFIG_KEY_{number}"] = name
            environment[f"GIT_CONFIG_VALUE_{number}"] = value
        environment["GIT_CONFIG_COUNT"] = str(existing_count + len(settings))
        return environment

    def _hide_token(self, text: str) -> str:
        return text.replace(self._token, "***").replace(self._secret, "***")
