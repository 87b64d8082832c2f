"""Labels that say the verdict, where a repository wants them."""

from collections.abc import Mapping

from regbot.forge.client import Forge
from regbot.records.verdict import Status


def set_label(forge: Forge, number: int, status: Status | None, names: Mapping[Status, str]) -> None:
    """Put the label of ``status`` on a pull request and take those of other verdicts off; None takes off all.

    Nothing is asked of GitHub where no label is configured. Raises ForgeError.
    """
    if not names:
        return
    wanted = names.get(status) if status is not None else None
    there = {name.casefold(): name for name in forge.labels(number)}
    for name in names.values():
        if name != wanted and name.casefold() in there:
            forge.remove_label(number, there[name.casefold()])
    if wanted is not None and wanted.casefold() not in there:
        forge.add_label(number, wanted)
