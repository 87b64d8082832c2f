"""Find the inert files. An inert file cannot affect a run: documentation, and tests that no other file mentions.

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
"""Names of folders that can be inert. A folder is inert if no file outside of such folders has its name as a word."""
_LOADS_NOTHING = ("*.md", "*.rst", "pyproject.toml", "setup.cfg", "tox.ini", ".*")
"""Files that may mention an inert folder: documentation, and settings of development tools. They list tests and do not
load them."""
_SEARCHED_FILES = (":(top)", *(f":(top,exclude){pattern}" for pattern in _LOADS_NOTHING))
_LOG = ("log", "-m", "-z", "--format=", "--no-renames", "--no-ext-diff")


@dataclass(frozen=True)
class InertRule:
    """Decides which paths are inert. If ``folders`` is empty, these are only documentation and settings of GitHub."""

    folders: frozenset[str] = frozenset()
    """Names of inert folders: a file below a folder with such a name is inert."""
    submodules: frozenset[str] = frozenset()
    """Paths of submodules, which are never inert."""

    def is_inert(self, path: str) -> bool:
        """Return whether a change of the file cannot affect a run."""
        if path in self.submodules:
            return False
        file = PurePosixPath(path)
        is_setting_of_github = file.parts[0] == ".github" and file.suffix in (".yml", ".yaml")
        is_in_inert_folder = not self.folders.isdisjoint(file.parts[:-1])
        return is_documentation(path) or is_setting_of_github or is_in_inert_folder


def load_inert_rule(repo: Path, commits: Sequence[str], revision_range: str | None = None) -> InertRule:
    """Return the rule for changes between ``commits``. A folder is inert only if it is inert in each of these commits.

    The rule tests the folders in FOLDERS. A folder counts as used, and is not inert, in these cases:

    - A file outside of inert folders has the folder's name as a word, even in a comment.
    - The target of a symbolic link contains the name.
    - A commit of ``revision_range`` (for example "v1..v2") adds or removes the name in a file.

    If git fails or exceeds its time limit, all folders count as used.
    """
    listings = [_list_entries(repo, commit) for commit in commits]
    listings += [_list_changed_entries(repo, revision_range)] if revision_range else []
    entries = [entry for listing in listings for entry in listing or ()]
    # The mode 160000 is that of a submodule, and 120000 that of a symbolic link. The object of a link has the path of
    # its target.
    submodules = frozenset(path for mode, _, path in entries if mode == "160000")
    rule_without_folders = InertRule(submodules=submodules)  # if git cannot read a file, no folder is inert
    if None in listings:  # git failed
        return rule_without_folders
    mentions: dict[str, list[str]] = {}  # by name of a folder: the files that have this name as a word
    try:
        names_in_link_targets = _read_link_targets(repo, [blob for mode, blob, _ in entries if mode == "120000"])
        for name in FOLDERS:
            file_lists = [_list_mentions(repo, commits, name)]
            file_lists += [_list_changed_mentions(repo, revision_range, name)] if revision_range else []
            if None in file_lists:  # git failed
                return rule_without_folders
            mentions[name] = [path for paths in file_lists for path in paths or ()]
    except CheckoutError:  # the time limit
        return rule_without_folders
    if names_in_link_targets is None:
        return rule_without_folders
    folders = set(FOLDERS) - names_in_link_targets

    def is_mentioned_outside(name: str) -> bool:
        """Return whether a file that is in none of the inert ``folders`` mentions ``name``."""
        return any(folders.isdisjoint(PurePosixPath(path).parts[:-1]) for path in mentions[name])

    # A folder that is mentioned drops out of ``folders``. Its files then count as outside, and may mention other
    # folders.
    while mentioned := set(filter(is_mentioned_outside, folders)):
        folders -= mentioned
    return InertRule(frozenset(folders), submodules)


def _list_mentions(repo: Path, commits: Sequence[str], name: str) -> list[str] | None:
    """Return the files that have ``name`` as a word in one of the commits; None if git cannot read them."""
    options = ("-z", "--files-with-matches", "--no-recurse-submodules", "--text", "--fixed-strings", "--word-regexp")
    result = try_git(repo, "grep", *options, "-e", name, *commits, "--", *_SEARCHED_FILES, env=OFFLINE)
    paths = [line.partition(":")[2] for line in result.out.split("\0") if line]  # lines are COMMIT:PATH
    return paths if result.code in (0, 1) else None  # 1: no file has the word


def _list_changed_mentions(repo: Path, revision_range: str, name: str) -> list[str] | None:
    """Return the files in which a commit of the range adds or removes a line that has ``name`` as a word.

    Return None if git cannot read the commits."""
    options = (*_LOG, "--name-only", "--text", "--no-textconv", "--extended-regexp")
    pattern = rf"(^|[^A-Za-z0-9_]){name}([^A-Za-z0-9_]|$)"
    result = try_git(repo, *options, f"-G{pattern}", revision_range, "--", *_SEARCHED_FILES, env=OFFLINE)
    return list(filter(None, result.out.split("\0"))) if result.code == 0 else None


def _list_changed_entries(repo: Path, revision_range: str) -> list[tuple[str, str, str]] | None:
    """Return mode, object and path of each file that a commit of the range changes, as they are after this commit.

    Return None if git cannot read the commits."""
    log = try_git(repo, *_LOG, "--raw", "--no-abbrev", revision_range, env=OFFLINE)
    entries = [(entry.mode_after, entry.blob_after, entry.name) for entry in parse_entries(log.out)]
    return entries if log.code == 0 else None


def _list_entries(repo: Path, commit: str) -> list[tuple[str, str, str]] | None:
    """Return mode, object and path of all files of a commit; None if git cannot read it."""
    listing = try_git(repo, "ls-tree", "-r", "-z", "--full-tree", commit, env=OFFLINE)
    if listing.code != 0:
        return None
    entries = []
    for line in filter(None, listing.out.split("\0")):
        fields, _, path = line.partition("\t")
        mode, _kind, object_id = fields.split()
        entries.append((mode, object_id, path))
    return entries


def _read_link_targets(repo: Path, blobs: Sequence[str]) -> set[str] | None:
    """Return the names of all files and folders in the targets of symbolic links. ``blobs`` are the links' contents.

    Return None if git cannot read one of them."""
    targets = read_blobs(repo, sorted(set(blobs)))
    if len(targets) != len(set(blobs)):
        return None
    return {name for target in targets.values() for name in target.decode(errors="replace").split("/")}
