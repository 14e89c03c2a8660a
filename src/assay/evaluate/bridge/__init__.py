"""Put models and tasks on one scale with human time, and forecast how long a task the best model can do.

A two-parameter logistic model of who solves what gives every task a difficulty and every model an ability; the human
minutes of a few tasks turn both into time: predicted minutes for tasks nobody timed, and time horizons of models.

Paper: Liu, Gala, Nilaksh, Bahdanau, Reddy, Larochelle, "BRIDGE: Predicting Human Task Completion Time From Model
Performance", arXiv:2602.07267 (ICML 2026). The model, calibration, frontier and forecast are the paper's; the default
fit (the posterior's mode by Newton's method under fixed normal priors), standard errors, prediction intervals and
binomial counts are ours, and the paper's variational fit is there as ``method="svi"``.

The folder: `responses` and `side_tables` read and code, `likelihood` is the model, `posterior`, `variational` and
`marginal` fit it, `calibration` and `horizons` turn it into time, `foresight` scores that time on
held-out tasks, `irt` is the estimator around them, `baselines` is what people use otherwise.
"""

from assay.evaluate.bridge.calibration import Calibration
from assay.evaluate.bridge.foresight import Foresight, foresee, score_minutes
from assay.evaluate.bridge.horizons import Forecast
from assay.evaluate.bridge.irt import TimeHorizonIRT
from assay.evaluate.bridge.responses import read_responses
from assay.evaluate.bridge.side_tables import read_dates, read_minutes

__all__ = [
    "Calibration",
    "Forecast",
    "Foresight",
    "TimeHorizonIRT",
    "foresee",
    "read_dates",
    "read_minutes",
    "read_responses",
    "score_minutes",
]
