"""The dependency axis: its points are versions of one installed package, with the repository at one commit.

pip of the workload's interpreter asks the package index for the versions. So only versions that fit this interpreter
appear, and private indexes, proxies and folders of wheels work as they do for ``pip install``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import VERSION_PATTERN, InvalidVersion, Version

from regbot.bisect.environments import AxisError, describe_end, run_pip
from regbot.bisect.history import read_points
from regbot.records.bisection import Point
from regbot.records.text.printable import printable

INDEX_TIMEOUT_S = 600.0
"""Limit for the query of the index. It is long, because pip tries a slow index five times, each time as long as the
user's configuration says.
"""
MAX_VERSIONS_LISTED = 12
"""Maximum number of versions in a message."""

_EXAMPLE = "for example torch=2.8.0..2.9.1, the good version first"
_FLAGS = re.VERBOSE | re.IGNORECASE
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class VersionAxis:
    """The versions of one package from a good one to a bad one. The bad version may be older than the good version."""

    package: str
    first: Version
    """The good version."""
    last: Version
    """The bad version."""


def parse_axis(text: str) -> VersionAxis:
    """Parse ``package=V1..V2`` of --axis. Raises AxisError."""
    package, _, ends = text.partition("=")
    first, dots, last = ends.partition("..")
    try:
        if not dots or _NAME.fullmatch(package.strip()) is None:
            raise InvalidVersion
        axis = VersionAxis(canonicalize_name(package.strip()), Version(first), Version(last))
    except InvalidVersion as error:
        raise AxisError(f"--axis {printable(text)!r}: write PACKAGE=V1..V2, {_EXAMPLE}") from error
    if axis.first == axis.last:
        raise AxisError(f"--axis {printable(text)!r}: both ends are version {axis.first}", "name two versions")
    return axis


def versions_between(axis: VersionAxis, python: str) -> list[str]:
    """Return the versions from ``axis.first`` to ``axis.last``, both included, that the index offers for ``python``.

    ``python`` is the workload's interpreter. Yanked versions and pre-releases are left out, except for a pre-release as
    first or last version. Raises AxisError.

    A version can have several builds, which differ in a label such as +cpu. If the first and the last version have the
    same label, or both have none, only builds with this label are returned.
    """
    offered = _list_offered(axis.package, python)
    first, last = (_match_offered(axis.package, end, offered) for end in (axis.first, axis.last))
    if first == last:
        raise AxisError(f"{axis.package}: both ends of --axis are the build {first} of the index", "name two versions")
    low, high = sorted((first, last))
    has_one_label = first.local == last.local
    between = [
        version
        for version in offered
        if low < version < high and not version.is_prerelease and (version.local == first.local or not has_one_label)
    ]
    ascending = [str(version) for version in (low, *between, high)]
    return ascending if first == low else ascending[::-1]


def build_points(repo: Path, commit: str, versions: Sequence[str]) -> list[Point]:
    """Build a point for each of ``versions``, all at ``commit``. Raises CheckoutError."""
    (point,) = read_points(repo, "--no-walk", commit)
    return [point.model_copy(update={"version": version}) for version in versions]


def _list_offered(package: str, python: str) -> list[Version]:
    """Return the versions that the index offers for this interpreter, without yanked versions, oldest first."""
    result = run_pip(python, "index", "versions", "--pre", package, timeout_s=INDEX_TIMEOUT_S)
    listing = re.search(r"^Available versions: (.+)$", result.out, re.MULTILINE)
    if result.code != 0 or listing is None:
        raise AxisError(
            f"versions of {package} from pip of {python}: pip {describe_end(result)}\n{result.last_lines()}",
            "check the name, the network and the configuration of pip ('pip config list')",
        )
    # pip before 24.1 also lists versions of an old form, such as 2004d.
    return sorted(Version(text) for text in listing[1].split(", ") if re.fullmatch(VERSION_PATTERN, text, _FLAGS))


def _match_offered(package: str, end: Version, offered: Sequence[Version]) -> Version:
    """Return the offered version that the user means by ``end``, in the spelling of the index.

    If the user gave no label such as +cpu, and the index has a single labelled build of the version, that build is
    meant. Raises AxisError.
    """
    if end in offered:
        return offered[offered.index(end)]
    builds = [version for version in offered if version.local and Version(version.public) == end]
    if len(builds) == 1:
        return builds[0]
    # The versions around the missing one.
    place = sum(version < end for version in offered)
    nearest = builds or offered[max(0, place - MAX_VERSIONS_LISTED // 2) : place + MAX_VERSIONS_LISTED // 2]
    problem = "has several builds of it" if builds else "does not offer it to this interpreter"
    listed = ", ".join(map(str, nearest[:MAX_VERSIONS_LISTED]))
    raise AxisError(f"{package} {end}: the index {problem}", f"name one of {listed} in --axis")
