"""Amounts with their units."""


def binary_bytes(size: int) -> str:
    """Return ``134217728`` as ``128 MiB``: three significant digits, or as many as the whole part."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            is_whole = unit == "B" or value >= 100
            return f"{value:.0f} {unit}" if is_whole else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_amount(value: int, unit: str, sign: str = "") -> str:
    """Return ``12_300_000_000_000`` FLOPs as ``12.3 TFLOP``, bytes with decimal units, and a count with its noun."""
    if unit in ("launches", "waits"):
        noun = {"launches": "kernels", "waits": "host waits"}[unit]
        return f"{value:{sign},} {noun}"
    scaled, suffixes = float(value), ("", "k", "M", "G", "T", "P", "E")
    for suffix in suffixes:
        if abs(scaled) < 999.5 or suffix == suffixes[-1]:
            break
        scaled /= 1000
    digits = 0 if not suffix else max(0, 3 - len(f"{abs(scaled):.0f}"))
    return f"{scaled:{sign}.{digits}f} {suffix}{'FLOP' if unit == 'flops' else 'B'}"
