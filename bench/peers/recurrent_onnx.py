#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ONNX Runtime's operators RNN, GRU (linear_before_reset, as PyTorch's) and LSTM: median nanoseconds a time step of a forward pass.

    recurrent_onnx.py --kind gru --inputs 32 --hidden 32 --batch 16 --length 1024 --threads 2 --seconds 1

Prints kind, inputs, hidden, batch, length, threads, forward, nothing, rounds; as bench_recurrent does."""
import statistics

import common
import recurrent

a = recurrent.prepare(__doc__)

import numpy as np  # noqa: E402  after the presets are cleared
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

H = a.hidden
gates = recurrent.GATES[a.kind]
random = np.random.default_rng(1)


def uniform(name, *shape):
    return numpy_helper.from_array(random.uniform(-(H**-0.5), H**-0.5, shape).astype(np.float32), name)


more = {"linear_before_reset": 1} if a.kind == "gru" else {}
node = helper.make_node(a.kind.upper(), ["x", "W", "R", "B"], ["y"], hidden_size=H, **more)
graph = helper.make_graph(
    [node], "network",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, (a.length, a.batch, a.inputs))],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, (a.length, 1, a.batch, H))],
    [uniform("W", 1, gates * H, a.inputs), uniform("R", 1, gates * H, H), uniform("B", 1, 2 * gates * H)],
)  # fmt: skip
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
onnx.checker.check_model(model)
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = a.threads
settings.inter_op_num_threads = 1
settings.log_severity_level = 3
session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
x = {"x": random.normal(size=(a.length, a.batch, a.inputs)).astype(np.float32)}
(times,), _ = common.measure(a.seconds, lambda: session.run(None, x))
recurrent.show(a, statistics.median(times), float("nan"), len(times))
