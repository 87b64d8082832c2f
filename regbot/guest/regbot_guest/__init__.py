"""Guest code: all code of regbot that runs inside the training process.

It needs only the standard library and the installed torch, and runs on Python 3.10 and newer. It imports no other part
of regbot. Its output is plain JSON, and the trusted side validates this output.
"""
