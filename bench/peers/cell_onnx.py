#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recurrences in ONNX Runtime, forward only; cells.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/cell_onnx.py --cell tanh --length 65536 --width 2 --threads 1 --json

The operator RNN (tanh, dense), the operator Scan with the step as its body, and of an mlp its layers one after the other,
which gives the last state alone.
"""
import cells

options = cells.prepare(__doc__)

import numpy as np  # noqa: E402  after the presets are cleared
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

options.numbers = cells.numbers(options)
W, X, G, Z0 = options.numbers
EACH, DENSE = options.cell != "tanh", options.structure == "dense"
LENGTH, BATCH, WIDTH = G.shape
OPSET = 21


def value(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def session(nodes, outputs, constants):
    """A session over a graph that takes x and z0."""
    graph = helper.make_graph(nodes, "chain", [value("x", *X.shape), value("z0", BATCH, WIDTH)], outputs,
                              [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def made(session):
    """Inputs and output bound once, so that no array is made or copied in a run."""
    binding, states = session.io_binding(), onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        session.get_outputs()[0].shape, np.float32)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_input("z0", onnxruntime.OrtValue.ortvalue_from_numpy(Z0))
    binding.bind_ortvalue_output(session.get_outputs()[0].name, states)
    return (lambda: session.run_with_iobinding(binding)), states.numpy


def rnn():
    """RNN wants weights for its input: the identity; its states are [L][directions][B][w]."""
    one = np.array([0], np.int64)
    nodes = [helper.make_node("Unsqueeze", ["z0", "axis"], ["h0"]),
             helper.make_node("RNN", ["x", "Wx", "Wh", "", "", "h0"], ["z"], hidden_size=WIDTH)]  # fmt: skip
    constants = {"Wx": np.eye(WIDTH, dtype="f")[None], "Wh": W[None], "axis": one}
    return made(session(nodes, [value("z", LENGTH, 1, BATCH, WIDTH)], constants))


def scan():
    """Of linear chains every step's A comes in beside its x."""
    transposed = W.swapaxes(-1, -2) if DENSE else W
    weights = "A" if EACH else "W"
    operator = {"linear": "Identity", "tanh": "Tanh", "mlp": "Relu"}[options.cell]
    inside = [helper.make_node("MatMul" if DENSE else "Mul", ["s", weights], ["p"]),
              helper.make_node("Add", ["p", "u"], ["q"]),
              helper.make_node(operator, ["q"], ["t"]),
              helper.make_node("Identity", ["t"], ["out"])]  # fmt: skip
    inputs = [value("s", BATCH, WIDTH)]
    if EACH:
        inputs.append(value("A", *transposed.shape[1:]))
    body = helper.make_graph(inside, "step", inputs + [value("u", *X.shape[1:])],
                             [value("t", BATCH, WIDTH), value("out", BATCH, WIDTH)])  # fmt: skip
    streams = (["W"] if EACH else []) + ["x"]
    node = helper.make_node("Scan", ["z0"] + streams, ["last", "z"], num_scan_inputs=len(streams), body=body)
    return made(session([node], [value("z", LENGTH, BATCH, WIDTH)], {"W": transposed}))


def layers():
    """Gemm and Relu a layer, all in one graph; the bias is a constant of it."""
    nodes, constants, last = [], {}, "z0"
    for l in range(LENGTH):
        constants[f"W{l}"], constants[f"b{l}"] = W[l], X[l, 0]
        nodes += [helper.make_node("Gemm", [last, f"W{l}", f"b{l}"], [f"u{l}"], transB=1),
                  helper.make_node("Relu", [f"u{l}"], [f"s{l}"])]  # fmt: skip
        last = f"s{l}"
    return made(session(nodes, [value(last, BATCH, WIDTH)], constants))


FORWARD = {"Scan": scan}
if options.cell == "tanh" and DENSE:
    FORWARD["RNN"] = rnn
if options.cell == "mlp":
    FORWARD["layer by layer"] = layers
cells.run(options, "onnxruntime", onnxruntime.__version__, FORWARD, {})
