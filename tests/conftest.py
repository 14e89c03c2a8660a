"""What all tests share: where the real data is, torch on one thread, a command line that runs as a user's does."""

import contextlib
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data, named by ASSAY_DATA (never part of the project)."""
    folder = os.environ.get("ASSAY_DATA")
    if not folder:
        pytest.skip("ASSAY_DATA is not set: no real data")
    return Path(folder).resolve()


@pytest.fixture(scope="module")
def one_thread():
    """torch on one thread: where tensors are small, threads that wait for each other would be most of the time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def assay(tmp_path, monkeypatch):
    """Run `assay …` in a fresh folder, in this process: a new one for each command would take most of the time."""
    from assay.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as left,
        ):
            main([str(argument) for argument in arguments])
        code = left.value.code
        return subprocess.CompletedProcess(arguments, 0 if code is None else code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def assay_process(tmp_path):
    """Run `assay …` as a process of its own in a fresh folder."""

    def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "assay", *map(str, arguments)]
        options = {"cwd": tmp_path, "timeout": 280, **options}
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)

    return run


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A tiny Llama with a tokenizer of 97 words, as save_pretrained writes them; nobody writes into the folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run_anywhere(request):
    """Run the command that the test file is named after: test_use_lucid.py runs `assay use lucid`, in this process.

    Gives its `stdout` and `stderr`, and an error is raised as it is.
    """
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
