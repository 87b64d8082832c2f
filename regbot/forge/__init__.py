"""GitHub: who may spend time on which commit, and the one comment and check run that answer him."""
