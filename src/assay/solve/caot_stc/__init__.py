"""Cluster short texts by optimal transport that looks at neighbours too.

A classifier on sentence embeddings learns from pseudo-labels; each batch finds them by a transport problem that weighs
its own predictions, the similarity of its texts, and plausible sizes of the clusters.

Paper: "Beyond Looking Up, Try Looking Around: Harmonizing Global Structure and Local Consistency in Optimal Transport
for Short Text Clustering" (ICML 2026). Its transport, network and schedule are taken from their predecessor, Yao, Yin,
Li, "Reliable Pseudo-labeling via Optimal Transport with Attention for Short Text Clustering", arXiv:2501.15194;
that the two agree is our reading. The safeguarded search for the sizes and learning on fixed embeddings are ours.

The folder: `transport` is the problem and its solver, `network` the heads, the attention and their losses, `training`
the schedule, `tuning` an encoder that learns along, `texts` words in and names out, `measures` accuracy and the number
of clusters, `plots` the picture, `clusterer` the estimator around them.
"""

from assay.solve.caot_stc.clusterer import ShortTextClusterer
from assay.solve.caot_stc.measures import Look, clustering_accuracy, estimated_clusters
from assay.solve.caot_stc.texts import top_terms
from assay.solve.caot_stc.transport import OTResult, consistency_aware_ot

__all__ = [
    "Look",
    "OTResult",
    "ShortTextClusterer",
    "clustering_accuracy",
    "consistency_aware_ot",
    "estimated_clusters",
    "top_terms",
]
