"""``regbot init``: install the configuration and workflows with which regbot judges a repository's pull requests."""
