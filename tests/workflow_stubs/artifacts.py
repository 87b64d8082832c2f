"""An artifact on its way from a workflow to the test that watches it: a zip in a folder, taken and confirmed."""

import os
import sys
import time
import zipfile
from pathlib import Path

STORE = Path(os.environ["STUB_ARTIFACTS"])
NAME = os.environ["NAME"]
PATIENCE_S = 30.0


def upload() -> int:
    files = [Path(line) for line in os.environ["FILES"].splitlines() if line.strip()]
    there = [file for file in files if file.is_file()]
    if not there:
        print(f"no files were found with the provided path: {[str(file) for file in files]}")
        return int(os.environ["MISSING"] == "error")
    (folder,) = {file.parent for file in there}  # the archive begins at their common folder
    if (STORE / f"{NAME}.zip").exists() and os.environ["OVERWRITE"] != "true":
        print("an artifact with this name already exists on the workflow run")
        return 1
    made = STORE / f"{NAME}.new"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in there:
            archive.write(file, file.relative_to(folder))
    (STORE / f"{NAME}.taken").unlink(missing_ok=True)
    made.rename(STORE / f"{NAME}.zip")
    end = time.monotonic() + PATIENCE_S
    while not (STORE / f"{NAME}.taken").exists():
        if time.monotonic() > end:
            print("nobody took the artifact")
            return 1
        time.sleep(0.01)
    return 0


sys.exit(upload())
