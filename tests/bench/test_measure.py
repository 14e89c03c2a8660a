import hashlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from assay.bench import measure
from assay.bench.measure import measured

MIB = 2**20


def allocate_300_mib():
    return np.ones(300 * MIB, dtype=np.uint8).sum()


def burn(seconds, clock=time.process_time):
    end = clock() + seconds
    while clock() < end:
        hashlib.sha256(b"x" * 10_000).digest()


def test_300_mib_are_reported_as_300_mib():
    assert measured(allocate_300_mib)[3] == pytest.approx(300, rel=0.1)


def test_the_peak_counts_though_the_memory_was_given_back():
    assert measured(lambda: (allocate_300_mib(), None)[1])[3] == pytest.approx(300, rel=0.1)


def test_where_the_kernel_keeps_no_mark_a_thread_looks(monkeypatch):
    monkeypatch.setattr(measure, "_kernel_peak", lambda: None)
    assert measured(lambda: (allocate_300_mib(), time.sleep(0.05)))[3] == pytest.approx(300, rel=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="gives freed memory back through glibc")
def test_memory_that_an_earlier_call_freed_counts_again():
    def many_small_pieces():
        return len([bytes(2_000) for _ in range(50_000)])  # 100 MB that the allocator would keep

    measured(many_small_pieces)
    # 50,000 pieces of 2,000 bytes, 33 bytes of object header, 16 of the allocator and 8 of the list: 98 MiB
    assert measured(many_small_pieces)[3] == pytest.approx(98, rel=0.1)


def test_an_earlier_peak_does_not_count():
    allocate_300_mib()
    assert measured(lambda: None)[3] < 20


def test_two_seconds_of_cpu_are_reported_as_two_seconds():
    assert measured(lambda: burn(2.0))[2] == pytest.approx(2.0, rel=0.05)


def test_cpu_time_of_all_threads_counts():
    def burn_in_threads():
        threads = [threading.Thread(target=burn, args=(0.4, time.thread_time)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert measured(burn_in_threads)[2] == pytest.approx(1.2, rel=0.1)


def test_cpu_time_of_child_processes_counts():
    code = "import time\nwhile time.process_time() < 0.6: pass"
    assert measured(lambda: subprocess.run([sys.executable, "-c", code], check=True))[2] == pytest.approx(0.6, rel=0.2)


def test_waiting_takes_wall_time():
    assert measured(lambda: time.sleep(0.2))[1] == pytest.approx(0.2, abs=0.1)


def test_waiting_takes_no_cpu_time():
    assert measured(lambda: time.sleep(0.2))[2] < 0.05


def test_what_the_call_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0)


def test_after_an_error_the_watching_thread_has_ended(monkeypatch):
    monkeypatch.setattr(measure, "_kernel_peak", lambda: None)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0)
    assert threading.active_count() == before
