"""A process that writes shadow checks and outcomes and says what it has written: ``FOLDER WRITER COUNT``.

Every name that it prints is on the disk; the test kills it at any moment, or runs several at once.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from regbot.records.run import Arm
from regbot.records.verdict import Status, Verdict
from regbot.shadow import record_check, settle_commit

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
BASE = Arm(name="base", revision="main", commit="ba" * 20, tree="11" * 20)


def verdict(commit: str, status: Status = "FAIL", subject: str = "Change the router") -> Verdict:
    head = Arm(name="head", revision="HEAD", commit=commit, tree="22" * 20, subject=subject)
    return Verdict(verdict=status, base=BASE, head=head, workloads=[])


def commit(writer: int, number: int) -> str:
    return f"{writer:08x}{number:032x}"


def main(folder: Path, writer: int, count: int) -> None:
    """Checks of commits of its own, each settled; and one of a commit that all writers check in the same second."""
    for number in range(count):
        own = commit(writer, number)
        for path in (
            record_check(verdict(own), folder, NOW + timedelta(seconds=number)),
            settle_commit(folder, own, "confirmed", "a test", "it is so", NOW + timedelta(days=1)),
            record_check(verdict("cc" * 20, subject=f"of {writer}"), folder, NOW),
        ):
            print(path.name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
