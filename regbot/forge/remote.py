"""Git over HTTP with a token that stands nowhere but in git's environment: in no argument, no URL, no stored
configuration, no message.

A push moves a branch from the commit that it was seen at, or not at all. Whether it happened is asked, never guessed.
"""

import base64
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from regbot.checkout.git import TRANSFER_TIMEOUT_S, Answer, CheckoutError, try_git
from regbot.forge.transport import AwayError, ForgeError

DELAYS_S = (2.0, 8.0, 30.0, 60.0)
"""Between attempts, where the other side did not answer or failed."""

_REFUSED = re.compile(
    r"Authentication failed|could not read (Username|Password)|returned error: 40[0134]|[Nn]ot found|not our ref|denied"
)
_REJECTED = re.compile(r"^!\t[^\t]*\t\[(?:remote )?rejected\] \(([^)]*)\)", re.MULTILINE)
_MOVED = ("stale info", "fetch first", "non-fast-forward")
_SETTINGS = {
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "credential.helper": "",
    "push.gpgSign": "false",
    "push.recurseSubmodules": "no",
}
HEADS = "refs/heads/"


class Remote:
    """The repository at ``url`` on GitHub, seen from the checkout ``repo``, whose refs and settings stay as they are.

    Raises ForgeError where the address or the token cannot be used.
    """

    def __init__(self, repo: Path, url: str, token: str, sleep: Callable[[float], None] = time.sleep) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ForgeError("the address of the repository must be one of http(s), without a user or a password")
        if not token or re.search(r"\s", token):
            raise ForgeError("there is no token to push with; give the job one of an app, see docs/refresh.md")
        self.repo = repo
        self.url = url
        self._place = f"{parts.scheme}://{parts.netloc}/"
        self._secret = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        self._token = token
        self._sleep = sleep

    def tips(self, *branches: str) -> dict[str, str]:
        """The commits of those of ``branches`` that are there. Raises ForgeError."""
        out = self._until_answered("ls-remote", "--quiet", self.url, *(HEADS + each for each in branches)).out
        lines = (line.split("\t", 1) for line in out.splitlines())
        found = {name.removeprefix(HEADS): commit for commit, name in lines}
        return {name: found[name] for name in branches if name in found}

    def fetch(self, *commits: str) -> None:
        """Have ``commits`` here, with their history, under no name. Raises ForgeError."""
        self._until_answered("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", self.url, *commits)

    def push(self, commit: str, branch: str, seen: str | None) -> bool:
        """Move ``branch`` from ``seen`` (None: it is not there) to ``commit``; False where it has moved meanwhile.

        Raises ForgeError.
        """
        ref = HEADS + branch
        words = ("push", "--porcelain", "--no-verify", f"--force-with-lease={ref}:{seen or ''}")
        for delay in (*DELAYS_S, None):
            answer = self._git(*words, self.url, f"{commit}:{ref}")
            now = self.tips(branch).get(branch)
            if now == commit:
                return True
            if now != seen:
                return False
            rejected = _REJECTED.search(answer.out)
            if rejected is not None and rejected[1] not in _MOVED:
                raise ForgeError(f"GitHub does not take a push to {branch}: {self._clean(rejected[1])}")
            if self._refused(answer):
                raise ForgeError(self._refusal(f"push to {branch}", answer))
            if delay is None:
                break
            self._sleep(delay)
        raise AwayError(self._away(f"push to {branch}", answer))

    def _until_answered(self, *words: str) -> Answer:
        for delay in (*DELAYS_S, None):
            answer = self._git(*words)
            if answer.code == 0:
                return answer
            if self._refused(answer):
                raise ForgeError(self._refusal(words[0], answer))
            if delay is not None:
                self._sleep(delay)
        raise AwayError(self._away(words[0], answer))

    def _git(self, *words: str) -> Answer:
        try:
            return try_git(self.repo, *words, settings=_SETTINGS, env=self._environment(), timeout_s=TRANSFER_TIMEOUT_S)
        except CheckoutError as error:
            raise ForgeError(self._clean(str(error))) from None

    def _environment(self) -> dict[str, str]:
        """The header with the token, after what the caller's own environment configures; others' headers are undone."""
        there = os.environ.get("GIT_CONFIG_COUNT", "")
        count = int(there) if there.isdecimal() else 0
        key = f"http.{self._place}.extraheader"
        settings: Sequence[tuple[str, str]] = ((key, ""), (key, f"Authorization: Basic {self._secret}"))
        pairs = {
            f"GIT_CONFIG_{word}_{count + number}": text
            for number, setting in enumerate(settings)
            for word, text in zip(("KEY", "VALUE"), setting, strict=True)
        }
        return {**pairs, "GIT_CONFIG_COUNT": str(count + len(settings)), "GIT_ASKPASS": "", "SSH_ASKPASS": ""}

    @staticmethod
    def _refused(answer: Answer) -> bool:
        return _REFUSED.search(answer.error) is not None

    def _refusal(self, what: str, answer: Answer) -> str:
        return (
            f"git {what}: GitHub refused: {self._clean(answer.last_word)}; the app's token needs contents: write for "
            "this repository"
        )

    def _away(self, what: str, answer: Answer) -> str:
        return (
            f"git {what}: GitHub did not take it after {len(DELAYS_S) + 1} attempts: {self._clean(answer.last_word)}; "
            "run the job again when GitHub is back: what was pushed so far is found again"
        )

    def _clean(self, text: str) -> str:
        return text.replace(self._token, "***").replace(self._secret, "***")
