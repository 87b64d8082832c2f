"""regbot: a performance-regression CI bot for Mixture-of-Experts training code."""

__version__ = "0.1.0"
