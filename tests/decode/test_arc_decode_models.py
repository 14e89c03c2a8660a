"""arc-decode around real architectures: trees and caches, generation as `generate` does it, calibration, audit."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_arc_decode_scores import WithoutDoubles
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from assay._core.errors import InputError
from assay.decode.arc_decode import (
    ArcCalibration,
    Draft,
    Sampling,
    Tree,
    arc_generate,
    audit,
    calibrate,
    compare,
    js_topk,
)
from assay.decode.arc_decode.calibration import embedding_hash, fit, measure, roll, trimmed_quantile
from assay.decode.arc_decode.comparison import assisted
from assay.decode.arc_decode.reader import Reader
from assay.decode.arc_decode.scores import inverse_deviation

N_VOCABULARY = 24


def llama(seed, n_layers=2, width=32, spread=0.35, vocab_size=N_VOCABULARY):
    """A small random Llama whose predictions are far from uniform."""
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=n_layers,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, initializer_range=spread,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model():
    return llama(0)


@pytest.fixture(scope="module")
def draft_model(model):
    """A draft that agrees with the target in part: its first layer."""
    draft = llama(1, n_layers=1)
    draft.load_state_dict(model.state_dict(), strict=False)
    return draft


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(1, N_VOCABULARY, size=n)) for n in (5, 9, 7, 6)]


@pytest.fixture(scope="module")
def calibration(model, prompts):
    return calibrate(model, prompts, n_tokens=16, seed=3)


def by_hand(model):
    """A calibration whose tolerance is wide, so that much is added."""
    embedding = model.get_input_embeddings().weight.detach()
    settings = {
        "c_e": 0.01, "c_l": 0.1, "gamma": 1.0, "delta": 0.05, "n_top": 128, "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "vocabulary_size": N_VOCABULARY, "embedding_hash": embedding_hash(embedding), "n": 100,
        "median_shift": 0.1, "inverse_std": inverse_deviation(embedding),
    }  # fmt: skip
    return ArcCalibration(**settings)


# ------------------------------------------------------------------------------------------ trees and the cache

BRANCHES = Draft([3, 4, 5, 6, 7, 8], [-1, -1, 0, 0, 1, 3], [0.0] * 6)


def fresh_logits(model, ids):
    with torch.inference_mode():
        return model(ids[None]).logits[0, -1]


def test_a_tree_is_read_as_its_paths_would_be_one_by_one(model, prompts):
    reader, ids = Reader(model), prompts[1]
    reader.read(ids[:4])
    found = reader.read(ids[4:], BRANCHES)
    torch.testing.assert_close(found[0], fresh_logits(model, ids), atol=1e-4, rtol=0)
    for place in range(6):
        path = torch.cat([ids, torch.tensor(BRANCHES.path(place))])
        torch.testing.assert_close(found[place + 1], fresh_logits(model, path), atol=1e-4, rtol=0)


@pytest.mark.parametrize("path", [(), (0,), (0, 3, 5), (1, 4)])
def test_after_a_cycle_the_cache_is_that_of_the_accepted_text(model, prompts, path):
    reader, fresh = Reader(model), Reader(model)
    reader.read(prompts[1], BRANCHES)
    reader.keep(BRANCHES, path)
    fresh.read(torch.cat([prompts[1], torch.tensor([BRANCHES.tokens[place] for place in path], dtype=torch.long)]))
    assert reader.n_cached == fresh.n_cached
    for mine, theirs in zip(reader.cache.layers, fresh.cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, atol=1e-4, rtol=0)
        torch.testing.assert_close(mine.values, theirs.values, atol=1e-4, rtol=0)


def test_other_tokens_at_earlier_places_are_read_as_texts_of_their_own(model, prompts):
    reader, ids = Reader(model), prompts[1]
    reader.read_all(ids)
    found = reader.read_instead([2, 9, 9], [3, 3, 8])
    for row, (token, place) in zip(found, [(2, 3), (9, 3), (9, 8)], strict=True):
        expected = fresh_logits(model, torch.cat([ids[:place], torch.tensor([token])]))
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=0)
    assert reader.n_cached == len(ids)


# -------------------------------------------------------------------------------------- the law of what is written


def second_token_law(model, ids):
    """Exact probabilities of the two next tokens, (n_vocabulary, n_vocabulary)."""
    with torch.inference_mode():
        first = model(ids[None]).logits[0, -1].softmax(-1)
        longer = torch.cat([ids.expand(N_VOCABULARY, -1), torch.arange(N_VOCABULARY)[:, None]], dim=1)
        return (first[:, None] * model(longer).logits[:, -1].softmax(-1)).double()


@pytest.mark.parametrize("kind", ["chain", "tree", "lookup"])
def test_at_lambda_zero_the_text_follows_the_target(model, draft_model, kind):
    """The second token is written from a cache that held rejected candidates."""
    ids = torch.tensor([5, 7, 5, 7, 5])
    law = second_token_law(model, ids).sum(0)
    assistant, tree = {
        "chain": (draft_model, None),
        "tree": (draft_model, Tree(n_tokens=6, depth=2, top_k=3)),
        "lookup": ("prompt_lookup", None),
    }[kind]
    n = 120
    written = arc_generate(
        model, assistant, ids.expand(n, -1), max_new_tokens=3, lam=0.0, num_draft=2, tree=tree, seed=1
    )
    counts = np.bincount(written.sequences[:, 6].numpy(), minlength=N_VOCABULARY)
    order = np.argsort(-law.numpy())
    top = 4  # the rest is one cell: chi-square wants five expected in each
    cells = [*counts[order[:top]], counts[order[top:]].sum()]
    expected = n * np.array([*law[order[:top]], law[order[top:]].sum()])
    assert chisquare(cells, expected * (n / expected.sum())).pvalue > 1e-4
    assert sum(record.n_accepted for record in written.records) > 0


def test_a_full_boost_writes_more_tokens_a_pass_and_says_which_it_added(model, draft_model, prompts):
    lossless, boosted = (
        arc_generate(
            model, draft_model, prompts[0][None], max_new_tokens=60, calibration=by_hand(model), lam=lam, seed=4
        ).records[0]
        for lam in (0.0, 1.0)
    )
    assert lossless.added == []
    assert lossless.price == 0.0
    assert len(boosted.added) > 3
    assert boosted.tokens_per_forward > lossless.tokens_per_forward
    assert boosted.mean_price > 0


def test_what_was_added_stands_in_the_text_and_its_favourite_is_the_target_s(model, draft_model, prompts):
    output = arc_generate(
        model, draft_model, prompts[0][None], max_new_tokens=40, calibration=by_hand(model), lam=1.0, seed=4
    )
    ids = output.sequences[0]
    assert output.records[0].added
    for item in output.records[0].added:
        assert ids[item.place] == item.token
        p = fresh_logits(model, ids[: item.place]).softmax(-1)
        assert p.argmax() == item.favourite
        assert p[item.token] >= 0.05


def test_a_text_to_which_nothing_was_added_is_the_lossless_text_of_its_seed(model, draft_model, prompts):
    """And up to the first addition every text is: its law is off by at most the chance of an addition."""
    n_equal = 0
    for seed in range(12):
        lossless, boosted = (
            arc_generate(
                model, draft_model, prompts[0][None], max_new_tokens=8, calibration=by_hand(model), lam=lam, seed=seed
            )
            for lam in (0.0, 0.3)
        )
        first = min((item.place for item in boosted.records[0].added), default=13)
        assert torch.equal(lossless.sequences[0, :first], boosted.sequences[0, :first])
        n_equal += first == 13
    assert 0 < n_equal < 12


def test_counts_add_up(model, draft_model, prompts):
    record = arc_generate(model, draft_model, prompts[0][None], max_new_tokens=41, lam=0.0, seed=2).records[0]
    assert record.n_tokens == 41
    assert record.n_accepted <= record.n_tried <= record.n_drafted
    # Every pass writes its accepted candidates and one token; the last may be cut.
    assert record.n_accepted + record.n_forwards - record.n_tokens in (0, 1)


def test_the_same_seed_writes_the_same_and_another_seed_another_text(model, draft_model, prompts):
    first, again, other = (
        arc_generate(model, draft_model, prompts[0][None], max_new_tokens=30, lam=0.0, seed=seed).sequences
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# ------------------------------------------------------------------------------------------ as `generate` does it


@pytest.mark.filterwarnings("ignore:temperature=0")
@pytest.mark.parametrize("kind", ["chain", "tree", "lookup", "none"])
def test_greedy_decoding_writes_what_generate_writes(model, draft_model, prompts, kind):
    assistant = {"lookup": "prompt_lookup", "none": None}.get(kind, draft_model)
    tree = Tree(n_tokens=8, depth=3, top_k=3) if kind == "tree" else None
    expected = model.generate(prompts[1][None], do_sample=False, max_new_tokens=30)
    found = arc_generate(model, assistant, prompts[1][None], max_new_tokens=30, temperature=0.0, tree=tree, lam=0.0)
    assert torch.equal(found.sequences, expected)


@pytest.mark.filterwarnings("ignore:temperature=0")
@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "opt", "qwen2", "qwen3"])
def test_other_architectures_write_what_generate_writes(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    more = {
        "gpt2": {},
        "gpt_neox": {"intermediate_size": 32},
        "opt": {"ffn_dim": 32, "word_embed_proj_dim": 32},
        "qwen2": {"intermediate_size": 32, "num_key_value_heads": 1},
        "qwen3": {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 16},
    }[kind]
    spread = {"init_std" if kind == "opt" else "initializer_range": 0.4}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=40, **sizes, **more, **spread, **ends)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = AutoModelForCausalLM.from_config(config).eval()
        draft = AutoModelForCausalLM.from_config(config).eval()
        draft.load_state_dict(target.state_dict())
        with torch.no_grad():
            for weight in draft.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
    ids = torch.arange(1, 10)[None]
    expected = target.generate(ids, do_sample=False, max_new_tokens=16)
    for tree in (None, Tree(n_tokens=8, depth=3, top_k=3)):
        found = arc_generate(target, draft, ids, max_new_tokens=16, temperature=0.0, lam=0.0, tree=tree)
        assert torch.equal(found.sequences, expected)
        assert found.records[0].n_accepted > 0


@pytest.mark.filterwarnings("ignore:temperature=0")
def test_a_left_padded_batch_writes_what_its_rows_write_alone(model, draft_model, prompts):
    longest = max(map(len, prompts))
    batch = torch.stack([torch.nn.functional.pad(ids, (longest - len(ids), 0)) for ids in prompts])
    mask = torch.stack([(torch.arange(longest) >= longest - len(ids)).long() for ids in prompts])
    expected = model.generate(batch, attention_mask=mask, do_sample=False, max_new_tokens=12)
    found = arc_generate(model, draft_model, batch, attention_mask=mask, max_new_tokens=12, temperature=0.0, lam=0.0)
    assert torch.equal(found.sequences, expected)


@pytest.mark.filterwarnings("ignore:temperature=0")
def test_an_end_token_ends_a_row_and_padding_follows(model, draft_model, prompts):
    greedy = model.generate(prompts[1][None], do_sample=False, max_new_tokens=30)[0, 9:]
    end = int(greedy[4])
    options = {"eos_token_id": end, "pad_token_id": 0, "max_new_tokens": 30}
    batch = torch.stack([prompts[1], prompts[1].roll(1)])
    expected = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, **options)
    found = arc_generate(model, draft_model, batch, temperature=0.0, lam=0.0, **options)
    assert torch.equal(found.sequences, expected)


@pytest.mark.filterwarnings("ignore:temperature=0")
@pytest.mark.parametrize("pad", [None, 3])
def test_padding_is_that_of_generate_with_nothing_passed(prompts, pad):
    """The generation_config's padding token; the first end token where it has none."""
    model = llama(0)
    batch = torch.stack([prompts[1], prompts[1].roll(1)])
    greedy = model.generate(batch, do_sample=False, max_new_tokens=30)[:, 9:].tolist()
    end = next(token for token in greedy[0] if token not in greedy[1][:20])
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = [end, 0], pad
    expected = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=30)
    found = arc_generate(model, None, batch, temperature=0.0, lam=0.0, max_new_tokens=30)
    assert (expected[0] == (end if pad is None else pad)).sum() > 1
    assert torch.equal(found.sequences, expected)


@pytest.fixture
def with_penalty():
    """The same model, whose generation_config asks for a penalty, a cut at min_p and a few more."""
    model = llama(0)
    model.generation_config.update(repetition_penalty=1.8, min_p=0.3, top_k=2, no_repeat_ngram_size=1)
    return model


def test_calibration_writes_from_the_plain_law_whatever_the_generation_config_asks_for(model, with_penalty, prompts):
    before = with_penalty.generation_config.to_dict()
    plain, other = (roll(m, prompts, Sampling(), 20, seed=1) for m in (model, with_penalty))
    for (expected, _), (found, _) in zip(plain, other, strict=True):
        assert torch.equal(found, expected)
    assert with_penalty.generation_config.to_dict() == before


@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_assisted_generation_samples_from_the_plain_law_as_well(model, with_penalty, draft_model, prompts, kind):
    assistant = draft_model if kind == "model" else "prompt_lookup"
    plain, other = (assisted(m, assistant, prompts[1], Sampling(), 3, 20, seed=1)[0] for m in (model, with_penalty))
    assert torch.equal(other, plain)


def test_arc_generate_samples_from_the_plain_law_as_well(model, with_penalty, draft_model, prompts):
    plain, other = (
        arc_generate(m, draft_model, prompts[1][None], max_new_tokens=20, lam=0.0).sequences
        for m in (model, with_penalty)
    )
    assert torch.equal(other, plain)


@pytest.mark.filterwarnings("ignore:temperature=0")
def test_a_stop_string_ends_the_text_at_the_token_that_completes_it():
    """Where assisted generation of transformers writes on to the end of its cycle."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_alone = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_alone)
    target = llama(0, vocab_size=256)
    ids = torch.tensor([tokenizer("def f(")["input_ids"]])
    length = ids.shape[1]
    greedy = target.generate(ids, do_sample=False, max_new_tokens=20)[0, length:]
    letter = next(chr(i) for i in range(33, 127) if tokenizer(chr(i))["input_ids"][0] in greedy[4:].tolist())
    options = {"max_new_tokens": 20, "stop_strings": [letter], "tokenizer": tokenizer}
    expected = target.generate(ids, do_sample=False, **options)
    found = arc_generate(target, target, ids, temperature=0.0, lam=0.0, **options)
    assert torch.equal(found.sequences, expected)
    assert found.sequences.shape[1] < length + 20


@pytest.mark.filterwarnings("ignore:temperature=0")
def test_a_penalty_sees_the_prefix_of_each_candidate(model, draft_model, prompts):
    expected = model.generate(prompts[1][None], do_sample=False, max_new_tokens=25, repetition_penalty=1.7)
    penalty = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7)])
    for tree in (None, Tree(n_tokens=8, depth=3, top_k=3)):
        found = arc_generate(
            model, draft_model, prompts[1][None], max_new_tokens=25, temperature=0.0, lam=0.0, tree=tree,
            logits_processor=penalty,
        )  # fmt: skip
        assert torch.equal(found.sequences, expected)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_no_more_than_max_new_tokens_are_written(model, draft_model, prompts, n):
    output = arc_generate(
        model, draft_model, prompts[0][None], max_new_tokens=n, calibration=by_hand(model), lam=1.0, num_draft=5
    )
    assert output.sequences.shape[1] == 5 + n


def test_top_k_leaves_out_what_generate_leaves_out(model, draft_model, prompts):
    output = arc_generate(model, draft_model, prompts[0].expand(20, -1), max_new_tokens=4, top_k=2, lam=0.0)
    for ids in output.sequences:
        for place in range(5, 9):
            assert ids[place] in fresh_logits(model, ids[:place]).topk(2).indices


def test_an_object_that_proposes_is_a_draft(model, prompts):
    class Head:
        def propose(self, state):
            return Draft([1, 2], [-1, -1], [-0.1, -2.0])

    record = arc_generate(model, Head(), prompts[0][None], max_new_tokens=10, lam=0.0).records[0]
    assert record.n_drafted == 2 * (record.n_forwards - 1) or record.n_drafted == 2 * record.n_forwards


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:temperature=0")
def test_the_demo_model_writes_greedily_what_generate_writes():
    from assay import models

    target, tokenizer = models.demo_lm()
    asked = [{"role": "user", "content": "Repeat: the cat sat on the mat, the cat sat on the hat."}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    expected = target.generate(**ids, do_sample=False, max_new_tokens=24)
    found = arc_generate(target, "prompt_lookup", ids["input_ids"], max_new_tokens=24, temperature=0.0, lam=0.0)
    assert torch.equal(found.sequences, expected)
    assert found.records[0].n_forwards < found.records[0].n_tokens


# ---------------------------------------------------------------------------------------- calibration and audit


def test_each_branch_covers_all_but_delta_of_the_calibration_positions():
    rng = np.random.default_rng(0)
    js, e, l = rng.uniform(0, 0.69, 1000), rng.gamma(3.0, size=1000), rng.gamma(2.0, size=1000)  # noqa: E741
    found = fit(js, e, l, delta=0.05)
    covered_e, covered_l = js <= found.c_e * e, js <= found.c_l * l
    for covered in (covered_e, covered_l):  # 95 % of the 99.5 % that are left
        assert covered.mean() == pytest.approx(0.95 * 0.995, abs=0.002)
    assert (covered_e & covered_l).mean() >= 1 - 2 * 0.05 - 2 * 0.005


def test_gamma_is_the_quantile_of_the_smaller_estimate():
    rng = np.random.default_rng(1)
    js, e, l = rng.uniform(0, 0.69, 400), rng.gamma(3.0, size=400), rng.gamma(2.0, size=400)  # noqa: E741
    found = fit(js, e, l, delta=0.1)
    smaller = np.sort(np.minimum(found.c_e * e, found.c_l * l))[:398]  # without the largest half per cent
    assert found.gamma == pytest.approx(np.quantile(smaller, 0.9))


def test_quantiles_are_numpy_s_after_trimming():
    values = np.random.default_rng(0).normal(size=1000)
    assert trimmed_quantile(values, 0.95) == np.quantile(np.sort(values)[:995], 0.95)


def test_distances_of_zero_are_skipped():
    js = np.full(100, 0.1)
    e = np.where(np.arange(100) < 50, 0.0, 2.0)
    assert fit(js, e, np.full(100, 1.0), delta=0.05).c_e == pytest.approx(0.05)


def test_calibration_measures_the_shift_between_the_next_steps(model, prompts):
    """One text, by hand: its runner-up in place of its favourite, each continued by itself."""
    ids, start = torch.cat([prompts[0], torch.tensor([4, 8, 2])]), 5
    found = measure(model, [(ids, start)], Sampling(), torch.ones(32), n_top=6)
    for i, place in enumerate(range(start, len(ids))):
        best = fresh_logits(model, ids[:place]).topk(2).indices
        after = [fresh_logits(model, torch.cat([ids[:place], token[None]])).softmax(-1)[None] for token in best]
        assert found.js[i] == pytest.approx(js_topk(*after, k=6).item(), abs=1e-5)


def test_calibration_asks_for_no_float64_of_the_device(model, prompts, monkeypatch):
    from assay.decode.arc_decode import calibration

    def on_it(*given):
        return tuple(of.as_subclass(WithoutDoubles) for of in distances(*given))

    distances = calibration.raw_distances
    monkeypatch.setattr(calibration, "raw_distances", on_it)
    found = measure(model, [(prompts[0], 2)], Sampling(), torch.ones(32), n_top=6)
    assert found.by_embedding.dtype == np.float64


def test_a_calibration_that_was_saved_is_the_same_one(model, draft_model, prompts, calibration, tmp_path):
    calibration.save(tmp_path / "new" / "folder")
    again = ArcCalibration.load(tmp_path / "new" / "folder")
    assert torch.equal(again.inverse_std, calibration.inverse_std)
    assert dataclasses.replace(again, inverse_std=None) == dataclasses.replace(calibration, inverse_std=None)
    texts = [
        arc_generate(model, draft_model, prompts[0][None], max_new_tokens=20, calibration=c, lam=1.0).sequences
        for c in (calibration, again)
    ]
    assert torch.equal(*texts)


def test_the_audit_measures_what_was_added(model, draft_model, prompts):
    wide = by_hand(model)
    found = audit(model, wide, prompts, assistant=draft_model, max_new_tokens=15, eps=0.1)
    assert len(found.added) > 5
    same = found.added["token"] == found.added["favourite"]
    assert found.added.loc[same, "measured"].abs().max() < 1e-9
    row = found.added[~same].to_dict("records")[0]
    output = arc_generate(
        model, draft_model, prompts[int(row["prompt"])][None], max_new_tokens=15, calibration=wide, lam=1.0,
        seed=_seed_of(row["prompt"]),
    )  # fmt: skip
    before = output.sequences[0, : row["place"]]
    after = [
        fresh_logits(model, torch.cat([before, torch.tensor([row[name]])])).softmax(-1)[None]
        for name in ("token", "favourite")
    ]
    assert row["measured"] == pytest.approx(js_topk(*after, k=128).item(), abs=1e-5)


def _seed_of(number):
    from assay._core.seeds import child_seed

    return child_seed(0, "audit", int(number))


def test_a_smaller_gamma_lowers_the_risk_to_what_was_asked(model, draft_model, prompts):
    found = audit(model, by_hand(model), prompts, assistant=draft_model, max_new_tokens=15, eps=0.02)
    assert found.risk[0] > 0
    asked = found.risk[0] / 2
    gamma = found.gamma_for(asked)
    estimated, bad = found.added["estimated"].to_numpy(), (found.added["measured"] > 0.02).to_numpy()
    weights = np.maximum(1 - estimated / gamma, 0) / (1 - estimated / found.gamma)
    assert weights @ bad <= asked * weights.sum()
    assert gamma < found.gamma
    assert found.gamma_for(1.0) == found.gamma


def test_the_audit_prints_and_draws(model, draft_model, calibration, prompts):
    found = audit(model, calibration, prompts[:2], assistant=draft_model, max_new_tokens=10)
    assert "coverage: shift <= U" in found.summary()
    assert list(found.to_frame().columns) == ["quantity", "value", "low", "high", "n"]
    assert found.plot().get_xlabel().startswith("estimated shift U (nats)")
    assert found.bound_per_sequence == pytest.approx(0.05 * found.n_eligible / 2)


def test_the_ways_to_decode_stand_side_by_side(model, draft_model, prompts):
    found = compare(
        model, draft_model, prompts[:2], calibration=by_hand(model), lam=1.0, max_new_tokens=12,
        modes=("sample", "assisted", "lossless", "arc"),
    )  # fmt: skip
    frame = found.to_frame().set_index("mode")
    assert frame.loc["sample", "tokens_per_forward"] == 1.0
    assert frame.loc["lossless", "price"] == 0.0
    assert frame.loc["arc", "price"] > 0
    assert (frame["tokens"] == 12).all()
    assert "tokens a forward" in found.summary()
    assert found.plot().get_xlabel() == "tokens for each forward pass of the target"


def test_assisted_generation_leaves_the_draft_s_settings_as_they_were(model, draft_model, prompts, calibration):
    before = draft_model.generation_config.to_dict()
    compare(model, draft_model, prompts[:1], calibration=calibration, modes=("assisted",), max_new_tokens=4)
    assert draft_model.generation_config.to_dict() == before


# -------------------------------------------------------------------------------------------------- bad input


def generate(model, assistant, ids, **options):
    return arc_generate(model, assistant, ids[None], **{"max_new_tokens": 5, "lam": 0.0} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": 1.5}, r"^lam=1\.5: expected from 0 \(lossless\) to 1$"),
        ({"lam": 0.25}, r"^lam=0\.25 needs a calibration: calibrate\(model, prompts\), or lam=0 for exact sampling$"),
        (
            {"mode": "hard"},
            r"^mode='hard' needs a calibration: calibrate\(model, prompts\), or mode='boost' with lam=0 for exact samp",
        ),
        ({"gamma": 0.0}, r"^gamma=0\.0: expected above 0; lam=0 switches the boost off$"),
        ({"p_min": 0.0}, r"^p_min=0\.0: expected from 0\.001 to 1$"),
        ({"mode": "soft"}, r"^mode='soft': expected 'boost' or 'hard'$"),
        ({"num_draft": 0}, r"^num_draft=0: expected 1 or more; assistant=None drafts nothing$"),
        ({"max_new_tokens": 0}, r"^max_new_tokens=0: expected 1 or more$"),
        ({"temperature": -1.0}, r"^temperature=-1\.0: expected 0 or more$"),
        ({"top_p": 0.0}, r"^top_p=0\.0: expected above 0, at most 1$"),
        ({"stop_strings": ["."]}, r"^stop_strings need the tokenizer: pass tokenizer=$"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(model, draft_model, prompts, options, message):
    with pytest.raises(InputError, match=message):
        generate(model, draft_model, prompts[0], **options)


def test_a_draft_of_another_vocabulary_is_refused(model, prompts):
    other = LlamaForCausalLM(LlamaConfig(vocab_size=30, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=1))  # fmt: skip
    with pytest.raises(InputError, match=r"^assistant: its vocabulary has 30 tokens and the model's 24; a draft must"):
        generate(model, other, prompts[0])


def test_an_assistant_of_an_unknown_name_is_refused(model, prompts):
    with pytest.raises(InputError, match=r"^assistant='ngram': expected 'prompt_lookup', a causal language model, or"):
        generate(model, "ngram", prompts[0])


def test_temperature_zero_warns_that_lambda_plays_no_part(model, draft_model, prompts):
    with pytest.warns(UserWarning, match="temperature=0: greedy decoding accepts a draft where it is the most probabl"):
        generate(model, draft_model, prompts[0], temperature=0.0, lam=0.5)


def test_a_calibration_of_another_model_is_refused_unless_forced(model, draft_model, prompts):
    other = by_hand(llama(9))
    with pytest.raises(
        InputError, match=r"^the calibration was made for another model \(its input embeddings differ\)"
    ):
        generate(model, draft_model, prompts[0], lam=0.5, calibration=other)
    generate(model, draft_model, prompts[0], lam=0.5, calibration=other, force=True)


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.7), ("top_p", 0.9), ("top_k", 5)])
def test_a_calibration_of_other_settings_is_refused(model, draft_model, prompts, name, value):
    with pytest.raises(
        InputError, match=rf"^the calibration was made for {name}=[01] and {name}={value:g} is asked for"
    ):
        generate(model, draft_model, prompts[0], lam=0.5, calibration=by_hand(model), **{name: value})


def test_an_encoder_decoder_is_refused(prompts):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=24, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(InputError, match=r"^model is an encoder-decoder model \(T5ForConditionalGeneration\)"):
        generate(T5ForConditionalGeneration(config), None, prompts[0])


def test_a_model_with_a_sliding_window_is_refused(prompts):
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(vocab_size=24, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=1, sliding_window=8)  # fmt: skip
    with pytest.raises(InputError, match=r"^model has layers of sliding_attention, whose cache cannot be cut back"):
        generate(MistralForCausalLM(config), None, prompts[0])


def with_alibi(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {
        "bloom": {"n_layer": 1, "n_head": 2},
        "mpt": {"d_model": 16, "n_layers": 1, "n_heads": 2},
        "falcon": {"alibi": True, "new_decoder_architecture": False},
    }[kind]
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=N_VOCABULARY, **sizes, **more))


@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon"])
def test_alibi_is_refused_in_target_and_draft(model, calibration, prompts, kind):
    biased = with_alibi(kind).eval()
    message = (
        rf"\({type(biased).__name__}\) has ALiBi, attention biased by the place in the cache, which is not the depth"
    )
    with pytest.raises(InputError, match=f"^model {message}"):
        generate(biased, None, prompts[0])
    with pytest.raises(InputError, match=f"^assistant {message}"):
        generate(model, biased, prompts[0], tree=Tree())
    with pytest.raises(InputError, match=f"^model {message}"):
        calibrate(biased, prompts)
    with pytest.raises(InputError, match=f"^model {message}"):
        compare(biased, "prompt_lookup", prompts, calibration=calibration, modes=("assisted",))


BAD_PROMPTS = {
    "none": ([], r"^prompts: there are none; give one or more tensors of token ids$"),
    "empty": (
        [torch.tensor([1]), torch.tensor([]).long()],
        r"^prompt 1 has the shape \(0,\); expected \(length,\), not",
    ),
    "a batch": ([torch.tensor([[1, 2]])], r"^prompt 0 has the shape \(1, 2\); expected \(length,\), not empty$"),
    "unknown": ([torch.tensor([1, 24])], r"^prompt 0 holds the token 24; the model knows 0 to 23$"),
    "negative": ([torch.tensor([1, -1])], r"^prompt 0 holds the token -1; the model knows 0 to 23$"),
}


@pytest.mark.parametrize(("given", "message"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_prompts_that_are_none_are_refused(model, calibration, given, message):
    with pytest.raises(InputError, match=message):
        calibrate(model, given)
    with pytest.raises(InputError, match=message):
        audit(model, calibration, given, assistant="prompt_lookup")
    with pytest.raises(InputError, match=message):
        compare(model, "prompt_lookup", given, calibration=calibration, modes=("assisted",))


def test_a_token_that_the_model_does_not_know_is_refused(model):
    with pytest.raises(InputError, match=r"^prompt 0 holds the token 24; the model knows 0 to 23$"):
        generate(model, None, torch.tensor([1, 24]))


def test_a_row_of_padding_alone_is_refused(model, prompts):
    with pytest.raises(InputError, match=r"^attention_mask has zeros behind ones, or only zeros; expected padding on"):
        generate(model, None, prompts[0], attention_mask=torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize(("name", "value", "least"), [("n_top", 0, 2), ("n_top", 1, 2), ("n_tokens", 0, 1)])
def test_calibration_needs_a_candidate_and_a_position(model, prompts, name, value, least):
    with pytest.raises(InputError, match=rf"^{name}={value}: expected {least} or more"):
        calibrate(model, prompts, **{name: value})


def test_padding_on_the_right_is_refused(model, prompts):
    mask = torch.ones(1, 5, dtype=torch.long)
    mask[0, -1] = 0
    with pytest.raises(InputError, match=r"^attention_mask has zeros behind ones, or only zeros; expected padding on"):
        generate(model, None, prompts[0], attention_mask=mask)


def test_greedy_decoding_has_nothing_to_calibrate(model, prompts):
    with pytest.raises(InputError, match=r"^temperature=0: greedy decoding accepts by exact match and has no toleranc"):
        calibrate(model, prompts, temperature=0.0)


def test_too_few_positions_are_refused(model, prompts):
    with pytest.raises(InputError, match=r"^\d+ positions are too few to calibrate on; give prompts for 40 or more$"):
        calibrate(model, prompts[:1], n_tokens=4)


def test_a_broken_calibration_is_refused(calibration, tmp_path):
    with pytest.raises(InputError, match=r"holds no calibration\.json; make one with `assay use arc-decode calibrate`"):
        ArcCalibration.load(tmp_path)
    calibration.save(tmp_path)
    settings = json.loads((tmp_path / "calibration.json").read_text())
    (tmp_path / "calibration.json").write_text(json.dumps(settings | {"gamma": 0.0}))
    with pytest.raises(InputError, match=r"gamma is 0\.0; expected finite numbers and gamma above 0$"):
        ArcCalibration.load(tmp_path)
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(InputError, match=r"not a calibration that can be read"):
        ArcCalibration.load(tmp_path)


def test_an_audit_needs_a_shift_that_can_be(model, calibration, prompts):
    with pytest.raises(InputError, match=r"^eps=0\.7: expected above 0 and below log 2 = 0\.693"):
        audit(model, calibration, prompts, assistant="prompt_lookup", eps=0.7)
    assert math.log(2) < 0.7
