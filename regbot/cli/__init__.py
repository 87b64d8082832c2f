"""The command line. Each command parses its options, calls one function and prints the result."""
