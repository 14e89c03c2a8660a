"""Bridge beside py-irt's and girth's two-parameter models: seconds, memory, and held-out log-likelihood.

Run it with `python benchmarks/bridge.py`. Peers that are not installed are left out and named; they are not
dependencies (py-irt pins old versions of pandas, typer and rich): `pip install --no-deps py-irt pyro-ppl pyro-api
opt_einsum ordered-set toml girth` beside the packages of this project is enough.

The floor: one pass over n responses reads and writes about 100 bytes each; a fit needs about 15 Newton steps with 100
products with the Hessian in all, so some 10⁴ bytes a response.
"""

import importlib.util
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

# One thread each: on a machine that others use as well, threads that wait for each other would decide the race.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import expit

REPEATS, EPOCHS, GIRTH_TASKS = 3, 1000, 100
SHARE_HELD_OUT = 0.1


def real_or_simulated():
    """The paper's table where ASSAY_DATA has it, else a simulated one of its size and density."""
    path = Path(os.environ.get("ASSAY_DATA", "")) / "bridge" / "responses.csv.gz"
    if os.environ.get("ASSAY_DATA") and path.is_file():
        return "176 systems × 1,019 tasks (the paper's table)", pd.read_csv(path)
    return "176 × 1,019, simulated", simulated(176, 1019, 86_441)


def simulated(n_models, n_tasks, n_responses, seed=0):
    rng = np.random.default_rng(seed)
    cell = rng.choice(n_models * n_tasks, n_responses, replace=False)
    model, task = np.divmod(cell, n_tasks)
    theta, b = rng.normal(0, 1.5, n_models), rng.normal(0, 1.5, n_tasks)
    a = np.exp(rng.normal(0, 0.4, n_tasks))
    correct = rng.random(n_responses) < expit(a[task] * (theta[model] - b[task]))
    return pd.DataFrame({"model": model, "task": task, "correct": correct.astype(float)})


# ------------------------------------------------------------------ ways to fit; each returns theta, b, a by name


def ours(train):
    from assay.evaluate.bridge import TimeHorizonIRT

    irt = TimeHorizonIRT().fit(train)
    return irt.subjects_["ability"], irt.items_["difficulty"], irt.items_["discrimination"]


def py_irt_2pl(train):
    """Its 2PL as the paper used it: hierarchical priors, 1,000 epochs (half its default), the best epoch kept."""
    from py_irt.config import IrtConfig
    from py_irt.training import IrtModelTrainer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        with path.open("w") as stream:
            for model, rows in train.groupby("model"):
                answers = dict(zip(rows["task"].astype(str), rows["correct"].astype(int).tolist(), strict=True))
                stream.write(json.dumps({"subject_id": str(model), "responses": answers}) + "\n")
        config = IrtConfig(model_type="2pl", priors="hierarchical", epochs=EPOCHS, seed=0)
        trainer = IrtModelTrainer(data_path=path, config=config, verbose=False)
        trainer.train(epochs=EPOCHS)
    found = trainer.best_params
    models, tasks = (
        [names[position] for position in range(len(names))] for names in (found["subject_ids"], found["item_ids"])
    )
    return pd.Series(found["ability"], models), pd.Series(found["diff"], tasks), pd.Series(found["disc"], tasks)


def girth_mml(train):
    import girth

    table = train.pivot_table(index="task", columns="model", values="correct")
    coded = girth.tag_missing_data(table.fillna(-1).to_numpy(dtype=int), [0, 1])
    found = girth.twopl_mml(coded)
    ability = girth.ability_eap(coded, found["Difficulty"], found["Discrimination"])
    names = table.index.astype(str)
    return (
        pd.Series(ability, table.columns.astype(str)),
        pd.Series(found["Difficulty"], names),
        pd.Series(found["Discrimination"], names),
    )


def held_out_log_likelihood(fit, test):
    """Mean log-likelihood in nats of held-out responses whose model and task were seen."""
    theta, b, a = (series.set_axis(series.index.astype(str)) for series in fit)
    model, task = test["model"].astype(str), test["task"].astype(str)
    z = (task.map(a) * (model.map(theta) - task.map(b))).to_numpy()
    seen = np.isfinite(z)
    return float(np.mean((test["correct"].to_numpy() * z - np.logaddexp(0, z))[seen]))


# ------------------------------------------------------------------------------------------------- measuring


def measure(name, fit, train, test, queue):
    start, cpu = time.perf_counter(), time.process_time()
    found = fit(train)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    queue.put((name, seconds, cpu, peak, held_out_log_likelihood(found, test)))


def in_a_fresh_process(name, fit, train, test):
    """A fit in a process of its own, so that its memory is its own; importing the library is part of neither."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=measure, args=(name, fit, train, test, queue))
    process.start()
    row = queue.get(timeout=3600)
    process.join()
    return row


def beside_peers():
    title, frame = real_or_simulated()
    held_out = np.random.default_rng(0).random(len(frame)) < SHARE_HELD_OUT
    train, test = frame[~held_out], frame[held_out]
    print(f"{title}: {len(train):,} responses to fit, {len(test):,} held out, one thread each")
    print(f"{'':<24}{'seconds':>9}{'CPU s':>9}{'× wall':>8}{'× CPU':>8}{'peak GiB':>10}{'held-out log-likelihood':>26}")
    peers = [name for name in ("py_irt", "girth") if importlib.util.find_spec(name)]
    rows = []
    for _ in range(REPEATS):
        rows.append(in_a_fresh_process("assay (map)", ours, train, test))
        if "py_irt" in peers:
            import py_irt.training  # noqa: F401  (imported before the clock starts)

            rows.append(in_a_fresh_process("py-irt", py_irt_2pl, train, test))
    base = show(rows, "assay (map)")
    if "py_irt" in peers:
        show(rows, "py-irt", base)
    if "girth" in peers:
        import girth  # noqa: F401

        # Its time grows faster than the number of items: 1,019 did not end within eight minutes.
        some = np.random.default_rng(1).choice(frame["task"].unique(), GIRTH_TASKS, replace=False)
        train, test = train[train["task"].isin(some)], test[test["task"].isin(some)]
        print(f"\n{GIRTH_TASKS} of the tasks: {len(train):,} responses to fit, {len(test):,} held out")
        rows = []
        for _ in range(REPEATS):
            rows.append(in_a_fresh_process("assay (map)", ours, train, test))
            rows.append(in_a_fresh_process("girth, twopl_mml", girth_mml, train, test))
        show(rows, "girth, twopl_mml", show(rows, "assay (map)"))
    for name in {"py_irt", "girth"} - set(peers):
        print(f"{name} is not installed")


def show(rows, name, base=None):
    """Print the medians of an arm, and how many times `base` they are; return them."""
    seconds, cpu, peak, score = (statistics.median(row[i] for row in rows if row[0] == name) for i in (1, 2, 3, 4))
    base = base or (seconds, cpu)
    print(
        f"{name:<24}{seconds:>9.2f}{cpu:>9.2f}{seconds / base[0]:>8.1f}{cpu / base[1]:>8.1f}"
        f"{peak:>10.2f}{score:>26.4f}",
        flush=True,
    )
    return seconds, cpu


def a_million():
    frame = simulated(2000, 5000, 1_000_000)
    _, seconds, cpu, peak, _ = in_a_fresh_process("a million", ours, frame, frame.head(1000))
    print(
        f"1,000,000 responses, 2,000 models × 5,000 tasks: {seconds:.1f} s ({cpu:.1f} s CPU), peak {peak:.2f} GiB\n",
        flush=True,
    )


if __name__ == "__main__":
    import assay.evaluate.bridge  # noqa: F401

    a_million()
    beside_peers()
