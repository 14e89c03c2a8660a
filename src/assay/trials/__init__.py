"""Trials, one file per method: the claim, the data, the arms, the metrics. The bench does the rest."""
