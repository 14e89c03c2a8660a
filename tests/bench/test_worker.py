import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from toy_trial import TOY, with_method

from assay._core.seeds import child_seed
from assay.bench import Case, Claim, Metric, worker

CASE = Case("case 7", np.arange(5.0), 1.0)


def row(method, *, trial=TOY, **changes):
    trial = with_method(method, trial, **changes)
    return worker.work(task(trial, trial.method))


def task(trial, arm, seed=3):
    return worker.task(trial, arm, CASE.id, seed, job=worker.pack(trial, arm), unit=worker.pack_case(trial, CASE))


def raises(error):
    def run(given, seed):
        raise error

    return run


def test_a_row_has_the_score_of_the_output():
    assert row(lambda given, seed: 2.5).metrics == {"distance": 1.51, "bias": 1.5}


def test_all_arms_of_a_case_get_the_same_seed():
    seeds = {task(TOY, arm).seed for arm in TOY.arms}
    assert seeds == {child_seed(3, "case 7")}


def test_an_arm_sees_what_is_given_and_not_the_truth():
    assert row(lambda given, seed: given.sum()).metrics["bias"] == 9.0


def test_an_exception_is_the_error_of_the_row():
    found = row(raises(ValueError("two\n  lines")))
    assert (found.error, found.metrics, math.isnan(found.wall_s)) == ("ValueError: two lines", {}, True)


def test_the_traceback_is_kept():
    assert "in run\nValueError: here" in row(raises(ValueError("here"))).traceback


def test_an_error_has_at_most_500_characters():
    assert len(row(raises(ValueError("x" * 9_999))).error) == 500


def test_an_error_without_a_text_is_its_name():
    assert row(raises(MemoryError())).error == "MemoryError"


def test_an_arm_that_exits_is_an_error():
    assert row(raises(SystemExit(3))).error == "SystemExit: 3"


def test_an_arm_that_is_interrupted_is_not_an_error():
    with pytest.raises(KeyboardInterrupt):
        row(raises(KeyboardInterrupt()))


def test_a_metric_that_was_not_scored_is_an_error():
    found = row(lambda given, seed: 1.0, score=lambda case, output: {"distance": 1.0})
    assert found.error == "KeyError: score gave no value for the metric 'bias'"


def test_an_infinite_metric_is_an_error():
    assert row(lambda given, seed: math.inf).error == "ValueError: the metric 'distance' is infinite"


def test_zero_on_the_log_scale_is_an_error():
    found = row(lambda given, seed: 1.0, score=lambda case, output: {"distance": 0.0, "bias": 0.0})
    assert found.error == "ValueError: the metric 'distance' is 0; on the log scale values are positive"


def test_nan_is_a_value():
    found = row(lambda given, seed: 1.0, score=lambda case, output: {"distance": 1.0, "bias": math.nan})
    assert found.error is None


def test_a_metric_with_the_name_of_a_cost_is_measured():
    metric = Metric("wall_s", better="lower", scale="log")
    found = row(lambda given, seed: 1.0, claim=Claim("is faster", "wall_s"), metrics=(metric,), score=lambda *_: {})
    assert found.metrics == {"wall_s": found.wall_s}


@pytest.mark.parametrize("threads", [1, 2])
def test_libraries_use_the_threads_of_the_trial(threads):
    def run(given, seed):
        import threadpoolctl

        return max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())

    assert row(run, threads=threads).metrics["bias"] + 1 <= threads


def test_torch_uses_the_threads_of_the_trial_where_it_is_loaded(monkeypatch):
    limits = []
    torch = SimpleNamespace(get_num_threads=lambda: 8, set_num_threads=limits.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    row(lambda given, seed: 1.0, threads=2)
    assert limits == [2]


def test_fresh_workers_get_the_thread_limit_and_one_order_of_sets():
    variables = worker.environment(3)
    assert (variables["OMP_NUM_THREADS"], variables["PYTHONHASHSEED"]) == ("3", "0")


def test_a_module_that_workers_cannot_import_is_sent_by_value():
    packed = worker.pack(TOY, TOY.method)
    code = f"import sys, cloudpickle; cloudpickle.loads({packed!r}); assert 'toy_trial' not in sys.modules"
    assert run_alone(code)


def run_alone(code):
    """Whether `code` runs where the tests are not on the path."""
    return subprocess.run([sys.executable, "-c", code], cwd="/", check=False).returncode == 0


def test_a_function_behind_partial_is_sent_by_value_too():
    arms = tuple(replace(arm, run=partial(arm.run)) for arm in TOY.arms)
    trial = replace(TOY, load=len, cases=len, score=len, arms=arms)
    assert run_alone(f"import cloudpickle; cloudpickle.loads({worker.pack(trial, trial.method)!r})")


def test_modules_of_packages_are_sent_by_name():
    trial = replace(
        TOY, load=np.load, cases=np.load, score=np.load, arms=tuple(replace(arm, run=np.mean) for arm in TOY.arms)
    )
    assert b"toy_trial" not in worker.pack(trial, trial.method)


def test_sending_leaves_nothing_registered():
    worker.pack(TOY, TOY.method)
    assert not cloudpickle.list_registry_pickle_by_value()
