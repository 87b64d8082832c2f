"""Preflight: before anything runs, find conflicts in a resolved configuration, and give advice on dispatchers with the
date of its source.
"""
