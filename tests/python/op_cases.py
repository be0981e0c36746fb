#!/usr/bin/env python3
"""One-op ONNX models with ONNX Runtime's own answers, for every op that the front end reads.

    python op_cases.py DIR             # DIR/NAME/{model.onnx,input_I.npy,output_J.npy}, DIR/cases.json
    python op_cases.py DIR --only NAME
    python op_cases.py DIR --check     # also compare with ONNX's reference implementation

`cases.json` is the list of names. Inputs are numbered in the order of the graph's inputs; whatever
decides a shape (axes, sizes, pads, ..) is an initializer. Float outputs are f32. A case whose answer
ONNX Runtime does not have, or has against the specification, takes it from ONNX's reference
implementation and says so (`reference=True`), or from numpy (`answer`). Everything is a function of the case's name.
"""
import argparse
import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

F32, F64, F16, I64, I32, I8, U8, BOOL = (
    np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_,
)
NAN, INF = np.float32("nan"), np.float32("inf")
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e-30, 87.0, -87.0, 3e38], F32)


class Const:
    """An operand that becomes an initializer."""

    def __init__(self, value, dtype=None):
        self.value = np.array(value, dtype=dtype)


def ints(*values):
    return Const(list(values), I64)


class Case:
    """`op` is a node type, or a list of (op, inputs, outputs, attributes) for a chain of nodes."""

    def __init__(self, name, op, inputs, attributes=None, opset=18, outputs=1, reference=False, answer=None):
        self.name, self.op, self.inputs, self.attributes = name, op, inputs, attributes or {}
        self.opset, self.outputs, self.reference, self.answer = opset, outputs, reference, answer

    def model(self):
        """The model and its input feed."""
        feed, infos, initializers, names = {}, [], [], []
        for index, value in enumerate(self.inputs):
            if value is None:
                names.append("")
            elif isinstance(value, Const):
                names.append(f"c{index}")
                initializers.append(numpy_helper.from_array(value.value, names[-1]))
            else:
                names.append(f"x{index}")
                value = np.asarray(value)
                feed[names[-1]] = value
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                infos.append(helper.make_tensor_value_info(names[-1], kind, value.shape))
        if isinstance(self.op, str):
            results = [f"y{i}" for i in range(self.outputs)]
            nodes = [helper.make_node(self.op, names, results, **self.attributes)]
        else:
            nodes = [
                helper.make_node(op, [names[i] if isinstance(i, int) else i for i in ins], outs, **attributes)
                for op, ins, outs, attributes in self.op
            ]
            results = self.op[-1][2]
        graph = helper.make_graph(
            nodes, self.name, infos, [onnx.ValueInfoProto(name=r) for r in results], initializers
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True), feed

    def answers(self, model, feed):
        if self.answer is not None:
            return self.answer
        if self.reference:
            return ReferenceEvaluator(model).run(None, feed)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feed)

    def write(self, directory):
        model, feed = self.model()
        for output in model.graph.output:
            if not output.type.tensor_type.elem_type:
                # Inference does not look into functions (GroupNormalization): they are of floats.
                output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
        outputs = [np.asarray(o) for o in self.answers(model, feed)]
        for output, value in zip(model.graph.output, outputs):
            if np.issubdtype(value.dtype, np.floating) and value.dtype != F32:
                raise ValueError(f"{self.name}: output {output.name} is {value.dtype}, expected float32")
            # What was run is what is declared, so that readers need no shape inference of their own.
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, value.shape))
        folder = directory / self.name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        for index, value in enumerate(feed.values()):
            np.save(folder / f"input_{index}.npy", value)
        for index, value in enumerate(outputs):
            np.save(folder / f"output_{index}.npy", value)
        return model, feed, outputs


CASES = []


def case(name, op, inputs, **options):
    """Adds a case; attributes of the node are given as `a={...}`."""
    CASES.append(Case(name, op, inputs, attributes=options.pop("a", None), **options))


def rand(name, *shape, low=-2.0, high=2.0, dtype=F32):
    """Uniform values, a function of the name."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    values = generator.uniform(low, high, shape)
    return np.round(values).astype(dtype) if np.issubdtype(dtype, np.integer) else values.astype(dtype)


def through(dtype, op, count, attributes=None):
    """A chain that computes `op` in `dtype` on f32 inputs and comes back to f32."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    casts = [("Cast", [i], [f"h{i}"], {"to": kind}) for i in range(count)]
    middle = (op, [f"h{i}" for i in range(count)], ["h"], attributes or {})
    return casts + [middle, ("Cast", ["h"], ["y0"], {"to": TensorProto.FLOAT})]


def elementwise():
    ranges = {
        "Acos": (-1, 1), "Acosh": (1, 9), "Asin": (-1, 1), "Atanh": (-0.99, 0.99), "Log": (0.01, 9),
        "Sqrt": (0, 9), "Reciprocal": (0.1, 4),
    }
    unary = [
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor",
        "Identity", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
        "Softsign", "Sqrt", "Tan", "Tanh", "HardSwish", "Mish",
    ]
    for op in unary:
        low, high = ranges.get(op, (-3, 3))
        case(f"{op.lower()}", op, [rand(op, 3, 17, low=low, high=high)])
        case(f"{op.lower()}_scalar", op, [rand(op, low=low, high=high)])
    for op in ["Abs", "Ceil", "Exp", "Floor", "Identity", "Neg", "Relu", "Round", "Sign", "Sqrt"]:
        # ONNX Runtime's Relu and Sign lose NaN on some builds: the specification keeps it.
        case(f"{op.lower()}_special", op, [SPECIAL], reference=op in ("Relu", "Sign"))
    case("round_ties", "Round", [np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5], F32)])
    case("erf_tails", "Erf", [np.linspace(-6, 6, 97, dtype=F32)])
    case("sigmoid_tails", "Sigmoid", [np.array([-100, -80, -20, 20, 80, 100], F32)])
    case("softplus_tails", "Softplus", [np.array([-100, -20, 20, 80], F32)])
    for op in ["Abs", "Neg", "Sign"]:
        case(f"{op.lower()}_i64", op, [np.array([-5, 0, 7, -1], I64)])
    case("relu_i32", "Relu", [np.array([-5, 0, 7], I32)])
    case("isnan", "IsNaN", [SPECIAL], opset=20)
    case("isinf", "IsInf", [SPECIAL], opset=20)
    case("isinf_positive", "IsInf", [SPECIAL], a={"detect_negative": 0}, opset=20)
    case("not", "Not", [np.array([[True, False], [False, True]])])
    case("bitwise_not", "BitwiseNot", [np.array([0, 1, -7], I32)])

    x = rand("activation", 4, 9, low=-4, high=4)
    case("gelu", "Gelu", [x], opset=20)
    case("gelu_tanh", "Gelu", [x], a={"approximate": "tanh"}, opset=20)
    case("hardsigmoid", "HardSigmoid", [x])
    case("hardsigmoid_sixth", "HardSigmoid", [x], a={"alpha": 1 / 6, "beta": 0.5})
    case("leakyrelu", "LeakyRelu", [x])
    case("leakyrelu_alpha", "LeakyRelu", [x], a={"alpha": 0.3})
    case("elu", "Elu", [x])
    case("elu_alpha", "Elu", [x], a={"alpha": 0.4})
    case("selu", "Selu", [x])
    case("selu_own", "Selu", [x], a={"alpha": 1.5, "gamma": 2.0})
    case("celu", "Celu", [x], a={"alpha": 0.7})
    case("thresholdedrelu", "ThresholdedRelu", [x], a={"alpha": 0.5})
    case("prelu", "PRelu", [rand("prelu", 2, 3, 4), Const(rand("slope", 3, 1))])
    case("prelu_full", "PRelu", [rand("prelu", 2, 3, 4), rand("slope", 2, 3, 4)])
    case("hardmax", "Hardmax", [rand("hardmax", 3, 5)], a={"axis": 1})

    pairs = {"same": ((2, 3), (2, 3)), "row": ((2, 3), (3,)), "column": ((2, 3), (2, 1)), "outer": ((4, 1), (1, 5)),
             "scalar": ((2, 3), ()), "deep": ((2, 1, 3, 1), (4, 1, 5)), "empty": ((0, 3), (1, 3))}
    for op in ["Add", "Sub", "Mul", "Div"]:
        for kind, (a, b) in pairs.items():
            case(f"{op.lower()}_{kind}", op, [rand(op, *a), rand(op + "b", *b, low=0.5)])
        for dtype in (I32, I64):
            a, b = np.array([7, -7, 8, -8, 0, 100], dtype), np.array([2, 2, -3, 3, 5, -7], dtype)
            case(f"{op.lower()}_{np.dtype(dtype)}", op, [a, b])
    # The runtime computes these in f32 and forgets to round.
    case("div_f16", through(F16, "Div", 2), [rand("a", 5, 5), rand("b", 5, 5, low=0.5)], reference=True)
    case("add_f16", through(F16, "Add", 2), [rand("a", 5, 5, high=3000), rand("b", 5, 5)], reference=True)
    case("mul_f64", through(F64, "Mul", 2), [rand("a", 5, 5), rand("b", 5, 5)])
    for op in ["Max", "Min"]:
        case(f"{op.lower()}_1", op, [rand("m", 2, 3)])
        case(f"{op.lower()}_3", op, [rand("m", 2, 3), rand("n", 3), rand("o", 2, 1)])
        case(f"{op.lower()}_i64", op, [rand("m", 4, high=9, dtype=I64), rand("n", 4, high=9, dtype=I64)])
        case(f"{op.lower()}_nan", op, [np.array([NAN, 1, 2, NAN], F32), np.array([1, NAN, 3, NAN], F32)])
    case("mean_3", "Mean", [rand("m", 2, 3), rand("n", 3), rand("o", 2, 1)])
    case("sum_3", "Sum", [rand("m", 2, 3), rand("n", 3), rand("o", 2, 1)])
    case("sum_1", "Sum", [rand("m", 2, 3)])
    base = rand("pow", 3, 4, low=0.2)
    case("pow", "Pow", [base, rand("exponent", 3, 4)])
    case("pow_square", "Pow", [rand("pow", 3, 4), Const(2.0, F32)])
    case("pow_root", "Pow", [base, Const(0.5, F32)])
    case("pow_cube_row", "Pow", [rand("pow", 3, 4), np.array([3, 2, 1, 0], F32)])
    case("pow_integer_exponent", "Pow", [rand("pow", 3, 4), Const(3, I64)])
    case("pow_i64", "Pow", [np.array([2, -3, 5], I64), np.array([10, 3, 0], I64)])
    a, b = np.array([7, -7, 7, -7, 6, -6], I64), np.array([3, 3, -3, -3, 3, -3], I64)
    case("mod_integer", "Mod", [a, b])
    case("mod_integer_fmod", "Mod", [a, b], a={"fmod": 1})
    case("mod_i32", "Mod", [a.astype(I32), b.astype(I32)])
    case("mod_u8", "Mod", [np.array([7, 200, 9], U8), np.array([3, 7, 9], U8)])
    case("mod_fmod", "Mod", [rand("m", 4, 4, low=-9, high=9), rand("n", 4, 4, low=0.5)], a={"fmod": 1})
    for op in ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]:
        case(f"{op.lower()}", op, [np.array([[12, -7]], I32), np.array([[10], [3]], I32)])
    for direction in ["LEFT", "RIGHT"]:
        case(f"bitshift_{direction.lower()}", "BitShift", [np.array([16, 4, 255], U8), np.array([1, 2, 3], U8)],
             a={"direction": direction})
    for op in ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]:
        case(f"{op.lower()}", op, [rand("c", 3, 4, dtype=F32).round(), rand("d", 4).round()])
        case(f"{op.lower()}_i64", op, [rand("c", 3, 4, dtype=I64), rand("d", 3, 1, dtype=I64)])
        case(f"{op.lower()}_nan", op, [np.array([NAN, NAN, 1], F32), np.array([NAN, 1, NAN], F32)])
    case("equal_bool", "Equal", [np.array([True, False, True]), np.array([True, True, False])])
    for op in ["And", "Or", "Xor"]:
        case(f"{op.lower()}", op, [np.array([[True], [False]]), np.array([True, False])])
    condition = np.array([[True], [False]])
    case("where", "Where", [condition, rand("w", 2, 3), rand("v", 3)])
    case("where_scalar", "Where", [condition, rand("w", 2, 3), Const(-INF, F32)])
    case("where_i64", "Where", [condition, np.array([1, 2, 3], I64), np.array([[4], [5]], I64)])
    case("where_bool", "Where", [condition, np.array([True, False]), np.array([False, False])], reference=True)
    clip = rand("clip", 3, 4)
    case("clip", "Clip", [clip, Const(-0.5, F32), Const(0.7, F32)])
    case("clip_low", "Clip", [clip, Const(-0.5, F32)])
    case("clip_high", "Clip", [clip, None, Const(0.7, F32)])
    case("clip_none", "Clip", [clip])
    case("clip_inputs", "Clip", [clip, np.array(-0.5, F32), np.array(0.7, F32)])
    case("clip_attributes", "Clip", [clip], a={"min": -1.0, "max": 1.0}, opset=6)
    case("clip_i64", "Clip", [np.array([-9, 0, 9], I64), Const(-3, I64), Const(4, I64)])
    # The specification's Clip is Min(Max(x, low), high): NaN stays.
    case("clip_nan", "Clip", [np.array([NAN, -9, 9], F32), Const(-1.0, F32), Const(1.0, F32)], reference=True)


def casts():
    kinds = {"f32": F32, "f16": F16, "f64": F64, "i64": I64, "i32": I32, "i8": I8, "u8": U8, "bool": BOOL}
    values = np.array([0, 1, 2, 3.7, 100.4, 0.3], F64)
    for source, source_type in kinds.items():
        for target, target_type in kinds.items():
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(target_type))
            x = values.astype(source_type)
            if source_type in (F32, I64, I32, I8):
                x = np.concatenate([x, x[1:]]) if target == "u8" else np.concatenate([x, -x[1:]])
            back = target in ("f16", "f64")
            nodes = [("Cast", [0], ["y0"], {"to": kind})]
            if back:
                nodes = [("Cast", [0], ["h"], {"to": kind}), ("Cast", ["h"], ["y0"], {"to": TensorProto.FLOAT})]
            case(f"cast_{source}_{target}", nodes, [x])
    bf16 = [("Cast", [0], ["h"], {"to": TensorProto.BFLOAT16}), ("Cast", ["h"], ["y0"], {"to": TensorProto.FLOAT})]
    case("cast_f32_bf16", bf16, [np.linspace(-3, 3, 101, dtype=F32)])
    halves = [("Cast", [0], ["h"], {"to": TensorProto.FLOAT16}), ("Cast", ["h"], ["y0"], {"to": TensorProto.FLOAT})]
    case("cast_f16_rounding", halves, [np.array([65519, 65520, 1e-8, 6e-8, 2049, 2051, 0.1, NAN, -INF], F32)])
    case("castlike", "CastLike", [np.array([1.5, -2.5, 0], F32), Const([0], I64)])
    case("castlike_bool", "CastLike", [np.array([1.5, 0, -1], F32), np.array([True])])


def reductions():
    ops = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
           "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"]
    for op in ops:
        low = 0.1 if op == "ReduceLogSum" else -2
        x, name = rand(op, 2, 3, 4, low=low), op.lower()
        for label, axes in {"last": [-1], "first": [0], "outer": [0, 2], "all": [0, 1, 2]}.items():
            for keep in (0, 1):
                case(f"{name}_{label}_{keep}", op, [x, ints(*axes)], a={"keepdims": keep})
        case(f"{name}_no_axes", op, [x], a={"keepdims": 0})
        case(f"{name}_empty_noop", op, [x, Const([], I64)], a={"noop_with_empty_axes": 1},
             # The later wording applies the elementwise part, the runtime returns its input.
             reference=op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"))
        case(f"{name}_empty_all", op, [x, Const([], I64)], a={"noop_with_empty_axes": 0})
        if op != "ReduceSum":
            case(f"{name}_attribute", op, [x], a={"axes": [1], "keepdims": 1}, opset=13)
    case("reducesum_attribute", "ReduceSum", [rand("s", 2, 3, 4)], a={"axes": [1]}, opset=11)
    for op in ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"]:
        case(f"{op.lower()}_i64", op, [rand(op, 3, 4, dtype=I64), ints(1)])
        case(f"{op.lower()}_i32", op, [rand(op, 3, 4, dtype=I32), ints(0)], a={"keepdims": 0})
    case("reducesum_zero_length", "ReduceSum", [np.zeros((2, 0, 3), F32), ints(1)])
    case("reduceprod_zero_length", "ReduceProd", [np.zeros((2, 0, 3), F32), ints(1)], reference=True)
    case("reducemax_bool", "ReduceMax", [np.array([[True, False], [False, False]]), ints(1)], opset=20)
    case("reducelogsumexp_large", "ReduceLogSumExp", [rand("l", 3, 5, low=80, high=100), ints(1)])
    for op in ["ArgMax", "ArgMin"]:
        x = rand(op, 3, 4, 5).round()
        for axis in (0, 1, -1):
            for last in (0, 1):
                case(f"{op.lower()}_{axis % 3}_last{last}", op, [x], a={"axis": axis, "select_last_index": last})
        case(f"{op.lower()}_nokeep", op, [x], a={"axis": 1, "keepdims": 0})
        case(f"{op.lower()}_default", op, [x])
        case(f"{op.lower()}_i32", op, [rand(op, 4, 4, dtype=I32)], a={"axis": 1})
    x = rand("cumsum", 2, 3, 4)
    for axis in (0, 1, -1):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                case(f"cumsum_{axis % 3}_{exclusive}{reverse}", "CumSum", [x, Const(axis, I64)],
                     a={"exclusive": exclusive, "reverse": reverse})
    case("cumsum_i64", "CumSum", [np.array([1, 2, 3, 4], I64), Const(0, I32)])


def views():
    x = rand("view", 2, 3, 4)
    shapes = {"flat": [24], "minus": [2, -1], "zero": [0, -1], "zeros": [0, 0, 4], "more": [2, 1, 3, 2, 2], "middle": [-1, 6]}
    for label, shape in shapes.items():
        case(f"reshape_{label}", "Reshape", [x, ints(*shape)])
    case("reshape_scalar", "Reshape", [rand("one", 1, 1), Const([], I64)])
    case("reshape_allowzero", "Reshape", [np.zeros((0, 3), F32), ints(3, 0)], a={"allowzero": 1})
    for perm in ([2, 1, 0], [0, 2, 1], [1, 0, 2], [2, 0, 1]):
        case("transpose_" + "".join(map(str, perm)), "Transpose", [x], a={"perm": perm})
    case("transpose_default", "Transpose", [x])
    case("transpose_i64", "Transpose", [rand("t", 3, 5, dtype=I64)])
    case("expand", "Expand", [rand("e", 3, 1), ints(2, 3, 4)])
    case("expand_mutual", "Expand", [rand("e", 3, 4), ints(3, 1)])
    case("expand_higher_operand", "Expand", [rand("e", 2, 3, 1), ints(4)])
    case("flatten", "Flatten", [x])
    for axis in (0, 2, 3, -1):
        case(f"flatten_{axis % 4}{'n' if axis < 0 else ''}", "Flatten", [x], a={"axis": axis})
    case("squeeze", "Squeeze", [rand("q", 1, 3, 1), ints(0)])
    case("squeeze_all", "Squeeze", [rand("q", 1, 3, 1)])
    case("squeeze_negative", "Squeeze", [rand("q", 1, 3, 1), ints(-1)])
    case("squeeze_attribute", "Squeeze", [rand("q", 1, 3, 1)], a={"axes": [0, 2]}, opset=11)
    case("unsqueeze", "Unsqueeze", [rand("u", 3, 4), ints(0, 2)])
    case("unsqueeze_negative", "Unsqueeze", [rand("u", 3, 4), ints(-1, 0)])
    case("unsqueeze_attribute", "Unsqueeze", [rand("u", 3, 4)], a={"axes": [1]}, opset=11)
    ten = np.arange(10, dtype=I64)
    slices = {"head": (0, 4, 1), "tail": (-3, 10, 1), "reverse": (9, 0, -1), "reverse_all": (-1, -11, -1),
              "step": (1, 9, 3), "back_step": (8, 1, -3), "beyond": (2, 1000, 1), "before": (-1000, 3, 1),
              "reverse_beyond": (1000, -1000, -2), "empty": (5, 5, 1), "crossed": (7, 3, 1),
              "end": (3, 2**63 - 1, 1), "reverse_end": (3, -(2**63), -1)}
    for label, (start, end, step) in slices.items():
        case(f"slice_{label}", "Slice", [ten, ints(start), ints(end), ints(0), ints(step)])
    case("slice_axes", "Slice", [x, ints(1, 0), ints(3, 2), ints(2, 1)])
    case("slice_no_axes", "Slice", [x, ints(0, 1), ints(2, 3)])
    case("slice_negative_axis", "Slice", [x, ints(-2), ints(4), ints(-1), ints(1)])
    case("slice_mixed", "Slice", [x, ints(1, 2, 3), ints(-3, -4, 0), ints(0, 1, 2), ints(-1, -2, -2)])
    case("slice_attributes", "Slice", [x], a={"starts": [1], "ends": [-1], "axes": [2]}, opset=9)
    case("slice_i32", "Slice", [x, Const([1], I32), Const([3], I32), Const([1], I32)])
    for mode in ("constant", "reflect", "edge"):
        case(f"pad_{mode}", "Pad", [x, ints(0, 1, 2, 1, 0, 1)] if mode != "reflect" else [x, ints(0, 1, 2, 1, 2, 3)],
             a={"mode": mode})
    case("pad_value", "Pad", [x, ints(0, 0, 1, 0, 0, 2), Const(-7.5, F32)])
    case("pad_axes", "Pad", [x, ints(1, 2), Const(1.5, F32), ints(-1)])
    case("pad_negative", "Pad", [x, ints(0, -1, 1, 0, 0, -2)])
    case("pad_wrap", "Pad", [x, ints(0, 1, 2, 0, 1, 1)], a={"mode": "wrap"}, opset=19)
    case("pad_attributes", "Pad", [x], a={"pads": [0, 0, 1, 0, 0, 1], "value": 2.0}, opset=10)
    case("pad_i64", "Pad", [ten, ints(2, 3), Const(-1, I64)])
    case("concat_0", "Concat", [rand("a", 1, 3), rand("b", 2, 3)], a={"axis": 0})
    case("concat_last", "Concat", [rand("a", 2, 1, 3), rand("b", 2, 1, 1), rand("c", 2, 1, 2)], a={"axis": -1})
    case("concat_one", "Concat", [rand("a", 2, 3)], a={"axis": 1})
    case("concat_empty", "Concat", [rand("a", 2, 3), np.zeros((2, 0), F32)], a={"axis": 1})
    case("concat_i64", "Concat", [ten, ten[:3]], a={"axis": 0})
    case("split", "Split", [rand("s", 6, 2), ints(1, 2, 3)], a={"axis": 0}, outputs=3)
    case("split_even", "Split", [rand("s", 2, 6)], a={"axis": 1, "num_outputs": 3}, outputs=3)
    case("split_uneven", "Split", [rand("s", 2, 7)], a={"axis": -1, "num_outputs": 3}, outputs=3)
    case("split_13", "Split", [rand("s", 2, 6)], a={"axis": 1}, outputs=2, opset=13)
    case("split_attribute", "Split", [rand("s", 2, 6)], a={"axis": 1, "split": [4, 2]}, outputs=2, opset=11)
    case("split_zero", "Split", [rand("s", 2, 6), ints(0, 6)], a={"axis": 1}, outputs=2)
    case("tile", "Tile", [rand("t", 2, 3), ints(2, 1)])
    case("tile_3", "Tile", [rand("t", 1, 2, 2), ints(3, 2, 2)])
    case("tile_zero", "Tile", [rand("t", 2, 3), ints(0, 2)])
    case("shape", "Shape", [x])
    case("shape_part", "Shape", [x], a={"start": 1, "end": -1})
    case("size", "Size", [x])
    case("identity_i64", "Identity", [ten])
    case("dropout", "Dropout", [x])
    case("dropout_ratio", "Dropout", [x, Const(0.7, F32), Const(False, BOOL)])
    case("range", "Range", [Const(2, I64), Const(11, I64), Const(3, I64)])
    case("range_down", "Range", [Const(5, I32), Const(-4, I32), Const(-2, I32)])
    case("range_float", "Range", [Const(0.5, F32), Const(3.0, F32), Const(0.5, F32)])
    case("range_empty", "Range", [Const(5, I64), Const(2, I64), Const(1, I64)])
    case("constantofshape", "ConstantOfShape", [ints(2, 3)])
    case("constantofshape_value", "ConstantOfShape", [ints(3)], a={"value": numpy_helper.from_array(np.array([7], I64))})
    case("constantofshape_bool", "ConstantOfShape", [ints(2, 2)],
         a={"value": numpy_helper.from_array(np.array([True]))})
    case("constantofshape_scalar", "ConstantOfShape", [Const([], I64)])
    for mode in ("DCR", "CRD"):
        case(f"depthtospace_{mode.lower()}", "DepthToSpace", [rand("d", 2, 8, 2, 3)], a={"blocksize": 2, "mode": mode})
    case("spacetodepth", "SpaceToDepth", [rand("d", 2, 3, 4, 6)], a={"blocksize": 2})
    square = rand("trilu", 2, 4, 5)
    for upper in (0, 1):
        case(f"trilu_{upper}", "Trilu", [square], a={"upper": upper})
        for k in (-1, 2, 7):
            case(f"trilu_{upper}_{'m' if k < 0 else ''}{abs(k)}", "Trilu", [square, Const(k, I64)], a={"upper": upper})
    case("trilu_i64", "Trilu", [rand("trilu", 3, 3, dtype=I64)])
    case("eyelike", "EyeLike", [rand("eye", 3, 4)])
    case("eyelike_k", "EyeLike", [rand("eye", 4, 3)], a={"k": -1, "dtype": TensorProto.INT64})
    case("center_crop_pad", "CenterCropPad", [rand("crop", 5, 4), ints(3, 6)])


def indexing():
    x = rand("gather", 3, 4, 5)
    case("gather_0", "Gather", [x, np.array([[0, 2], [1, 0]], I64)])
    case("gather_1", "Gather", [x, np.array([3, 0], I64)], a={"axis": 1})
    case("gather_last", "Gather", [x, np.array([-1, -5, 2], I64)], a={"axis": -1})
    case("gather_scalar", "Gather", [x, np.array(1, I64)], a={"axis": 1})
    case("gather_i32", "Gather", [x, np.array([[1]], I32)])
    case("gather_constant", "Gather", [x, ints(-1)])
    case("gather_empty", "Gather", [np.zeros((1, 7, 0), F32), Const(0, I64)], a={"axis": 0})
    case("gather_no_indices", "Gather", [x, np.zeros((0,), I64)])
    case("gather_shape", [("Shape", [0], ["s"], {}), ("Gather", ["s", 1], ["y0"], {"axis": 0})], [x, ints(-1)])
    case("gatherelements_0", "GatherElements", [rand("g", 3, 3), np.array([[1, 2, 0], [2, 0, 0]], I64)])
    case("gatherelements_1", "GatherElements", [rand("g", 3, 3), np.array([[0, -1], [1, 1], [-3, 2]], I64)], a={"axis": 1})
    case("gatherelements_i32", "GatherElements", [rand("g", 2, 2, dtype=I64), np.array([[0, 0], [1, 0]], I32)], a={"axis": 1})
    case("gathernd_full", "GatherND", [rand("g", 2, 2), np.array([[0, 0], [1, -1]], I64)])
    case("gathernd_slices", "GatherND", [x, np.array([[1], [-1]], I64)])
    case("gathernd_batch", "GatherND", [x, np.array([[1], [0], [3]], I64)], a={"batch_dims": 1})
    case("gathernd_deep", "GatherND", [rand("g", 2, 3, 4, 2), np.array([[[1, 0]], [[2, 3]]], I64)], a={"batch_dims": 1})
    data, at = rand("scatter", 3, 4), np.array([[1, 0, 2, 0], [0, 2, 1, 1]], I64)
    updates = rand("updates", 2, 4)
    case("scatterelements", "ScatterElements", [data, at, updates])
    case("scatterelements_1", "ScatterElements", [data, np.array([[1, -1], [0, 2], [3, 1]], I64), rand("u", 3, 2)], a={"axis": 1})
    repeated = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I64)
    for reduction in ("add", "mul", "max", "min"):
        case(f"scatterelements_{reduction}", "ScatterElements", [data, repeated, updates], a={"reduction": reduction})
        case(f"scatternd_{reduction}", "ScatterND", [data, np.array([[1], [1], [0]], I64), rand("u", 3, 4)],
             a={"reduction": reduction})
    case("scatternd", "ScatterND", [data, np.array([[2], [0]], I64), rand("u", 2, 4)])
    case("scatternd_elements", "ScatterND", [data, np.array([[2, 1], [-1, -1]], I64), rand("u", 2)])
    case("scatternd_i64", "ScatterND", [np.arange(5, dtype=I64), np.array([[4], [1]], I64), np.array([9, 8], I64)])
    x = rand("topk", 3, 6)
    for largest in (0, 1):
        case(f"topk_{largest}", "TopK", [x, ints(3)], a={"largest": largest}, outputs=2)
    case("topk_axis0", "TopK", [x, ints(2)], a={"axis": 0}, outputs=2)
    case("topk_ties", "TopK", [np.array([[1, 3, 3, 2, 3, 1]], F32), ints(4)], outputs=2)
    case("topk_i64", "TopK", [rand("topk", 2, 5, low=-9, high=9, dtype=I64), ints(5)], outputs=2)
    case("topk_all", "TopK", [x, ints(6)], outputs=2)
    case("onehot", "OneHot", [np.array([0, 2, 1], I64), Const(3, I64), Const([0, 1], F32)])
    case("onehot_axis", "OneHot", [np.array([[0, 3], [2, -1]], I64), Const([4], I64), Const([-1, 5], F32)], a={"axis": 1})
    case("onehot_outside", "OneHot", [np.array([5, -7, 1], I64), Const(3, I64), Const([0, 1], I64)])
    case("nonzero_constant", "NonZero", [Const([[1, 0], [0, 3]], F32)])


def contractions():
    shapes = {"2d": ((3, 4), (4, 5)), "batch": ((2, 3, 4), (2, 4, 5)), "shared_b": ((2, 3, 4), (4, 5)),
              "shared_a": ((3, 4), (2, 4, 5)), "broadcast": ((2, 1, 3, 4), (5, 4, 2)), "vector_b": ((3, 4), (4,)),
              "vector_a": ((4,), (4, 5)), "dot": ((4,), (4,)), "vector_batch": ((4,), (2, 4, 3)), "batch_vector": ((2, 3, 4), (4,)),
              "big": ((70, 300), (300, 33)), "empty": ((3, 0), (0, 2)), "no_rows": ((0, 4), (4, 2))}
    for label, (a, b) in shapes.items():
        case(f"matmul_{label}", "MatMul", [rand("a" + label, *a), rand("b" + label, *b)])
    case("matmul_i32", "MatMul", [rand("a", 3, 4, dtype=I32), rand("b", 4, 2, dtype=I32)])
    case("matmul_f64", through(F64, "MatMul", 2), [rand("a", 3, 9), rand("b", 9, 2)])
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = rand("a", *((4, 3) if ta else (3, 4))), rand("b", *((5, 4) if tb else (4, 5)))
            case(f"gemm_{ta}{tb}", "Gemm", [a, b, rand("c", 5)], a={"transA": ta, "transB": tb})
    a, b = rand("a", 3, 4), rand("b", 4, 5)
    case("gemm_no_c", "Gemm", [a, b])
    case("gemm_scaled", "Gemm", [a, b, rand("c", 3, 5)], a={"alpha": 0.5, "beta": 2.0})
    case("gemm_column_c", "Gemm", [a, b, rand("c", 3, 1)], a={"beta": -1.5})
    case("gemm_scalar_c", "Gemm", [a, b, np.array(0.25, F32)])
    equations = {"ij,jk->ik": [(3, 4), (4, 5)], "bhid,bhjd->bhij": [(2, 2, 3, 4), (2, 2, 5, 4)], "ij->ji": [(3, 4)],
                 "ij->": [(3, 4)], "ii->i": [(4, 4)], "i,j->ij": [(3,), (4,)], "bij,bjk": [(2, 3, 4), (2, 4, 5)],
                 "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)], "ij,ij->i": [(3, 4), (3, 4)], "abc,cd,db->a": [(2, 3, 4), (4, 5), (5, 3)],
                 "bnd,hd->bhn": [(2, 3, 4), (5, 4)]}
    for index, (equation, operands) in enumerate(equations.items()):
        case(f"einsum_{index}", "Einsum", [rand(f"e{index}{i}", *s) for i, s in enumerate(operands)], a={"equation": equation})

    convolutions = {
        "1d": ((2, 3, 9), (4, 3, 3), {}),
        "1d_stride": ((1, 4, 11), (6, 2, 3), {"strides": [2], "pads": [1, 2], "dilations": [2], "group": 2}),
        "2d": ((2, 3, 6, 7), (4, 3, 3, 3), {}),
        "2d_pads": ((1, 2, 5, 6), (3, 2, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        "2d_1x1": ((2, 3, 4, 5), (6, 3, 1, 1), {}),
        "2d_depthwise": ((1, 4, 7, 7), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
        "2d_groups": ((1, 6, 5, 5), (4, 3, 2, 2), {"group": 2, "dilations": [2, 1]}),
        "2d_same_upper": ((1, 2, 6, 7), (3, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        "2d_same_lower": ((1, 2, 6, 7), (3, 2, 2, 4), {"auto_pad": "SAME_LOWER"}),
        "2d_valid": ((1, 2, 6, 7), (3, 2, 3, 3), {"auto_pad": "VALID"}),
        "2d_7x7": ((1, 3, 30, 30), (8, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
        "3d": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1], "strides": [1, 2, 1]}),
    }
    for label, (x, w, attributes) in convolutions.items():
        case(f"conv_{label}", "Conv", [rand("x" + label, *x), rand("w" + label, *w)], a=attributes)
        case(f"conv_{label}_bias", "Conv", [rand("x" + label, *x), Const(rand("w" + label, *w)), Const(rand("b" + label, w[0]))],
             a=attributes)
    transposed = {
        "1d": ((2, 3, 5), (3, 4, 3), {}),
        "1d_stride": ((1, 3, 5), (3, 2, 4), {"strides": [3], "pads": [1, 1]}),
        "2d": ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        "2d_groups": ((1, 4, 3, 3), (4, 2, 2, 2), {"group": 2, "strides": [2, 2]}),
        "2d_dilated": ((1, 2, 4, 4), (2, 3, 2, 3), {"dilations": [2, 1]}),
        "2d_output_shape": ((1, 2, 4, 4), (2, 2, 3, 3), {"output_shape": [8, 9], "strides": [2, 2]}),
        "2d_same_upper": ((1, 2, 4, 4), (2, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        "3d": ((1, 2, 2, 3, 3), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}),
    }
    for label, (x, w, attributes) in transposed.items():
        channels = w[1] * attributes.get("group", 1)
        case(f"convtranspose_{label}", "ConvTranspose", [rand("x" + label, *x), rand("w" + label, *w)], a=attributes)
        case(f"convtranspose_{label}_bias", "ConvTranspose",
             [rand("x" + label, *x), Const(rand("w" + label, *w)), Const(rand("b" + label, channels))], a=attributes)


def windows():
    pools = {
        "1d": ((2, 3, 8), {"kernel_shape": [3]}),
        "2d": ((1, 2, 6, 7), {"kernel_shape": [2, 3], "strides": [2, 2]}),
        "2d_pads": ((1, 2, 6, 7), {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        "2d_ceil": ((1, 1, 4, 4), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
        "2d_ceil_plain": ((1, 2, 6, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        "2d_same_upper": ((1, 1, 5, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        "2d_same_lower": ((1, 1, 5, 6), {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"}),
        "3d": ((1, 2, 4, 4, 5), {"kernel_shape": [2, 2, 3], "strides": [2, 1, 2]}),
        "2d_dilated": ((1, 1, 7, 7), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
    }
    for label, (shape, attributes) in pools.items():
        case(f"maxpool_{label}", "MaxPool", [rand("m" + label, *shape)], a=attributes, opset=19)
        for include in (0, 1):
            case(f"averagepool_{label}_{include}", "AveragePool", [rand("v" + label, *shape)],
                 a={**attributes, "count_include_pad": include}, opset=19)
    case("maxpool_negative_padded", "MaxPool", [rand("neg", 1, 1, 4, 4, low=-5, high=-1)],
         a={"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]})
    case("maxpool_u8", "MaxPool", [rand("u", 1, 1, 4, 4, low=0, high=250, dtype=U8)], a={"kernel_shape": [2, 2]})
    ramp = np.arange(1, 17, dtype=F32).reshape(1, 1, 4, 4)
    tight = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}
    case("averagepool_ceil_ramp", "AveragePool", [ramp], a=tight, opset=19)
    case("averagepool_ceil_dropped", "AveragePool", [ramp[:, :, :2, :2]], opset=19,
         a={"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1})
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        for shape in ((2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 2)):
            case(f"{op.lower()}_{len(shape) - 2}d", op, [rand(op, *shape)])
    case("lppool", "LpPool", [rand("lp", 1, 2, 6, 6)], a={"kernel_shape": [2, 2], "p": 2})
    case("lrn", "LRN", [rand("lrn", 2, 7, 3, 3)], a={"size": 3})
    # Even windows reach one channel further ahead; the runtime refuses them and the reference counts images as channels.
    x = rand("lrn", 1, 5, 2, 2)
    squares = np.stack([(x[:, max(0, c - 1) : c + 3] ** 2).sum(axis=1) for c in range(5)], axis=1)
    case("lrn_even", "LRN", [x], a={"size": 4, "alpha": 0.01, "beta": 0.6, "bias": 2.0},
         answer=[(x / (2.0 + 0.01 / 4 * squares) ** 0.6).astype(F32)])

    x = rand("resize", 1, 2, 4, 5)
    for mode in ("nearest", "linear", "cubic"):
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
            for label, sizes in {"up": (1, 2, 8, 10), "uneven": (1, 2, 7, 9), "down": (1, 2, 2, 3), "one": (1, 2, 1, 1)}.items():
                case(f"resize_{mode}_{coordinates}_{label}", "Resize", [x, None, None, ints(*sizes)], a=attributes, opset=19)
            case(f"resize_{mode}_{coordinates}_scales", "Resize", [x, None, Const([1, 1, 1.6, 2.5], F32)], a=attributes, opset=19)
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for coordinates in ("asymmetric", "half_pixel"):
            case(f"resize_nearest_{rounding}_{coordinates}", "Resize", [x, None, Const([1, 1, 2, 3], F32)], opset=19,
                 a={"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates})
    wide = np.arange(26, dtype=F32).reshape(1, 1, 26)
    # The runtime computes 32 * 26 / 64 in f32 through the reciprocal: 12.999999.
    case("resize_26_64", "Resize", [wide, None, None, ints(1, 1, 64)], opset=19, reference=True,
         a={"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"})
    case("resize_symmetric", "Resize", [x, None, Const([1, 1, 1.6, 1.7], F32)], opset=19, reference=True,
         a={"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"})
    case("resize_cubic_coefficient", "Resize", [x, None, None, ints(1, 2, 9, 8)], a={"mode": "cubic", "cubic_coeff_a": -0.5}, opset=19)
    case("resize_axes", "Resize", [x, None, None, ints(8, 9)], a={"mode": "linear", "axes": [2, 3]}, opset=19)
    case("resize_u8", "Resize", [rand("r", 1, 1, 3, 3, low=0, high=250, dtype=U8), None, Const([1, 1, 2, 2], F32)],
         a={"mode": "nearest"}, opset=19)
    case("resize_10", "Resize", [x, Const([1, 1, 2, 2], F32)], a={"mode": "nearest"}, opset=10)
    case("resize_13", "Resize", [x, Const([], F32), Const([1, 1, 2, 2], F32)], a={"mode": "linear"}, opset=13)
    case("upsample", "Upsample", [x, Const([1, 1, 2, 2], F32)], a={"mode": "nearest"}, opset=9)


def normalizations():
    x = rand("softmax", 2, 3, 4)
    for op in ("Softmax", "LogSoftmax"):
        name = op.lower()
        for axis in (0, 1, -1):
            case(f"{name}_{axis % 3}", op, [x], a={"axis": axis}, opset=13)
            case(f"{name}_11_{axis % 3}", op, [x], a={"axis": axis}, opset=11)
        case(f"{name}_default", op, [x], opset=13)
        case(f"{name}_11_default", op, [x], opset=11)
        case(f"{name}_large", op, [rand("large", 3, 5, low=-1000, high=1000)], opset=13)
        case(f"{name}_masked", op, [np.array([[0, -INF, 1], [-INF, 2, -INF]], F32)], opset=13)
    shape = (2, 3, 4)
    for axis in (-1, 1, 0):
        scale, bias = rand("scale", *shape[axis:]), rand("bias", *shape[axis:])
        case(f"layernorm_{axis % 3}", "LayerNormalization", [x, scale, bias], a={"axis": axis}, opset=17)
        case(f"layernorm_{axis % 3}_no_bias", "LayerNormalization", [x, scale], a={"axis": axis, "epsilon": 1e-3}, opset=17)
        case(f"rmsnorm_{axis % 3}", "RMSNormalization", [x, scale], a={"axis": axis}, opset=23)
    # Scales that broadcast: of fewer axes, or of ones.
    case("layernorm_scalar_scale", "LayerNormalization", [x, rand("scale", 1), rand("bias", 1)], opset=17, reference=True)
    case("layernorm_last_of_two", "LayerNormalization", [x, rand("scale", 4), rand("bias", 4)], a={"axis": 1}, opset=17, reference=True)
    case("rmsnorm_broadcast", "RMSNormalization", [x, rand("scale", 1)], opset=23, reference=True)
    case("layernorm_wide", "LayerNormalization", [rand("wide", 4, 64, low=99, high=101), rand("scale", 64), rand("bias", 64)], opset=17)
    case("instancenorm", "InstanceNormalization", [rand("i", 2, 3, 4, 5), rand("scale", 3), rand("bias", 3)])
    case("instancenorm_1d", "InstanceNormalization", [rand("i", 2, 3, 8), rand("scale", 3), rand("bias", 3)], a={"epsilon": 0.1})
    for opset in (18, 21):
        # Opset 18 scales by group, 21 by channel.
        size = 2 if opset == 18 else 6
        case(f"groupnorm_{opset}", "GroupNormalization", [rand("g", 2, 6, 3, 3), rand("scale", size), rand("bias", size)],
             a={"num_groups": 2}, opset=opset)
        case(f"groupnorm_{opset}_1d", "GroupNormalization", [rand("g", 2, 6, 5), rand("scale", size), rand("bias", size)],
             a={"num_groups": 2, "epsilon": 0.01}, opset=opset)
    for shape in ((2, 3, 4, 5), (2, 3, 7), (4, 3)):
        statistics = [rand("mean", 3), rand("variance", 3, low=0.1, high=2)]
        case(f"batchnorm_{len(shape)}d", "BatchNormalization",
             [rand("b", *shape), rand("scale", 3), rand("bias", 3)] + statistics, opset=15)
    case("batchnorm_epsilon", "BatchNormalization",
         [rand("b", 1, 3, 2, 2), rand("scale", 3), rand("bias", 3), rand("mean", 3), rand("variance", 3, low=0.1)], a={"epsilon": 0.1}, opset=15)
    case("lpnorm", "LpNormalization", [rand("lp", 3, 4)], a={"axis": 1, "p": 2})
    case("meanvariance", "MeanVarianceNormalization", [rand("mvn", 2, 3, 4, 5)])


def attentions():
    def qkv(label, rows, keys, heads=4, kv_heads=None, size=8, value_size=None):
        kv_heads, value_size = kv_heads or heads, value_size or size
        return [rand(label + "q", 2, heads, rows, size), rand(label + "k", 2, kv_heads, keys, size),
                rand(label + "v", 2, kv_heads, keys, value_size)]

    case("attention", "Attention", qkv("plain", 5, 5), opset=23)
    case("attention_cross", "Attention", qkv("cross", 3, 7), opset=23)
    case("attention_scale", "Attention", qkv("scale", 3, 4), a={"scale": 0.3}, opset=23)
    case("attention_causal", "Attention", qkv("causal", 6, 6), a={"is_causal": 1}, opset=23)
    case("attention_gqa", "Attention", qkv("gqa", 4, 6, heads=6, kv_heads=2), opset=23)
    case("attention_mqa", "Attention", qkv("mqa", 4, 4, heads=4, kv_heads=1), a={"is_causal": 1}, opset=23)
    case("attention_value_size", "Attention", qkv("dv", 3, 5, value_size=6), opset=23)
    mask = rand("mask", 5, 5)
    case("attention_mask", "Attention", qkv("mask", 5, 5) + [mask], opset=23)
    case("attention_mask_4d", "Attention", qkv("mask", 5, 5) + [rand("mask", 2, 4, 5, 5)], opset=23)
    case("attention_mask_3d", "Attention", qkv("mask", 5, 5) + [rand("mask", 1, 1, 5, 5)], opset=23)
    case("attention_bool", "Attention", qkv("bool", 5, 5) + [np.tril(np.ones((5, 5), BOOL))], opset=23)
    case("attention_infinite_mask", "Attention", qkv("inf", 5, 5) + [np.where(np.tri(5, dtype=BOOL), 0, -INF).astype(F32)], opset=23)
    case("attention_softcap", "Attention", qkv("cap", 4, 4), a={"softcap": 2.0}, opset=23)
    packed = [rand("pq", 2, 4, 24), rand("pk", 2, 6, 24), rand("pv", 2, 6, 24)]
    case("attention_3d", "Attention", packed, a={"q_num_heads": 3, "kv_num_heads": 3}, opset=23)
    grouped = [rand("pq", 2, 4, 24), rand("pk", 2, 6, 8), rand("pv", 2, 6, 8)]
    case("attention_3d_gqa", "Attention", grouped, a={"q_num_heads": 3, "kv_num_heads": 1}, opset=23)
    # Runtimes disagree on these shapes; the specification aligns the triangle with the first key.
    case("attention_causal_cross", "Attention", qkv("cc", 3, 7), a={"is_causal": 1}, opset=23, reference=True)
    case("attention_causal_one_query", "Attention", qkv("one", 1, 5), a={"is_causal": 1}, opset=23, reference=True)

    x, cos, sin = rand("rx", 2, 3, 4, 8), rand("cos", 16, 4), rand("sin", 16, 4)
    positions = np.array([[0, 1, 2, 3], [5, 4, 2, 15]], I64)
    case("rotary", "RotaryEmbedding", [x, cos, sin, positions], opset=23)
    case("rotary_interleaved", "RotaryEmbedding", [x, cos, sin, positions], a={"interleaved": 1}, opset=23)
    case("rotary_no_positions", "RotaryEmbedding", [x, rand("cos", 2, 4, 4), rand("sin", 2, 4, 4)], opset=23)
    case("rotary_partial", "RotaryEmbedding", [x, rand("cos", 16, 2), rand("sin", 16, 2), positions], a={"rotary_embedding_dim": 4}, opset=23)
    case("rotary_3d", "RotaryEmbedding", [rand("r3", 2, 4, 24), cos, sin, positions], a={"num_heads": 3}, opset=23)


def disagreement(model, feed, outputs):
    """How the reference implementation differs, or None."""
    try:
        expected = ReferenceEvaluator(model).run(None, feed)
    except Exception as error:  # The reference has bugs of its own; a check that cannot run says so.
        return f"the reference fails: {type(error).__name__}: {str(error)[:90]}"
    for index, (got, want) in enumerate(zip(outputs, expected)):
        want = np.asarray(want)
        if got.shape != want.shape:
            return f"output {index}: shape {got.shape}, the reference has {want.shape}"
        if not np.allclose(got.astype(F64), want.astype(F64), rtol=1e-4, atol=1e-5, equal_nan=True):
            gap = np.nanmax(np.abs(got.astype(F64) - want.astype(F64)))
            return f"output {index}: differs from the reference by {gap:.3g}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--only", metavar="NAME", action="append")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()

    np.seterr(all="ignore")
    for group in (elementwise, casts, reductions, views, indexing, contractions, windows, normalizations, attentions):
        group()
    names = [c.name for c in CASES]
    if len(set(names)) != len(names):
        sys.exit(f"names occur twice: {sorted(n for n in set(names) if names.count(n) > 1)}")
    if arguments.only:
        unknown = sorted(set(arguments.only) - set(names))
        if unknown:
            sys.exit(f"no such case: {', '.join(unknown)}")
    chosen = [c for c in CASES if not arguments.only or c.name in arguments.only]
    failed = []
    for item in chosen:
        try:
            written = item.write(arguments.directory)
        except Exception as error:
            failed.append(item.name)
            print(f"{item.name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        if arguments.check and (complaint := disagreement(*written)):
            print(f"{item.name}: {complaint}")
    (arguments.directory / "cases.json").write_text(json.dumps([c.name for c in chosen if c.name not in failed], indent=1) + "\n")
    print(f"{len(chosen) - len(failed)} cases in {arguments.directory}")
    if failed:
        sys.exit(f"{len(failed)} cases have no answer: {', '.join(failed)}")


if __name__ == "__main__":
    main()
