"""The one list of methods: what each is, where its code is, and the paper it comes from.

Everything that lists methods (the command line, the README's table, the docs) reads this list. Code is named by
import path and loaded on demand, so that reading the list costs nothing. Another package adds its methods through
the entry-point group ``assay.methods``: each entry point names a :class:`Method`.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay._core.extras import DISTRIBUTION

if TYPE_CHECKING:
    from assay.bench.spec import Trial

ENTRY_POINT_GROUP = "assay.methods"

FAMILIES: dict[str, str] = {
    "compress": "a smaller, cheaper model",
    "decode": "faster or better generation",
    "nn": "a layer or architecture to drop in",
    "adapt": "teach or steer a model",
    "rl": "train by reward",
    "evaluate": "measure models",
    "audit": "know what to trust",
    "generate": "model a distribution",
    "solve": "find structure or a good solution",
    "synth": "make training data",
    "vision": "see",
    "explain": "understand how models work",
}


@dataclass(frozen=True)
class Paper:
    """The paper a method comes from.

    Parameters
    ----------
    title : str
    authors : str
        Family names, separated by commas; empty where we do not know them.
    arxiv : str
        arXiv id, empty if there is none.
    code : str
        ``owner/name`` of the authors' repository on GitHub, empty if there is none.
    """

    title: str
    authors: str = ""
    arxiv: str = ""
    code: str = ""
    year: int = 2026
    venue: str = "International Conference on Machine Learning (ICML)"

    def bibtex(self, key: str) -> str:
        """Citation as a BibTeX entry with the key `key`."""
        fields = {
            "title": f"{{{self.title}}}",
            "author": self.authors.replace(", ", " and "),
            "booktitle": self.venue,
            "year": str(self.year),
            "eprint": self.arxiv,
            "archivePrefix": "arXiv" if self.arxiv else "",
            "howpublished": f"\\url{{https://github.com/{self.code}}}" if self.code else "",
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@inproceedings{{{key},", *lines, "}"])


@dataclass(frozen=True)
class Method:
    """One entry of the catalog.

    Parameters
    ----------
    slug : str
        The name of the method in commands, files and docs.
    title, summary : str
        For people: a name, and one line that says what a user gets.
    family : str
        A key of `FAMILIES`, or a new family of another package.
    paper : Paper
    status : "available" or "planned"
    interface, trial, use : str
        Import paths ``"package.module:name"`` of the public class or function, of its
        :class:`~assay.bench.Trial`, and of its Typer app for ``assay use``.
    extra : str
        The extra to install for it; empty if the base installation is enough.
    tags : tuple of str
    use_when, not_when : str
        When a person should and should not reach for it.
    measured : str
        What our own trial found, in one or two sentences with the command's name.
    """

    slug: str
    title: str
    family: str
    summary: str
    paper: Paper
    status: Literal["available", "planned"] = "planned"
    interface: str = ""
    trial: str = ""
    use: str = ""
    extra: str = ""
    tags: tuple[str, ...] = ()
    use_when: str = ""
    not_when: str = ""
    measured: str = ""

    def load_interface(self) -> Any:
        """The public class or function of the method."""
        return _load(self, self.interface)

    def load_trial(self) -> Trial:
        """The method's trial."""
        trial: Trial = _load(self, self.trial)
        return trial

    def load_use(self) -> Any:
        """The Typer app behind ``assay use``."""
        return _load(self, self.use)


def _load(method: Method, path: str) -> Any:
    if not path:
        raise InputError(f"{method.slug} is planned and not available yet; `assay list` shows what is")
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not method.extra or missing == module.partition(".")[0]:
            raise
        raise InputError(
            f"{method.slug} needs the package {missing!r}, which is not installed: "
            f"pip install '{DISTRIBUTION}[{method.extra}]'"
        ) from None


@cache
def methods() -> dict[str, Method]:
    """Every method by its slug: those of this package in the order of the families, then those of other packages."""
    found = {method.slug: method for method in METHODS}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            method = point.load()
        except Exception as error:  # another package's fault must not take the list down
            warnings.warn(f"the method {point.name!r} ({point.value}) cannot be loaded: {error}", stacklevel=2)
            continue
        if not isinstance(method, Method) or method.slug in found:
            reason = "its slug is taken" if isinstance(method, Method) else "it is not a Method"
            warnings.warn(f"the method {point.name!r} ({point.value}) is left out: {reason}", stacklevel=2)
            continue
        found[method.slug] = method
    return found


def available() -> list[Method]:
    """The methods that can be used now."""
    return [method for method in methods().values() if method.status == "available"]


def get(slug: str) -> Method:
    """The method `slug`.

    Raises
    ------
    InputError
        There is no such method; the message names the nearest.
    """
    if slug in methods():
        return methods()[slug]
    near = difflib.get_close_matches(slug, methods(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`assay list --all` shows them all"
    raise InputError(f"there is no method {slug!r}; {hint}")


# fmt: off
METHODS: tuple[Method, ...] = (
    # ------------------------------------------------------------------ compress: a smaller, cheaper model
    Method(
        "liftquant", "LiftQuant", "compress",
        "Quantise weights to any bit width, fractions included, through a lifted lattice.",
        Paper("LiftQuant: Continuous Bit-Width LLM via Dimensional Lifting and Projection", arxiv="2606.04050",
              code="Heliulu/LiftQuant"),
        status="available",
        interface="assay.compress.liftquant:quantize_",
        trial="assay.trials.compress.liftquant:TRIAL",
        use="assay.cli.use.liftquant:app",
        extra="lm",
        use_when="weights must fit a size between whole bits.",
        not_when="4 bits or more suffice, or a CPU should get faster.",
        measured="+0.44 dB [0.43, 0.45] over a k-means codebook on normal numbers at 2 bits; SmolLM2 at 3 bits without "
                 "data: KL 2.18 times GPTQ's [2.00, 2.36], contradicted, and 0.55 times that of rounding in groups of "
                 "128 (assay try liftquant --scale standard).",
    ),
    Method(
        "mxint", "Fine-grained integer formats", "compress",
        "Block-scaled MXINT and NVINT formats beside their floating-point twins.",
        Paper("INT v.s. FP: A Comprehensive Study of Fine-Grained Low-bit Quantization Formats", arxiv="2510.25602",
              code="ChenMnZ/INT_vs_FP"),
        status="available",
        interface="assay.compress.mxint:quantize_",
        trial="assay.trials.compress.mxint:TRIAL",
        use="assay.cli.use.mxint:app",
        extra="lm,torchao",
        use_when="you want weights (and activations) in 8, 6 or 4 bits without calibration data, or choose a number "
                 "format for hardware.",
        not_when="you want a CPU to run faster, or the least loss at 4 bits and below: methods that see data lose "
                 "less.",
        measured="SmolLM2-135M, weights and activations: KL of MXINT8 0.25 times that of the best 8-bit baseline "
                 "[0.23, 0.28]; at 4 bits rotated NVINT4 0.91 times NVFP4's [0.83, 0.97], unclear (assay try mxint "
                 "--scale standard).",
    ),
    Method(
        "dynamic-whitening", "Distribution-aware whitening", "compress",
        "Low-rank factors that account for the error of the layers before them.",
        Paper("Mitigating Error Propagation in Low-Rank Approximation of Large Models via Distribution-Aware "
              "Whitening"),
        status="available",
        interface="assay.compress.dynamic_whitening:factorize_",
        trial="assay.trials.compress.dynamic_whitening:TRIAL",
        use="assay.cli.use.dynamic_whitening:app",
        extra="lm,peft",
        use_when="you want fewer parameters in a model's linear layers without training, as dense matrices.",
        not_when="8- or 4-bit numbers will do: they keep far more at equal bytes; or you expect dynamic inputs to beat "
                 "SVD-LLM's by themselves.",
        measured="SmolLM2 at 0.8 kept: KL 0.971 times SVD-LLM's [0.950, 0.999], unclear; digits: the paper's target "
                 "1.13 times the error of static, anchored 0.64 times (on SmolLM2 1.34; assay try "
                 "dynamic-whitening --scale standard).",
    ),
    Method(
        "rt-lynx", "RT-Lynx", "compress",
        "Sparsify activations instead of weights in the matrix products of diffusion models.",
        Paper("RT-Lynx: Putting GEMM Sparsity in the Right Place for Diffusion Models", arxiv="2605.26632"),
        status="available",
        interface="assay.compress.rt_lynx:sparsify_",
        trial="assay.trials.compress.rt_lynx:TRIAL",
        use="assay.cli.use.rt_lynx:app",
        extra="lm",
        use_when="you run a diffusion transformer on a GPU with sparse tensor cores and want to know what 2:4 inputs "
                 "cost in quality before anybody writes kernels.",
        not_when="you are on a CPU, want a smaller file, or may prune the weights of a language model and repair them, "
                 "which lost less here.",
        measured="digits diffusion: Fréchet distance 1.02 times that of repaired 2:4 weights [1.01, 1.04], "
                 "contradicted, 0.77 times that of bare 2:4 inputs; SmolLM2's MLPs: KL 1.83 times that of repaired "
                 "weights [1.74, 1.96] (assay try rt-lynx --scale standard).",
    ),
    # ------------------------------------------------------------------ decode: faster or better generation
    Method(
        "arc-decode", "ARC-Decode", "decode",
        "Speculative decoding that accepts more drafts at a bounded risk.",
        Paper("ARC-Decode: Accelerated Decoding with Risk-Bounded Acceptance", "Li, Wang, Chen, Lv, Wang",
              code="NeuraLiying/ARC-Decode"),
        status="available",
        interface="assay.decode:arc_generate",
        trial="assay.trials.decode.arc_decode:TRIAL",
        use="assay.cli.use.arc_decode:app",
        extra="lm",
        use_when="you sample (temperature above 0) with a draft model on a GPU, and a small, stated departure from "
                 "the target's law is acceptable.",
        not_when="the law of the output matters (use lam=0, lossless), decoding is greedy, or the target is small or "
                 "on a CPU.",
        measured="under 2 % more tokens a pass than lossless speculation at 1 % total variation, on two small models; "
                 "its added tokens shift the next step a quarter as much as typical acceptance's at the same price "
                 "(quick, 20 and 12 cases); on SmolLM2 1.27 against 1.08 tokens a pass with prompt lookup, none with "
                 "a weak draft (assay try arc-decode; --scale standard, 8 prompts).",
    ),
    Method(
        "dyllm", "DyLLM", "decode",
        "Recompute only the salient tokens in a diffusion language model.",
        Paper("DyLLM: Efficient Diffusion LLM Inference via Saliency-based Token Selection and Partial Attention",
              arxiv="2603.08026", code="scale-snu/DyLLM"),
        status="available",
        interface="assay.decode:DyLLMGenerator",
        trial="assay.trials.decode.dyllm:TRIAL",
        use="assay.cli.use.dyllm:app",
        extra="lm",
        use_when="you decode with a masked diffusion language model (LLaDA, Dream, a masked BERT) of width 512 or "
                 "more, a token or a few a step.",
        not_when="the model is autoregressive or narrow, text must equal plain decoding token for token, or "
                 "Fast-dLLM's dual cache is good enough: it was faster here.",
        measured="5.4 times full recomputation's speed at a salient share of 8 % (width 512, random weights, --scale "
                 "standard), 1.26 times as slow as the best other cache [1.22, 1.30]; pseudo-NLL of its text 1.07 "
                 "times full recomputation's [1.02, 1.14] on a small trained model, a Fast-dLLM cache's 1.02.",
    ),
    Method(
        "tmafc", "Fractal consistency", "decode",
        "Stop sampling once more answers would no longer change the vote.",
        Paper("Task-and-Model-Aware Fractal-Consistency for Efficient LLM Reasoning", code="MAX00101/TMAFC"),
        status="available",
        interface="assay.decode:TMAFC",
        trial="assay.trials.decode.tmafc:TRIAL",
        use="assay.cli.use.tmafc:app",
        extra="lm,openai",
        use_when="you sample a model several times and vote, answers have several parts (JSON fields, entities, "
                 "sub-answers), and you pay by the sample.",
        not_when="answers have one part (it is then Adaptive-Consistency), or a wrong answer costs more than samples: "
                 "switch the calibration off.",
        measured="20 to 41 % fewer samples than Adaptive-Consistency, at higher accuracy on two of three sources "
                 "(unclear on SmolLM2); the fitted prior gives back 3 to 5 points against voting by component on two "
                 "of three (assay try tmafc --scale standard).",
    ),
    # ------------------------------------------------------------------ nn: a layer or architecture to drop in
    Method(
        "lucid", "LUCID attention", "nn",
        "Attention that stays sharp at long context by preconditioning similar keys.",
        Paper("LUCID: Attention with Preconditioned Representations", "Duvvuri, Patel, Gupta, Dhillon",
              arxiv="2602.10410", code="saisuryadv/LUCID"),
        status="available",
        interface="assay.nn:LucidAttention",
        trial="assay.trials.nn.lucid:TRIAL",
        use="assay.cli.use.lucid:app",
        extra="lm",
        use_when="you train or fine-tune a decoder with normalised queries and keys, many keys are alike (assay use "
                 "lucid inspect), and groups of query heads share keys.",
        not_when="the model will not be trained further, or a lower softmax temperature is open to you: it did better.",
        measured="0.57 times softmax's recall error at the usual temperature; behind it where both choose theirs or "
                 "logits are free; a small language model loses nothing; SmolLM2 switched without training goes "
                 "from 2.9 to 7.1 nats (assay try lucid --scale standard).",
    ),
    Method(
        "memoryllm", "MemoryLLM", "nn",
        "Feed-forward layers as a token-wise memory that can live on disk.",
        Paper("MemoryLLM: Plug-n-Play Interpretable Feed-Forward Memory for Transformers", arxiv="2602.00398"),
        status="available",
        interface="assay.nn:MemoryLlamaForCausalLM",
        trial="assay.trials.nn.memoryllm:TRIAL",
        use="assay.cli.use.memoryllm:app",
        extra="lm",
        use_when="you pretrain a language model and want feed-forward layers that can be read token by token, or kept"
                 " on disk while it decodes.",
        not_when="the model is trained already, the tokenizer still changes, or disk is short: a float16 table is "
                 "larger than the weights that it replaces.",
        measured="small models, one start: perplexity 0.66 times that of a dense model of the same total size after "
                 "600 steps, 1.05 times after 2,400; an int4 table costs nothing; decoding takes 0.52 times the dense "
                 "twin's CPU time at width 512 [0.52, 0.53] (assay try memoryllm --scale standard).",
    ),
    Method(
        "amips", "Amortised inner-product search", "nn",
        "Learned maximum inner-product search through support functions.",
        Paper("Amortizing Maximum Inner Product Search with Learned Support Functions",
              "Olausson, Monteiro, Klein, Cuturi", arxiv="2603.08001", code="apple/ml-amips"),
        status="available",
        interface="assay.nn:KeyNet",
        trial="assay.trials.nn.amips:TRIAL",
        use="assay.cli.use.amips:app",
        extra="search",
        use_when="you search fixed keys through an inverted file, have a dense log of queries (ten or more a key), and "
                 "queries lie far from their keys.",
        not_when="you can use HNSW, the log is thin, queries look like keys, or there are fewer than some 100,000 "
                 "keys: the net costs more than it saves.",
        measured="best key in one opened list 0.86 beside 0.80 raw, at 21 times the operations, and 0.95 by HNSW at a "
                 "twentieth of them; first of ten clusters 0.88 beside 0.74 by centroids (assay try amips --scale "
                 "standard)",
    ),
    Method(
        "score-tokenizer", "Score-function tokenisation", "nn",
        "A tokeniser learned end to end with the model by reinforcement learning.",
        Paper("You Can Learn Tokenization End-to-End with Reinforcement Learning", "Dauncey, Wattenhofer",
              arxiv="2602.13940", code="SamD770/bitter-lesson-tokenization"),
    ),
    Method(
        "gaussian-quant", "Gaussian Quant", "nn",
        "Vector quantisation from a Gaussian VAE, with no training of the codebook.",
        Paper("Training-Free Vector Quantization via Gaussian VAEs", arxiv="2512.06609",
              code="tongdaxu/VQ-VAE-from-Gaussian-VAE"),
    ),
    # ------------------------------------------------------------------ adapt: teach or steer a model
    Method(
        "lora-memory", "LoRA memory", "adapt",
        "Keep facts in LoRA modules: write, route, merge, read and audit them.",
        Paper("Understanding LoRA as Knowledge Memory: An Empirical Analysis", "Back, Lee, Kang, Lee, Hong, Gwon, Ahn",
              arxiv="2603.01097", code="ahn-ml/Understanding-LoRA-as-Knowledge-Memory"),
        status="available",
        interface="assay.adapt:LoRAMemory",
        trial="assay.trials.adapt.lora_memory:TRIAL",
        use="assay.cli.use.lora_memory:app",
        extra="lm,peft",
        use_when="a fixed body of facts must be answered from short prompts, by a model you can train adapters for.",
        not_when="the facts change often, are asked in many wordings, or can be looked up by their words (use "
                 "retrieval).",
        measured="a phone book of 64 in SmolLM2: by heart 0.65 from routed modules, 1.00 from one large LoRA, 0.65 by "
                 "BM25, 0.08 from the whole book in the prompt; in other words 0.06, 0.84, 0.51, 0.06 (assay try "
                 "lora-memory --scale standard; contradicted).",
    ),
    Method(
        "model-dowser", "Model-Dowser", "adapt",
        "Fine-tune only the parameters whose change costs no old skill, found without data.",
        Paper("Model-Dowser: Data-Free Importance Probing to Mitigate Catastrophic Forgetting in Multimodal Large "
              "Language Models", "Hwang, Son, Kim", arxiv="2602.04509"),
        status="available",
        interface="assay.adapt:importance",
        trial="assay.trials.adapt.model_dowser:TRIAL",
        use="assay.cli.use.model_dowser:app",
        extra="lm",
        use_when="you fine-tune a language or vision-language model on something narrow and must keep what it could do "
                 "before.",
        not_when="the model is small or weak, its weights are quantised, or forgetting does not matter: training "
                 "everything learns faster.",
        measured="SmolLM2 taught a narrow task to half of the loss diverges by 0.010 nats from the model before, by "
                 "0.011 with a Wanda-type mask, 0.019 with full fine-tuning, 0.073 with LoRA (assay try model-dowser "
                 "--scale standard).",
    ),
    Method(
        "aco-moe-lora", "ACO-MoE-LoRA", "adapt",
        "Mixture of LoRA experts whose routing and ranks evolve during training.",
        Paper("ACO-MoE-LoRA: Evolving-while-Training for Adapting Segment Anything Model 2 to Specialized Domains"),
    ),
    Method(
        "psr", "Prompt steering replacement", "adapt",
        "Steer a model as its prompt would, without the prompt.",
        Paper("Steer Like the LLM: Activation Steering that Mimics Prompting", "Heyman, Vandeputte",
              arxiv="2605.03907", code="Nokia-Bell-Labs/steer-like-the-llm"),
        status="available",
        interface="assay.adapt:PSR",
        trial="assay.trials.adapt.psr:TRIAL",
        use="assay.cli.use.psr:app",
        extra="lm",
        use_when="you steer a model by a prompt and want its effect without its tokens, with a strength and a view of "
                 "where it acts.",
        not_when="the prompt costs you nothing, works by facts that the model reads from it, or one layer is all you "
                 "may touch.",
        measured="at all layers of SmolLM2 it mimics a persona's prompt with relative error 0.77, constant vectors "
                 "0.89; as strong as the prompt, its answers have 0.61 times their perplexity and 1.27 times the "
                 "prompt's (assay try psr --scale standard); at one layer next to no gain (0.948, 0.953).",
    ),
    Method(
        "reflector", "Reflector", "adapt",
        "Train a model to notice and leave a harmful path in the middle of its own reasoning.",
        Paper("Reflector: Internalizing Step-wise Reflection against Indirect Jailbreaks", arxiv="2605.20654",
              code="mjc-ma-01/self-reflection-llm"),
    ),
    # ------------------------------------------------------------------ rl: train by reward
    Method(
        "geoalign", "GeoAlign", "rl",
        "Replace high-reward rollouts that point away from the batch's consensus.",
        Paper("GeoAlign: Geometric Rollout Curation for Robust LLM Reinforcement Learning",
              "Zhou, Ling, Zhao, Shen, Chen", arxiv="2606.26917"),
    ),
    Method(
        "snr-filter", "SNR-aware filtering", "rl",
        "Train on the prompts that carry signal, and see reasoning collapse before the reward shows it.",
        Paper("RAGEN-2: Reasoning Collapse in Agentic RL", arxiv="2604.06268", code="mll-lab-nu/RAGEN"),
    ),
    Method(
        "lsflow", "LSFlow", "rl",
        "Flow policies on a sphere for combinatorial actions, with a solver in the loop.",
        Paper("Latent Spherical Flow Policy for Reinforcement Learning with Combinatorial Actions", arxiv="2601.22211",
              code="anagha-satish/combinatorial-diffusion"),
    ),
    Method(
        "apmpo", "APMPO", "rl",
        "Constrained reinforcement learning by a primal policy with an adaptive penalty.",
        Paper("APMPO: model-free primal policy optimisation with a violation-aware adaptive penalty for constrained "
              "MDPs"),
    ),
    Method(
        "vla-mbpo", "VLA-MBPO", "rl",
        "Improve a vision-language-action policy inside a learned world model.",
        Paper("Towards Practical World Model-based Reinforcement Learning for Vision-Language-Action Models",
              arxiv="2603.20607", code="Rhx11111/VLA-MBPO"),
    ),
    # ------------------------------------------------------------------ evaluate: measure models
    Method(
        "judge-rank", "Judge-aware ranking", "evaluate",
        "Rank models from the votes of judges whose reliability differs, with honest intervals.",
        Paper("A Judge-Aware Ranking Framework for Evaluating Large Language Models without Ground Truth",
              "Xu, Tan, Wu, Zhou", arxiv="2601.21817", code="TanXZfra/Judge-Aware-Ranking-Framework-for-LLMs"),
        status="available",
        interface="assay.evaluate:JudgeRanking",
        trial="assay.trials.evaluate.judge_rank:TRIAL",
        use="assay.cli.use.judge_rank:app",
        extra="evaluate",
        tags=("tour",),
        use_when="you have pairwise verdicts of several judges (LLM judges, annotators, metrics) and no gold labels.",
        not_when="there is a single judge, or you have true labels: then use plain Bradley–Terry, or the labels.",
        measured="Kendall's tau with the truth +0.026 [+0.020, +0.032] over the strongest of four baselines on real "
                 "classifiers; held-out log loss -0.019 nats on Chatbot Arena votes "
                 "(assay try judge-rank --scale standard).",
    ),
    Method(
        "bridge", "BRIDGE", "evaluate",
        "Put models and tasks on one scale with human time, and forecast task horizons.",
        Paper("BRIDGE: Predicting Human Task Completion Time From Model Performance",
              "Liu, Gala, Nilaksh, Bahdanau, Reddy, Larochelle", arxiv="2602.07267", code="McGill-NLP/BRIDGE"),
        status="available",
        interface="assay.evaluate:TimeHorizonIRT",
        trial="assay.trials.evaluate.bridge:TRIAL",
        use="assay.cli.use.bridge:app",
        tags=("tour",),
        use_when="you have a patchy table of which models solved which tasks, and human times for some of the tasks.",
        not_when="you need the minutes of a single task, or of a benchmark that was timed in another way: classes of "
                 "time carry over, minutes do not.",
        measured="Held-out human times of METR's tasks: mean |log ratio| 1.12 against 1.72 for success rates; "
                 "on SWE-bench from METR's times kappa 0.235 [0.183, 0.286] against 0.095, but a constant is "
                 "nearer in minutes (assay try bridge --scale standard).",
    ),
    Method(
        "arbitrage", "Model-market arbitrage", "evaluate",
        "What a mix of model providers would really earn or save, from recorded attempts.",
        Paper("Computational Arbitrage in AI Model Markets", "Olmedo, Schoelkopf, Hardt", arxiv="2603.22404",
              code="RicardoDominguez/computational-arbitrage"),
        status="available",
        interface="assay.evaluate:CascadePolicy",
        trial="assay.trials.evaluate.arbitrage:TRIAL",
        use="assay.cli.use.arbitrage:app",
        use_when="you have several solvers with a price per attempt, a verifier you trust, and recorded attempts.",
        not_when="answers cannot be verified, each task was attempted once, or asking the providers in turn already "
                 "saves as much (the trial tells).",
        measured="7 % [4, 11] cheaper than the best single provider on real factoring algorithms; on three "
                 "recorded coding agents 22 % [−2, 45], no better than asking them in turn, and not told from "
                 "a tuned router (assay try arbitrage --scale standard).",
    ),
    Method(
        "cc-icl", "Criterion-conditional ICL", "evaluate",
        "Measure whether a model follows a criterion that shifts between examples.",
        Paper("Criterion-Conditional In-Context Learning: Evaluating Criterion-Shift Adaptation in Vision-Language "
              "Models", "Yang, Yang, Yao, Wang, Ge", arxiv="2607.02575",
              code="CC-ICL/Criterion-Conditional-In-Context-Learning"),
        status="available",
        interface="assay.evaluate.cc_icl:evaluate",
        trial="assay.trials.evaluate.cc_icl:TRIAL",
        use="assay.cli.use.cc_icl:app",
        extra="evaluate,lm",
        use_when="a model decides from a few labelled examples how strict to be, and you must know whether it follows "
                 "them or keeps a boundary of its own.",
        not_when="the criterion can be written down (write it into the prompt), or you want decisions rather than a "
                 "test (learn the categories and match).",
        measured="Training under many criteria lifts criterion sensitivity from 0.00 to 0.96 on digits, but learning "
                 "the categories and matching is ahead of it (0.99): unclear. Prompted, SmolLM2-135M follows no "
                 "criterion (assay try cc-icl --scale standard).",
    ),
    # ------------------------------------------------------------------ audit: know what to trust
    Method(
        "dataguard", "DataGuard", "audit",
        "Find out whether a model was trained on your data.",
        Paper("DataGuard: A Non-intrusive Dataset Auditing Framework via Differential Information Forensics"),
        status="available",
        interface="assay.audit:DataGuardAuditor",
        trial="assay.trials.audit.dataguard:TRIAL",
        use="assay.cli.use.dataguard:app",
        extra="audit",
        use_when="you own a data set, can ask a model for probabilities, and hold data of the same kind that it "
                 "certainly never saw.",
        not_when="your other data is of another source or time, or you need to know which samples were used.",
        measured="0 false alarms in 200 unrelated networks at level 0.01 [0, 0.018]; use of a quarter or a half of 300 "
                 "samples found in 0.56 of cases against 0.41 for a t-test of the loss, though the loss with the same "
                 "references finds 0.71 (assay try dataguard --scale standard).",
    ),
    Method(
        "tsef", "TSEF", "audit",
        "Test whether the explanations of a time-series classifier can be fooled.",
        Paper("Exposing Vulnerabilities in Explanation for Time Series Classifiers via Dual-Target Attacks",
              "Wang, Liu, Lin, Liu, Xiong, Jin, Jin", arxiv="2602.02763", code="Bohan7/TSEF"),
        status="available",
        interface="assay.audit:TSEF",
        trial="assay.trials.audit.tsef:TRIAL",
        use="assay.cli.use.tsef:app",
        extra="series",
        use_when="you ship a time-series classifier with a saliency map and want to know how often its prediction can "
                 "change while the map stays.",
        not_when="you want the strongest attack for your time (joint gradient steps, in every report, did at least as "
                 "well), or a defence.",
        measured="apart on 1.00 of simulated and 0.86 of real series, joint PGD 1.00 and 0.87 (unclear), PGD on the "
                 "label alone 0.89 and 0.65 (assay try tsef --scale standard).",
    ),
    Method(
        "style-detect", "Style few-shot detector", "audit",
        "Detect machine text by its style from a few examples, at a stated error rate.",
        Paper("Attacks on Machine-Text Detectors Retain Stylistic Fingerprints", "Rivera Soto, Chen, Andrews",
              arxiv="2505.14608", code="rrivera1849/style-aware-paraphrasing"),
        status="available",
        interface="assay.audit:StyleFewShotDetector",
        trial="assay.trials.audit.style_detect:TRIAL",
        use="assay.cli.use.style_detect:app",
        extra="lm",
        use_when="you have a few texts that a machine wrote and human texts of the kind you judge, and want flags "
                 "that carry their error rate.",
        not_when="you need proof about one person, your human texts are of another kind, or machine text may be "
                 "unlike your examples.",
        measured="on SmolLM2 text unlike the examples TF-IDF did better (AUROC 0.68, few-shot style with an untrained"
                 " encoder 0.38, Fast-DetectGPT 0.42; plain 0.90, 0.70, 0.97); 5 to 7 % of human texts flagged for 5 "
                 "% asked (assay try style-detect --scale standard).",
    ),
    Method(
        "pgc", "Peak-guided calibration", "audit",
        "Detect generated images by calibrating on their most telling patches.",
        Paper("PGC: Peak-Guided Calibration for Generalizable AI-Generated Image Detection",
              "Zhou, Fei, Yu, Xie, Cheng, Xia", arxiv="2605.21207", code="xiaoyu6868/PGC"),
    ),
    Method(
        "audio-deepfake-scaling", "Audio deepfake scaling", "audit",
        "How a fake-speech detector improves with data, and which data to add.",
        Paper("Scaling Laws in Model Fine-tuning for Audio DeepFake Detection"),
    ),
    Method(
        "mpfm", "Multi-domain prototype flow matching", "audit",
        "Detect anomalies in logs of several systems with one model.",
        Paper("Cross Multi-Domain Prototype Flow Matching for Log Anomaly Detection"),
        status="available",
        interface="assay.audit:MPFMDetector",
        trial="assay.trials.audit.mpfm:TRIAL",
        use="assay.cli.use.mpfm:app",
        extra="lm",
        use_when="you have mostly normal logs of several systems and want one model that says which lines offend.",
        not_when="one regular system (a next-event model is cheaper), normal traffic that drifts over months, or you "
                 "only look for unseen messages.",
        measured="AUROC 0.921 beside 0.944 of an LSTM per system on simulated systems (contradicted), 0.724 beside "
                 "0.684 on ten real logs with faults put in (unclear; assay try mpfm --scale standard).",
    ),
    # ------------------------------------------------------------------ generate: model a distribution
    Method(
        "koopman-cfm", "Koopman flow matching", "generate",
        "Turn a trained flow into a linear one: sample in one step, edit and invert by modes.",
        Paper("Unfolding Generative Flows with Koopman Operators: Trajectory-Preserving Linearization",
              "Turan, Siozopoulos, Martinez, Gaubil, Pierson, Ovsjanikov", arxiv="2506.22304",
              code="limesqueezy/jump-with-the-flow"),
    ),
    Method(
        "inverse-eot", "Inverse entropic transport", "generate",
        "Conditional distributions from few pairs and many unpaired samples.",
        Paper("Inverse Entropic Optimal Transport Solves Semi-supervised Learning via Data Likelihood Maximization",
              "Persiianov, Asadulaev, Andreev, Starodubcev, Baranchuk, Kratsios, Burnaev, Korotin",
              arxiv="2410.02628", code="MuXauJl11110/EBiEOT"),
    ),
    Method(
        "perturbdiff", "PerturbDiff", "generate",
        "Predict how cell populations respond to perturbations, as distributions.",
        Paper("PerturbDiff: Functional Diffusion for Single-Cell Perturbation Modeling",
              "Yuan, Liu, Zhang, Zhang, Guo, Tang", arxiv="2602.19685", code="DeepGraphLearning/PerturbDiff"),
    ),
    Method(
        "fsq-diffusion", "FSQ diffusion", "generate",
        "Continuous diffusion over finite-scalar-quantised tokens.",
        Paper("Optimality of FSQ Tokens for Continuous Diffusion for Categorical Data, with Application to "
              "Text-to-Speech", arxiv="2606.09962", code="li1jkdaw/CDCD-TTS"),
    ),
    # ------------------------------------------------------------------ solve: find structure or a good solution
    Method(
        "cam", "Combinatorial adjoint matching", "solve",
        "Graph problems by a diffusion solver that is trained without solutions.",
        Paper("Unsupervised Diffusion Solver for Combinatorial Optimization via Combinatorial Adjoint Matching",
              "Feng, Suresh, Yang", arxiv="2605.30920", code="Shengyu-Feng/CAM"),
    ),
    Method(
        "greinss", "GReinSS", "solve",
        "Learn a distribution over discrete latent structures from what they emit.",
        Paper("GReinSS: Generative Modeling of Discrete Latent Structures via Dynamic Policy Gradients",
              "Ivanovic, Liu, El-Kebir", arxiv="2606.07400", code="elkebir-group/GReinSS"),
    ),
    Method(
        "caot-stc", "CAOT-STC", "solve",
        "Cluster short texts by optimal transport that looks at neighbours too.",
        Paper("Beyond Looking Up, Try Looking Around: Harmonizing Global Structure and Local Consistency in Optimal "
              "Transport for Short Text Clustering", code="YZH0905/CAOT-STC"),
        status="available",
        interface="assay.solve:ShortTextClusterer",
        trial="assay.trials.solve.caot_stc:TRIAL",
        use="assay.cli.use.caot_stc:app",
        extra="lm,cluster",
        use_when="you have many short texts, a rough number of groups of similar size, and want a classifier for new "
                 "texts; or predictions and a similarity to turn into balanced pseudo-labels.",
        not_when="the embeddings stay fixed and groups are few or uneven: k-means or a Gaussian mixture does as well "
                 "or better.",
        measured="With a fixed encoder accuracy 0.78 beside 0.79 of a Gaussian mixture and 0.77 of k-means (unclear); "
                 "pseudo-labels +0.029 over POT without the semantic term, unclear beside a mean over neighbours "
                 "(assay try caot-stc --scale standard).",
    ),
    Method(
        "adahc", "AdaHC", "solve",
        "Schedule multi-token-prediction heads so that pipeline training has no bubbles.",
        Paper("AdaHC: Accelerating Multi-Token Prediction with Adaptive Head Chunking under Pipeline Parallelism",
              "Wang, Si, Yang, Zhang, Liu, Yuan, Li, Li, Jia"),
    ),
    # ------------------------------------------------------------------ synth: make training data
    Method(
        "plurel", "PluRel", "synth",
        "Whole synthetic relational databases, from a schema or from scratch.",
        Paper("PluRel: Synthetic Data unlocks Scaling Laws for Relational Foundation Models",
              "Kothapalli, Ranjan, Hudovernik, Dwivedi, Hoffart, Guestrin, Leskovec", arxiv="2602.04029",
              code="snap-stanford/plurel"),
        status="available",
        interface="assay.synth:generate_database",
        trial="assay.trials.synth.plurel:TRIAL",
        use="assay.cli.use.plurel:app",
        extra="synth",
        use_when="you need many relational databases with keys that carry information, to pretrain or stress-test "
                 "relational models, SQL or ETL, from a seed or your schema.",
        not_when="values must be plausible or look like your data, or the schema has text, dates, composite or "
                 "self-referencing keys.",
        measured="parents' rows explain 0.32 of a child column, 0.01 in independent tables: +0.310 [0.253, 0.367] on "
                 "20 databases (assay try plurel --scale standard); 5.8 to 7.9 times the authors' package per core at"
                 " 10,000 rows, linear time and flat memory to 50 million.",
    ),
    Method(
        "clean-pr", "Clean-PR", "synth",
        "Pull requests as validated search-and-replace edits to train on.",
        Paper("Clean-PR: Pull Requests as a Training Signal for Repo-Level Code Editing",
              "Zhu, Chen, Lu, Ji, Zhao, Ma, Dai, He, Gui, Cheng, Gong", arxiv="2602.07457"),
        status="available",
        interface="assay.synth:apply_blocks",
        trial="assay.trials.synth.clean_pr:TRIAL",
        use="assay.cli.use.clean_pr:app",
        extra="synth",
        use_when="you fine-tune a code model on your repositories' history, or apply the search-and-replace edits that "
                 "a model writes.",
        not_when="the data must be executable (tests before and after), or the changes are in documents, notebooks or "
                 "generated files.",
        measured="the right file more often than git apply --recount -C1 after a model's slips: +0.045 [0.029, 0.061] "
                 "on 150 edits (assay try clean-pr --scale standard); no model was trained on the data yet.",
    ),
    # ------------------------------------------------------------------ vision: see
    Method(
        "sg-gaze", "SG-Gaze", "vision",
        "Gaze estimation through an explicit model of the eyeball.",
        Paper("Seeing the Unseen: Physics-as-Representation for Generalizable Gaze Perception"),
    ),
    Method(
        "fatrack", "FATrack", "vision",
        "Track small objects in satellite video, spending compute on the foreground.",
        Paper("FATrack: Foreground-Aware Token Routing Vision Transformer for Real-Time Satellite Video Tracking"),
    ),
    Method(
        "scenedirector", "SceneDirector", "vision",
        "Edit objects and the ego trajectory in driving logs together.",
        Paper("SceneDirector"),
    ),
    # ------------------------------------------------------------------ explain: understand how models work
    Method(
        "metaothello", "MetaOthello", "explain",
        "How one transformer organises several conflicting world models.",
        Paper("MetaOthello: A Controlled Study of Multiple World Models in Transformers", "Chawla, Hall, Lovato",
              arxiv="2602.23164", code="aviralchawla/metaothello"),
    ),
    Method(
        "attention-circuits", "Faster query-key learning", "explain",
        "Tell the query-key from the output-value circuit, and sharpen attention by training it faster.",
        Paper("Faster Query-Key Learning Sharpens Attention in Self-Attention Models", "Vashisht, Ramaswamy",
              arxiv="2608.06776",
              code="vashishtrahul/Faster-Query-Key-Learning-Sharpens-Attention-in-Self-Attention-Models"),
    ),
    Method(
        "w2s-ridge", "Weak-to-strong ridge", "explain",
        "Predict when a strong student outgrows its weak teacher, by deterministic equivalents.",
        Paper("Improved Scaling Laws via Weak-to-Strong Generalization in Random Feature Ridge Regression",
              "Wu, Chen, Misiakiewicz, Mondelli", arxiv="2603.05691"),
    ),
    Method(
        "rna-transfer", "RNA transfer audit", "explain",
        "Does pre-training help on this RNA task, or does the head do the work?",
        Paper("Understanding Transfer Learning of RNA Foundation Models on Downstream Tasks"),
    ),
)
# fmt: on
