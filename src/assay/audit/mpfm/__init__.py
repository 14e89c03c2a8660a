"""Detect anomalies in the logs of several systems with one model.

A window of log lines is normal when the normal mechanism of its system can generate it: it lies near a prototype
(shared by all systems, or private to its own), and a flow learned on normal windows carries it there and back.

Paper: "Cross Multi-Domain Prototype Flow Matching for Log Anomaly Detection", ICML 2026. We know the abstract only:
the three parts and the principle are the paper's, every equation here is our reconstruction from close relatives
(conditional flow matching, Lipman et al. 2023; prototype networks; one-class cross-system log detectors).

The folder: `layouts` tells headers from messages, `drain` finds templates, `windows` cuts windows; `prototypes` and
`flow` are the numeric heart, `network` holds what is learned, `mining` the hard examples, `training` fits,
`calibration` turns evidence into alarms, `detector` is the estimator around them, `explanation` says why,
`storage` writes a model to a folder.
"""

from assay.audit.mpfm.detector import MPFMDetector
from assay.audit.mpfm.windower import LogWindower
from assay.audit.mpfm.windows import LogWindows

__all__ = ["LogWindower", "LogWindows", "MPFMDetector"]
