"""What libraries say about themselves while they are loaded is nothing to a user of the command line."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

#: torchao warns of each compiled kernel that does not fit this build of torch, and torch of how torchao uses it. Both
#: happen as soon as transformers loads any model, and neither matters here: no path of ours takes those kernels.
TALKATIVE = ("torchao", "torch.utils._pytree")


def speak() -> None:
    """Say each warning to the user once, as a line on stderr, and not where in the source it was raised."""
    said: set[str] = set()
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if category is not UserWarning:
            others(message, category, *where, **options)
        elif str(message) not in said:
            said.add(str(message))
            print(f"warning: {message}", file=sys.stderr)  # noqa: T201

    warnings.showwarning = show


def hush() -> None:
    """Let the loggers of `TALKATIVE` speak of errors alone, in this process; a level that was set stays."""
    for name in TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)
