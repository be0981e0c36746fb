"""bench.py, started by `forge-cc bench`: what it refuses to time, and what it says about it."""
import json
import subprocess
import sys

import numpy as np
import pytest

from make_tiny_plan import BIAS, make_scale_add
from test_loader import ROOT, runtime_library

SCRIPT = ROOT / "src" / "cli" / "bench.py"
EAGER = f"""
import torch

class Model(torch.nn.Module):
    def forward(self, y, x):
        return x * FACTOR + y + torch.tensor({BIAS})

def build():
    return Model(), ["y", "x"]
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_scale_add(tmp_path_factory.mktemp("bench") / "out", runtime_library())


def onnx_model(path, factor):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    tensor = onnx.helper.make_tensor_value_info
    nodes = [("Mul", ["x", "factor"], ["scaled"]), ("Add", ["scaled", "y"], ["sum"]), ("Add", ["sum", "bias"], ["z"])]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(*node) for node in nodes], "scale_add",
        # Not in the order of the compiled model: names decide.
        [tensor(name, onnx.TensorProto.FLOAT, ["batch", 4]) for name in "yx"],
        [tensor("z", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(np.array(value, np.float32), name)
         for name, value in [("factor", [factor]), ("bias", BIAS)]])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def bench(directory, tmp_path, **changes):
    (tmp_path / "scratch").mkdir()
    request = {"directory": str(directory), "onnx": None, "eager": None, "inputs": [], "threads": 1, "blocks": 2,
               "seed": 3, "scratch": str(tmp_path / "scratch"), **changes}
    process = subprocess.run([sys.executable, SCRIPT], input=json.dumps(request), capture_output=True, text=True,
                             check=True)
    return json.loads(process.stdout)


def eager_file(tmp_path, factor):
    path = tmp_path / "eager.py"
    path.write_text(EAGER.replace("FACTOR", str(factor)))
    return str(path)


def test_times_all_contenders(directory, tmp_path):
    answer = bench(directory, tmp_path, onnx=str(onnx_model(tmp_path / "m.onnx", 2.0)), eager=eager_file(tmp_path, 2.0))
    names = [contender["name"] for contender in answer["contenders"]]
    assert names == ["unrewritten", "forged", "forged again", "onnxruntime", "torch eager"]
    for contender in answer["contenders"]:
        assert contender["agrees"] and contender["error"] < 1e-6, contender
        assert len(contender["seconds"]) == 2 and min(contender["seconds"]) > 0
        assert contender["repeats"] >= 1
    assert answer["processors"] >= 1
    assert answer["others_busy"] is None or 0 <= answer["others_busy"] <= answer["processors"] + 0.5
    # The size for which the manifest says the search was made.
    assert answer["inputs"] == [{"name": name, "dtype": "float32", "shape": [8, 4]} for name in "xy"]


def test_what_disagrees_is_not_timed(directory, tmp_path):
    answer = bench(directory, tmp_path, eager=eager_file(tmp_path, 2.1))
    eager = answer["contenders"][-1]
    assert not eager["agrees"] and eager["seconds"] == [] and eager["error"] > 1e-3
    assert all(contender["seconds"] for contender in answer["contenders"][:-1])


def test_takes_inputs_and_refuses_those_outside_the_guards(directory, tmp_path):
    files = {}
    for batch in (5, 65):
        array = np.ones((batch, 4), np.float32)
        files[batch] = str(tmp_path / f"{batch}.npy")
        np.save(files[batch], array)
    answer = bench(directory, tmp_path, inputs=[files[5]] * 2)
    assert [i["shape"] for i in answer["inputs"]] == [[5, 4]] * 2
    (tmp_path / "scratch").rename(tmp_path / "old")
    answer = bench(directory, tmp_path, inputs=[files[65]] * 2)
    assert answer["error"].startswith("forged: GuardError: ") and answer["install"] == []


def test_names_what_to_install(directory, tmp_path):
    path = tmp_path / "eager.py"
    path.write_text("import no_such_package.models\n")
    answer = bench(directory, tmp_path, eager=str(path))
    assert answer["install"] == ["no_such_package"]


def test_says_that_an_input_name_is_unknown(directory, tmp_path):
    path = tmp_path / "eager.py"
    path.write_text("import torch\n\ndef build():\n    return torch.nn.Identity(), ['tokens']\n")
    answer = bench(directory, tmp_path, eager=str(path))
    assert "names the inputs tokens" in answer["error"] and "x, y" in answer["error"]


def test_a_contender_that_dies_is_an_error(directory, tmp_path):
    path = tmp_path / "eager.py"
    path.write_text("import os\n\ndef build():\n    print('on stdout')\n    os._exit(7)\n")
    answer = bench(directory, tmp_path, eager=str(path))
    assert answer["error"] == "torch eager: its process ended with 7"
