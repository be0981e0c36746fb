#!/usr/bin/env python3
"""Check ONNX models with onnx.checker and run them in ONNX Runtime.

    python check_models.py DIR

DIR/NAME/{model.onnx,input_I.npy,output_J.npy} for every folder NAME. Prints a JSON object of NAME to
what is wrong with it; nothing else goes to standard output.
"""
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime


def arrays(folder, prefix):
    paths = (folder / f"{prefix}_{i}.npy" for i in range(1000))
    return [np.load(p) for p in paths if p.exists()]


def complaint(folder):
    path = folder / "model.onnx"
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:
        return f"checker: {str(error)[:400]}"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feed = dict(zip([i.name for i in session.get_inputs()], arrays(folder, "input"), strict=True))
        outputs = session.run(None, feed)
    except Exception as error:
        return f"ONNX Runtime: {str(error)[:400]}"
    for index, (got, want) in enumerate(zip(outputs, arrays(folder, "output"), strict=True)):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {index} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        scale = 1.0
        if want.dtype.kind == "f":
            finite = np.abs(want[np.isfinite(want)]).astype(np.float64)
            scale = max(finite.max(initial=0.0), 1e-6)
        with np.errstate(all="ignore"):
            close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~close)[0])
            return f"output {index} differs at {list(at)}: {got[at]} instead of {want[at]}"
    return None


def main():
    found = {}
    for folder in sorted(p for p in Path(sys.argv[1]).iterdir() if (p / "model.onnx").exists()):
        problem = complaint(folder)
        if problem:
            found[folder.name] = problem
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
