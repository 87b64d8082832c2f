"""Byte counts with binary units."""


def binary_bytes(size: int) -> str:
    """Return ``134217728`` as ``128 MiB``: three significant digits, or as many as the whole part."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            is_whole = unit == "B" or value >= 100
            return f"{value:.0f} {unit}" if is_whole else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
