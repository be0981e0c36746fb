"""Times contenders on one model and prints one JSON object. Started by `forge-cc bench`.

Reads a request (JSON) from stdin: directory, onnx, eager (paths or null), inputs (.npy paths, none for
random ones), threads, blocks, seed, scratch (an empty folder).

Each contender lives in a process of its own and computes only when it is its turn: inside one process,
the pool threads of one runtime would spin, waiting for more work, on the cores that the next one needs.
So every runtime keeps the waiting policy that it ships with (ONNX Runtime and OpenMP spin, which is in
their favour), and a turn ends only when the pool of the one whose turn it was has gone to sleep.
All get the same number of threads and the same inputs. A contender is timed only after its outputs
agree with the unrewritten model's. "forged again" is a second process that does the same as "forged":
what the two differ by is noise.

On a machine that is busy with other work the comparison says nothing: threads that spin at a barrier for
one that isn't running lose far more than threads that sleep. So what others used is measured, too.
"""

import gc
import importlib.util
import json
import os
import platform
import random
import subprocess
import sys
import time

# Relative to the largest magnitude of an output: whether it is the same model at all, not the gate.
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-8}
TOLERANCE = 1e-3

# Work in a sample, by repeating the call.
SAMPLE_SECONDS = 0.05
WARM_UP_SECONDS = 0.2
# A process is idle once it uses less than this part of an interval; if it never is, the turn ends nevertheless.
IDLE_SHARE = 0.02
IDLE_INTERVAL_SECONDS = 0.01
IDLE_LIMIT_SECONDS = 1.0


class BenchError(Exception):
    """What is told to the user, and which packages would help."""

    def __init__(self, message, install=()):
        super().__init__(message)
        self.install = list(install)


# ---- contenders, each in a process of its own ----


def module_from(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def flat(result):
    if hasattr(result, "to_tuple"):  # an output class of transformers
        result = result.to_tuple()
    return list(result) if isinstance(result, (tuple, list)) else [result]


class TorchContender:
    """What the three contenders that are torch modules share."""

    def __init__(self, request):
        import torch

        torch.set_num_threads(request["threads"])
        torch.set_num_interop_threads(1)
        torch.manual_seed(request["seed"])
        self.torch = torch

    def load(self, paths):
        import numpy as np

        self.arguments = [self.torch.from_numpy(np.load(path)) for path in paths]

    def save(self, result, scratch, name):
        import numpy as np

        paths = []
        for index, tensor in enumerate(flat(result)):
            paths.append(os.path.join(scratch, f"{name} {index}.npy"))
            tensor = tensor.detach()
            # Comparing needs no more than f32 holds.
            tensor = tensor.float() if tensor.dtype == self.torch.bfloat16 else tensor
            np.save(paths[-1], tensor.numpy())
        return paths, [str(tensor.dtype).removeprefix("torch.") for tensor in flat(result)]


class Forged(TorchContender):
    def __init__(self, request, original):
        super().__init__(request)
        self.loader = module_from(os.path.join(request["directory"], "forged.py"), "forged")
        self.model = self.loader.load(threads=request["threads"], strict=True)
        self.function = self.model.original if original else self.model
        self.version = f"{self.model.manifest['tool']} {self.model.manifest['tool_version']}"

    def sample_inputs(self, scratch):
        """Random inputs inside the guards, as the loader's self-check makes them, in files."""
        import numpy as np

        ports, symbols = self.model._forged.inputs, self.model._symbols
        free = {extent for port in ports for extent in port["shape"] if isinstance(extent, str)}
        values = {symbol: self.loader._typical(symbol, symbols) for symbol in free}
        paths = []
        for index, port in enumerate(ports):
            tensor = self.loader._sample(port, values)
            if tensor.dtype == self.torch.bfloat16:
                raise BenchError(f"input '{port['name']}' is bf16, for which NumPy has no type: bench cannot pass it on")
            paths.append(os.path.join(scratch, f"input {index}.npy"))
            np.save(paths[-1], tensor.numpy())
        return paths

    def call(self):
        return self.function(*self.arguments)


class Eager(TorchContender):
    def __init__(self, request):
        super().__init__(request)
        self.file = request["eager"]
        # As if the file had been started by itself: its neighbours can be imported.
        sys.path.insert(0, os.path.dirname(self.file))
        self.model, self.names = module_from(self.file, "eager_model").build()
        self.model.eval()
        self.input_names = request["input_names"]
        self.version = f"torch {self.torch.__version__}"

    def load(self, paths):
        super().load(paths)
        by_name = dict(zip(self.input_names, self.arguments))
        if unknown := [name for name in self.names or () if name not in by_name]:
            raise BenchError(f"{self.file}: build() names the inputs {', '.join(unknown)}, which the model does not "
                             f"have; it has {', '.join(self.input_names)}")
        if self.names:
            self.arguments = [by_name[name] for name in self.names]

    def call(self):
        with self.torch.inference_mode():
            return self.model(*self.arguments)


class OnnxRuntime:
    def __init__(self, request):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(request["onnx"], options, providers=["CPUExecutionProvider"])
        self.file = request["onnx"]
        self.input_names = request["input_names"]
        self.version = f"onnxruntime {onnxruntime.__version__}"

    def load(self, paths):
        import numpy as np

        arrays = [np.load(path) for path in paths]
        wanted = [port.name for port in self.session.get_inputs()]
        by_name = dict(zip(self.input_names, arrays))
        if set(wanted) <= set(by_name):
            self.feed = {name: by_name[name] for name in wanted}
        elif len(wanted) == len(arrays):
            self.feed = dict(zip(wanted, arrays))
        else:
            raise BenchError(f"{self.file} takes {', '.join(wanted)}, the compiled model {', '.join(self.input_names)}")

    def call(self):
        return self.session.run(None, self.feed)

    def save(self, result, scratch, name):
        import numpy as np

        paths = [os.path.join(scratch, f"{name} {index}.npy") for index in range(len(result))]
        for path, array in zip(paths, result):
            np.save(path, array)
        return paths, [str(array.dtype) for array in result]


def contender(name, request):
    if name == "onnxruntime":
        return OnnxRuntime(request)
    if name == "torch eager":
        return Eager(request)
    return Forged(request, original=name == "unrewritten")


def timed(call, count):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def wait_until_idle():
    """Until no thread of this process computes or spins any more."""
    end = time.perf_counter() + IDLE_LIMIT_SECONDS
    while time.perf_counter() < end:
        used, start = time.process_time(), time.perf_counter()
        time.sleep(IDLE_INTERVAL_SECONDS)
        if time.process_time() - used < IDLE_SHARE * (time.perf_counter() - start):
            return


class Worker:
    """Answers one request after another; one method each."""

    def start(self, name, request):
        self.name = name
        self.scratch = request["scratch"]
        self.contender = contender(name, request)
        return {"version": self.contender.version}

    def sample_inputs(self):
        return self.contender.sample_inputs(self.scratch)

    def run_once(self, inputs):
        self.contender.load(inputs)
        paths, dtypes = self.contender.save(self.contender.call(), self.scratch, self.name)
        return {"paths": paths, "dtypes": dtypes}

    def calibrate(self):
        """Warms up; how many calls fill a sample then."""
        end = time.perf_counter() + WARM_UP_SECONDS
        calls = []
        while len(calls) < 2 or time.perf_counter() < end:
            calls.append(timed(self.contender.call, 1))
        wait_until_idle()
        # No collection inside a sample, for anyone.
        gc.collect()
        gc.freeze()
        gc.disable()
        return max(1, round(SAMPLE_SECONDS / max(min(calls[1:]), 1e-7)))

    def sample(self, count):
        # The caches hold another contender's weights, and the pool sleeps: neither is the steady state.
        self.contender.call()
        seconds = timed(self.contender.call, count)
        wait_until_idle()
        return seconds


def worker_main():
    # Whatever a library prints goes to stderr; stdout carries answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"value": getattr(worker, method)(**arguments)}
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            answer = {"error": str(error), "install": [package] if package else []}
        except BenchError as error:
            answer = {"error": str(error), "install": error.install}
        except Exception as error:  # whatever a runtime or a user's build() raises belongs to its contender
            answer = {"error": f"{type(error).__name__}: {error}", "install": []}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# ---- the parent, which only directs ----


class Process:
    """A contender's process, as the parent sees it."""

    def __init__(self, name, request):
        environment = dict(os.environ, HF_HUB_OFFLINE="1")
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[variable] = str(request["threads"])
        # Would make some contenders wait otherwise than they do by themselves.
        for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
            environment.pop(variable, None)
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment)
        self.version = self.ask("start", name=name, request=request)["version"]

    def ask(self, method, **arguments):
        try:
            self.process.stdin.write(json.dumps([method, arguments]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"{self.name}: its process ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}", answer["install"])
        return answer["value"]

    def stop(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def processor_seconds(processors):
    """Time that these processors were not idle, for whomever, stolen by a hypervisor included; None if not told."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    ticks = 0
    for name, *fields in lines:
        if name in processors:
            user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, fields[:8])
            ticks += user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def process_seconds(identity):
    """Processor time that a process has used; /proc is there if processor_seconds told something."""
    with open(f"/proc/{identity}/stat", encoding="utf-8", errors="replace") as file:
        # The second field, a name in parentheses, may hold spaces.
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Others:
    """How many processors everyone else keeps busy, on average from here on, of those that we may run on."""

    def __init__(self, identities):
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        self.processors = {f"cpu{number}" for number in allowed}
        self.identities = [os.getpid(), *identities]
        self.start = time.perf_counter()
        self.before = self._used()

    def _used(self):
        busy = processor_seconds(self.processors)
        return None if busy is None else busy - sum(map(process_seconds, self.identities))

    def busy(self):
        if self.before is None:
            return None
        return max(0.0, (self._used() - self.before) / (time.perf_counter() - self.start))


def difference(np, got, want):
    """(largest difference relative to the largest magnitude, None) or (None, why that means nothing)."""
    if got.shape != want.shape:
        return None, f"has shape {list(got.shape)}, not {list(want.shape)}"
    if got.dtype.kind != "f" or want.dtype.kind != "f":
        return float((got != want).mean()) if want.size else 0.0, None
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return None, "is not finite in other places"
    if not finite.any():
        return 0.0, None
    scale = float(np.abs(want[finite]).max())
    worst = float(np.abs(got[finite] - want[finite]).max())
    return worst / scale if scale > 0 else worst, None


def compare(np, answer, reference):
    """Errors of all outputs that both give; a module may return fewer than the exported graph."""
    if len(answer["paths"]) > len(reference["paths"]):
        return {"error": None, "agrees": False,
                "why": f"gives {len(answer['paths'])} outputs, the model {len(reference['paths'])}"}
    worst, agrees = 0.0, True
    for index, (got, want) in enumerate(zip(answer["paths"], reference["paths"])):
        error, why = difference(np, np.load(got), np.load(want))
        if why:
            return {"error": None, "agrees": False, "why": f"output {index} {why}"}
        worst = max(worst, error)
        agrees = agrees and error <= TOLERANCES.get(reference["dtypes"][index], TOLERANCE)
    return {"error": worst, "agrees": agrees, "why": None if agrees else "the outputs are too far apart"}


def bench(request):
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise BenchError(str(error), ["numpy", "torch"]) from None
    with open(os.path.join(request["directory"], "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    request["input_names"] = [port["name"] for port in manifest["plans"]["forged"]["inputs"]]
    names = ["unrewritten", "forged", "forged again"]
    names += ["onnxruntime"] if request["onnx"] else []
    names += ["torch eager"] if request["eager"] else []
    processes = {}
    try:
        results = {}
        reference = None
        inputs = request["inputs"]
        for name in names:
            process = processes[name] = Process(name, request)
            inputs = inputs or process.ask("sample_inputs")
            answer = process.ask("run_once", inputs=inputs)
            reference = reference or answer
            results[name] = {"version": process.version, **compare(np, answer, reference), "repeats": 0, "seconds": []}
        running = [name for name in names if results[name]["agrees"]]
        for name in running:
            results[name]["repeats"] = processes[name].ask("calibrate")
        others = Others([process.process.pid for process in processes.values()])
        order = random.Random(request["seed"])
        for _ in range(request["blocks"]):
            block = running[:]
            order.shuffle(block)
            for name in block:
                results[name]["seconds"].append(processes[name].ask("sample", count=results[name]["repeats"]))
        others_busy = others.busy()
    finally:
        for process in processes.values():
            process.stop()
    arrays = [np.load(path, mmap_mode="r") for path in inputs]
    return {
        "contenders": [{"name": name, **result} for name, result in results.items()],
        "inputs": [{"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
                   for name, array in zip(request["input_names"], arrays)],
        "python": platform.python_version(),
        "processors": len(others.processors),
        "others_busy": others_busy,
    }


def main():
    if "--worker" in sys.argv:
        worker_main()
        return
    try:
        answer = bench(json.load(sys.stdin))
    except BenchError as error:
        answer = {"error": str(error), "install": error.install}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
