"""@TITLE@

    import forged
    model = forged.load()              # a torch.nn.Module
    output = model(*inputs)            # or by name

@SIGNATURE@

Inside these guards the forged plan runs; outside them the unrewritten model runs, through the same
runtime (`model.fallbacks` counts that by reason; `load(strict=True)` raises GuardError instead).
`python forged.py` compares the two on random inputs and times them.

Needs torch and the files beside this one, which may be moved together to any place.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

__all__ = ["ForgeError", "ForgeWarning", "ForgedModule", "GuardError", "load"]

HERE = Path(__file__).resolve().parent
MANIFEST_VERSION = 1
ABI_VERSION = 1

# Status codes of the C ABI that are told apart here.
STATUS_MODULE = 4
STATUS_SHAPE = 6

# fmt: off
DTYPES = {
    "bool": torch.bool, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}
# fmt: on

# How far forged and original outputs may lie apart in the self-check, relative to the largest magnitude.
TOLERANCES = {"f16": 2e-2, "bf16": 1e-1, "f32": 1e-3, "f64": 1e-8}

# A kernel that takes longer to rebuild is given up on.
BUILD_SECONDS = 600

# Shapes whose resolution is remembered, so that a repeated call checks its guards by one look-up.
REMEMBERED_SHAPES = 256


class ForgeError(RuntimeError):
    """The directory cannot be loaded or run; the message says what to do."""


class GuardError(ValueError):
    """Inputs outside the guards of the forged plan, with `strict=True`."""

    def __init__(self, what, expected, got):
        super().__init__(f"{what}: expected {expected}, got {got}")
        self.what = what
        self.expected = expected
        self.got = got

    def __reduce__(self):
        return GuardError, (self.what, self.expected, self.got)


class ForgeWarning(UserWarning):
    """The unrewritten model ran instead of the forged one."""


def load(threads=None, strict=False):
    """The model of this directory.

    threads: for the runtime's pool; torch's own number if not given.
    strict: raise GuardError where the unrewritten model would run.
    """
    return ForgedModule(HERE, threads, strict)


class ForgedModule(torch.nn.Module):
    """A model without parameters: weights are mapped read only by the runtime.

    fallbacks: calls that ran the unrewritten model, by reason.
    copies: inputs that were copied because they were not contiguous, by name.
    """

    def __init__(self, directory, threads=None, strict=False):
        super().__init__()
        threads = torch.get_num_threads() if threads is None else threads
        if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
            raise ValueError(f"threads must be a positive integer, got {threads!r}")
        self.directory = Path(directory).resolve()
        self.threads = threads
        self.strict = bool(strict)
        self.manifest = _read_manifest(self.directory)
        self.name = self.manifest["name"]
        forged, original = self.manifest["plans"]["forged"], self.manifest["plans"]["original"]
        self.input_names = tuple(port["name"] for port in forged["inputs"])
        self.output_names = tuple(port["name"] for port in forged["outputs"])
        self.fallbacks = Counter()
        self.copies = Counter()
        self._ports = [(port["name"], DTYPES[port["dtype"]]) for port in forged["inputs"]]
        self._symbols = self.manifest["symbols"]
        self._lock = threading.Lock()
        self._calls = {}
        runtime = _Runtime(self.directory, self.manifest)
        self._forged = _Plan(runtime, forged, threads)
        self._original = _Plan(runtime, original, threads)
        self._forged.open()
        # Opened now if a call can ever need it, so that moving the directory later does no harm.
        if self._symbols or forged["inputs"] != original["inputs"]:
            self._original.open()
        self.eval()

    def forward(self, *args, **kwargs):
        """Inputs in order or by name; one tensor if the model has one output, else a tuple in the order
        of `output_names`."""
        tensors = self._tensors(args, kwargs)
        call, refusal = self._call(tuple(tuple(tensor.shape) for tensor in tensors))
        if refusal is not None:
            self._fall_back(refusal)
        return call.run(tensors)

    def original(self, *args, **kwargs):
        """As `forward`, but always through the unrewritten model; counts nothing."""
        tensors = self._tensors(args, kwargs)
        return self._original.prepare(tuple(tuple(tensor.shape) for tensor in tensors)).run(tensors)

    def extra_repr(self):
        ports = ", ".join(f"{p['name']}: {_type(p)}" for p in self._forged.inputs)
        results = ", ".join(f"{p['name']}: {_type(p)}" for p in self._forged.outputs)
        return f"{self.name}, ({ports}) -> ({results}), target={self.manifest['target']}, threads={self.threads}"

    def __reduce__(self):
        # Handles and mapped weights belong to a process: a copy opens the directory again.
        return _reopen, (str(self.directory), self.manifest["id"], self.threads, self.strict)

    def _tensors(self, args, kwargs):
        """The inputs in order, each checked for what no plan of this model can take."""
        names = self.input_names
        if len(args) > len(names):
            raise TypeError(f"{self.name} takes {len(names)} inputs ({', '.join(names)}), got {len(args)}")
        for name in kwargs:
            if name not in names:
                raise TypeError(f"{self.name} has no input '{name}'; its inputs are {', '.join(names)}")
            if name in names[: len(args)]:
                raise TypeError(f"input '{name}' is given twice, in order and by name")
        tensors = []
        for index, (name, dtype) in enumerate(self._ports):
            if index < len(args):
                tensor = args[index]
            elif name in kwargs:
                tensor = kwargs[name]
            else:
                raise TypeError(f"input '{name}' is missing; the inputs are {', '.join(names)}")
            tensors.append(self._tensor(name, dtype, tensor))
        return tensors

    def _tensor(self, name, dtype, tensor):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"input '{name}': expected a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype != dtype:
            raise TypeError(f"input '{name}': expected {dtype}, got {tensor.dtype}; convert it with .to({dtype})")
        if tensor.device.type != "cpu":
            raise ValueError(f"input '{name}': expected a tensor on the cpu, got {tensor.device}; move it with .cpu()")
        if tensor.layout != torch.strided:
            raise ValueError(f"input '{name}': expected a dense tensor, got {tensor.layout}; use .to_dense()")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"input '{name}' requires grad, but forged models compute no gradients: "
                "call under torch.no_grad() or torch.inference_mode(), or pass .detach()"
            )
        # Kernels read dense row-major memory and know no lazy negation.
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            with self._lock:
                self.copies[name] += 1
        return tensor

    def _call(self, shapes):
        return _remembered(self._calls, shapes, self._resolve)

    def _resolve(self, shapes):
        """A call of the plan that takes these shapes, and why it is not the forged one, if it is not."""
        refusal = _refusal(self._forged.inputs, shapes, self._symbols)
        if refusal is None:
            try:
                return self._forged.prepare(shapes), None
            except _ShapeError as error:
                refusal = error.refusal
        if self.strict:
            raise GuardError(*refusal)
        return self._original.prepare(shapes), refusal

    def _fall_back(self, refusal):
        what, expected, got = refusal
        reason = f"{what}: expected {expected}"
        with self._lock:
            first = reason not in self.fallbacks
            self.fallbacks[reason] += 1
        if first:
            warnings.warn(
                f"{self.name}: outside the guards of the forged plan ({reason}, got {got}); the unrewritten "
                "model runs instead. This is counted in .fallbacks and said once per reason.",
                ForgeWarning,
                stacklevel=5,  # past forward and the two frames of nn.Module.__call__
            )


def _reopen(directory, identity, threads, strict):
    """Unpickles: the directory as it was, or where this file lies now if that is the same model."""
    for place in (Path(directory), HERE):
        with contextlib.suppress(ForgeError):
            if _read_manifest(place)["id"] == identity:
                return ForgedModule(place, threads, strict)
    raise ForgeError(f"the model that was pickled from {directory} is no longer there")


class _ShapeError(ValueError):
    """Shapes that a plan does not take."""

    def __init__(self, refusal):
        super().__init__("{}: expected {}, got {}".format(*refusal))
        self.refusal = refusal


class _Runtime:
    """libforge_runtime.so, and kernels that this machine's processor executes."""

    def __init__(self, directory, manifest):
        self.directory = directory
        self.manifest = manifest
        built_for = manifest["cpu"]["arch"]
        if platform.machine() != built_for:
            here = platform.machine()
            raise ForgeError(f"{directory} was built for {built_for}, this machine is {here}: run forge-cc here")
        path = directory / "libforge_runtime.so"
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ForgeError(f"cannot load the runtime: {error}") from None
        library = self.library
        pointer, pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
        ranks, dims = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int64)
        library.forge_abi_version.argtypes = []
        library.forge_abi_version.restype = ctypes.c_int32
        if (found := library.forge_abi_version()) != ABI_VERSION:
            raise ForgeError(f"{path} has ABI version {found}, this loader speaks {ABI_VERSION}: run forge-cc again")
        library.forge_last_error.argtypes = []
        library.forge_last_error.restype = ctypes.c_char_p
        library.forge_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32, pointers]
        library.forge_output_shapes.argtypes = [pointer, ctypes.c_int32, ranks, dims, dims, ctypes.c_int64]
        library.forge_run.argtypes = [pointer, pointers, ranks, dims, pointers]
        library.forge_close.argtypes = [pointer]
        for function in (library.forge_open, library.forge_output_shapes, library.forge_run, library.forge_close):
            function.restype = ctypes.c_int32  # a status, 0 for success
        self.rebuilt = None
        if missing := _missing_instructions(manifest):
            why = f"the kernels were built for {manifest['cpu']['model']}; this processor lacks {', '.join(missing)}"
            self.rebuilt = _rebuild_kernels(directory, manifest, why)

    def error(self):
        return (self.library.forge_last_error() or b"unknown failure").decode(errors="replace")

    def open(self, plan_file, threads):
        """A handle of a plan."""
        status, handle = self._open(plan_file, threads)
        if status == STATUS_MODULE and self.rebuilt is None:
            # Built against another C library, or damaged: the sources are here.
            self.rebuilt = _rebuild_kernels(self.directory, self.manifest, self.error())
            status, handle = self._open(plan_file, threads)
        if status != 0:
            raise ForgeError(f"cannot open {self.directory / plan_file}: {self.error()}")
        return handle

    def _open(self, plan_file, threads):
        handle = ctypes.c_void_p()
        with _plan_folder(self.directory, plan_file, self.rebuilt) as folder:
            status = self.library.forge_open(os.fsencode(folder), plan_file.encode(), threads, ctypes.byref(handle))
        return status, handle


class _Plan:
    """One of the two plans: what it takes, and its handle in the runtime once it is open."""

    def __init__(self, runtime, description, threads):
        self.runtime = runtime
        self.file = description["file"]
        self.inputs = description["inputs"]
        self.outputs = description["outputs"]
        self.threads = threads
        self.dtypes = [DTYPES[port["dtype"]] for port in self.outputs]
        self._handle = None
        self._process = None
        self._lock = threading.Lock()
        self._calls = {}

    def open(self):
        """The handle; opened on first use, and again in a process forked since, which has no pool threads."""
        if self._process != os.getpid():
            if self._process is not None:
                self._lock = threading.Lock()  # the old one may have been held while forking
            with self._lock:
                if self._process != os.getpid():
                    self._handle = handle = self.runtime.open(self.file, self.threads)
                    process = self._process = os.getpid()
                    weakref.finalize(self, _close, self.runtime.library, handle, process).atexit = False
        return self._handle

    def prepare(self, shapes):
        """A call for these input shapes; _ShapeError if the plan does not take them."""
        return _remembered(self._calls, shapes, self._prepare)

    def _prepare(self, shapes):
        if refusal := _refusal(self.inputs, shapes, {}):
            raise _ShapeError(refusal)
        ranks = (ctypes.c_int32 * len(shapes))(*map(len, shapes))
        flat = [extent for shape in shapes for extent in shape]
        dims = (ctypes.c_int64 * len(flat))(*flat)
        result_ranks = [len(port["shape"]) for port in self.outputs]
        results = (ctypes.c_int64 * sum(result_ranks))()
        query = self.runtime.library.forge_output_shapes
        status = query(self.open(), len(shapes), ranks, dims, results, len(results))
        if status == STATUS_SHAPE:
            what, _, rest = self.runtime.error().partition(": expected ")
            expected, _, got = rest.partition(", got ")
            raise _ShapeError((what, expected or "shapes that the plan takes", got or str(shapes)))
        if status != 0:
            raise ForgeError(f"{self.file}: {self.runtime.error()}")
        extents = iter(results)
        return _Call(self, ranks, dims, [tuple(next(extents) for _ in range(rank)) for rank in result_ranks])


class _Call:
    """What a call of one plan with certain input shapes needs beside the tensors."""

    def __init__(self, plan, ranks, dims, result_shapes):
        self.plan = plan
        self.ranks = ranks
        self.dims = dims
        self.results = list(zip(result_shapes, plan.dtypes))

    def run(self, tensors):
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in self.results]
        pointers_in = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
        pointers_out = (ctypes.c_void_p * len(outputs))(*[tensor.data_ptr() for tensor in outputs])
        # ctypes releases the GIL for the time of the call.
        runtime = self.plan.runtime
        status = runtime.library.forge_run(self.plan.open(), pointers_in, self.ranks, self.dims, pointers_out)
        if status != 0:
            raise ForgeError(f"{self.plan.file}: {runtime.error()}")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _remembered(calls, shapes, make):
    call = calls.get(shapes)
    if call is None:
        call = make(shapes)
        if len(calls) >= REMEMBERED_SHAPES:
            calls.clear()
        calls[shapes] = call
    return call


def _close(library, handle, process):
    # A forked child has no right to its parent's handle.
    if os.getpid() == process:
        library.forge_close(handle)


# ---- guards ----


def _refusal(ports, shapes, symbols):
    """Why `shapes` do not fit the ports, as (what, expected, got); None if they do.

    A constant extent must be met, a bare symbol is bound by its first use and must agree with it later
    and lie in its range, and any other expression is evaluated once all symbols are bound.
    """
    bound = {}
    expressions = []
    for port, shape in zip(ports, shapes):
        name = port["name"]
        if len(shape) != len(port["shape"]):
            return f"input '{name}'", f"rank {len(port['shape'])} ({_type(port)})", f"rank {len(shape)}"
        for axis, (expected, got) in enumerate(zip(port["shape"], shape)):
            where = f"input '{name}' axis {axis}"
            if isinstance(expected, int):
                if got != expected:
                    return where, str(expected), got
            elif not re.fullmatch(r"[A-Za-z_][\w.]*", expected):
                expressions.append((where, expected, got))
            elif expected not in bound:
                bound[expected] = (got, where)
                bounds = symbols.get(expected, {})
                low, high = bounds.get("min"), bounds.get("max")
                if (low is not None and got < low) or (high is not None and got > high):
                    return where, f"{expected} in {0 if low is None else low}..{'' if high is None else high}", got
            elif got != bound[expected][0]:
                value, place = bound[expected]
                return where, f"the {expected} of {place}", f"{got} beside {value}"
    values = {symbol: value for symbol, (value, _) in bound.items()}
    for where, expression, got in expressions:
        value = _evaluate(expression, values)
        if value is not None and value != got:
            return where, expression, f"{got}, not {value}"
    return None


def _evaluate(expression, values):
    """A size such as `floordiv(seq + 1, 2)*8`; None if it names a symbol without a value or divides by zero."""
    functions = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min}

    def substitute(match):
        word = match[0]
        called = word in functions and expression[match.end() : match.end() + 1] == "("
        return word if called else f"({values[word]})"

    try:
        arithmetic = re.sub(r"[A-Za-z_][\w.]*", substitute, str(expression))
        return eval(arithmetic, {"__builtins__": {}}, functions)  # noqa: S307: integers, + - *, four functions
    except (KeyError, ZeroDivisionError):
        return None


def _type(port):
    return f"{port['dtype']}[{', '.join(map(str, port['shape']))}]"


# ---- files ----


def _read_manifest(directory):
    path = directory / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ForgeError(f"{directory} is not a forge-cc output: cannot read manifest.json: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("tool") != "forge-cc":
        raise ForgeError(f"{path} was not written by forge-cc")
    if (found := manifest.get("version")) != MANIFEST_VERSION:
        raise ForgeError(f"{path} has version {found}, this loader reads {MANIFEST_VERSION}: run forge-cc again")
    return manifest


@contextlib.contextmanager
def _plan_folder(directory, plan_file, rebuilt):
    """The folder from which the runtime opens a plan; it is read only while opening.

    With rebuilt kernels that is a temporary one: the plan without its kernels' hashes, and links.
    """
    if rebuilt is None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="forge-") as temporary:
        folder = Path(temporary)
        plan = json.loads((directory / plan_file).read_text(encoding="utf-8"))
        for module in plan["modules"]:
            module["hash"] = ""
            link = folder / module["file"]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(rebuilt[module["file"]])
        (folder / plan_file).write_text(json.dumps(plan), encoding="utf-8")
        (folder / "weights.safetensors").symlink_to(directory / "weights.safetensors")
        yield folder


# ---- kernels on another processor ----


def _missing_instructions(manifest):
    """Instruction sets that the kernels may use (they are built with -march=native) and this machine lacks."""
    present = {flag for line in _processor("flags", "Features") for flag in line.partition(":")[2].split()}
    return sorted(set(manifest["cpu"]["isa"]) - present)


def _processor(*keys):
    """Lines of /proc/cpuinfo with these keys, each once; none where there is no such file."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        return sorted({line for line in text.splitlines() if line.partition(":")[0].strip() in keys})
    return []


def _rebuild_kernels(directory, manifest, why):
    """Builds kernels/*.cpp for this processor; the libraries by their path in the plan.

    They are kept in the compiler's cache folder (FORGE_CACHE, else ~/.cache/forge-cc), never beside the
    sources, so that one directory serves unlike machines at once.
    """
    kernels = manifest["kernels"]
    names = [os.environ.get("CXX"), kernels["compiler"], "c++", "g++", "clang++"]
    compiler = next((found for name in names if name and (found := shutil.which(name))), None)
    if compiler is None:
        raise ForgeError(
            f"{why}. To rebuild them here, install a C++ compiler (Debian: apt-get install g++) or name one in CXX; "
            "or run forge-cc on this machine."
        )
    root = os.environ.get("FORGE_CACHE")
    cache = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge-cc"
    cache = cache.resolve() / "rebuilt"
    cache.mkdir(parents=True, exist_ok=True)
    include = directory / kernels["include"]
    # What -march=native resolves to is the processor's; the compiler is told apart by its version.
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    processor = _processor("vendor_id", "cpu family", "model", "stepping", "flags", "CPU part", "Features")
    common = hashlib.sha256(json.dumps([compiler, version, kernels["flags"], processor]).encode())
    for header in sorted(include.rglob("*")):
        if header.is_file():
            common.update(header.read_bytes())

    def build(kernel):
        source = directory / kernel["source"]
        key = common.copy()
        key.update(source.read_bytes())
        library = cache / f"{source.stem}-{key.hexdigest()[:32]}.so"
        if not library.exists():
            with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as temporary:
                output = Path(temporary) / library.name
                command = [compiler, *kernels["flags"], "-I", str(include), str(source), "-o", str(output)]
                result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
                if result.returncode != 0:
                    raise ForgeError(f"{why}. Rebuilding failed: {' '.join(command)}\n{result.stderr.strip()}")
                # A rename, so that no other process ever sees half a library.
                output.replace(library)
        return kernel["library"], library

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(pool.map(build, kernels["files"]))


# ---- self-check ----


def _sample(port, values):
    shape = [_evaluate(extent, values) for extent in port["shape"]]
    dtype = DTYPES[port["dtype"]]
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    low, high = port.get("values") or (0, 2)
    return torch.randint(low, high, shape).to(dtype)


def _typical(symbol, symbols):
    bounds = symbols.get(symbol, {})
    value = bounds.get("typical") or 4
    low, high = bounds.get("min"), bounds.get("max")
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def _compare(port, forged, original):
    """(line, whether it is within tolerance)"""
    if not original.dtype.is_floating_point:
        different = int((forged != original).sum())
        return f"{different} of {original.numel()} elements differ", different * 1000 <= original.numel()
    a, b = forged.double(), original.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "not finite in different places", False
    finite = b.isfinite()
    error = float((a - b)[finite].abs().max()) if finite.any() else 0.0
    scale = float(b[finite].abs().max()) if finite.any() else 0.0
    relative = error / scale if scale > 0 else error
    return f"max error {error:.3g}, relative {relative:.3g}", relative <= TOLERANCES[port["dtype"]]


def self_check(threads=None, repeats=15, seed=0, out=sys.stdout):
    """Forged against original on random inputs inside the guards; whether they agree."""
    torch.manual_seed(seed)
    module = ForgedModule(HERE, threads)
    symbols = {extent for port in module._forged.inputs for extent in port["shape"] if isinstance(extent, str)}
    values = {symbol: _typical(symbol, module._symbols) for symbol in symbols}
    inputs = [_sample(port, values) for port in module._forged.inputs]
    print(f"{module.name}: target {module.manifest['target']}, {module.threads} threads", file=out)
    for port, tensor in zip(module._forged.inputs, inputs):
        print(f"  input {port['name']}: {port['dtype']}{list(tensor.shape)}", file=out)
    times = [(module.forward, []), (module.original, [])]
    agree = True
    with torch.inference_mode():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForgeWarning)
            results = [run(*inputs) for run, _ in times]
        forged, original = [r if isinstance(r, tuple) else (r,) for r in results]
        for port, a, b in zip(module._forged.outputs, forged, original):
            line, good = _compare(port, a, b)
            agree = agree and good
            print(f"  output {port['name']}: {line}{'' if good else '  <- too far apart'}", file=out)
        if module.fallbacks:
            print(f"  the forged plan did not run: {', '.join(module.fallbacks)}", file=out)
            return False
        # Interleaved and in turns first, so that drifts of the machine hit both alike.
        for repeat in range(repeats):
            for run, samples in times if repeat % 2 else reversed(times):
                start = time.perf_counter()
                run(*inputs)
                samples.append(time.perf_counter() - start)
    fast, slow = (statistics.median(samples) * 1e3 for _, samples in times)
    print(f"  original {slow:.3f} ms, forged {fast:.3f} ms: {slow / fast:.2f}x (median of {repeats})", file=out)
    return agree


def _main():
    parser = argparse.ArgumentParser(description="Compare the forged model with the original on random inputs.")
    parser.add_argument("--threads", type=int, help="threads of the runtime (default: torch's number)")
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: %(default)s)")
    options = parser.parse_args()
    try:
        return 0 if self_check(options.threads, options.repeats, options.seed) else 1
    except (ForgeError, ValueError) as error:
        print(f"forged.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(_main())
