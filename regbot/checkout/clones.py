"""Private bare clones in the cache: how a commit gets there, from the user's repository or a submodule's remote.

The user's repositories are fetched from by path and only read. Git LFS is not fetched: files kept in it stay pointers.
"""

import re
import tempfile
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from regbot.checkout.git import TRANSFER_TIMEOUT_S, Answer, CheckoutError, git, try_git, without_credentials
from regbot.text import printable

_TRANSPORTS = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:git"}
"""Those that neither run a command nor read this machine's files, whatever the machine's configuration allows."""
_USER, _HOST = r"(?:[^@/\\?#\s]*@)?", r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_ADDRESS = re.compile(rf"[a-z]+://{_USER}{_HOST}(?::[0-9]*)?(?:/.*)?")
_SCP = re.compile(rf"{_USER}{_HOST}:(?!//|:).*")


@dataclass(frozen=True)
class Source:
    """Where the commits of the repository or of a submodule can be had."""

    name: str
    identity: str
    """Names the private clone."""
    git_dirs: tuple[Path, ...]
    """Repositories on this machine. Read, never written."""
    url: str
    """Of the remote; what relative URLs of submodules are relative to."""
    remote: bool
    """May it be fetched from the URL?"""
    refused: str = ""
    """Why not, where there is something to do about it."""


def obtain(clone: Path, source: Source, commit: str) -> None:
    """Have ``commit`` in the private clone ``clone``."""
    wanted = f"refs/wanted/{commit}"
    if not clone.exists():
        _create(clone, _object_format(commit))
    disarm(clone, commit)
    if try_git(clone, f"--git-dir={clone}", "rev-parse", "--verify", "--quiet", wanted).code == 0:
        return
    said = ["it is in no local clone"]
    for git_dir in source.git_dirs:
        if (git_dir / "HEAD").exists():
            nearby = _fetch(clone, git_dir, f"{commit}:{wanted}", "--update-shallow")
            if nearby.code == 0:  # tags too, for build commands that derive a version from them
                _fetch(clone, git_dir, "+refs/tags/*:refs/tags/*", "--update-shallow", "--prune")
                return
            said = [f"{git_dir}: {nearby.last_word}"]
    if source.remote:
        exact = _fetch(clone, source.url, f"{commit}:{wanted}", "--depth=1")
        if exact.code == 0:
            return
        everything = _fetch(clone, source.url, "+refs/*:refs/source/*")  # a server that only sends what it advertises
        if everything.code == 0 and try_git(clone, f"--git-dir={clone}", "update-ref", wanted, commit).code == 0:
            return
        said.append(f"{without_credentials(printable(source.url))}: {exact.last_word}")
        said.append("clone the submodules (git submodule update --init --recursive), or make the URL reachable")
    said += [source.refused] if source.refused else []
    raise CheckoutError(f"{source.name}: commit {commit} cannot be had: {'; '.join(said)}")


def _create(clone: Path, object_format: str) -> None:
    """An empty bare repository, in one step: half of one would be in the way for ever."""
    clone.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=clone.parent) as folder:
        new = Path(folder, "new.git")
        git(clone.parent, "init", "--quiet", "--bare", "--template=", f"--object-format={object_format}", str(new))
        new.rename(clone)


def _object_format(commit: str) -> str:
    return "sha256" if len(commit) == 64 else "sha1"


def disarm(clone: Path, commit: str) -> None:
    """The clone's configuration as it was made, for commits like ``commit``. Code of a worktree can reach it, and a
    filter that it planted there would change what is checked out and looked at from then on. Raises CheckoutError
    where the clone is gone."""
    if not clone.is_dir():
        raise CheckoutError(f"{clone}: the private clone is gone")
    sha256 = _object_format(commit) == "sha256"
    version, extension = (1, "[extensions]\n\tobjectformat = sha256\n") if sha256 else (0, "")
    text = f"[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = true\n{extension}"
    config = clone / "config"
    if config.is_symlink() or not config.is_file() or config.read_text(errors="replace") != text:
        config.unlink(missing_ok=True)
        config.write_text(text)
    for planted in (clone / "config.worktree", clone / "info" / "attributes"):
        planted.unlink(missing_ok=True)


def _fetch(clone: Path, origin: Path | str, refspec: str, *options: str) -> Answer:
    """Fetch from a folder that we found ourselves or from a URL that a pull request may have written.

    The latter gets none of the transports that run a command or read this machine's files.
    """
    ours = isinstance(origin, Path)
    safely = ("--quiet", "--no-tags", "--force", "--no-write-fetch-head", "--no-recurse-submodules")
    return try_git(
        clone,
        *(f"--git-dir={clone}", "fetch", *safely, *options, "--", str(origin), refspec),
        settings={"protocol.file.allow": "always"} if ours else {},
        env={} if ours else _TRANSPORTS,
        timeout_s=TRANSFER_TIMEOUT_S,
    )


def submodules(
    clone: Path, commit: str, parent: Source, hosts: Set[str] | None = None
) -> list[tuple[str, str, Source]]:
    """Path, commit and source of each submodule of ``commit``. ``hosts``: that may be asked for them, None for any.

    A submodule that .gitmodules does not name has no source anywhere; its folder stays empty, as in every clone.
    """
    inside = (f"--git-dir={clone}",)  # never that of a folder above, should the clone be damaged
    lines = git(clone, *inside, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    listing = [line.partition("\t") for line in lines]
    links = {path: words.split()[2] for words, _, path in listing if words.startswith("160000 ")}
    if not links or all(path != ".gitmodules" for _, _, path in listing):
        return []
    lines = git(clone, *inside, "config", "--blob", f"{commit}:.gitmodules", "--null", "--list").split("\0")
    named: dict[str, dict[str, str]] = {}
    for line in lines:
        key, _, value = line.partition("\n")
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        if section == "submodule" and name:
            named.setdefault(name, {})[variable] = value
    found = []
    for name, entry in named.items():
        path = entry.get("path", "")
        if path in links:
            harmless = not Path(name).is_absolute() and ".." not in Path(name).parts
            url = absolute_url(parent.url, entry.get("url", ""))
            refused = _refused(url, hosts) if entry.get("url") else ""
            source = Source(
                name=f"{parent.name}: submodule {printable(path)}",
                identity=f"{parent.identity}\n{name}",
                git_dirs=tuple(folder / "modules" / name for folder in parent.git_dirs) if harmless else (),
                url=url,
                remote=bool(entry.get("url")) and not refused,
                refused=refused,
            )
            found.append((path, links[path], source))
    return found


def host_of(url: str) -> str:
    """The host that ``url`` names, in lower case; '' for a path on this machine and for what is no address."""
    found = _ADDRESS.fullmatch(url) or (None if "://" in url else _SCP.fullmatch(url))
    return found[1].lower() if found else ""


def _refused(url: str, hosts: Set[str] | None) -> str:
    if hosts is None or host_of(url) in hosts - {""}:
        return ""
    return (
        f"{without_credentials(printable(url))[:200]} is not on the repository's own host, and untrusted code does not "
        "choose whom this machine asks: name the host in sandbox.submodule_hosts, or clone the submodules here"
    )


def absolute_url(parent: str, url: str) -> str:
    """A submodule's URL. One that begins with ./ or ../ is relative to its parent's, by git's own rule."""
    if not url.startswith(("./", "../")):
        return url
    parent, joint = parent.rstrip("/"), "/"
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        if step == "..":
            joint = "/" if "/" in parent else ":"  # of git@host:path, the last step up ends at the colon
            parent = parent.rpartition(joint)[0] or parent
    return f"{parent}{joint}{url}"
