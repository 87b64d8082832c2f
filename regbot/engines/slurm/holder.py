"""The batch script of a reservation: it keeps the nodes as long as regbot is alive. It uses only the standard library.
Every few seconds regbot writes a new number into the file ``heartbeat``. If the number stays the same for too long, the
script ends. It compares numbers and not file times, because clocks of nodes may differ by minutes. It also ends when
the file ``released`` exists."""

import sys
import time
from pathlib import Path

POLL_S = 2.0


def main() -> None:
    _, folder_argument, seconds_argument = sys.argv
    folder, silent_s = Path(folder_argument), float(seconds_argument)
    last_beat, last_beat_at = "", time.monotonic()
    while time.monotonic() - last_beat_at < silent_s:
        if (folder / "released").exists():
            return
        try:
            beat = (folder / "heartbeat").read_text()
        except OSError:  # the shared file system is temporarily unavailable
            beat = ""
        if beat and beat != last_beat:
            last_beat, last_beat_at = beat, time.monotonic()
        time.sleep(POLL_S)
    print(f"no heartbeat of regbot for {silent_s:.0f} s: the nodes are released", flush=True)


if __name__ == "__main__":
    main()
