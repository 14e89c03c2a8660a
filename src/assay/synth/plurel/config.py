"""What may be chosen when a database is invented: ranges and sets, checked once, that read and write as JSON.

Every field holds the choices of one decision. A pair of numbers is a range (whole numbers inclusive), a tuple of names
is a set; one number or one name alone pins the decision. Defaults are those of the authors' current code;
:meth:`RelationalConfig.paper` gives those of the paper's experiments.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.plurel.activations import ACTIVATIONS

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

LAYOUTS = (
    "erdos_renyi",
    "barabasi_albert",
    "random_tree",
    "reverse_random_tree",
    "layered",
    "watts_strogatz",
    "random_cauchy",
)
INITIALISERS = ("kaiming_normal", "kaiming_uniform", "xavier_normal", "xavier_uniform", "truncated_normal", "sparse")
AGGREGATORS = ("sum", "max", "product", "logsumexp")
SOURCES = ("series", "uniform", "gaussian", "beta", "mixture")
TRANSFORMS = ("identity", "rank_uniform", "log1p", "sqrt", "standardise")
WEIGHTS = ("normal", "lognormal", "cauchy", "uniform")
PROPAGATIONS = ("eager", "lazy")

Ints = tuple[int, int]
Floats = tuple[float, float]
Names = tuple[str, ...]


@dataclass(frozen=True)
class DatabaseConfig:
    """The shape of a database: tables, columns, rows, keys and what is done to finished columns.

    Parameters
    ----------
    n_tables : range
    layouts : set of `LAYOUTS`
        How the tables refer to each other.
    n_columns : range
        Feature columns of a table; P(k) is proportional to 1/k.
    categorical_share : float
        Probability that a column is categorical.
    cardinality : range
        Classes of a categorical column.
    entity_rows, activity_rows : range
        Rows of tables that others refer to, and of those that none refers to.
    rows : int, optional
        Rows of the whole database: the drawn counts are scaled so that they add up to it.
    window : pair of ISO dates
        Dates of activity tables lie between two days of it.
    levels, clusters : range
        Of the block model of the foreign keys: levels, and clusters a level on each side.
    missing : range
        Share of missing cells in the numerical columns of a table.
    transforms : set of `TRANSFORMS`
    categorical : "full" or "boolean"
        "boolean": as the authors' code, classes become "above class 0" and constant columns are dropped.
    """

    n_tables: Ints = (3, 20)
    layouts: Names = ("barabasi_albert", "reverse_random_tree", "watts_strogatz")
    n_columns: Ints = (3, 40)
    categorical_share: float = 0.5
    cardinality: Ints = (2, 10)
    entity_rows: Ints = (500, 1000)
    activity_rows: Ints = (2000, 5000)
    rows: int | None = None
    window: tuple[str, str] = ("1990-01-01", "2025-01-01")
    levels: Ints = (1, 5)
    clusters: Ints = (1, 3)
    missing: Floats = (0.01, 0.1)
    transforms: Names = TRANSFORMS
    categorical: str = "full"

    def __post_init__(self) -> None:
        _whole(self, "n_tables", 1)
        _whole(self, "n_columns", 1)
        _whole(self, "cardinality", 2)
        for name in ("entity_rows", "activity_rows", "levels", "clusters"):
            _whole(self, name, 1)
        _real(self, "missing", 0.0, 1.0)
        _chosen(self, "layouts", LAYOUTS)
        _chosen(self, "transforms", TRANSFORMS)
        _share(self, "categorical_share")
        if self.categorical not in ("full", "boolean"):
            raise InputError(f"categorical is {self.categorical!r}; expected 'full' or 'boolean'")
        if self.rows is not None and (not _is_whole(self.rows) or self.rows < 1):
            raise InputError(f"rows is {self.rows!r}; expected a whole number from 1, or None for the drawn counts")
        try:
            first, last = (date.fromisoformat(day) for day in self.window)
        except (TypeError, ValueError):
            raise InputError(f"window is {self.window!r}; expected two dates such as '1990-01-01'") from None
        if (last - first).days < 2:
            raise InputError(f"window is {self.window!r}; expected two dates at least two days apart, earlier first")
        object.__setattr__(self, "window", tuple(self.window))


@dataclass(frozen=True)
class ScmConfig:
    """How the columns of a table depend on each other.

    Parameters
    ----------
    layouts : set of `LAYOUTS`
    observed_share : range
        u of the node count C + ceil(C / u) + 3 for C columns.
    width : int
        Of the embeddings.
    depth : range
        Weight matrices of a random network.
    initialisers : set of `INITIALISERS`
    density : range
        Share of weights that are kept; the others become zero and the kept are divided by it.
    activations : set of names
        See `assay.synth.plurel.activations.ACTIVATIONS`.
    log_gain : range
        The output of a hidden layer is multiplied by exp(U).
    aggregators : set of `AGGREGATORS`
    noise : range
        Both shapes of the Beta noise of a node.
    noise_pairs : tuple of pairs
        Where given, the two shapes are drawn from it instead.
    sources : set of `SOURCES`
    source_scale : tuple of float
        Set of factors of the bounds of a source.
    source_beta : range
    trend_power : range
    cycle_share : tuple of float
        Set of cycle lengths as shares of the rows.
    activity_noise, entity_noise : float
        Standard deviation of a series' noise.
    ar : range
        Autocorrelation of a series' noise.
    propagation : set of `PROPAGATIONS`
        "eager": classes are decoded node by node; "lazy": all nodes are numerical, columns are cut into classes last.
    permute, reverse : range
        Of lazy classes: probability (itself drawn) that labels are permuted, reversed.
    coupling : float
        omega: what parent rows contribute is multiplied by it. 0 cuts children from their parents.
    """

    layouts: Names = LAYOUTS
    observed_share: Floats = (0.3, 0.9)
    width: int = 32
    depth: Ints = (2, 4)
    initialisers: Names = INITIALISERS
    density: Floats = (0.3, 1.0)
    activations: Names = tuple(ACTIVATIONS)
    log_gain: Floats = (-1.0, 1.0)
    aggregators: Names = AGGREGATORS
    noise: Floats = (0.5, 5.0)
    noise_pairs: tuple[Floats, ...] = ()
    sources: Names = SOURCES
    source_scale: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    source_beta: Floats = (0.5, 5.0)
    trend_power: Floats = (0.0, 2.0)
    cycle_share: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    activity_noise: float = 0.05
    entity_noise: float = 1.0
    ar: Floats = (0.0, 0.9)
    propagation: Names = PROPAGATIONS
    permute: Floats = (0.3, 1.0)
    reverse: Floats = (0.2, 0.8)
    coupling: float = 1.0

    def __post_init__(self) -> None:
        _whole(self, "depth", 2)
        _chosen(self, "layouts", LAYOUTS)
        _chosen(self, "initialisers", INITIALISERS)
        _chosen(self, "activations", tuple(ACTIVATIONS))
        _chosen(self, "aggregators", AGGREGATORS)
        _chosen(self, "sources", SOURCES)
        _chosen(self, "propagation", PROPAGATIONS)
        for name in ("observed_share", "density"):
            _real(self, name, 0.01, 1.0)
        for name in ("noise", "source_beta"):
            _real(self, name, 0.5, 100.0)
        _real(self, "log_gain", -10.0, 10.0)
        _real(self, "trend_power", 0.0, 10.0)
        _real(self, "ar", 0.0, 0.999)
        _real(self, "permute", 0.0, 1.0)
        _real(self, "reverse", 0.0, 1.0)
        pairs = tuple(tuple(float(shape) for shape in pair) for pair in self.noise_pairs)
        if any(len(pair) != 2 or min(pair) < 0.5 for pair in pairs):
            raise InputError(f"noise_pairs is {self.noise_pairs!r}; expected pairs of numbers from 0.5")
        object.__setattr__(self, "noise_pairs", pairs)
        for name in ("source_scale", "cycle_share"):
            numbers = tuple(float(number) for number in _several(getattr(self, name)))
            if not numbers or min(numbers) <= 0:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected numbers above zero")
            object.__setattr__(self, name, numbers)
        if not _is_whole(self.width) or not 1 <= self.width <= 1024:
            raise InputError(f"width is {self.width!r}; expected a whole number from 1 to 1024")
        for name in ("activity_noise", "entity_noise", "coupling"):
            if not isinstance(getattr(self, name), int | float) or not 0 <= getattr(self, name) < 1e6:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected a number from 0")


@dataclass(frozen=True)
class DagConfig:
    """Numbers of the random graphs.

    Parameters
    ----------
    er_p : range
        Edge probability of Erdős–Rényi.
    ba_m : int
        Edges that a new node of Barabási–Albert brings.
    ba_drop, ba_flip : float
        Probability that a sink with more than one incoming edge loses one; that the only incoming edge of a sink turns
        where the other end has fewer than `ba_max_in` incoming ones.
    ba_max_in : int
    ws_p : range
        Rewiring probability of Watts–Strogatz.
    depth : range
        Of layered graphs.
    layered_drop : float
    weights : set of `WEIGHTS`
        Family of the edge weights of a graph.
    """

    er_p: Floats = (0.3, 0.8)
    ba_m: int = 2
    ba_drop: float = 0.4
    ba_flip: float = 0.0
    ba_max_in: int = 4
    ws_p: Floats = (0.1, 0.3)
    depth: Ints = (2, 8)
    layered_drop: float = 0.1
    weights: Names = WEIGHTS

    def __post_init__(self) -> None:
        _real(self, "er_p", 0.0, 1.0)
        _real(self, "ws_p", 0.0, 1.0)
        _whole(self, "depth", 2)
        _chosen(self, "weights", WEIGHTS)
        for name in ("ba_drop", "ba_flip", "layered_drop"):
            _share(self, name)
        for name in ("ba_m", "ba_max_in"):
            if not _is_whole(getattr(self, name)) or getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected a whole number from 1")


@dataclass(frozen=True)
class RelationalConfig:
    """All choices of a database.

    Examples
    --------
    >>> config = RelationalConfig(DatabaseConfig(n_tables=5, layouts="random_tree"))
    >>> config.database.n_tables, config.database.layouts
    ((5, 5), ('random_tree',))
    >>> RelationalConfig.from_dict(config.to_dict()) == config
    True
    """

    database: DatabaseConfig = field(default_factory=DatabaseConfig)
    scm: ScmConfig = field(default_factory=ScmConfig)
    dag: DagConfig = field(default_factory=DagConfig)

    @classmethod
    def paper(cls) -> RelationalConfig:
        """The choices of the paper's experiments (version 1.0.0 of the authors' code)."""
        return cls(
            DatabaseConfig(transforms=("identity",)),
            ScmConfig(
                layouts=("erdos_renyi", "barabasi_albert", "random_tree", "reverse_random_tree", "layered"),
                depth=(2, 2),
                density=(1.0, 1.0),
                activations=("relu", "elu", "selu", "silu", "softsign", "tanh"),
                log_gain=(0.0, 0.0),
                aggregators=("sum",),
                noise_pairs=((0.5, 0.5), (2.0, 2.0), (2.0, 3.0), (2.0, 4.0), (4.0, 1.0)),
                sources=("series",),
                source_scale=(1.0,),
                ar=(0.0, 0.0),
                propagation=("eager",),
            ),
            DagConfig(weights=("normal",)),
        )

    def with_database(self, **changes: Any) -> RelationalConfig:
        """A copy with other choices in `database`."""
        return replace(self, database=replace(self.database, **changes))

    def to_dict(self) -> dict[str, Any]:
        """As it stands in ``metadata.json``."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]  # json knows no types

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> RelationalConfig:
        """Read what :meth:`to_dict` gave; parts and fields that are not there have their defaults.

        Raises
        ------
        InputError
            A part or field that does not exist, or a value that does not fit.
        """
        parts = {"database": DatabaseConfig, "scm": ScmConfig, "dag": DagConfig}
        _known("config", given, parts)
        made = {}
        for part, kind in parts.items():
            values = given.get(part, {})
            if not isinstance(values, dict):
                raise InputError(f"config: {part} is {values!r}; expected an object with the fields of {kind.__name__}")
            _known(f"config: {part}", values, [item.name for item in fields(kind)])
            made[part] = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
        return cls(**made)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RelationalConfig:
        """Read a JSON file: a config, or a ``metadata.json`` that holds one."""
        try:
            given = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except ValueError as error:
            raise InputError(f"{path} is not JSON ({error}); expected an object with database, scm and dag") from None
        if not isinstance(given, dict):
            raise InputError(f"{path}: expected a JSON object with database, scm and dag")
        try:
            return cls.from_dict(given.get("config", given))
        except InputError as error:
            raise InputError(f"{path}, {error}") from None


# ------------------------------------------------------------------------------------------------------ the checks


def _known(where: str, given: Mapping[str, Any], names: Any) -> None:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, list(names), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
            raise InputError(f"{where} has no field {name!r}{hint}")


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(config: Any, name: str, low: int) -> None:
    given = getattr(config, name)
    pair = _several(given) * 2 if len(_several(given)) == 1 else _several(given)
    if len(pair) != 2 or not all(map(_is_whole, pair)):
        raise InputError(f"{name} is {given!r}; expected a whole number or a pair (low, high) of whole numbers")
    _ordered(name, given, pair, low, None)
    object.__setattr__(config, name, pair)


def _real(config: Any, name: str, low: float, high: float) -> None:
    given = getattr(config, name)
    pair = _several(given) * 2 if len(_several(given)) == 1 else _several(given)
    if len(pair) != 2 or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in pair):
        raise InputError(f"{name} is {given!r}; expected a number or a pair (low, high) of numbers")
    _ordered(name, given, pair, low, high)
    object.__setattr__(config, name, (float(pair[0]), float(pair[1])))


def _ordered(name: str, given: Any, pair: tuple[Any, ...], low: float, high: float | None) -> None:
    if pair[0] > pair[1]:
        raise InputError(f"{name} is {given!r}: the low end is above the high end")
    if not low <= pair[0] or (high is not None and not pair[1] <= high):
        bound = f"from {low:g}" if high is None else f"from {low:g} to {high:g}"
        raise InputError(f"{name} is {given!r}; expected numbers {bound}")


def _share(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; expected a number from 0 to 1")


def _chosen(config: Any, name: str, known: tuple[str, ...]) -> None:
    given = _several(getattr(config, name))
    if not given:
        raise InputError(f"{name} is empty; expected some of {', '.join(known)}")
    for value in given:
        if value not in known:
            raise InputError(f"{name} holds {value!r}; expected some of {', '.join(known)}")
    object.__setattr__(config, name, given)
