"""The batch script of a reservation: it keeps the nodes reserved as long as regbot is alive.

The script uses only the standard library. It is started by path, in Python's isolated mode. Every few seconds regbot
writes a new number into the file ``heartbeat``. If the number stays the same for too long, regbot is gone. Then the
script ends, which releases the nodes. The script compares numbers and not file times, because clocks of nodes may
differ by minutes. It also ends when the file ``released`` exists.
"""

import sys
import time
from pathlib import Path

POLL_S = 2.0


def main() -> None:
    """Keep the nodes until regbot is gone or has released them.

    Arguments: the reservation's folder, and after how many seconds without a heartbeat to end.
    """
    folder, silent_s = Path(sys.argv[1]), float(sys.argv[2])
    last_beat, since = "", time.monotonic()
    while time.monotonic() - since < silent_s:
        if (folder / "released").exists():
            return
        try:
            beat = (folder / "heartbeat").read_text()
        except OSError:  # the shared file system is temporarily unavailable
            beat = ""
        if beat and beat != last_beat:
            last_beat, since = beat, time.monotonic()
        time.sleep(POLL_S)
    print(f"no heartbeat of regbot for {silent_s:.0f} s: the nodes are released", flush=True)


if __name__ == "__main__":
    main()
