"""dynamic-whitening's memory: dense weights that are dropped, and the peak on a Llama of 215 MB."""

import weakref

import pytest
import torch
from memory_peaks import peak_over_model
from torch import nn

from assay.compress.dynamic_whitening import WhiteningConfig, factorize_, whitened_svd
from assay.compress.dynamic_whitening import models as models_module
from assay.compress.dynamic_whitening.observe import _added


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(48, 48) for _ in range(5)])


DATA = [torch.randn(60, 48, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


@pytest.mark.parametrize("whiten", ["dynamic", "static", "none"])
def test_no_earlier_dense_weight_is_alive_when_the_next_layer_is_truncated(whiten, monkeypatch):
    model, alive = stack(), []
    weights = [weakref.ref(layer.weight) for layer in model]

    def counting(*arguments, **options):
        alive.append(sum(weight() is not None for weight in weights))
        return whitened_svd(*arguments, **options)

    monkeypatch.setattr(models_module, "whitened_svd", counting)
    factorize_(model, WhiteningConfig(ratio=0.5, whiten=whiten), DATA)
    assert alive == [5, 4, 3, 2, 1]


def test_a_second_moment_that_is_summed_in_parts_is_the_whole():
    first, second = (torch.randn(40, 300, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    total = _added(_added(None, first, first, "0"), second, second, "0")
    rows = torch.cat([first, second]).double()
    torch.testing.assert_close(total, rows.T @ rows, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(200, 300), (300, 200)])
def test_a_truncation_in_parts_is_that_of_the_whole_weight(shape):
    torch.manual_seed(0)
    weight, x = torch.randn(shape, dtype=torch.float64), torch.randn(shape[1], 900, dtype=torch.float64)
    a, b, values = whitened_svd(weight, x @ x.T, 50)
    outputs = torch.linalg.svd(weight @ x, full_matrices=False)
    expected = outputs.U[:, :50] * outputs.S[:50] @ outputs.Vh[:50]  # the best of rank 50 for these outputs
    torch.testing.assert_close(a @ b @ x, expected, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(values, outputs.S[: len(values)], atol=1e-7, rtol=1e-7)


IMPORTS = "from assay.compress.dynamic_whitening import WhiteningConfig, factorize_, save"
SIZES = {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 9}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "made"])
def test_memory_peaks_below_1_3_times_the_model(is_loaded, tmp_path):
    verb = "factorize_(model, WhiteningConfig(ratio=0.8), ids)"
    assert peak_over_model(tmp_path, SIZES, IMPORTS, verb, is_loaded=is_loaded) < 1.3


# Two second moments of a layer with 1,024 inputs and a dense copy of a block: a twentieth of the model here.
DEEP = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 30}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("option", ["target='anchored'", "drift=True"])
def test_with_the_full_model_beside_memory_peaks_below_1_3_times_a_deep_model(option, tmp_path):
    verb = f"factorize_(model, WhiteningConfig(ratio=0.8, {option}), ids)"
    assert peak_over_model(tmp_path, DEEP, IMPORTS, verb, is_loaded=False) < 1.3
