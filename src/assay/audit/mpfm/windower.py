"""`LogWindower`: from raw lines to windows of template embeddings."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import HashingVectorizer

from assay._core.errors import InputError
from assay.audit.mpfm.drain import Drain, mask
from assay.audit.mpfm.layouts import Layout, Parsed, layout_of, parse_lines
from assay.audit.mpfm.windows import LogWindows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

N_HASHED = 256


class Encodes(Protocol):
    """What embeds texts: a sentence encoder, for example."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, n_features) for n texts."""
        ...


class HashedTrigrams:
    """Embed a template by its signed, hashed character trigrams.

    Nothing to learn and nothing to download; a template that was never seen gets a place of its own, near those that
    share its wording.
    """

    def __init__(self) -> None:
        # Signed hashing keeps inner products in expectation, as a random projection would.
        self._vectorizer = HashingVectorizer(
            analyzer="char_wb", ngram_range=(3, 3), n_features=N_HASHED, alternate_sign=True, norm="l2"
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, 256) of length one."""
        return np.asarray(self._vectorizer.transform(texts).toarray(), np.float32)


class LogWindower(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    r"""Cut raw logs into windows: header off, template by Drain, embedding, window.

    `fit` learns the layout and the templates of a system from its training lines; `transform` learns nothing. A message
    that fits no template becomes a template of its own, with its own embedding.

    Parameters
    ----------
    mode : {"sliding", "session", "time"}, default "sliding"
        "session": lines that share a key, found by `session_regex`. "time": a window ends where the log is silent for
        `gap` seconds. Longer sessions and bursts are cut into windows of `size`.
    size, step : int, default 20
        Lines of a window, and from one window to the next (sliding). A step below the size makes more windows to
        train on.
    session_regex : str, optional
        Finds the keys of a line, such as ``r"blk_-?\d+"``. A line with two keys goes to both sessions.
    gap : float, default 60.0
        Seconds.
    layout : str or mapping of domain to str, default "auto"
        Name of a layout, or a format string such as ``"<Label> <Time> <Node> <Content>"``.
    encoder : object with ``encode(texts)``, optional
        Embeds templates; None: hashed character trigrams. `assay.models.demo_encoder()` is a sentence encoder.

    Attributes
    ----------
    parsers_ : dict of domain to Drain
    layouts_ : dict of domain to Layout

    Examples
    --------
    >>> lines = [f"Jun 14 15:16:{i % 60:02d} host app[{i}]: request {i} from 10.0.0.{i % 9}" for i in range(105)]
    >>> windows = LogWindower().fit_transform(lines, domain="app")
    >>> windows.shape, int(windows.mask[-1].sum()), windows.templates
    ((6, 20), 5, ['request <num> from <ip>'])
    """

    def __init__(
        self,
        mode: Literal["sliding", "session", "time"] = "sliding",
        size: int = 20,
        step: int = 20,
        *,
        session_regex: str | None = None,
        gap: float = 60.0,
        layout: str | Mapping[str, str] = "auto",
        encoder: Encodes | None = None,
    ) -> None:
        self.mode = mode
        self.size = size
        self.step = step
        self.session_regex = session_regex
        self.gap = gap
        self.layout = layout
        self.encoder = encoder

    def fit(self, lines: Iterable[str], domain: str = "log") -> Self:
        """Learn layout and templates of a system; systems that were learned before stay.

        Raises
        ------
        InputError
            There are no lines, a parameter is wrong, or the lines do not fit the layout.
        """
        lines = list(lines)
        self._check(lines, domain)
        given = self.layout if isinstance(self.layout, str) else self.layout.get(domain, "auto")
        layout = layout_of(given, lines)
        drain = Drain()
        for message in parse_lines(lines, layout, domain).content:
            drain.add(mask(message))
        if not hasattr(self, "parsers_"):
            self.parsers_: dict[str, Drain] = {}
            self.layouts_: dict[str, Layout] = {}
        self.parsers_[domain], self.layouts_[domain] = drain, layout
        return self

    def fit_transform(
        self,
        lines: Iterable[str],
        domain: str = "log",
        labels: Sequence[int] | Mapping[str, int] | None = None,
    ) -> LogWindows:
        """Learn templates and cut the same lines; see :meth:`transform`."""
        lines = list(lines)
        return self.fit(lines, domain).transform(lines, domain, labels)

    def transform(
        self,
        lines: Iterable[str],
        domain: str = "log",
        labels: Sequence[int] | Mapping[str, int] | None = None,
        *,
        first_line: int = 1,
        step: int | None = None,
    ) -> LogWindows:
        """Cut lines into windows.

        Parameters
        ----------
        lines : iterable of str
        domain : str
            A system that `fit` knows, or a new one: then every distinct masked message is a template.
        labels : sequence of 0 and 1, or mapping of session to 0 and 1, optional
            Where the log does not carry labels itself.
        first_line : int, default 1
            Number of the first line, when a log comes in pieces.
        step : int, optional
            In place of the parameter, for this call.

        Raises
        ------
        InputError
            There are no lines, or labels do not fit them.
        """
        lines = list(lines)
        self._check(lines, domain)
        layout = getattr(self, "layouts_", {}).get(domain)
        if layout is None:
            given = self.layout if isinstance(self.layout, str) else self.layout.get(domain, "auto")
            layout = layout_of(given, lines)
        parsed = parse_lines(lines, layout, domain)
        if parsed.n_truncated:
            warnings.warn(f"{domain}: {parsed.n_truncated} lines are very long and were cut", stacklevel=2)
        ids, templates = self._template_ids(parsed.content, domain)
        order = self._order(parsed.times, domain)
        places, session = self._windows(parsed, order, lines, self.step if step is None else step)
        window_ids = np.where(places >= 0, ids[places], -1).astype(np.int32)
        return LogWindows(
            window_ids,
            self._embed(templates),
            templates,
            np.full(len(places), domain),
            places,
            parsed.content,
            np.arange(first_line, first_line + len(lines)),
            parsed.times,
            _window_labels(parsed.labels, labels, places, session, domain),
            session,
        )

    def _check(self, lines: list[str], domain: str) -> None:
        if not domain:
            raise InputError("domain is empty; name the system that the log comes from")
        if not any(line.strip() for line in lines):
            raise InputError(f"{domain}: the log has no lines")
        if self.mode not in ("sliding", "session", "time"):
            raise InputError(f"mode is {self.mode!r}; expected sliding, session or time")
        if min(self.size, self.step) < 1:
            raise InputError(f"size={self.size}, step={self.step}: expected whole numbers from 1")
        if self.mode == "session" and not self.session_regex:
            raise InputError(r"mode='session' needs session_regex, such as r'blk_-?\d+'")
        try:
            re.compile(self.session_regex or "")
        except re.error as error:
            raise InputError(f"session_regex {self.session_regex!r} is no regular expression: {error}") from None

    def _template_ids(self, content: list[str], domain: str) -> tuple[NDArray[np.int64], list[str]]:
        drain = getattr(self, "parsers_", {}).get(domain)
        ids = np.empty(len(content), np.int64)
        places: dict[Any, int] = {}
        templates: list[str] = []
        for row, message in enumerate(content):
            masked = mask(message)
            group = drain.match(masked) if drain is not None else None
            key = masked if group is None else group
            place = places.get(key)
            if place is None:
                place = places[key] = len(templates)
                templates.append(masked if group is None or drain is None else drain.template(group))
            ids[row] = place
        return ids, templates

    def _embed(self, templates: list[str]) -> NDArray[np.float32]:
        if not hasattr(self, "_vectors"):
            self._vectors: dict[str, NDArray[np.float32]] = {}
        new = [text for text in dict.fromkeys(templates) if text not in self._vectors]
        if len(self._vectors) > 50_000:
            self._vectors, new = {}, list(dict.fromkeys(templates))
        if new:
            encoder = self.encoder if self.encoder is not None else HashedTrigrams()
            self._vectors.update(zip(new, encoder.encode(new), strict=True))
        return np.stack([self._vectors[text] for text in templates])

    def _order(self, times: NDArray[np.datetime64], domain: str) -> NDArray[np.int64]:
        """Order of the lines: of the file, and of time where windows are cut by time."""
        if self.mode != "time":
            return np.arange(len(times))
        if np.isnat(times).all():
            raise InputError(f"{domain}: mode='time' needs timestamps, and the log has none that we can read; give "
                             "layout= a format string with <Time>")  # fmt: skip
        back = np.flatnonzero(np.diff(times) < np.timedelta64(0))
        if len(back):
            warnings.warn(f"{domain}: {len(back)} lines are earlier than the line before them (the first is line "
                          f"{back[0] + 2}); lines were sorted by time", stacklevel=3)  # fmt: skip
        return np.argsort(times, kind="stable")

    def _windows(
        self, parsed: Parsed, order: NDArray[np.int64], lines: list[str], step: int
    ) -> tuple[NDArray[np.int64], NDArray[np.str_] | None]:
        if self.mode == "sliding":
            return _sliding(order, self.size, step), None
        if self.mode == "time":
            silent = np.diff(parsed.times[order]) > np.timedelta64(int(self.gap * 1e9), "ns")
            groups = np.split(order, np.flatnonzero(silent) + 1)
            return np.concatenate([_sliding(group, self.size, self.size) for group in groups]), None
        sessions: dict[str, list[int]] = defaultdict(list)
        find = re.compile(self.session_regex or "").findall
        for place, line in enumerate(lines):
            for key in dict.fromkeys(find(line)):
                sessions[key].append(place)
        if not sessions:
            raise InputError(
                f"session_regex {self.session_regex!r} is found in no line; the first is {lines[0]!r:.100}"
            )
        cut = {key: _sliding(np.array(places), self.size, self.size) for key, places in sessions.items()}
        keys = np.repeat(list(cut), [len(windows) for windows in cut.values()])
        return np.concatenate(list(cut.values())), keys

    def to_dict(self) -> dict[str, Any]:
        """State that JSON can hold; the encoder is named, not stored."""
        return {
            "parameters": {name: getattr(self, name) for name in ("mode", "size", "step", "session_regex", "gap")},
            "encoder": encoder_name(self.encoder),
            "layouts": {name: [one.name, one.pattern, one.time_format] for name, one in self.layouts_.items()},
            "parsers": {name: drain.to_dict() for name, drain in self.parsers_.items()},
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any], encoder: Encodes | None = None) -> LogWindower:
        """Build from what :meth:`to_dict` gave, with the encoder that was used then.

        Raises
        ------
        InputError
            It was another encoder.
        """
        if state["encoder"] != encoder_name(encoder):
            raise InputError(f"the model's templates were embedded by {state['encoder']}, not by "
                             f"{encoder_name(encoder)}; load it with the same encoder=")  # fmt: skip
        windower = cls(**state["parameters"], encoder=encoder)
        windower.layouts_ = {name: Layout(*fields) for name, fields in state["layouts"].items()}
        windower.parsers_ = {name: Drain.from_dict(one) for name, one in state["parsers"].items()}
        return windower


def encoder_name(encoder: Encodes | None) -> str:
    """How a stored model speaks of its encoder."""
    return "hashed trigrams" if encoder is None else f"{type(encoder).__name__}({getattr(encoder, 'n_features', '')})"


def _sliding(order: NDArray[np.int64], size: int, step: int) -> NDArray[np.int64]:
    """(n_windows, size) places; the last window keeps what is left, filled with −1."""
    n_windows = 1 + max(0, -(-(len(order) - size) // step))
    places = np.arange(n_windows)[:, None] * step + np.arange(size)
    return np.where(places < len(order), order[np.minimum(places, len(order) - 1)], -1)


def _window_labels(
    own: NDArray[np.int8] | None,
    given: Sequence[int] | Mapping[str, int] | None,
    places: NDArray[np.int64],
    session: NDArray[np.str_] | None,
    domain: str,
) -> NDArray[np.int8] | None:
    if given is None and own is None:
        return None
    if given is not None and hasattr(given, "keys"):
        if session is None:
            raise InputError(f"{domain}: labels by session need mode='session'")
        missing = [key for key in session if key not in given]
        if missing:
            raise InputError(f"{domain}: session {str(missing[0])!r} has no label; {len(missing)} are missing")
        return np.array([given[key] for key in session], np.int8)
    labels = np.asarray(own if given is None else given)
    if len(labels) <= places.max():
        raise InputError(f"{domain}: {len(labels)} labels for {places.max() + 1} lines; give one a line")
    anomalous = (places >= 0) & (labels[places] != 0)
    return np.asarray(anomalous.any(axis=1), np.int8)
