"""Runs that are killed or interrupted as a whole process, and go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from toy_trial import SLOW, decided, run

from assay.bench import resume

# A process started in the background may have been told to ignore the interrupt, and its children inherit that.
SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from toy_trial import SLOW
from assay import bench
try:
    bench.run(SLOW, out={out!r}, cases=12, jobs=2, progress=False)
except KeyboardInterrupt as stopped:
    print(type(stopped).__name__, stopped)
    sys.exit(130)
"""


@pytest.fixture
def start(tmp_path):
    """Start the slow trial in a process group of its own, and wait until five rows are finished."""
    script = SCRIPT.format(tests=str(Path(__file__).parent), out=str(tmp_path / "run"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    log = tmp_path / "run/finished.jsonl"
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b"\n") < 5:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    yield process, workers
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def n_finished(folder):
    return (folder / "finished.jsonl").read_bytes().count(b"\n")


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_killed_run_goes_on_and_has_the_same_numbers(start, tmp_path):
    process, workers = start
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive, "workers of the killed run still run"
    done, steps = n_finished(tmp_path / "run"), []
    assert 5 <= done < 36

    went_on = run(SLOW, None, resume=tmp_path / "run", progress=steps.append)
    assert sum(step.kind == "started" for step in steps) == 36 - done
    uninterrupted = run(SLOW, tmp_path / "whole", cases=12)
    pd.testing.assert_frame_equal(decided(went_on), decided(uninterrupted), check_exact=True)
    assert went_on.verdict == uninterrupted.verdict


@pytest.mark.skipif(os.name != "posix", reason="a terminal sends the interrupt to the whole group")
def test_an_interrupt_ends_the_workers_and_says_how_to_go_on(start, tmp_path):
    process, workers = start
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert (process.returncode, alive) == (130, [])
    assert said == f"Interrupted interrupted; `assay try --resume {tmp_path / 'run'}` runs what is missing\n"


def test_an_interrupted_run_can_be_resumed_by_its_folder_alone(start, tmp_path, monkeypatch):
    process, _ = start
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)

    from assay import catalog

    class Slow:
        @staticmethod
        def load_trial():
            return SLOW

    monkeypatch.setattr(catalog, "get", {"toy": Slow}.get)
    result = resume(tmp_path / "run", progress=False)
    assert len(result.to_frame()) == 36
