"""Trials of the methods that measure models."""
