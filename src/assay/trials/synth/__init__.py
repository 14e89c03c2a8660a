"""Trials of the methods that make training data."""
