"""psr's fits: closed forms, a known intervention found again, the objectives, and what is refused."""

import math

import numpy as np
import pytest
import torch
from psr_helpers import FAMILIES, pairs, text, tiny, tokenizer

from assay._core.errors import InputError
from assay.adapt.psr import PSR, ConstantSteering, DiffInMeans, ProjectionSteering
from assay.adapt.psr.activations import Activations, record
from assay.adapt.psr.objectives import liveness, mse, rank_one_bound, relative_rmse, response_surprise
from assay.adapt.psr.training import Trainable, fit_arrays, fit_through, mean_shift

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def states():
    """Real states of a random model at layer 1: 40 answers of 20 tokens."""
    model = tiny()
    psr = PSR(model, tokenizer(), layers=1)
    return record(psr.blocks, psr.examples(pairs(40, n_response=20)), [1])[1]


def oracle(states, seed=0):
    """The same states, moved by a known intervention that leaves about half of them untouched."""
    rng = torch.Generator().manual_seed(seed)
    w, z = torch.randn(2, states.base.shape[1], generator=rng) / states.base.std()
    b = -(states.base @ w).median()
    delta = torch.relu(states.base @ w + b)[:, None] * z
    known = Activations(states.base, states.base + delta, states.sequence, states.is_answer, states.alpha)
    return known, z


def error_of(data, strength, z):
    return relative_rmse(data.base + strength[:, None] * z, data.base, data.target)


def test_a_known_intervention_on_real_states_is_found_again(states):
    known, z_true = oracle(states)
    (w, b, z), _ = fit_arrays(known, n_steps=1000)
    assert error_of(known, torch.relu(known.base @ w + b), z) < 0.05
    assert torch.cosine_similarity(z, z_true, dim=0) > 0.99


def test_no_constant_vector_gets_below_its_closed_form_on_it(states):
    known, _ = oracle(states)
    delta = known.delta
    closed = math.sqrt(float(((delta - delta.mean(0)) ** 2).sum() / (delta**2).sum()))
    constant = error_of(known, torch.ones(len(delta)), mean_shift(known))
    assert constant == pytest.approx(closed, abs=1e-5)
    assert constant > 0.3


def test_training_a_constant_vector_reaches_its_closed_form():
    model = tiny()
    steering = ConstantSteering(model, tokenizer(), layers=2)  # the last layer: downstream is the layer itself
    train = pairs(4)
    data = record(steering.blocks, steering.examples(train), [2])[2]
    steering.fit(train, downstream=False)
    torch.testing.assert_close(steering.directions[0], data.delta.mean(0))
    closed = (data.delta - data.delta.mean(0)).pow(2).mean()
    started = steering.directions.detach().clone()
    steering.fit(train, epochs=20, learning_rate=1e-3)
    loss = (data.delta - steering.directions[0].detach()).pow(2).mean()
    assert float(loss / closed) == pytest.approx(1.0, abs=1e-4)
    assert not torch.equal(steering.directions.detach(), started)


def test_no_single_direction_beats_the_first_singular_vector(states):
    model = tiny()
    psr = PSR(model, tokenizer(), layers=1).fit(pairs(40, n_response=20), downstream=False)
    with torch.no_grad():
        found = error_of(states, psr.strength(0, states.base), psr.directions[0])
    singular = np.linalg.svd(states.delta.double().numpy(), compute_uv=False) ** 2
    bound = math.sqrt(1 - singular[0] / singular.sum())
    assert rank_one_bound(states.delta) == pytest.approx(bound, rel=1e-6)
    constant = error_of(states, torch.ones(len(states.base)), mean_shift(states))
    assert bound <= found < constant


def test_the_normalised_loss_starts_at_one(states):
    _, losses = fit_arrays(states, n_steps=1)
    assert losses[0] == pytest.approx(1.0, abs=1e-6)


def test_the_normalised_loss_through_the_model_starts_at_one_on_average():
    model = tiny()
    psr = PSR(model, tokenizer(), layers=1)
    examples = psr.examples(pairs(3))
    data = record(psr.blocks, examples, [1])
    _, losses = fit_through(
        model, psr.blocks, examples, data, is_gated=True, objective="mse", reg=0.0, normalize=True, n_epochs=1,
        learning_rate=1e-9, seed=0,
    )  # fmt: skip
    assert losses[0] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("sums", "expected"), [([0.3], 0.07), ([2.0], 0.0), ([0.3, 0.5], 0.12)], ids=["shut", "open", "sum"]
)
def test_the_penalty_is_c_times_what_is_missing_to_one_summed_over_layers(sums, expected):
    strengths = [torch.tensor([0.25 * total, 0.75 * total]) for total in sums]
    assert float(liveness(strengths, 0.1)) == pytest.approx(expected, abs=1e-7)


def test_the_mse_is_a_mean_over_positions_and_a_sum_over_layers():
    zero, one = torch.zeros(2, 4), torch.ones(2, 4)
    assert float(mse({1: one, 2: 3 * one}, {1: zero, 2: one})) == pytest.approx(1.0 + 4.0)


def test_the_likelihood_is_the_loss_of_transformers_with_the_prompt_masked():
    model = tiny()
    ids, n = torch.tensor([[5, 6, 7, 20, 21, 22]]), 3
    labels = ids.clone()
    labels[:, :n] = -100
    with torch.no_grad():
        out = model(input_ids=ids, labels=labels)
    assert float(response_surprise(out.logits[0], ids[0, n:])) == pytest.approx(float(out.loss), abs=1e-6)
    psr = PSR(model, tokenizer(), layers=1)
    pair = {"prompt": text(5, 6, 7), "steered_prompt": text(1, 5, 6, 7), "response": text(20, 21, 22)}
    assert psr.surprise([pair]) == pytest.approx(float(out.loss), abs=1e-5)


@pytest.mark.parametrize("objective", ["mse", "ll"])
def test_training_through_the_model_lowers_its_objective(objective):
    model, train = tiny(), pairs(4)
    constant = ConstantSteering(model, tokenizer(), layers=1).fit(train, downstream=False)
    psr = PSR(model, tokenizer(), layers=1).fit(train, objective, epochs=12, learning_rate=5e-3)
    if objective == "ll":
        assert psr.surprise(train) < min(constant.surprise(train), psr.surprise(train, alpha=0.0))
        return
    squares = [sum(e**2 for e in one.relative_rmse(train).values()) for one in (psr, constant)]
    assert squares[0] < squares[1]


def test_all_layers_mimic_the_last_state_more_closely_than_one():
    model, train = tiny(), pairs(12)
    one = PSR(model, tokenizer(), layers=1).fit(train, downstream=False).relative_rmse(train)[2]
    every = PSR(model, tokenizer(), layers="all").fit(train, downstream=False).relative_rmse(train)[2]
    assert every < one


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_is_fitted(family):
    model, train = tiny(family), pairs(4)
    psr = PSR(model, tokenizer(), layers=1)
    assert psr.fit(train, downstream=False).relative_rmse(train)[1] < 1
    before = psr.surprise(train)
    assert psr.fit(train, "ll", epochs=6, learning_rate=5e-3).surprise(train) < before


def test_a_list_of_one_layer_is_that_layer():
    model, train = tiny(), pairs(3)
    one = PSR(model, tokenizer(), layers=1).fit(train, epochs=2)
    other = PSR(model, tokenizer(), layers=[1]).fit(train, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_same_seed_gives_the_same_fit_and_another_a_different_one():
    model, train = tiny(), pairs(3)
    fits = [PSR(model, tokenizer(), layers=1).fit(train, epochs=2, seed=s).weights for s in (1, 1, 2)]
    assert torch.equal(fits[0], fits[1])
    assert not torch.equal(fits[0], fits[2])


def test_training_starts_at_the_best_constant_vector(states):
    state = Trainable(states, mean_shift(states), True)
    assert torch.equal(state.strength(states.base), torch.ones(len(states.base)))
    torch.testing.assert_close(state.z, states.delta.mean(0))


def test_where_held_out_answers_are_mimicked_worse_after_each_step_the_constant_vector_stays(states):
    """What the prompt adds has a mean and noise that no state tells."""
    noise = torch.randn(states.base.shape, generator=torch.Generator().manual_seed(0))
    told = Activations(states.base, states.base + 1 + 3 * noise, states.sequence, states.is_answer, states.alpha)
    (w, b, z), losses = fit_arrays(told, learning_rate=0.1)
    assert len(losses) < 20
    assert error_of(told, torch.relu(told.base @ w + b), z) == pytest.approx(
        error_of(told, torch.ones(len(told.base)), mean_shift(told)), rel=0.02
    )


def test_where_the_prompt_changes_nothing_nothing_is_learned_and_the_error_is_undefined(states):
    still = Activations(states.base, states.base, states.sequence, states.is_answer, states.alpha)
    (w, b, z), _ = fit_arrays(still)
    assert float((torch.relu(states.base @ w + b)[:, None] * z).abs().max()) < 1e-6
    assert math.isnan(relative_rmse(states.base, states.base, states.base))


def test_folding_the_units_back_changes_no_coefficient(states):
    state = Trainable(states, mean_shift(states), True)
    with torch.no_grad():
        state.v.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
        w, b, _ = state.folded()
        torch.testing.assert_close(torch.relu(states.base @ w + b), state.strength(states.base), atol=1e-4, rtol=1e-4)


def test_a_coordinate_that_never_changes_gets_no_weight(states):
    known, _ = oracle(states)
    still = torch.full((len(known.base), 1), 1000.3)
    wider = Activations(
        torch.cat([known.base, still], 1),
        torch.cat([known.target, still], 1),
        known.sequence,
        known.is_answer,
        known.alpha,
    )
    (w, _, z), _ = fit_arrays(wider)
    (w_known, _, _), _ = fit_arrays(known)
    assert float(w[-1]) == 0.0
    torch.testing.assert_close(w[:-1], w_known, atol=1e-3, rtol=1e-3)
    assert float(z[-1]) == pytest.approx(0.0, abs=1e-6)


def test_no_steering_has_a_relative_error_of_one_and_a_copy_of_zero():
    base, target = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert relative_rmse(base, base, target) == 1.0
    assert relative_rmse(target, base, target) == 0.0


def test_a_soft_label_scales_the_target_of_the_constant_vector():
    """The least of sum (alpha z - delta)^2 is at sum alpha delta / sum alpha^2."""
    one = torch.ones(2)
    data = Activations(
        torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]), one.long(), one.bool(), torch.tensor([0.5, 1.0])
    )
    assert float(mean_shift(data)) == pytest.approx((0.5 * 1 + 1 * 3) / (0.25 + 1))


def test_difference_in_means_is_steered_answers_less_plain_answers():
    model, words = tiny(), tokenizer()
    pair = {"prompt": text(5, 6), "steered_prompt": text(1, 5, 6), "response": text(20, 21), "plain_response": text(30)}
    made = DiffInMeans(model, words, layers=1).fit([pair])
    with torch.no_grad():
        shown = model(torch.tensor([[1, 5, 6, 20, 21]]), output_hidden_states=True).hidden_states[2][0, 3:].mean(0)
        usual = model(torch.tensor([[5, 6, 30]]), output_hidden_states=True).hidden_states[2][0, 2:].mean(0)
    torch.testing.assert_close(made.directions[0], shown - usual)


def test_projection_steering_brings_every_position_to_the_mean_projection(states):
    made = ProjectionSteering(tiny(), tokenizer(), layers=1).fit(pairs(40, n_response=20))
    unit = made.directions[0].detach()
    with torch.no_grad():
        moved = made.edits()[1](states.base)
    assert float(unit.norm()) == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(moved @ unit, ((states.target @ unit).mean()).expand(len(moved)), atol=1e-4, rtol=1e-4)


def test_states_that_are_not_finite_are_refused():
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(
        InputError, match=r"^pair 1: layer 1 gives NaN or infinity; load the model in float32 or bfloat16$"
    ):
        PSR(model, tokenizer(), layers=1).fit(pairs(2), downstream=False)


@pytest.mark.parametrize("objective", ["mse", "ll"])
def test_what_is_not_finite_above_the_steered_layer_is_refused_too(objective):
    model = tiny()
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    message = {
        "mse": r"^pair 1: layer 2 gives NaN or infinity; load",
        "ll": r"^pair \d: the loss is nan; load the model",
    }
    with pytest.raises(InputError, match=message[objective]):
        PSR(model, tokenizer(), layers=1).fit(pairs(2), objective, epochs=1)


BAD = {
    "no epochs": ({"epochs": 0}, r"^epochs=0: expected 1 or more$"),
    "no epochs on arrays": ({"epochs": 0, "downstream": False}, r"^epochs=0: expected 1 or more$"),
    "a rate of zero": ({"learning_rate": 0.0}, r"^30 steps at a learning rate of 0.0: expected 1 or more, above 0$"),
    "objective": ({"objective": "rmse"}, r"^objective='rmse': expected 'mse' or 'll'$"),
    "ll on arrays": (
        {"objective": "ll", "downstream": False},
        r"^objective='ll' with downstream=False: the likelihood",
    ),
    "a mixed package": (
        {"reg": 0.1, "normalize": False},
        r"^reg=0.1 with normalize=False: a penalty from 0, and above",
    ),
    "negative": ({"reg": -1.0}, r"^reg=-1.0 with normalize=True: a penalty from 0"),
    "arrays unnormalised": (
        {"downstream": False, "normalize": False},
        r"^normalize=False with downstream=False: the fit",
    ),
    "no rate": (
        {"learning_rate": -1.0, "downstream": False},
        r"^300 steps at a learning rate of -1.0: expected 1 or more",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        PSR(tiny(), tokenizer(), layers=1).fit(pairs(2), **options)


def test_a_span_of_another_name_is_refused():
    with pytest.raises(InputError, match=r"^span='all': expected one of answer_only, question_and_answer$"):
        PSR(tiny(), tokenizer(), span="all")
