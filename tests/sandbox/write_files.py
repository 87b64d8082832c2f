"""Changes files that are not its own: another run's record, the verdict, its request, the other arm's checkout."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from attempt import TARGETS, attempt


def write_to(path: Path) -> Callable[[], str | None]:
    def write() -> str | None:
        for deed in (_append, _replace, _remove, _through_link, _through_processes):
            try:
                deed(path)
            except OSError:
                continue
            return f"{path.name} by {deed.__name__}"
        return None

    write.__name__ = f"write_{path.name}"
    return write


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write("forged")


def _replace(path: Path) -> None:
    new = path.with_name("forged")
    new.write_text("forged")
    new.replace(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path.parent) if path.parent.is_dir() else path.unlink()


def _through_link(path: Path) -> None:
    link = Path(TARGETS["record"], "link")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    with link.open("r+") as file:
        file.write("forged")


def _through_processes(path: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            os.close(os.open(f"{process}/root{path}", os.O_RDWR))
        except OSError:
            continue
        return
    raise OSError("no process leads there")


attempt(*(write_to(Path(path)) for path in TARGETS["files"]))
