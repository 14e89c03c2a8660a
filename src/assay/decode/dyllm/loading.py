"""Load a masked diffusion model and its tokenizer from a folder or the Hugging Face Hub."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from torch import nn


def load_masked_lm(
    model_id_or_dir: str | os.PathLike[str],
    *,
    local_files_only: bool = True,
    trust_remote_code: bool = False,
    dtype: str = "float32",
) -> tuple[nn.Module, Any]:
    """Load a model that fills masks, in evaluation mode, and its tokenizer (None where the folder has none).

    A ``…ForMaskedLM`` is loaded as that. A ``…ForCausalLM`` whose configuration says ``"is_causal": false`` is made
    bidirectional. LLaDA and Dream bring code of their own, which runs only with ``trust_remote_code=True``.

    Parameters
    ----------
    model_id_or_dir : str or path
    local_files_only : bool
        False allows a download from the Hub.
    trust_remote_code : bool
        True runs Python code that comes with the model: only for a source that you trust.
    dtype : str
        Such as ``bfloat16``.

    Raises
    ------
    InputError
        It is not there, cannot be loaded, lacks weights, or needs code of its own that is not allowed to run.
    """
    torch = need("torch", extra="lm", purpose="loading a masked diffusion model")
    transformers = need("transformers", extra="lm", purpose="loading a masked diffusion model")
    place = os.fspath(model_id_or_dir)
    options: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": trust_remote_code}
    if dtype not in ("float32", "bfloat16", "float16"):
        raise InputError(f"dtype={dtype!r}: expected float32, bfloat16 or float16")
    folder = Path(place).expanduser()
    if folder.is_dir():
        place = str(folder)
        said = _said(folder)
        if "auto_map" in said and not trust_remote_code:
            raise InputError(
                f"{folder} brings code of its own, which is not run unless you allow it: --trust-remote-code"
            )
    elif place.startswith((".", "~", "/")):
        raise InputError(f"{place}: no such folder")
    broken = need("safetensors", extra="lm", purpose="loading a masked diffusion model").SafetensorError
    try:
        config = transformers.AutoConfig.from_pretrained(place, **options)
        name = (getattr(config, "architectures", None) or [""])[0]
        kind = transformers.AutoModel
        if name.endswith("ForMaskedLM"):
            kind = transformers.AutoModelForMaskedLM
        elif name.endswith("ForCausalLM"):
            kind = transformers.AutoModelForCausalLM
        model, found = kind.from_pretrained(
            place, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, broken) as error:
        if local_files_only and not folder.is_dir():
            raise InputError(f"{place} is neither a folder nor a model in the local Hugging Face cache") from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InputError(
            f"{place} cannot be loaded as a masked language model: {lines[0] if lines else type(error).__name__}"
        ) from None
    if found["missing_keys"]:  # transformers fills them with random numbers
        raise InputError(f"{place} lacks weights that {name or 'its model'} has, such as {min(found['missing_keys'])}")
    if getattr(config, "is_causal", True) is False:
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False  # the kernel asks the layer, the mask asks the configuration
    return model.eval(), _tokenizer(transformers, place, options)


def prompt_ids(tokenizer: Any, text: str, *, chat: bool = False) -> list[int]:
    """Tokens of a prompt: with the tokenizer's own beginning, without the end that would close the sequence.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    text : str
    chat : bool
        True puts the text into the model's chat template as a user's turn.

    Raises
    ------
    InputError
        The text has no tokens, or there is no chat template.
    """
    if chat:
        if not getattr(tokenizer, "chat_template", None):
            raise InputError("this tokenizer has no chat template; leave out chat")
        turn = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"]
    else:
        ids = tokenizer(text, verbose=False)["input_ids"]
        closing = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None, tokenizer.bos_token_id}
        if len(ids) > 1 and ids[-1] in closing:  # BERT and its kin end with [SEP]
            ids = ids[:-1]
    if not ids:
        raise InputError(f"the prompt {text[:40]!r} has no tokens; give some text")
    return [int(token) for token in ids]


def _said(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no config.json, so it is not the folder of a Hugging Face model")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    return said if isinstance(said, dict) else {}


def _tokenizer(transformers: Any, place: str, options: dict[str, Any]) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(place, **options)
    except (OSError, ValueError, KeyError):
        return None
