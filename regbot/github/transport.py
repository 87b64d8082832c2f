"""Send requests to GitHub's REST API, and repeat failed requests if repeating them is safe.

A reply can be lost after GitHub has executed the request. A request that creates an object is repeated only after a
lookup has shown that the object does not exist. From PyGithub, regbot uses only the requester. Its retries are off,
because they repeat a POST, and its objects are not used, because reading their attributes can send requests.
"""

import http.client
import itertools
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from github import Auth, Github, GithubException
from regbot import __version__
from regbot.errors import UserError
from regbot.records.text.clip import clip
from regbot.records.text.printable import printable

API_VERSION = "2022-11-28"
TIMEOUT_S = 30
FIRST_DELAY_S = 1.0
"""Seconds to wait after the first failed attempt. The delay doubles with every further failure."""
MAX_DELAY_S = 60.0
"""Largest number of seconds between two attempts, if GitHub names no time."""
PATIENCE_S = 300.0
"""Total seconds that a job waits for GitHub. A waiting job keeps a machine busy. If GitHub asks for a longer wait, for
example because the request quota is used up, the job ends and says when to run it again."""
RATE_LIMIT_DELAY_S = 60.0
"""Seconds to wait after a rate limit if GitHub names no time."""
MAX_LOOKUPS = 2
"""Number of lookups for a created object after a lost reply, before the object is requested again. Several lookups are
needed because GitHub may list a new object some seconds late."""
PER_PAGE = 100
MESSAGE_CHARACTERS = 500

T = TypeVar("T")


class ForgeError(UserError):
    """A request to GitHub failed. The message names the request, the reason and what to do."""


class RefusedError(ForgeError):
    """GitHub refused a request because of the token, a permission, a missing object, or an invalid request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class MissingError(RefusedError):
    """GitHub does not know the object, has deleted it, or cannot apply the request to it."""


class TooLargeError(ForgeError):
    """A file is larger than its limit."""


class AwayError(ForgeError):
    """GitHub did not answer within the allowed wait. The same command may succeed later."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class ApiResponse:
    data: Any
    """The JSON of the response; None if it is empty."""
    links: str = ""
    """For a list: the header with the links to other pages."""
    location: str = ""
    """URL of a redirect; '' if the response is no redirect."""


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]
    more: bool
    """Whether another page follows."""
    last_page: int
    """Number of the last page; 1 if GitHub names none."""


class FailedAttempt(Exception):
    """A request has no usable response, and may be repeated. ``wait_s`` are the seconds that GitHub asks the client to
    wait; None if GitHub names no time."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Transport:
    """Sends requests with one token. Paths begin at ``root``. ``patience_s`` is the total number of seconds to wait
    after failed attempts.

    The arguments ``read`` convert JSON of GitHub. ForgeError is raised if the JSON lacks a field.
    """

    def __init__(self, token: str, url: str, root: str, sleep: Callable[[float], None], patience_s: float) -> None:
        self.url, self._root = url.rstrip("/"), root
        self._token = token
        self._sleep = sleep
        self._remaining_s = patience_s
        self._patience_s = patience_s
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

    def get(self, path: str, read: Callable[[Any], T], **query: object) -> T:
        """Return the object at ``path``. Raises ForgeError."""
        return _convert(read, self._get(path, query).data)

    def pages(self, path: str, read: Callable[[Any], T], key: str = "", **query: object) -> list[T]:
        """Return the items of a list from all its pages, as ``page`` returns those of one. Raises ForgeError."""
        items: list[T] = []
        for number in itertools.count(1):
            page = self.page(path, read, key, number, **query)
            items += page.items
            if not page.more:
                break
        return items

    def page(self, path: str, read: Callable[[Any], T], key: str = "", number: int = 1, **query: object) -> Page[T]:
        """Return one page of a list. The first page has the number 1. ``key`` is the name of the field with the list if
        GitHub puts the list into an object; otherwise ''. Raises ForgeError."""
        answer = self._get(path, {**query, "per_page": PER_PAGE, "page": number})
        items = _convert(lambda data: [read(item) for item in (data[key] if key else data)], answer.data)
        last = re.search(r'[?&]page=([0-9]{1,9})[^<>]*>; rel="last"', answer.links)
        return Page(items, more='rel="next"' in answer.links, last_page=int(last[1]) if last else 1)

    def change(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request until GitHub answers it. The request must have no further effect when it is repeated. Raises
        ForgeError."""
        self._repeat(f"{verb} {path}", lambda: self._attempt(verb, path, {}, body))

    def create(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        find_created: Callable[[], T | None],
        max_lookups: int = MAX_LOOKUPS,
    ) -> T:
        """Create an object once and return it. Raises ForgeError.

        ``read`` converts the JSON of the created object. After a lost reply, ``find_created`` looks for the object that
        the request may have created, and returns None if it does not exist. The request is sent again after
        ``max_lookups`` lookups without success.
        """
        failures = 0
        while True:
            try:
                return _convert(read, self._attempt("POST", path, {}, body).data)
            except FailedAttempt as failure:  # noqa: PERF203 (it is rare)
                # If GitHub names a time to wait, wait for this time and look once.
                for _ in range(1 if failure.wait_s else max_lookups):
                    failures += 1  # a lookup without success lengthens the next wait, as a failure does
                    self._wait(failure, failures, f"POST {path}")
                    created = find_created()
                    if created is not None:
                        return created

    def download(self, path: str, limit: int) -> bytes:
        """Return the content of a file of at most ``limit`` bytes. GitHub redirects the request to another host, which
        has the file. Raises TooLargeError, ForgeError."""
        return self._repeat(f"GET {path}", lambda: self._fetch(self._get(path, {}).location, limit))

    def _get(self, path: str, query: Mapping[str, object]) -> ApiResponse:
        """Send a GET until GitHub answers it. The status 404 is believed only if it comes twice, because GitHub may not
        know a new object yet. Raises ForgeError."""
        request = f"GET {path}"
        try:
            return self._repeat(request, lambda: self._attempt("GET", path, query, None))
        except MissingError as error:
            if error.status != 404:
                raise
        self._wait(FailedAttempt("does not know the object yet"), 1, request)
        return self._repeat(request, lambda: self._attempt("GET", path, query, None))

    def _repeat(self, request: str, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it does not fail. Raises ForgeError."""
        failures = 0
        while True:
            try:
                return attempt()
            except FailedAttempt as failure:  # noqa: PERF203 (it is rare)
                failures += 1
                self._wait(failure, failures, request)

    def _attempt(
        self, verb: str, path: str, query: Mapping[str, object], body: Mapping[str, Any] | None
    ) -> ApiResponse:
        """Send one request. Raises FailedAttempt after a lost connection, an error of GitHub or a rate limit, since
        another attempt may succeed. Raises RefusedError if GitHub refuses the request.

        A redirect of a GET is a response with a ``location``. A redirect of another request is refused.
        """
        parameters = {key: str(value) for key, value in query.items()}
        accept_header = {"Accept": "application/vnd.github+json"}
        try:
            status, headers, text = self._requester.requestJson(
                verb, self._root + path, parameters, accept_header, body
            )
        except (OSError, GithubException) as error:  # the errors of the library ``requests`` are OSErrors
            raise FailedAttempt(f"the connection failed ({type(error).__name__})") from None
        except RuntimeError as error:  # PyGithub refuses to follow a redirect to another host or protocol
            raise ForgeError(f"{verb} {path}: {self._clean(str(error))}") from None
        if status in (301, 302, 307, 308):
            if verb != "GET":
                raise RefusedError(f"{verb} {path}: {_MOVED_REASON} ({status})", status)
            return ApiResponse(None, location=headers.get("location", ""))
        if status < 300:
            try:
                data = json.loads(text) if text else None
            except ValueError:
                raise FailedAttempt(f"answered {status} with something that is not JSON") from None
            return ApiResponse(data, links=headers.get("link", ""))
        message = self._quote_message(text)
        if status in (408, 429) or status >= 500:
            default_wait_s = RATE_LIMIT_DELAY_S if status == 429 else None
            raise FailedAttempt(f"answered {status}{message}", read_requested_wait(headers, default_wait_s))
        if status == 403 and (wait_s := read_rate_limit_wait(headers, message)) is not None:
            raise FailedAttempt(f"answered 403{message}", wait_s)
        reason = _REFUSALS.get(status, f"GitHub refused ({status})")
        error_type = MissingError if status in _MISSING_STATUSES else RefusedError
        raise error_type(f"{verb} {path}: {reason}{_describe_permission(headers)}{message}", status)

    def _fetch(self, location: str, limit: int) -> bytes:
        """Return the file of at most ``limit`` bytes at the URL ``location``, which GitHub named. The token is not sent
        to this host. Raises TooLargeError, ForgeError, FailedAttempt."""
        url = urllib.parse.urljoin(self.url, location)
        if not location or urllib.parse.urlsplit(url).scheme not in ("https", urllib.parse.urlsplit(self.url).scheme):
            raise ForgeError("the file was not fetched, because GitHub names no URL that begins with https")
        request = urllib.request.Request(url, headers={"User-Agent": f"regbot/{__version__}"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                length = reply.headers.get("Content-Length", "")
                data: bytes = reply.read(limit + 1)  # one more byte shows that the file is too large
        except (OSError, ValueError, http.client.HTTPException) as error:
            # The text of the error is left out, because it may contain the URL, which is a secret.
            raise FailedAttempt(f"the file could not be fetched ({type(error).__name__})") from None
        if len(data) > limit:
            raise TooLargeError(f"the file has more than the {limit:,} bytes that are read")
        if length.isdecimal() and len(data) < int(length):
            raise FailedAttempt("the file was cut off")
        return data

    def _wait(self, failure: FailedAttempt, failure_count: int, request: str) -> None:
        """Sleep before the next attempt. Raises AwayError if the allowed total wait would be exceeded.

        ``failure_count`` counts the failed attempts, this one included. ``request`` names the request in the error.
        """
        doubled_delay_s = min(FIRST_DELAY_S * 2 ** (failure_count - 1), MAX_DELAY_S)
        delay_s = max(doubled_delay_s, failure.wait_s or 0.0)
        if delay_s > self._remaining_s:
            wait_text, retry_text = "", "when GitHub answers"
            if failure.wait_s:
                wait_text = f", which asks to wait {failure.wait_s:.0f} s"
                end = datetime.now(UTC) + timedelta(seconds=failure.wait_s + 59)
                retry_text = f"after {end:%Y-%m-%d %H:%M} UTC"
            raise AwayError(
                f"{request}: GitHub ({self.url}) {failure}{wait_text}",
                f"a job waits at most {self._patience_s / 60:.0f} minutes in all. Run this job again {retry_text}: it "
                "completes the work, and posts nothing twice",
            )
        self._remaining_s -= delay_s
        self._sleep(delay_s)

    def _quote_message(self, text: str) -> str:
        """Return GitHub's message on a refusal as one line that begins with a colon; '' if ``text``, the body of the
        response, has no message."""
        try:
            data = json.loads(text)
            message, errors = data["message"], data.get("errors") or ""
            return f": {self._clean(f'{message} {errors}')}"
        except (ValueError, KeyError, AttributeError):
            return ""

    def _clean(self, text: str) -> str:
        text = text.replace(self._token, "***") if self._token else text
        return clip(printable(" ".join(text.split())), MESSAGE_CHARACTERS)


def _convert(read: Callable[[Any], T], data: Any) -> T:
    """Return ``read(data)``. Raises ForgeError if GitHub's answer lacks a field or has an unexpected form."""
    try:
        return read(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForgeError(clip(f"GitHub's answer cannot be read ({type(error).__name__}: {error})", 300)) from error


_MOVED_REASON = (
    "nothing was written, because GitHub redirects the request; the repository may have been renamed or moved"
)
_MISSING_STATUSES = (404, 410, 422)
_REFUSALS = {
    401: "GitHub does not accept the token: it has expired or was revoked. Run the job again to get a new one. For "
    "the token of an app, check that the app is still installed and its key still valid",
    403: "the token may not do this; give the job the permission in its workflow file",
    404: "this object does not exist, or the token may not read it",
    422: "GitHub cannot process the request",
}


def read_rate_limit_wait(headers: Mapping[str, str], message: str) -> float | None:
    """Return the seconds to wait if a response with status 403 reports a rate limit; None if the response refuses the
    request."""
    if "retry-after" in headers or "rate limit" in message.lower() or headers.get("x-ratelimit-remaining") == "0":
        return read_requested_wait(headers, RATE_LIMIT_DELAY_S)
    return None


def read_requested_wait(headers: Mapping[str, str], default_s: float | None) -> float | None:
    """Return the seconds to wait that the headers of a response name; ``default_s`` if they name none.

    GitHub names either the seconds, or the Unix time at which a used-up quota is reset.
    """
    retry_after, reset_time = headers.get("retry-after", ""), headers.get("x-ratelimit-reset", "")
    if retry_after.isdecimal():
        return float(retry_after)
    if headers.get("x-ratelimit-remaining") == "0" and reset_time.isdecimal():
        return max(0.0, int(reset_time) - time.time()) + 1
    return default_s


def _describe_permission(headers: Mapping[str, str]) -> str:
    """Return a phrase for a message with the permission that GitHub requires, such as ``checks=write``; '' if
    unknown."""
    needed = clip(printable(headers.get("x-accepted-github-permissions", "")), 100)
    return f" (it needs {needed})" if needed else ""
