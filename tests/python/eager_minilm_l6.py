"""all-MiniLM-L6-v2 in PyTorch, for `forge-cc bench --eager`: the module that `fetch_models.py --export` exports.

The weights come from the folder that FORGE_MODELS names (default: models), where fetch_models.py put them.
"""
import os
from pathlib import Path

from fetch_models import sentence_encoder


def build():
    """The module, from token ids to (last_hidden_state, sentence_embedding), and the names of its inputs, in order."""
    folder = Path(os.environ.get("FORGE_MODELS", "models")) / "all-MiniLM-L6-v2"
    return sentence_encoder(folder), ["input_ids", "attention_mask", "token_type_ids"]
