"""The dependency axis: its points are versions of one installed package, with the repository at one commit.

pip of the workload's interpreter asks the package index for the versions. So only versions that fit this interpreter
appear, and private indexes, proxies and folders of wheels work as they do for ``pip install``. The versions run in the
environments of ``regbot.bisect.environments``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from regbot.bisect.environments import VersionEnvironment as VersionEnvironment
from regbot.bisect.environments import VersionUnavailable as VersionUnavailable
from regbot.bisect.environments import find_shadowing as find_shadowing
from regbot.bisect.environments import provide_environment as provide_environment
from regbot.bisect.pip import AxisError as AxisError
from regbot.bisect.pip import InterpreterResult, clean_output, describe_end, index_arguments, run_pip
from regbot.checkout.git import find_commit, git
from regbot.records.bisection import Point
from regbot.text.clip import clip, clip_label
from regbot.text.printable import printable
from regbot.text.words import count

INDEX_TIMEOUT_S = 600.0
"""Limit for one query of the index. It is long, because pip tries a slow index five times, each time as long as the
user's configuration says.
"""
MAX_VERSIONS_LISTED = 12
"""Maximum number of versions in a message."""
MAX_NEAREST_LISTED = 6
"""Maximum number of versions that a message proposes instead of a missing one."""

_EXAMPLE = "for example torch=2.8.0..2.9.1, the good version first"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_UNREACHABLE = re.compile(
    r"connection broken by|could not fetch URL|max retries exceeded|connection error|timed out|ProxyError|SSLError",
    re.IGNORECASE,
)
_SKIPPED_LINK = re.compile(r"\s*Skipping link: (?P<why>.+): \S+/(?P<file>[^/\s#]+)(#\S*)?( \(|$)")
_PULL_REQUEST = re.compile(r"Merge pull request #([1-9][0-9]{0,9}) from |.* \(#([1-9][0-9]{0,9})\)$")


@dataclass(frozen=True)
class VersionAxis:
    """The versions of one package from a good one to a bad one. The bad version may be older than the good version."""

    package: str
    first: str
    """The good version."""
    last: str
    """The bad version."""


def parse_axis(text: str) -> VersionAxis:
    """Parse ``package=V1..V2`` of --axis. Raises AxisError."""
    package, equals_sign, ends = text.partition("=")
    first, dots, last = ends.partition("..")
    package = package.strip()
    if not equals_sign or not dots or _NAME.fullmatch(package) is None:
        raise AxisError(f"--axis {printable(text)!r}: write PACKAGE=V1..V2, {_EXAMPLE}")
    good, bad = (_parse_end(text, end.strip()) for end in (first, last))
    if good == bad:
        raise AxisError(
            f"--axis {printable(text)!r}: both ends are version {good}",
            "name two different versions, the good one first",
        )
    return VersionAxis(canonicalize_name(package), str(good), str(bad))


def versions_between(axis: VersionAxis, python: str, index_options: Sequence[str] = ()) -> list[str]:
    """Return the versions from ``axis.first`` to ``axis.last``, both included, that the index offers for ``python``.

    ``python`` is the workload's interpreter. ``index_options`` are options of pip, such as ``--index-url``. Yanked
    versions and pre-releases are left out, except as first or last version. Raises AxisError.

    A version can have several builds, which differ in a label such as +cpu. If the first and the last version have the
    same label, or both have none, only builds with this label are returned.
    """
    options = index_arguments(index_options)
    offered = _list_offered(axis.package, python, options)
    skip_reasons: dict[Version, str] | None = None  # None until pip was queried for the versions that it leaves out
    ends = []
    for text in (axis.first, axis.last):
        end = _match_offered(axis, Version(text), offered)
        if end is None:
            if skip_reasons is None:
                skip_reasons = _list_skipped(axis.package, python, options)
            # If pip skipped this version, use the spelling of the index.
            end = next((version for version in skip_reasons if version == Version(text)), Version(text))
            skip_reason = skip_reasons.get(end, "")
            if not skip_reason.startswith("yanked"):
                raise AxisError(_missing_message(axis, end, offered, skip_reason))
        ends.append(end)
    first, last = ends
    if first == last:
        raise AxisError(
            f"{axis.package}: {axis.first} and {axis.last} are the same version in this index, {first}",
            f"name two of: {_join_versions(offered)}",
        )
    low, high = sorted(ends)
    has_one_label = first.local == last.local
    between = [
        version
        for version in offered
        if low < version < high and not version.is_prerelease and (version.local == first.local or not has_one_label)
    ]
    ascending = [str(version) for version in (low, *between, high)]
    return ascending if first == low else ascending[::-1]


def build_points(repo: Path, commit: str, axis: VersionAxis, versions: Sequence[str]) -> list[Point]:
    """Build a point for each of ``versions``, all at ``commit``. Raises AxisError and CheckoutError."""
    if len(versions) < 2:
        raise AxisError(f"{axis.package}: {count(len(versions), 'version')}", "a bisection needs at least two")
    commit = find_commit(repo, commit, "commit")
    fields = git(repo, "log", "-1", "--no-show-signature", "--format=%T%x00%P%x00%an%x00%aI%x00%s", commit)
    # The fields of the format above: %T, %P, %an, %aI and %s.
    tree, parents, author, date, subject = (printable(field) for field in fields.removesuffix("\n").split("\0"))
    pull_request = _PULL_REQUEST.match(subject)
    return [
        Point(
            commit=commit,
            tree=tree,
            parents=parents.split(),
            subject=clip_label(subject),
            author=clip_label(author),
            date=clip_label(date),
            pull_request=int(pull_request[1] or pull_request[2]) if pull_request else None,
            version=version,
        )
        for version in versions
    ]


def _parse_end(text: str, version: str) -> Version:
    """Parse the first or last version of --axis. ``text`` is the whole option, for the error message."""
    try:
        return Version(version)
    except InvalidVersion as error:
        raise AxisError(
            f"--axis {printable(text)!r}: {printable(version)!r} is not a version", f"write PACKAGE=V1..V2, {_EXAMPLE}"
        ) from error


def _list_offered(package: str, python: str, options: Sequence[str]) -> list[Version]:
    """Return the versions that the index offers for this interpreter, without yanked versions, oldest first."""
    result = run_pip(python, "index", "versions", "--pre", *options, package, timeout_s=INDEX_TIMEOUT_S)
    listing = re.search(r"^Available versions: (.+)$", result.out, re.MULTILINE)
    if result.code == 0 and listing is not None:
        return sorted(
            {version for text in listing[1].split(",") if (version := _parse_version(text.strip())) is not None}
        )
    raise AxisError(_explain_no_versions(package, python, result))


def _parse_version(text: str) -> Version | None:
    """Parse a version. Return None for an old form such as 2004d, which pip before 24.1 still lists."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _explain_no_versions(package: str, python: str, result: InterpreterResult) -> str:
    """Return why pip listed no versions."""
    query = f"versions of {package} from pip of {python}"
    if 'unknown command "index"' in result.error:
        return f"{query}: this pip is too old; upgrade it to 21.2 or newer: '{python} -m pip install --upgrade pip'"
    has_timed_out = result.code is None
    if has_timed_out or _UNREACHABLE.search(result.error):
        problem = "the package index cannot be reached"
        if has_timed_out:
            problem = f"pip {describe_end(result, INDEX_TIMEOUT_S)}"
        return (
            f"{query}: {problem}; check the network, PIP_INDEX_URL and the proxy, or use a folder of wheels "
            f"(PIP_NO_INDEX=1, PIP_FIND_LINKS=FOLDER)\n{result.last_lines(3)}"
        )
    if "No matching distribution" in result.error:
        return (
            f"{query}: the index offers none for this interpreter; check the name, and the configured index with "
            f"'{python} -m pip config list'\n{result.last_lines(3)}"
        )
    return f"{query}: pip {describe_end(result, INDEX_TIMEOUT_S)}\n{result.last_lines()}"


def _match_offered(axis: VersionAxis, end: Version, offered: Sequence[Version]) -> Version | None:
    """Return the offered version that the user means by ``end``; None if the index does not offer it.

    If the user gave no label such as +cpu, and the index has a single labelled build of the version, that build is
    meant. Raises AxisError if there are several builds.
    """
    if end in offered:
        return offered[offered.index(end)]  # use the spelling of the index: 3.18.0 for 3.18
    builds = [version for version in offered if version.local and Version(version.public) == end]
    if len(builds) > 1:
        raise AxisError(f"{axis.package}: there are several builds of {end}", f"name one of: {_join_versions(builds)}")
    return builds[0] if builds else None


def _list_skipped(package: str, python: str, options: Sequence[str]) -> dict[Version, str]:
    """Return the versions that pip left out, each with pip's reason.

    If any file of a version is yanked, the reason is that one, because a yanked version can still be installed. This is
    a separate query, made only when needed, because its output is long.
    """
    result = run_pip(python, "index", "versions", "--pre", "-vv", *options, package, timeout_s=INDEX_TIMEOUT_S)
    reasons: dict[Version, str] = {}
    for line in result.out.splitlines():
        skipped_link = _SKIPPED_LINK.match(line)
        if skipped_link is None:
            continue
        file = unquote(skipped_link["file"])
        try:
            if file.endswith(".whl"):
                name, version, _, _ = parse_wheel_filename(file)
            else:
                name, version = parse_sdist_filename(file)
        except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
            continue
        if name == package and not reasons.get(version, "").startswith("yanked"):
            reasons[version] = clip(clean_output(skipped_link["why"]), 300)
    return reasons


def _missing_message(axis: VersionAxis, end: Version, offered: Sequence[Version], skip_reason: str) -> str:
    """Return why ``end`` cannot be used, with the nearest offered versions. ``skip_reason`` is '' if pip gave none."""
    by_distance = sorted(offered, key=lambda version: _count_versions_between(offered, version, end))
    nearest = sorted(by_distance[:MAX_NEAREST_LISTED])
    reason = (
        f" has it, but pip leaves it out ({skip_reason})" if skip_reason else " does not offer it to this interpreter"
    )
    return f"{axis.package} {end}: the index{reason}; it offers {_join_versions(nearest)}; name one of them in --axis"


def _count_versions_between(offered: Sequence[Version], version: Version, end: Version) -> int:
    """Return how many of the offered versions lie between ``version`` and ``end``."""
    return sum(min(version, end) < offer < max(version, end) for offer in offered)


def _join_versions(versions: Sequence[Version]) -> str:
    listed = ", ".join(map(str, versions[:MAX_VERSIONS_LISTED]))
    return listed + (", ..." if len(versions) > MAX_VERSIONS_LISTED else "")
