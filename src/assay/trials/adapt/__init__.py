"""Trials of what teaches or steers a model."""
