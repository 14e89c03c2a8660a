"""mxint on tensors: the card's numbers, the symmetries a format must have, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.compress.mxint import (
    FORMATS,
    PAPER_FORMATS,
    crest_factor,
    dequantize,
    fake_quant,
    get_format,
    hadamard,
    qsnr,
    quantize,
    top_k_kl,
)
from assay.compress.mxint.packing import pack, unpack

pytestmark = pytest.mark.usefixtures("one_thread")


EIGHTHS = np.arange(1, 33) / 8
TWO_BLOCKS = np.array(
    [0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8, 0.9, -1, 1.1, -1.2, 1.3, -1.4, 1.5, -6]
    + [k / 100 for k in range(1, 17)]
)
MX = [name for name in PAPER_FORMATS if name.startswith("mx")]
N = 2**18  # the error of a normal sample of this size varies by 0.03 dB, the card's tolerance is 0.1


def signed(q):
    codes = q.codes.numpy().astype(int)
    half = 2 ** (q.fmt.element.bits - 1)
    return np.where(codes >= half, codes - 2 * half, codes)


def normal(n=N, seed=0):
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def error(x, fmt, **options):
    return qsnr(x, fake_quant(x, fmt, **options))


# ------------------------------------------------------------------------------------------------ closed examples


def test_mxint8_is_lossless_on_eighths():
    q = quantize(EIGHTHS, "mxint8")
    assert q.scales.item() - 127 == -4
    np.testing.assert_array_equal(dequantize(q), EIGHTHS)


def test_mxint4_codes_of_the_eighths():
    q = quantize(EIGHTHS, "mxint4")
    assert q.scales.item() == 127
    assert signed(q)[0].tolist() == [0] * 4 + [1] * 7 + [2] * 9 + [3] * 7 + [4] * 5


@pytest.mark.parametrize(
    ("fmt", "exponent", "expected"),
    [("mxint4", 0, 18.129), ("mxfp4", 0, 20.092), ("mxfp8", -6, 31.553), ("mxfp6", 0, 31.553)],
)
def test_error_of_the_eighths(fmt, exponent, expected):
    assert quantize(EIGHTHS, fmt).scales.item() - 127 == exponent
    assert error(EIGHTHS, fmt) == pytest.approx(expected, abs=5e-4)


def test_mxfp4_ties_of_the_eighths_go_to_even():
    found = fake_quant(EIGHTHS, "mxfp4")
    assert (found[1], found[19]) == (0.0, 2.0)  # 0.25 and 2.5


def test_mxfp8_and_mxfp6_have_the_same_grid_on_the_eighths():
    np.testing.assert_array_equal(fake_quant(EIGHTHS, "mxfp8"), fake_quant(EIGHTHS, "mxfp6"))


def test_nvfp4_scales_of_the_two_blocks():
    q = quantize(TWO_BLOCKS, "nvfp4")
    scales = FORMATS["mxfp8"].element.values()[q.scales.numpy()[0]]
    assert float(q.tensor_scale) == pytest.approx(1 / 448)
    assert scales.tolist() == [448, 12]
    assert error(TWO_BLOCKS, "nvfp4") == pytest.approx(22.0674, abs=5e-5)


def test_nvint4_steps_of_the_two_blocks():
    q = quantize(TWO_BLOCKS, "nvint4")
    steps = FORMATS["mxfp8"].element.values()[q.scales.numpy()[0]] * float(q.tensor_scale)
    assert steps == pytest.approx([6 / 7, 0.0229592], abs=5e-8)
    assert error(TWO_BLOCKS, "nvint4") == pytest.approx(16.7022, abs=5e-5)


# ------------------------------------------------------------------------------------------------ the card's table

NORMAL = dict(zip(PAPER_FORMATS, (41.61, 31.53, 29.42, 30.96, 16.85, 18.76, 21.28, 20.44), strict=True))
STUDENT = dict(zip(PAPER_FORMATS, (37.7, 31.6, 25.8, 29.1, 13.8, 16.5, 18.9, 20.9), strict=True))
OUTLIERS = dict(zip(PAPER_FORMATS, (35.07, 31.60, 22.86, 26.99, 13.96, 14.92, 18.48, 20.92), strict=True))
ROTATED = dict(zip(PAPER_FORMATS, (45.7, 31.5, 33.4, 31.5, 20.6, 19.6, 25.0, 18.8), strict=True))


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_error_on_normal_data(fmt):
    assert error(normal(), fmt) == pytest.approx(NORMAL[fmt], abs=0.1)


@pytest.fixture(scope="module")
def students():
    return [np.random.default_rng(seed).standard_t(3, N).astype(np.float32) for seed in range(4)]


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_error_on_student_t(fmt, students):
    # With 3 degrees of freedom the fourth moment is infinite: the error of one sample of 2^20 still varies by 0.1 dB
    # from seed to seed, so the card's figure (of one sample) is met within what the spread of four samples allows.
    errors = np.array([error(x, fmt) for x in students])
    assert STUDENT[fmt] == pytest.approx(errors.mean(), abs=0.1 + 3 * errors.std(ddof=1))


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_error_with_an_outlier_channel_plain_and_rotated(fmt):
    x = normal().reshape(-1, 64)
    x[:, 17] *= 20
    assert error(x, fmt) == pytest.approx(OUTLIERS[fmt], abs=0.1)
    assert error(x, fmt, rotate="hadamard") == pytest.approx(ROTATED[fmt], abs=0.1)


@pytest.mark.parametrize(("fmt", "rule", "expected"), [("mxfp8", "ocp", 30.64), ("mxfp4", "ocp", 18.79)])
def test_the_ocp_rule_gives_other_numbers(fmt, rule, expected):
    assert error(normal(), fmt, scale_rule=rule) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("fmt", ["mxfp8-e5m2", "mxfp6-e3m2"])
def test_two_mantissa_bits_give_the_same_error_in_8_and_6_bits(fmt):
    assert error(normal(), fmt) == pytest.approx(25.54, abs=0.1)


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [
        ("int8", (46.56, 45.43, 43.78, 41.23)),
        ("int4", (21.39, 20.27, 18.60, 16.05)),
        ("fp8", (33.04, 32.41, 31.80, 31.54)),
        ("fp4", (20.53, 19.90, 19.26, 18.50)),
    ],
)
def test_finer_blocks_help_integers_more(fmt, expected):
    found = [error(normal(), get_format(fmt, block=block)) for block in (16, 32, 128, 4096)]
    assert found == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("block", "share"), [(16, 0.068), (32, 0.076), (128, 0.17)])
def test_bf16_scales_reach_the_extra_negative_code_and_fp32_scales_do_not(block, share):
    x = torch.from_numpy(normal()).bfloat16()

    def reached(fmt, clip):
        return (quantize(x, get_format(fmt, block=block), clip=clip).codes.view(-1, block) == 128).any(-1)

    assert float(reached("int8-bf16", "asym").float().mean()) == pytest.approx(share, abs=0.01)
    assert not reached("int8", "asym").any()
    assert not reached("int8-bf16", "sym").any()


# ------------------------------------------------------------------------------------------------ symmetries

numbers = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).standard_t(3, (4, 64)))


@given(numbers, st.integers(-40, 40), st.sampled_from(MX), st.sampled_from(["ceil", "floor", "round", "ocp"]))
@settings(max_examples=40, deadline=None)
def test_powers_of_two_pass_through_mx(x, power, fmt, rule):
    scaled = fake_quant(x * 2.0**power, fmt, scale_rule=rule)
    np.testing.assert_array_equal(scaled, fake_quant(x, fmt, scale_rule=rule) * 2.0**power)


@given(numbers, st.sampled_from(PAPER_FORMATS))
@settings(max_examples=40, deadline=None)
def test_symmetric_clipping_treats_both_signs_alike(x, fmt):
    np.testing.assert_array_equal(fake_quant(-x, fmt), -fake_quant(x, fmt))


@given(numbers, st.sampled_from(MX))
@settings(max_examples=40, deadline=None)
def test_quantising_twice_changes_nothing(x, fmt):
    once = fake_quant(x, fmt)
    np.testing.assert_array_equal(fake_quant(once, fmt), once)


@given(numbers, st.floats(1e-6, 1e6), st.sampled_from(["nvint4", "nvfp4"]))
@settings(max_examples=40, deadline=None)
def test_nv_error_does_not_depend_on_the_scale_of_the_tensor(x, factor, fmt):
    # To fp32 rounding: single values may fall to the other side of a midpoint.
    assert error(x * factor, fmt) == pytest.approx(error(x, fmt), abs=0.05)


@given(numbers, st.sampled_from(sorted(FORMATS)))
@settings(max_examples=40, deadline=None)
def test_fake_quant_is_quantize_and_dequantize(x, fmt):
    np.testing.assert_array_equal(fake_quant(x, fmt), quantize(x, fmt).dequantize())


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_zeros_stay_zeros(fmt):
    q = quantize(np.zeros(32), fmt)
    assert not q.scales.any()
    assert not dequantize(q).any()


def test_an_all_zero_block_does_not_disturb_its_neighbour():
    x = np.concatenate([np.zeros(16), TWO_BLOCKS[:16]])
    np.testing.assert_array_equal(fake_quant(x, "nvfp4")[16:], fake_quant(TWO_BLOCKS[:16], "nvfp4"))


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_padding_changes_nothing_and_the_shape_is_kept(fmt):
    x = normal(3 * 50).reshape(3, 50)
    padded = np.pad(x, ((0, 0), (0, 14)))
    found = fake_quant(x, fmt)
    assert found.shape == (3, 50)
    np.testing.assert_array_equal(found, fake_quant(padded, fmt)[:, :50])


def test_blocks_run_along_the_axis_that_is_asked_for():
    x = normal(64 * 6).reshape(2, 64, 3)
    moved = np.moveaxis(fake_quant(np.moveaxis(x, 1, -1), "mxint4"), -1, 1)
    np.testing.assert_array_equal(fake_quant(x, "mxint4", axis=1), moved)


def test_bf16_input_is_computed_in_float32():
    x = torch.from_numpy(normal(4096)).bfloat16()
    found = fake_quant(x, "mxint8")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, fake_quant(x.float(), "mxint8").bfloat16())


def test_more_than_one_chunk_is_the_same_as_row_by_row():
    x = torch.from_numpy(normal(5 * 100_000).reshape(5, 100_000)).float()
    rows = torch.stack([fake_quant(row, "mxfp4") for row in x])
    assert torch.equal(fake_quant(x, "mxfp4"), rows)


def test_the_gradient_passes_straight_through():
    x = torch.randn(4, 32, requires_grad=True)
    weight = torch.randn(4, 32)
    (fake_quant(x, "mxint4") * weight).sum().backward()
    assert torch.equal(x.grad, weight)


# ------------------------------------------------------------------------------------------------ rotation, packing


@pytest.mark.parametrize("size", [16, 32])
def test_the_rotation_is_orthogonal(size):
    rotation = hadamard(size, seed=3)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-6)


def test_rotation_leaves_the_error_of_normal_data_as_it_is():
    # 2^15 blocks, whose errors vary by 0.6 of their mean: 0.02 dB between two such samples; five of that.
    x = normal(2**20)
    assert error(x, "mxint8", rotate="hadamard") == pytest.approx(error(x, "mxint8"), abs=0.1)


def test_a_rotated_tensor_turns_back():
    x = normal(1000).reshape(10, 100)
    np.testing.assert_allclose(quantize(x, "mxint8", rotate="hadamard").dequantize(), x, atol=0.05)


@given(st.integers(0, 2**32 - 1), st.integers(0, 50), st.sampled_from([4, 6, 8]))
@settings(max_examples=60, deadline=None)
def test_packing_loses_nothing_and_fills_whole_bytes(seed, n, bits):
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**bits, n).astype(np.uint8))
    packed = pack(codes, bits)
    assert packed.numel() == -(-n * bits // 8)
    assert torch.equal(unpack(packed, bits, n), codes)


def test_four_codes_of_six_bits_fill_three_bytes_from_the_low_end():
    codes = [0b000001, 0b000011, 0b001111, 0b111111]
    number = sum(code << (6 * place) for place, code in enumerate(codes))
    assert bytes(pack(torch.tensor(codes, dtype=torch.uint8), 6).tolist()) == number.to_bytes(3, "little")


@pytest.mark.parametrize("fmt", PAPER_FORMATS)
def test_bytes_are_the_stated_bits(fmt):
    q = quantize(np.ones((8, 64)), fmt)
    extra = 4 if fmt.startswith("nv") else 0
    assert q.nbytes == 8 * 64 * get_format(fmt).bits_per_element / 8 + extra


# ------------------------------------------------------------------------------------------------ metrics


def test_crest_factor_is_one_for_equal_magnitudes_and_root_g_for_a_single_one():
    one_hot = np.zeros(32)
    one_hot[5] = -3.0
    assert crest_factor(np.concatenate([np.full(32, -2.0), one_hot])).tolist() == pytest.approx([1, 32**0.5])


def test_a_last_block_that_is_not_full_counts_with_the_values_it_has():
    assert crest_factor(np.array([[1.0, -1.0, 2.0], [0.0, 0.0, 0.0]]), block=2).tolist() == [1.0, 1.0]


def test_crest_factors_of_tiny_values_do_not_vanish():
    assert crest_factor(np.full(32, 1e-30)).tolist() == pytest.approx([1.0])


def test_kl_of_the_top_tokens_by_hand():
    reference, other = torch.tensor([0.0, 0.0, -9.0]), torch.tensor([np.log(3.0), 0.0, 50.0])
    # Renormalised over the first two: (1/2, 1/2) against (3/4, 1/4).
    assert float(top_k_kl(reference, other, k=2)) == pytest.approx(0.5 * np.log(4 / 3), abs=1e-7)


# ------------------------------------------------------------------------------------------------ bad input


def test_an_unknown_format_is_told_the_names():
    with pytest.raises(InputError, match=r"^format 'mxint9' is not one of mxint8, .*; did you mean 'mxint8'\?$"):
        quantize(np.ones(32), "mxint9")


def test_strict_refuses_an_axis_that_does_not_fit():
    with pytest.raises(InputError, match=r"^axis 1 has 50 values, which is not a multiple of the 32 of a block of mxi"):
        fake_quant(np.ones((2, 50)), "mxint8", strict=True)


@pytest.mark.parametrize("x", [np.ones(32, int), np.ones(32, bool), torch.ones(32, dtype=torch.int8)])
def test_whole_numbers_are_a_type_error(x):
    with pytest.raises(TypeError, match=r"^x has dtype .*; expected floating-point values: convert them first$"):
        fake_quant(x)


def test_nan_and_infinity_are_counted_and_placed():
    x = np.ones((2, 32))
    x[0, 7], x[1, 1] = np.nan, -np.inf
    with pytest.raises(InputError, match=r"^x holds 2 values that are NaN or infinite, the first at flat index 7 "):
        fake_quant(x)


@pytest.mark.parametrize("fmt", ["mxint8", "mxfp4", "nvint4", "nvfp4", "int8-bf16"])
def test_on_request_only_the_block_with_nan_becomes_nan(fmt):
    x = np.ones((2, 32))
    x[0, 7] = np.nan
    found = fake_quant(x, fmt, nonfinite="propagate")
    size = get_format(fmt).block
    assert np.isnan(found[0, :size]).all()
    assert np.isfinite(found).sum() == 64 - size
    np.testing.assert_array_equal(quantize(x, fmt, nonfinite="propagate").dequantize(), found)


def test_a_block_that_cannot_be_rotated_is_refused():
    with pytest.raises(
        InputError, match=r"^rotate='hadamard' needs blocks of a power of two, such as 16 or 32, not 24"
    ):
        fake_quant(np.ones(48), get_format("mxint8", block=24), rotate="hadamard")


def test_an_axis_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"^axis=2 is out of range for a tensor of shape \(3, 32\)$"):
        quantize(np.ones((3, 32)), axis=2)


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("scale_rule", "up", "ceil, floor, round, ocp"), ("clip", "both", "sym, asym"), ("nonfinite", "x", "raise, prop")],
)
def test_an_unknown_option_is_told_what_there_is(option, value, known):
    with pytest.raises(InputError, match=rf"^{option}='{value}' is not one of {known}"):
        fake_quant(np.ones(32), **{option: value})


def test_tiny_fp16_values_are_kept_by_the_wide_scale():
    x = torch.full((32,), 2.0**-24, dtype=torch.float16)
    assert torch.equal(fake_quant(x, "mxint8"), x)


def test_what_float32_cannot_hold_is_refused():
    x = np.ones(64)
    x[3] = 1e39
    with pytest.raises(InputError, match=r"^x holds 1 values that are beyond the range of float32, the first at flat"):
        quantize(x)


def test_rounding_up_does_not_leave_float16():
    x = torch.full((32,), 65504.0, dtype=torch.float16)
    for fmt in ("mxfp4", "mxint4", "mxint8"):
        assert torch.isfinite(fake_quant(x, fmt)).all()
        assert torch.isfinite(quantize(x, fmt).dequantize()).all()


def test_arrays_in_the_other_byte_order_are_read():
    x = np.arange(1, 33, dtype=np.float32) / 8
    assert np.array_equal(quantize(x.astype(">f4")).dequantize(), x)


def test_an_axis_without_values_is_refused():
    with pytest.raises(InputError, match=r"^axis=-1 of a tensor of shape \(3, 0\) has no values$"):
        quantize(np.zeros((3, 0)))
