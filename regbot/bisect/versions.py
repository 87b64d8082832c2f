"""The dependency axis: the versions of one installed package are the points, the repository stays at one commit.

Which versions there are is asked of the package index by pip itself, under the workload's interpreter: only versions
that fit it count, and private indexes, proxies and folders of wheels work as they do for ``pip install``. The
environments in which the versions run are those of ``regbot.bisect.environments``.
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
from regbot.bisect.environments import environment_for as environment_for
from regbot.bisect.environments import hidden_by as hidden_by
from regbot.bisect.pip import AxisError as AxisError
from regbot.bisect.pip import Ended, clean, how, index_arguments, run_pip
from regbot.checkout.git import find_commit, git
from regbot.records.bisection import Point
from regbot.text import printable

INDEX_TIMEOUT_S = 600.0
"""pip tries a slow index five times, each for as long as the user's configuration says."""

_EXAMPLE = "for example torch=2.8.0..2.9.1, the good version first"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_UNREACHABLE = re.compile(
    r"connection broken by|could not fetch URL|max retries exceeded|connection error|timed out|ProxyError|SSLError",
    re.IGNORECASE,
)
_SKIPPED = re.compile(r"\s*Skipping link: (?P<why>.+): \S+/(?P<file>[^/\s#]+)(#\S*)?( \(|$)")
_PULL_REQUEST = re.compile(r"Merge pull request #([1-9][0-9]{0,9}) from |.* \(#([1-9][0-9]{0,9})\)$")


@dataclass(frozen=True)
class Axis:
    """The versions of one package, from a good one to a bad one; downwards where the bad one is older."""

    package: str
    first: str
    last: str


def parse_axis(text: str) -> Axis:
    """``package=V1..V2`` of --axis. Raises AxisError."""
    package, equals, ends = text.partition("=")
    first, dots, last = ends.partition("..")
    package = package.strip()
    if not equals or not dots or _NAME.fullmatch(package) is None:
        raise AxisError(f"--axis {printable(text)!r}: write PACKAGE=V1..V2, {_EXAMPLE}")
    good, bad = (_end(text, end.strip()) for end in (first, last))
    if good == bad:
        raise AxisError(
            f"--axis {printable(text)!r}: both ends are version {good}; name the last good and the first bad one"
        )
    return Axis(canonicalize_name(package), str(good), str(bad))


def versions_between(axis: Axis, python: str, index_options: Sequence[str] = (), pre: bool = False) -> list[str]:
    """The versions from ``axis.first`` to ``axis.last``, both included, that the index offers for ``python``.

    Yanked ones and, without ``pre``, pre-releases only where they are an end. Where both ends are builds of one kind
    (2.9.0+cpu, or both without such a label), only that kind. An end without a label stands for the one build there is
    of it. ``index_options`` are pip's, such as ``--index-url``. Raises AxisError.
    """
    options = index_arguments(index_options)
    offered = _offered(axis.package, python, options)
    skipped: dict[Version, str] | None = None
    ends = []
    for text in (axis.first, axis.last):
        found = _find(axis, Version(text), offered)
        if found is None:
            skipped = skipped if skipped is not None else _skipped(axis.package, python, options)
            found = next((version for version in skipped if version == Version(text)), Version(text))
            if not skipped.get(found, "").startswith("yanked"):
                raise AxisError(_missing(axis, found, offered, skipped.get(found, "")))
        ends.append(found)
    if ends[0] == ends[1]:
        raise AxisError(
            f"{axis.package}: {axis.first} and {axis.last} are one version here, {ends[0]}; name two of: "
            f"{_list(offered)}"
        )
    low, high = sorted(ends)
    kind = {end.local for end in ends}
    between = [
        version
        for version in offered
        if low < version < high and (pre or not version.is_prerelease) and (len(kind) > 1 or version.local in kind)
    ]
    upwards = [str(version) for version in (low, *between, high)]
    return upwards if ends[0] == low else upwards[::-1]


def points_of(repo: Path, commit: str, axis: Axis, versions: Sequence[str]) -> list[Point]:
    """A point for each of ``versions``, all of them ``commit``. Raises AxisError and CheckoutError."""
    if len(versions) < 2:
        raise AxisError(f"{axis.package}: {len(versions)} version{'s' * (len(versions) != 1)}; a bisection needs two")
    commit = find_commit(repo, commit, "commit")
    shown = git(repo, "log", "-1", "--no-show-signature", "--format=%T%x00%P%x00%an%x00%aI%x00%s", commit)
    tree, parents, author, date, subject = (printable(field) for field in shown.removesuffix("\n").split("\0"))
    number = _PULL_REQUEST.match(subject)
    return [
        Point(
            commit=commit,
            tree=tree,
            parents=parents.split(),
            subject=subject[:500],
            author=author[:500],
            date=date[:500],
            pull_request=int(number[1] or number[2]) if number else None,
            version=version,
        )
        for version in versions
    ]


def _end(text: str, version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise AxisError(
            f"--axis {printable(text)!r}: {printable(version)!r} is no version; write PACKAGE=V1..V2, {_EXAMPLE}"
        ) from error


def _offered(package: str, python: str, options: Sequence[str]) -> list[Version]:
    """All that the index has for this interpreter, yanked ones left out, oldest first."""
    ended = run_pip(python, "index", "versions", "--pre", *options, package, timeout_s=INDEX_TIMEOUT_S)
    answer = re.search(r"^Available versions: (.+)$", ended.out, re.MULTILINE)
    if ended.code == 0 and answer is not None:
        return sorted({found for text in answer[1].split(",") if (found := _version(text.strip())) is not None})
    raise AxisError(_refused(package, python, ended))


def _version(text: str) -> Version | None:
    """None for one of the old kind, such as 2004d, which a pip before 24.1 still lists: nobody can ask for it."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _refused(package: str, python: str, ended: Ended) -> str:
    """Why pip named no versions."""
    asked = f"the versions of {package}, asked by pip of {python}"
    if 'unknown command "index"' in ended.error:
        return f"{asked}: that pip is too old; bring it to 21.2 or newer: '{python} -m pip install --upgrade pip'"
    if ended.code is None or _UNREACHABLE.search(ended.error):
        what = f"pip {how(ended, INDEX_TIMEOUT_S)}" if ended.code is None else "the package index cannot be reached"
        return (
            f"{asked}: {what}; check the network, PIP_INDEX_URL and the proxy, or use a folder of wheels "
            f"(PIP_NO_INDEX=1, PIP_FIND_LINKS=FOLDER)\n{ended.last_lines(3)}"
        )
    if "No matching distribution" in ended.error:
        return (
            f"{asked}: the index offers none that fits this interpreter; check the name, and with "
            f"'{python} -m pip config list' which index is asked\n{ended.last_lines(3)}"
        )
    return f"{asked}: pip {how(ended, INDEX_TIMEOUT_S)}\n{ended.last_lines()}"


def _find(axis: Axis, end: Version, offered: Sequence[Version]) -> Version | None:
    if end in offered:
        return offered[offered.index(end)]  # in the index's spelling: 3.18.0 for 3.18
    builds = [version for version in offered if version.local and Version(version.public) == end]
    if len(builds) > 1:
        raise AxisError(f"{axis.package}: there are several builds of {end}; name one of: {_list(builds)}")
    return builds[0] if builds else None


def _skipped(package: str, python: str, options: Sequence[str]) -> dict[Version, str]:
    """Versions that the index has and pip left out, with its reason. Asked a second time: it is long."""
    ended = run_pip(python, "index", "versions", "--pre", "-vv", *options, package, timeout_s=INDEX_TIMEOUT_S)
    found: dict[Version, str] = {}
    for said in filter(None, map(_SKIPPED.match, ended.out.splitlines())):
        file = unquote(said["file"])
        try:
            name, version = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
        except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
            continue
        if name == package and not found.get(version, "").startswith("yanked"):
            found[version] = clean(said["why"])[:300]
    return found


def _missing(axis: Axis, end: Version, offered: Sequence[Version], why: str) -> str:
    near = sorted(sorted(offered, key=lambda version: _distance(offered, version, end))[:6])
    reason = f" has it, but pip leaves it out ({why})" if why else " does not offer it to this interpreter"
    return f"{axis.package} {end}: the index{reason}; it offers {_list(near)}; name one of them in --axis"


def _distance(offered: Sequence[Version], version: Version, end: Version) -> int:
    """How many versions lie between."""
    return sum(min(version, end) < other < max(version, end) for other in offered)


def _list(versions: Sequence[Version]) -> str:
    shown = ", ".join(map(str, versions[:12]))
    return shown + (", ..." if len(versions) > 12 else "")
