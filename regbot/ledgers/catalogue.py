"""Names of all patterns of ledger differences, each with its inverse pattern. The names are a public interface: they
appear in verdicts, ``--expect`` rules and comments. docs/sharding-verdict.md explains each."""

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
HOST_READS_ADDED = "host reads added"
HOST_READS_REMOVED = "host reads removed"
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
    (HOST_READS_ADDED, HOST_READS_REMOVED),
    (OVERLAP_LOST, OVERLAP_RESTORED),
)
INVERSE: dict[str, str] = {name: inverse for pair in _INVERSE_PAIRS for name, inverse in (pair, pair[::-1])}
"""Inverse of each pattern: the pattern of the same change if base and head are swapped."""
PATTERNS = tuple(INVERSE)
"""All patterns, in the order of findings of the same status."""
