"""forged.py, the generated loader, with a real runtime and real kernels.

The directories come from make_tiny_plan.py; libforge_runtime.so from FORGE_RUNTIME or cargo's target folder.
"""
import concurrent.futures
import copy
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from make_tiny_plan import BIAS, make_copies, make_scale_add

ROOT = Path(__file__).resolve().parents[2]
OFFSET = 1000.0  # added by the forged kernel alone where a test asks which plan ran


def runtime_library():
    named = os.environ.get("FORGE_RUNTIME")
    found = [Path(named)] if named else list((ROOT / "target").glob("*/deps/libforge_runtime.so"))
    if not found:
        pytest.fail("no libforge_runtime.so: run `cargo build -p forge-runtime`, or set FORGE_RUNTIME")
    return max(found, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="session")
def templates(tmp_path_factory):
    """Compiled once: (agreeing, one whose plans can be told apart)."""
    root = tmp_path_factory.mktemp("templates")
    return (
        make_scale_add(root / "agreeing", runtime_library()),
        make_scale_add(root / "marked", runtime_library(), forged_offset=OFFSET),
    )


@pytest.fixture
def agreeing(templates, tmp_path):
    return Path(shutil.copytree(templates[0], tmp_path / "agreeing"))


@pytest.fixture
def marked(templates, tmp_path):
    return Path(shutil.copytree(templates[1], tmp_path / "marked"))


def forged(directory):
    """The loader of a directory, as a module of its own."""
    name = f"forged_{abs(hash(str(directory)))}"
    spec = importlib.util.spec_from_file_location(name, directory / "forged.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its classes can be pickled
    spec.loader.exec_module(module)
    return module


def load(directory, **options):
    return forged(directory).load(**options)


def expected(x, y):
    width = x.shape[1]
    bias = torch.tensor([BIAS[i % 4] for i in range(width)])
    return x * 2 + y + bias


def pair(batch=3, width=4):
    return torch.randn(batch, width), torch.randn(batch, width)


def edit_manifest(directory, change):
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def run_python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, **environment}, timeout=120,
    )


# ---- calls ----


def test_inputs_in_order_and_by_name(agreeing):
    model = load(agreeing)
    x, y = pair()
    want = expected(x, y)
    for got in (model(x, y), model(x, y=y), model(y=y, x=x), model.original(x, y)):
        assert torch.equal(got, want)
    assert model.output_names == ("z",) and model.input_names == ("x", "y")
    assert not model.fallbacks and not model.copies


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (1, (), "input 'y' is missing"),
        (3, (), "takes 2 inputs"),
        (2, ("x",), "input 'x' is given twice"),
        (1, ("y", "w"), "no input 'w'"),
    ],
)
def test_calls_with_the_wrong_inputs(agreeing, args, kwargs, message):
    x, _ = pair()
    with pytest.raises(TypeError, match=message):
        load(agreeing)(*[x] * args, **dict.fromkeys(kwargs, x))


def test_many_calls_of_many_shapes(agreeing):
    model = load(agreeing)
    torch.manual_seed(0)
    kept = []
    for call in range(400):
        x, y = pair(batch=1 + call * 7 % 64)
        kept.append((model(x, y), expected(x, y)))
    # Compared at the end: no call may write into an earlier result.
    assert all(torch.equal(got, want) for got, want in kept)
    assert not model.fallbacks


def test_many_threads_at_once(agreeing):
    model = load(agreeing, threads=2)

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for call in range(50):
            batch = 1 + (seed * 50 + call) % 70  # some outside the guards
            x, y = torch.randn(2, batch, 4, generator=generator)
            if not torch.equal(model(x, y), expected(x, y)):
                return f"thread {seed}, call {call}"
        return None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [None] * 8
    outside = sum(1 + n % 70 > 64 for n in range(400))
    assert sum(model.fallbacks.values()) == outside > 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bool", torch.bool), ("u8", torch.uint8), ("u16", torch.uint16), ("u32", torch.uint32),
        ("u64", torch.uint64), ("i8", torch.int8), ("i16", torch.int16), ("i32", torch.int32),
        ("i64", torch.int64), ("f16", torch.float16), ("bf16", torch.bfloat16), ("f32", torch.float32),
        ("f64", torch.float64),
    ],
)
def test_every_dtype(tmp_path, name, dtype):
    model = load(make_copies(tmp_path / "out", runtime_library(), name, dtype.itemsize))
    x = (torch.arange(37) % 2).to(dtype)
    results = model(x)
    assert isinstance(results, tuple) and model.output_names == ("first", "second")
    for result in results:
        assert result.dtype == dtype and torch.equal(result, x)
    assert [result.numel() for result in model(x[:0])] == [0, 0]


def test_scalars(tmp_path):
    model = load(make_copies(tmp_path / "out", runtime_library(), "f32", 4, shape=()))
    first, second = model(torch.tensor(2.5))
    assert first.shape == () and float(first) == float(second) == 2.5
    with pytest.raises(ValueError, match=r"input 'x': expected rank 0 \(f32\[\]\), got rank 1"):
        model(torch.ones(1))


# ---- guards ----


def test_outside_the_guards_the_unrewritten_model_runs(marked):
    model = load(marked)
    inside, outside = pair(), pair(width=5)
    assert torch.allclose(model(*inside), expected(*inside) + OFFSET)
    with pytest.warns(UserWarning, match="input 'x' axis 1: expected 4, got 5") as caught:
        assert torch.equal(model(*outside), expected(*outside))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once per reason, whatever was got
        model(*outside)
        model(*pair(width=6))
    assert model.fallbacks == {"input 'x' axis 1: expected 4": 3}
    with pytest.warns(UserWarning, match=r"expected batch in 1\.\.64, got 65"):
        assert torch.equal(model(*(large := pair(batch=65))), expected(*large))
    assert len(model.fallbacks) == 2
    assert torch.allclose(model(*inside), expected(*inside) + OFFSET)
    assert sum(model.fallbacks.values()) == 4


def test_strict_raises_instead(marked):
    loader = forged(marked)
    model = loader.load(strict=True)
    model(*pair())
    with pytest.raises(loader.GuardError) as caught:
        model(*pair(width=5))
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.what, error.expected, error.got) == ("input 'x' axis 1", "4", 5)
    with pytest.raises(loader.GuardError, match=r"batch in 1\.\.64, got 65"):
        model(*pair(batch=65))
    assert not model.fallbacks


def test_shapes_that_no_plan_takes(marked):
    model = load(marked)
    x, y = pair()
    with pytest.raises(ValueError, match=r"input 'y' axis 0: expected the batch of input 'x' axis 0, got 2 beside 3"):
        model(x, y[:2])
    with pytest.raises(ValueError, match=r"input 'x': expected rank 2 \(f32\[batch, width\]\), got rank 3"):
        model(x[None], y)
    assert not model.fallbacks


def test_expressions_in_guards_are_checked(agreeing):
    loader = forged(agreeing)
    ports = [
        {"name": "a", "dtype": "f32", "shape": ["n", "max(n, 2)*2 + 1"]},
        {"name": "b", "dtype": "f32", "shape": ["floordiv(n, 2) + mod.size", "mod.size"]},
    ]
    assert loader._refusal(ports, ((4, 9), (5, 3)), {}) is None
    assert loader._refusal(ports, ((1, 5), (3, 3)), {}) is None
    assert loader._refusal(ports, ((4, 8), (5, 3)), {}) == ("input 'a' axis 1", "max(n, 2)*2 + 1", "8, not 9")
    assert loader._refusal(ports, ((4, 9), (4, 3)), {})[0] == "input 'b' axis 0"


def test_the_runtime_has_the_last_word(marked):
    # A guard that only the plan knows, as if the manifest were of another version of the model.
    def forget(manifest):
        manifest["plans"]["forged"]["inputs"][0]["shape"][1] = "w"
        manifest["plans"]["forged"]["inputs"][1]["shape"][1] = "w"

    edit_manifest(marked, forget)
    model = load(marked)
    outside = pair(width=5)
    with pytest.warns(UserWarning, match="input 'x' axis 1: expected 4, got 5"):
        assert torch.equal(model(*outside), expected(*outside))


def test_dtype_device_and_layout(agreeing):
    model = load(agreeing)
    x, y = pair()
    with pytest.raises(TypeError, match=r"input 'x': expected torch.float32, got torch.float64; convert .*\.to"):
        model(x.double(), y)
    with pytest.raises(ValueError, match=r"input 'y': expected a tensor on the cpu, got meta; move it with \.cpu\(\)"):
        model(x, y.to("meta"))
    with pytest.raises(ValueError, match="input 'x': expected a dense tensor, got torch.sparse_coo"):
        model(x.to_sparse(), y)
    with pytest.raises(TypeError, match=r"input 'x': expected a torch.Tensor, got list"):
        model([1.0], y)


def test_gradients_are_refused(agreeing):
    model = load(agreeing)
    x, y = pair()
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="input 'x' requires grad, but forged models compute no gradients"):
        model(x, y)
    with torch.no_grad():
        assert torch.equal(model(x, y), expected(x, y))
    with torch.inference_mode():
        result = model(x, y)
    assert result.is_inference() and torch.equal(result, expected(x, y).detach())
    # A parameter outside the model does not matter.
    assert torch.equal(model(x.detach(), y), expected(x.detach(), y))


def test_inputs_that_are_not_contiguous_are_copied_and_counted(agreeing):
    model = load(agreeing)
    x, y = torch.randn(4, 3).T, torch.randn(1, 4).expand(3, 4)
    for call in range(1, 3):
        assert torch.equal(model(x, y), expected(x, y))
        assert model.copies == {"x": call, "y": call}
    sliced = torch.randn(3, 8)[:, 2:6]
    assert torch.equal(model(sliced, x.contiguous()), expected(sliced, x))
    assert model.copies == {"x": 3, "y": 2}
    negated = torch._neg_view(x.contiguous())
    assert torch.equal(model(negated, y.contiguous()), expected(-x, y))


# ---- as an nn.Module ----


def test_it_is_a_module_without_state(agreeing):
    model = load(agreeing)
    assert isinstance(model, torch.nn.Module) and not model.training
    assert not model.state_dict() and not list(model.parameters()) and not list(model.buffers())
    x, y = pair()
    whole = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Identity()).eval().requires_grad_(False)
    whole.add_module("tail", model)
    assert not [name for name in whole.state_dict() if name.startswith("tail")]
    assert torch.equal(model.half().to("cpu").float().eval()(x, y), expected(x, y))
    assert repr(model) == (
        "ForgedModule(scale_add, (x: f32[batch, 4], y: f32[batch, 4]) -> (z: f32[batch, 4]), "
        f"target=cpu, threads={torch.get_num_threads()})"
    )


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_must_make_sense(agreeing, threads):
    with pytest.raises(ValueError, match="threads must be a positive integer"):
        load(agreeing, threads=threads)


def test_copies_open_the_directory_again(marked):
    model = load(marked, threads=1, strict=True)
    x, y = pair()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)]
    for other in copies:
        assert other is not model and (other.threads, other.strict) == (1, True)
        assert other._forged._handle.value != model._forged._handle.value
        assert torch.equal(other(x, y), model(x, y))
    del copies, other
    assert torch.allclose(model(x, y), expected(x, y) + OFFSET)


def test_pickles_follow_a_directory_that_moved(marked, tmp_path):
    blob = tmp_path / "model.pickle"
    code = "import sys, pickle; sys.path.insert(0, sys.argv[1]); import forged; "
    done = run_python(code + "pickle.dump(forged.load(), open(sys.argv[2], 'wb'))", marked, blob)
    assert done.returncode == 0, done.stderr
    moved = marked.rename(tmp_path / "elsewhere")
    one = "torch.ones(1, 4)"
    use = f"import torch; print(float(pickle.load(open(sys.argv[2], 'rb'))({one}, {one})[0, 0]))"
    done = run_python(code + use, moved, blob)
    assert done.stdout == "1003.0\n", done.stderr
    edit_manifest(moved, lambda manifest: manifest.update(id="another"))
    done = run_python(code + use, moved, blob)
    assert "is no longer there" in done.stderr


def test_a_forked_process_runs_its_own(marked):
    model = load(marked, threads=2)
    x, y = pair(batch=64)
    want = model(x, y)
    child = os.fork()
    if child == 0:
        same = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outside = pair(width=5)
                same = torch.equal(model(x, y), want) and torch.equal(model(*outside), expected(*outside))
            del model
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(model(x, y), want)


# ---- the directory ----


def test_the_directory_may_move(marked, tmp_path):
    moved = tmp_path / "some where" / "ünusual"
    moved.parent.mkdir()
    marked.rename(moved)
    model = load(moved)
    inside, outside = pair(), pair(width=5)
    assert torch.allclose(model(*inside), expected(*inside) + OFFSET)
    # Also under a loaded model, which then still has both plans.
    shutil.rmtree(moved)
    assert torch.allclose(model(*inside), expected(*inside) + OFFSET)
    with pytest.warns(UserWarning):
        assert torch.equal(model(*outside), expected(*outside))


def test_two_models_in_one_process(agreeing, marked):
    one, two = load(agreeing), load(marked)
    x, y = pair()
    assert torch.allclose(two(x, y), one(x, y) + OFFSET)


def test_needs_only_torch(marked, tmp_path):
    code = """
import sys
for name in ("numpy", "safetensors", "onnx"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import forged, torch
print(float(forged.load()(torch.ones(1, 4), torch.ones(1, 4))[0, 0]))
"""
    done = run_python(code, marked)
    assert done.stdout == "1003.0\n", done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=99), "has version 99, this loader reads 1"),
        (lambda m: m.update(tool="other"), "was not written by forge-cc"),
        (lambda m: m["cpu"].update(arch="pdp11"), "was built for pdp11, this machine is"),
    ],
)
def test_directories_that_are_not_for_here(agreeing, change, message):
    edit_manifest(agreeing, change)
    loader = forged(agreeing)
    with pytest.raises(loader.ForgeError, match=message):
        loader.load()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("manifest.json", "cannot read manifest.json"),
        ("libforge_runtime.so", "cannot load the runtime"),
        ("plan.json", "cannot open .*plan.json"),
        ("weights.safetensors", "cannot open .*plan.json: cannot read .*weights.safetensors"),
    ],
)
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_files_that_are_missing_or_empty(agreeing, file, message, damage):
    damage(agreeing / file)
    if file == "weights.safetensors" and damage is not Path.unlink:
        message = "not a safetensors file"
    loader = forged(agreeing)
    with pytest.raises(loader.ForgeError, match=message):
        loader.load()


# ---- kernels on another processor ----


@pytest.fixture
def counted_compiler(tmp_path, monkeypatch):
    """A compiler that logs its runs, and an empty cache."""
    log = tmp_path / "compiled"
    log.touch()
    script = tmp_path / "counted-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo run >> {log};; esac\nexec c++ "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path / "cache"))
    return lambda: len(log.read_text().split())


def foreign(directory):
    edit_manifest(directory, lambda manifest: manifest["cpu"].update(isa=["avx9000"], model="Tomorrow's CPU"))


def test_kernels_are_rebuilt_once_for_another_processor(marked, counted_compiler, tmp_path):
    foreign(marked)
    for library in (marked / "kernels").glob("*.so"):
        library.write_bytes(b"code of another processor")
    before = sorted(marked.rglob("*"))
    x, y, outside = *pair(), pair(width=5)
    for _ in range(2):
        model = load(marked)
        assert torch.allclose(model(x, y), expected(x, y) + OFFSET)
        with pytest.warns(UserWarning):
            assert torch.equal(model(*outside), expected(*outside))
        assert counted_compiler() == 2
    assert [path for path in sorted(marked.rglob("*")) if "__pycache__" not in path.parts] == before
    assert len(list((tmp_path / "cache" / "rebuilt").iterdir())) == 2
    source = marked / "kernels" / "forged.cpp"
    source.write_text(source.read_text().replace("1000.0f", "2000.0f"))
    assert torch.allclose(load(marked)(x, y), expected(x, y) + 2 * OFFSET)
    assert counted_compiler() == 3


def test_damaged_kernels_are_rebuilt_too(marked, counted_compiler):
    (marked / "kernels" / "forged.so").write_bytes(b"damaged")
    x, y = pair()
    assert torch.allclose(load(marked)(x, y), expected(x, y) + OFFSET)
    assert counted_compiler() == 2


def test_without_a_compiler_the_error_says_what_to_do(marked, monkeypatch, tmp_path):
    foreign(marked)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    loader = forged(marked)
    with pytest.raises(loader.ForgeError) as caught:
        loader.load()
    for part in ("built for Tomorrow's CPU", "lacks avx9000", "install a C++ compiler", "CXX"):
        assert part in str(caught.value)


def test_a_kernel_that_does_not_compile_is_shown(marked, counted_compiler):
    foreign(marked)
    (marked / "kernels" / "forged.cpp").write_text("int main( {")
    loader = forged(marked)
    with pytest.raises(loader.ForgeError, match=r"(?s)Rebuilding failed: .*forged\.cpp.*error"):
        loader.load()


# ---- self-check ----


def test_the_self_check_agrees(agreeing):
    done = subprocess.run(
        [sys.executable, agreeing / "forged.py", "--threads", "1", "--repeats", "3"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "input x: f32[8, 4]" in done.stdout and "output z: max error 0," in done.stdout
    assert "median of 3" in done.stdout


def test_the_self_check_tells_a_wrong_model(marked):
    done = subprocess.run([sys.executable, marked / "forged.py", "--repeats", "1"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "too far apart" in done.stdout
    (marked / "plan.json").unlink()
    done = subprocess.run([sys.executable, marked / "forged.py"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("forged.py: cannot open")
