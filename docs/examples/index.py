"""Write a package index for the examples of docs/bisect.md: a folder with one wheel for each version of a package.

    python docs/examples/index.py wheels gathertool 1.0=8 1.1=8 1.2=24

The package has one module with one number. After ``pip install --no-index --find-links=wheels gathertool==1.2`` the
module ``gathertool`` contains ``MIB = 24``. The script uses the standard library only.
"""

import sys
import zipfile
from pathlib import Path


def write_wheel(folder: Path, package: str, version: str, mib: int) -> None:
    about = f"{package}-{version}.dist-info"
    files = {
        f"{package}.py": f"MIB = {mib}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: example\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{package}-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{about}/RECORD": record}.items():
            wheel.writestr(name, text)


def main() -> None:
    folder, package, *versions = sys.argv[1:]
    for version, _, mib in (pair.partition("=") for pair in versions):
        write_wheel(Path(folder), package, version, int(mib))


if __name__ == "__main__":
    main()
