"""Trials of layers and architectures."""
