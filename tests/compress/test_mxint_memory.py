"""MX formats: the peak of memory on whole models."""

import pytest
from memory_peaks import peak_over_model

IMPORTS = "from assay.compress.mxint import MXConfig, quantize_, save"
# The layers of SmolLM2-135M, twelve blocks of them.
SIZES = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "made"])
def test_memory_peaks_below_1_3_times_the_model(is_loaded, tmp_path):
    verb = "quantize_(model, MXConfig(weight='mxint8'))"
    assert peak_over_model(tmp_path, SIZES, IMPORTS, verb, is_loaded=is_loaded) < 1.3


@pytest.mark.slow
def test_a_model_in_16_bits_is_not_doubled(tmp_path):
    verb = "quantize_(model, MXConfig(weight='mxint8'))"
    assert peak_over_model(tmp_path, SIZES, IMPORTS, verb, is_loaded=True, dtype="bfloat16") < 1.3
