"""Names of all patterns of ledger differences, each with a one-line explanation and an inverse pattern. The names are a
public interface: they appear in verdicts, ``--expect`` rules and comments."""

ALL_TO_ALL_REPLACED = "all-to-all replaced by gather and sum"
RESTORED = "expert-parallel all-to-all restored"
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

EXPLANATIONS: dict[str, str] = {
    ALL_TO_ALL_REPLACED: "ranks gather and sum; before, an all-to-all sent tokens to their experts",
    RESTORED: "an all-to-all sends tokens to their experts again; before, ranks gathered and summed",
    AXIS_LOST: "the experts' all-to-all is gone and nothing exchanges tokens in its place",
    AXIS_GAINED: "an all-to-all now sends tokens to their experts; before, every rank kept its own tokens",
    DISPATCHER_OFF: "base ran the requested dispatcher, head silently replaced it",
    DISPATCHER_ON: "head runs the requested dispatcher again, base had replaced it",
    RECOMPUTES: "activation checkpointing repeats the whole token exchange of forward inside backward",
    RECOMPUTES_NOT: "backward no longer repeats the token exchange of forward",
    RESHARDS: "parameters are freed after forward and gathered a second time for backward",
    KEEPS_GATHERED: "parameters stay gathered from forward to backward: one gather less, more memory",
    GRADIENT_LOST: "gradients of some parameters are summed over fewer ranks, or not at all: replicas drift apart",
    GRADIENT_GAINED: "gradients of some parameters are summed over more ranks than before",
    OPTIMIZER_SUM_REMOVED: "the optimizer step sums over fewer ranks, or not at all; it may have summed gradients",
    OPTIMIZER_SUM_ADDED: "the optimizer step sums over more ranks; the bytes are not those of known gradients",
    MOVED: "the same collectives run on another mesh axis or in groups of another size",
    OTHER_LAYER: "some layers issue fewer of the same collectives and others more, with the same total",
    WIDENED: "the same elements travel in a wider type",
    NARROWED: "the same elements travel in a narrower type",
    COUNTS_ADDED: "more exchanges of token counts or indices on the expert axis; the host often waits for the result",
    COUNTS_REMOVED: "fewer exchanges of token counts or indices on the expert axis",
    BYTES_UP: "more payload bytes, and no named pattern explains them",
    BYTES_DOWN: "fewer payload bytes, and no named pattern explains them",
    COUNT_UP: "the same payload bytes in more calls",
    COUNT_DOWN: "the same payload bytes in fewer calls",
    CONTROL_CHANGED: "small integer exchanges or barriers changed; they move few bytes, but each can stall the host",
    HOST_READS_ADDED: "the host waits for more device values, and cannot launch kernels meanwhile",
    HOST_READS_REMOVED: "the host waits for fewer device values",
    OVERLAP_LOST: "compute hid these collectives before, and now the step waits for them",
    OVERLAP_RESTORED: "compute hides these collectives now, and before the step waited for them",
}

_INVERSE_PAIRS = (
    (ALL_TO_ALL_REPLACED, RESTORED),
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
