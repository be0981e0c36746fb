"""paraphrase-MiniLM-L3-v2 in PyTorch, for `forge-cc bench --eager`, with its weights out of the ONNX file.

The file is that of fetch_models.py, in the folder that FORGE_MODELS names (default: models).

    python eager_minilm_l3.py        # compares the module with the file under ONNX Runtime
"""
import os
import sys
from pathlib import Path

import torch

INPUTS = ["input_ids", "attention_mask"]
PREFIX = "model.0.auto_model."
TOLERANCE = 2e-5  # absolute, on hidden states of about 6 at most


class SentenceEncoder(torch.nn.Module):
    """BERT and the mean of its hidden states over the real tokens; the outputs of the file, in its order."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
        # The file returns its inputs as well.
        return input_ids, attention_mask, hidden, mean


def model_file():
    return Path(os.environ.get("FORGE_MODELS", "models")) / "paraphrase-MiniLM-L3-v2.onnx"


def weights(path):
    """The parameters of a BertModel, by their names in PyTorch.

    The exporter kept the names of biases and embeddings. It transposed the matrices and gave them numbers, but
    each is multiplied just before its bias is added, which tells whose it is.
    """
    import onnx

    graph = onnx.load(path).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
    matrices = {node.output[0]: node.input[1] for node in graph.node
                if node.op_type == "MatMul" and node.input[1] in arrays}
    for node in graph.node:
        product = next((name for name in node.input if name in matrices), None)
        bias = next((name for name in node.input if name.startswith(PREFIX) and name.endswith(".bias")), None)
        if node.op_type == "Add" and product and bias:
            name = bias.removeprefix(PREFIX).removesuffix("bias") + "weight"
            found[name] = arrays[matrices.pop(product)].T
    if matrices:
        raise ValueError(f"{path}: these matrices belong to no bias: {', '.join(matrices.values())}")
    return {name: torch.tensor(array) for name, array in found.items()}


def build():
    """The module and the names of its inputs, in order."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=3, num_attention_heads=12,
                        intermediate_size=1536, layer_norm_eps=1e-12)
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(weights(model_file()))
    return SentenceEncoder(bert).eval().requires_grad_(False), INPUTS


def main():
    import numpy as np

    from export_models import run_onnx
    from sentences import tokenize

    tokens = tokenize(model_file().parent / "all-MiniLM-L6-v2" / "tokenizer.json")
    module, names = build()
    args = [torch.from_numpy(tokens[name]) for name in names]
    results = zip(run_onnx(model_file(), args), module(*args), strict=True)
    ids, mask, hidden, mean = (np.abs(got - want.numpy()) for got, want in results)
    # Hidden states of padding are ill-conditioned and count for nothing.
    worst = max(ids.max(), mask.max(), hidden[tokens["attention_mask"] == 1].max(), mean.max())
    print(f"onnxruntime within {worst:.1e} of PyTorch")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
