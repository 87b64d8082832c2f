"""What tests need of a machine. Where it is missing they are skipped with the reason, unless REGBOT_REQUIRE_SANDBOX,
_ACT or _BROWSER says that it has to be there, as CI does: there a skip is a failure."""

import os
from typing import Literal, NoReturn

import pytest

What = Literal["SANDBOX", "ACT", "BROWSER"]


def needed(what: What, missing: str) -> pytest.MarkDecorator:
    """Skip where ``missing`` says what is; '' where nothing is. Raises Failed where it is required."""
    if missing and _required(what):
        lacking(what, missing)
    return pytest.mark.skipif(bool(missing), reason=missing)


def lacking(what: What, why: str) -> NoReturn:
    """From within a test: skip, or fail where it is required."""
    if _required(what):
        pytest.fail(f"{why}, and REGBOT_REQUIRE_{what} is set", pytrace=False)
    pytest.skip(why)


def _required(what: What) -> bool:
    return bool(os.environ.get(f"REGBOT_REQUIRE_{what}"))
