"""Trials of the methods that make generation faster or better."""
