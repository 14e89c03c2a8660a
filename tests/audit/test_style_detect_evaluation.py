"""The evaluation of detectors on labelled tables: what is compared, what is left out, what is said."""

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.audit.style_detect import auroc, evaluate_detectors


class Length:
    """A detector: the number at the end of a text is its score."""

    def score_samples(self, texts, domains=None):
        return np.array([float(text.split()[-1]) if text.strip() else np.nan for text in texts])


class Twice(Length):
    def score_matrix(self, texts, domains=None):
        return np.tile(self.score_samples(texts), (2, 1)).astype(np.float32)


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(0, 1, n), rng.normal(1, 1, n), rng.normal(0.2, 1, n)])
    return pd.DataFrame(
        {
            "text": [f"a text of eleven words that ends with a number: {score:.6f}" for score in scores],
            "label": np.repeat([0, 1, 1], n),
            "attack": np.repeat(["", "none", "paraphrase"], n),
            "author": [f"author {place // 4}" for place in range(3 * n)],
        }
    )


pytestmark = pytest.mark.filterwarnings("ignore:max_fpr=:UserWarning")


def evaluated(frame, **options):
    return evaluate_detectors(frame, {"length": Length()}, **{"n_docs": (1, 4), "n_boot": 20, **options})


def test_each_attack_is_compared_with_all_human_texts():
    frame = table()
    found = evaluated(frame, n_docs=(1,)).table.set_index("attack")
    scores = Length().score_samples(frame["text"])
    for attack, rows in (("none", slice(40, 80)), ("paraphrase", slice(80, 120))):
        expected = auroc(np.repeat([0, 1], 40), np.concatenate([scores[:40], scores[rows]]))
        assert found.loc[attack, "auroc"] == pytest.approx(expected, abs=1e-12)
        assert found.loc[attack, ["n_human", "n_machine"]].tolist() == [40, 40]


def test_blocks_are_of_one_author_where_authors_are_given():
    frame = table()
    found = evaluated(frame, group="author", n_docs=(4,), attack=None)
    scores = Length().score_samples(frame["text"]).reshape(-1, 4).mean(axis=1)  # author by author
    assert found.table["auroc"][0] == pytest.approx(auroc(np.repeat([0, 1], [10, 20]), scores), abs=1e-12)
    assert found.how == "blocks of one author each"


def test_an_author_with_too_few_texts_is_counted():
    assert evaluated(table(), group="author", n_docs=(5,)).n_small_groups == 10 + 10 + 10 + 10  # human twice


def test_intervals_hold_the_estimate_and_shrink_with_texts():
    small, large = (evaluated(table(n), n_docs=(1,), max_fpr=0.5, n_boot=200).table.iloc[0] for n in (30, 300))
    for row in (small, large):
        assert row["pauroc_low"] <= row["pauroc"] <= row["pauroc_high"]
    assert large["pauroc_high"] - large["pauroc_low"] < small["pauroc_high"] - small["pauroc_low"]


def test_a_repeated_text_counts_once():
    frame = table()
    found = evaluated(pd.concat([frame, frame[:7]]), n_docs=(1,))
    assert found.n_duplicates == 7
    assert found.table["n_human"].tolist() == [40, 40]
    assert "7 repeated texts were left out" in found.summary()


def test_the_same_seed_gives_the_same_table():
    pd.testing.assert_frame_equal(evaluated(table()).table, evaluated(table()).table)


def test_the_summary_names_the_best_detector_as_chosen_with_the_labels():
    summary = evaluated(table()).summary()
    assert "the best detector of each (max pAUROC; chosen with the labels)" in summary
    assert summary.splitlines()[0].endswith("blocks of a shuffled order")


def test_scores_under_every_support_are_written(tmp_path):
    frame = table()
    result = evaluate_detectors(frame, {"twice": Twice(), "length": Length()}, n_docs=(1,), n_boot=2)
    result.save_scores(tmp_path / "scores.npz")
    with np.load(tmp_path / "scores.npz", allow_pickle=False) as file:
        assert list(file) == ["twice"]
        assert file["twice"].shape == (2, 120)


def test_a_plot_reaches_from_chance_to_the_best():
    low, high = evaluated(table()).plot().axes[0].get_ylim()
    assert low < 0.5
    assert 1 < high < 1.02


def test_a_plot_has_an_axis_for_every_attack():
    axes = evaluated(table()).plot().axes
    assert [ax.get_title() for ax in axes] == ["none", "paraphrase"]


@pytest.mark.filterwarnings("default:max_fpr=:UserWarning")
def test_too_few_human_blocks_for_the_rate_are_named():
    with pytest.warns(
        UserWarning, match=r"^max_fpr=0.01 is below 1 / \(number of human blocks\) for N = 1, 4: pAUROC there"
    ):
        evaluated(table())


def test_an_empty_text_is_left_out_and_named():
    frame = table()
    frame.loc[3, "text"] = "  "
    with pytest.warns(UserWarning, match=r"^column 'text': 1 text \(row 3\) is empty: no score$"):
        found = evaluated(frame, n_docs=(1,))
    assert found.table["n_human"].tolist() == [39, 39]


def test_a_size_that_nothing_fills_has_no_area():
    row = evaluated(table(), n_docs=(50,)).table.iloc[0]
    assert np.isnan(row["auroc"])
    assert row["n_human"] == 0


REFUSED = [
    ({"text": "body"}, {}, r"^the table has no column 'body'; it has text, label, attack, author$"),
    ({}, {"label": 1}, r"^column 'label' has one class; expected both 0 \(human\) and 1 \(machine\)$"),
    ({}, {"label": "ai"}, r"^column 'label', row 0: 'ai' is not a label; expected 0 \(human\) or 1 \(machine\)$"),
    ({}, {"text": 7}, r"^column 'text', row 0: 7 is not a text; expected a string$"),
]


@pytest.mark.parametrize(("options", "columns", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_table_that_cannot_be_used_is_refused(options, columns, message):
    with pytest.raises(InputError, match=message):
        evaluated(table().assign(**columns), **options)
