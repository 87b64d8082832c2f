"""What regbot does on GitHub: it checks permissions, executes comment commands, and posts comments and check runs."""
