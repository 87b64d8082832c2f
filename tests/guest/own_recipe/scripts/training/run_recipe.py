"""A script like Megatron Bridge's: a recipe by its name, and overrides ``key=value`` of the recipe's configuration."""

import argparse
import ast
import os
import sys

from megatron.bridge.training.train import pretrain
from recipe_runner import load_recipe

MARKER = "_MB_TRAINING_RECIPE_ENV_BOOTSTRAPPED"

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--recipe", required=True)
arguments, overrides = parser.parse_known_args()
configuration = load_recipe(arguments.recipe)
for override in overrides:
    key, _, value = override.partition("=")
    section, _, name = key.partition(".")
    known = {"null": None, "true": True, "false": False}
    setattr(getattr(configuration, section), name, known[value] if value in known else ast.literal_eval(value))
if os.environ.get(MARKER) != str(os.getpid()):  # a trace would end here
    os.environ[MARKER] = str(os.getpid())
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
pretrain(configuration)
