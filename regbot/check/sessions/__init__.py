"""Measurement of a check: static traces of both arms, and blocks of timed pairs."""
