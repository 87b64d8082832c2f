"""The dependency axis against real pip: which versions there are, and an environment for each of them."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regbot.bisect import pip
from regbot.bisect.versions import (
    AxisError,
    VersionAxis,
    VersionEnvironment,
    VersionUnavailable,
    build_points,
    find_shadowing,
    parse_axis,
    provide_environment,
    versions_between,
)
from regbot.checkout import CheckoutError
from regbot.config import ConfigError
from support.git_repos import Repository
from support.version_packages import namespace_wheel, sdist, simple_index, unpack, wheel

SHOW = "import fast_dep, neighbour, json; print(json.dumps([fast_dep.VERSION, fast_dep.__file__, neighbour.NAME]))"
LIBRARY = {"vendor/fast/libfast.so.2": "", "vendor/fast/__init__.py": ""}


def module(version: str) -> str:
    return f"VERSION = {version!r}\n"


@pytest.fixture(autouse=True)
def _pip_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the indexes that this machine is configured with."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "1.2", "1.10", "1.11rc1", "2.0", "2.0+cpu"):
        wheel(folder, "fast-dep", version, module(version))
    wheel(folder, "fast-dep", "3.0", module("3.0"), requires=("absent-thing>=1",))
    for version in ("4.0+cpu", "4.0+gpu", "4.1+cpu", "4.2+cpu"):
        wheel(folder, "labelled", version, module(version))
    return folder


@pytest.fixture(scope="module")
def options(wheels: Path) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(wheels))


def make_parent(folder: Path, packages: Path) -> Path:
    """A virtual environment with pip, an older fast-dep, and a neighbour with a command of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (site,) = folder.glob("lib/python*/site-packages")
    theirs = importlib.util.find_spec("pip")
    assert theirs is not None, "these tests need pip: python -m ensurepip"
    assert theirs.origin is not None
    (site / "pip").symlink_to(Path(theirs.origin).parent)
    unpack(packages / "fast_dep-1.0-py3-none-any.whl", site)
    unpack(wheel(folder / "made", "neighbour", "0.5", "NAME = 'next'\n", requires=("fast-dep<2",)), site)
    unpack(namespace_wheel(folder / "made", "vendor-fast", "1.0", LIBRARY), site)
    script = folder / "bin" / "neighbour"
    script.write_text(f"#!{folder}/bin/python\nimport fast_dep\nprint(fast_dep.VERSION)\n")
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Path:
    return make_parent(tmp_path_factory.mktemp("parent") / "venv", wheels)


@pytest.fixture
def python(parent: Path) -> str:
    return str(parent / "bin" / "python")


def site_of(environment: VersionEnvironment) -> Path:
    (site,) = Path(environment.python).parents[1].glob("lib/python*/site-packages")
    return site


def run(command: list[str], environment: VersionEnvironment | None = None) -> str:
    env = {**os.environ, **(environment.variables if environment else {})}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """All files but compiled Python, with their size and time."""
    result = {path: path.lstat() for path in folder.rglob("*") if "__pycache__" not in path.parts}
    return {str(path): (at.st_size, at.st_mtime_ns) for path, at in result.items() if not path.is_dir()}


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("torch=2.8.0..2.9.1", VersionAxis("torch", "2.8.0", "2.9.1")),
        ("Deep_EP = 1.2 .. 1.1.post1", VersionAxis("deep-ep", "1.2", "1.1.post1")),
        ("torch=2.9.0+cpu..2.10.0RC1", VersionAxis("torch", "2.9.0+cpu", "2.10.0rc1")),
    ],
)
def test_an_axis_is_a_package_and_its_good_and_bad_version(text: str, axis: VersionAxis) -> None:
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    "text",
    ["", "torch", "torch=2.8", "torch=2.8..", "=1..2", "a b=1..2", "--no-index=1..2", "torch=good..bad", "x=1...2"],
)
def test_rubbish_for_an_axis_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(AxisError, match=r"PACKAGE=V1\.\.V2, for example torch=2\.8\.0\.\.2\.9\.1"):
        parse_axis(text)


def test_versions_of_the_old_kind_that_an_older_pip_lists_are_left_out(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'pytz (2025.1)'\necho 'Available versions: 2025.1, 2024.2, 2004d, 2023.3'\n")
    python.chmod(0o755)
    assert versions_between(VersionAxis("pytz", "2023.3", "2025.1"), str(python)) == ["2023.3", "2024.2", "2025.1"]


def test_any_signal_that_ends_pip_has_words() -> None:
    for number, words in ((9, "SIGKILL"), (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}")):
        ended = pip.run_interpreter(
            sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})", timeout_s=60
        )
        assert pip.describe_end(ended, 60) == f"was killed by {words}"


def test_an_axis_of_one_version_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match=r"both ends are version 1\.0; name two different versions"):
        parse_axis("torch=1.0..1.0")
    with pytest.raises(AxisError, match="both ends"):
        parse_axis("torch=1.0..1.0.0")


@pytest.mark.slow
def test_versions_are_listed_as_numbers_in_the_direction_of_the_axis(python: str, options: tuple[str, ...]) -> None:
    up = versions_between(VersionAxis("fast-dep", "1.0", "2.0"), python, options)
    assert up == ["1.0", "1.2", "1.10", "2.0"]
    assert (
        versions_between(VersionAxis("fast-dep", "2.0.0", "1"), python, options) == up[::-1]
    )  # as the index spells them


def test_the_users_own_pip_variables_say_where_packages_are(
    python: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_QUIET", "3")
    assert versions_between(VersionAxis("fast-dep", "1.2", "1.10"), python) == ["1.2", "1.10"]


@pytest.mark.slow
def test_pre_releases_are_left_out_unless_they_are_an_end(python: str, options: tuple[str, ...]) -> None:
    axis = VersionAxis("fast-dep", "1.10", "2.0")
    assert versions_between(axis, python, options) == ["1.10", "2.0"]
    assert versions_between(VersionAxis("fast-dep", "1.10", "1.11rc1"), python, options) == ["1.10", "1.11rc1"]


@pytest.mark.slow
def test_only_builds_of_the_kind_of_both_ends_are_walked(python: str, options: tuple[str, ...]) -> None:
    walked = versions_between(VersionAxis("labelled", "4.0+cpu", "4.2"), python, options)
    assert walked == ["4.0+cpu", "4.1+cpu", "4.2+cpu"]
    with pytest.raises(AxisError, match=r"several builds of 4\.0; name one of: 4\.0\+cpu, 4\.0\+gpu"):
        versions_between(VersionAxis("labelled", "4.0", "4.2"), python, options)
    with pytest.raises(AxisError, match=r"are the same version in this index"):
        versions_between(VersionAxis("labelled", "4.2", "4.2+cpu"), python, options)


@pytest.mark.slow
def test_an_index_tells_what_is_yanked_and_what_does_not_fit(python: str, tmp_path: Path) -> None:
    made = {v: wheel(tmp_path, "fast-dep", v, "") for v in ("1.0", "1.1", "1.2", "1.2.1", "1.3+a", "1.4")}
    attributes = {"1.1": 'data-yanked="slow: it leaks"', "1.4": 'data-requires-python="&gt;=3.99"'}
    attributes["1.2"] = 'data-yanked=""'
    url = simple_index(tmp_path, "fast-dep", {path: attributes.get(version, "") for version, path in made.items()})
    at = ("--index-url", url)
    assert versions_between(VersionAxis("fast-dep", "1.1", "1.3+a"), python, at) == ["1.1", "1.2.1", "1.3+a"]
    with pytest.raises(AxisError, match=r"1\.4: the index has it, but pip leaves it out \(.*3\.99.*it offers 1\.0, "):
        versions_between(VersionAxis("fast-dep", "1.0", "1.4"), python, at)


@pytest.mark.slow
def test_an_end_that_is_not_offered_is_answered_with_those_nearby(python: str, options: tuple[str, ...]) -> None:
    with pytest.raises(AxisError, match=r"fast-dep 1\.9: the index does not offer it .*1\.0, 1\.2, 1\.10, .*--axis"):
        versions_between(VersionAxis("fast-dep", "1.9", "2.0"), python, options)


def test_a_package_that_no_index_has_is_named(python: str, options: tuple[str, ...]) -> None:
    with pytest.raises(AxisError, match=r"(?s)fast-depp from pip of .*offers none .*check the name"):
        versions_between(VersionAxis("fast-depp", "1.0", "2.0"), python, options)


def test_an_index_that_cannot_be_reached_is_told_from_an_unknown_package(python: str) -> None:
    nowhere = ("--index-url", "http://me:secret@127.0.0.1:9/simple", "--retries", "1")
    with pytest.raises(AxisError, match="cannot be reached; check the network") as caught:
        versions_between(VersionAxis("fast-dep", "1.0", "2.0"), python, nowhere)
    assert "secret" not in str(caught.value)


def test_an_interpreter_without_pip_is_a_usage_error_that_says_how_to_add_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=60)
    bare = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(AxisError, match=r"has no pip.*ensurepip"):
        versions_between(VersionAxis("fast-dep", "1.0", "2.0"), bare, ("--no-index",))
    with pytest.raises(AxisError, match=r"has no pip.*ensurepip"):
        provide_environment(tmp_path / "cache", "fast-dep", "1.0", bare, ("--no-index",))


def test_what_is_no_interpreter_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(AxisError, match="missing/python: cannot be started"):
        versions_between(VersionAxis("fast-dep", "1.0", "2.0"), "missing/python")
    with pytest.raises(AxisError, match="true: is not a Python interpreter"):
        provide_environment(tmp_path, "fast-dep", "1.0", "true")
    with pytest.raises(AxisError, match="false: cannot be used as an interpreter"):
        provide_environment(tmp_path, "fast-dep", "1.0", "false")


def test_an_option_that_is_not_about_the_index_is_refused(python: str, tmp_path: Path) -> None:
    with pytest.raises(AxisError, match="--target: is not an option of a package index"):
        versions_between(VersionAxis("fast-dep", "1.0", "2.0"), python, ("--target=elsewhere",))
    with pytest.raises(AxisError, match="'good' is not a version"):
        provide_environment(tmp_path, "fast-dep", "good", python)


def test_the_points_are_the_versions_under_one_commit(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "repo")
    first = repository.commit("start", {"a": "1"})
    second = repository.commit("Pin the dependency (#42)", {"a": "2"})
    points = build_points(repository.path, "HEAD", VersionAxis("fast-dep", "2.0", "1.0"), ["2.0", "1.2", "1.0"])
    assert [(point.name, point.key) for point in points] == [(v, f"{second}+{v}") for v in ("2.0", "1.2", "1.0")]
    tree = repository.git("rev-parse", "HEAD^{tree}")
    assert {(p.tree, *p.parents, p.subject, p.pull_request) for p in points} == {
        (tree, first, "Pin the dependency (#42)", 42)
    }
    assert (points[0].author, points[0].date[:2]) == ("tester@example.org", "20")
    with pytest.raises(CheckoutError, match="names no commit"):
        build_points(repository.path, "nowhere", VersionAxis("fast-dep", "1.0", "2.0"), ["1.0", "2.0"])
    with pytest.raises(AxisError, match="1 version; a bisection needs at least two"):
        build_points(repository.path, "HEAD", VersionAxis("fast-dep", "1.0", "2.0"), ["1.0"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache dir")


@pytest.fixture
def two(cache: Path, python: str, options: tuple[str, ...]) -> VersionEnvironment:
    """The environment of 2.0, from the cache all tests share."""
    return provide_environment(cache, "fast-dep", "2.0", python, options)


@pytest.mark.slow
def test_an_environment_sees_what_its_parent_sees_and_its_own_version_first(
    cache: Path, parent: Path, python: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(parent)
    monkeypatch.setenv("PIP_TARGET", str(parent / "wrong"))
    monkeypatch.setenv("PIP_CONSTRAINT", str(parent / "constraints.txt"))  # as vendors' containers set one
    monkeypatch.setenv("PYTHONPATH", str(parent / "made"))
    made = provide_environment(cache, "fast-dep", "2.0", python, options)
    monkeypatch.delenv("PYTHONPATH")
    assert (made.built, made.installed) == (True, "2.0")  # not 2.0+cpu
    assert made.build_s > 0
    version, file, name = json.loads(run([made.python, "-c", SHOW]))
    assert (version, name) == ("2.0", "next")
    assert Path(file).parent == site_of(made)
    path = json.loads(run([made.python, "-c", "import sys, json; print(json.dumps(sys.path))"]))
    (theirs,) = parent.glob("lib/python*/site-packages")
    assert path.index(str(site_of(made))) < path.index(str(theirs))
    seen = json.loads(run([python, "-c", "import sys, json; print(json.dumps(sys.path))"]))
    assert set(path) - {str(site_of(made))} == set(seen)
    assert files_of(parent) == before
    assert run([python, "-c", "import fast_dep; print(fast_dep.VERSION)"]) == "1.0"


def test_a_launch_finds_the_environments_commands_and_interpreter(two: VersionEnvironment) -> None:
    assert run(["python", "-c", "import fast_dep; print(fast_dep.VERSION)"], two) == "2.0"
    assert run(["neighbour"], two) == "2.0"  # the parent's command would run the parent's interpreter
    assert two.variables["VIRTUAL_ENV"] == str(Path(two.python).parents[1])


def test_a_requirement_of_others_that_no_longer_fits_is_a_warning(two: VersionEnvironment) -> None:
    (warning,) = two.warnings
    assert warning.startswith("requirements are not met: neighbour 0.5 has requirement fast-dep<2, but you have")


def edit(environment: VersionEnvironment) -> None:
    file = site_of(environment) / "fast_dep.py"
    status = file.stat()
    file.write_text(module("9.9"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def plant(environment: VersionEnvironment) -> None:
    (site_of(environment) / "sitecustomize.py").write_text("")


@pytest.mark.slow
@pytest.mark.parametrize("tamper", [edit, plant])
def test_an_environment_that_is_no_longer_what_was_installed_is_made_again(
    tamper: Callable[[VersionEnvironment], None],
    two: VersionEnvironment,
    cache: Path,
    python: str,
    options: tuple[str, ...],
) -> None:
    tamper(two)
    again = provide_environment(cache, "Fast_Dep", "2.0", python, options)
    assert again.built
    assert run([again.python, "-c", "import fast_dep; print(fast_dep.VERSION)"]) == "2.0"
    assert not (site_of(again) / "sitecustomize.py").exists()
    assert not Path(two.python).exists()


def test_a_run_that_leaves_compiled_python_behind_changes_nothing(
    two: VersionEnvironment, cache: Path, python: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    run([two.python, "-O", "-c", "import fast_dep"])
    assert list(site_of(two).glob("__pycache__/fast_dep*opt-1.pyc"))
    assert not provide_environment(cache, "fast-dep", "2.0", python, options).built


def test_a_copy_that_the_checkout_brings_is_found_to_hide_all_versions(two: VersionEnvironment, tmp_path: Path) -> None:
    assert find_shadowing(two, "fast-dep", [tmp_path]) == ""
    (tmp_path / "fast_dep").mkdir()
    assert find_shadowing(two, "fast-dep", [tmp_path]) == ""  # a folder without code hides nothing
    (tmp_path / "fast_dep" / "__init__.py").write_text("")
    assert find_shadowing(two, "fast-dep", [tmp_path]) == str(tmp_path / "fast_dep" / "__init__.py")


@pytest.mark.slow
def test_an_editable_package_of_the_parent_loses_and_one_put_first_hides_all_versions(
    tmp_path: Path, wheels: Path, options: tuple[str, ...]
) -> None:
    parent = make_parent(tmp_path / "venv", wheels)
    (site,) = parent.glob("lib/python*/site-packages")
    source = tmp_path / "source"
    source.mkdir()
    (site / "fast_dep.py").rename(source / "fast_dep.py")
    (source / "only_here.py").write_text("")
    (site / "__editable__.fast_dep.pth").write_text(f"{source}\n")
    made = provide_environment(tmp_path / "cache", "fast-dep", "1.2", str(parent / "bin" / "python"), options)
    assert run([made.python, "-c", "import fast_dep, only_here; print(fast_dep.VERSION)"]) == "1.2"
    (site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(source)!r})\n")
    with pytest.raises(VersionUnavailable, match=r"fast-dep 1\.2 is hidden: .*source/fast_dep\.py would be imported"):
        provide_environment(tmp_path / "cache", "fast-dep", "1.2", str(parent / "bin" / "python"), options)


@pytest.mark.slow
def test_a_package_of_shared_libraries_says_that_others_may_load_the_parents(tmp_path: Path, python: str) -> None:
    made = namespace_wheel(tmp_path, "vendor-fast", "2.0", LIBRARY)
    local = ("--no-index", "-f", str(made.parent))
    (warning,) = provide_environment(tmp_path / "cache", "vendor-fast", "2.0", python, local).warnings
    assert warning.startswith("vendor-fast has shared libraries only")
    assert "may still load 1.0, which" in warning


@pytest.mark.slow
def test_a_version_that_does_not_build_is_unavailable_with_the_last_words_of_pip(tmp_path: Path, python: str) -> None:
    sdist(tmp_path, "built-dep", "1.0", module("1.0"), how="raise RuntimeError('no nvcc at http://me:secret@host')")
    local, cache = ("--no-index", "-f", str(tmp_path)), tmp_path / "cache"
    with pytest.raises(VersionUnavailable, match=r"(?s)built-dep==1\.0 failed with exit code 1\n.*no nvcc") as caught:
        provide_environment(cache, "built-dep", "1.0", python, local)
    assert "secret" not in str(caught.value)
    with pytest.raises(VersionUnavailable, match="No matching distribution"):
        provide_environment(cache, "built-dep", "1.1", python, local)
    assert [path for path in cache.rglob("*") if path.suffix != ".lock" and path.is_file()] == []


SLOW = """\
note = pathlib.Path({note!r})
first = not note.exists()
if first:
    note.write_text(str(__import__('os').getpid()))
deadline = time.monotonic() + 40
while first and not note.with_suffix('.go').exists() and time.monotonic() < deadline:
    time.sleep(0.02)"""


@pytest.fixture
def note(tmp_path: Path) -> Iterator[Path]:
    """Where a build that waits, the first of built-dep, notes its process, which is ended at last."""
    note = tmp_path / "note"
    sdist(tmp_path, "built-dep", "1.0", module("1.0"), how=SLOW.format(note=str(note)))
    yield note
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(note.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_build_that_passes_its_time_makes_its_version_unavailable(note: Path, python: str) -> None:
    local = ("--no-index", "-f", str(note.parent))
    with pytest.raises(VersionUnavailable, match=r"pip install built-dep==1\.0 did not end within 1 s and was killed"):
        provide_environment(note.parent / "cache", "built-dep", "1.0", python, local, timeout_s=1)


@pytest.mark.slow
def test_what_passes_its_time_is_ended_with_the_processes_it_started(tmp_path: Path) -> None:
    child = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    ended = pip.run_interpreter(sys.executable, "-c", child, timeout_s=3)
    assert ended.code is None
    wait_until(lambda: not alive(int(ended.out)))


@pytest.mark.slow
def test_what_was_killed_in_the_middle_is_made_again_and_a_pip_left_over_does_no_harm(note: Path, python: str) -> None:
    local, cache = ("--no-index", "-f", str(note.parent)), note.parent / "cache"
    call = (
        "import sys, pathlib; from regbot.bisect.versions import provide_environment; "
        "provide_environment(pathlib.Path(sys.argv[1]), 'built-dep', '1.0', sys.argv[2], sys.argv[3:])"
    )
    maker = subprocess.Popen([sys.executable, "-c", call, str(cache), python, *local])
    wait_until(lambda: note.exists() and note.read_text() != "")
    maker.kill()
    maker.wait(10)
    builder = int(note.read_text())
    assert alive(builder), "pip runs in a session of its own"
    made = provide_environment(cache, "built-dep", "1.0", python, local)
    assert made.built
    assert made.warnings == (f"{python} has no built-dep that these versions could replace; check the name",)
    note.with_suffix(".go").touch()
    wait_until(lambda: not alive(builder))
    again = provide_environment(cache, "built-dep", "1.0", python, local)
    assert (again.python, again.built) == (made.python, False)
    assert run([again.python, "-c", "import built_dep; print(built_dep.VERSION)"]) == "1.0"


@pytest.mark.slow
def test_two_that_want_one_environment_at_once_make_it_once_and_both_get_its_warnings(
    tmp_path: Path, python: str, options: tuple[str, ...]
) -> None:
    made: list[VersionEnvironment] = []

    def want() -> None:
        made.append(provide_environment(tmp_path / "cache", "fast-dep", "3.0", python, options))

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(environment.built for environment in made) == [False, True]
    assert made[0].python == made[1].python
    assert made[0].warnings == made[1].warnings
    assert any("fast-dep 3.0 requires absent-thing, which is not installed" in word for word in made[0].warnings)
    (reused,) = (environment for environment in made if not environment.built)
    assert reused.build_s == 0.0


@pytest.mark.slow
def test_an_interpreter_that_is_in_no_environment_passes_its_packages_on(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    base = str(sys._base_executable)  # type: ignore[attr-defined]
    if subprocess.run([base, "-m", "pip", "--version"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("the interpreter that this environment was made from has no pip")
    made = provide_environment(tmp_path / "cache", "fast-dep", "1.2", base, options)
    assert run([made.python, "-c", "import fast_dep; print(fast_dep.VERSION)"]) == "1.2"
    show = "import sys, json; print(json.dumps(sys.path))"
    path, seen = json.loads(run([made.python, "-c", show])), json.loads(run([base, "-c", show]))
    assert set(path) - {str(site_of(made))} == set(seen)
    assert all(path.index(str(site_of(made))) < path.index(place) for place in seen if "-packages" in place)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], bool], most_s: float = 30) -> None:
    deadline = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
