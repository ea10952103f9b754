#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A whole network in ONNX Runtime, forward; mlp_common.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/mlp_onnx.py --width 8 --threads 2

The model is written here, field by field in the protocol buffers' wire format, so that nothing but onnxruntime is needed:
Gemm and Relu nodes, a layer a pair.
"""
import mlp_common as common

options = common.prepare(__doc__)

import onnxruntime  # noqa: E402  after the presets are cleared

X, W, B = common.numbers(options)


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """Whole numbers as varints, text and messages by length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name, array):  # TensorProto: dims 1, data_type 2 (1: float), name 8, raw_data 9
    return b"".join(field(1, n) for n in array.shape) + field(2, 1) + field(8, name) + field(9, array.tobytes())


def node(kind, inputs, output):  # NodeProto: input 1, output 2, op_type 4
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind)


def value(name):  # ValueInfoProto: name 1, type 2 { tensor_type 1 { elem_type 1, shape 2 { dim 1 { dim_value 1 } } } }
    shape = b"".join(field(1, field(1, n)) for n in X.shape)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def model():
    nodes, weights, at = [], [], "x"
    for i in range(options.layers):
        weights += [tensor(f"w{i}", W[i]), tensor(f"b{i}", B[i])]
        nodes += [node("Gemm", [at, f"w{i}", f"b{i}"], f"u{i}"), node("Relu", [f"u{i}"], f"z{i}")]
        at = f"z{i}"
    graph = b"".join(field(1, n) for n in nodes) + field(2, "mlp") + b"".join(field(5, t) for t in weights)
    graph += field(11, value("x")) + field(12, value(at))  # GraphProto: node 1, name 2, initializer 5, input 11, output 12
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))  # ModelProto: ir_version, graph, opset_import


def session(sequential):
    def make():
        given = onnxruntime.SessionOptions()
        given.intra_op_num_threads = options.threads
        mode = onnxruntime.ExecutionMode
        given.execution_mode = mode.ORT_SEQUENTIAL if sequential else mode.ORT_PARALLEL
        s = onnxruntime.InferenceSession(model(), given, providers=["CPUExecutionProvider"])
        forward = lambda: s.run(None, {"x": X})[0].sum()  # noqa: E731
        return forward, None, None

    return make


common.run(options, "onnxruntime", onnxruntime.__version__, {"sequential": session(True)})
