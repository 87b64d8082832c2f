"""The dependency axis against real pip: which versions there are, and a folder for each of them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from regbot.bisect.environments import AxisError, VersionFolder, VersionUnavailable, find_shadowing, provide_version
from regbot.bisect.versions import VersionAxis, parse_axis, versions_between
from support.version_packages import sdist, unpack, wheel


def module(version: str) -> str:
    return f"VERSION = {version!r}\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "1.2", "1.10", "1.11rc1", "2.0", "2.0+cpu"):
        wheel(folder, "fast-dep", version, module(version))
    wheel(folder, "fast-dep", "3.0", module("3.0"), requires=("absent-thing>=1",))
    for version in ("4.0+cpu", "4.0+gpu", "4.1+cpu", "4.2+cpu"):
        wheel(folder, "labelled", version, module(version))
    sdist(folder, "fast-dep", "5.0", module("5.0"), how="raise SystemExit('no compiler here')")
    return folder


@pytest.fixture(autouse=True)
def _pip_of_nobody(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    """The folder of wheels instead of the indexes that this machine is configured with."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> str:
    """A virtual environment with pip, an older fast-dep, and a neighbour with a command of its own."""
    folder = tmp_path_factory.mktemp("parent") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (site,) = folder.glob("lib/python*/site-packages")
    theirs = importlib.util.find_spec("pip")
    assert theirs is not None, "these tests need pip: python -m ensurepip"
    assert theirs.origin is not None
    (site / "pip").symlink_to(Path(theirs.origin).parent)
    unpack(wheels / "fast_dep-1.0-py3-none-any.whl", site)
    unpack(wheel(folder / "made", "neighbour", "0.5", "NAME = 'next'\n", requires=("fast-dep<2",)), site)
    script = folder / "bin" / "neighbour"
    script.write_text(f"#!{folder}/bin/python\nimport fast_dep\nprint(fast_dep.VERSION)\n")
    script.chmod(0o755)
    return str(folder / "bin" / "python")


def run(command: list[str], installed: VersionFolder) -> str:
    done = subprocess.run(
        command, env={**os.environ, **installed.variables()}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "package", "first", "last"),
    [
        ("torch=2.8.0..2.9.1", "torch", "2.8.0", "2.9.1"),
        ("Deep_EP = 1.2 .. 1.1.post1", "deep-ep", "1.2", "1.1.post1"),
        ("torch=2.9.0+cpu..2.10.0RC1", "torch", "2.9.0+cpu", "2.10.0rc1"),
    ],
)
def test_an_axis_is_a_package_and_its_good_and_bad_version(text: str, package: str, first: str, last: str) -> None:
    assert parse_axis(text) == VersionAxis(package, Version(first), Version(last))


@pytest.mark.parametrize(
    ("axis", "versions"),
    [
        ("fast-dep=1.0..2.0", ["1.0", "1.2", "1.10", "2.0"]),
        ("fast-dep=2.0..1.2", ["2.0", "1.10", "1.2"]),
        ("fast-dep=1.11rc1..2", ["1.11rc1", "2.0"]),
        ("labelled=4.1..4.2", ["4.1+cpu", "4.2+cpu"]),
        ("labelled=4.0+cpu..4.2", ["4.0+cpu", "4.1+cpu", "4.2+cpu"]),
    ],
)
def test_the_versions_between_are_those_of_the_index_in_order(python: str, axis: str, versions: list[str]) -> None:
    assert versions_between(parse_axis(axis), python) == versions


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ("fast-dep=1.0..1.5", "does not offer it to this interpreter; name one of 1.0, 1.2, 1.10"),
        ("labelled=4.0..4.2", r"has several builds of it; name one of 4.0\+cpu, 4.0\+gpu"),
        ("labelled=4.1..4.1+cpu", r"are the build 4.1\+cpu"),
        ("nothing-of-it=1..2", "No matching distribution found"),
    ],
)
def test_versions_that_the_index_lacks_are_named_with_what_it_has(python: str, axis: str, message: str) -> None:
    with pytest.raises(AxisError, match=message):
        versions_between(parse_axis(axis), python)


def test_a_version_comes_before_the_one_of_the_interpreter_and_changes_nothing_else(
    tmp_path: Path, python: str
) -> None:
    installed = provide_version(tmp_path, "fast-dep", "1.10", python)
    assert (installed.built, installed.warnings) == (True, ())
    show = "import fast_dep, neighbour; print(fast_dep.VERSION, neighbour.NAME)"
    assert run([python, "-c", show], installed) == "1.10 next"
    assert run([str(Path(python).with_name("neighbour"))], installed) == "1.10", "programs import the version too"
    assert find_shadowing(installed, "fast-dep", python) == ""
    assert provide_version(tmp_path, "fast-dep", "1.10", python).built is False
    with_label = provide_version(tmp_path, "fast-dep", "2.0", python)
    assert run([python, "-c", show], with_label) == "2.0 next", "and not the build 2.0+cpu"
    assert any("fast-dep" in warning for warning in with_label.warnings), "the neighbour needs fast-dep<2"


def test_a_copy_in_the_checkout_hides_all_versions(tmp_path: Path, python: str) -> None:
    installed = provide_version(tmp_path / "cache", "fast-dep", "1.2", python)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "fast_dep.py").write_text("VERSION = 'of the checkout'\n")
    assert find_shadowing(installed, "fast-dep", python, [tmp_path / "src"]) == str(tmp_path / "src" / "fast_dep.py")


def test_a_version_that_does_not_install_says_why_and_is_tried_again(tmp_path: Path, python: str) -> None:
    for _ in range(2):
        with pytest.raises(VersionUnavailable, match=r"(?s)pip install fast-dep==5.0 failed with exit code 1.*no comp"):
            provide_version(tmp_path, "fast-dep", "5.0", python)


def test_an_output_of_pip_tells_no_password(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", f"https://me:secret@127.0.0.1:1/ {tmp_path}")
    with pytest.raises(VersionUnavailable) as caught:
        provide_version(tmp_path, "fast-dep", "1.0", python)
    assert "secret" not in str(caught.value)
