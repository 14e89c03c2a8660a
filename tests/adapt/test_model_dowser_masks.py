"""Masks of model-dowser: exactly so many entries, the lowest, one bit each on disk; baselines choose what they say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from assay._core.errors import InputError
from assay.adapt.model_dowser import (
    Mask,
    build_mask,
    dare_merge,
    full_mask,
    gradient_mask,
    graft,
    magnitude_mask,
    random_mask,
    wanda_mask,
)
from assay.adapt.model_dowser.masks import lowest, n_chosen


@given(st.integers(1, 60), st.integers(0, 1000), st.integers(0, 10_000))
def test_exactly_the_floor_of_rho_trains_and_none_of_it_scores_higher(n, thousandths, seed):
    scores = torch.randint(5, (1, n), generator=torch.Generator().manual_seed(seed)).float() + 1  # many ties
    chosen = build_mask({"w": scores}, thousandths / 1000).trainable["w"]
    assert int(chosen.sum()) == thousandths * n // 1000
    if chosen.any() and not chosen.all():
        assert scores[chosen].max() <= scores[~chosen].min()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_of_equals_the_first_are_chosen(values, data):
    k = data.draw(st.integers(0, len(values)))
    found = lowest(torch.tensor(values, dtype=torch.float32), k)
    expected = sorted(range(len(values)), key=lambda place: (values[place], place))[:k]
    assert found.nonzero().flatten().tolist() == sorted(expected)


def test_the_share_is_taken_as_it_is_written():
    assert [n_chosen(share, 100) for share in (0.29, 0.57, 0.1, 0.0, 1.0)] == [29, 57, 10, 0, 100]


def test_a_global_mask_takes_the_lowest_of_all_and_starves_a_layer():
    scores = {"low": torch.tensor([1.0, 2.0, 3.0, 4.0]), "high": torch.tensor([10.0, 20.0, 30.0, 40.0])}
    mask = build_mask(scores, 0.5, scope="global")
    assert mask.trainable["low"].all()
    assert not mask.trainable["high"].any()


def test_density_and_overlap_count_entries():
    first = Mask({"w": torch.tensor([True, True, False, False])})
    second = Mask({"w": torch.tensor([True, False, True, False])})
    assert (first.density(), first.overlap(second), first.overlap(first)) == (0.5, 0.5, 1.0)


def test_a_mask_comes_back_from_disk_at_one_bit_an_entry(tmp_path):
    mask = random_mask(nn.Linear(333, 777), 0.1)
    mask.save(tmp_path / "mask.safetensors")
    again = Mask.load(tmp_path / "mask.safetensors")
    assert torch.equal(again.trainable["weight"], mask.trainable["weight"])
    assert (tmp_path / "mask.safetensors").stat().st_size < 333 * 777 / 8 + 1000


@pytest.mark.parametrize("unused", ["freeze", "train"])
def test_a_matrix_that_no_probe_reached_is_reported_and_follows_the_policy(unused):
    scores = {"expert": torch.zeros(2, 5), "other": torch.arange(10.0).view(2, 5)}
    with pytest.warns(UserWarning, match=r"^1 of 2 matrices have only zero scores, such as expert: no probe reached"):
        mask = build_mask(scores, 0.2, unused=unused)
    assert mask.trainable["expert"].all() == (unused == "train")
    assert int(mask.trainable["other"].sum()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": 1.5}, r"^rho=1\.5: expected the share of weights that train, from 0 to 1$"),
        ({"rho": float("nan")}, r"^rho=nan: expected the share"),
        ({"scope": "row"}, r"^scope='row': expected 'layer' or 'global'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        build_mask({"w": torch.ones(2, 2)}, **options)


def test_no_scores_and_wild_scores_are_refused():
    with pytest.raises(InputError, match=r"^scores is empty"):
        build_mask({})
    with pytest.raises(InputError, match=r"^w has scores that are not finite; score the model again in float32$"):
        build_mask({"w": torch.tensor([[1.0, float("inf")]])})


def test_a_file_that_is_no_mask_is_refused(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("no")
    save_file({"w": torch.zeros(2)}, str(tmp_path / "other"))
    save_file({"w": torch.zeros(2, dtype=torch.uint8)}, str(tmp_path / "short"),
              metadata={"format": "assay model-dowser mask 1", "shape w": "64x64"})  # fmt: skip
    with pytest.raises(InputError, match=r"text cannot be read as safetensors"):
        Mask.load(tmp_path / "text")
    with pytest.raises(InputError, match=r"absent cannot be read as safetensors"):
        Mask.load(tmp_path / "absent")
    with pytest.raises(InputError, match=r"other is not a mask of model-dowser; expected a file that it wrote$"):
        Mask.load(tmp_path / "other")
    with pytest.raises(InputError, match=r"short, w: 2 bytes do not hold one bit for each of 4096 entries$"):
        Mask.load(tmp_path / "short")


# ---------------------------------------------------------------------------------------------------- baselines


def layer():
    made = nn.Linear(4, 1, bias=False)
    made.weight.data = torch.tensor([[0.1, -0.4, 0.3, -0.2]])
    return made


def chosen(mask):
    return mask.trainable["weight"].nonzero()[:, 1].tolist()


def test_the_magnitude_mask_trains_the_smallest_weights():
    assert chosen(magnitude_mask(layer(), 0.5)) == [0, 3]


def test_the_wanda_mask_weighs_by_the_norms_of_inputs():
    x = torch.tensor([[10.0, 0.1, 0.1, 3.0], [10.0, 0.1, 0.1, 4.0]])  # |W| ||h||: 1.4, 0.06, 0.04, 1
    assert chosen(wanda_mask(layer(), x, 0.5)) == [1, 2]


def test_a_random_mask_is_another_with_another_seed_and_the_same_with_the_same():
    big = nn.Linear(100, 100)
    first, again, other = (random_mask(big, 0.1, seed=seed) for seed in (1, 1, 2))
    assert first.overlap(again) == 1.0
    # 1,000 of 10,000 each: 100 +- 9 in common.
    assert 0.05 < first.overlap(other) < 0.15
    assert first.density() == 0.1


def test_the_full_mask_trains_everything_it_names():
    assert full_mask(layer()).density() == 1.0


def test_the_gradient_mask_trains_what_the_new_task_pulls_at_most():
    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer()

        def forward(self, x, labels):
            from types import SimpleNamespace

            return SimpleNamespace(loss=((self.layer(x) - labels) ** 2).sum())

    x = torch.tensor([[0.1, 5.0, 0.2, 3.0]])  # the gradient is 2 (error) x
    model = Task()
    mask = gradient_mask(model, [{"x": x, "labels": torch.zeros(1, 1)}], 0.5)
    assert mask.trainable["layer.weight"].nonzero()[:, 1].tolist() == [1, 3]
    assert model.layer.weight.grad is None
    with pytest.raises(InputError, match=r"^batches is empty; a gradient mask needs data of the new task$"):
        gradient_mask(model, [], 0.5)


def test_dare_keeps_the_mean_of_the_changes():
    base, tuned = {"w": torch.zeros(100_000)}, {"w": torch.ones(100_000)}
    merged = dare_merge(base, tuned, p=0.9)["w"]
    assert merged.unique().tolist() == [0.0, pytest.approx(10.0)]
    # The mean of n draws of 10 with probability 0.1 has a standard error of 3 / sqrt(n).
    assert float(merged.mean()) == pytest.approx(1.0, abs=4 * 3 / 100_000**0.5)


def test_grafting_keeps_the_largest_changes():
    merged = graft({"w": torch.ones(4)}, {"w": torch.tensor([1.1, 3.0, 0.0, 1.2])}, keep=0.5)
    assert merged["w"].tolist() == [1.0, 3.0, 0.0, 1.0]


def test_shares_of_merging_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"^p=1: expected the share of changes to drop"):
        dare_merge({}, {}, p=1)
    with pytest.raises(InputError, match=r"^keep=2: expected the share of changes to keep"):
        graft({}, {}, keep=2)
