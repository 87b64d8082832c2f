"""Finds the checkout's own MaxText, and refuses every other MaxText.

Python imports an installed MaxText if the checkout has none, or if its folder ``maxtext`` has no ``__init__.py``, as
before 30 April 2026. Counts of the installed one would say nothing about the checkout.
"""

import importlib.util
from pathlib import Path

from regbot_guest.frameworks.maxtext_config import MaxTextError
from regbot_guest.request import Request

PACKAGE = "maxtext"
ENTRY = Path("trainers", "pre_train", "train_compile.py")
"""Entry point in the package, of revisions since 20 February 2026."""
OLD_LAYOUTS = {"src/MaxText": "from 3 September 2025 to 20 February 2026", "MaxText": "before 3 September 2025"}
"""Folders of MaxText's code in older revisions, and when they were used."""
UNKNOWN_REVISION = "regbot does not support this revision"


def find_checkout_package(request: Request) -> Path:
    """Return the folder of the package ``maxtext`` that Python will import, without importing it. Raises MaxTextError
    if it is outside of the checkout, or has a layout that regbot does not support.
    """
    root = Path(request.root).resolve()
    spec = importlib.util.find_spec(PACKAGE)
    locations = spec.submodule_search_locations if spec is not None else None
    folder = Path(next(iter(locations))).resolve() if locations else None
    if folder is None or not _is_inside(folder, root):
        raise _explain_foreign_package(request, folder)
    if not (folder / ENTRY).is_file():
        raise _explain_layout(root) or MaxTextError(
            "revision", f"{UNKNOWN_REVISION}: {_show(folder, root)} has no {ENTRY}, which compiles the train step"
        )
    return folder


def _is_inside(folder: Path, root: Path) -> bool:
    """A virtual environment inside the checkout does not belong to it."""
    return folder.is_relative_to(root) and "site-packages" not in folder.relative_to(root).parts


def _explain_foreign_package(request: Request, installed: Path | None) -> MaxTextError:
    root = Path(request.root).resolve()
    sources = [root / folder for folder in request.source_roots]
    own_package = next((source / PACKAGE for source in sources if (source / PACKAGE / ENTRY).is_file()), None)
    if own_package is not None:
        return MaxTextError(
            "no_framework",
            f"the installed MaxText in {installed} hides the checkout's {_show(own_package, root)}; uninstall it from "
            "this workload's 'python'",
        )
    if refusal := _explain_layout(root):
        return refusal
    if (root / "src" / PACKAGE / ENTRY).is_file():
        return MaxTextError("config", "the checkout's MaxText is in src; set source_roots = ['src'] in this workload")
    note = f"; the installed one in {installed} is not the checkout's code" if installed else ""
    return MaxTextError(
        "no_framework",
        f"no source root of the checkout ({', '.join(request.source_roots)}) has the package maxtext{note}. Set "
        "'source_roots' to the folder that holds it",
    )


def _explain_layout(root: Path) -> MaxTextError | None:
    for folder, period in OLD_LAYOUTS.items():
        if (root / folder / ENTRY.name).is_file():
            return MaxTextError(
                "revision",
                f"{UNKNOWN_REVISION}: its MaxText is in {folder}, as in revisions {period}. regbot compiles only "
                "src/maxtext, in revisions after 20 February 2026; compare those",
            )
    return None


def _show(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix()
