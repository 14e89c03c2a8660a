"""mxint: every grid and every scale, bit for bit against ml_dtypes, and against torchao where it defines the same."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.compress.mxint import fake_quant, get_format, quantize
from assay.compress.mxint.formats import E2M1, E2M3, E3M2, E4M3, E5M2, INT4, INT6, INT8
from assay.compress.mxint.packing import pack
from assay.compress.mxint.rounding import (
    byte_of_scale,
    decode,
    encode,
    power_of_two_scale,
    round_to_grid_,
    scale_of_byte,
)

pytestmark = pytest.mark.usefixtures("one_thread")


FLOATS = {
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    E2M3: ml_dtypes.float6_e2m3fn,
    E3M2: ml_dtypes.float6_e3m2fn,
    E2M1: ml_dtypes.float4_e2m1fn,
}
INTEGERS = (INT8, INT6, INT4)
each_float = pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
each_integer = pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)


def codes_of(element):
    return torch.arange(2**element.bits, dtype=torch.uint8)


def rounded(values, element, clip="sym"):
    return round_to_grid_(torch.tensor(values, dtype=torch.float32), element, clip)


def reference_bits(values, element):
    """ml_dtypes, after saturation: its casts overflow to infinity or NaN where the methods here saturate."""
    held = np.clip(values.astype(np.float32), -element.maximum, element.maximum)
    return held.astype(FLOATS[element]).view(np.uint8)


@each_float
def test_every_code_means_what_ml_dtypes_says(element):
    expected = codes_of(element).numpy().view(FLOATS[element]).astype(np.float32)
    expected[~np.isfinite(expected)] = np.nan
    np.testing.assert_array_equal(decode(codes_of(element), element).numpy(), expected)


@each_float
def test_a_million_values_get_the_bits_of_ml_dtypes(element):
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [rng.standard_normal(500_000) * element.maximum / 3, np.exp(rng.uniform(-18, 13, 500_000))]
    ).astype(np.float32)
    codes = encode(rounded(values, element), element).numpy()
    np.testing.assert_array_equal(codes, reference_bits(values, element))


@each_float
def test_midpoints_go_to_the_even_mantissa(element):
    grid = np.unique(element.values()[np.isfinite(element.values())].astype(np.float64))
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    codes = encode(rounded(middle, element), element).numpy()
    np.testing.assert_array_equal(codes, reference_bits(middle, element))


def test_the_midpoints_of_e2m1_are_those_of_the_card():
    assert rounded([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4]


@each_float
def test_encode_undoes_decode_on_every_code_in_use(element):
    codes = codes_of(element)
    codes = codes[~decode(codes, element).isnan()]
    assert torch.equal(encode(decode(codes, element), element), codes)


@each_integer
def test_integer_codes_are_two_s_complement(element):
    values = np.arange(-element.maximum, element.maximum + 1)
    codes = encode(torch.tensor(values, dtype=torch.float32), element).numpy()
    np.testing.assert_array_equal(codes, values.astype(np.int64) % 2**element.bits)


@each_integer
def test_integers_round_half_to_even_and_saturate_symmetrically(element):
    top = element.maximum
    assert rounded([0.5, 1.5, -2.5, top + 9, -top - 9], element).tolist() == [0, 2, -2, top, -top]


@each_integer
def test_only_asymmetric_clipping_uses_the_extra_negative_code(element):
    assert rounded([-element.maximum - 1, element.maximum + 1], element, "asym").tolist() == [
        -element.maximum - 1,
        element.maximum,
    ]


def test_a_scale_byte_means_what_ml_dtypes_says():
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    found = scale_of_byte(torch.arange(256, dtype=torch.uint8))
    np.testing.assert_array_equal(found.numpy(), expected)
    assert torch.equal(byte_of_scale(found), torch.arange(256, dtype=torch.uint8))


def rule_by_hand(absmax, maximum, rule):
    """Exponents by exact arithmetic: frexp gives absmax = m 2^e and maximum = q 2^f with m, q in [0.5, 1)."""
    m, e = np.frexp(absmax.astype(np.float64))
    q, f = np.frexp(maximum)
    shift = {
        "ceil": m > q,
        "floor": -(m < q).astype(int),
        "round": (m >= q * 2**0.5).astype(int) - (m < q / 2**0.5),
        "ocp": np.zeros_like(e),
    }[rule]
    return np.where(absmax == 0, -127, np.clip(e - f + shift, -127, 127))


@pytest.mark.parametrize("maximum", [127.0, 31.0, 7.0, 448.0, 57344.0, 7.5, 28.0, 6.0])
@pytest.mark.parametrize("rule", ["ceil", "floor", "round", "ocp"])
def test_shared_exponents_are_exact_also_at_powers_of_two_and_below_the_normals(rule, maximum):
    rng = np.random.default_rng(0)
    powers = 2.0 ** np.arange(-149, 128)
    edges = np.concatenate([powers, powers * maximum, np.nextafter(powers.astype(np.float32), np.float32(np.inf))])
    values = np.concatenate([edges, np.exp(rng.uniform(-95, 88, 20_000)), [0.0]])
    values = values[values < np.finfo(np.float32).max].astype(np.float32)
    scale = power_of_two_scale(torch.from_numpy(values), maximum, rule).numpy()
    np.testing.assert_array_equal(np.log2(scale.astype(np.float64)), rule_by_hand(values, maximum, rule))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["mxint8", "mxfp8", "mxint6", "mxfp6", "mxint4", "mxfp4"]))
@settings(max_examples=40, deadline=None)
def test_the_ceil_rule_never_saturates_and_wastes_less_than_a_bit(seed, name):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((8, 32)) * np.exp(rng.uniform(-60, 60))).astype(np.float32)
    q = quantize(x, name)
    scale = 2.0 ** (q.scales.numpy().astype(np.float64) - 127)
    fill = np.abs(x).max(1, keepdims=True) / (get_format(name).element.maximum * scale)
    assert ((fill > 0.5) & (fill <= 1)).all()


TORCHAO = {
    "mxfp8": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
    "mxfp6": "fp6_e2m3",
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}


@pytest.mark.parametrize("name", TORCHAO)
@pytest.mark.parametrize(("rule", "mode"), [("ocp", "FLOOR"), ("ceil", "RCEIL")])
def test_scales_and_values_are_torchao_s_where_it_defines_the_same(name, rule, mode):
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 64)[:, None]
    scale, data = mx.to_mx(x, TORCHAO[name], 32, getattr(ScaleCalculationMode, mode))
    q = quantize(x, name, scale_rule=rule)
    assert torch.equal(scale.view(torch.uint8), q.scales)
    theirs = mx.to_dtype(data, scale, TORCHAO[name], 32, torch.float32)
    assert torch.equal(theirs, fake_quant(x, name, scale_rule=rule))


def test_nvfp4_is_torchao_s_where_no_block_is_tiny_beside_the_largest():
    """torchao keeps E4M3 scales of blocks at or above 2^-6; below that the two differ, as ours goes to subnormals."""
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)) * torch.logspace(-0.5, 0.5, 64)[:, None]
    t = nv.per_tensor_amax_to_scale(x.abs().max())
    scales, data = nv.nvfp4_quantize(x, 16, t)
    q = quantize(x, "nvfp4")
    assert torch.equal(t, q.tensor_scale)
    assert torch.equal(scales.view(torch.uint8).flatten(), q.scales.flatten())
    assert torch.equal(data.view(torch.uint8).flatten(), pack(q.codes, 4))
