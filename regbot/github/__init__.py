"""Everything regbot does on GitHub: permissions, comment commands, and the comment and check run of a pull request."""
