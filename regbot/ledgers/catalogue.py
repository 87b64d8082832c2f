"""Names of all patterns of differences between ledgers and between Programs, each with its inverse pattern. The names
are a public interface: they appear in verdicts, ``--expect`` rules and comments. docs/sharding-verdict.md explains
each."""

ALL_TO_ALL_REPLACED = "all-to-all replaced by gather and sum"
RESTORED = "expert-parallel all-to-all restored"
REPLACING_WORDS = {
    "all_gather": "gather",
    "gather": "gather",
    "all_reduce": "sum",
    "reduce_scatter": "sum",
    "reduce": "sum",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "send_recv": "send/receive",
    "permute": "send/receive",
}
REPLACED_BY = {kind: f"all-to-all replaced by {word}" for kind, word in REPLACING_WORDS.items()}
"""Pattern by the kind of collective that replaces most of the bytes. All tokens that are gathered *and* summed have the
pattern ``ALL_TO_ALL_REPLACED``."""
REPLACED_BY_TRANSFERS = REPLACED_BY["send_recv"]
REPLACES = {REPLACED_BY[kind]: f"{word} replaced by all-to-all" for kind, word in REPLACING_WORDS.items()}
"""The inverse of each pattern in ``REPLACED_BY``."""
SPLIT = "all-to-all split into several hops"
MERGED = "several hops merged into one all-to-all"
AXIS_LOST = "expert axis lost"
AXIS_GAINED = "expert axis gained"
DISPATCHER_OFF = "dispatcher silently off"
DISPATCHER_ON = "dispatcher back on"
RECOMPUTES = "recompute re-dispatches"
RECOMPUTES_NOT = "recompute no longer re-dispatches"
RESHARDS = "FSDP reshards after forward"
KEEPS_GATHERED = "FSDP keeps parameters gathered"
GRADIENT_LOST = "gradient reduction lost"
GRADIENT_GAINED = "gradient reduction gained"
OPTIMIZER_SUM_REMOVED = "optimizer sum removed"
OPTIMIZER_SUM_ADDED = "optimizer sum added"
MOVED = "collective moved to another axis or group"
OTHER_LAYER = "collective moved to another layer"
WIDENED = "payload dtype widened"
NARROWED = "payload dtype narrowed"
COUNTS_ADDED = "exchange of token counts or indices added"
COUNTS_REMOVED = "exchange of token counts or indices removed"
BYTES_UP = "payload bytes up"
BYTES_DOWN = "payload bytes down"
COUNT_UP = "collective count up"
COUNT_DOWN = "collective count down"
CONTROL_CHANGED = "control exchanges changed"
DOES_NOT_FIT = "peak memory no longer fits the device"
FITS_AGAIN = "peak memory fits the device again"
FLOPS_UP = "FLOPs up"
FLOPS_DOWN = "FLOPs down"
RECOMPUTE_ADDED = "recompute added"
RECOMPUTE_REMOVED = "recompute removed"
PRODUCT_WIDENED = "product in a wider dtype"
PRODUCT_NARROWED = "product in a narrower dtype"
STATE_WIDENED = "gradients or optimizer state in a wider dtype"
STATE_NARROWED = "gradients or optimizer state in a narrower dtype"
TEMPORARY_ADDED = "large temporary added"
TEMPORARY_REMOVED = "large temporary removed"
PEAK_UP = "peak memory up"
PEAK_DOWN = "peak memory down"
FUSED_LOST = "fused operator lost"
FUSED_RESTORED = "fused operator restored"
LAUNCHES_UP = "kernel launches up"
LAUNCHES_DOWN = "kernel launches down"
WAITS_ADDED = "host waits added"
WAITS_REMOVED = "host waits removed"
OVERLAP_LOST = "overlap lost"
OVERLAP_RESTORED = "overlap restored"

_INVERSE_PAIRS = (
    (ALL_TO_ALL_REPLACED, RESTORED),
    *REPLACES.items(),
    (SPLIT, MERGED),
    (AXIS_LOST, AXIS_GAINED),
    (DISPATCHER_OFF, DISPATCHER_ON),
    (RECOMPUTES, RECOMPUTES_NOT),
    (RESHARDS, KEEPS_GATHERED),
    (GRADIENT_LOST, GRADIENT_GAINED),
    (OPTIMIZER_SUM_REMOVED, OPTIMIZER_SUM_ADDED),
    (MOVED, MOVED),
    (OTHER_LAYER, OTHER_LAYER),
    (WIDENED, NARROWED),
    (COUNTS_ADDED, COUNTS_REMOVED),
    (BYTES_UP, BYTES_DOWN),
    (COUNT_UP, COUNT_DOWN),
    (CONTROL_CHANGED, CONTROL_CHANGED),
    (DOES_NOT_FIT, FITS_AGAIN),
    (FLOPS_UP, FLOPS_DOWN),
    (RECOMPUTE_ADDED, RECOMPUTE_REMOVED),
    (PRODUCT_WIDENED, PRODUCT_NARROWED),
    (STATE_WIDENED, STATE_NARROWED),
    (TEMPORARY_ADDED, TEMPORARY_REMOVED),
    (PEAK_UP, PEAK_DOWN),
    (FUSED_LOST, FUSED_RESTORED),
    (LAUNCHES_UP, LAUNCHES_DOWN),
    (WAITS_ADDED, WAITS_REMOVED),
    (OVERLAP_LOST, OVERLAP_RESTORED),
)
INVERSE: dict[str, str] = {name: inverse for pair in _INVERSE_PAIRS for name, inverse in (pair, pair[::-1])}
"""Inverse of each pattern: the pattern of the same change if base and head are swapped."""
PATTERNS = tuple(INVERSE)
"""All patterns, in the order of findings of the same status."""
