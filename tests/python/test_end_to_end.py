"""A model file in, a directory that real PyTorch imports out: forge-cc end to end, nothing replaced.

The binary comes from FORGE_CC, or is target/release/forge-cc. FORGE_MODELS names the folder that fetch_models.py filled; tests of
fetched models are skipped without it, and with it must pass.
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import export_models
import sentences

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
RELATIVE = 1e-4  # of the largest magnitude


def forge_cc():
    binary = Path(os.environ.get("FORGE_CC", ROOT / "target/release/forge-cc"))
    if not binary.is_file():
        pytest.fail(f"no forge-cc at {binary}: run `cargo build --release`, or set FORGE_CC to the binary")
    return binary


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("kernel-cache")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory, kernel_cache):
    """compiled(model file, *options): its output directory, moved from where it was built. Each is built once."""
    known = {}

    def build(model, *options):
        if (model, options) not in known:
            folder = tmp_path_factory.mktemp("build")
            command = [forge_cc(), model, "-o", folder / "out", "-O2", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400,
                                  env={**os.environ, "FORGE_CACHE": str(kernel_cache)})
            assert done.returncode == 0, done.stderr
            assert "End to end: " in done.stdout
            print(done.stdout)
            moved = folder / "copied to another place"
            shutil.copytree(folder / "out", moved)
            shutil.rmtree(folder / "out")
            known[model, options] = moved
        return known[model, options]

    return build


def load(directory, **options):
    name = f"forged_{abs(hash(str(directory)))}"
    spec = importlib.util.spec_from_file_location(name, directory / "forged.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.load(**options)


def relative_error(got, want):
    """Largest difference, in units of the largest magnitude that is wanted."""
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def cosine(got, want):
    got, want = (array.astype(np.float64).reshape(-1, array.shape[-1]) for array in (got, want))
    return float(((got * want).sum(1) / (np.linalg.norm(got, axis=1) * np.linalg.norm(want, axis=1))).min())


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
def test_agrees_with_pytorchs_own_module(compiled, name):
    directory = compiled(FIXTURES / f"models/{name}_tiny/model.onnx", "--budget", "40s")
    module, args, _ = export_models.build(name, "tiny")
    model = load(directory, strict=True)
    torch.manual_seed(1)
    others = tuple(torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 257) for x in args)
    for inputs in (args, others):
        with torch.no_grad():
            want = module(*inputs).numpy()
        for plan in (model, model.original):
            got = plan(*inputs).numpy()
            assert got.dtype == want.dtype
            error = relative_error(got, want)
            print(f"{name}: {error:.2e} of the largest, cosine {cosine(got, want):.9f}")
            assert error <= RELATIVE and cosine(got, want) >= 0.99999
    assert not model.fallbacks and not model.copies


def test_sizes_outside_the_guard_run_the_unrewritten_model_and_are_counted(compiled):
    directory = compiled(FIXTURES / "digits/cnn.onnx", "--shape", "batch=50", "--budget", "10s")
    images = torch.from_numpy(np.load(FIXTURES / "digits/test_images.npy"))
    labels = torch.from_numpy(np.load(FIXTURES / "digits/test_labels.npy"))
    model = load(directory)
    inside = torch.cat([model(batch) for batch in images.split(50)])
    assert not model.fallbacks
    with pytest.warns(UserWarning, match="input 'image' axis 0: expected 50, got 450"):
        outside = model(images)
    assert sum(model.fallbacks.values()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        few = model(images[:7])
    assert sum(model.fallbacks.values()) == 2
    assert relative_error(outside.numpy(), inside.numpy()) <= RELATIVE
    assert relative_error(few.numpy(), inside[:7].numpy()) <= RELATIVE
    want = json.loads((FIXTURES / "digits/accuracy.json").read_text())["cnn"]
    for scores in (inside, outside):
        assert int((scores.argmax(1) == labels).sum()) == want["correct"] and len(scores) == want["of"]

    strict = load(directory, strict=True)
    with pytest.raises(sys.modules[type(strict).__module__].GuardError, match="expected 50, got 7"):
        strict(images[:7])


# ---- trained models, fetched ----

SENTENCES = len(sentences.SENTENCES)
FETCHED = {
    # file: (batch and sequence symbols, sentence embedding, hidden states)
    "paraphrase-MiniLM-L3-v2.onnx": (("batch_size", "sequence_length"), "461", "onnx::Shape_422"),
    "all-MiniLM-L6-v2-op20.onnx": (("batch", "seq"), "sentence_embedding", "last_hidden_state"),
    "all-MiniLM-L6-v2-op23.onnx": (("batch", "seq"), "sentence_embedding", "last_hidden_state"),
}


def fetched(name):
    folder = os.environ.get("FORGE_MODELS")
    if not folder:
        pytest.skip("FORGE_MODELS is not set: `python tests/python/fetch_models.py --out DIR --export`, then FORGE_MODELS=DIR")
    path = Path(folder, name)
    assert path.is_file(), f"FORGE_MODELS is set, but {path} is not there"
    return path


@pytest.mark.parametrize("name", FETCHED)
def test_minilm_agrees_with_onnx_runtime(compiled, name):
    path = fetched(name)
    (batch, seq), embedding, hidden = FETCHED[name]
    tokens = sentences.tokenize(path.parent / "all-MiniLM-L6-v2/tokenizer.json")
    length = tokens["input_ids"].shape[1]
    directory = compiled(path, "--shape", f"{batch}={SENTENCES},{seq}={length}", "--budget", "60s")

    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    wanted = dict(zip([port.name for port in session.get_outputs()],
                      session.run(None, {name: tokens[name] for name in names})))
    model = load(directory)
    inputs = {name: torch.from_numpy(tokens[name]) for name in names}
    mask = tokens["attention_mask"] == 1

    def compare(plan, inputs, rows, columns):
        results = dict(zip(model.output_names, plan(**inputs)))
        assert set(results) == set(wanted)
        real = mask[rows, :columns]
        for output, keep in ((embedding, slice(None)), (hidden, real)):
            want = wanted[output][rows]
            want = want if output == embedding else want[:, :columns]
            got = results[output].numpy()[keep]
            error, angle = relative_error(got, want[keep]), cosine(got, want[keep])
            print(f"{path.name}, {output}: {error:.2e} of the largest, cosine {angle:.9f}")
            assert error <= RELATIVE and angle >= 0.99999

    compare(model, inputs, slice(None), length)
    assert not model.fallbacks
    compare(model.original, inputs, slice(None), length)
    # A few sentences without the padding that others need: outside the guard, and the same answers.
    few = slice(8, 14)
    columns = int(mask[few].sum(1).max())
    with pytest.warns(UserWarning, match=f"expected {SENTENCES}, got 6"):
        compare(model, {name: tensor[few, :columns].contiguous() for name, tensor in inputs.items()}, few, columns)
    assert sum(model.fallbacks.values()) == 1
