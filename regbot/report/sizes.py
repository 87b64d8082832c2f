"""Verdicts on small copies of a shape: true of those, and easily taken for the whole model's."""

from collections.abc import Iterable

from regbot.records.verdict import Sharding

SMALL = ("cpu", "smoke")
"""Sizes of a shape that are not the model."""

ADVICE = "take variant out of regbot.toml to judge the full model"


def small(sections: Iterable[Sharding | None]) -> str:
    """The sizes below the full model that some sections are of: 'cpu', 'cpu and smoke'; '' where there are none."""
    sizes = {section.variant.split("-")[0] for section in sections if section is not None}
    return " and ".join(size for size in SMALL if size in sizes)
