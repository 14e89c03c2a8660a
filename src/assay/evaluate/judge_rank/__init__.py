"""Order models by the votes of judges whose reliability differs.

Each judge k has a discrimination gamma_k, learned together with the scores s of the models:
P(i beats j | k) = sigmoid(gamma_k (s_i − s_j)). A judge who votes at random gets a small gamma_k and hardly counts.

Paper: Xu, Tan, Wu, Zhou, "A Judge-Aware Ranking Framework for Evaluating Large Language Models without Ground Truth",
arXiv:2601.21817 (ICML 2026). Ties count as half a win each way and the normalisation is the paper's; Newton's method in
place of Adam, the prior on log gamma, signed discriminations, the sandwich covariance and rank intervals are ours.

The folder: `votes` reads and codes, `checks` refuses what cannot be ranked, `likelihood` and `fit` are the method,
`intervals` and `plots` say what came out, `ranking` is the estimator around them.
"""

from assay.evaluate.judge_rank.ranking import Comparison, JudgeRanking
from assay.evaluate.judge_rank.votes import read_votes

__all__ = ["Comparison", "JudgeRanking", "read_votes"]
