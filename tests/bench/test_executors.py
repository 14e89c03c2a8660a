import builtins
import contextlib
import os
import time

import numpy as np
import psutil
import pytest
from toy_trial import TOY, kills_its_process_on_a_small_mean, raises_on_a_small_mean, run, with_method

from assay.bench import executors, worker
from assay.bench.spec import Arm


def small_means(n):
    """Numbers of the toy cases on which the arms that dislike a small mean fail."""
    return [number for number, case in enumerate(TOY.cases(1.0, n, 0)) if np.mean(case.given) < 0.95]


def tasks(method, n):
    trial = with_method(method)
    job = worker.pack(trial, trial.method)
    for case in trial.cases(1.0, n, 0):
        yield worker.task(trial, trial.method, case.id, 0, job=job, unit=worker.pack_case(trial, case))


def allocate(given, seed):
    return float(np.ones(300 * 2**20, dtype=np.uint8)[0])


def burn(given, seed):
    end = time.process_time() + 2.0
    while time.process_time() < end:
        sum(range(10_000))
    return 1.0


def test_every_task_gives_one_row():
    rows = list(executors.local(tasks(raises_on_a_small_mean, 8), threads=1, jobs=2))
    assert sorted(row.case for row in rows) == [f"case {number}" for number in range(8)]


def test_an_arm_that_allocates_300_mib_is_reported_so():
    row, *_ = executors.local(tasks(allocate, 1), threads=1, jobs=1)
    assert row.peak_mib == pytest.approx(300, rel=0.1)


def test_an_arm_that_burns_two_seconds_of_cpu_is_reported_so():
    row, *_ = executors.local(tasks(burn, 1), threads=1, jobs=1)
    assert row.cpu_s == pytest.approx(2.0, rel=0.05)


def test_the_tasks_that_kill_their_process_are_recorded_and_no_other_is_lost():
    rows = {
        row.case: row.error for row in executors.local(tasks(kills_its_process_on_a_small_mean, 12), threads=1, jobs=2)
    }
    expected = {f"case {number}": None for number in range(12)}
    expected |= {f"case {number}": "the worker process died" for number in small_means(12)}
    assert rows == expected
    assert 0 < len(small_means(12)) < 12


def test_tasks_are_taken_only_as_room_appears():
    taken, ahead = [], []

    def counted():
        for task in tasks(np_mean, 10):
            taken.append(task)
            yield task

    for done, _ in enumerate(executors.local(counted(), threads=1, jobs=2)):
        ahead.append(len(taken) - done)
    assert max(ahead) <= 3  # the row in hand, and two in flight


def np_mean(given, seed):
    return float(np.mean(given))


def process_and_hash(given, seed):
    return float(os.getpid() + hash("a text") % 2**16 / 2**20)


def test_processes_are_used_again_and_order_sets_alike():
    rows = list(executors.local(tasks(process_and_hash, 6), threads=1, jobs=1))
    assert len({row.metrics["bias"] for row in rows}) == 1


def keep_400_mib(given, seed):
    kept = vars(builtins).setdefault("kept_by_a_test", [])
    kept.append(np.ones(400 * 2**20 if len(kept) == 1 else 1, dtype=np.uint8))
    time.sleep(1.1)  # loky looks at the memory of a worker once a second
    return float(os.getpid())


def test_a_process_may_keep_a_large_model():
    rows = list(executors.local(tasks(keep_400_mib, 4), threads=1, jobs=1))
    assert len({row.metrics["bias"] for row in rows}) == 1


def test_leaving_early_ends_the_processes():
    rows = executors.local(tasks(np_mean, 50), threads=1, jobs=2)
    next(rows)
    workers = psutil.Process().children(recursive=True)
    rows.close()
    _, alive = psutil.wait_procs([one for one in workers if is_worker(one)], timeout=10)
    assert not alive


def is_worker(process):
    with contextlib.suppress(psutil.Error):
        return any("LokyProcess" in word for word in process.cmdline())
    return False


def test_failures_are_in_the_result_and_in_the_table(tmp_path):
    result = run(with_method(raises_on_a_small_mean), tmp_path, jobs=1)
    assert [(one.arm, one.case, one.error) for one in result.failures] == [
        ("mean", f"case {number}", "ValueError: the mean is too small") for number in small_means(8)
    ]
    assert result.to_frame()["error"].notna().sum() == len(small_means(8))


def test_an_arm_may_be_a_function_of_a_closure(tmp_path):
    offset = 0.25
    trial = with_method(lambda given, seed: float(given[0]) + offset)
    result = run(trial, tmp_path, cases=2, jobs=1)
    assert result.to_frame().query("arm == 'mean'")["bias"].tolist() == pytest.approx(
        [case.given[0] + 0.25 - 1.0 for case in TOY.cases(1.0, 2, 0)]
    )


def test_an_arm_without_a_module_can_be_sent():
    assert worker.pack(TOY, Arm("sum", sum))
