"""What two ledgers say of each other. Pure functions on records: no I/O, no git, no torch."""
