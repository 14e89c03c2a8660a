"""Trials of the methods that find structure or a good solution."""
