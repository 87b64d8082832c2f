"""Fetch commits into private bare clones in the cache, from the user's repository or from a submodule's remote.

regbot only reads the user's repositories. It does not fetch Git LFS content, so LFS files stay pointers.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from regbot.records.text.clip import clip
from regbot.records.text.printable import printable
from regbot.workloads.checkout.git import (
    TRANSFER_TIMEOUT_S,
    CheckoutError,
    GitResult,
    common_dir,
    git,
    origin_of,
    try_git,
    without_credentials,
)

_SERVE_LOCALLY = "GIT_ALLOW_PROTOCOL=none git -c uploadpack.allowAnySHA1InWant=true upload-pack"
"""Shell command that serves a repository of this machine to a fetch. It fetches nothing into that repository. It serves
every commit, whatever the repository's settings."""
_TRANSPORTS = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:git"}
"""Allowed transports. Others run a command that the URL names, or read files of this machine. This overrides the
machine's configuration."""
_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_USER, _HOST = r"(?:[^@/\\?#\s]*@)?", r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
# _URL matches https://host/path and ssh://user@host:22/path. _SCP matches git@host:path.
_URL = re.compile(rf"(?P<scheme>{'|'.join(_PORTS)})://{_USER}{_HOST}(?::(?P<port>[0-9]{{1,5}}))?(?:/.*)?")
_SCP = re.compile(rf"{_USER}{_HOST}:(?!//|:).*")
MAX_SUBMODULES = 500
"""Limit on the submodules of a commit, nested ones included. A chain of commits could nest them without end."""
MAX_NAME = 200
"""Largest length of the name of a submodule. A path cannot be of any length."""


@dataclass(frozen=True)
class CommitSource:
    """Where to fetch commits of the repository or of one submodule from."""

    name: str
    """Name in error messages: the folder of the repository, and the path of the submodule."""
    identity: str
    """Names the private clone. It has no credentials, because each CI job has its own token."""
    git_dirs: tuple[Path, ...]
    """Git directories on this machine that may have the commits. regbot only reads them."""
    url: str
    remote: bool
    refusal: str = ""
    """Why commits must not be fetched from ``url``, and what to do; '' if they may."""
    follows_redirects: bool = True
    """Whether the host of ``url`` may send git to another host."""


def find_source(repo: Path) -> CommitSource:
    """Return the source of the repository's own commits. They are taken from its git directories, not from its remote.

    Raises CheckoutError.
    """
    common = common_dir(repo)
    git_dir = Path(git(repo, "rev-parse", "--absolute-git-dir").removesuffix("\n"))
    origin = origin_of(repo) or str(common)
    identity = f"{common}\n{without_credentials(origin)}"
    # A linked worktree keeps its submodules in its own git directory.
    git_dirs = tuple(dict.fromkeys((common, git_dir)))
    return CommitSource(name=str(repo), identity=identity, git_dirs=git_dirs, url=origin, remote=False)


def clone_name(source: CommitSource) -> str:
    return hashlib.sha256(source.identity.encode()).hexdigest()[:24] + ".git"


def fetch_commit(clone: Path, source: CommitSource, commit: str) -> None:
    """Fetch ``commit`` into the private clone ``clone``. A commit that is already there is not fetched again.

    Raises CheckoutError.

    If commits must not be fetched from the source's URL (``refusal``), the commit must be in one of the user's own
    clones. The private clone does not count, because a trusted check may have fetched the commit from the URL.
    """
    clone.parent.mkdir(parents=True, exist_ok=True)
    if not clone.exists():  # it appears only when it is complete, even if this process is interrupted
        with tempfile.TemporaryDirectory(dir=clone.parent) as folder:
            git(clone.parent, "init", "--quiet", "--bare", "--template=", f"{folder}/new.git")
            Path(folder, "new.git").rename(clone)
    reset_configuration(clone)
    wanted_ref = f"refs/wanted/{commit}"  # exists in the private clone once the commit was fetched
    is_cached = try_git(clone, f"--git-dir={clone}", "rev-parse", "--verify", "--quiet", wanted_ref).code == 0
    if is_cached and not source.refusal:
        return
    reasons = ["no local clone has it"]
    for git_dir in source.git_dirs:
        if (git_dir / "HEAD").exists():
            local_fetch = _fetch(clone, git_dir, f"{commit}:{wanted_ref}", "--update-shallow")
            if local_fetch.code == 0:  # fetch tags too, because build commands may derive a version from them
                _fetch(clone, git_dir, "+refs/tags/*:refs/tags/*", "--update-shallow", "--prune")
                return
            reasons = [f"{git_dir}: {local_fetch.error_line}"]
    if source.remote:  # commits may be fetched from the URL
        settings = {} if source.follows_redirects else {"http.followRedirects": "false"}
        exact_fetch = _fetch(clone, source.url, f"{commit}:{wanted_ref}", "--depth=1", settings=settings)
        if exact_fetch.code == 0:
            return
        reasons.append(f"{without_credentials(printable(source.url))}: {exact_fetch.error_line}")
        reasons.append("clone the submodules (git submodule update --init --recursive), or make the URL reachable")
    problem = "; ".join(filter(None, (*reasons, source.refusal)))
    raise CheckoutError(f"{source.name}: commit {commit} cannot be fetched: {problem}")


def reset_configuration(clone: Path) -> None:
    """Restore the configuration that the clone had when it was created.

    Code in a worktree can write to the clone. A filter that it adds to the configuration would change later checkouts
    and hide edits. Raises CheckoutError if the clone is missing.
    """
    if not clone.is_dir():
        raise CheckoutError(f"{clone}: the private clone is missing")
    text = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
    config = clone / "config"
    if config.is_symlink() or not config.is_file() or config.read_text(errors="replace") != text:
        config.unlink(missing_ok=True)
        config.write_text(text)
    for path in (clone / "config.worktree", clone / "info" / "attributes"):
        path.unlink(missing_ok=True)


def _fetch(
    clone: Path, location: Path | str, refspec: str, *options: str, settings: Mapping[str, str] | None = None
) -> GitResult:
    is_local = isinstance(location, Path)
    options += (f"--upload-pack={_SERVE_LOCALLY}",) if is_local else ()
    fetch_options = ("--quiet", "--no-tags", "--force", "--no-write-fetch-head", "--no-recurse-submodules")
    return try_git(
        clone,
        *(f"--git-dir={clone}", "fetch", *fetch_options, *options, "--", str(location), refspec),
        settings={"protocol.file.allow": "always"} if is_local else settings,
        env={} if is_local else _TRANSPORTS,
        timeout_s=TRANSFER_TIMEOUT_S,
    )


def list_submodules(
    clone: Path, commit: str, parent: CommitSource, addresses: Set[str] | None = None
) -> list[tuple[str, str, CommitSource]]:
    """Return path, commit and source of each submodule of ``commit``.

    Submodules may be fetched only from ``addresses`` (``list_addresses``); None allows any. A submodule without an
    entry in .gitmodules is left out. Its folder stays empty, as in every clone. Raises CheckoutError.
    """
    git_dir = f"--git-dir={clone}"  # if the clone is damaged, git must not use a repository in a parent folder
    tree_lines = git(clone, git_dir, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    # Each line is "MODE KIND OBJECT<tab>PATH". A hostile tree may have a path twice, as a submodule and as a link.
    entries = [(*fields.split(), path) for fields, _, path in (line.partition("\t") for line in tree_lines if line)]
    commits = {path: commit for mode, _, commit, path in entries if mode == "160000"}  # the mode of a submodule
    blobs = [blob for mode, _, blob, path in entries if path == ".gitmodules" and mode.startswith("100")]  # no link
    if not commits or not blobs:
        return []
    # Without --no-includes, the commit could name any file of this machine as a part of its configuration.
    listing = try_git(clone, git_dir, "config", "--no-includes", "--blob", blobs[0], "--null", "--list")
    if listing.code != 0:  # what git prints about it is not shown
        raise CheckoutError(f"{parent.name}: .gitmodules of commit {commit} is no configuration of git")
    variables_by_name: dict[str, dict[str, str]] = {}
    for setting in listing.out.split("\0"):
        key, _, value = setting.partition("\n")
        name, _, variable = key.removeprefix("submodule.").rpartition(".")
        if key.startswith("submodule.") and name:
            variables_by_name.setdefault(name, {})[variable] = value
    sources = []
    for name, variables in variables_by_name.items():
        path = variables.get("path", "")
        if path in commits:
            # Git keeps the clone of a submodule in modules/NAME. An unsafe name would lead out of this folder.
            name_is_safe = not Path(name).is_absolute() and ".." not in Path(name).parts and len(name) <= MAX_NAME
            url = absolute_url(parent.url, variables.get("url", ""))
            refusal = _explain_refusal(url, addresses) if variables.get("url") else ""
            source = CommitSource(
                name=f"{parent.name}: submodule {printable(path)}",
                identity=f"{parent.identity}\n{name}\n{without_credentials(url)}",
                git_dirs=tuple(folder / "modules" / name for folder in parent.git_dirs) if name_is_safe else (),
                url=url,
                remote=bool(variables.get("url")) and not refusal,
                refusal=refusal,
                follows_redirects=addresses is None,
            )
            sources.append((path, commits[path], source))
    return sources


def address_of(url: str) -> str:
    """Return transport, host and port of ``url``, such as https://git.example:443; '' if it has none."""
    match = _URL.fullmatch(url) if "://" in url else _SCP.fullmatch(url)
    if match is None:
        return ""
    parts = match.groupdict()
    scheme = parts.get("scheme", "ssh")
    return f"{scheme}://{parts['host'].lower()}:{int(parts.get('port') or _PORTS[scheme])}"


def list_addresses(origin: str, hosts: Iterable[str]) -> set[str]:
    """Return the addresses from which submodules of untrusted code may be fetched.

    ``hosts`` has hosts and URLs. A host stands for https and ssh at their own ports, a URL for its own address only.
    The URL ``origin`` of the repository stands for itself and for its host.
    """
    origin_address = address_of(origin)
    own_host = origin_address.partition("://")[2].rpartition(":")[0]
    names = (own_host, *hosts)
    urls = [url for name in names for url in ([name] if "://" in name else [f"https://{name}", f"ssh://{name}"])]
    return {origin_address, *map(address_of, urls)} - {""}


def _explain_refusal(url: str, addresses: Set[str] | None) -> str:
    address = address_of(url)
    if addresses is None or address in addresses:
        return ""
    return (
        f"{clip(without_credentials(printable(url)), 200)} is not on the repository's own host (https or ssh, at their "
        "own ports), and untrusted code must not choose which hosts this machine contacts: list "
        f"{address or 'the host'} in sandbox.submodule_hosts, or clone the submodules here"
    )


def absolute_url(parent: str, url: str) -> str:
    """Return the absolute URL of a submodule, as git does: ./ and ../ are relative to ``parent``."""
    if not url.startswith(("./", "../")):
        return url
    parent, separator = parent.rstrip("/"), "/"
    while url.startswith(("./", "../")):
        first_part, _, url = url.partition("/")
        if first_part == "..":
            separator = "/" if "/" in parent else ":"  # in git@host:path, the last possible step up ends at the colon
            parent = parent.rpartition(separator)[0] or parent
    return f"{parent}{separator}{url}"
