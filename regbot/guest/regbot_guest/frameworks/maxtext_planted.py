"""A program with known collectives, compiled and dumped by the same XLA as the train step: one all-to-all, one
all-gather, and an all-reduce in a loop of three iterations, each over all devices.

The expected numbers are in ``regbot.workloads.compiled`` and not in the record, so code under test cannot change them.
"""

from typing import Any

NAME = "regbot_planted"
ITERATIONS = 3
_AXIS = "all"


def compile_on(jax: Any, mesh: Any) -> None:
    """Compile the planted program for the devices of ``mesh``. XLA dumps it as the module ``jit_regbot_planted``."""
    devices = mesh.devices.reshape(-1)
    ranks = devices.size
    by_device = jax.sharding.PartitionSpec(_AXIS)  # the rows of an array are divided among the devices

    def average_over_devices(carry: Any, _: Any) -> tuple[Any, None]:
        return jax.lax.psum(carry, _AXIS) / ranks, None

    def regbot_planted(x: Any) -> Any:
        exchanged = jax.lax.all_to_all(x, _AXIS, split_axis=0, concat_axis=0)
        gathered = jax.lax.all_gather(exchanged, _AXIS)
        averaged, _ = jax.lax.scan(average_over_devices, x, None, length=ITERATIONS)
        return gathered, averaged

    flat_mesh = jax.sharding.Mesh(devices, (_AXIS,))
    mapped = jax.shard_map(
        regbot_planted, mesh=flat_mesh, in_specs=by_device, out_specs=(by_device, by_device), check_vma=False
    )
    mapped.__name__ = NAME
    # Each device has one row for every device, as the all-to-all requires.
    rows, columns = ranks * ranks, 16
    sharding = jax.sharding.NamedSharding(flat_mesh, by_device)
    jax.jit(mapped).lower(jax.ShapeDtypeStruct((rows, columns), "float32", sharding=sharding)).compile()
