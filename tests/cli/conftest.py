"""The command that a test file is named after, run in this process: test_use_lucid.py runs `assay use lucid`."""

import importlib

import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def run_anywhere(request):
    """Run the command with arguments; gives its `stdout` and `stderr`, and an error is raised as it is."""
    name = request.path.stem.removeprefix("test_use_")
    app = importlib.import_module(f"assay.cli.use.{name}").app

    def call(*arguments, stdin=b""):
        arguments = [str(argument) for argument in arguments]
        done = CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False, standalone_mode=False)
        assert not done.return_value, done.output  # the exit code
        return done

    return call


@pytest.fixture
def run(run_anywhere, tmp_path, monkeypatch):
    """The same in a fresh folder, where a test's relative paths are."""
    monkeypatch.chdir(tmp_path)
    return run_anywhere
