"""The Triton kernels in Triton's interpreter beside the reference, in a process of its own, which that needs."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from assay._core.errors import InputError
from assay.compress.rt_lynx import ActivationSparsityConfig, SparseActLinear

SCRIPT = """
import json, torch
from assay.compress.rt_lynx import ActivationSparsityConfig, Factors, SparseActLinear, kernels, sparse_activation

torch.manual_seed(0)
gaps = {}
for n, rows, k, o, rank in ((1, 3, 8, 5, 0), (2, 70, 72, 80, 5), (3, 5, 68, 3, 17), (4, 5, 16, 4, 2)):
    x = torch.randn(rows, k)
    x[:, 1::4] = -x[:, ::4]  # ties
    x[0] = 0
    for norm_comp in (True, False):
        name = f"{n}:4 {norm_comp}"
        expected = sparse_activation(x, n, 4, norm_comp=norm_comp)
        gaps["select " + name] = (kernels.sparse_activation(x, n, norm_comp) - expected).abs().max().item()
        layers = []
        for backend in ("masked", "triton"):
            torch.manual_seed(1)
            config = ActivationSparsityConfig(n=n, rank=rank, norm_comp=norm_comp, backend=backend)
            layer = SparseActLinear.from_linear(torch.nn.Linear(k, o, bias=n != 3), config)
            layers.append(layer.repair(Factors(torch.randn(rank, k), torch.randn(o, rank))) if rank else layer)
        masked, fused = (layer(x[None]) for layer in layers)
        gaps["linear " + name] = ((masked - fused).abs().max() / masked.abs().max()).item()

x, weight = torch.randn(10, 64).half(), torch.randn(20, 64).half()
expected = sparse_activation(x).float() @ weight.float().T
gap = (kernels.sparse_linear(x, weight, None, None).float() - expected).abs().max() / expected.abs().max()
gaps["half"] = gap.item()
try:
    layer = SparseActLinear.from_linear(torch.nn.Linear(8, 4).bfloat16(), ActivationSparsityConfig(backend="triton"))
    layer(torch.zeros(1, 8).bfloat16())
except ValueError as error:
    gaps["refused"] = str(error)
print(json.dumps(gaps))
"""


@pytest.fixture(scope="module")
def gaps():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_selection_kernel_gives_the_reference(gaps):
    # Lengths are summed in another order: a few units in the last place of numbers up to 4.
    assert max(gap for name, gap in gaps.items() if name.startswith("select")) < 4e-6


def test_the_fused_layer_gives_the_masked_one(gaps):
    assert max(gap for name, gap in gaps.items() if name.startswith("linear")) < 1e-5


def test_selection_without_lengths_is_exact(gaps):
    assert {gap for name, gap in gaps.items() if name.startswith("select") and name.endswith("False")} == {0.0}


def test_half_precision_is_summed_in_single(gaps):
    assert gaps["half"] < 2**-10  # the output is rounded to eleven bits


def test_bfloat16_is_refused_by_the_interpreter(gaps):
    assert gaps["refused"].startswith("Triton's interpreter cannot multiply bfloat16")


def test_on_a_cpu_the_backend_says_what_it_needs():
    layer = SparseActLinear.from_linear(torch.nn.Linear(8, 4), ActivationSparsityConfig(backend="triton"))
    with pytest.raises(InputError, match=r"^backend='triton' needs "):
        layer(torch.zeros(1, 8))


def test_the_file_of_kernels_can_be_read_without_triton():
    script = "import sys; sys.modules['triton'] = None; import importlib.util as u; f = u.find_spec\n"
    script += "u.find_spec = lambda name, *a: None if name == 'triton' else f(name, *a)\n"
    script += "import assay.compress.rt_lynx.kernels as k; print(k.triton)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
