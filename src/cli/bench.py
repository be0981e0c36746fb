"""Times contenders on one model, interleaved, and prints one JSON object. Started by `forge-cc bench`.

Reads a request (JSON) from stdin: directory, onnx, eager, inputs (npy paths), threads, blocks, seed.
A contender is timed only after its outputs agree with the unrewritten graph's.
"""
import importlib.util
import json
import random
import sys
import time

import numpy as np

TOLERANCE = 1e-3  # relative to the largest magnitude of an output: a sanity check, not the gate
SAMPLE_SECONDS = 0.05


def module_from(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def random_inputs(manifest, seed):
    """Inside the guard of the forged plan; integer inputs within what the manifest says makes sense."""
    generator = np.random.default_rng(seed)
    arrays = []
    for port in manifest["plans"]["forged"]["inputs"]:
        shape = port["shape"]
        if any(not isinstance(d, int) for d in shape):
            raise SystemExit(f"input {port['name']} has a free size: give --input files")
        dtype = port["dtype"]
        if dtype.startswith(("f", "bf")):
            arrays.append(generator.standard_normal(shape).astype({"f16": np.float16, "f64": np.float64}.get(dtype, np.float32)))
        else:
            low, high = port.get("values") or (0, 2)
            kind = {"bool": np.bool_, "i32": np.int32, "u8": np.uint8, "i8": np.int8}.get(dtype, np.int64)
            arrays.append(generator.integers(low, high, shape).astype(kind))
    return arrays


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def contenders(request, arrays):
    import torch

    torch.set_num_threads(request["threads"])
    tensors = [torch.from_numpy(a) for a in arrays]
    forged = module_from(request["directory"] + "/forged.py", "forged").load(threads=request["threads"], strict=True)

    def to_numpy(values):
        return [v.detach().numpy() for v in flat(values)]

    found = {
        "unrewritten": (lambda: forged.original(*tensors), to_numpy, f"forge runtime, torch {torch.__version__}"),
        "forged": (lambda: forged(*tensors), to_numpy, f"forge runtime, torch {torch.__version__}"),
    }
    if request.get("onnx"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(request["onnx"], options, providers=["CPUExecutionProvider"])
        feed = {i.name: a for i, a in zip(session.get_inputs(), arrays)}
        found["onnxruntime"] = (lambda: session.run(None, feed), lambda v: v, f"onnxruntime {onnxruntime.__version__}")
    if request.get("eager"):
        module, names = module_from(request["eager"], "eager_model").build()
        module.eval()
        by_name = dict(zip(forged.input_names, tensors))
        arguments = [by_name[n] for n in names] if names else tensors

        def eager():
            with torch.inference_mode():
                return module(*arguments)

        found["torch eager"] = (eager, to_numpy, f"torch {torch.__version__}")
    return found


def error(got, want):
    worst = 0.0
    for g, w in zip(got, want):
        if w.dtype.kind != "f":
            worst = max(worst, float((g != w).any()))
            continue
        scale = max(float(np.abs(w).max(initial=0.0)), 1e-30)
        worst = max(worst, float(np.abs(g.astype(np.float64) - w.astype(np.float64)).max(initial=0.0)) / scale)
    return worst


def main():
    request = json.load(sys.stdin)
    with open(request["directory"] + "/manifest.json") as file:
        manifest = json.load(file)
    arrays = [np.ascontiguousarray(np.load(p)) for p in request["inputs"]] or random_inputs(manifest, request["seed"])
    found = contenders(request, arrays)
    results = {}
    reference = None
    for name, (call, as_numpy, version) in found.items():
        value = as_numpy(call())
        reference = reference if reference is not None else value
        # A PyTorch module may return fewer results than the exported graph.
        worst = error(value, reference[: len(value)])
        results[name] = {"version": version, "error": worst, "agrees": worst <= TOLERANCE, "seconds": []}
    running = [n for n in found if results[n]["agrees"]]
    repeats = {}
    for name in running:
        call = found[name][0]
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7)))
    order = random.Random(request["seed"])
    for _ in range(request["blocks"]):
        block = running[:]
        order.shuffle(block)
        for name in block:
            call, count = found[name][0], repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            results[name]["seconds"].append((time.perf_counter() - start) / count)
    json.dump({"contenders": results, "inputs": [[str(a.dtype), list(a.shape)] for a in arrays]}, sys.stdout)


if __name__ == "__main__":
    main()
