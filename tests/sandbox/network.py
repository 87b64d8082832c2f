"""Reaches what listens on this machine, and looks for a way out of it."""

import socket

from attempt import TARGETS, attempt


def _connect(family: int, address: object) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as there:
        there.settimeout(2)
        there.connect(address)
        return f"connected to {address!r}"


def connect_to_loopback() -> str:
    return _connect(socket.AF_INET, ("127.0.0.1", TARGETS["port"]))


def connect_by_the_host_address() -> str | None:
    return _connect(socket.AF_INET, (TARGETS["address"], TARGETS["port"])) if TARGETS["address"] else None


def connect_to_an_abstract_socket() -> str:
    return _connect(socket.AF_UNIX, "\0" + TARGETS["abstract"])


def connect_to_a_socket_file() -> str:
    return _connect(socket.AF_UNIX, TARGETS["socket"])


def find_an_interface() -> str | None:
    return ", ".join(name for _, name in socket.if_nameindex() if name != "lo")


attempt(
    connect_to_loopback,
    connect_by_the_host_address,
    connect_to_an_abstract_socket,
    connect_to_a_socket_file,
    find_an_interface,
)
