"""Workloads: the trusted code that runs each kind of training code and reads its results."""
