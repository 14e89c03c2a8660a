"""Labelled things to build episodes from: images in folders, texts, or rows of numbers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay._core.errors import InputError
from assay._core.seeds import generator
from assay._core.tables import read_table

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd

Array = NDArray[np.float64]
Kind = Literal["image", "text", "row"]

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Items:
    """Things with a category each.

    Parameters
    ----------
    kind : "image", "text" or "row"
    content : tuple of n str
        The path of an image, the text itself, or the name of a row.
    category : tuple of n str
    features : (n, n_features) float, optional
        What classifiers of arrays look at. Rows of numbers bring them; for images and texts see
        :meth:`with_features`.
    """

    kind: Kind
    content: tuple[str, ...]
    category: tuple[str, ...]
    features: Array | None = None

    def __len__(self) -> int:
        return len(self.content)

    def take(self, rows: ArrayLike) -> Items:
        """The items in `rows`, in that order."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            content=tuple(self.content[i] for i in index),
            category=tuple(self.category[i] for i in index),
            features=None if self.features is None else self.features[index],
        )

    def with_features(self, features: ArrayLike) -> Items:
        """The same items with the vectors that a classifier of arrays should look at.

        Raises
        ------
        InputError
            `features` is not (n, n_features), or is not finite.
        """
        matrix = np.asarray(features, dtype=np.float64)
        if matrix.ndim != 2 or len(matrix) != len(self):
            raise InputError(f"features have the shape {matrix.shape}; expected ({len(self)}, n_features)")
        if not np.isfinite(matrix).all():
            row = int(np.argwhere(~np.isfinite(matrix))[0, 0])
            raise InputError(f"features, row {row + 1}: a value is not finite; fill or drop it")
        return replace(self, features=matrix)


def image_items(folder: str | os.PathLike[str]) -> Items:
    """Read a folder with one subfolder of images for each category (the layout of torchvision's ImageFolder).

    Raises
    ------
    InputError
        There are no such images, one cannot be read, or the same image stands under two categories.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; expected one with a subfolder of images for each category")
    inside = root.resolve()
    found = [
        (path, place.name)
        for place in sorted(root.iterdir())
        if place.is_dir() and not place.name.startswith(".")
        for path in sorted(place.rglob("*"))
        if path.suffix.lower() in IMAGES and path.is_file() and path.resolve().is_relative_to(inside)
    ]
    if not found:
        raise InputError(f"{root} holds no images in subfolders; expected {root}/CATEGORY/*.png (or .jpg, .webp …)")
    return _images([path for path, _ in found], [category for _, category in found])


def table_items(
    table: pd.DataFrame,
    *,
    category: str = "category",
    text: str = "text",
    image: str = "path",
    root: str | os.PathLike[str] = ".",
    where: str = "items",
) -> Items:
    """Items from a table: a column of image paths or of texts, else all its columns of numbers.

    Parameters
    ----------
    table : DataFrame
        A Hugging Face data set gives one with ``to_pandas()``.
    category, text, image : str
        Names of columns.
    root : path
        What relative image paths are relative to.
    where : str
        Names the table in messages.

    Raises
    ------
    InputError
        A column is missing, a cell is empty, an image cannot be read, or one item stands under two categories.
    """
    from assay._core.tables import check_columns

    if image in table.columns:
        table = check_columns(table, {image: "text", category: "text"}, where=where)
        return _images([Path(root) / name for name in table[image]], table[category].tolist())
    if text in table.columns:
        table = check_columns(table, {text: "text", category: "text"}, where=where)
        items = Items("text", tuple(table[text]), tuple(table[category]))
        _refuse_two_categories(items.content, items.category, "the text")
        return items
    columns = _number_columns(table, without=category)
    if not columns:
        raise InputError(
            f"{where}: no column {image!r} (images) or {text!r} (texts) and no column of numbers; name one of them"
        )
    table = check_columns(table, {category: "text", **dict.fromkeys(columns, "number")}, where=where)
    names = tuple(str(number) for number in range(1, len(table) + 1))
    matrix = table[columns].to_numpy(dtype=np.float64)
    _refuse_two_categories([row.tobytes() for row in matrix], table[category].tolist(), "the row of numbers", names)
    return Items("row", names, tuple(table[category]), matrix)


def read_items(path: str | os.PathLike[str], **columns: str) -> Items:
    """Read items from a folder of images, or from a table (CSV, TSV, JSON, JSONL, Parquet).

    `columns` are the names that :func:`table_items` takes.
    """
    place = Path(path)
    if place.is_dir():
        return image_items(place)
    return table_items(read_table(place), root=place.parent, where=str(place), **columns)


def split_items(items: Items, *, test_share: float = 0.5, seed: int = 0) -> tuple[Items, Items]:
    """Split into training and test items, category by category; no item is on both sides.

    Raises
    ------
    InputError
        `test_share` is not between 0 and 1, or a category has fewer than two items.

    Examples
    --------
    >>> train, test = split_items(Items("text", ("a", "b", "c", "d"), ("x", "x", "y", "y")))
    >>> len(train), len(test), set(train.content) & set(test.content)
    (2, 2, set())
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share}; expected a number between 0 and 1")
    rng = generator(seed)
    train: list[int] = []
    test: list[int] = []
    for category, rows in rows_by_category(items).items():
        if len(rows) < 2:
            raise InputError(f"category {category!r} has one item; a split needs at least two")
        order = rng.permutation(rows)
        n_test = min(max(round(test_share * len(rows)), 1), len(rows) - 1)
        test.extend(order[:n_test])
        train.extend(order[n_test:])
    return items.take(sorted(train)), items.take(sorted(test))


def rows_by_category(items: Items) -> dict[str, NDArray[np.int64]]:
    """Positions of the items of each category, in order of the categories' names."""
    names = np.asarray(items.category, dtype=object)
    return {category: np.flatnonzero(names == category) for category in sorted(set(items.category))}


def pixels(items: Items, *, size: int = 16) -> Items:
    """Images as vectors of size × size grey values between 0 and 1: enough for a first look, no more.

    Raises
    ------
    InputError
        The items are not images, or one cannot be read.
    """
    if items.kind != "image":
        raise InputError(f"pixels are taken of images; these items are of the kind {items.kind!r}")
    flat = [np.asarray(open_image(path).convert("L").resize((size, size)), dtype=np.float64).ravel() / 255 for path in
            items.content]  # fmt: skip
    return items.with_features(np.stack(flat))


def open_image(path: str | os.PathLike[str]) -> Any:
    """Open an image and read it whole, as RGB."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except FileNotFoundError:
        raise InputError(f"{path}: no such image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image ({error}); replace it or take it out") from None


def _images(paths: Sequence[Path], categories: Sequence[str]) -> Items:
    for path in paths:
        _check_image(path)
    content = tuple(str(path) for path in paths)
    _refuse_two_categories([_digest(path) for path in paths], categories, "the image", content)
    return Items("image", content, tuple(categories))


def _check_image(path: Path) -> None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.verify()
    except FileNotFoundError:
        raise InputError(f"{path}: no such image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image ({error}); replace it or take it out") from None


def _digest(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _refuse_two_categories(
    keys: Sequence[Any], categories: Sequence[str], what: str, names: Sequence[str] | None = None
) -> None:
    first: dict[Any, int] = {}
    for place, key in enumerate(keys):
        before = first.setdefault(key, place)
        if categories[before] != categories[place]:
            shown = names or keys
            twin = "" if shown[before] == shown[place] else f" (the same as {shown[before]})"
            raise InputError(
                f"{what} {shown[place]!r}{twin} stands under two categories, {categories[before]!r} and "
                f"{categories[place]!r}; keep it under one"
            )


def _number_columns(table: pd.DataFrame, without: str) -> list[str]:
    import pandas as pd

    return [
        name
        for name in table.columns
        if name != without and len(table) and pd.to_numeric(table[name], errors="coerce").notna().all()
    ]
