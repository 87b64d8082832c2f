"""``count_flops.py GUEST REQUEST.json OUT.json`` traces a request, and writes the FLOPs of its last step by operator.

The formulas are those of ``torch.utils.flop_counter``.
"""

import json
import sys
from collections import Counter
from pathlib import Path

guest, request, out = sys.argv[1:4]
sys.path.insert(0, guest)
document = json.loads(Path(request).read_text())

from regbot_guest.paper import loading  # noqa: E402

loading.install(Path(document["paper"]))  # before torch is imported

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402

from regbot_guest import process  # noqa: E402
from regbot_guest.frameworks import own_program  # noqa: E402


class FlopCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function._overloadpacket in flop_registry:
            formula = flop_registry[function._overloadpacket]
            self.counts[str(function._overloadpacket)] += formula(*args, **(kwargs or {}), out_val=result)
        return result


make_call = own_program.call_unchanged


def count_step(function, args, kwargs):
    with FlopCounter() as counter:
        result = make_call(function, args, kwargs)
    if counter.counts:  # argparse's errors are called in the same way
        Path(out).write_text(json.dumps(counter.counts))
    return result


own_program.call_unchanged = count_step
process.main([request])
