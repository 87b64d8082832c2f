"""The source lines of HLO instructions, from their metadata: ``source_file`` and ``source_line``, or in newer versions
the number of a stack frame, which the tables after the header line explain. Frames of installed packages are skipped.
"""

import re
from collections.abc import Iterator

from regbot.ledgers.readers.call_stacks import SourceCall

_NAME = re.compile(r'^([0-9]{1,9}) "((?:[^"\\\n]|\\.)*+)"', re.MULTILINE)
_FIELDS = re.compile(r"^([0-9]{1,9}) \{([^{}\n]*)\}", re.MULTILINE)
_FIELD = re.compile(r"([a-z_]+)=([0-9]{1,9})")
_FRAME = re.compile(r"\bstack_frame_id=([0-9]{1,9})")
_FILE = re.compile(r'\bsource_file="((?:[^"\\\n]|\\.)*+)"')
_LINE = re.compile(r"\bsource_line=([1-9][0-9]{0,8})")
_PATH = re.compile(r"[^:\x00-\x1f]{1,400}")
_INSTALLED = re.compile(r"(?:^|/)(?:site-packages|dist-packages|python3\.[0-9]+)/|^<")

Fields = dict[str, str]


class SourceTables:
    def __init__(self, text: str) -> None:
        """``text`` has the tables: FileNames, FunctionNames, FileLocations and StackFrames, in this order."""
        *_, text = text.rpartition("FileNames\n")
        files, _, text = text.partition("\nFunctionNames\n")
        functions, _, text = text.partition("\nFileLocations\n")
        locations, _, frames = text.partition("\nStackFrames\n")
        self._files, self._functions = dict(_NAME.findall(files)), dict(_NAME.findall(functions))
        self._locations, self._frames = _read_fields(locations), _read_fields(frames)

    def find_calls(self, metadata: str) -> list[SourceCall]:
        """Return the calls of an instruction in the code under test, from the inside out; [] if they are unknown."""
        if (frame := _FRAME.search(metadata)) is not None:
            calls = self._walk(frame[1])
        else:
            file, line = _FILE.search(metadata), _LINE.search(metadata)
            calls = iter([(file[1], line[1], "")]) if file and line else iter(())
        return [
            SourceCall(f"{path}:{line}", function)
            for path, line, function in calls
            if _PATH.fullmatch(path) and not _INSTALLED.search(path)
        ]

    def _walk(self, frame_id: str) -> Iterator[tuple[str, str, str]]:
        seen: set[str] = set()
        while frame_id in self._frames and frame_id not in seen:
            seen.add(frame_id)  # the outermost frame names itself as its parent
            frame = self._frames[frame_id]
            location = self._locations.get(frame.get("file_location_id", ""), {})
            path = self._files.get(location.get("file_name_id", ""), "")
            function = self._functions.get(location.get("function_name_id", ""), "")
            if path and location.get("line", "0") != "0":
                yield path, location["line"], function
            frame_id = frame.get("parent_frame_id", "")


def _read_fields(text: str) -> dict[str, Fields]:
    return {number: dict(_FIELD.findall(fields)) for number, fields in _FIELDS.findall(text)}
