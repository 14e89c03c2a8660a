"""What libraries say about themselves while they are loaded is nothing to a user of the command line."""

from __future__ import annotations

import logging

#: torchao warns of each compiled kernel that does not fit this build of torch, and torch of how torchao uses it. Both
#: happen as soon as transformers loads any model, and neither matters here: no path of ours takes those kernels.
TALKATIVE = ("torchao", "torch.utils._pytree")


def hush() -> None:
    """Let the loggers of `TALKATIVE` speak of errors alone, in this process; a level that was set stays."""
    for name in TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.ERROR)
