"""Find the files that cannot affect a run: documentation, and tests that no other file mentions.

The rule reads git's objects and no report of a training process, because code of a pull request can forge such a
report. The name of a folder alone proves nothing: training code may import from a folder that is called "tests".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regbot.checkout.changes import parse_entries, read_blobs
from regbot.checkout.git import OFFLINE, CheckoutError, try_git
from regbot.records.session import is_documentation

FOLDERS = ("doc", "docs", "test", "tests")
"""Names of folders whose files are inert unless a file outside of such folders has the name as a word."""
_LOADS_NOTHING = ("*.md", "*.rst", "pyproject.toml", "setup.cfg", "tox.ini", ".*")
"""Files that may have the name. Documentation and settings of development tools list tests and do not load them."""
_SEARCHED_FILES = (":(top)", *(f":(top,exclude){pattern}" for pattern in _LOADS_NOTHING))
_LOG = ("log", "-m", "-z", "--format=", "--no-renames", "--no-ext-diff")


@dataclass(frozen=True)
class InertRule:
    """Decides which paths are inert. Without ``folders``, only documentation and settings of GitHub
    are inert."""

    folders: frozenset[str] = frozenset()
    """Names of folders that no file outside of them mentions."""
    submodules: frozenset[str] = frozenset()
    """Paths of submodules, which are never inert."""

    def is_inert(self, path: str) -> bool:
        """Return whether a change of the file cannot affect a run."""
        parts = PurePosixPath(path)
        is_setting_of_github = parts.parts[0] == ".github" and parts.suffix in (".yml", ".yaml")
        is_in_folder = not self.folders.isdisjoint(parts.parts[:-1])
        return path not in self.submodules and (is_documentation(path) or is_setting_of_github or is_in_folder)


def load_inert_rule(repo: Path, commits: Sequence[str], revision_range: str | None = None) -> InertRule:
    """Return the rule for changes between ``commits``. A folder is inert only if it is so in each of them.

    A folder is not inert if another file has its name as a word, even in a comment, or if the target of a link has it.
    With ``revision_range`` (example: "v1..v2"), neither may a commit of that range add or remove the name. If git
    cannot read the files in time, no folder is inert.
    """
    listings = [_list_entries(repo, commit) for commit in commits]
    listings += [_list_changed_entries(repo, revision_range)] if revision_range else []
    entries = [entry for listing in listings for entry in listing or ()]
    submodules = frozenset(path for mode, _, path in entries if mode == "160000")
    if None in listings:
        return InertRule(submodules=submodules)
    mentions: dict[str, list[str]] = {}
    try:
        linked = _read_link_targets(repo, [blob for mode, blob, _ in entries if mode == "120000"])
        for name in FOLDERS:
            searches = [_list_mentions(repo, commits, name)]
            searches += [_list_changed_mentions(repo, revision_range, name)] if revision_range else []
            if None in searches:
                return InertRule(submodules=submodules)
            mentions[name] = [path for paths in searches for path in paths or ()]
    except CheckoutError:  # the time limit
        return InertRule(submodules=submodules)
    if linked is None:
        return InertRule(submodules=submodules)
    folders = set(FOLDERS) - linked

    def is_mentioned(name: str) -> bool:
        return any(folders.isdisjoint(PurePosixPath(path).parts[:-1]) for path in mentions[name])

    while mentioned := set(filter(is_mentioned, folders)):  # files in a folder that is mentioned can mention others
        folders -= mentioned
    return InertRule(frozenset(folders), submodules)


def _list_mentions(repo: Path, commits: Sequence[str], name: str) -> list[str] | None:
    """Return the files that have ``name`` as a word in one of the commits; None if git cannot read them."""
    options = ("-z", "--files-with-matches", "--no-recurse-submodules", "--text", "--fixed-strings", "--word-regexp")
    result = try_git(repo, "grep", *options, "-e", name, *commits, "--", *_SEARCHED_FILES, env=OFFLINE)
    paths = [line.partition(":")[2] for line in result.out.split("\0") if line]
    return paths if result.code in (0, 1) else None


def _list_changed_mentions(repo: Path, revision_range: str, name: str) -> list[str] | None:
    """Return the files in which a commit of the range adds or removes a line that has ``name`` as a word; None if git
    cannot read them."""
    options = (*_LOG, "--name-only", "--text", "--no-textconv", "--extended-regexp")
    pattern = rf"(^|[^A-Za-z0-9_]){name}([^A-Za-z0-9_]|$)"
    result = try_git(repo, *options, f"-G{pattern}", revision_range, "--", *_SEARCHED_FILES, env=OFFLINE)
    return list(filter(None, result.out.split("\0"))) if result.code == 0 else None


def _list_changed_entries(repo: Path, revision_range: str) -> list[tuple[str, str, str]] | None:
    """Return mode, object and path of all files after each commit of the range that changes them; None if git cannot
    read them."""
    log = try_git(repo, *_LOG, "--raw", "--no-abbrev", revision_range, env=OFFLINE)
    entries = [(entry.modes[1], entry.blobs[1], entry.name) for entry in parse_entries(log.out)]
    return entries if log.code == 0 else None


def _list_entries(repo: Path, commit: str) -> list[tuple[str, str, str]] | None:
    """Return mode, object and path of all files of a commit; None if git cannot read it."""
    listing = try_git(repo, "ls-tree", "-r", "-z", "--full-tree", commit, env=OFFLINE)
    lines = [line.partition("\t") for line in listing.out.split("\0") if line]
    entries = [(*fields.split(), path) for fields, _, path in lines]
    return [(mode, blob, path) for mode, _, blob, path in entries] if listing.code == 0 else None


def _read_link_targets(repo: Path, blobs: Sequence[str]) -> set[str] | None:
    """Return the names in the targets of symbolic links; None if git cannot read one."""
    targets = read_blobs(repo, sorted(set(blobs)))
    if len(targets) != len(set(blobs)):
        return None
    return {name for target in targets.values() for name in target.decode(errors="replace").split("/")}
