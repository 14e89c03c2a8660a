"""What a mix of model providers would really earn or save, from recorded attempts.

Several providers attempt the same problems at a price, and a verifier says which attempts are right. A *cascade*
spends a part of a problem's budget on a cheap provider before it moves on to a dearer one. It can reach the same solve
rate for less than the best single provider: then it saves its user money, or earns a reseller a margin.

Paper: Olmedo, Schölkopf, Hardt, "Computational Arbitrage in AI Model Markets", arXiv:2603.22404. Bootstrap intervals,
held-out margins, imperfect verifiers, costs of single attempts and the online runner are ours.

- :func:`read_market`, :class:`Market`: recorded attempts, prices of single providers
- :func:`arbitrage`: fit, intervals and held-out margins in one report
- :class:`CascadePolicy`, :class:`CascadeRunner`: the thresholds, and what runs them on live solvers
- :func:`competition`, :func:`revenue_shares`, :func:`fit_budget_curve`, :func:`distillation`: what follows from it
"""

from assay.evaluate.arbitrage.analyse import arbitrage
from assay.evaluate.arbitrage.economics import competition, distillation, fit_budget_curve, revenue_shares
from assay.evaluate.arbitrage.market import Market
from assay.evaluate.arbitrage.policy import CascadePolicy
from assay.evaluate.arbitrage.read import EXAMPLE_PRICES, read_market, read_prices
from assay.evaluate.arbitrage.report import ArbitrageReport, Estimate, Margins
from assay.evaluate.arbitrage.result import MarketCurve
from assay.evaluate.arbitrage.runner import Attempt, Budget, CascadeRunner, Outcome

__all__ = [
    "EXAMPLE_PRICES",
    "ArbitrageReport",
    "Attempt",
    "Budget",
    "CascadePolicy",
    "CascadeRunner",
    "Estimate",
    "Margins",
    "Market",
    "MarketCurve",
    "Outcome",
    "arbitrage",
    "competition",
    "distillation",
    "fit_budget_curve",
    "read_market",
    "read_prices",
    "revenue_shares",
]
