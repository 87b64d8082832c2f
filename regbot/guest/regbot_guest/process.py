"""One guest process: reads a request, runs it and writes one record, which contains a refusal if the run fails."""

import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regbot_guest import source_lines
from regbot_guest.affinity import pin_to_gpu
from regbot_guest.contract import ContractError
from regbot_guest.crash import (
    describe_crash,
    last_checkout_frame,
    list_frames,
    regbot_keys,
    report_running_line,
)
from regbot_guest.hang_recorder import HangRecorder
from regbot_guest.missing_imports import describe_missing_imports, record_missing_imports
from regbot_guest.origin import path_in_checkout
from regbot_guest.paper_library import find_loaded_library
from regbot_guest.ran_lines import record_lines
from regbot_guest.record_file import prove_code, write_record
from regbot_guest.request import Request
from regbot_guest.software import environment

OWN_MODEL_ADAPTERS = ("smoke", "module")
"""Adapters that run regbot's own model. Each of the other adapters is a framework and has a module of its own."""

EXIT_REFUSED = 10
PEER_WAIT_S = 3.0
"""Seconds that a rank waits after an error in the counted step. The launcher kills all ranks when the first one ends,
and ranks with the same error need time to write their step times.
"""
DECLARE_ADVICE = "; for a compiled extension, declare a stand-in (docs/module.md, Compiled extensions)"
_MAX_MESSAGE_CHARACTERS, _MAX_PLACE_CHARACTERS = 4000, 500


def main(argv: list[str]) -> int:
    """Run the requests. Return the exit code of a single request, and 0 for several.

    Two runs end without Python's exit: on a paper GPU, because torch's device threads sometimes crash there, and failed
    runs on real ranks, because a process group would wait for the other ranks. The records are already on disk.
    """
    requests = [Request.load(Path(path)) for path in argv]
    codes = run_requests(requests)
    code = codes[0] if len(codes) == 1 else 0
    ran_on_paper_gpu = any(request.paper for request in requests)
    failed_on_real_ranks = code != 0 and requests[0].mode != "static"
    if ran_on_paper_gpu or failed_on_real_ranks:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run_requests(requests: Sequence[Request]) -> list[int]:
    variables = dict(os.environ)  # copied before torch or the code under test changes them
    first_request = requests[0]
    root = Path(first_request.root)
    for source in reversed(first_request.source_roots):
        # Position 0 is the folder of regbot_guest, which code under test must not hide.
        sys.path.insert(1, str((root / source).resolve()))
    os.chdir(root)
    if first_request.mode == "static":
        report_running_line(Path(first_request.record).parent / "running", root)
        record_missing_imports(root)
        record_lines(root)
    return [_run_request(request, variables) for request in requests]


def _run_request(request: Request, variables: Mapping[str, str]) -> int:
    regbot_keys.clear()  # those of an earlier request
    # A static trace has only rank 0. All other modes run on real ranks.
    rank = int(os.environ.get("RANK", "0")) if request.mode != "static" else 0
    record: dict[str, Any] = {
        "schema": "regbot/raw-run@1",
        "request": request.request,
        "workload": request.workload,
        "variant": request.variant,
        "rank": rank,
    }
    recorder = HangRecorder(Path(request.record).parent, rank, request.limit_s) if request.limit_s else None
    refusal = _fill_record(record, request, variables, recorder)
    if refusal is not None:
        record["refusal"] = refusal
        if refusal["kind"] != "code":  # an error of the code under test is already in the log
            print(f"{refusal['kind']}: {refusal['message']}", file=sys.stderr)
    write_record(request, record)
    if refusal is not None and "steps" in record:  # all steps are timed: the error came in the counted step
        time.sleep(PEER_WAIT_S)
    return EXIT_REFUSED if refusal is not None else 0


def _fill_record(
    record: dict[str, Any], request: Request, variables: Mapping[str, str], recorder: HangRecorder | None
) -> dict[str, Any] | None:
    torch = device = None
    source_lines.watch(request.root, has_own_model=request.adapter == "smoke")
    untraceable: tuple[type[BaseException], ...] = ()
    if request.adapter != "maxtext":  # MaxText runs on jax, and its interpreter may not have torch
        try:
            torch, device = _load_torch(request)
        except ContractError as error:
            return _refusal(error.kind, str(error))
        if device is None and (refusal := _refuse_paper_gpu()):
            return refusal
        from regbot_guest.collectives import UnknownCollective
        from regbot_guest.count import UNTRACEABLE

        untraceable = (UnknownCollective, *UNTRACEABLE)
        if recorder is not None and request.mode != "static":  # collectives in a fake world do not wait
            recorder.record_collectives()
    record["environment"] = environment(torch, variables)
    if torch is not None and request.device == "cuda" and request.mode != "static":
        # Ranks that share a GPU all use the first one.
        gpu_index = 0 if request.share_gpu else int(os.environ.get("LOCAL_RANK", "0"))
        record["environment"]["pinning"] = pin_to_gpu(torch, gpu_index, request.numa_pinning)

    # This is the boundary to the code under test. Every exception there becomes a refusal in the record.
    try:
        _run_adapter(request, device, record)
    except ContractError as error:
        return _refusal(error.kind, str(error))
    except untraceable as error:  # the step needs real data, or has a collective that regbot does not know
        return _refusal("untraceable", f"{error}", _failing_line(error, request))
    except (Exception, SystemExit) as error:
        stage = "in the counted step, after all timed steps: " if "steps" in record else ""
        return _describe_code_error(error, request, stage)
    finally:
        record["code"] = prove_code(request)
    # Checked again, because the code under test may have loaded the library.
    return _refuse_paper_gpu() if device is None else None


def _load_torch(request: Request) -> tuple[Any, Any]:
    """Return torch and the paper GPU, or None if the request needs none. Raises ContractError."""
    spec = importlib.util.find_spec("torch")
    # A folder ``torch`` without __init__.py has no origin, and cannot hide an installed package.
    if spec is not None and spec.origin and (stub := path_in_checkout(Path(spec.origin), Path(request.root))):
        raise ContractError(
            "no_torch",
            f"{stub} in the checkout hides the installed torch; rename it, or leave its folder out of 'source_roots'",
        )
    device = None
    try:
        if request.paper:  # install the paper GPU before importing torch, which looks up its devices only once
            from regbot_guest.paper.loading import LoadError, install

            try:
                device = install(Path(request.paper), request.gpu)
            except LoadError as error:
                raise ContractError("no_paper_gpu", str(error)) from error
        import torch
    except ImportError as error:
        raise ContractError(
            "no_torch",
            f"{sys.executable} cannot import torch ({error}); install it there ('.[smoke]' in regbot's folder), "
            "or set 'python' of this workload to an interpreter that has it",
        ) from error
    return torch, device


def _refuse_paper_gpu() -> dict[str, Any] | None:
    """Call this only for a run that uses no paper GPU."""
    library = find_loaded_library()
    if not library:
        return None
    return _refusal(
        "paper_gpu",
        f"this is a real run, but its process has loaded a paper GPU ({library}); so its measurements are not of a "
        "real device",
    )


def _run_adapter(request: Request, device: Any, record: dict[str, Any]) -> None:
    if request.adapter == "maxtext":
        from regbot_guest.frameworks import maxtext

        record |= maxtext.run_request(request)
        return
    if request.adapter == "torchtitan":
        from regbot_guest.frameworks import torchtitan

        torchtitan.run_request(request, device, record)
        return
    if request.adapter == "megatron":
        if device is None:
            raise ContractError("config", f"{request.program} runs on a paper GPU only, and there is none")
        from regbot_guest.frameworks import megatron_bridge, megatron_lm

        count_step_of_program = megatron_bridge.count_step if request.runs_bridge else megatron_lm.count_step
        record |= count_step_of_program(request, device)
        return
    if request.adapter not in OWN_MODEL_ADAPTERS:
        raise ContractError("config", f"the guest cannot run the adapter {request.adapter!r}")
    if request.mode == "timed":
        from regbot_guest.probe import time_steps

        time_steps(request, record)
    else:
        from regbot_guest.static_trace import count_step

        record |= count_step(request, device)


def _refusal(kind: str, message: str, where: str = "") -> dict[str, Any]:
    return {"kind": kind, "message": message[:_MAX_MESSAGE_CHARACTERS], "where": where[:_MAX_PLACE_CHARACTERS]}


def _describe_code_error(error: BaseException, request: Request, stage: str = "") -> dict[str, Any]:
    """``stage`` begins the message, such as ``in the counted step: ``, or is ''."""
    _print_checkout_frames(error, request)
    advice = DECLARE_ADVICE if isinstance(error, ImportError) and request.paper else ""
    frames = list_frames(error, Path(request.root))
    files = [frame["file"] for frame in frames if frame["owner"] == "checkout"][-1:]
    facts = [] if isinstance(error, ImportError) else describe_missing_imports(files)
    facts += [f"raised in {frame['file']}:{frame['line']}" for frame in frames[-1:] if frame["owner"] == "regbot"]
    message = "; ".join([f"{stage}{type(error).__name__}: {error}{advice}", *facts])
    refusal = _refusal("code", message, last_checkout_frame(frames))
    return {**refusal, "crash": describe_crash(error, Path(request.root), _regbot_keys(request))}


def _regbot_keys(request: Request) -> list[str]:
    user_keys = {key.replace("-", "_") for key in request.config}  # a user may write a key like a flag, with hyphens
    return [key for key in dict.fromkeys(regbot_keys) if key not in user_keys]


def _failing_line(error: BaseException, request: Request) -> str:
    return last_checkout_frame(list_frames(error, Path(request.root)))


def _print_checkout_frames(error: BaseException, request: Request) -> None:
    root = str(Path(request.root).resolve())
    checkout_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(root)]
    print("Traceback, frames of the code under test only:", file=sys.stderr)
    for line in traceback.format_list(checkout_frames) + traceback.format_exception_only(type(error), error):
        print(line.replace(f"{root}/", ""), end="", file=sys.stderr)
