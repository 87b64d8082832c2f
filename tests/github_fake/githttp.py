"""Git over HTTP by git's own server program, with tokens as passwords."""

import base64
import re
import subprocess
from email.message import Message
from pathlib import Path

from .git import ENVIRONMENT
from .state import Hub

_PATH = re.compile(r"/([\w.-]+/[\w.-]+?)(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack)")

Reply = tuple[int, dict[str, str], bytes]


def is_git(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def serve(hub: Hub, method: str, path: str, query: str, headers: Message, body: bytes) -> Reply:
    """Answer one request of a git client: reading needs contents: read, writing contents: write."""
    match = _PATH.fullmatch(path)
    assert match is not None
    full_name, service = match.groups()
    writing = "git-receive-pack" in (service, query.removeprefix("service="))
    secret = base64.b64decode(headers.get("Authorization", "").partition(" ")[2]).decode().partition(":")[2]
    repository, token = hub.repositories.get(full_name), hub.tokens.get(secret)
    if token is None or token.expired:
        return 401, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b"Invalid username or token."
    if repository is None or not repository.visible_to(token):
        return 404, {}, b"Repository not found."
    may = token.may("contents", "write" if writing else "read")
    if not may or (writing and not token.bot and not repository.at_least(token.login, "write")):
        return 403, {}, f"Permission to {full_name}.git denied to {token.login}.".encode()
    with hub.lock:
        repository.follow_heads()
    return _backend(repository.git.path, method, service, query, headers, body, token.login)


def _backend(
    repository: Path, method: str, service: str, query: str, headers: Message, body: bytes, login: str
) -> Reply:
    variables = {
        "GIT_PROJECT_ROOT": str(repository.parent),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": f"/{repository.name}/{service}",
        "REQUEST_METHOD": method,
        "QUERY_STRING": query,
        "CONTENT_TYPE": headers.get("Content-Type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_CONTENT_ENCODING": headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": headers.get("Git-Protocol", ""),
        "REMOTE_USER": login,
        "REMOTE_ADDR": "127.0.0.1",
    }
    done = subprocess.run(
        ("git", "http-backend"), env=ENVIRONMENT | variables, input=body, capture_output=True, timeout=60
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    answered = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    return int(answered.pop("Status", "200").split()[0]), answered, content
