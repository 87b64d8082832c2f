"""The paper GPU for a torch that comes with a checkout: attacks by headers, libraries, links and interpreters.

The compiler, the linker and the sandbox are real. The C++ source of the paper GPU is one line here, so that a build
takes a moment.
"""

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from regbot.check.sessions.worktrees import Worktrees
from regbot.engines.availability import unavailable_reason
from regbot.records.config import SandboxSettings
from regbot.workloads.paper import Libraries, NoPaperGpuError, build
from support.git_repos import Repository
from support.required import needed

SANDBOX = SandboxSettings(tmp_mb=64)
SECRET = "a line that only the node may read"
SITE_PACKAGES = ".venv/lib/python3.11/site-packages"
TORCH = f"{SITE_PACKAGES}/torch"
HEADER = f"{TORCH}/include/ATen/ATen.h"

confining = needed("SANDBOX", unavailable_reason() if platform.system() == "Linux" else "needs Linux")


@dataclass
class Node:
    """A machine with a secret file and a cache."""

    folder: Path
    sandbox: SandboxSettings | None = SANDBOX
    said: list[str] = field(default_factory=list)

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    @property
    def logs(self) -> Path:
        return self.folder / "out"

    def private(self, checkout: Path) -> Path:
        return self.folder / "private" / checkout.name

    def checkout(self, name: str = "head", **changes: str) -> Path:
        """Create a checkout with a torch of its own, whose files and links are changed by ``changes``.

        A value that begins with "-> " makes the path a link.
        """
        root = self.folder / name
        for path, text in changes.items():
            text = text.format(secret=self.secret, folder=self.folder)
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                (root / path).symlink_to(text.removeprefix("-> "))
            else:
                (root / path).write_text(text)
        for path in (HEADER, f"{TORCH}/lib/libtorch_cpu.so", f"{TORCH}/lib/libc10.so"):
            if not (root / path).exists():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
        return root

    def build(self, checkout: Path, python: str = ".venv/bin/python") -> Path:
        """Return the library for an interpreter of a checkout. Raises NoPaperGpuError."""
        untrusted = [self.folder / "head"]
        libraries = Libraries(self.folder / "cache", self.logs, self.said.append, self.sandbox, untrusted)
        return libraries.library(str(checkout / python), checkout, self.private(checkout)).path

    def leaked(self) -> list[str]:
        """Return the files below ``folder`` that contain the secret."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.resolve() != self.secret]
        return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    if not shutil.which("c++"):
        pytest.skip("there is no C++ compiler")
    monkeypatch.delenv("REGBOT_PAPER_CACHE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    source = tmp_path / "source"
    source.mkdir()
    (source / "all.cpp").write_text("#include <ATen/ATen.h>\n")
    monkeypatch.setattr(build, "source_folder", lambda: source)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    (tmp_path / "secret").chmod(0o600)
    return Node(tmp_path)


# ---- files of the node


READING = {"incbin": {HEADER: '__asm__(".incbin \\"{secret}\\"");\n'}, "include": {HEADER: '#include "{secret}"\n'}}


@confining
@pytest.mark.parametrize("files", READING.values(), ids=list(READING))
def test_what_a_compiler_reads_for_a_checkout_is_not_of_the_node(node: Node, files: dict[str, str]) -> None:
    with contextlib.suppress(NoPaperGpuError):
        node.build(node.checkout(**files))
    assert node.leaked() == []


LINKS = {
    "header": {HEADER: "-> {secret}"},
    "folder of headers": {f"{TORCH}/include/sys": "-> {folder}"},
    "folder behind a link": {f"{TORCH}/include/sys": "-> ../../../../../../evil", "evil/deep/sys": "-> {folder}"},
    "library": {f"{TORCH}/lib/libc10.so": "-> {secret}"},
    "relative": {f"{TORCH}/include/secret.h": "-> ../../../../../../../secret"},
    "torch": {TORCH: f"-> {{folder}}/other/{TORCH}"},
}


@pytest.mark.parametrize("sandbox", [None, SANDBOX], ids=["trusted", "untrusted"])
@pytest.mark.parametrize("links", LINKS.values(), ids=list(LINKS))
def test_a_link_that_leads_out_of_the_checkout_is_refused_by_name(
    node: Node, links: dict[str, str], sandbox: SandboxSettings | None
) -> None:
    node.sandbox = sandbox
    node.checkout("other")
    with pytest.raises(NoPaperGpuError, match=r"^\.venv/.* in the checkout leads out of it$"):
        node.build(node.checkout(**links))


# ---- other checkouts


@pytest.mark.parametrize("sandbox", [None, SANDBOX], ids=["trusted", "untrusted"])
def test_a_checkout_never_gets_the_library_of_another_one(node: Node, sandbox: SandboxSettings | None) -> None:
    node.sandbox = sandbox
    header = {HEADER: "#include <sys/linked.h>\n", f"{TORCH}/include/sys": "-> ../../../../../../evil"}
    evil = node.checkout("evil", **header, **{"evil/linked.h": 'const char* evil = "EVIL";\n'})
    clean = node.checkout("clean", **header, **{"evil/linked.h": "int clean;\n"})
    for path in ("evil/linked.h", HEADER):  # the attacker keeps what the metadata of a file can keep
        os.utime(evil / path, ns=(0, 0))
    assert b"EVIL" in node.build(evil).read_bytes()
    library = node.build(clean)
    assert b"EVIL" not in library.read_bytes()
    assert library.is_relative_to(node.private(clean))
    assert not (node.folder / "cache" / "paper").exists()
    before, after, *others = node.said
    assert (before.split()[0], after.split()[0], len(others)) == ("build", "built", 2), "each build is told beforehand"


# ---- interpreters


def stand_in(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", ["checkout", "link", "linked folder"])
def test_an_interpreter_of_a_checkout_is_not_started(node: Node, place: str) -> None:
    checkout, started = node.checkout(), node.folder / "started"
    target = checkout if place == "checkout" else node.folder / "other"
    python = stand_in(target / ".venv" / "bin" / "python", f"touch {started}")
    if place == "link":
        (checkout / ".venv" / "bin").mkdir()
        (checkout / ".venv" / "bin" / "python").symlink_to(python)
    if place == "linked folder":
        (checkout / ".venv" / "bin").symlink_to(python.parent)
    node.build(checkout)
    assert not started.exists()


@pytest.mark.parametrize("place", ["repository", "cache/repositories/x/worktrees/y", "scratch"])
def test_an_interpreter_that_code_under_test_may_have_changed_is_not_started(node: Node, place: str) -> None:
    started, repository = node.folder / "started", Repository.create(node.folder / "repository").path
    python = stand_in(node.folder / place / "python", f"touch {started}")
    sandbox = SandboxSettings(write=[str(node.folder / "scratch")])
    trees = Worktrees(repository, node.folder / "cache", node.said.append, sandbox)
    with pytest.raises(NoPaperGpuError, match="code under test may have changed this interpreter"):
        trees.open_libraries(node.logs).library(str(python), node.checkout(), node.folder / "private")
    assert not started.exists()


def test_a_torch_that_the_node_imports_from_a_checkout_is_refused(node: Node) -> None:
    checkout = node.checkout()
    python = stand_in(node.folder / "python", f"echo {checkout / TORCH / '__init__.py'}")  # as a .pth file would
    with pytest.raises(NoPaperGpuError, match="code under test may have changed its torch"):
        node.build(checkout, str(python))


# ---- the compiler's world


@confining
def test_a_compiler_for_a_checkout_has_no_network_and_no_variables_of_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = stand_in(node.folder / "tools" / "c++", "cat /proc/net/dev; env; exit 1")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TOKEN_OF_THE_NODE", SECRET)
    node.sandbox = SandboxSettings(read=[str(compiler.parent)], network=True)
    with pytest.raises(NoPaperGpuError, match=r"its output is in .*/out/compiler-"):
        node.build(node.checkout())
    (log,) = node.logs.iterdir()
    interfaces = [
        line.split(":")[0].strip() for line in log.read_text().splitlines() if ":" in line and "=" not in line
    ]
    assert interfaces == ["lo"]
    assert "TOKEN_OF_THE_NODE" not in log.read_text()


@confining
def test_a_compiler_that_the_sandbox_does_not_show_is_not_run_outside_of_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = stand_in(node.folder / "tools" / "c++", f"touch {node.folder / 'started'}")
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NoPaperGpuError, match=r"could not be run; the reason is in .*/out/compiler-"):
        node.build(node.checkout())
    (log,) = node.logs.iterdir()
    assert "is in no folder that the sandbox shows" in log.read_text()
    assert not (node.folder / "started").exists()
