"""A user's terminal shows what the command says, not what its libraries think of this machine."""

import logging
import subprocess
import sys
import warnings

import pytest

from assay._core.logs import TALKATIVE, hush, speak


@pytest.fixture
def loggers():
    found = [logging.getLogger(name) for name in TALKATIVE]
    before = [logger.level for logger in found]
    yield found
    for logger, level in zip(found, before, strict=True):
        logger.setLevel(level)


def test_hush_leaves_a_level_that_somebody_set(loggers):
    loggers[0].setLevel(logging.DEBUG)
    loggers[1].setLevel(logging.NOTSET)
    hush()
    assert [logger.level for logger in loggers] == [logging.DEBUG, logging.ERROR]


def test_after_it_loading_torchao_is_silent():
    pytest.importorskip("torchao")
    code = "from assay._core.logs import hush; hush(); import torchao.quantization"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_warning_is_a_line_on_stderr_said_once_and_others_stay_as_they_are(capsys):
    with warnings.catch_warnings(record=True) as others:
        speak()
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("module 'm000' is left out", stacklevel=1)
        warnings.warn("an option of a library is old", FutureWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: module 'm000' is left out\n"
    assert [str(other.message) for other in others] == ["an option of a library is old"]
