#!/usr/bin/env python3
"""Write small output directories without the compiler, to test the loader by itself.

    python make_tiny_plan.py --out DIR --runtime target/debug/deps/libforge_runtime.so

DIR becomes `z = x*2 + y + bias`: the forged plan is one C++ kernel for x: f32[batch, 4] with batch in
1..64, the unrewritten plan takes f32[batch, width] for any sizes but bias, whose width is 4 or 1.
"""
import argparse
import hashlib
import json
import platform
import shutil
import struct
import subprocess
from pathlib import Path

LOADER = Path(__file__).resolve().parents[2] / "src" / "emit" / "forged.py"
FLAGS = ["-std=c++17", "-O2", "-march=native", "-shared", "-fPIC"]
HEADER = "#pragma once\n#include <cstdint>\n"

# `offset` lets a test see which of the two plans ran.
KERNEL = """#include "tiny.hpp"

extern "C" void scale_add(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void*) {{
  const float* x = static_cast<const float*>(buffers[0]);
  const float* y = static_cast<const float*>(buffers[1]);
  const float* bias = static_cast<const float*>(buffers[2]);
  float* z = static_cast<float*>(buffers[3]);
  const int64_t width = sizes[0];
  for (int64_t row = begin; row < end; ++row)
    for (int64_t i = 0; i < width; ++i) {{
      const int64_t at = row * width + i;
      z[at] = x[at] * 2.0f + y[at] + bias[i % 4] + {offset}f;
    }}
}}
"""
BIAS = [0.0, 10.0, 20.0, 30.0]


def port(name, dtype, shape, buffer=None):
    result = {"name": name, "dtype": dtype, "shape": shape}
    return result if buffer is None else {**result, "buffer": buffer}


def plan(name, inputs, outputs, buffers, modules=(), steps=()):
    return {
        "version": 1, "name": name, "target": "cpu", "inputs": inputs, "outputs": outputs, "buffers": buffers,
        "modules": [{"file": f"kernels/{stem}.so", "hash": ""} for stem in modules], "prepare": [],
        "steps": list(steps),
    }


def scale_add_plan(stem, width):
    shape, size = ["batch", width], f"batch*{width}*4"
    return plan(
        "scale_add",
        [port("x", "f32", shape, 0), port("y", "f32", shape, 1)],
        [port("z", "f32", shape, 3)],
        [
            {"bytes": size, "storage": "input", "index": 0},
            {"bytes": size, "storage": "input", "index": 1},
            {"bytes": 16, "storage": "weight", "name": "bias"},
            {"bytes": size, "storage": "output", "index": 0},
        ],
        [stem],
        [{
            "step": "kernel", "module": 0, "symbol": "scale_add", "reads": [0, 1, 2], "writes": [3],
            "sizes": [width], "grid": "batch", "grain": 1, "scratch": 0, "label": "mul, add, add",
        }],
    )


def make_scale_add(out, runtime, forged_offset=0.0, symbols=None):
    """The directory described above; a `forged_offset` is added by the forged kernel alone."""
    sources = {"forged": KERNEL.format(offset=float(forged_offset)), "unrewritten": KERNEL.format(offset=0.0)}
    symbols = {"batch": {"min": 1, "max": 64, "typical": 8}} if symbols is None else symbols
    plans = {"forged": scale_add_plan("forged", 4), "original": scale_add_plan("unrewritten", "width")}
    header = json.dumps({"bias": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    header += b" " * (-(len(header) + 8) % 64)
    weights = struct.pack("<Q", len(header)) + header + struct.pack("<4f", *BIAS)
    return write(out, runtime, plans, sources, weights, symbols)


def make_copies(out, runtime, dtype, element_bytes, shape=("n",)):
    """`first, second = x, x` for one dtype: no kernel, no weight; guards that no call can break."""
    size = "*".join([*map(str, shape), str(element_bytes)])
    same = plan(
        "copies",
        [port("x", dtype, list(shape), 0)],
        [port("first", dtype, list(shape), 1), port("second", dtype, list(shape), 2)],
        [
            {"bytes": size if shape else element_bytes, "storage": "input", "index": 0},
            {"bytes": size if shape else element_bytes, "storage": "output", "index": 0},
            {"bytes": size if shape else element_bytes, "storage": "output", "index": 1},
        ],
        steps=[{"step": "copy", "from": 0, "to": 1}, {"step": "copy", "from": 0, "to": 2}],
    )
    return write(out, runtime, {"forged": same, "original": same}, {}, None, {})


def write(out, runtime, plans, sources, weights, symbols):
    out = Path(out)
    (out / "kernels" / "include").mkdir(parents=True)
    (out / "kernels" / "include" / "tiny.hpp").write_text(HEADER)
    kernels = []
    for stem, source in sources.items():
        path = out / "kernels" / f"{stem}.cpp"
        path.write_text(source)
        library = path.with_suffix(".so")
        subprocess.run(["c++", *FLAGS, "-I", path.parent / "include", path, "-o", library], check=True)
        kernels.append({"hash": stem, "source": f"kernels/{path.name}", "library": f"kernels/{library.name}"})
    entries = {}
    for which, file in [("forged", "plan.json"), ("original", "original.plan.json")]:
        (out / file).write_text(json.dumps(plans[which], indent=2))
        ports = {
            side: [{key: p[key] for key in ("name", "dtype", "shape")} for p in plans[which][side]]
            for side in ("inputs", "outputs")
        }
        entries[which] = {"file": file, **ports}
    if weights is not None:
        (out / "weights.safetensors").write_bytes(weights)
    manifest = {
        "tool": "forge-cc", "version": 1, "tool_version": "0.1.0",
        "id": hashlib.sha256(json.dumps(plans).encode() + "".join(sources.values()).encode()).hexdigest()[:32],
        "name": plans["forged"]["name"], "target": "cpu", "plans": entries, "symbols": symbols,
        "cpu": {"arch": platform.machine(), "model": "this one", "isa": [], "flags_hash": ""},
        "kernels": {
            "compiler": "c++", "compiler_version": "", "flags": FLAGS, "include": "kernels/include", "files": kernels,
        },
        "regions": [], "end_to_end": None, "files": [],
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2))
    shutil.copy(LOADER, out / "forged.py")
    shutil.copy(runtime, out / "libforge_runtime.so")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the directory to make")
    parser.add_argument("--runtime", type=Path, required=True, help="libforge_runtime.so")
    options = parser.parse_args()
    make_scale_add(options.out, options.runtime)


if __name__ == "__main__":
    main()
