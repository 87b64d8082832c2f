"""Reads what its user may read and it may not: files of the home folder, the environment that regbot has."""

import contextlib
from pathlib import Path

from attempt import TARGETS, attempt


def read_a_private_file() -> str:
    return Path(TARGETS["private"]).read_text()


def list_the_home_folder() -> str:
    return ", ".join(path.name for path in Path(TARGETS["home"]).iterdir())


def read_variables_of_others() -> str | None:
    wanted = TARGETS["variable"].encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes():
                return process.name
    return None


def read_password_hashes() -> str | None:
    return Path("/etc/shadow").read_text()[:5]


def find_sockets_of_services() -> str | None:
    return ", ".join(str(path) for path in Path("/run").glob("**/*") if path.is_socket())


def find_keys() -> str | None:
    homes = [Path("/root"), *Path("/home").glob("*")] if Path("/home").is_dir() else [Path("/root")]
    return ", ".join(str(path) for home in homes for path in (home / ".ssh").glob("*"))


attempt(read_a_private_file, list_the_home_folder, read_variables_of_others)
if not TARGETS["careful"]:
    attempt(read_password_hashes, find_sockets_of_services, find_keys)
