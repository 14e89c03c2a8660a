"""Embeddings by the demo encoder, made once for the same texts and kept on disk."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay.models.encoder import demo_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_A_TIME = 512


def demo_embeddings(texts: list[str]) -> NDArray[np.float32]:
    """Embeddings (n, 384) of length 1 by the demo encoder, kept under the hash of the texts; shows its progress.

    A file that is not whole is made again, and where nothing can be written nothing is kept.
    """
    digest = hashlib.sha256("\x00".join(["all-MiniLM-L6-v2", *texts]).encode("utf-8", "surrogatepass")).hexdigest()
    file = made_dir() / "embeddings" / f"{digest}.npy"
    if file.is_file():
        try:
            kept: NDArray[np.float32] = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            kept = np.empty((0, 0), np.float32)
        if len(kept) == len(texts):
            return kept
    encoder = demo_encoder()
    parts = []
    with progress_bar() as bar:
        task = bar.add_task("reading texts, once", total=len(texts))
        for start in range(0, len(texts), AT_A_TIME):
            parts.append(encoder.encode(texts[start : start + AT_A_TIME]))
            bar.advance(task, len(parts[-1]))
    vectors = np.concatenate(parts)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            np.save(temporary, vectors)
    except (OSError, InputError):
        pass
    return vectors
