"""Verdict labels on pull requests, for repositories that configure them."""

from collections.abc import Mapping

from regbot.github.client import Forge
from regbot.records.verdict import Status


def set_label(forge: Forge, number: int, status: Status | None, names: Mapping[Status, str]) -> None:
    """Set the label of ``status`` on a pull request and remove the labels of other statuses. With the status None,
    remove the labels of all statuses.

    ``names`` has the configured label of each status. If no label is configured, no request is sent. Raises ForgeError.
    """
    if not names:
        return
    wanted_name = names.get(status) if status is not None else None
    # GitHub ignores the case of label names.
    present_by_lower_case = {name.casefold(): name for name in forge.labels(number)}
    for name in names.values():
        present_name = present_by_lower_case.get(name.casefold())
        if name != wanted_name and present_name is not None:
            forge.remove_label(number, present_name)
    if wanted_name is not None and wanted_name.casefold() not in present_by_lower_case:
        forge.add_label(number, wanted_name)
