import os
import platform
import subprocess
import sys
from importlib import metadata

import pytest

from assay.bench import environment


@pytest.fixture(scope="module")
def found():
    return environment.describe()


def test_versions_are_those_installed(found):
    assert found["packages"]["numpy"] == metadata.version("numpy")


def test_tools_of_development_are_not_listed(found):
    assert not {"pytest", "ruff", "mkdocs"} & set(found["packages"])


def test_the_python_is_this_one(found):
    assert found["python"] == platform.python_version()


def test_there_are_no_more_cores_than_the_machine_has(found):
    assert 1 <= found["cores"] <= os.cpu_count()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/meminfo")
def test_the_memory_is_that_of_the_machine(found):
    with open("/proc/meminfo") as lines:  # noqa: PTH123
        kib = int(next(line for line in lines if line.startswith("MemTotal")).split()[1])
    assert found["memory_gib"] == pytest.approx(kib / 2**20, abs=0.06)


def test_no_environment_variable_gets_in(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    assert "sk-secret-value" not in str(environment.describe())


def test_describing_the_machine_loads_nothing_heavy():
    code = (
        "import sys; from assay.bench import environment; environment.describe();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'ray', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_bench_itself_loads_nothing_heavy():
    heavy = "('torch', 'transformers', 'ray', 'matplotlib', 'scipy', 'pandas', 'mlflow')"
    code = f"import sys; import assay.bench; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
