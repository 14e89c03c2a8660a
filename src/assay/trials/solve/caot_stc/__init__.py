"""Clusters of short texts beside what people use, on the same embeddings.

Main part: disjoint folds of labelled texts (news, search snippets, questions), the number of clusters given. `labels`
asks the direct question: are pseudo-labels by transport with the semantic term better than those without, when the
classifier sees noisy features? `uneven` has clusters of very different size, `unknown` does not tell the number of
clusters, `trained` lets the encoder learn (full scale: minutes a case). Embeddings are made once and kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from assay.bench import Arm, Claim, Metric, Trial
from assay.solve.caot_stc import ShortTextClusterer
from assay.trials.solve.caot_stc.arms import (
    WithoutAttention,
    agreement,
    agreement_and_number,
    by_bertopic,
    by_caot,
    by_hdbscan,
    by_kmeans,
    by_mixture,
    by_pot,
    by_trained,
)
from assay.trials.solve.caot_stc.data import SETS, folds, load, load_trained, uneven_folds
from assay.trials.solve.caot_stc.labels import (
    batches,
    labels_by_neighbours,
    labels_by_pot,
    labels_by_prediction,
    labels_with,
    load_batches,
    right,
)

if TYPE_CHECKING:
    from assay.bench.spec import Parameter

ACCURACY = Metric("accuracy", better="higher", help="share of texts in the right cluster, best one-to-one match")
METRICS = (
    ACCURACY,
    Metric("nmi", better="higher", help="normalised mutual information with the topics"),
    Metric("ari", better="higher", help="adjusted Rand index: 0 for chance"),
)
PARAMS: dict[str, Parameter] = {"texts": 0, "steps": 0, "lam_size": 100.0, "reducer": "auto"}
COLUMNS: dict[str, Parameter] = {"text": "text", "label": "label"}
KMEANS = Arm("k-means", by_kmeans, baseline=True)
OTHERS = (
    KMEANS,
    Arm("Gaussian mixture", by_mixture, baseline=True),
    Arm("HDBSCAN", by_hdbscan, baseline=True),
    Arm("BERTopic's pipeline", by_bertopic, baseline=True),
)
POT = Arm("POT pseudo-labels, no attention", by_pot, baseline=True)

TRIAL = Trial(
    slug="caot-stc",
    claim=Claim(
        "finds the topics of short texts better than clustering their embeddings", metric="accuracy", margin=0.005
    ),
    load=partial(load, tuple(SETS)),
    cases=folds,
    arms=(Arm("CAOT-STC", by_caot), *OTHERS, POT),
    metrics=METRICS,
    score=agreement,
    n_cases={"quick": 9, "standard": 12, "full": 12},
    params=PARAMS | COLUMNS,
    also=(
        Trial(
            slug="caot-stc",
            part="labels",
            claim=Claim(
                "gives better pseudo-labels than transport without the semantic term, and than neighbours' mean",
                metric="accuracy",
            ),
            load=load_batches,
            cases=batches,
            arms=(
                Arm("CAOT, semantic weight 25", partial(labels_with, 25.0)),
                Arm("POT, entropic", labels_by_pot, baseline=True),
                Arm("no semantic term", partial(labels_with, 0.0), baseline=True),
                Arm("prediction", labels_by_prediction, baseline=True),
                Arm("mean of ten neighbours", labels_by_neighbours, baseline=True),
            ),
            metrics=(ACCURACY,),
            score=right,
            n_cases={"quick": 12, "standard": 24, "full": 48},
            params={"noise": 0.05} | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="uneven",
            claim=Claim("finds topics of very different size better", metric="accuracy", margin=0.005),
            load=partial(load, tuple(SETS)),
            cases=uneven_folds,
            arms=(Arm("CAOT-STC", by_caot), *OTHERS, POT),
            metrics=METRICS,
            score=agreement,
            n_cases={"quick": 6, "standard": 6, "full": 12},
            params=PARAMS | {"lam_size": 1.0} | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="unknown",
            claim=Claim("finds topics better when nobody knows how many there are", metric="ari", margin=0.005),
            load=partial(load, tuple(SETS)),
            cases=partial(folds, tell=False),
            arms=(Arm("CAOT-STC, number by silhouette", by_caot), *OTHERS),
            metrics=(
                *METRICS,
                Metric("number_ratio", target=1.0, help="clusters found for each true one"),
            ),
            score=agreement_and_number,
            n_cases={"quick": 6, "standard": 6, "full": 12},
            params=PARAMS | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="trained",
            claim=Claim("finds topics better when the encoder learns along", metric="accuracy", margin=0.005),
            load=load_trained,
            cases=folds,
            arms=(
                Arm("CAOT-STC, encoder trained", partial(by_trained, ShortTextClusterer)),
                Arm("CAOT-STC, encoder fixed", by_caot, baseline=True),
                Arm("POT pseudo-labels, encoder trained", partial(by_trained, WithoutAttention), baseline=True),
                KMEANS,
            ),
            metrics=METRICS,
            score=agreement,
            n_cases={"quick": 6, "standard": 6, "full": 6},
            params=PARAMS | {"texts": 1000, "steps": 300} | COLUMNS,
        ),
    ),
)
