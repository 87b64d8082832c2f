"""Name the small variants of a shape that were judged. Otherwise readers could believe that the verdict applies to the
full model."""

from collections.abc import Iterable

from regbot.records.verdict import Sharding

SMALL_VARIANTS = ("cpu", "smoke")
"""Names of the variants that are smaller than the full model."""

ADVICE = "remove variant from regbot.toml to judge the full model"


def name_small_variants(sections: Iterable[Sharding | None]) -> str:
    """Return the small variants that were judged, such as 'cpu' or 'cpu and smoke'; '' if there are none.

    An ending such as ``-skewed`` is left out: the variant ``cpu-skewed`` gives 'cpu'.
    """
    sizes = {section.variant.split("-")[0] for section in sections if section is not None}
    return " and ".join(size for size in SMALL_VARIANTS if size in sizes)
