"""mxint on whole models: other architectures, the size of the file, interrupted runs, and memory."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress.mxint import MXConfig, MXLinear, get_format, load, quantize_, save

pytestmark = pytest.mark.usefixtures("one_thread")


class DiTBlock(nn.Module):
    """A block of a diffusion transformer: attention and MLP, each scaled and shifted by the time step."""

    def __init__(self, d=64, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = (nn.LayerNorm(d, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.modulation = nn.Linear(d, 6 * d)

    def forward(self, x, time):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(nn.functional.silu(time))[:, None].chunk(6, -1)
        n, length, d = x.shape
        inside = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(inside).view(n, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, d)
        x = x + gate1 * self.proj(mixed)
        inside = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(nn.functional.gelu(self.up(inside)))


class DiT(nn.Module):
    """Patches of an image, a time step, two blocks, and patches back."""

    def __init__(self):
        super().__init__()
        self.patches, self.time = nn.Conv2d(4, 64, 2, stride=2), nn.Linear(1, 64)
        self.blocks = nn.ModuleList([DiTBlock() for _ in range(2)])
        self.final = nn.Linear(64, 16)

    def forward(self, image, step):
        x, time = self.patches(image).flatten(2).transpose(1, 2), self.time(step)
        for block in self.blocks:
            x = block(x, time)
        return self.final(x)


def dit():
    torch.manual_seed(0)
    return DiT().eval()


def denoised(model):
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return model(torch.randn(2, 4, 8, 8, generator=rng), torch.tensor([[0.1], [0.9]]))


def qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(48)[None] % 97).logits


# ------------------------------------------------------------------------------------------------- architectures


def test_a_diffusion_transformer_is_quantised_in_all_its_linear_layers_and_hardly_moves(tmp_path):
    full, model = dit(), dit()
    report = quantize_(model, MXConfig("mxint8", "mxint8", skip=("time", "final")))
    assert [layer.layer.rpartition(".")[2] for layer in report.layers] == [
        "qkv",
        "proj",
        "up",
        "down",
        "modulation",
    ] * 2
    assert 0 < float((denoised(model) - denoised(full)).norm() / denoised(full).norm()) < 0.02
    save(model, tmp_path)
    assert torch.equal(denoised(load(tmp_path, dit())), denoised(model))


def test_qwen_with_biases_in_its_attention_is_saved_and_loads_with_the_same_logits(tmp_path):
    model = qwen()
    report = quantize_(model, MXConfig("mxfp4", "mxfp4"))
    assert len(report.layers) == 14
    assert model.model.layers[0].self_attn.q_proj.bias is not None
    save(model, tmp_path)
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_diffusers_dit_is_quantised_and_hardly_moves():
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=32, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10,
    ).eval()  # fmt: skip

    def run():
        with torch.no_grad():
            return model(torch.ones(1, 4, 8, 8), timestep=torch.tensor([5]), class_labels=torch.tensor([1])).sample

    before = run()
    assert len(quantize_(model, MXConfig("mxint8", "mxint8")).layers) == 20
    assert 0 < float((run() - before).norm() / before.norm()) < 0.02


# --------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("fmt", ["mxint8", "mxint6", "mxint4", "nvint4"])
def test_the_file_has_the_stated_bits_a_weight_within_a_percent(fmt, tmp_path):
    """Two layers without bias: what is in the file is weights, and the header that names them."""
    model = nn.Sequential(nn.Linear(1024, 768, bias=False), nn.Linear(768, 512, bias=False))
    quantize_(model, MXConfig(fmt))
    save(model, tmp_path)
    n_weights = 1024 * 768 + 768 * 512
    stated = n_weights * get_format(fmt).bits_per_element / 8
    assert (tmp_path / "model.safetensors").stat().st_size == pytest.approx(stated, rel=0.01)


# ------------------------------------------------------------------------------------------- interrupted runs


FROM_LINEAR = MXLinear.from_linear.__func__


def counted(monkeypatch, limit=None):
    """Count the layers that are quantised, and fail at one."""
    made = []

    def from_linear(cls, linear, config=None):
        if len(made) == limit:
            raise RuntimeError("power cut")
        made.append(linear)
        return FROM_LINEAR(cls, linear, config)

    monkeypatch.setattr(MXLinear, "from_linear", classmethod(from_linear))
    return made


def test_an_interrupted_call_goes_on_behind_the_last_finished_layer(tmp_path, monkeypatch):
    counted(monkeypatch, limit=6)
    with pytest.raises(RuntimeError, match="power cut"):
        quantize_(qwen(), MXConfig("nvint4"), checkpoint=tmp_path)
    made = counted(monkeypatch)
    resumed = qwen()
    report = quantize_(resumed, MXConfig("nvint4"), checkpoint=tmp_path)
    assert len(made) == 14 - 6
    whole = qwen()
    expected = quantize_(whole, MXConfig("nvint4"))
    assert torch.equal(logits(resumed), logits(whole))
    pairs = zip(report.layers, expected.layers, strict=True)
    assert all({**vars(a), "seconds": 0} == {**vars(b), "seconds": 0} for a, b in pairs)


def test_finished_layers_of_another_format_or_weight_are_not_taken(tmp_path, monkeypatch):
    quantize_(qwen(), MXConfig("mxint8"), checkpoint=tmp_path)
    other = qwen()
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight[0, 0] += 1
    made = counted(monkeypatch)
    quantize_(other, MXConfig("mxint8"), checkpoint=tmp_path)
    assert len(made) == 1
    quantize_(qwen(), MXConfig("mxint6"), checkpoint=tmp_path)
    assert len(made) == 1 + 14


def test_a_damaged_finished_layer_is_made_again(tmp_path, monkeypatch):
    quantize_(qwen(), MXConfig("mxint8"), checkpoint=tmp_path)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"cut off")
    made = counted(monkeypatch)
    quantize_(qwen(), MXConfig("mxint8"), checkpoint=tmp_path)
    assert len(made) == 1


def test_a_checkpoint_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"checkpoint=.*file: it is a file; give the name of a folder$"):
        quantize_(qwen(), checkpoint=tmp_path / "file")


# ------------------------------------------------------------------------------------------------------ memory

MEASURED = """
import json, re, sys, torch
from torch import nn
from assay.compress.mxint import MXConfig, quantize_, save

def peak():  # of this process alone; getrusage would start at that of its parent
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

torch.set_num_threads(1)
small = nn.Sequential(nn.Linear(64, 64))
quantize_(small, MXConfig(sys.argv[1])), save(small, sys.argv[2] + "/small")  # everything is loaded now
before = peak()
model = nn.Sequential(*[nn.Linear(2240, 2240) for _ in range(16)])
size = sum(p.numel() * p.element_size() for p in model.parameters())
built = peak()
quantize_(model, MXConfig(sys.argv[1]), checkpoint=sys.argv[2] + "/layers")
save(model, sys.argv[2] + "/out")
print(json.dumps([size, built - before, peak() - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize("fmt", ["mxint8", "nvint4"])
def test_quantising_and_saving_peaks_below_1_3_times_the_model(fmt, tmp_path):
    done = subprocess.run([sys.executable, "-c", MEASURED, fmt, tmp_path], capture_output=True, text=True, check=True)
    size, built, peak = json.loads(done.stdout)
    assert size > 3e8
    assert built > 0.9 * size  # the measure sees the model at all
    assert peak < 1.3 * size
