"""What people use instead: counts with PCA or an isolation forest, a next-event model, one-class models."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from assay.audit.mpfm import MPFMDetector

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.audit.mpfm import LogWindows
    from assay.trials.audit.mpfm.worlds import Fleet

    Array = np.ndarray[Any, np.dtype[np.float64]]
    #: (training windows, windows to judge, seed) of one system -> (scores of the former, of the latter).
    PerSystem = Callable[[LogWindows, LogWindows, int], tuple[Array, Array]]


def mpfm(fleet: Fleet, seed: int, **parameters: Any) -> Array:
    """The method: one model for all systems."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few windows in a short log: the trial says so itself
        detector = MPFMDetector(random_state=seed, **parameters).fit(fleet.train)
        if fleet.new_system:
            detector.add_domain(None, fleet.new_system)
        return detector.score_samples(fleet.test)


def per_system(judge: PerSystem, fleet: Fleet, seed: int) -> Array:
    """One model for each system, on its normal windows; a new system is judged by the model of all others together."""
    scores = np.empty(len(fleet.test))
    normal = fleet.train if fleet.train.y is None else fleet.train[fleet.train.y == 0]
    for name in np.unique(fleet.test.domain):
        own = np.flatnonzero(fleet.test.domain == name)
        known = normal if name == fleet.new_system else normal[normal.domain == name]
        usual, judged = judge(known, fleet.test[own], seed)
        middle = np.median(usual)
        scores[own] = (judged - middle) / (1.4826 * np.median(np.abs(usual - middle)) + usual.std() * 0.1 + 1e-9)
    return scores


def _words(known: LogWindows, judged: LogWindows) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Templates as numbers in the order of training; those never seen share the last number; −1 stays −1."""
    number = {
        template: i for i, template in enumerate(dict.fromkeys(known.templates[t] for t in known.ids[known.mask]))
    }
    tables = [np.array([number.get(t, len(number)) for t in windows.templates] + [-1]) for windows in (known, judged)]
    return tables[0][known.ids], tables[1][judged.ids], len(number) + 1


def counts(known: LogWindows, judged: LogWindows) -> tuple[Array, Array]:
    """How often each template is in a window; one more column counts lines of templates never seen."""
    first, second, n_words = _words(known, judged)
    return tuple(
        np.stack([(words == w).sum(axis=1) for w in range(n_words)], axis=1).astype(float) for words in (first, second)
    )  # type: ignore[return-value]  # two of them


def count_forest(known: LogWindows, judged: LogWindows, seed: int) -> tuple[Array, Array]:
    usual, asked = counts(known, judged)
    forest = IsolationForest(n_estimators=200, random_state=seed).fit(usual)
    return -forest.score_samples(usual), -forest.score_samples(asked)


def count_pca(known: LogWindows, judged: LogWindows, seed: int) -> tuple[Array, Array]:
    """Squared residual of counts outside the components that hold 95 % of their variance (Xu et al., SOSP 2009)."""
    usual, asked = counts(known, judged)
    center = usual.mean(axis=0)
    pca = PCA(0.95, svd_solver="full").fit(usual - center)

    def residual(values: Array) -> Array:
        around = values - center
        outside = around - (around @ pca.components_.T) @ pca.components_
        return np.asarray(np.square(outside).sum(axis=1), np.float64)

    return residual(usual), residual(asked)


def one_class(known: LogWindows, judged: LogWindows, seed: int) -> tuple[Array, Array]:
    """One-class SVM on the mean and the maximum of the templates' embeddings."""
    usual, asked = _summaries(known), _summaries(judged)
    machine = make_pipeline(StandardScaler(), PCA(0.99, svd_solver="full"), OneClassSVM(gamma="scale", nu=0.05))
    machine.fit(usual)
    return -machine.decision_function(usual), -machine.decision_function(asked)


def _summaries(windows: LogWindows) -> Array:
    mask = windows.mask[..., None]
    vectors = windows.X
    mean = vectors.sum(axis=1) / mask.sum(axis=1)
    return np.concatenate([mean, np.where(mask, vectors, -np.inf).max(axis=1)], axis=1).astype(np.float64)


def next_event(known: LogWindows, judged: LogWindows, seed: int) -> tuple[Array, Array]:
    """DeepLog-style: an LSTM foresees the next template; a window's score is its mean surprise, in nats a line."""
    import torch
    from torch import nn
    from torch.nn import functional

    first, second, n_words = _words(known, judged)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding, lstm, head = nn.Embedding(n_words + 1, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, n_words)
        parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=5e-3)

        def surprise(words: torch.Tensor) -> torch.Tensor:
            start = torch.full((len(words), 1), n_words)
            history = torch.cat([start, words[:, :-1].clamp_min(0)], dim=1)
            logits = head(lstm(embedding(history))[0])
            return functional.cross_entropy(logits.transpose(1, 2), words, ignore_index=-1, reduction="none")

        words = torch.from_numpy(first)
        for _ in range(30):
            for rows in torch.split(torch.randperm(len(words)), 64):
                loss = surprise(words[rows]).sum() / (words[rows] >= 0).sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
                optimizer.step()
        with torch.no_grad():
            found = [
                (surprise(torch.from_numpy(part)).sum(dim=1).numpy() / (part >= 0).sum(axis=1)).astype(np.float64)
                for part in (first, second)
            ]
    return found[0], found[1]


def pooled_svdd(fleet: Fleet, seed: int) -> Array:
    """Deep SVDD (Ruff et al. 2018) on all systems as one: a network without biases that pulls windows to one centre."""
    import torch
    from torch import nn

    normal = fleet.train if fleet.train.y is None else fleet.train[fleet.train.y == 0]
    scaler = StandardScaler().fit(_summaries(normal))
    usual, asked = (torch.from_numpy(scaler.transform(_summaries(w)).astype(np.float32)) for w in (normal, fleet.test))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(usual.shape[1], 128, bias=False), nn.LeakyReLU(0.1), nn.Linear(128, 32, bias=False)
        )
        with torch.no_grad():
            center = net(usual).mean(dim=0)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
        for _ in range(30):
            for rows in torch.split(torch.randperm(len(usual)), 128):
                loss = (net(usual[rows]) - center).square().sum(dim=1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            return np.asarray((net(asked) - center).square().sum(dim=1).numpy(), np.float64)
