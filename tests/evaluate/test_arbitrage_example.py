"""The script that a person would send to a colleague."""

import json
import subprocess
import sys
from pathlib import Path

from assay.evaluate.arbitrage import CascadePolicy

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "which_two_providers_should_i_mix.py"


def test_it_names_the_pair_to_mix_and_is_under_forty_lines(tmp_path):
    attempts = {
        "cheap": [[1, 1] if i % 2 else [0, 0] for i in range(30)],
        "dear": [[1, 1] for _ in range(30)],
    }
    for (name, tried), cost in zip(attempts.items(), (1.0, 10.0), strict=True):
        lines = [json.dumps({"id": f"t{i}", "mean_cost": cost, "attempts": a}) for i, a in enumerate(tried)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    command = [sys.executable, EXAMPLE, "cheap.jsonl", "dear.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=True)
    assert "Spend 1" in done.stdout  # half of the tasks are solved for 1, and never reach the dear one
    assert "on cheap, then move on." in done.stdout
    assert CascadePolicy.load(tmp_path / "policy.json").order_ == ("cheap", "dear")
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 40
