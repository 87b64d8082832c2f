"""A refused request never counts as done, and GitHub's message is shown."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from regbot.github.client import Forge, ForgeError


class Answering(BaseHTTPRequestHandler):
    """Refuses every write with the status and message of its server."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, message = self.server.refusal  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Location", "/repositories/5")
        self.send_header("Content-Length", str(len(message)))
        self.end_headers()
        self.wfile.write(message)

    do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  # the names are http.server's

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def refusing(status: int, message: object) -> Iterator[Forge]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        server.refusal = status, json.dumps(message).encode()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Forge("token", "acme/moe", f"http://127.0.0.1:{server.server_port}", lambda _: None, patience_s=0)
        server.shutdown()


WRITES: dict[str, Callable[[Forge], object]] = {
    "dispatch": lambda forge: forge.dispatch("m.yml", "main", {"nonce": "0" * 16}),
    "edit": lambda forge: forge.edit_comment(5, "x"),
    "label": lambda forge: forge.remove_label(5, "x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("status", [302, 307, 308])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_a_renamed_repository_is_an_error(name: str, status: int) -> None:
    with refusing(status, {"message": "Moved Permanently"}) as forge, pytest.raises(ForgeError, match="been renamed"):
        WRITES[name](forge)
