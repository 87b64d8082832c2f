"""The names of everything a ledger difference can be, one line of explanation each, and every name's inverse.

Names are part of the interface: verdicts carry them, ``--expect`` rules and comments are written with them.
"""

MAPPED_TWICE = "expert axis mapped twice"
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
MOVED = "collective moved to another axis or group"
OTHER_LAYER = "collective moved to another layer"
WIDENED = "payload dtype widened"
NARROWED = "payload dtype narrowed"
COUNTS_ADDED = "count exchange added"
COUNTS_REMOVED = "count exchange removed"
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
    MAPPED_TWICE: "tokens are gathered to every rank and summed back, where an all-to-all sent each row to its expert",
    RESTORED: "an all-to-all sends each row to its expert again, where tokens were gathered to every rank",
    AXIS_LOST: "the experts' all-to-all is gone and nothing exchanges tokens in its place",
    AXIS_GAINED: "tokens now travel to their experts by all-to-all, where every rank kept its own",
    DISPATCHER_OFF: "the dispatcher that was asked for ran in base and was replaced in head without a word",
    DISPATCHER_ON: "the dispatcher that was asked for runs again, where base had replaced it",
    RECOMPUTES: "activation checkpointing repeats the whole token exchange of forward inside backward",
    RECOMPUTES_NOT: "backward no longer repeats the token exchange of forward",
    RESHARDS: "parameters are freed after forward and gathered a second time for backward",
    KEEPS_GATHERED: "parameters stay gathered from forward to backward: one gather less, more memory",
    GRADIENT_LOST: "gradients of some parameters are summed over fewer ranks, or not at all: replicas drift apart",
    GRADIENT_GAINED: "gradients of some parameters are summed over more ranks than before",
    MOVED: "the same collectives run on another mesh axis or in groups of another size",
    OTHER_LAYER: "some layers issue fewer of the same collectives and others as many more, with the same total",
    WIDENED: "the same elements travel in a wider type",
    NARROWED: "the same elements travel in a narrower type",
    COUNTS_ADDED: "one more exchange of token counts on the expert axis, often with a wait of the host for its result",
    COUNTS_REMOVED: "one exchange of token counts on the expert axis less",
    BYTES_UP: "more payload bytes, and no named pattern explains them",
    BYTES_DOWN: "fewer payload bytes, and no named pattern explains them",
    COUNT_UP: "the same payload bytes in more calls",
    COUNT_DOWN: "the same payload bytes in fewer calls",
    CONTROL_CHANGED: "small integer exchanges or barriers changed; hardly any bytes, but each can stall the host",
    HOST_READS_ADDED: "the host waits for more values of the device, and cannot launch ahead meanwhile",
    HOST_READS_REMOVED: "the host waits for fewer values of the device",
    OVERLAP_LOST: "the same collectives, which compute hid and now the step waits for",
    OVERLAP_RESTORED: "the same collectives, which now run under compute where the step waited for them",
}

_PAIRS = (
    (MAPPED_TWICE, RESTORED),
    (AXIS_LOST, AXIS_GAINED),
    (DISPATCHER_OFF, DISPATCHER_ON),
    (RECOMPUTES, RECOMPUTES_NOT),
    (RESHARDS, KEEPS_GATHERED),
    (GRADIENT_LOST, GRADIENT_GAINED),
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
INVERSE: dict[str, str] = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
"""What a pattern is called when base and head are swapped."""
