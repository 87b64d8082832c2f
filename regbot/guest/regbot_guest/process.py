"""One guest process: read the request, do it, leave one record; what cannot be done is a record with the reason."""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regbot_guest.last_words import LastWords
from regbot_guest.loaded import loaded_library
from regbot_guest.origin import code_proof, watched_packages
from regbot_guest.request import Request
from regbot_guest.software import environment

OWN_MODEL = ("smoke", "module")
"""Adapters whose code runs inside regbot's own model: the others are frameworks with a module of their own."""

REFUSED = 10
"""Exit code of a process that left a record with a refusal."""


def main(argv: list[str]) -> int:
    """Do one request, or several of one checkout after each other, each with a record of its own.

    The exit code is that of the request; of several it is 0 where each has left its record.
    """
    if not argv:
        print("usage: python <guest folder> REQUEST.json...", file=sys.stderr)
        return 2
    variables = dict(os.environ)  # before code under test, or torch, adds to them
    requests = [Request.load(Path(path)) for path in argv]
    root = Path(requests[0].root)
    for source in reversed(requests[0].source_roots):
        sys.path.insert(1, str((root / source).resolve()))
    os.chdir(root)
    codes = [_leave_record(request, variables) for request in requests]
    code = codes[0] if len(codes) == 1 else 0
    if any(request.paper for request in requests):
        # torch takes its device threads down while Python ends, and sometimes dies of it: the records are on the disk.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _leave_record(request: Request, variables: Mapping[str, str]) -> int:
    """Do ``request`` and write its record. Returns the exit code of a process that did this alone."""
    rank = int(os.environ.get("RANK", "0")) if request.mode != "static" else 0
    record: dict[str, Any] = {
        "schema": "regbot/raw-run@1",
        "request": request.request,
        "workload": request.workload,
        "variant": request.variant,
        "rank": rank,
    }
    words = LastWords(Path(request.record).parent, rank, request.limit_s) if request.limit_s else None
    refusal = _fill(record, request, variables, words)
    if refusal is not None:
        record["refusal"] = refusal
        if refusal["kind"] != "code":  # what the code under test raised stands in the log already
            print(f"{refusal['kind']}: {refusal['message']}", file=sys.stderr)
    _write(Path(request.record.replace("{rank}", str(rank))), record)
    return REFUSED if refusal is not None else 0


def _fill(
    record: dict[str, Any], request: Request, variables: Mapping[str, str], words: LastWords | None
) -> dict[str, str] | None:
    """Count, and put what was found into the record. Returns the refusal where it could not be done."""
    if request.adapter == "maxtext":
        return _fill_without_torch(record, request, variables)
    device = None
    try:
        if request.paper:  # before torch, which asks for its devices once
            from regbot_guest.paper.device import LoadError, install

            try:
                device = install(Path(request.paper), request.gpu)
            except LoadError as error:
                return _refusal("no_paper_gpu", str(error))
        import torch
    except ImportError as error:
        return _refusal(
            "no_torch",
            f"{sys.executable} cannot import torch ({error}); install it there ('.[smoke]' in regbot's folder), "
            "or set 'python' of this workload to an interpreter that has it",
        )
    if device is None and (library := loaded_library()):
        return _refusal(
            "paper_gpu",
            f"this run is a real one, and its process has loaded a paper GPU ({library}); nothing that it measures is "
            "of a real device",
        )
    record["environment"] = environment(torch, variables)
    if words is not None and request.mode != "static":  # a fake world waits for nobody
        words.follow(torch.distributed)
    from regbot_guest.collectives import UnknownCollective
    from regbot_guest.count import UNTRACEABLE
    from regbot_guest.harness import ContractError

    # This is the boundary to code that anybody may have written: whatever it raises becomes a record.
    try:
        record.update(_work(request, device))
    except ContractError as error:
        return _refusal(error.kind, str(error))
    except UnknownCollective as error:
        return _refusal("untraceable", str(error))
    except UNTRACEABLE as error:
        return _refusal("untraceable", f"{error}", _guilty_line(error, request))
    except (Exception, SystemExit) as error:
        _print_own_frames(error, request)
        return _refusal("code", f"{type(error).__name__}: {error}", _guilty_line(error, request))
    finally:
        watched = watched_packages(Path(request.root), request.source_roots, request.watch, request.entry)
        record["code"] = code_proof(Path(request.root), watched)
    found: dict[str, str] | None = record.pop("refusal", None)
    return found


def _work(request: Request, device: Any) -> dict[str, Any]:
    """Do what the request wants, on the paper GPU ``device`` where there is one."""
    if request.adapter == "torchtitan":
        from regbot_guest.frameworks import torchtitan

        return torchtitan.work(request)
    if request.adapter == "megatron":
        from regbot_guest.frameworks import megatron

        return megatron.work(request)
    if request.adapter not in OWN_MODEL:
        from regbot_guest.harness import ContractError

        raise ContractError("config", f"there is nothing in the guest that runs the adapter {request.adapter!r}")
    if request.mode == "timed":
        from regbot_guest.probe import time_steps

        return time_steps(request)
    if device is not None:
        from regbot_guest.paper.step import count_step as count_on_paper

        return count_on_paper(request, device)
    from regbot_guest.count import count_step

    return count_step(request)


def _fill_without_torch(
    record: dict[str, Any], request: Request, variables: Mapping[str, str]
) -> dict[str, str] | None:
    """The same for a framework on jax, which may be all that this interpreter has."""
    from regbot_guest.frameworks import maxtext

    record["environment"] = environment(None, variables)
    try:
        record.update(maxtext.work(request))
    except maxtext.Refused as error:
        return _refusal(error.kind, str(error))
    except (Exception, SystemExit) as error:
        _print_own_frames(error, request)
        return _refusal("code", f"{type(error).__name__}: {error}", _guilty_line(error, request))
    finally:
        watched = watched_packages(Path(request.root), request.source_roots, request.watch, request.entry)
        record["code"] = code_proof(Path(request.root), watched)
    found: dict[str, str] | None = record.pop("refusal", None)
    return found


def _refusal(kind: str, message: str, where: str = "") -> dict[str, str]:
    return {"kind": kind, "message": message[:4000], "where": where[:500]}


def _guilty_line(error: BaseException, request: Request) -> str:
    """The innermost line of the traceback that lies in the code under test: 'pkg/moe.py:42 in forward'."""
    root = Path(request.root).resolve()
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        try:
            relative = Path(frame.filename).resolve().relative_to(root)
        except ValueError:
            continue
        if "site-packages" not in relative.parts:
            place = f"{relative}:{frame.lineno} in {frame.name}"
    return place


def _print_own_frames(error: BaseException, request: Request) -> None:
    """The traceback without the frames of torch and of regbot: what is left is the code under test."""
    root = str(Path(request.root).resolve())
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(root)]
    print("Traceback, frames of the code under test only:", file=sys.stderr)
    for line in traceback.format_list(own) + traceback.format_exception_only(type(error), error):
        print(line.replace(f"{root}/", ""), end="", file=sys.stderr)


def _write(path: Path, record: dict[str, Any]) -> None:
    """Atomically, and without NaN: a loss that is none is left out, and its absence is seen by the reader."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
