"""One request as a route sees it, and the table of routes with the permission that each needs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from .records import Token
from .state import Hub, Repository

_FOR_WRITERS = {"actions:write", "contents:write"}  # what a person needs a role for, besides the token's permission
BODY_LIMIT = 65_536  # characters of a comment or a pull request's text


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = None  # JSON, or bytes as they are
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The answer is an error."""

    def __init__(
        self, status: int, message: str, *errors: dict[str, str], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        body = {"message": message, "documentation_url": "https://docs.github.com/rest", "status": str(status)}
        self.answer = Answer(status, body | ({"errors": list(errors)} if errors else {}), headers or {})


@dataclass(frozen=True)
class Call:
    hub: Hub
    token: Token | None
    path: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any]
    target: str  # the path as it was asked for

    @property
    def login(self) -> str:
        assert self.token is not None  # routes that write are refused without one
        return self.token.login

    @property
    def repo(self) -> Repository:
        """The repository of the path; what the token may not see does not exist."""
        found = self.hub.repositories.get(f"{self.path['owner']}/{self.path['repo']}")
        if found is None or not found.visible_to(self.token):
            raise Refused(404, "Not Found")
        return found

    def found(self, name: str, known: Mapping[int, Any]) -> Any:
        """The object whose number is the parameter ``name`` of the path."""
        if int(self.path[name]) not in known:
            raise Refused(404, "Not Found")
        return known[int(self.path[name])]

    def page(self, items: Sequence[Any], shape: Callable[[Any], Any], under: str | None = None) -> Answer:
        """One page of ``items``, with a Link header to the others; ``under`` names the list where GitHub wraps it."""
        size = min(int(self.query.get("per_page", 30)), 100)
        number, last = int(self.query.get("page", 1)), max(1, -(-len(items) // size))
        shown = [shape(item) for item in items[(number - 1) * size : number * size]]
        links = [
            f'<{self.hub.server_url}{self.target}?{urlencode(self.query | {"page": str(page)})}>; rel="{name}"'
            for name, page in {"next": number + 1, "last": last}.items()
            if number < page <= last
        ]
        body = {"total_count": len(items), under: shown} if under else shown
        return Answer(200, body, {"Link": ", ".join(links)} if links else {})


@dataclass(frozen=True)
class Route:
    method: str
    path: str  # as GitHub's description has it
    access: tuple[str, ...]  # "permission:level", one of them is enough
    handler: Callable[[Call], Any]  # gives an Answer, or the body of a 200

    def match(self, method: str, path: str) -> dict[str, str] | None:
        found = _patterns[self.path].fullmatch(path) if method == self.method else None
        return found.groupdict() if found else None


ROUTES: list[Route] = []
_patterns: dict[str, re.Pattern[str]] = {}
_LONG = ("ref", "path", "basehead")  # parameters that hold slashes


def route(method: str, path: str, *access: str) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Register a handler. ``access`` is what GitHub's "Permissions required for GitHub Apps" lists for the endpoint."""
    parts = re.split(r"\{(\w+)\}", path)
    names = [f"(?P<{name}>{'.+' if name in _LONG else '[^/]+'})" for name in parts[1::2]]
    _patterns[path] = re.compile("".join(a + b for a, b in zip(map(re.escape, parts[::2]), [*names, ""], strict=True)))

    def register(handler: Callable[[Call], Any]) -> Callable[[Call], Any]:
        ROUTES.append(Route(method, path, access, handler))
        return handler

    return register


def allow(route: Route, call: Call) -> None:
    """Refuse a token that lacks what the route needs."""
    token, repository = call.token, call.repo
    if token is None:
        raise Refused(401, "Requires authentication")
    if not any(token.may(*one.split(":")) for one in route.access):
        needed = "; ".join(one.replace(":", "=") for one in route.access)
        raise Refused(403, "Resource not accessible by integration", headers={"X-Accepted-GitHub-Permissions": needed})
    if not token.bot and _FOR_WRITERS & set(route.access) and not repository.at_least(token.login, "write"):
        raise Refused(403, "Must have write access to Repository.")


def invalid(resource: str, field: str, message: str, code: str = "custom") -> Refused:
    """GitHub's 422 for a value that it does not take."""
    return Refused(422, "Validation Failed", {"resource": resource, "field": field, "code": code, "message": message})
