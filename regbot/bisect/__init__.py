"""Finding the change that brought a regression: along commits, or along the versions of a dependency."""
