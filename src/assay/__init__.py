"""Assay: try a new method against your own baseline, on your own data. Then use it."""

__version__ = "0.1.0"
