"""DyLLM beside its baselines: likelihood, logit errors with the same tokens, the table; and loading a folder."""

import json

import numpy as np
import pytest
import torch
from dyllm_models import MASK, bidirectional_llama, dream, eurobert, llada, prompt

from assay._core.errors import InputError
from assay.decode.dyllm import DyLLMGenerator, adapter_of, compare, load_masked_lm, pseudo_nll, step_errors

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("make", "shift"), [(llada, 0), (dream, 1)], ids=["llada", "dream"])
def test_pseudo_nll_masks_one_response_token_at_a_time(make, shift):
    model = make()
    ids = prompt(12)[0]
    surprise = []
    for at in range(5, 12):
        masked = ids.clone()
        masked[at] = MASK
        with torch.no_grad():
            logits = model(input_ids=masked[None]).logits[0, at - shift]
        surprise.append(-float(torch.log_softmax(logits, -1)[ids[at]]))
    assert pseudo_nll(adapter_of(model), ids, 5, MASK) == pytest.approx(np.mean(surprise), rel=1e-5)


def test_logit_errors_are_zero_in_full_steps_and_grow_as_tau_falls():
    model = llada(sharp=1.0)  # with sharper attention a few approximate steps leave nothing to tell
    means = []
    for tau in (1.5, 0.99, -1.0):
        generator = DyLLMGenerator(model, tau=tau, block_size=8)
        errors = np.mean([step_errors(generator, prompt(9, seed=s), max_new_tokens=16) for s in range(4)], axis=0)
        assert errors[:4] == pytest.approx(np.zeros(4), abs=1e-6)
        means.append(errors[4:].mean())
    assert means[0] < means[1] < means[2]


def test_a_refresh_bounds_the_error():
    model = llada()
    plain, refreshed = (
        step_errors(DyLLMGenerator(model, tau=-1.0, block_size=8, refresh_every=r), prompt(9), max_new_tokens=16)
        for r in (None, 2)
    )
    assert refreshed[5::2] == pytest.approx(np.zeros(6), abs=1e-6)
    assert refreshed.mean() < plain.mean()


def test_only_one_prompt_at_a_time_is_followed():
    with pytest.raises(InputError, match="input_ids holds 2 prompts; step_errors takes one"):
        step_errors(DyLLMGenerator(llada()), prompt(9, 2), max_new_tokens=8)


@pytest.fixture(scope="module")
def compared():
    generator = DyLLMGenerator(llada(), tau=0.99, block_size=8)
    return compare(generator, [prompt(9, seed=seed)[0] for seed in range(3)], max_new_tokens=16)


def test_every_prompt_is_decoded_in_every_mode(compared):
    assert compared.rows.groupby("mode").size().to_dict() == dict.fromkeys(
        ("full", "prefix_cache", "dual_cache", "dllm_cache", "dyllm"), 3
    )
    full = compared.rows[compared.rows["mode"] == "full"]
    assert (full["agreement"] == 1).all()
    assert full["flops_share"].tolist() == pytest.approx([1, 1, 1])


def test_speed_ups_are_geometric_means_of_paired_times(compared):
    times = compared.rows.pivot_table(index="prompt", columns="mode", values="seconds")
    frame = compared.to_frame().set_index("mode")
    expected = np.exp(np.log(times["full"] / times["dyllm"]).mean())
    assert frame.loc["dyllm", "speed_up"] == pytest.approx(expected)
    assert frame.loc["full", "speed_up"] == pytest.approx(1)
    assert frame.loc["dyllm", "speed_up_low"] <= expected <= frame.loc["dyllm", "speed_up_high"]


def test_the_table_and_the_picture_name_every_mode(compared):
    text = compared.summary()
    for name in ("full recomputation", "Fast-dLLM prefix cache", "Fast-dLLM dual cache", "dLLM-Cache", "DyLLM"):
        assert f"\n{name} " in text
    assert "3 prompts, tau 0.99" in text
    assert compared.plot().get_xlabel() == "tokens a second"


def test_one_prompt_has_no_interval():
    found = compare(DyLLMGenerator(llada(), block_size=8), [prompt(9)[0]], ["dyllm"], max_new_tokens=8)
    assert "[" not in found.summary()


def test_bad_comparisons_are_refused():
    generator = DyLLMGenerator(llada())
    with pytest.raises(InputError, match="there are no prompts; give one or more"):
        compare(generator, [])
    with pytest.raises(
        InputError, match=r"modes=\['fast'\]: expected some of full, prefix_cache, dual_cache, dllm_cache"
    ):
        compare(generator, [prompt(4)[0]], ["fast"])


# --------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("make", [eurobert, bidirectional_llama], ids=["masked", "bidirectional"])
def test_a_saved_model_decodes_as_it_did(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    again, tokenizer = load_masked_lm(tmp_path)
    assert tokenizer is None
    decoded = [
        DyLLMGenerator(one, mask_token_id=MASK, block_size=8).generate(prompt(9), max_new_tokens=16).sequences
        for one in (model, again)
    ]
    assert torch.equal(*decoded)


def test_what_cannot_be_loaded_is_said(tmp_path):
    with pytest.raises(InputError, match=r"none: no such folder"):
        load_masked_lm("./none")
    with pytest.raises(InputError, match=r"holds no config\.json"):
        load_masked_lm(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is not JSON"):
        load_masked_lm(tmp_path)
    with pytest.raises(InputError, match="dtype='int3': expected float32, bfloat16 or float16"):
        load_masked_lm(tmp_path, dtype="int3")


def test_code_that_comes_with_a_model_is_not_run_unless_allowed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"}}))
    with pytest.raises(InputError, match="brings code of its own, which is not run unless you allow it"):
        load_masked_lm(tmp_path)
