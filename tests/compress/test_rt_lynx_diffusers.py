"""rt-lynx on a diffusion transformer of diffusers, by batches and by its pipeline."""

import warnings

import pytest
import torch
from diffusers_models import noise_levels, tiny_dit

from assay.compress.rt_lynx import ActivationSparsityConfig, bypassed, load, save, sparsify_

diffusers = pytest.importorskip("diffusers")

pytestmark = pytest.mark.usefixtures("one_thread")

PARTS = ["attn1.to_q", "attn1.to_k", "attn1.to_v", "ff.net.0.proj", "ff.net.2"]
NAMES = [f"transformer_blocks.{i}.{part}" for i in range(2) for part in PARTS]


def pipeline(transformer):
    torch.manual_seed(1)
    vae = diffusers.AutoencoderKL(latent_channels=4, block_out_channels=(4,), norm_num_groups=2)
    made = diffusers.DiTPipeline(transformer, vae.eval(), diffusers.DDIMScheduler())
    made.set_progress_bar_config(disable=True)
    return made


def pictures(pipe, kind, **options):
    draw = torch.Generator().manual_seed(2)
    return pipe([1, 2, 3], num_inference_steps=3, generator=draw, output_type=kind, **options)


def quiet(model, calibration, **options):
    """Sparsify; so few tokens are warned of, which is not the matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sparsify_(model, ActivationSparsityConfig(rank=4, **options), calibration)


def test_projections_and_mlps_become_sparse_and_modulations_stay_dense():
    report = quiet(tiny_dit(), noise_levels(8, 3))
    assert [layer.layer for layer in report.layers] == NAMES
    assert 0 < report.output_error < 0.1


def test_walking_the_blocks_gives_the_repairs_of_whole_passes(monkeypatch):
    from assay.compress.rt_lynx import calibrate

    walked, whole = tiny_dit(), tiny_dit()
    quiet(walked, noise_levels(8, 3))
    monkeypatch.setattr(calibrate.Runner, "_stack", lambda self, layers: [])
    quiet(whole, noise_levels(8, 3))
    for name in NAMES:
        one, other = walked.get_submodule(name), whole.get_submodule(name)
        torch.testing.assert_close(one.lora_B @ one.lora_A, other.lora_B @ other.lora_A, rtol=1e-3, atol=1e-5)


def test_the_repairs_load_on_the_dense_transformer_with_the_same_outputs(tmp_path):
    model, call = tiny_dit(), noise_levels(1, 3)[0]
    quiet(model, noise_levels(8, 3))
    save(model, tmp_path, weights=False)
    with torch.no_grad():
        assert torch.equal(load(tmp_path, tiny_dit())(**call).sample, model(**call).sample)


@pytest.mark.parametrize(("kind", "options"), [("np", {}), ("pil", {}), ("pil", {"return_dict": False})])
def test_a_pipeline_calibrates_and_its_pictures_are_compared(kind, options):
    """The error is that of the pictures: of the dense pipeline's and of the sparse one's, by the same seed."""
    import numpy as np

    def arrays(output):
        images = output[0] if isinstance(output, tuple) else output.images
        return np.stack([np.asarray(image, dtype=np.float64) for image in images])

    pipe = pipeline(tiny_dit())
    report = quiet(pipe.transformer, lambda transformer: pictures(pipe, kind, **options))
    sparse = arrays(pictures(pipe, kind, **options))
    with bypassed(pipe.transformer):
        dense = arrays(pictures(pipe, kind, **options))
    expected = ((dense - sparse) ** 2).sum() / (dense**2).sum()
    assert report.output_error == pytest.approx(expected, rel=1e-4)
    assert report.output_error > 0


def test_a_pipeline_s_pictures_can_be_kept_within_an_error():
    pipe = pipeline(tiny_dit())
    free = quiet(pipe.transformer, lambda transformer: pictures(pipe, "np")).output_error
    again = pipeline(tiny_dit())
    report = quiet(again.transformer, lambda transformer: pictures(again, "np"), max_error=free / 2)
    assert report.output_error <= free / 2
    assert 0 < len(report.skipped) < len(NAMES)


def test_a_pipeline_with_other_noise_does_not_go_on_with_the_old_repairs(tmp_path):
    from assay._core.errors import InputError

    def run(seed):
        pipe = pipeline(tiny_dit())
        return quiet_with_checkpoint(pipe.transformer, lambda transformer: pipe(
            [1], num_inference_steps=2, generator=torch.Generator().manual_seed(seed)), tmp_path)  # fmt: skip

    first = run(0)
    assert run(0).layers == first.layers
    with pytest.raises(InputError, match=r"holds layers of a run with other options, another model or other data"):
        run(1)


def quiet_with_checkpoint(model, calibration, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sparsify_(model, ActivationSparsityConfig(rank=4), calibration, checkpoint=folder)
