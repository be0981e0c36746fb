"""GPT-2 (124M, random weights) in PyTorch, for `forge-cc bench --eager`: the module that `export_models.py --size
full` exports."""
from export_models import build as build_model


def build():
    """The module and the names of its inputs, in order."""
    module, _, names = build_model("gpt2", "full")
    return module, names
