"""Statistics of step times: pure functions on numbers, without I/O, records or texts."""
