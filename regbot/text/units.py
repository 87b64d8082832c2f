"""Byte counts with binary units."""


def binary_bytes(size: int) -> str:
    """Return ``134217728`` as ``128 MiB``: three significant digits, powers of 1024, exact below 1 KiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
