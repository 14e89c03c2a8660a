"""`assay use model-dowser`: score, train, apply, through the door that a user takes."""

import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table


@pytest.fixture
def lessons(tmp_path):
    rows = [f"w{n} w{n + 1},w{n + 2}" for n in range(1, 60)]
    path = tmp_path / "lessons.csv"
    path.write_text("\n".join(["prompt,answer", *rows]))
    return path


@pytest.fixture
def mask(run, model_dir, tmp_path):
    run("score", model_dir, "--probes", 2, "--length", 8, "--draws", 1, "-o", "mask.safetensors")
    return tmp_path / "mask.safetensors"


def test_a_model_is_scored_and_its_mask_written(run, model_dir, tmp_path):
    printed = run(
        "score", model_dir, "--probes", 2, "--length", 8, "--draws", 1, "--rho", 0.2, "--layers", 1, "-o",
        "new/mask.safetensors", "--table", "matrices.csv",
    ).stdout  # fmt: skip
    from assay.adapt.model_dowser import Mask

    found = Mask.load(tmp_path / "new" / "mask.safetensors")
    assert set(found.trainable) == {f"model.layers.1.{name}.weight" for name in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
        "mlp.down_proj",
    )}  # fmt: skip
    assert found.density() == pytest.approx(0.2, abs=0.001)
    assert f"{found.n_trainable:,} of 30,720 entries of 7 weights train" in printed
    assert len(read_table(tmp_path / "matrices.csv", {"name": "text", "share": "number"})) == 7


def test_real_text_can_take_the_place_of_probes(run, model_dir, tmp_path):
    (tmp_path / "lines.txt").write_text("w1 w2 w3\n\nw4 w5\n")
    assert (
        "entries of 14 weights"
        in run("score", model_dir, "--text", "lines.txt", "--draws", 1, "-o", "m.safetensors").stdout
    )


def test_training_changes_what_the_mask_lets_and_apply_writes_the_tuned_model(run, model_dir, mask, lessons, tmp_path):
    printed = run(
        "train", model_dir, lessons, "--mask", mask, "-o", "delta.safetensors", "--epochs", 3, "--learning-rate", 0.01,
        "--no-forgotten",
    ).stdout  # fmt: skip
    assert "21 steps on 53 examples changed" in printed
    assert "loss on 6 held-out examples" in printed
    run("apply", model_dir, "delta.safetensors", "-o", "taught")
    from assay.adapt.model_dowser import Mask
    from assay.models import load_lm

    before, after = (dict(load_lm(place)[0].named_parameters()) for place in (model_dir, tmp_path / "taught"))
    chosen = Mask.load(mask).trainable
    n_moved = 0
    for name, weight in before.items():
        moved = after[name] != weight
        n_moved += int(moved.sum())
        assert not moved[~chosen.get(name, torch.zeros(weight.shape, dtype=torch.bool))].any()
    assert n_moved > 0.5 * sum(int(part.sum()) for part in chosen.values())


def test_training_measures_what_was_forgotten(run, model_dir, mask, lessons, monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    printed = run("train", model_dir, lessons, "--mask", mask, "-o", "delta.safetensors", "--steps", 2).stdout
    assert printed.startswith("2 steps on 53 examples")
    assert "forgotten: perplexity of prose" in printed


def test_the_help_opens_with_an_example(run):
    said = " ".join(run("--help").stdout.split())
    assert "assay use model-dowser score demo -o mask.safetensors" in said
    for command in ("score", "train", "apply"):
        assert f"Example: assay use model-dowser {command} demo" in " ".join(
            run(command, "--help").stdout.split()
        ).replace("`", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "MODEL", "--rho", "2", "-o", "m"], r"^rho=2\.0: expected the share of weights that train"),
        (["score", "MODEL", "--scope", "row", "-o", "m"], r"^scope='row': expected 'layer' or"),
        (["score", "MODEL", "--layers", "9", "-o", "m"], r"^layers=9: expected a number from 1 to 2, the model"),
        (["score", "MODEL", "--modules", "router", "-o", "m"], r"^modules='router', .*no linear layer .* matches"),
        (["score", "MODEL", "--text", "absent", "-o", "m"], r"^absent cannot be read as UTF-8 text"),
        (["score", "MODEL", "--text", "empty.txt", "-o", "m"], r"^empty\.txt holds no line with text; write one"),
        (["score", "nowhere/", "-o", "m"], r"^nowhere/ is neither a folder nor a model in the local Hugging Face"),
        (["train", "MODEL", "lessons.csv", "--mask", "absent", "-o", "d"], r"^absent cannot be read as safetensors"),
        (["train", "MODEL", "lessons.csv", "--mask", "mask.safetensors", "-o", "d", "--learning-rate", "0"],
         r"^--learning-rate 0: expected a number above 0$"),
        (["train", "MODEL", "lessons.csv", "--mask", "mask.safetensors", "-o", "d", "--answer", "prompt"],
         r"^--prompt and --answer both name the column 'prompt'; they are two columns$"),
        (["train", "MODEL", "none.csv", "--mask", "mask.safetensors", "-o", "d"], r"none\.csv"),
        (["train", "MODEL", "lessons.csv", "--mask", "mask.safetensors", "-o", "d", "--answer", "reply"], r"reply"),
        (["apply", "MODEL", "mask.safetensors", "-o", "out"], r"^mask\.safetensors is not a delta of model-dowser"),
        (["apply", "MODEL", "mask.safetensors", "-o", "."], r"^\. is there already; give the name of a new or empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(run, model_dir, mask, lessons, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "none.csv").write_text("prompt,answer\n")
    with pytest.raises(InputError, match=message):
        run(*[str(model_dir) if word == "MODEL" else word for word in arguments])
