"""Whatever classifier of scikit-learn a user saved can be opened, and what could run code cannot."""

import inspect
import os

import numpy as np
import pytest

pytest.importorskip("skops.io")

import skops.io as skops
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import DotProduct, Matern, RationalQuadratic, WhiteKernel
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import all_estimators

from assay._core.errors import InputError
from assay.audit.dataguard.saved import load_classifier

#: Further ways to set up a classifier whose state differs from that of the defaults.
SETTINGS = {
    "nearest neighbours by a ball tree": KNeighborsClassifier(algorithm="ball_tree"),
    "nearest neighbours, Manhattan": KNeighborsClassifier(metric="manhattan"),
    "nearest neighbours, Chebyshev": KNeighborsClassifier(metric="chebyshev"),
    "nearest neighbours, p = 3": KNeighborsClassifier(p=3),
    "network by SGD": MLPClassifier(solver="sgd"),
    "isotonic calibration": CalibratedClassifierCV(LinearSVC(), method="isotonic"),
    "Gaussian process, Matern": GaussianProcessClassifier(1.0 * Matern() + WhiteKernel()),
    "Gaussian process, others": GaussianProcessClassifier(RationalQuadratic() + DotProduct()),
    "pipeline": make_pipeline(StandardScaler(), KNeighborsClassifier()),
}


def without_arguments():
    """Every classifier that scikit-learn has and that needs no other estimator to be made."""
    return {
        name: kind()
        for name, kind in all_estimators(type_filter="classifier")
        if name != "SelfTrainingClassifier"  # its estimator has a default, and it fails with it
        and all(one.default is not one.empty for one in inspect.signature(kind).parameters.values())
    }


CLASSIFIERS = without_arguments() | SETTINGS


@pytest.mark.filterwarnings("ignore")  # of convergence: how well it fits is not asked here
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_saved_classifier_answers_as_before(tmp_path, name):
    X, y = load_iris(return_X_y=True)
    X = np.round(X)  # some take counts alone
    model = CLASSIFIERS[name]
    if name == "RadiusNeighborsClassifier":
        model.set_params(outlier_label="most_frequent")
    model.fit(X, y)
    skops.dump(model, tmp_path / "model.skops")
    np.testing.assert_array_equal(load_classifier(tmp_path / "model.skops").predict(X), model.predict(X))


def test_what_could_run_code_is_not_opened(tmp_path):
    skops.dump(make_pipeline(FunctionTransformer(os.getcwd)), tmp_path / "model.skops")
    with pytest.raises(InputError, match=r"model\.skops cannot be opened safely as a scikit-learn model: .*posix"):
        load_classifier(tmp_path / "model.skops")
