"""amips before a FAISS index, beside the raw query, a linear map and HNSW.

Does a learned map look in better places? The main part has real keys and a known truth (exact search): eight-line
windows of the Python library's sources, asked for by runs of two to four of their words. Every case is an own set of
keys, log of queries and net. `near` is the counter-case: queries that are a third of the window, few of them. `convex`
asks whether the gradient of a learned support function is worth more than a map learned directly. `routing` and
`convex-routing` choose among ten clusters, with either. `sentences` has embeddings of the demo encoder, or a user's own
keys and queries: a folder with keys.npy and queries.npy (or tables).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.nn.amips.arms import (
    PROBES,
    centroid_router,
    gradient,
    hnsw,
    learned,
    learned_router,
    linear,
    raw,
    recall,
    routed,
)
from assay.trials.nn.amips.data import folds, load_sources, load_vectors, source_cases

RECALL = Metric("recall_1_1", better="higher", help="the best key is found in one list of sqrt(n)")
METRICS = (
    RECALL,
    *(Metric(f"recall_1_{n}", better="higher", help=f"found in {n} lists") for n in PROBES[1:]),
    Metric("ten_1", better="higher", help="share of the ten best keys that is found in one list"),
    Metric("scanned_1", better="lower", help="share of the keys looked at with one list"),
    Metric(
        "kflops_1", better="lower", scale="log", unit="kflop", help="operations a query with one list, the net's too"
    ),
    Metric("relative_error", better="lower", help="squared distance to the best key, as a share of the raw query's"),
)
ARMS = (
    Arm("KeyNet, ranked by the query", learned),
    Arm("raw query (FAISS IVF-Flat)", raw, baseline=True),
    Arm("linear map (ridge)", linear, baseline=True),
)
CLAIM = Claim(
    "finds the best key in one list of sqrt(n) more often than the raw query", metric="recall_1_1", margin=0.01
)


def routing(part: str, claim: str, *arms: Arm) -> Trial:
    """Arms that choose among clusters, beside their centroids."""
    return Trial(
        slug="amips",
        part=part,
        claim=Claim(claim, metric="routed_1", margin=0.01),
        load=partial(load_sources, "routing"),
        cases=source_cases,
        arms=(*arms, Arm("centroids", centroid_router, baseline=True)),
        metrics=(
            Metric("routed_1", better="higher", help="the best key is in the first cluster of ten"),
            Metric("routed_2", better="higher", help="in the first two"),
            Metric("scanned_1", better="lower", help="share of the keys in the first cluster"),
        ),
        score=routed,
        n_cases={"quick": 6, "standard": 8, "full": 10},
        params={"keys": 0, "steps": 0},
        takes_data=False,
    )


TRIAL = Trial(
    slug="amips",
    claim=CLAIM,
    load=partial(load_sources, "words"),
    cases=source_cases,
    arms=(*ARMS, Arm("HNSW (FAISS), as many distances", hnsw, baseline=True)),
    metrics=METRICS,
    score=recall,
    n_cases={"quick": 8, "standard": 8, "full": 10},
    params={"keys": 0, "steps": 0},
    takes_data=False,
    also=(
        Trial(
            slug="amips",
            part="near",
            claim=CLAIM,
            load=partial(load_sources, "near"),
            cases=source_cases,
            arms=ARMS,
            metrics=METRICS,
            score=recall,
            n_cases={"quick": 6, "standard": 8, "full": 10},
            params={"keys": 0, "steps": 0},
            takes_data=False,
        ),
        Trial(
            slug="amips",
            part="convex",
            claim=Claim(
                "SupportNet's gradient finds the best key in one list at least as often as KeyNet's map",
                metric="recall_1_1",
                margin=0.01,
                expects="no_worse",
            ),
            load=partial(load_sources, "words"),
            cases=source_cases,
            arms=(
                Arm("SupportNet's gradient, ranked by the query", gradient),
                *(replace(arm, baseline=True) for arm in ARMS),
            ),
            metrics=METRICS,
            score=recall,
            n_cases={"quick": 6, "standard": 8, "full": 10},
            params={"keys": 0, "steps": 0},
            takes_data=False,
        ),
        routing(
            "routing",
            "routes to the cluster of the best key more often than centroids do",
            Arm("learned router (KeyNet)", learned_router),
        ),
        routing(
            "convex-routing",
            "SupportNet routes to the cluster of the best key more often than KeyNet and centroids do",
            Arm("learned router (SupportNet)", partial(learned_router, base="supportnet")),
            Arm("learned router (KeyNet)", learned_router, baseline=True),
        ),
        Trial(
            slug="amips",
            part="sentences",
            claim=CLAIM,
            load=load_vectors,
            cases=folds,
            arms=(*ARMS, Arm("HNSW (FAISS), as many distances", hnsw, baseline=True)),
            metrics=METRICS,
            score=recall,
            n_cases={"quick": 6, "standard": 8, "full": 10},
            params={"steps": 0},
        ),
    ),
)
