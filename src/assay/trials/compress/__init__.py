"""Trials of the methods that make models smaller."""
