"""Trials of the methods that say what to trust."""
