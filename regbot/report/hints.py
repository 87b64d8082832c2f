"""Hints on where to look first in a diff, by the pattern of a finding. A hint continues "Look at ... in this diff:"."""

from regbot.ledgers import catalogue

HINTS = {
    catalogue.ALL_TO_ALL_REPLACED: "check whether the all-to-all dispatcher is still chosen, and whether a placement "
    "or sharding rule uses the expert axis twice, for both tokens and experts",
    catalogue.AXIS_LOST: "find which placement or mesh no longer names the expert axis, so that experts are replicated",
    catalogue.AXIS_GAINED: "find which placement or mesh now names the expert axis",
    catalogue.DISPATCHER_OFF: "find why the requested dispatcher did not run, such as an import that fails, a "
    "capability check, or a default that changed",
    catalogue.RECOMPUTES: "find which checkpoint policy now recomputes the dispatch, and save its output instead",
    catalogue.RESHARDS: "find where parameters are now freed after forward (reshard_after_forward)",
    catalogue.KEEPS_GATHERED: "find where parameters are no longer freed after forward, and check peak memory",
    catalogue.GRADIENT_LOST: "find which parameters left the reduction group: they now train on fewer ranks' gradients",
    catalogue.OPTIMIZER_SUM_REMOVED: "find what the optimizer step no longer sums, and whether it was gradients",
    catalogue.WIDENED: "find the cast that is missing before the exchange",
    catalogue.WAITS_ADDED: "find the .item(), synchronize or size that depends on data, and keep it off the host",
    catalogue.FLOPS_UP: "find the product that is larger or runs more often",
    catalogue.RECOMPUTE_ADDED: "find which checkpoint policy now recomputes these modules",
    catalogue.PRODUCT_WIDENED: "find the cast that is missing before the product, or the autocast that ends too early",
    catalogue.STATE_WIDENED: "find the dtype in which gradients or optimizer state are now created",
    catalogue.TEMPORARY_ADDED: "find the buffer that is now created, or that lives longer",
    catalogue.PEAK_UP: "find what is now kept until the peak, such as a reference to an activation",
    catalogue.DOES_NOT_FIT: "find what is now kept until the peak, such as a reference to an activation",
    catalogue.FUSED_LOST: "find the fused operator or the batched product that is no longer called",
    catalogue.LAUNCHES_UP: "find the loop that now launches a kernel for each of its rounds",
    catalogue.OVERLAP_LOST: "find what now orders these collectives after compute, such as a stream, a wait for an "
    "event, or an overlap flag that is off",
    catalogue.COUNTS_ADDED: "find the token counts that are exchanged again instead of being reused",
}
