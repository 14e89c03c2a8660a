"""Classifiers from files, opened without running what they hold."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from pathlib import Path

#: What holds the state of fitted classifiers, numbers and names alone; skops knows the estimators, not these.
TRUSTED = [
    f"sklearn.{module}.{name}"
    for module, names in {
        "tree._tree": "Tree",
        "ensemble._hist_gradient_boosting.predictor": "TreePredictor",
        "neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
        "calibration": "_CalibratedClassifier _SigmoidCalibration",
        "neighbors._kd_tree": "KDTree",
        "neighbors._ball_tree": "BallTree",
        "metrics._dist_metrics": "EuclideanDistance64 ManhattanDistance64 ChebyshevDistance64 MinkowskiDistance64",
        "gaussian_process._gpc": "_BinaryGaussianProcessClassifierLaplace",
        "gaussian_process.kernels": "ConstantKernel WhiteKernel RBF Matern RationalQuadratic DotProduct Sum Product",
    }.items()
    for name in names.split()
]


def load_classifier(path: Path) -> Any:
    """A torch module of a .pt2 file, or a scikit-learn model of a .skops file; nothing in either is executed.

    Raises
    ------
    InputError
        The file is missing, is neither, or holds what is not known to be data alone.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".pt2":
        torch = need("torch", extra="lm", purpose="asking a torch model")
        if not zipfile.is_zipfile(path):  # torch would print a traceback before it raises
            raise InputError(f"{path} is no program that torch.export.save wrote: it is no archive")
        try:
            return torch.export.load(str(path)).module()
        except Exception as error:  # it raises whatever a broken archive makes it raise
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"{path} is no program that torch.export.save wrote: {first}") from None
    if path.suffix == ".skops":
        skops = need("skops.io", extra="audit", purpose="asking a saved scikit-learn model")
        try:
            return skops.load(path, trusted=TRUSTED)
        except Exception as error:  # likewise
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"{path} cannot be opened safely as a scikit-learn model: {first}") from None
    raise InputError(
        f"{path}: expected a model as .pt2 (torch.export.save) or .skops (skops.io.dump); pickles can run code and are "
        "not opened"
    )
