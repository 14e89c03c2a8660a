"""The dual attack and its baselines: they keep the budget, leave the model alone and do what they are asked to."""

import copy
import dataclasses
import re
import warnings

import numpy as np
import pytest
import torch
from tsef_helpers import bumps, classifier

from assay._core.errors import InputError
from assay.audit.tsef import PGD, TSEF, GradientxInput, IntegratedGradients, MaskExplainer, RandomNoise, Saliency
from assay.audit.tsef.objective import Keeper, Loss

FEW = {"iters": 3, "k1": 3, "k2": 6}


@pytest.fixture(scope="module")
def model():
    return classifier()


@pytest.fixture(scope="module")
def explainer(model):
    return IntegratedGradients(model, steps=4)


@pytest.fixture(scope="module")
def result(model, explainer):
    X, y = bumps(12)
    return TSEF(model, explainer, eps=0.25, **FEW)(X, y)


class TinyMask(torch.nn.Module):
    """A mask explainer as those that are trained: a map in [0, 1] of every cell."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x):
        return torch.sigmoid(self.layer(x))


def attacks(model, explainer, **options):
    joint = PGD(model, explainer, lambda_exp=1.0, steps=12, **options)
    return [
        TSEF(model, explainer, **FEW, **options),
        PGD(model, explainer, steps=12, **options),
        joint,
        RandomNoise(model, explainer, **options),
    ]


# ------------------------------------------------------------------------------------------------- budget and state


@pytest.mark.parametrize("number", range(4), ids=["tsef", "pgd", "pgd_joint", "random"])
@pytest.mark.parametrize("eps", [0.02, 0.3])
def test_no_attack_leaves_the_budget_or_the_range_of_a_channel(model, explainer, number, eps):
    X, y = bumps(8)
    found = attacks(model, explainer, eps=eps)[number](X * 100 + 7, y, target=None)
    change = np.abs(found.x_adv.astype(np.float64) - found.x.astype(np.float64))
    assert (change <= found.eps).all()
    assert (found.x_adv >= found.x.min(axis=2, keepdims=True)).all()
    assert (found.x_adv <= found.x.max(axis=2, keepdims=True)).all()
    assert np.nanmax(found.linf) <= 1


def test_the_model_is_left_as_it_was(explainer):
    model = torch.nn.Sequential(classifier(), torch.nn.BatchNorm1d(2))
    model.train()
    model[0].eval()
    model[0][1].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    X, y = bumps(6)
    for attack in attacks(model, IntegratedGradients(model, steps=2)):
        attack(X, y)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [part.training for part in model.modules()] == [True, False, False, False, False, False, True]
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True, True, True, True]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_same_seed_gives_the_same_series_and_another_seed_others(model, explainer, result):
    X, y = bumps(12)
    again = TSEF(model, explainer, eps=0.25, **FEW)(X, y)
    other = TSEF(model, explainer, eps=0.25, seed=1, **FEW)(X, y)
    assert np.array_equal(result.x_adv, again.x_adv)
    assert not np.array_equal(result.x_adv, other.x_adv)


def test_a_series_alone_is_attacked_as_within_a_batch():
    """In float64, where sums of another order differ by less than the sign of any gradient here can see."""
    model = classifier(dtype=torch.float64)
    attack = TSEF(model, IntegratedGradients(model, steps=4), eps=0.25, **FEW)
    X, y = bumps(6, dtype=torch.float64)
    together = attack(X, y)
    for row in (0, 3):
        alone = attack(X[row : row + 1], y[row : row + 1])
        np.testing.assert_allclose(alone.x_adv[0], together.x_adv[row], atol=1e-9)
        assert alone.target[0] == together.target[row]


def test_batches_change_nothing():
    model = classifier(dtype=torch.float64)
    X, y = bumps(7, dtype=torch.float64)
    explainer = IntegratedGradients(model, steps=4)
    whole, by_three = (TSEF(model, explainer, eps=0.25, batch_size=size, **FEW)(X, y) for size in (64, 3))
    np.testing.assert_allclose(whole.x_adv, by_three.x_adv, atol=1e-9)
    np.testing.assert_allclose(whole.history, by_three.history, atol=1e-6)


# -------------------------------------------------------------------------------------------- what an attack reaches


def test_the_label_alone_can_be_reached_and_its_cross_entropy_falls(model, explainer):
    X, y = bumps(12)
    found = TSEF(model, explainer, eps=0.3, lambda_exp=0.0, beta=0.0, gamma=0.0, keep="last", iters=6, k1=3, k2=8)(X, y)
    assert found.history[-1].cross_entropy < found.history[0].cross_entropy
    clean = torch.nn.functional.cross_entropy(model(X), torch.from_numpy(found.target)).item()
    assert found.history[-1].cross_entropy < clean / 2


def test_without_the_label_the_class_stays_and_so_does_the_explanation(model, explainer):
    X, y = bumps(12)
    found = TSEF(model, explainer, eps=0.1, lambda_cls=0.0, **FEW)(X, y)
    assert found.success_rate == 0
    assert np.nanmean(found.auprc) > 0.9


def test_gradient_steps_on_the_label_flip_more_than_noise(model, explainer):
    X, y = bumps(12)
    noise = RandomNoise(model, explainer, eps=0.3)(X, y)
    steps = PGD(model, explainer, eps=0.3, steps=30)(X, y)
    assert noise.success_rate < 0.2 < 0.8 < steps.success_rate


def test_joint_steps_keep_the_explanation_nearer_than_steps_on_the_label(model, explainer):
    X, y = bumps(12)
    label = PGD(model, explainer, eps=0.3, steps=30, keep="last")(X, y)
    joint = PGD(model, explainer, eps=0.3, steps=30, lambda_exp=1.0, keep="last")(X, y)
    assert np.nanmean(joint.auprc) > np.nanmean(label.auprc)


def test_the_best_of_the_iterates_is_at_least_as_near_as_the_last(model, explainer):
    X, y = bumps(12)
    best, last = (TSEF(model, explainer, eps=0.3, keep=keep, **FEW)(X, y) for keep in ("best", "last"))
    assert (best.success >= last.success).all()
    distance = [((one.saliency_adv - one.reference) ** 2).mean(axis=(1, 2)) for one in (best, last)]
    both = last.success
    assert (distance[0][both] <= distance[1][both] + 1e-6).all()


def test_the_best_iterate_is_the_nearest_of_those_that_reach_the_target():
    keeper = Keeper(torch.zeros(3, 1, 1), "best")
    rounds = [  # distance and whether the target is reached, of three series
        ([0.1, 0.5, 0.9], [False, True, False]),
        ([0.8, 0.7, 0.2], [True, True, False]),
        ([0.3, 0.4, 0.4], [False, True, False]),
    ]
    for number, (distance, reached) in enumerate(rounds, start=1):
        loss = Loss(torch.tensor(distance), torch.zeros(3), torch.tensor(reached))
        keeper.offer(torch.full((3, 1, 1), float(number)), loss, torch.arange(3))
    assert keeper.x.flatten().tolist() == [2.0, 3.0, 3.0]


def test_a_series_that_is_done_is_left_when_stopping_early(model, explainer):
    X, y = bumps(8)
    calls = []

    def counted(x):
        calls.append(len(x))
        return model(x)

    patient = TSEF(counted, explainer, eps=0.4, iters=6, k1=2, k2=6, lambda_cls=0.3)
    whole = patient(X, y)
    n_whole = sum(calls)
    calls.clear()
    patient.early_stop = True
    early = patient(X, y)
    assert sum(calls) < n_whole
    assert early.success_rate == whole.success_rate
    assert (early.auprc[early.apart] >= 0.9).all()


def test_an_explanation_of_the_target_class_is_another_question(model, explainer):
    X, y = bumps(8)
    own = RandomNoise(model, explainer, eps=0.1)(X, y)
    target = RandomNoise(model, explainer, eps=0.1, explain="target")(X, y)
    assert np.array_equal(own.saliency, target.saliency)
    assert np.nanmean(target.auprc) < np.nanmean(own.auprc)
    assert "own class" in own.summary()
    assert "target class has to stay" in target.summary()


def test_a_mask_explainer_is_attacked_by_its_cross_entropy(model):
    X, y = bumps(8)
    found = TSEF(model, MaskExplainer(TinyMask()), eps=0.3, lambda_cls=0.3, **FEW)(X, y)
    assert found.explainer == "MaskExplainer(TinyMask)"
    np.testing.assert_allclose(found.auprc_clean, 1.0)


def test_a_function_of_torch_operations_is_an_explainer(model):
    X, y = bumps(8)
    found = TSEF(model, lambda x, target: x**2, eps=0.2, **FEW)(X, y)
    assert np.isfinite(found.auprc).all()


def test_time_before_channels_is_the_same_attack():
    X, y = bumps(6)
    model = classifier()
    turned = torch.nn.Sequential(TimeFirst(), model)
    options = {"eps": 0.25, **FEW}
    one = TSEF(model, IntegratedGradients(model, steps=4), **options)(X, y)
    other = TSEF(turned, IntegratedGradients(turned, steps=4), layout="BTD", **options)(X.transpose(1, 2), y)
    np.testing.assert_allclose(one.x_adv, other.x_adv.transpose(0, 2, 1), atol=1e-5)
    assert other.reference.shape == (6, 16, 2)


def test_a_scripted_model_is_attacked_as_the_model_itself():
    """Over enough passes for the compiler of TorchScript to replace its code, second derivatives included."""
    model = classifier(dtype=torch.float64)
    X, y = bumps(4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(model)
    found = [TSEF(one, IntegratedGradients(one, steps=4), eps=0.25, **FEW)(X, y) for one in (model, scripted)]
    np.testing.assert_allclose(found[0].x_adv, found[1].x_adv, atol=1e-9)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.readout = torch.nn.LSTM(2, 6, batch_first=True), torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.readout(self.lstm(x)[0].mean(dim=1))


def test_a_recurrent_model_that_takes_time_first_is_attacked():
    X, _ = bumps(4)
    model = Recurrent()
    found = TSEF(model, IntegratedGradients(model, steps=2), layout="BTD", **FEW)(X.transpose(1, 2))
    assert found.attacked.any()
    assert not np.array_equal(found.x, found.x_adv)


class TimeFirst(torch.nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


# -------------------------------------------------------------------------------------------------------- the result


def test_wrongly_classified_series_are_skipped_and_counted(model, explainer):
    X, y = bumps(8)
    y = y.clone()
    y[:3] = 1 - y[:3]
    with pytest.warns(UserWarning, match=r"^3 of 8 series are classified wrongly already and are skipped$"):
        found = RandomNoise(model, explainer)(X, y)
    assert found.attacked.tolist() == [False] * 3 + [True] * 5
    assert np.array_equal(found.x_adv[:3], found.x[:3])
    assert np.isnan(found.auprc[:3]).all()


def test_a_constant_channel_has_no_budget_and_is_left_alone(model, explainer):
    X, y = bumps(6)
    X[2, 1] = 0.5
    with pytest.warns(UserWarning, match=r"^1 channels of series are constant, have no budget and are left alone$"):
        found = attacks(model, explainer, eps=0.3)[0](X, y)
    assert np.array_equal(found.x_adv[2, 1], found.x[2, 1])
    assert not np.array_equal(found.x_adv[2, 0], found.x[2, 0])


def test_without_labels_the_models_own_classes_are_attacked(model, explainer):
    X, _ = bumps(6)
    found = RandomNoise(model, explainer)(X)
    assert found.attacked.all()
    assert np.array_equal(found.y, found.predicted)


def test_the_reference_is_of_the_clean_explanation_and_agrees_with_it_wholly(result):
    np.testing.assert_allclose(result.auprc_clean, 1.0)
    assert (result.auprc < 1).any()


def test_a_given_reference_is_what_explanations_are_compared_with(model, explainer):
    X, y = bumps(4)
    reference = np.zeros(X.shape, int)
    reference[:, 1, :3] = 1
    found = RandomNoise(model, explainer)(X, y, reference=reference)
    assert np.array_equal(found.reference, reference)
    assert (found.auprc_clean < 0.9).all()


def test_a_summary_says_how_often_with_an_interval(result):
    n, k = result.n_attacked, int(result.apart.sum())
    line = next(line for line in result.summary().splitlines() if "explanation stayed" in line)
    assert re.search(rf"{k / n:.3f}  \[0?\.?[01]?.*\]", line)


def test_a_frame_has_a_row_a_series(result):
    frame = result.to_frame()
    assert len(frame) == 12
    assert frame["success"].tolist() == result.success.tolist()


def test_a_result_can_be_drawn(result):
    from matplotlib import pyplot as plt

    ax = result.plot()
    assert ax.get_xlabel() == "time step"
    plt.close(ax.figure)


def test_a_result_cannot_be_changed(result):
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.attack = "other"


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda X, y: {"target": y}, r"^target, series 0: class 0 is the series' own; an attack needs another one$"),
        (lambda X, y: {"target": 5}, r"^target holds 5; the model has the classes 0 to 1$"),
        (lambda X, y: {"y": y[:3]}, r"^y has shape \(3,\); expected \(4,\), a class for each series$"),
        (lambda X, y: {"y": y.float()}, r"^y holds values of type float32; expected the class numbers 0 to 1$"),
        (lambda X, y: {"X": X[:, 0]}, r"^X has shape \(4, 16\); expected \(series, channels, length\)"),
        (
            lambda X, y: {"X": [np.zeros((2, 16)), np.zeros((2, 9))], "y": y[:2]},
            r"^X: the series have different lengths; pad them to one length and let the classifier mask the padding$",
        ),
        (lambda X, y: {"X": X.index_fill(2, torch.tensor(3), torch.nan)}, r"^X, series 0, channel 0, time 3: .* nan"),
        (lambda X, y: {"reference": np.ones((4, 2, 9))}, r"^reference has shape \(4, 2, 9\); expected .*\(4, 2, 16\)"),
        (lambda X, y: {"reference": np.zeros((4, 2, 16))}, r"^reference, series 0: no cell is marked"),
        (lambda X, y: {"reference": np.full((4, 2, 16), 0.5)}, r"^reference holds values other than 0 and 1"),
        (lambda X, y: {"rho": 0.0}, r"^rho=0.0: expected a share"),
        (lambda X, y: {"y": 1 - y}, r"^none of the 4 series can be attacked: 4 of 4 series are classified wrongly"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_sentence(model, explainer, give, message):
    X, y = bumps(4)
    with pytest.raises(InputError, match=message):
        TSEF(model, explainer, **FEW)(**{"X": X, "y": y, **give(X, y)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, r"^eps=0.0: expected a budget above 0"),
        ({"layout": "TBD"}, r"^layout 'TBD' is not one of BDT, BTD$"),
        ({"explain": "both"}, r"^explain 'both' is not one of label, target$"),
        ({"keep": "first"}, r"^keep 'first' is not one of best, last$"),
        ({"k1": 0}, r"^k1=0: expected at least 1$"),
        ({"ratio": 1.0}, r"^ratio=1.0: expected a share between 0 and 1$"),
    ],
)
def test_a_bad_option_gets_a_sentence(model, explainer, options, message):
    X, y = bumps(4)
    with pytest.raises(InputError, match=message):
        TSEF(model, explainer, **options)(X, y)


def test_an_explainer_that_passes_no_gradient_is_named(model):
    X, y = bumps(4)

    def occlusion(x, target):
        return torch.from_numpy(np.abs(x.detach().numpy()))

    with pytest.raises(InputError, match=r"^explainer occlusion passes no gradient to the series"):
        TSEF(model, occlusion, **FEW)(X, y)


def test_noise_and_steps_on_the_label_need_no_gradient_of_the_explainer(model):
    X, y = bumps(4)

    def opaque(x, target):
        return x.detach().abs()

    assert np.isfinite(PGD(model, opaque, steps=3)(X, y).auprc).all()


@pytest.mark.parametrize("kind", [Saliency, GradientxInput, IntegratedGradients])
def test_a_piecewise_linear_network_is_warned_of(kind):
    X, y = bumps(4)
    model = classifier(activation=torch.nn.ReLU)
    attack = PGD(model, kind(model), lambda_exp=1.0, steps=2)
    with pytest.warns(UserWarning, match=rf"^the model's second derivative is zero: {kind.__name__} moves only"):
        attack(X, y)


def test_detached_gradients_of_a_piecewise_linear_network_are_not_warned_of(recwarn):
    X, y = bumps(4)
    model = classifier(activation=torch.nn.ReLU)
    PGD(model, IntegratedGradients(model, detach_grad=True), lambda_exp=1.0, steps=2)(X, y)
    assert not [warning for warning in recwarn if "second derivative" in str(warning.message)]


def test_a_model_that_wants_another_shape_is_told_apart(explainer):
    X, y = bumps(4)
    with pytest.raises(InputError, match=r"^the model failed on series of shape \(4, 2, 16\): .*check the layout"):
        TSEF(torch.nn.Linear(5, 2), explainer, **FEW)(X, y)


def test_a_model_with_one_logit_is_refused(explainer):
    X, y = bumps(4)
    with pytest.raises(InputError, match=r"^the model returned \(4, 1\) for 4 series; expected logits of shape"):
        TSEF(lambda x: x.mean(dim=(1, 2))[:, None], explainer, **FEW)(X, y)


def test_an_explainer_of_another_shape_is_refused(model):
    X, y = bumps(4)
    with pytest.raises(InputError, match=r"returned maps of shape \(1, 16\) for series of shape \(2, 16\)"):
        TSEF(model, lambda x, target: x[:, :1], **FEW)(X, y)


def test_a_mask_explainer_outside_zero_and_one_is_refused(model):
    X, y = bumps(4)
    with pytest.raises(InputError, match=r"^the mask explainer returned values from .*; expected a mask in \[0, 1\]$"):
        TSEF(model, MaskExplainer(torch.nn.Identity()), **FEW)(X, y)
