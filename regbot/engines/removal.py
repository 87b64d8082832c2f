"""Remove folders that code under test may have filled."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` with everything in it, of any depth and with any modes. A link or a file is removed as well.
    Each subfolder is moved directly into ``folder`` before it is opened, so nothing recurses and no path is long.
    Raises OSError."""
    try:
        folder.unlink()
    except FileNotFoundError:
        return
    except IsADirectoryError:
        folder.chmod(0o700)
        root = os.open(folder, _FOLDER)
        try:
            _remove_contents(root)
        finally:
            os.close(root)
        folder.rmdir()


def discard_folder(folder: Path) -> None:
    """Remove ``folder`` as ``remove_folder`` does. If something in it cannot be removed, the rest stays."""
    with contextlib.suppress(OSError):
        remove_folder(folder)


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that code under test may fill. It is discarded at the end."""
    folder = Path(tempfile.mkdtemp(prefix="regbot-", dir=parent))
    try:
        yield folder
    finally:
        discard_folder(folder)


def _remove_contents(root: int) -> None:
    subfolders = _remove_files(root)
    while subfolders:
        subfolder = subfolders.pop()
        os.chmod(subfolder, 0o700, dir_fd=root)
        opened = os.open(subfolder, _FOLDER, dir_fd=root)
        try:
            for name in _remove_files(opened):
                os.chmod(name, 0o700, dir_fd=opened)  # a folder must be writable to be moved into another one
                new_name = secrets.token_hex(16)
                os.rename(name, new_name, src_dir_fd=opened, dst_dir_fd=root)
                subfolders.append(new_name)
        finally:
            os.close(opened)
        os.rmdir(subfolder, dir_fd=root)


def _remove_files(folder: int) -> list[str]:
    """Remove the files of an open folder. Return the names of its subfolders."""
    with os.scandir(folder) as listing:
        items = [(item.name, item.is_dir(follow_symlinks=False)) for item in listing]
    for name, is_folder in items:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in items if is_folder]
