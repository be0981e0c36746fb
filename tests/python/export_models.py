#!/usr/bin/env python3
"""Export known architectures with seeded random weights to ONNX, beside PyTorch's own answers.

    python export_models.py --list
    python export_models.py --out DIR --size tiny                         # all five
    python export_models.py --out DIR --size full --only gpt2 --opset 23
    python export_models.py --out DIR --only llama --dynamic              # symbolic batch and seq

Each model becomes a folder DIR/NAME with model.onnx, input_0.npy ... (in the order of the graph's
inputs) and output_0.npy ... (PyTorch, eager, on the CPU). Tests that want the module itself import
`build`.

The weights are random, and every parameter or statistic that its initialiser left constant (gains
of norms, biases, batch-norm means) is moved off that constant, so that a dropped bias, a wrong fold
or two swapped operands change the output.
"""
import argparse
import os
import sys
import warnings
import zlib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import nn

# Node metadata that survives `strip_debug`: the path of the module that a node came from. The
# exporter's other keys hold stack traces, with the exporting machine's paths, or repeat this one.
KEPT_NODE_METADATA = ("pkg.torch.onnx.name_scopes",)


class Logits(nn.Module):
    """A causal language model as a function from token ids to logits, without a key-value cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


class Denoiser(nn.Module):
    """A conditional diffusion UNet as a function of tensors to the predicted noise."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, sample, timestep, text):
        return self.model(sample, timestep, encoder_hidden_states=text, return_dict=False)[0]


def resnet18(size):
    from torchvision.models.resnet import BasicBlock, ResNet

    if size == "full":
        return ResNet(BasicBlock, [2, 2, 2, 2]), (torch.randn(1, 3, 224, 224),)

    class NarrowResNet(ResNet):
        """One block a stage, an eighth as wide after the stem."""

        def _make_layer(self, block, planes, blocks, **kwargs):
            return super()._make_layer(block, planes // 8, blocks, **kwargs)

    model = NarrowResNet(BasicBlock, [1, 1, 1, 1])
    model.fc = nn.Linear(64, 10)
    return model, (torch.randn(2, 3, 64, 64),)


def gpt2(size):
    from transformers import GPT2Config, GPT2LMHeadModel

    if size == "full":
        config, batch, seq = GPT2Config(), 1, 128
    else:
        config = GPT2Config(n_embd=48, n_layer=2, n_head=3, vocab_size=257, n_positions=64,
                            bos_token_id=256, eos_token_id=256)
        batch, seq = 2, 16
    return Logits(GPT2LMHeadModel(config)), (torch.randint(0, config.vocab_size, (batch, seq)),)


def llama(size):
    from transformers import LlamaConfig, LlamaForCausalLM

    # Grouped-query attention: four query heads share two key-value heads.
    config = LlamaConfig(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=257, max_position_embeddings=128)
    return Logits(LlamaForCausalLM(config)), (torch.randint(0, config.vocab_size, (2, 16)),)


def vit(size):
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128,
                              num_classes=10)
    return model, (torch.randn(2, 3, 32, 32),)


def unet(size):
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=32,
        attention_head_dim=4, norm_num_groups=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    return Denoiser(model), (torch.randn(2, 4, 16, 16), torch.tensor([10, 700]), torch.randn(2, 8, 32))


# name: (definition, sizes, {input: its symbolic axes under --dynamic}, output names)
MODELS = {
    "resnet18": (resnet18, ("tiny", "full"), {"x": {0: "batch"}}, ("scores",)),
    "gpt2": (gpt2, ("tiny", "full"), {"input_ids": {0: "batch", 1: "seq"}}, ("logits",)),
    "vit": (vit, ("tiny",), {"x": {0: "batch"}}, ("scores",)),
    "llama": (llama, ("tiny",), {"input_ids": {0: "batch", 1: "seq"}}, ("logits",)),
    "unet": (unet, ("tiny",),
             {"sample": {0: "batch"}, "timestep": {0: "batch"}, "text": {0: "batch", 1: "seq"}}, ("noise",)),
}


def build(name, size):
    """The module in eval mode, its example arguments and the names of its inputs.

    The same name and size always give the same weights and arguments.
    """
    if name not in MODELS:
        raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    definition, sizes, axes, _ = MODELS[name]
    if size not in sizes:
        raise ValueError(f"{name} comes in {' and '.join(sizes)} only, not {size!r}")
    torch.manual_seed(zlib.crc32(name.encode()))
    module, args = definition(size)
    module.eval().requires_grad_(False)
    perturb_constants(module)
    return module, args, list(axes)


def perturb_constants(module):
    """Move every constant parameter and floating-point buffer off its constant, keeping variances positive."""
    tensors = list(module.parameters()) + [b for b in module.buffers() if b.is_floating_point()]
    for tensor in tensors:
        if tensor.numel() > 1 and tensor.min() == tensor.max():
            tensor.add_(0.1 * torch.rand_like(tensor) - 0.03)


def export_onnx(module, args, path, *, opset, input_names, output_names, dynamic_axes=None, metadata=None):
    """Write `module` to `path` by PyTorch's dynamo exporter, weights inside, without debug information.

    `dynamic_axes` maps an input's name to {axis: symbol}. `metadata` is kept in the model's properties.
    """
    import onnx

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    dynamic_shapes = None
    if dynamic_axes:
        dynamic_shapes = tuple(dynamic_axes.get(name) for name in input_names)
    # The file appears under its own name only when it is whole.
    partial = path.with_name(path.name + ".partial")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, args, str(partial), dynamo=True, opset_version=opset, input_names=list(input_names),
                          output_names=list(output_names), dynamic_shapes=dynamic_shapes, external_data=False,
                          verbose=False)
    model = onnx.load(partial)
    strip_debug(model)
    onnx.helper.set_model_props(model, metadata or {})
    partial.write_bytes(model.SerializeToString(deterministic=True))
    partial.replace(path)


def strip_debug(model):
    """Drop doc strings, stack traces and all metadata but each node's KEPT_NODE_METADATA."""
    import onnx

    def strip(item, kept=()):
        item.doc_string = ""
        left = [(entry.key, entry.value) for entry in item.metadata_props if entry.key in kept]
        del item.metadata_props[:]
        for key, value in left:
            item.metadata_props.add(key=key, value=value)

    def strip_nodes(nodes):
        for node in nodes:
            strip(node, KEPT_NODE_METADATA)
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.type == onnx.AttributeProto.GRAPH:
                    strip_graph(attribute.g)

    def strip_graph(graph):
        strip(graph)
        strip_nodes(graph.node)
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            strip(value)

    strip(model)
    strip_graph(model.graph)
    for function in model.functions:
        strip(function)
        strip_nodes(function.node)


class ModelRefused(Exception):
    """onnxruntime could not run the file that the exporter wrote."""


def run_onnx(path, args):
    """The outputs of the file under onnxruntime, on the CPU."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)  # its failures come as exceptions as well
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feed = {value.name: arg.numpy() for value, arg in zip(session.get_inputs(), args, strict=True)}
        return session.run(None, feed)
    except Exception as error:  # onnxruntime's exceptions have no narrower base class
        raise ModelRefused(f"onnxruntime does not run {path}: {error}") from error


def export(name, size, opset, dynamic, model_only, folder):
    """Write one model's folder, without the arrays if `model_only`; return the largest difference to onnxruntime."""
    module, args, input_names = build(name, size)
    _, _, axes, output_names = MODELS[name]
    with torch.no_grad():
        result = module(*args)
    expected = [value.numpy() for value in (result if isinstance(result, tuple) else (result,))]
    path = folder / "model.onnx"
    export_onnx(module, args, path, opset=opset, input_names=input_names, output_names=output_names,
                dynamic_axes=axes if dynamic else None)
    if not model_only:
        for index, arg in enumerate(args):
            np.save(folder / f"input_{index}.npy", arg.numpy())
        for index, value in enumerate(expected):
            np.save(folder / f"output_{index}.npy", value)
    return float(max(np.abs(got - want).max() for got, want in zip(run_onnx(path, args), expected, strict=True)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the models and their sizes, then stop")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the folders go")
    parser.add_argument("--only", metavar="NAME,...", help="these models; without it, all that have the size")
    parser.add_argument("--size", choices=("tiny", "full"), default="tiny")
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--dynamic", action="store_true", help="make batch and seq symbolic")
    parser.add_argument("--suffix", default="", help="add this to each folder's name, as in _op23")
    parser.add_argument("--model-only", action="store_true", help="write no arrays: those of another opset serve")
    options = parser.parse_args()
    if options.list:
        for name, (_, sizes, _, _) in MODELS.items():
            print(f"{name:10} {', '.join(sizes)}")
        return
    if options.out is None:
        parser.error("--out DIR says where the folders go")
    names = options.only.split(",") if options.only else [n for n, m in MODELS.items() if options.size in m[1]]
    refused = False
    for name in names:
        folder = options.out / (name + options.suffix)
        try:
            difference = export(name, options.size, options.opset, options.dynamic, options.model_only, folder)
        except ValueError as error:
            sys.exit(f"export_models.py: {error}")
        except ModelRefused as error:
            refused = True
            print(error, file=sys.stderr)
            continue
        size = (folder / "model.onnx").stat().st_size
        print(f"{folder.name}: {size:,} bytes, onnxruntime within {difference:.1e} of PyTorch", flush=True)
    sys.exit(refused)


if __name__ == "__main__":
    main()
