"""The paper GPU: a device ``cuda`` whose kernels compute shapes instead of values.

Programs for GPUs run on it unmodified, on a machine without a GPU. Tensors are ordinary tensors. An operator takes
about as long as on a CPU for a tensor of one element. ``cpp/`` implements the device as a shared library.
``regbot/workloads/paper/build.py`` compiles this library against the headers of the installed torch. The package here
loads the library before torch, and adds to ``torch.cuda`` the functions that programs call.

    device.py       load the library, install the device
    gpus.py         the GPU models that the device can imitate
    cuda.py         the functions of ``torch.cuda``
    groups.py       process groups without peers
    collectives.py  kernels of collectives, which compute their outputs
    graphs.py       CUDA graphs
    libraries/      stand-ins for compiled libraries
    counter.py      counts of one step
    step.py         one counted step of the smoke model

Values that depend on real data are unknown. A program that reads an unknown integer on the host is refused. An unknown
float is read as 1.0, and the ledger lists this as a guess. ``docs/paper-gpu.md`` describes the details.
"""
