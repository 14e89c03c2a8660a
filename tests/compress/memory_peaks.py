"""The peak of memory while a model is compressed and saved, in a process of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, gc, json, re, sys, warnings
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

def memory(name):  # of this process alone; getrusage would start at that of its parent
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

def llama(**sizes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=500, **sizes)).eval()

options = json.loads(sys.argv[1])
warnings.simplefilter("ignore")
torch.set_num_threads(1)
ids = torch.randint(0, 500, tuple(options["ids"]))
exec(options["imports"])
run = lambda model, out: (eval(options["verb"]), save(model, out))
tiny = {"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
run(llama(**tiny), options["out"] + "/tiny")  # the libraries load what they load
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts here
before = memory("VmRSS")
if options["folder"]:
    model = AutoModelForCausalLM.from_pretrained(options["folder"], dtype="auto")
else:
    model = llama(**options["sizes"])
size = sum(p.numel() * p.element_size() for p in model.parameters())
run(model, options["out"] + "/small")
print(json.dumps([size, memory("VmHWM") - before]))
"""


def peak_over_model(tmp_path, sizes, imports, verb, *, is_loaded, ids=(16, 128), dtype="float32"):
    """Peak of memory from before a Llama of `sizes` is there until it is saved, over the bytes of its parameters.

    `imports` brings ``save`` and what `verb` needs, an expression of ``model`` and ``ids``. With `is_loaded` the model
    comes from a folder, in `dtype`, which maps its file; else its weights are in memory that the process allocated.
    """
    import json

    if not sys.platform.startswith("linux"):
        pytest.skip("reads the peak from /proc")
    folder = ""
    if is_loaded:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        folder = str(tmp_path / "dense")
        LlamaForCausalLM(LlamaConfig(vocab_size=500, **sizes)).to(getattr(torch, dtype)).save_pretrained(folder)
    options = {"ids": ids, "imports": imports, "verb": verb, "folder": folder, "sizes": sizes, "out": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, peak = json.loads(done.stdout.splitlines()[-1])
    assert peak > 0.2 * size  # the measure sees the model at all; mapped weights are let go one after the other
    return peak / size
