"""Responses with a known truth, for the tests of bridge."""

import numpy as np
import pandas as pd
from scipy.special import expit

from assay.evaluate.bridge.likelihood import pack

#: LSAT6 (Bock & Lieberman 1970): how many of 1,000 persons gave each pattern of answers to five items.
LSAT6 = {
    "00000": 3, "00001": 6, "00010": 2, "00011": 11, "00100": 1, "00101": 1, "00110": 3, "00111": 4, "01000": 1,
    "01001": 8, "01011": 16, "01101": 3, "01110": 2, "01111": 15, "10000": 10, "10001": 29, "10010": 14, "10011": 81,
    "10100": 3, "10101": 28, "10110": 15, "10111": 80, "11000": 16, "11001": 56, "11010": 21, "11011": 173, "11100": 11,
    "11101": 61, "11110": 28, "11111": 298,
}  # fmt: skip


def lsat6():
    patterns = np.array([[int(digit) for digit in pattern] for pattern in LSAT6])
    return np.repeat(patterns, list(LSAT6.values()), axis=0)


def simulated(n_models, n_tasks, seed=0, share=1.0):
    """Matrix of 0 and 1 (NaN: not tried), with the true ability, difficulty and discrimination."""
    rng = np.random.default_rng(seed)
    ability, difficulty = rng.normal(0, 1.5, n_models), rng.normal(0, 1.5, n_tasks)
    discrimination = np.exp(rng.normal(0, 0.4, n_tasks))
    p = expit(discrimination * (ability[:, None] - difficulty))
    solved = (rng.random(p.shape) < p).astype(float)
    solved[rng.random(p.shape) >= share] = np.nan
    return solved, ability, difficulty, discrimination


def packed(matrix):
    subject, item = np.nonzero(~np.isnan(matrix))
    return pack(subject, item, matrix[subject, item], n_subjects=matrix.shape[0], n_items=matrix.shape[1])


def long_table(matrix):
    subject, item = np.nonzero(~np.isnan(matrix))
    names = [f"model {j:03d}" for j in subject], [f"task {i:03d}" for i in item]
    return pd.DataFrame({"model": names[0], "task": names[1], "correct": matrix[subject, item]})


def small_world(seed=3):
    """Twenty models and sixty tasks in long form, minutes of forty tasks, and dates of all models."""
    matrix, ability, difficulty, _ = simulated(20, 60, seed=seed, share=0.8)
    frame = long_table(matrix)
    minutes = pd.DataFrame({"task": [f"task {i:03d}" for i in range(40)], "human_minutes": np.exp(2 + difficulty[:40])})
    order = np.argsort(np.argsort(ability))  # better models came later
    dates = pd.DataFrame(
        {
            "model": [f"model {j:03d}" for j in range(20)],
            "release_date": [f"{2022 + rank // 6}-{1 + 2 * (rank % 6):02d}-15" for rank in order],
        }
    )
    return frame, minutes, dates
