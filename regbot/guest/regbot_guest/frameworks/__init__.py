"""Frameworks that have their own training loop. The modules here make one step of such a loop countable."""
