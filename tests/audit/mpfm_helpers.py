"""Small logs of two systems with a fixed order of messages."""

import numpy as np

from assay.audit.mpfm import LogWindower, LogWindows

WORDS = {
    "web": ["open session {}", "read page {}", "check token {}", "send page {}", "close session {}"],
    "db": [
        "begin transaction {}",
        "lock row {}",
        "write row {}",
        "commit transaction {}",
        "free row {}",
        "vacuum table {}",
    ],
    "mail": ["accept mail {}", "scan mail {}", "queue mail {}", "deliver mail {}"],
}


def lines_of(system, n, seed=0):
    rng = np.random.default_rng(seed)
    words = WORDS[system]
    lines = []
    for i in range(n):
        word = words[(i + (rng.random() < 0.02)) % len(words)].format(rng.integers(999))
        lines.append(f"Jun {1 + i // 1440:2d} {i // 60 % 24:02d}:{i % 60:02d}:00 host {system}[7]: {word}")
    return lines


def windows_of(systems=("web", "db"), n=1300, size=8, step=4, seed=0):
    windower = LogWindower(size=size, step=step)
    return windower, LogWindows.concat([windower.fit_transform(lines_of(name, n, seed), name) for name in systems])
