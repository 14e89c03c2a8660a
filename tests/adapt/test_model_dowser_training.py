"""Training under a mask: frozen entries keep their bits with every optimiser, and what changed fits a small file."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_dowser_models import decoder, tokens
from torch import nn

from assay._core.errors import InputError
from assay.adapt.model_dowser import DowserConfig, Mask, SparseDelta, full_mask, random_mask
from assay.adapt.model_dowser.deltas import decode_gaps, encode_gaps

OPTIMIZERS = {
    "sgd, momentum, decay": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adam, L2": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
    "nadam, foreach": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.1, foreach=True),
}


def steps(model, optimizer, n, *, clip=None, accumulate=1, first=0):
    for step in range(first, first + n):
        for part in range(accumulate):
            ids = tokens(2, 8, seed=accumulate * step + part)
            model(ids, labels=ids).loss.backward()
        if clip:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], clip)
        optimizer.step()
        optimizer.zero_grad()


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_frozen(model, before, mask, *, moved=True):
    """Every frozen entry has the bits it had; of the others most moved."""
    for name, value in model.state_dict().items():
        chosen = mask.trainable.get(name, torch.zeros(value.shape, dtype=torch.bool))
        kind = torch.int32 if value.element_size() == 4 else torch.int16
        same = value.view(kind) == before[name].view(kind)
        assert same[~chosen].all(), name
        if moved and chosen.any():
            assert (~same[chosen]).float().mean() > 0.5, name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_50_steps_leave_every_frozen_entry_its_bits(name):
    model = decoder()
    mask, before = random_mask(model), snapshot(model)
    with mask.apply(model) as tuning:
        optimizer = OPTIMIZERS[name](tuning.parameters())
        tuning.guard(optimizer)
        steps(model, optimizer, 50)
    assert_frozen(model, before, mask)


@pytest.mark.parametrize("options", [{"clip": 0.1}, {"accumulate": 3}], ids=["clipping", "accumulation"])
def test_clipping_and_accumulation_leave_every_frozen_entry_its_bits(options):
    model = decoder()
    mask, before = random_mask(model), snapshot(model)
    with mask.apply(model) as tuning:
        optimizer = OPTIMIZERS["adamw"](tuning.parameters())
        tuning.guard(optimizer)
        steps(model, optimizer, 10, **options)
    assert_frozen(model, before, mask)


def test_bfloat16_leaves_every_frozen_entry_its_bits():
    model = decoder().bfloat16()
    mask, before = random_mask(model), snapshot(model)
    with mask.apply(model) as tuning:
        optimizer = OPTIMIZERS["adamw"](tuning.parameters())
        tuning.guard(optimizer)
        steps(model, optimizer, 50)
    assert_frozen(model, before, mask)


def test_moments_from_before_the_mask_do_not_move_frozen_entries():
    model = decoder()
    mask = random_mask(model)
    weights = [model.get_parameter(name) for name in mask.trainable]
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    steps(model, optimizer, 2)  # momentum everywhere
    before = snapshot(model)
    with mask.apply(model) as tuning:
        tuning.guard(optimizer)
        steps(model, optimizer, 3)
        for name in mask.trainable:
            momentum = optimizer.state[model.get_parameter(name)]["momentum_buffer"]
            assert not momentum[~mask.trainable[name]].any()
    assert_frozen(model, before, mask)


def test_decay_into_the_gradient_leaves_no_moments_of_frozen_entries_behind():
    model = decoder()
    mask = random_mask(model)
    with mask.apply(model) as tuning:
        optimizer = OPTIMIZERS["adam, L2"](tuning.parameters())
        tuning.guard(optimizer)
        steps(model, optimizer, 2)
    for name, chosen in mask.trainable.items():
        state = optimizer.state[model.get_parameter(name)]
        assert not state["exp_avg"][~chosen].any()
        assert not state["exp_avg_sq"][~chosen].any()


def test_without_the_guard_weight_decay_moves_frozen_entries():
    # Why the guard exists: masked gradients alone do not freeze.
    model = decoder()
    mask, before = random_mask(model), snapshot(model)
    with mask.apply(model) as tuning:
        steps(model, OPTIMIZERS["adamw"](tuning.parameters()), 1)
    name = next(iter(mask.trainable))
    assert (model.get_parameter(name) != before[name])[~mask.trainable[name]].any()


def test_a_mask_of_everything_is_full_fine_tuning_step_by_step():
    masked, full = decoder(), decoder()
    mask = full_mask(masked)
    full.requires_grad_(False)
    weights = [full.get_parameter(name).requires_grad_() for name in mask.trainable]
    with mask.apply(masked) as tuning:
        first, second = (OPTIMIZERS["adamw"](p) for p in (tuning.parameters(), weights))
        tuning.guard(first)
        for step in range(4):
            steps(masked, first, 1, first=step)
            steps(full, second, 1, first=step)
            for a, b in zip(masked.parameters(), full.parameters(), strict=True):
                assert torch.equal(a, b)


def test_packed_training_takes_the_same_steps_as_masked_training():
    masked, packed = decoder(), decoder()
    mask = random_mask(masked)
    with mask.apply(masked) as tuning:
        optimizer = torch.optim.AdamW(tuning.parameters(), lr=0.01, weight_decay=0.1)
        tuning.guard(optimizer)
        steps(masked, optimizer, 5)
    with mask.pack(packed) as short:
        optimizer = torch.optim.AdamW(short.parameters(), lr=0.01, weight_decay=0.1)
        assert sum(p.numel() for p in short.parameters()) == mask.n_trainable
        steps(packed, optimizer, 5)
        state = sum(v.numel() for s in optimizer.state.values() for v in s.values() if v.ndim)
        assert state == 2 * mask.n_trainable
    for a, b in zip(masked.parameters(), packed.parameters(), strict=True):
        # The same arithmetic on gathered entries; sums of gradients may be ordered differently.
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_an_optimiser_with_other_parameters_is_refused():
    model = decoder()
    with (
        random_mask(model).apply(model) as tuning,
        pytest.raises(
            InputError, match=r"^the optimiser holds 9 parameters .* such as model\.embed_tokens\.weight, and"
        ),
    ):
        tuning.guard(torch.optim.AdamW(model.parameters(), weight_decay=0.1))


def test_a_mask_that_trains_nothing_is_refused():
    mask = Mask({"weight": torch.zeros(3, 4, dtype=torch.bool)})
    for verb in (mask.apply, mask.pack):
        with pytest.raises(InputError, match=r"^the mask trains nothing, which retains everything and learns nothing"):
            verb(nn.Linear(4, 3))


def test_reentrant_recomputation_is_refused_and_the_other_kind_trains_alike():
    plain, saving = decoder().train(), decoder().train()
    mask = random_mask(plain, layers=1)
    saving.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(
        InputError, match=r"^the model uses re-entrant gradient checkpointing, which loses the gradients"
    ):
        mask.apply(saving)
    saving.gradient_checkpointing_enable({"use_reentrant": False})
    for model in (plain, saving):
        with mask.apply(model) as tuning:
            optimizer = OPTIMIZERS["adamw"](tuning.parameters())
            tuning.guard(optimizer)
            steps(model, optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), saving.parameters(), strict=True))


# --------------------------------------------------------------------------------------------------- the Trainer


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, place):
        ids = tokens(1, 8, seed=place)[0]
        return {"input_ids": ids, "labels": ids}


def arguments(folder, **options):
    from transformers import TrainingArguments

    given = {"max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": 0.01, "weight_decay": 0.1} | options
    return TrainingArguments(str(folder), report_to=[], use_cpu=True, disable_tqdm=True, **given)


def test_the_trainer_moves_nothing_else_and_takes_the_mask_off(tmp_path):
    from assay.adapt.model_dowser import DowserTrainer

    model = decoder()
    mask, before = random_mask(model), snapshot(model)
    trainer = DowserTrainer(
        model, arguments(tmp_path, save_strategy="no", gradient_accumulation_steps=2), mask, train_dataset=Texts()
    )
    trainer.train()
    assert_frozen(model, before, mask)
    assert all(p.requires_grad and not p._backward_hooks for p in model.parameters())
    assert 0.5 * mask.n_trainable < trainer.delta_.n_entries <= mask.n_trainable


def test_a_resumed_training_moves_nothing_else(tmp_path):
    from assay.adapt.model_dowser import DowserTrainer

    model = decoder()
    mask, before = random_mask(model), snapshot(model)
    options = {"save_strategy": "steps", "save_steps": 3}
    DowserTrainer(model, arguments(tmp_path, max_steps=3, **options), mask, train_dataset=Texts()).train()
    again = decoder()
    trainer = DowserTrainer(again, arguments(tmp_path, **options), mask, train_dataset=Texts())
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6
    assert_frozen(again, before, mask)


def test_an_exception_in_the_trainer_puts_the_model_back(tmp_path):
    from transformers import TrainerCallback

    from assay.adapt.model_dowser import DowserTrainer

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                raise RuntimeError("the power went out")

    model = decoder()
    before = snapshot(model)
    trainer = DowserTrainer(
        model, arguments(tmp_path, save_strategy="no"), random_mask(model), train_dataset=Texts(), callbacks=[Stop()]
    )
    with pytest.raises(RuntimeError, match="the power went out"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad and not p._backward_hooks for p in model.parameters())


def test_the_trainer_scores_the_model_itself(tmp_path):
    from assay.adapt.model_dowser import DowserTrainer

    config = DowserConfig(rho=0.2, n_probes=2, length=8, n_hutchinson=1, layers=1)
    trainer = DowserTrainer(decoder(), arguments(tmp_path, save_strategy="no"), config, train_dataset=Texts())
    assert len(trainer.mask.trainable) == 7
    assert trainer.mask.density() == pytest.approx(0.2, abs=0.001)


def test_the_trainer_refuses_reentrant_recomputation(tmp_path):
    from assay.adapt.model_dowser import DowserTrainer

    model = decoder()
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(InputError, match=r"^gradient_checkpointing_kwargs asks for use_reentrant=True, which loses"):
        DowserTrainer(model, arguments(tmp_path, **options), random_mask(model))


# ------------------------------------------------------------------------------------------------------- deltas


@given(st.sets(st.integers(0, 5000), min_size=0, max_size=60))
def test_places_come_back_from_their_bytes(places):
    index = np.array(sorted(places), dtype=np.int64)
    assert decode_gaps(encode_gaps(index)).tolist() == index.tolist()


def tuned(seed=0):
    model = decoder()
    base = copy.deepcopy(model)
    mask = random_mask(model)
    with mask.apply(model) as tuning:
        optimizer = OPTIMIZERS["adamw"](tuning.parameters())
        tuning.guard(optimizer)
        steps(model, optimizer, 2)
    return base, model, mask


def test_a_delta_restores_the_tuned_model_to_the_bit(tmp_path):
    base, model, mask = tuned()
    delta = SparseDelta.between(base, model)
    assert delta.n_entries <= mask.n_trainable
    delta.save(tmp_path / "delta.safetensors")
    SparseDelta.load(tmp_path / "delta.safetensors").apply(base)
    for a, b in zip(base.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_a_delta_takes_about_the_mask_s_share_of_the_weights(tmp_path):
    layer = nn.Linear(700, 900, bias=False)
    with random_mask(layer).apply(layer) as tuning:
        with torch.no_grad():
            layer.weight += tuning.mask.trainable["weight"]
        delta = tuning.delta()
    delta.save(tmp_path / "delta.safetensors")
    # 4 bytes a value and 1 for its place: five fourths of a tenth, and the header.
    assert (tmp_path / "delta.safetensors").stat().st_size < 1.27 * 0.1 * 4 * 700 * 900


def test_a_delta_sees_a_sign_of_zero_and_leaves_nan_alone():
    old = {"w": torch.tensor([0.0, float("nan"), 1.0])}
    assert SparseDelta.between(old, {"w": torch.tensor([-0.0, float("nan"), 1.0])}).entries["w"].index.tolist() == [0]


def test_a_delta_for_other_weights_is_refused():
    base, model, _ = tuned()
    delta = SparseDelta.between(base, model)
    with pytest.raises(InputError, match=r"^model\.layers\.0\.\S+ has other values than the weight that the delta was"):
        delta.apply(decoder(seed=1))
    with pytest.raises(
        InputError, match=r"^model\.layers\.0\.\S+ is torch\.bfloat16 in the model and torch\.float32 in"
    ):
        delta.apply(base.bfloat16())
    with pytest.raises(InputError, match=r"^the delta is about model\.layers\.0\.\S+, which the model does not have"):
        delta.apply(decoder("gpt2"))


def test_a_delta_between_two_architectures_is_refused():
    with pytest.raises(InputError, match=r"^b is in one of the two models only; a delta is between two of one"):
        SparseDelta.between({"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(
        InputError, match=r"^a is \(1,\) torch\.float32 in one model and \(2,\) torch\.float32 in the oth"
    ):
        SparseDelta.between({"a": torch.zeros(1)}, {"a": torch.zeros(2)})


def test_a_broken_delta_is_refused(tmp_path):
    from safetensors.torch import save_file

    notes = {"format": "assay model-dowser delta 1", "shape w": "2x2", "base w": "0"}
    places = torch.tensor([0, 200], dtype=torch.uint8)
    save_file({"w places": places, "w values": torch.zeros(2)}, str(tmp_path / "far"), metadata=notes)
    save_file({"w places": places}, str(tmp_path / "half"), metadata=notes)
    with pytest.raises(
        InputError, match=r"far, w: 2 places and 2 values do not fit the shape \(2, 2\); the file is brok"
    ):
        SparseDelta.load(tmp_path / "far")
    with pytest.raises(InputError, match=r"half, w: places or values are missing; the file is broken$"):
        SparseDelta.load(tmp_path / "half")
