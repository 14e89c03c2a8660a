"""Multi-criterion training and asking with a model that PEFT has wrapped."""

import numpy as np
import pytest
import torch
from cc_icl_models import SPEC, make_tokenizer, notes, tiny_lm, tiny_vlm, write_pictures

from assay._core.errors import InputError
from assay.evaluate.cc_icl import (
    HFVLMPredictor,
    LMPredictor,
    MCTCollator,
    MCTConfig,
    build_episodes,
    evaluate,
    image_items,
    mct_,
    mct_dataset,
    with_lora,
)

peft = pytest.importorskip("peft")


pytestmark = pytest.mark.usefixtures("one_thread")


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(n=60, **options):
    # Wide weights: the head stays as it is, and one of small random weights cannot be sure of anything.
    model = with_lora(tiny_lm(hidden_size=32, initializer_range=0.3), 8)
    losses = mct_(model, make_tokenizer(), build_episodes(notes(), SPEC, n), MCTConfig(batch_size=20, **options))
    return model, losses


def test_training_changes_the_adapters_and_nothing_else():
    model = with_lora(tiny_lm(), 4)
    before = weights(model)
    mct_(model, make_tokenizer(), build_episodes(notes(), SPEC, 4), MCTConfig(batch_size=4, learning_rate=1e-2))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_training_a_wrapped_model_lowers_its_loss():
    _, losses = trained(learning_rate=2e-2, n_epochs=3)
    assert losses[-3:].mean() < 0.5 * losses[0]


def test_the_first_loss_is_that_of_the_model_without_adapters():
    # B is zero at the start: the adapters add nothing yet.
    episodes, config = build_episodes(notes(), SPEC, 3), MCTConfig(batch_size=6)
    batch = MCTCollator(make_tokenizer())(mct_dataset(episodes, per_episode=2, seed=0))
    expected = tiny_lm()(**batch).loss.item()
    assert mct_(with_lora(tiny_lm(), 4), make_tokenizer(), episodes, config)[0] == pytest.approx(expected, rel=1e-5)


def test_the_vocabulary_is_computed_where_the_answer_stands_and_nowhere_else():
    model = with_lora(tiny_lm(), 4)
    lengths = []
    head = model.get_base_model().lm_head
    head.register_forward_hook(lambda module, given, out: lengths.append(given[0].shape[1]))
    mct_(model, make_tokenizer(), build_episodes(notes(), SPEC, 2), MCTConfig(batch_size=4))
    assert lengths == [2]  # the answer's one token, and the one before it, which foresees it


def test_a_wrapped_model_answers_as_the_merged_one():
    model, _ = trained(learning_rate=1e-2)
    episodes, tokenizer = build_episodes(notes(), SPEC, 12, seed=1), make_tokenizer()
    wrapped = evaluate(LMPredictor(model, tokenizer), episodes, batch_size=5).predictions
    merged = evaluate(LMPredictor(model.merge_and_unload(), tokenizer), episodes, batch_size=5).predictions
    np.testing.assert_array_equal(wrapped, merged)


def test_saved_adapters_give_the_same_answers_when_they_are_loaded(tmp_path):
    model, _ = trained(learning_rate=1e-2)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(tiny_lm(hidden_size=32, initializer_range=0.3), tmp_path).eval()
    episodes, tokenizer = build_episodes(notes(), SPEC, 12, seed=1), make_tokenizer()
    first, second = (evaluate(LMPredictor(m, tokenizer), episodes).predictions for m in (model, again))
    np.testing.assert_array_equal(first, second)


def test_reasoning_works_through_the_wrapper():
    model = with_lora(tiny_lm(), 4).eval()
    asked = build_episodes(notes(), SPEC, 2).ask(0, 0)
    assert isinstance(LMPredictor(model, make_tokenizer(), cot=True, max_new_tokens=3)([asked])[0], str)


def test_a_vision_language_model_trains_adapters_outside_its_vision_tower(tmp_path):
    write_pictures(tmp_path / "pictures")
    episodes = build_episodes(image_items(tmp_path / "pictures"), SPEC, 6)
    model, processor = tiny_vlm()
    model = with_lora(model, 4)
    assert not any("vision" in name for name, p in model.named_parameters() if p.requires_grad)
    before = weights(model)
    assert np.isfinite(mct_(model, processor, episodes, MCTConfig(batch_size=6, learning_rate=1e-2))).all()
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_images_are_looked_at_once_an_episode_through_the_wrapper_too(tmp_path):
    write_pictures(tmp_path / "pictures")
    episodes = build_episodes(image_items(tmp_path / "pictures"), SPEC, 6)
    model, processor = tiny_vlm()
    predictor = HFVLMPredictor(with_lora(model, 4).eval(), processor)
    evaluate(predictor, episodes, batch_size=2)
    assert predictor.vision.n_computed == 3  # batches of episodes; there are two criteria


def test_the_same_seed_makes_the_same_adapters_and_leaves_torchs_own_state_alone():
    models = [tiny_lm() for _ in range(3)]
    before = torch.get_rng_state()
    first, again, other = (weights(with_lora(model, 4, seed=s)) for model, s in zip(models, (0, 0, 1), strict=True))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_layers_of_a_wrapped_model_are_not_for_the_recipe_to_choose():
    model = with_lora(tiny_lm(), 4)
    with pytest.raises(InputError, match=r"n_layers is 1, and PEFT has chosen what to train .*; leave n_layers out"):
        mct_(model, make_tokenizer(), build_episodes(notes(), SPEC, 4), MCTConfig(n_layers=1))


def test_adapters_may_be_in_the_last_layers_alone():
    named = [name for name, _ in with_lora(tiny_lm(), 4, n_layers=1).named_parameters() if "lora_" in name]
    assert named
    assert all(".layers.1." in name for name in named)


def test_more_layers_than_there_are_are_refused():
    with pytest.raises(InputError, match="n_layers is 3; the model has 2 layers"):
        with_lora(tiny_lm(), 4, n_layers=3)


def test_adapters_without_a_rank_are_refused():
    with pytest.raises(InputError, match="the rank of the adapters is 0; expected 1 or more"):
        with_lora(tiny_lm(), 0)
