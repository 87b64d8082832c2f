"""A paper GPU: a device ``cuda`` of our own, whose kernels compute shapes instead of values.

A program for GPUs runs on it unmodified, on a machine that has none. Tensors are ordinary tensors; an operator costs
about what it costs on a CPU for a tensor of one element. ``cpp/`` is the device itself, a shared library that
``build.py`` compiles against the headers of the torch that is installed. This package loads it, before torch, and fills
``torch.cuda``.

    build.py        compile ``cpp/`` for one torch
    device.py       load the library, install the device
    gpus.py         the GPUs that it can be
    cuda.py         the functions of ``torch.cuda``
    collectives.py  process groups without peers: what a collective leaves in its outputs

What is not known, the value of anything that depends on real data, is never guessed: see ``docs/paper-gpu.md``.
"""
