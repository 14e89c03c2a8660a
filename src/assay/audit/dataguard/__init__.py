"""Find out whether a model was trained on your data, in whole or in part, by asking it.

The model's answers on the data in question are compared with its answers on data of the same kind that it certainly
never saw. A few information features of every sample, less what reference models foresee of them, are tested together;
the report says with which error rate, whether the two data sets were comparable at all, and what it could have found.

Paper: "DataGuard: A Non-intrusive Dataset Auditing Framework via Differential Information Forensics", ICML 2026. We
know the abstract only: the comparison with auxiliary data, the information-theoretic inequalities and the multivariate
test are the paper's; features, control variates, statistics and checks are our reconstruction from close relatives
(dataset inference, Maini et al. 2021; differential auditing, arXiv:2209.01538; Xu and Raginsky 2017).

The folder: `features` is what answers tell, `control` takes difficulty off, `hotelling` tests, `calibration` checks the
test and the data, `fraction` estimates how much was used; `door` checks what is given, `queries` asks a classifier,
`texts` knows what to do with strings, `judging` makes a verdict of evidence, `report` shows it; `auditor` and
`language` are the interfaces.
"""

from assay.audit.dataguard.auditor import DataGuardAuditor, Shadow, audit_probs
from assay.audit.dataguard.calibration import Rate, exact_rate
from assay.audit.dataguard.judging import correct_for_several
from assay.audit.dataguard.language import audit_lm
from assay.audit.dataguard.report import AuditReport

__all__ = [
    "AuditReport",
    "DataGuardAuditor",
    "Rate",
    "Shadow",
    "audit_lm",
    "audit_probs",
    "correct_for_several",
    "exact_rate",
]
