"""Run requests with further packages, from the folder that the first argument names. torch has looked for its optional
packages before, and would need far more of them than the tests' small ones have.
"""

import sys

import torch._dynamo
import torch._inductor  # noqa: F401

from regbot_guest import process

_, folder, *requests = sys.argv
sys.path.append(folder)
process.main(requests)
