#!/usr/bin/env python3
"""ONNX's own node tests, in the layout of op_cases.py.

    python node_cases.py DIR           # DIR/NAME/{model.onnx,input_I.npy,output_J.npy}, DIR/cases.json

Only cases on tensors of the dtypes that numpy has, of the standard domain, up to opset 26. Inputs that
decide a shape (axes, pads, sizes, ..) become initializers, as in every exported model.
"""
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

PARAMETERS = {
    "axes", "axis", "begin_norm_axis", "cond", "delta", "depth", "ends", "k", "K", "limit", "num_or_size_splits",
    "pads", "repeats", "roi", "scales", "shape", "sizes", "split", "start", "starts", "steps", "value", "training_mode",
    "t", "r", "seq_lens", "reps", "output_shape", "new_shape", "dims",
}
# Inputs of these names are parameters of the one operator only.
PARAMETERS_OF = {
    "Clip": set(),
    "ConstantOfShape": {"x"},
    "Dropout": {"t", "training_mode"},
    "Resize": {"scales", "sizes", "roi", "X_scales"},
}
NEWEST_OPSET = 26


def plain(value):
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def main():
    directory = Path(sys.argv[1])
    names = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for test in tests:
        model, name = test.model, test.name
        graph = model.graph
        domains = {node.domain for node in graph.node} | {o.domain for o in model.opset_import}
        opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        if not domains <= {"", "ai.onnx"} or opset > NEWEST_OPSET:
            continue
        inputs, outputs = test.data_sets[0]
        if not all(plain(v) for v in inputs) or not all(plain(v) for v in outputs):
            continue
        operators = {node.op_type for node in graph.node}
        parameters = set(PARAMETERS)
        for operator in operators & PARAMETERS_OF.keys():
            parameters = PARAMETERS_OF[operator] if len(operators) == 1 else parameters | PARAMETERS_OF[operator]
        feed, kept = [], []
        for info, value in zip(graph.input, inputs):
            if info.name in parameters:
                graph.initializer.append(numpy_helper.from_array(np.array(value, order="C"), info.name))
            else:
                kept.append(info)
                feed.append(value)
        del graph.input[:]
        graph.input.extend(kept)
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        for index, value in enumerate(feed):
            np.save(folder / f"input_{index}.npy", np.array(value, order="C"))
        for index, value in enumerate(outputs):
            np.save(folder / f"output_{index}.npy", np.array(value, order="C"))
        names.append(name)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cases.json").write_text(json.dumps(names, indent=1) + "\n")
    print(f"{len(names)} cases in {directory}")


if __name__ == "__main__":
    main()
