"""`LogWindows`: windows of log lines as numbers, and the lines they came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class LogWindows:
    """Windows of the logs of one or several systems.

    Can be indexed by rows, as an array is, and joined by :meth:`concat`; scikit-learn's splitters and searches take it.

    Parameters
    ----------
    ids : (n_windows, length) int32
        Row of `vectors` for every line of a window; −1 where a window has no further line.
    vectors : (n_templates, n_features) float32
        Embedding of every template.
    templates : list of n_templates str
    domain : (n_windows,) str
        System of every window.
    lines : (n_windows, length) int64
        Place in `messages`; −1 where there is none.
    messages : list of str
        The lines without their headers.
    numbers : (n_messages,) int64
        Number of every line in its file, counted from 1.
    times : (n_messages,) datetime64
        NaT where a line has none.
    y : (n_windows,) int8, optional
        1: a line of the window is labelled as an anomaly.
    session : (n_windows,) str, optional
        Key of the session, where windows are sessions.
    """

    ids: NDArray[np.int32]
    vectors: NDArray[np.float32]
    templates: list[str]
    domain: NDArray[np.str_]
    lines: NDArray[np.int64]
    messages: list[str]
    numbers: NDArray[np.int64]
    times: NDArray[np.datetime64]
    y: NDArray[np.int8] | None = None
    session: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_windows, length)."""
        return self.ids.shape[0], self.ids.shape[1]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(n_windows, length): where a window has a line."""
        return self.ids >= 0

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802, the field's name for it
        """(n_windows, length, n_features) embeddings, zero where there is no line; made at every call."""
        padded = np.concatenate([self.vectors, np.zeros((1, self.vectors.shape[1]), np.float32)])
        return padded[self.ids]

    def __getitem__(self, key: Any) -> LogWindows:
        if isinstance(key, tuple):  # scikit-learn asks for windows[rows, ...]
            key = key[0]
        rows = np.atleast_1d(np.arange(len(self))[key])
        return LogWindows(
            self.ids[rows],
            self.vectors,
            self.templates,
            self.domain[rows],
            self.lines[rows],
            self.messages,
            self.numbers,
            self.times,
            None if self.y is None else self.y[rows],
            None if self.session is None else self.session[rows],
        )

    @staticmethod
    def concat(parts: Sequence[LogWindows]) -> LogWindows:
        """Join windows of several logs; shorter ones are filled up.

        Raises
        ------
        InputError
            There is nothing to join, or the parts were embedded by different encoders.
        """
        if not parts:
            raise InputError("there are no windows to join; give at least one LogWindows")
        widths = {part.vectors.shape[1] for part in parts}
        if len(widths) > 1:
            raise InputError(f"the windows have embeddings of {sorted(widths)} numbers; use one encoder for all")
        length = max(part.shape[1] for part in parts)
        n_templates = np.cumsum([0, *(len(part.templates) for part in parts)])
        n_messages = np.cumsum([0, *(len(part.messages) for part in parts)])
        has_y = any(part.y is not None for part in parts)
        has_session = any(part.session is not None for part in parts)
        return LogWindows(
            np.concatenate([_moved(p.ids, by, length) for p, by in zip(parts, n_templates, strict=False)]),
            np.concatenate([part.vectors for part in parts]),
            [template for part in parts for template in part.templates],
            np.concatenate([part.domain for part in parts]),
            np.concatenate([_moved(p.lines, by, length) for p, by in zip(parts, n_messages, strict=False)]),
            [message for part in parts for message in part.messages],
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.times for part in parts]),
            np.concatenate([np.zeros(len(p), np.int8) if p.y is None else p.y for p in parts]) if has_y else None,
            np.concatenate([np.full(len(p), "") if p.session is None else p.session for p in parts])
            if has_session
            else None,
        )


def _moved(places: NDArray[Any], by: int, length: int) -> NDArray[Any]:
    filled = np.full((len(places), length), -1, places.dtype)
    filled[:, : places.shape[1]] = np.where(places >= 0, places + by, -1)
    return filled
