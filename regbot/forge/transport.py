"""Requests to GitHub's REST API that survive a bad day: repeated where that is safe, and never where it is not.

A reply can be lost after GitHub has done what was asked. Reading, and setting something to a state, is simply repeated;
creating something is repeated only after looking that it is not there. How long GitHub asks to wait is how long is
waited, by a clock that tests replace. Retries of PyGithub are off: they repeat a POST, and sleep by themselves.
"""

import http.client
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from github import Auth, Github, GithubException

from regbot import __version__
from regbot.text import printable

API_VERSION = "2022-11-28"
TIMEOUT_S = 30
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
LIMITED_DELAY_S = 60.0
"""Where GitHub says that it was asked too often, and not how long to wait."""
BETWEEN_WRITES_S = 1.0
"""GitHub's own advice to whoever changes things in a row."""
LOOKS = 2
"""At whether something was created after all, before it is asked for again: GitHub's lists can be seconds behind."""
PER_PAGE = 100
MESSAGE_CHARACTERS = 500

T = TypeVar("T")


class ForgeError(Exception):
    """GitHub could not be used. The message says for what, why, and what to do."""


class RefusedError(ForgeError):
    """GitHub answered no: the token, a permission, a thing that is not there, or a request that it cannot follow."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TooLargeError(ForgeError):
    """A file has more bytes than were to be read."""


class AwayError(ForgeError):
    """GitHub did not answer, for as long as it was to be waited for."""


@dataclass(frozen=True)
class Answer:
    """What GitHub said. ``more``: there is another page."""

    data: Any
    more: bool = False
    location: str = ""


@dataclass(frozen=True)
class Setback:
    """No usable answer: why, and the seconds that GitHub asks to wait, None where it does not say."""

    why: str
    wait_s: float | None = None


class Transport:
    """Requests with one token. ``patience_s``: seconds that may be waited, in all."""

    def __init__(self, token: str, url: str, sleep: Callable[[float], None], patience_s: float) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._sleep = sleep
        self._left_s = patience_s
        self._patience_s = patience_s
        self._wrote_s: float | None = None
        self._requester = Github(
            auth=Auth.Token(token) if token else None,
            base_url=self.url,
            timeout=TIMEOUT_S,
            user_agent=f"regbot/{__version__}",
            retry=None,
            seconds_between_requests=0,
            seconds_between_writes=0,
            api_version=API_VERSION,
        ).requester

    def get(self, path: str, parameters: Mapping[str, object] | None = None) -> Any:
        """What is at ``path``. Raises ForgeError."""
        return self._until_answered("GET", path, parameters).data

    def pages(self, path: str, parameters: Mapping[str, object] | None = None, key: str = "") -> Iterator[Any]:
        """Every item of a list, page by page; ``key`` where the list stands inside of an object. Raises ForgeError."""
        page = 1
        while True:
            asked = {**(parameters or {}), "per_page": PER_PAGE, "page": page}
            answer = self._until_answered("GET", path, asked)
            yield from answer.data[key] if key else answer.data
            if not answer.more:
                return
            page += 1

    def change(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """PATCH, PUT, DELETE, or a POST that changes nothing the second time: repeated until answered."""
        return self._until_answered(verb, path, body=body).data

    def create(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        happened: Callable[[], T | None],
        verb: str = "POST",
        looks: int = LOOKS,
    ) -> T:
        """What a request creates, once. ``happened`` looks for it where that is not known. Raises ForgeError."""
        setbacks = 0
        while True:
            outcome = self._attempt(verb, path, None, body)
            if isinstance(outcome, Answer):
                return read(outcome.data)
            for _ in range(1 if outcome.wait_s else looks):
                setbacks += 1
                self._wait(outcome, setbacks, f"{verb} {path}")
                if (found := happened()) is not None:
                    return found

    def download(self, path: str, limit: int) -> bytes:
        """A file, at most ``limit`` bytes of it. Raises TooLargeError, ForgeError."""
        setbacks = 0
        while True:
            place = self._until_answered("GET", path).location
            if not place:
                raise ForgeError(f"GET {path}: GitHub does not say where the file is")
            outcome = self._fetch(urllib.parse.urljoin(self.url, place), limit)
            if isinstance(outcome, bytes):
                if len(outcome) > limit:
                    raise TooLargeError(f"GET {path}: has more than the {limit:,} bytes that are read")
                return outcome
            setbacks += 1
            self._wait(outcome, setbacks, f"GET {path}")

    def _until_answered(
        self,
        verb: str,
        path: str,
        parameters: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        setbacks, lagging = 0, verb == "GET"
        while True:
            try:
                outcome = self._attempt(verb, path, parameters, body)
            except RefusedError as error:
                if error.status != 404 or not lagging:
                    raise
                lagging, outcome = False, Setback("does not know it yet")  # what was just made may be missing once
            if isinstance(outcome, Answer):
                return outcome
            setbacks += 1
            self._wait(outcome, setbacks, f"{verb} {path}")

    def _attempt(
        self, verb: str, path: str, parameters: Mapping[str, object] | None, body: Mapping[str, Any] | None
    ) -> Answer | Setback:
        """One request. Raises RefusedError where GitHub's answer is no."""
        self._pace(verb)
        asked = {key: str(value) for key, value in (parameters or {}).items()}
        accept = {"Accept": "application/vnd.github+json"}
        try:
            status, headers, text = self._requester.requestJson(verb, path, asked, accept, body)
        except (OSError, GithubException) as error:  # what requests raises is an OSError
            return Setback(f"the connection failed ({type(error).__name__})")
        except RuntimeError as error:
            raise ForgeError(f"{verb} {path}: {self._clean(str(error))}") from None
        if status in (301, 302, 307, 308):
            if verb != "GET":
                raise RefusedError(f"{verb} {path}: {_MOVED} ({status})", status)
            return Answer(None, location=headers.get("location", ""))
        if status < 300:
            try:
                data = json.loads(text) if text else None
            except ValueError:
                return Setback(f"answered {status} with something that is not JSON")
            return Answer(data, more='rel="next"' in headers.get("link", ""))
        said = self._said(text)
        if status in (408, 429) or status >= 500:
            return Setback(
                f"answered {status}{said}", _asked_to_wait(headers, LIMITED_DELAY_S if status == 429 else None)
            )
        if status == 403 and (limited := _limited(headers, said)) is not None:
            return Setback(f"answered 403{said}", limited)
        why = _REFUSALS.get(status, f"GitHub refused ({status})")
        raise RefusedError(f"{verb} {path}: {why}{_needs(headers)}{said}", status)

    def _fetch(self, url: str, limit: int) -> bytes | Setback:
        """A file from where GitHub says that it is: another host, which is not told the token."""
        scheme = urllib.parse.urlsplit(url).scheme
        if scheme != "https" and scheme != urllib.parse.urlsplit(self.url).scheme:
            raise ForgeError("GitHub keeps the file where it cannot be read safely: not over https")
        request = urllib.request.Request(url, headers={"User-Agent": f"regbot/{__version__}"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                length = reply.headers.get("Content-Length", "")
                if length.isdecimal() and int(length) > limit:
                    raise TooLargeError(f"the file has {int(length):,} bytes, more than the {limit:,} that are read")
                data: bytes = reply.read(limit + 1)
        except (
            OSError,
            ValueError,
            http.client.HTTPException,
        ) as error:  # not their text: the address is a secret of its own
            return Setback(f"the file could not be fetched ({type(error).__name__})")
        if length.isdecimal() and len(data) < int(length):
            return Setback("the file was cut off")
        return data

    def _wait(self, setback: Setback, setbacks: int, what: str) -> None:
        """Sleep before the next attempt. Raises AwayError where that would be beyond all patience."""
        delay = min(FIRST_DELAY_S * 2 ** (setbacks - 1), LONGEST_DELAY_S)
        delay = max(delay, setback.wait_s or 0.0)
        if delay > self._left_s:
            asks = f", which asks to wait {setback.wait_s:.0f} s" if setback.wait_s else ""
            raise AwayError(
                f"{what}: GitHub ({self.url}) {setback.why}{asks}; it was waited for as long as was allowed "
                f"({self._patience_s / 60:.0f} minutes in all). Run this job again when GitHub is back: what was "
                "posted so far is found again, and nothing is posted twice"
            )
        self._left_s -= delay
        self._sleep(delay)

    def _pace(self, verb: str) -> None:
        if verb == "GET":
            return
        now = time.monotonic()
        if self._wrote_s is not None and (early := self._wrote_s + BETWEEN_WRITES_S - now) > 0:
            self._sleep(early)
        self._wrote_s = time.monotonic()

    def _said(self, text: str) -> str:
        """GitHub's own words on a refusal, on one line."""
        try:
            data = json.loads(text)
            told = [str(data["message"]), *map(_told, data.get("errors") or [])]
        except (ValueError, KeyError, TypeError, AttributeError):
            return ""
        return f": {self._clean('; '.join(each for each in told if each))}"

    def _clean(self, text: str) -> str:
        text = text.replace(self._token, "***") if self._token else text
        return printable(" ".join(text.split()))[:MESSAGE_CHARACTERS]


def _told(error: Any) -> str:
    """One of GitHub's errors: an object, or just words."""
    return str(error.get("message") or error.get("code") or "") if isinstance(error, dict) else str(error)


_MOVED = (
    "nothing was written, because GitHub says that it is elsewhere now; the repository may have been renamed or moved"
)
_REFUSALS = {
    401: "GitHub does not accept the token: it has expired or was revoked. Run the job again, which gives it a new "
    "one; where it is the token of an app, check that the app is still installed and its key still valid",
    403: "the token may not do this; give the job the permission in its workflow file",
    404: "there is no such thing, or the token may not see it",
    422: "GitHub cannot follow the request",
}


def _limited(headers: Mapping[str, str], said: str) -> float | None:
    """Seconds to wait where a 403 says that GitHub was asked too often; None where it says no."""
    if "retry-after" in headers or "rate limit" in said.lower() or headers.get("x-ratelimit-remaining") == "0":
        return _asked_to_wait(headers, LIMITED_DELAY_S)
    return None


def _asked_to_wait(headers: Mapping[str, str], otherwise: float | None) -> float | None:
    after, reset = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if after.isdecimal():
        return float(after)
    if headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return max(0.0, int(reset) - time.time()) + 1
    return otherwise


def _needs(headers: Mapping[str, str]) -> str:
    """What GitHub says that the request needs: ``checks=write``."""
    needed = printable(headers.get("x-accepted-github-permissions", ""))[:100]
    return f" (it needs {needed})" if needed else ""
