"""rt-lynx's peak of memory, on all layers of a Llama of thirty blocks, from before loading until it is saved."""

import pytest
from memory_peaks import peak_over_model

IMPORTS = "from assay.compress.rt_lynx import ActivationSparsityConfig, save, sparsify_"
# Rank 16 is a thirty-second of the width; the repairs, which are held until the end, are a twentieth of the model.
DEEP = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 30}


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "made"])
def test_memory_peaks_below_1_3_times_the_model(is_loaded, tmp_path):
    verb = r"sparsify_(model, ActivationSparsityConfig(targets=r'\.layers\.', rank=16), ids)"
    assert peak_over_model(tmp_path, DEEP, IMPORTS, verb, is_loaded=is_loaded) < 1.3
