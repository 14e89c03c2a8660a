import json

import pytest
from toy_trial import TOY, run

from assay._core.errors import InputError
from assay.bench import Result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(TOY, tmp_path_factory.mktemp("run") / "toy", jobs=1)


def test_a_result_comes_back_as_it_was_written(finished):
    assert Result.load(finished.folder) == finished


def test_the_text_is_the_file(finished):
    assert finished.to_json() == (finished.folder / "result.json").read_text(encoding="utf-8")


def test_the_dict_is_the_file(finished):
    assert json.loads(json.dumps(finished.to_dict())) == json.loads(finished.to_json())


def test_the_summary_has_the_verdict_and_every_arm(finished):
    text = " ".join(finished.summary().split())
    assert all(part in text for part in [finished.verdict.sentence, "mean *", *(arm.name for arm in TOY.arms)])


def test_the_summary_rounds_to_four_digits(finished):
    estimate = finished.arms[0].metrics["distance"]
    expected = f"{estimate.mean:.4g} [{estimate.ci_low:.4g}, {estimate.ci_high:.4g}]"
    assert expected in finished.summary()


def test_the_columns_of_the_summary_stand_below_each_other(finished):
    rows = [
        line
        for line in finished.summary().splitlines()
        if line.startswith(("arm ", "mean *", "first value", "a value"))
    ]
    assert len({len(row) for row in rows}) == 1


def test_the_table_of_cases_has_a_row_for_each_case_and_arm(finished):
    assert len(finished.to_frame()) == 8 * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no result.json; give the folder of a finished run$"),
        ("{", "result.json cannot be read as JSON"),
        ("[]", "result.json has schema None, this version reads 1; run the trial again$"),
        ('{"schema": 2}', "result.json has schema 2, this version reads 1; run the trial again$"),
        ('{"schema": 1, "arms": []}', "result.json is not a result as we write it"),
    ],
)
def test_a_result_that_cannot_be_read_is_explained(tmp_path, text, message):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=message):
        Result.load(tmp_path)
