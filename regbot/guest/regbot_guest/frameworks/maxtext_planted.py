"""A program with known collectives, which is compiled and dumped by the same XLA as the train step.

A count is trusted only if the reader also finds the collectives of this program: one all-to-all, one all-gather, and an
all-reduce in a loop of three iterations, on all devices. The trusted side has these numbers in
``regbot.workloads.compiled``. They are not part of the record, so code under test cannot change them.
"""

from typing import Any

NAME = "regbot_planted"
ITERATIONS = 3
_AXIS = "all"


def compile_on(jax: Any, mesh: Any) -> None:
    """Compile the planted program for the devices of ``mesh``. XLA dumps it as the module ``jit_regbot_planted``."""
    devices = mesh.devices.reshape(-1)
    axis, ranks = _AXIS, devices.size
    by_device = jax.sharding.PartitionSpec(axis)

    def regbot_planted(x: Any) -> Any:
        exchanged = jax.lax.all_to_all(x, axis, 0, 0)
        gathered = jax.lax.all_gather(exchanged, axis)
        summed, _ = jax.lax.scan(lambda carry, _: (jax.lax.psum(carry, axis) / ranks, None), x, None, length=ITERATIONS)
        return gathered, summed

    flat_mesh = jax.sharding.Mesh(devices, (axis,))
    mapped = jax.shard_map(
        regbot_planted, mesh=flat_mesh, in_specs=by_device, out_specs=(by_device, by_device), check_vma=False
    )
    mapped.__name__ = NAME
    shape = jax.ShapeDtypeStruct(
        (ranks * ranks, 16), "float32", sharding=jax.sharding.NamedSharding(flat_mesh, by_device)
    )
    jax.jit(mapped).lower(shape).compile()
