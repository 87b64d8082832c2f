"""Finds a recipe by its name, as Megatron Bridge's module of this name does."""

from megatron.bridge import recipes


def load_recipe(recipe_name):
    if not hasattr(recipes, recipe_name):
        raise AttributeError(f"Recipe '{recipe_name}' not found in megatron.bridge.recipes.")
    return getattr(recipes, recipe_name)()
