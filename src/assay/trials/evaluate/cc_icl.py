"""cc-icl: multi-criterion training beside single-criterion training and two ways that need no training on criteria.

The main part has images of handwritten digits in the roles of sound, defective and disputed parts, drawn anew in every
case: does a small in-context classifier follow a criterion that it only sees in three labelled examples? A user's own
labelled items take the place of the digits. The part `language-model` asks SmolLM2 about short inspection notes, as it
is and with a classifier on its hidden states that was trained under both criteria.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay import models
from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.evaluate.cc_icl import (
    CriterionSpec,
    Episodes,
    InContextClassifier,
    Items,
    LMPredictor,
    NearestSupport,
    build_episodes,
    pixels,
    read_items,
    score,
)
from assay.evaluate.cc_icl.episodes import needed_features
from assay.evaluate.cc_icl.example import load_example
from assay.evaluate.cc_icl.language import first_token_logits
from assay.evaluate.cc_icl.report import predict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

Codes = NDArray[np.int64]


class Bench(NamedTuple):
    """Items and criteria (None: digits in roles that every case draws), and how many episodes a case has."""

    items: Items
    spec: CriterionSpec | None
    n_train: int
    n_test: int
    n_steps: int
    new_roles: bool = False
    model: str = ""


class Given(NamedTuple):
    """What an arm sees: labelled training episodes, and test episodes without truth or categories."""

    train: Episodes
    test: Episodes
    n_steps: int
    model: str


# ---------------------------------------------------------------------------------------------------- data and cases

#: Digits in the roles of sound, defective and disputed parts; the tenth digit stays out.
ROLES = ("sound",) * 3 + ("defective",) * 3 + ("disputed",) * 3


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    size = {"quick": (200, 200), "standard": (400, 600), "full": (1000, 2000)}[scale]
    n_test, n_steps = size
    new_roles = bool(params["new_roles"])
    if path is None:
        images, labels = load_digits(return_X_y=True)
        items = Items("row", tuple(map(str, range(len(labels)))), tuple(map(str, labels)), images)
        bench = Bench(items, None, 10_000, n_test, n_steps, new_roles)
        return Data("handwritten digits as sound, defective and disputed parts (scikit-learn)", len(items), bench)
    if new_roles:
        raise InputError("new_roles is for the embedded digits; your criteria say what is on the boundary")
    place = Path(path)
    named = str(params["criteria"])
    spec = CriterionSpec.from_yaml(named or (place if place.is_dir() else place.parent) / "criteria.yaml")
    items = _with_features(read_items(place))
    return Data(path, len(items), Bench(items, spec, 10_000, n_test, n_steps), path)


def _with_features(items: Items) -> Items:
    """Grey pixels of images, character n-grams of texts, numbers as they are."""
    if items.kind == "image":
        return pixels(items)
    if items.kind == "row":
        return items
    counts = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True).fit_transform(items.content)
    n_components = min(100, min(counts.shape) - 1)
    return items.with_features(TruncatedSVD(n_components, random_state=0).fit_transform(counts))


def digit_roles(rng: np.random.Generator) -> CriterionSpec:
    """Nine digits in roles: the lenient criterion lets the disputed ones pass, the strict one does not."""
    role = dict(zip(map(str, rng.permutation(10)[:9]), ROLES, strict=True))
    return CriterionSpec(
        "Is the part defective?",
        ("No", "Yes"),
        {
            "lenient": {digit: "Yes" if r == "defective" else "No" for digit, r in role.items()},
            "strict": {digit: "No" if r == "sound" else "Yes" for digit, r in role.items()},
        },
    )


def folds(bench: Bench, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds of the items: each is tested once, by models that have seen the others."""
    names = np.asarray(bench.items.category)
    smallest = min(int((names == category).sum()) for category in set(bench.items.category))
    n_folds = min(n, smallest // 2)  # an episode needs two items of a category: one to show, one to ask about
    if n_folds < 2:
        raise InputError(f"the smallest category has {smallest} items; two folds need at least 4")
    rng = np.random.default_rng(child_seed(seed, "folds"))
    fold = np.empty(len(names), dtype=np.int64)
    for category in sorted(set(bench.items.category)):
        rows = rng.permutation(np.flatnonzero(names == category))
        fold[rows] = np.arange(len(rows)) % n_folds
    for number in range(n_folds):
        rng = np.random.default_rng(child_seed(seed, "case", number))
        spec = bench.spec or digit_roles(rng)
        tested = _swapped(spec) if bench.new_roles else spec
        known = np.isin(names, spec.categories)
        train = build_episodes(bench.items.take(np.flatnonzero(known & (fold != number))), spec, bench.n_train,
                               seed=child_seed(seed, "train", number))  # fmt: skip
        test = build_episodes(bench.items.take(np.flatnonzero(known & (fold == number))), tested, bench.n_test,
                              seed=child_seed(seed, "test", number))  # fmt: skip
        yield Case(
            f"fold {number + 1} of {n_folds}", Given(train, hidden(test), bench.n_steps, bench.model), test.truth
        )


def _swapped(spec: CriterionSpec) -> CriterionSpec:
    """The same digits in new roles: the sound ones become defective, those disputed, and the disputed ones sound."""
    turned = spec.categories[3:] + spec.categories[:3]
    moved = dict(zip(turned, spec.categories, strict=True))
    return replace(spec, criteria={k: {c: row[moved[c]] for c in spec.categories} for k, row in spec.criteria.items()})


def hidden(episodes: Episodes) -> Episodes:
    """Without the truth, and without the categories that would give it away."""
    items = replace(episodes.items, category=("",) * len(episodes.items))
    return replace(episodes, items=items, truth=np.zeros_like(episodes.truth))


# -------------------------------------------------------------------------------------------------------------- arms


def many_criteria(given: Given, seed: int) -> Codes:
    return _trained(given, seed, None)


def one_criterion(given: Given, seed: int) -> Codes:
    """The same training under the last criterion alone, by custom the strictest."""
    return _trained(given, seed, given.train.criteria[-1])


def _trained(given: Given, seed: int, criterion: str | None) -> Codes:
    model = InContextClassifier(
        criterion, n_steps=given.n_steps, batch_size=64, learning_rate=2e-3, random_state=seed % 2**31
    )
    return predict(model.fit(given.train), given.test)


def nearest_example(given: Given, seed: int) -> Codes:
    """The label of the example that is nearest in standardised features."""
    features = needed_features(given.train)
    return _nearest_after(StandardScaler().fit(features).transform, given.test)


def matched_categories(given: Given, seed: int) -> Codes:
    """A classifier of the fine categories, then the label of the example with the most similar probabilities.

    It needs what a user has who builds such a benchmark, categories, and knows no criterion at all.
    """
    features = needed_features(given.train)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=0.1))
    classifier.fit(features, np.asarray(given.train.items.category))
    return _nearest_after(classifier.predict_proba, given.test)


def _nearest_after(transform: Any, test: Episodes) -> Codes:
    items = test.items.with_features(transform(needed_features(test)))
    return predict(NearestSupport(), replace(test, items=items))


def joint_scores(case: Case, predictions: Codes) -> dict[str, float]:
    found = score(predictions, case.truth)
    return {
        "criterion_sensitivity": found.sensitivity,
        "criterion_invariance": found.invariance,
        "rigidity": found.rigidity,
        "accuracy": float(found.accuracy.mean()),
    }


# ---------------------------------------------------------------------------------------------- part: language model


def load_notes(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    items, spec = load_example()
    two = replace(spec, criteria={name: spec.criteria[name] for name in ("lenient", "strict")})
    n_test = {"quick": 2, "standard": 16, "full": 100}[scale]
    n_steps = {"quick": 60, "standard": 300, "full": 600}[scale]
    name = str(params["model"])
    layer = float(params["layer"])
    if not 0 <= layer <= 1:
        raise InputError(f"layer is {layer}; expected a share of the layers, from 0 (embeddings) to 1 (the last)")
    data = Bench(items.with_features(hidden_states(name, items.content, layer)), two, 3000, n_test, n_steps, model=name)
    return Data(
        f"120 inspection notes, read by {'SmolLM2-135M-Instruct' if name == 'demo' else name}", len(items), data
    )


@lru_cache(maxsize=1)
def language_model(name: str) -> tuple[Any, Any]:
    model, tokenizer = models.demo_lm() if name == "demo" else models.load_lm(name)
    return model, tokenizer


def hidden_states(name: str, texts: tuple[str, ...], share: float) -> NDArray[np.float64]:
    """Mean over a text's tokens of the hidden states after that share of the layers: (n_texts, d_model)."""
    import torch

    model, tokenizer = language_model(name)
    layer = round(share * model.config.num_hidden_layers)
    vectors = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the arms; where cores are shared, threads that wait for each other cost a multiple
    with torch.inference_mode():
        for start in range(0, len(texts), 30):
            inputs = tokenizer(list(texts[start : start + 30]), padding=True, padding_side="right", return_tensors="pt")
            states = model.model(**inputs, output_hidden_states=True).hidden_states[layer].double()
            weight = inputs["attention_mask"].unsqueeze(-1).double()
            vectors.append(((states * weight).sum(dim=1) / weight.sum(dim=1)).numpy())
    torch.set_num_threads(before)
    return np.concatenate(vectors)


def prompted(given: Given, seed: int) -> Codes:
    return predict(LMPredictor(*language_model(given.model)), given.test, batch_size=4)


def calibrated(given: Given, seed: int) -> Codes:
    """Yes where its log-odds are above their median over all questions (batch calibration)."""
    model, tokenizer = language_model(given.model)
    columns = []
    for k in range(len(given.test.criteria)):
        questions = [given.test.ask(row, k) for row in range(len(given.test))]
        logits = [first_token_logits(model, tokenizer, questions[i : i + 4]) for i in range(0, len(questions), 4)]
        columns.append(np.concatenate(logits))
    log_odds = np.stack([column[:, 1] - column[:, 0] for column in columns], axis=1)
    return np.asarray(log_odds > np.median(log_odds), dtype=np.int64)


# ---------------------------------------------------------------------------------------------------- the trial

METRICS = (
    Metric("criterion_sensitivity", better="higher", help="right under every criterion, where the answer changes (CS)"),
    Metric("criterion_invariance", better="higher", help="right under every criterion, where it does not (CI)"),
    Metric("rigidity", better="lower", help="sensitive items with one answer for all criteria"),
    Metric("accuracy", better="higher", help="the usual accuracy, mean over criteria: it hides the difference"),
)

TRIAL = Trial(
    slug="cc-icl",
    claim=Claim(
        "follows a criterion that only the examples show better than training under one criterion and than matching",
        metric="criterion_sensitivity",
        margin=0.02,
    ),
    load=load,
    cases=folds,
    arms=(
        Arm("multi-criterion training", many_criteria),
        Arm("single-criterion training", one_criterion, baseline=True),
        Arm("nearest example", nearest_example, baseline=True),
        Arm("categories learned, then matched", matched_categories, baseline=True),
    ),
    metrics=METRICS,
    score=joint_scores,
    n_cases={"quick": 8, "standard": 12, "full": 30},
    params={"criteria": "", "new_roles": False},
    also=(
        Trial(
            slug="cc-icl",
            part="language-model",
            claim=Claim(
                "follows a criterion that only the examples show better than the prompted model and than matching",
                metric="criterion_sensitivity",
                margin=0.02,
            ),
            load=load_notes,
            cases=folds,
            arms=(
                Arm("multi-criterion training on its features", many_criteria),
                Arm("single-criterion training on its features", one_criterion, baseline=True),
                Arm("the model, prompted", prompted, baseline=True),
                Arm("the model, prompted and calibrated", calibrated, baseline=True),
                Arm("nearest example in its features", nearest_example, baseline=True),
                Arm("categories learned, then matched", matched_categories, baseline=True),
            ),
            metrics=METRICS,
            score=joint_scores,
            n_cases={"quick": 8, "standard": 10, "full": 10},
            params={"model": "demo", "layer": 0.33},
            takes_data=False,
        ),
    ),
)
