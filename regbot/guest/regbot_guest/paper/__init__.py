"""The paper GPU: a device ``cuda`` whose kernels compute shapes instead of values (``docs/paper-gpu.md``).

``cpp/`` implements the device as a shared library, which ``regbot/workloads/paper/build.py`` compiles against the
headers of the installed torch. This package loads it before torch, and adds what programs call in ``torch.cuda``. A
program that reads an unknown integer on the host is refused. An unknown float is read as 1.0, which is a guess.
"""
