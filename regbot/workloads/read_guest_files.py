"""Program that reads files of a guest. ``guest_file`` runs it as a process of its own, with limited time and memory.

The only argument is the request, and the output is the answer, both as JSON. The program imports only the readers, and
not the package that it is in, so that it starts quickly.
"""

import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])["import_path"]  # so that the same regbot is imported

from regbot.errors import UserError


def read_files(request: dict[str, Any]) -> list[Any]:
    paths = [Path(path) for path in request["paths"]]
    if request["reader"] == "logs":
        from regbot.workloads.logs import read_log

        return [asdict(read_log(path, **request["options"])) for path in paths]
    from regbot.ledgers.readers import READERS, Source

    (reader,) = (reader for reader in READERS if request["reader"] == reader.NAME)
    sources = [Source(path, request["max_bytes"]) for path in paths]
    return [reader.read(source, **request["options"]).model_dump(by_alias=True) for source in sources]


def main() -> None:
    request = json.loads(sys.argv[1])
    for kind, limit in ((resource.RLIMIT_CPU, request["limit_s"]), (resource.RLIMIT_AS, request["limit_bytes"])):
        _, hard_limit = resource.getrlimit(kind)
        if hard_limit == resource.RLIM_INFINITY or limit < hard_limit:
            resource.setrlimit(kind, (limit, limit))
    try:
        text = json.dumps({"contents": read_files(request)})
    except UserError as error:
        text = json.dumps({"error": str(error)})
    if len(text) > request["limit_answer_bytes"]:
        text = json.dumps({"error": "its files have more collectives or steps than a record may have"})
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
