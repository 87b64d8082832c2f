"""Small Python packages for tests, made without a network: a folder of them is a package index."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BACKEND = """\
import pathlib, shutil, sys, time


def build_wheel(folder, config_settings=None, metadata_directory=None):
    {how}
    wheel = next(pathlib.Path(".").glob("*.whl"))
    shutil.copy(wheel, folder)
    return wheel.name
"""


def wheel(folder: Path, name: str, version: str, source: str, requires: Sequence[str] = (), python: str = "") -> Path:
    """A wheel of one module, ``name``, that holds ``source``."""
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    needs = [f"Requires-Dist: {need}" for need in requires] + ([f"Requires-Python: {python}"] if python else [])
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *needs, ""])
    files = {
        f"{module}.py": source,
        f"{about}/METADATA": metadata,
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return _pack(folder, f"{module}-{version}-py3-none-any.whl", about, files)


def sdist(folder: Path, name: str, version: str, source: str, how: str = "pass") -> Path:
    """A source distribution that builds to ``wheel`` of the same, without build requirements, once ``how`` has run."""
    parts = folder / f"parts-{version}"
    built = wheel(parts, name, version, source)
    top = f"{name.replace('-', '_')}-{version}"
    files = {
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(how=how.replace("\n", "\n    ")).encode(),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        built.name: built.read_bytes(),
    }
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, content in files.items():
            entry = tarfile.TarInfo(f"{top}/{file}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    built.unlink()
    parts.rmdir()
    return path


def unpack(wheel_file: Path, site_packages: Path) -> None:
    """Install a pure wheel without pip."""
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(site_packages)


def _pack(folder: Path, file: str, about: str, files: Mapping[str, str]) -> Path:
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text.encode())}\n"
        for path, text in files.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / file, "w") as archive:
        for path, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return folder / file
