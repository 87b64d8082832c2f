"""Verdict labels on pull requests, for repositories that configure them."""

from collections.abc import Mapping

from regbot.github.client import Forge
from regbot.records.verdict import Status


def set_label(forge: Forge, number: int, status: Status | None, names: Mapping[Status, str]) -> None:
    """Set the label of ``status`` on a pull request and remove the labels of other statuses. With the status None,
    remove the labels of all statuses.

    ``names``: the configured label of each status. If no label is configured, no request is sent. Raises ForgeError.
    """
    if not names:
        return
    wanted_name = names.get(status) if status is not None else None
    present_names = {name.casefold(): name for name in forge.labels(number)}  # GitHub ignores the case of label names
    for name in names.values():
        if name != wanted_name and name.casefold() in present_names:
            forge.remove_label(number, present_names[name.casefold()])
    if wanted_name is not None and wanted_name.casefold() not in present_names:
        forge.add_label(number, wanted_name)
