"""The log of a measurement: single writer, loss of at most one line in a crash, no resume by another measurement."""

import errno
import re
from pathlib import Path

import pytest

from regbot.check.sessions.run_log import RunLog
from regbot.records.bisection import Point
from regbot.records.config import ConfigError
from regbot.records.files import RecordError


class Content:
    """Content of a log of points; the first point is its header."""

    def __init__(self, path: Path) -> None:
        points = [Point.model_validate_json(line) for line in path.read_bytes().splitlines()]
        self.header, self.points = points[0], points[1:]


def point(number: int, subject: str = "") -> Point:
    return Point(commit=f"{number:040}", tree=f"{number:040}", subject=subject)


@pytest.fixture
def log(tmp_path: Path) -> RunLog[Content]:
    return RunLog(tmp_path / "out" / "points.jsonl", "walk", Content, {"subject": True}, results=("walk.json",))


def test_a_torn_last_line_is_dropped_when_the_log_is_resumed(log: RunLog[Content]) -> None:
    log.create(point(0), [point(1)])
    log.append(point(2))
    log.path.write_bytes(log.path.read_bytes()[:-5])
    content = log.resume(point(0, "another subject may differ"))
    assert content is not None
    assert content.points == [point(1)]
    log.append(point(3))
    assert Content(log.path).points == [point(1), point(3)]


def test_a_log_without_a_complete_line_is_not_resumed(log: RunLog[Content]) -> None:
    assert log.resume(point(0)) is None
    log.folder.mkdir()
    log.path.write_text('{"commit"')
    assert log.resume(point(0)) is None


def test_a_log_of_another_measurement_is_refused_with_the_differing_field(log: RunLog[Content]) -> None:
    log.create(point(0))
    (log.folder / "walk.json").touch()
    with pytest.raises(RecordError, match=r"points\.jsonl: is of another walk \(commit differs\); leave out --resume"):
        log.resume(point(1))
    assert (log.folder / "walk.json").exists()


def test_a_new_log_keeps_the_earlier_log_and_drops_its_results(log: RunLog[Content]) -> None:
    log.create(point(0))
    (log.folder / "walk.json").touch()
    log.create(point(1))
    assert Content(log.folder / "points.previous.jsonl").header == point(0)
    assert Content(log.path).header == point(1)
    assert not (log.folder / "walk.json").exists()


def test_one_process_writes_a_log(log: RunLog[Content]) -> None:
    with log.lock(), pytest.raises(ConfigError, match="another walk is writing there; wait until it ends"), log.lock():
        pass
    with log.lock():
        pass


def test_a_full_disk_is_reported_with_advice(log: RunLog[Content]) -> None:
    message = f"/full: No space left on device; {log.path} has every finished run: free space"
    with pytest.raises(RecordError, match=re.escape(message)), log.lock():
        raise OSError(errno.ENOSPC, "No space left on device", "/full")
    with pytest.raises(FileNotFoundError), log.lock():
        raise FileNotFoundError(errno.ENOENT, "a fault of regbot")
