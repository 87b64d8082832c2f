"""Search for the change that caused a regression: among commits, or among the versions of a dependency."""
