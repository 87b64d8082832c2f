"""Guest code: all code of regbot that runs inside the training process.

It needs only the standard library and the installed torch or jax, and runs on Python 3.10 and newer. It imports no
other part of regbot. Its output is plain JSON. The trusted side, which is the rest of regbot, validates this output.
"""
