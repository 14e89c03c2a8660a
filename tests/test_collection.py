"""The tests themselves: every process that collects them finds the same ones, so that they can be shared out."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_another_process_at_another_time_collects_the_same_tests(request):
    """Names made from the time, from the order of a set or from chance differ between the workers that share a run."""
    files = sorted({Path(item.fspath).relative_to(ROOT).as_posix() for item in request.session.items})
    own = {item.nodeid for item in request.session.items}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1234", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert own - set(result.stdout.splitlines()) == set()
