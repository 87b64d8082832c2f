"""Compare, select and wait for streams and events. Print what each line of a GPU's documentation promises."""

import json
import threading
from collections.abc import Callable
from typing import Any

import torch

cuda = torch.cuda


def selections() -> dict[str, Any]:
    stream, elsewhere = cuda.Stream(), cuda.Stream(1)
    default = cuda.default_stream()
    with cuda.stream(stream):
        inside = [cuda.current_stream() == stream]
        with cuda.stream(elsewhere):
            nested = [cuda.current_device(), cuda.current_stream() == elsewhere, cuda.current_stream(0) == stream]
        inside.append(cuda.current_stream() == stream)
    with stream:
        inside.append(cuda.current_stream() == stream)
    cuda.set_stream(stream)
    of_threads = [cuda.current_stream() == stream]
    thread = threading.Thread(target=lambda: of_threads.append(cuda.current_stream() == default))
    thread.start()
    thread.join()
    cuda.set_stream(default)
    return {"inside": inside, "nested": nested, "threads": of_threads, "after": _is_default()}


def _is_default() -> bool:
    return cuda.current_stream() == cuda.default_stream() and cuda.current_device() == 0


def stream_of_backward() -> list[bool]:
    """Return whether backward runs on the stream of its forward, on the device thread."""
    stream, weight = cuda.Stream(), torch.ones(4, device="cuda", requires_grad=True)
    observed = []
    with cuda.stream(stream):
        result = weight * 2
    result.register_hook(lambda _: observed.append(cuda.current_stream() == stream))
    result.grad_fn.register_hook(lambda *_: observed.append(cuda.current_stream() == stream))
    result.sum().backward()
    return [*observed, _is_default()]


def events() -> dict[str, Any]:
    stream, event, other = cuda.Stream(), cuda.Event(enable_timing=True), cuda.Event()
    returned = stream.record_event(event) is event
    cuda.current_stream().wait_stream(stream)
    stream.wait_event(torch.Event("cuda"))
    other.record()
    other.wait()
    other.synchronize()
    stream.synchronize()
    return {"returned": returned, "recorded": event.query(), "compared": [event == event, event == other]}


answers: dict[str, Callable[[], Any]] = {
    "selections": selections, "backward": stream_of_backward, "events": events
}  # fmt: skip
print(json.dumps({name: answer() for name, answer in answers.items()}))
