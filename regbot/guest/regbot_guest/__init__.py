"""Guest code: everything of regbot that runs inside the training process.

Standard library and the torch that is there, Python 3.10 and newer, plain JSON out. It imports nothing of regbot, and
what it writes is believed by nobody without a check.
"""
