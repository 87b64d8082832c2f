"""The server: one request in, validated, allowed, hit by a fault or not, and answered."""

import json
import socket
import struct
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from . import githttp, routes_actions, routes_checks, routes_issues, routes_pulls
from .call import ROUTES, Answer, Call, Refused, Route, allow
from .openapi import Description
from .records import Token
from .state import Hub

__all__ = ["FakeGitHub", "routes_actions", "routes_checks", "routes_issues", "routes_pulls"]

_description = cache(Description)
_LIMIT = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."


class FakeGitHub(Hub):
    """A GitHub on a loopback port, from ``with`` to the end of it. Git's own protocol and the storage of artifacts are
    in no description; every other request is held against GitHub's."""

    def __init__(self, folder: Path) -> None:
        self._servers = [_Server(self), _Server(self, storage=True)]
        super().__init__(folder, *(f"http://127.0.0.1:{server.server_port}" for server in self._servers))

    def __enter__(self) -> "FakeGitHub":
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if kind is None:  # else what is being raised is what has to be seen
            assert not self.violations, "requests that GitHub does not take:\n" + "\n".join(self.violations)

    def answer(self, method: str, target: str, authorization: str, raw: bytes) -> Answer:
        """Answer one request to the API, and do what it asks for."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        with self.lock:
            try:
                token = self._token(authorization)
                route, given = self._route(method, parts.path)
                body = _json(raw)
                self._check(route, given, query, body, bool(raw))
                call = Call(self, token, given, query, body, parts.path)
                allow(route, call)
                made = route.handler(call)
                return made if isinstance(made, Answer) else Answer(200, made)
            except Refused as refused:
                return refused.answer
            except Exception as error:  # the boundary of a request: the test is to hear of it, not a thread
                self.violations.append(f"the fake broke at {method} {parts.path}: {error!r}")
                return Answer(500, {"message": "Server Error"})

    def _route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for route in sorted(ROUTES, key=lambda one: -len(one.path)):
            if (given := route.match(method, path)) is not None:
                return route, {name: unquote(value) for name, value in given.items()}
        self.violations.append(f"{method} {path}: there is no such route")
        raise Refused(404, "Not Found")

    def _token(self, authorization: str) -> Token | None:
        if not authorization:
            return None
        token = self.tokens.get(authorization.partition(" ")[2])
        if token is None or token.expired:
            raise Refused(401, "Bad credentials")
        return token

    def _check(self, route: Route, given: dict[str, str], query: dict[str, str], body: Any, has_body: bool) -> None:
        found = _description().violations(route.method, route.path, given, query, body, has_body)
        if found:
            self.violations += [f"{route.method} {route.path}: {one}" for one in found]
            raise Refused(422, "Invalid request.\n\n" + "\n".join(found))

    def stored(self, path: str, headers: Any) -> Answer:
        """What the storage answers: the zip to anyone who has the address, and a refusal to one who sends a token."""
        number = path.removeprefix("/artifacts/").partition(".")[0]
        if "Authorization" in headers:
            self.violations.append(f"GET {path}: a token was sent to the storage, which is another host")
            return Answer(400, b"<Error><Code>InvalidAuthenticationInfo</Code></Error>")
        runs = [run for repository in self.repositories.values() for run in repository.runs.values()]
        content = next(one.content for run in runs for one in run.artifacts if str(one.id) == number)
        return Answer(200, content, {"Content-Type": "application/zip"})


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else {}
    except ValueError:
        raise Refused(400, "Problems parsing JSON") from None


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, hub: FakeGitHub, storage: bool = False) -> None:
        self.hub, self.storage = hub, storage
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *arguments: Any) -> None:
        """The hub keeps its own log."""

    def _serve(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        body = self._body()
        if not self.server.storage and githttp.is_git(path):
            self._send(*githttp.serve(hub, self.command, path, urlsplit(self.path).query, self.headers, body))
            return
        fault, answer = hub.faults.pick(self.command, path), None
        if fault is None or fault.endswith("-after"):
            answer = self._answer(path, body)
        if fault is not None:
            answer = _faulty(fault, hub.faults.retry_after_s, hub.faults.reset_after_s)
        hub.requests.append((self.command, path, answer.status if answer else 0))
        if answer is None:
            self._reset()
        elif isinstance(answer.body, bytes):
            self._send(answer.status, answer.headers, answer.body)
        else:
            kind = {"Content-Type": "application/json; charset=utf-8"}
            text = b"" if answer.body is None else json.dumps(answer.body).encode()
            self._send(answer.status, kind | answer.headers, text)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815  # the names are http.server's

    def _answer(self, path: str, body: bytes) -> Answer:
        if self.server.storage:
            return self.server.hub.stored(path, self.headers)
        return self.server.hub.answer(self.command, self.path, self.headers.get("Authorization", ""), body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


def _faulty(kind: str, retry_after_s: float, reset_after_s: float) -> Answer | None:
    """The answer of a fault, None for a connection that is reset."""
    if kind.startswith("reset"):
        return None
    if kind == "404-once":
        return Refused(404, "Not Found").answer
    if kind.startswith("secondary"):
        headers = {"Retry-After": str(retry_after_s)}
        return Refused(int(kind[-3:]), _LIMIT, headers=headers).answer
    if kind == "primary-403":
        reset = str(int(time.time() + reset_after_s))
        headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
        return Refused(403, "API rate limit exceeded for installation.", headers=headers).answer
    if kind.startswith("moved"):
        return Answer(int(kind[-3:]), {"message": "Moved Permanently"}, {"Location": "/repositories/5"})
    return Answer(int(kind[:3]), b"<html><body>Unicorn!</body></html>", {"Content-Type": "text/html"})
