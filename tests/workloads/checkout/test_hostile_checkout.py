"""Commits that try to make git run, read or write something outside of the worktree.

The repositories are real, and the machine's git configuration is as lenient as possible.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regbot.workloads.checkout.building import Build, BuildError
from regbot.workloads.checkout.clones import address_of, list_addresses
from regbot.workloads.checkout.git import CheckoutError
from regbot.workloads.checkout.worktrees import Worktree, check_out
from support.git_repos import Repository

ORIGIN = "https://git.example/acme/moe.git"


@dataclass
class Victim:
    """A machine with a repository that attackers write to. The file ``ran`` exists once their code has run."""

    folder: Path
    repo: Repository
    secret: Repository
    commit: str

    @property
    def ran(self) -> Path:
        return self.folder / "ran"

    def configure(self, text: str) -> None:
        (self.folder / "gitconfig").write_text(text)

    def blob(self, text: str) -> str:
        return self._object("blob", text.encode())

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Write a tree object without git's checks, which would refuse some of these trees."""
        return self._object(
            "tree", b"".join(f"{m} {name}".encode() + b"\0" + bytes.fromhex(s) for m, name, s in entries)
        )

    def _object(self, kind: str, data: bytes) -> str:
        words = ["git", "hash-object", "-w", "-t", kind, "--literally", "--stdin"]
        return (
            subprocess.run(words, cwd=self.repo.path, input=data, capture_output=True, check=True)
            .stdout.decode()
            .strip()
        )

    def with_submodule(self, url: str, path: str = "x", name: str = "x", more: str = "", commit: str = "") -> str:
        """Create a commit with a submodule that points to ``commit``; by default that of ``secret``."""
        text = f'[submodule "{name}"]\n\tpath = {path}\n\turl = {url}\n{more}'
        return self.with_gitmodules(text, path, commit)

    def with_gitmodules(self, text: str, path: str = "x", commit: str = "") -> str:
        entries = [("100644", ".gitmodules", self.blob(text)), ("160000", path, commit or self.commit)]
        tree = self.tree(*sorted(entries, key=lambda entry: entry[1]))
        return self.repo.git("commit-tree", tree, "-m", "a submodule")

    def check_out(self, commit: str, hosts: Sequence[str] | None = ()) -> Worktree:
        """Check ``commit`` out as a check of untrusted code does."""
        return check_out(self.repo.path, commit, self.folder / "cache", Build([], sys.executable, 30.0), hosts=hosts)


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Victim:
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    secret = Repository.create(tmp_path / "secret")
    commit = secret.commit("a secret", {"secret.txt": "of this machine\n"})
    repo = Repository.create(tmp_path / "repo")
    repo.commit("first", {"moe.py": "x = 1\n"})
    repo.git("remote", "add", "origin", ORIGIN)
    return Victim(tmp_path, repo, secret, commit)


LENIENT = '[protocol]\n\tallow = always\n[protocol "file"]\n\tallow = always\n[protocol "ext"]\n\tallow = always\n'


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [None, ()])
@pytest.mark.parametrize(
    "url",
    ["file://{secret}", "{secret}", '"ext::sh -c touch% {ran}"', "fd::17", "--upload-pack=touch {ran}", "-u{ran}"],
)
def test_a_submodule_neither_reads_this_machine_nor_runs_a_command(
    victim: Victim, url: str, hosts: Sequence[str] | None
) -> None:
    victim.configure(LENIENT)
    submodule_url = url.format(secret=victim.secret.path, ran=victim.ran)
    commit = victim.with_submodule(submodule_url, more=f"\tupdate = !touch {victim.ran}\n")
    with pytest.raises(CheckoutError, match="cannot be fetched"):
        victim.check_out(commit, hosts)
    assert not victim.ran.exists()
    assert not list((victim.folder / "cache").rglob("secret.txt"))


@pytest.mark.parametrize("name", ["../../../secret", "{secret}", "a/../../../../secret"])
def test_a_submodule_name_cannot_point_to_another_repository(victim: Victim, name: str) -> None:
    commit = victim.with_submodule(f"{ORIGIN}/x", name=name.format(secret=victim.secret.path / ".git"))
    git_dir = victim.repo.path / ".git" / "modules"
    git_dir.mkdir()
    with pytest.raises(CheckoutError, match="cannot be fetched"):
        victim.check_out(commit, None)


@dataclass
class Service:
    """A server in the machine's network that closes every connection and counts them."""

    port: int
    calls: int = 0


@pytest.fixture
def service() -> Iterator[Service]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        service_state = Service(server.getsockname()[1])

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    service_state.calls += 1

        threading.Thread(target=answer, daemon=True).start()
        yield service_state
        server.shutdown(socket.SHUT_RDWR)


def test_untrusted_code_does_not_choose_which_hosts_are_contacted(victim: Victim, service: Service) -> None:
    with pytest.raises(CheckoutError, match=r"is not on the repository's own host .* sandbox\.submodule_hosts"):
        victim.check_out(victim.with_submodule(f"git://127.0.0.1:{service.port}/x"))
    assert not service.calls


@pytest.mark.parametrize(
    ("origin", "hosts"), [(ORIGIN, ["git://127.0.0.1:{port}"]), ("git://127.0.0.1:{port}/acme/moe", [])]
)
def test_the_address_of_the_repository_and_listed_addresses_are_contacted(
    victim: Victim, service: Service, origin: str, hosts: list[str]
) -> None:
    victim.repo.git("remote", "set-url", "origin", origin.format(port=service.port))
    with pytest.raises(CheckoutError, match="cannot be fetched") as error:
        victim.check_out(
            victim.with_submodule(f"git://127.0.0.1:{service.port}/x"),
            [host.format(port=service.port) for host in hosts],
        )
    assert service.calls
    assert "own host" not in str(error.value)


@pytest.mark.parametrize("scheme", ["git", "http", "https", "ssh"])
def test_other_services_of_an_allowed_host_are_not_contacted(victim: Victim, service: Service, scheme: str) -> None:
    victim.repo.git("remote", "set-url", "origin", "https://127.0.0.1/acme/moe")
    with pytest.raises(CheckoutError, match=r"is not on the repository's own host .* sandbox\.submodule_hosts"):
        victim.check_out(victim.with_submodule(f"{scheme}://127.0.0.1:{service.port}/x"), ["127.0.0.1"])
    assert not service.calls


@dataclass
class WebServer:
    """A web server that sends every request elsewhere, or asks for a password if ``target`` is empty."""

    port: int
    target: str = ""
    passwords: list[str] = field(default_factory=list)


@pytest.fixture
def web_server() -> Iterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "Authorization" in self.headers:
                state.passwords.append(self.headers["Authorization"])
            self.send_response(302 if state.target else 401)
            self.send_header("Location", state.target)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state = WebServer(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield state
        server.shutdown()


def test_an_allowed_host_cannot_send_git_to_another_host(
    victim: Victim, service: Service, web_server: WebServer
) -> None:
    web_server.target = f"http://127.0.0.1:{service.port}/x/info/refs?service=git-upload-pack"
    victim.repo.git("remote", "set-url", "origin", f"http://127.0.0.1:{web_server.port}/acme/moe")
    with pytest.raises(CheckoutError, match="cannot be fetched"):
        victim.check_out(victim.with_submodule("../x"))
    assert not service.calls


INCLUDES = ["[include]\n\tpath = {file}\n", '[includeIf "gitdir:/"]\n\tpath = {file}\n']


@pytest.mark.parametrize("include", INCLUDES)
@pytest.mark.parametrize("nested", [False, True])
def test_gitmodules_cannot_include_credentials_of_this_machine(
    victim: Victim, web_server: WebServer, include: str, nested: bool
) -> None:
    """The included file is the configuration of another repository, which has its submodule's URL with a token."""
    victim.repo.git("remote", "set-url", "origin", f"http://127.0.0.1:{web_server.port}/acme/moe")
    private = victim.folder / "config"
    private.write_text(f'[submodule "x"]\n\turl = http://ci:token@127.0.0.1:{web_server.port}/private\n')
    text = include.format(file=private) + '[submodule "x"]\n\tpath = x\n'
    commit = victim.with_gitmodules(text)
    if nested:
        victim.repo.git("branch", "inner", commit)
        victim.repo.clone_to(victim.repo.path / ".git" / "modules" / "x", "--bare")
        commit = victim.with_submodule("../x", commit=commit)
    with pytest.raises(CheckoutError, match="cannot be fetched"):
        victim.check_out(commit)
    assert not web_server.passwords


@pytest.mark.parametrize(
    ("cached_url", "hosts"), [(f"{ORIGIN}/x", ()), ("https://other.example/x", None)], ids=["url", "host"]
)
def test_a_cached_submodule_is_not_given_to_a_url_that_may_not_be_fetched(
    victim: Victim, cached_url: str, hosts: Sequence[str] | None
) -> None:
    users_clone = victim.repo.path / ".git" / "modules" / "x"
    victim.secret.clone_to(users_clone, "--bare")
    victim.check_out(victim.with_submodule(cached_url), hosts)
    shutil.rmtree(users_clone)
    with pytest.raises(CheckoutError, match="is not on the repository's own host"):
        victim.check_out(victim.with_submodule("https://other.example/x", more="\tshallow = true\n"))


@pytest.mark.parametrize(
    ("origin", "hosts"), [(ORIGIN, None), ("https://other.example/acme/moe.git", ())], ids=["hosts", "origin"]
)
def test_a_worktree_with_submodules_is_not_used_again_where_they_may_not_be_fetched(
    victim: Victim, origin: str, hosts: Sequence[str] | None
) -> None:
    users_clone = victim.repo.path / ".git" / "modules" / "x"
    victim.secret.clone_to(users_clone, "--bare")
    commit = victim.with_submodule("https://other.example/x")
    victim.repo.git("remote", "set-url", "origin", origin)
    victim.check_out(commit, hosts)
    assert not victim.check_out(commit, hosts).built
    shutil.rmtree(users_clone)
    victim.repo.git("remote", "set-url", "origin", ORIGIN)
    with pytest.raises(CheckoutError, match="is not on the repository's own host"):
        victim.check_out(commit)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://Git.Example/a/b", "https://git.example:443"),
        ("git@git.example:a/b.git", "ssh://git.example:22"),
        ("https://git.example@evil.example/a", "https://evil.example:443"),
        ("http://[::1]:8080/x", "http://[::1]:8080"),
        ("https://git.example:/a", ""),
        ("https://git.example\n@evil.example/a", ""),
        ("https://evil.example#@git.example/a", ""),
        ("ext::sh -c id", ""),
        ("file:///srv/git/a", ""),
        ("origin", ""),
    ],
)
def test_an_address_is_the_transport_host_and_port_that_git_would_contact(url: str, address: str) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    ("origin", "hosts", "addresses"),
    [
        ("/srv/git/moe", (), set()),
        ("git@Git.Example:acme/moe", (), {"https://git.example:443", "ssh://git.example:22"}),
        (
            "https://token@git.example:8443/acme/moe",
            (),
            {"https://git.example:8443", "https://git.example:443", "ssh://git.example:22"},
        ),
        ("/srv/git/moe", ["http://b.example:8080"], {"http://b.example:8080"}),
    ],
)
def test_submodules_come_from_the_own_and_the_listed_addresses(
    origin: str, hosts: Sequence[str], addresses: set[str]
) -> None:
    assert list_addresses(origin, hosts) == addresses


@pytest.mark.parametrize("link_first", [True, False])
@pytest.mark.parametrize("deep", [True, False])
def test_a_submodule_is_not_written_through_a_link_of_the_same_name(
    victim: Victim, deep: bool, link_first: bool
) -> None:
    """git does not write such a tree, but accepts one."""
    outside = victim.folder / "outside"
    outside.mkdir()
    victim.repo.git("clone", "--quiet", "--bare", str(victim.secret.path), str(victim.repo.path / ".git/modules/x"))
    path = "d/x" if deep else "d"
    modules = victim.blob(f'[submodule "x"]\n\tpath = {path}\n\turl = {ORIGIN}/x\n')
    link = ("120000", "d", victim.blob(str(outside)))
    module = ("40000", "d", victim.tree(("160000", "x", victim.commit))) if deep else ("160000", "d", victim.commit)
    both = [link, module] if link_first else [module, link]
    tree = victim.tree(("100644", ".gitmodules", modules), *both)
    try:
        worktree = victim.check_out(victim.repo.git("commit-tree", tree, "-m", "one name twice"))
    except CheckoutError:
        pass
    else:
        assert not (worktree.path / "d").is_symlink()
    assert not list(outside.iterdir())


def test_a_commit_chooses_no_filter_hook_or_monitor_of_the_machine(victim: Victim) -> None:
    """A .gitattributes file can choose any filter of the user's configuration, such as git-lfs, for its files."""
    hooks = victim.folder / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {victim.ran}\n")
        (hooks / name).chmod(0o755)
    run = f"touch {victim.ran}; cat"
    victim.configure(
        f'[filter "lfs"]\n\tsmudge = {run}\n\tclean = {run}\n[core]\n\tfsmonitor = {run}\n\thooksPath = {hooks}\n'
        f'[diff "lfs"]\n\ttextconv = {run}\n\tcommand = {run}\n[diff]\n\texternal = {run}\n'
    )
    files = {".gitattributes": "* filter=lfs diff=lfs\n", "moe.py": "x = 2\n"}
    for name, text in files.items():
        (victim.repo.path / name).write_text(text)
    entries = [("100644", name, victim.blob(text)) for name, text in files.items()]
    commit = victim.repo.git("commit-tree", victim.tree(*entries), "-m", "attributes")
    worktree = victim.check_out(commit)
    (worktree.path / "moe.py").write_text("x = 3\n")
    assert victim.check_out(commit).built, "the change is detected, which reads the files"
    assert not victim.ran.exists()
    assert (worktree.path / "moe.py").read_text() == "x = 2\n"


def build_in(victim: Victim, commit: str, command: str, monkeypatch: pytest.MonkeyPatch) -> Worktree:
    """Return the worktree after the build. Git may not wait."""
    monkeypatch.setattr("regbot.workloads.checkout.contents.TRANSFER_TIMEOUT_S", 20.0)
    build = Build([command], sys.executable, 30.0)
    return check_out(victim.repo.path, commit, victim.folder / "cache", build, hosts=())


@pytest.mark.parametrize("folder", [".", "sub", "sub/deep"])
def test_git_does_not_wait_for_an_attribute_file_that_a_build_made_a_pipe(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    commit = victim.repo.commit("second", {"sub/deep/moe.py": "x = 1\n"})
    with pytest.raises(BuildError, match=r"\.gitattributes: is a named pipe"):
        build_in(victim, commit, f"echo 2 > sub/deep/moe.py; mkfifo {folder}/.gitattributes", monkeypatch)


@pytest.mark.parametrize(
    "command",
    ["mkfifo moe.py", "mkdir -p moe.py/.git && mkfifo moe.py/.git/HEAD", "git init -q moe.py", "ln -s moe.py moe.py"],
)
def test_a_build_that_replaces_a_file_by_something_else_has_changed_it(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    commit = victim.repo.git("rev-parse", "HEAD")
    assert build_in(victim, commit, f"rm moe.py; {command}", monkeypatch).changed == ("moe.py",)
    assert not build_in(victim, commit, f"rm moe.py; {command}", monkeypatch).built


@pytest.mark.parametrize("git_folder", ["x/.git", "elsewhere"])
def test_git_does_not_read_what_a_build_has_made_of_the_repository_of_a_submodule(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, git_folder: str
) -> None:
    victim.secret.clone_to(victim.repo.path / ".git" / "modules" / "x", "--bare")
    pipes = " ".join(f"{git_folder}/{name}" for name in ("HEAD", "config", "commondir", "packed-refs"))
    command = f"rm x/.git; [ {git_folder} = x/.git ] || echo gitdir: $PWD/{git_folder} > x/.git; mkdir -p {git_folder}"
    worktree = build_in(victim, victim.with_submodule("../x"), f"{command}; mkfifo {pipes}", monkeypatch)
    assert worktree.changed == ()


@pytest.mark.parametrize("target", ["{secret}", "x"])
def test_a_build_cannot_have_a_folder_of_this_machine_compared_with_a_submodule(
    victim: Victim, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Otherwise the list of changed files would tell which files of the folder are as the submodule's."""
    victim.secret.clone_to(victim.repo.path / ".git" / "modules" / "x", "--bare")
    commit = victim.with_submodule("../x")
    with pytest.raises(BuildError, match="is reached through a link"):
        build_in(victim, commit, f"rm -rf x; ln -s {target.format(secret=victim.secret.path)} x", monkeypatch)
