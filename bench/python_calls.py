#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a call of the Python package costs on its own: the least of 15 times 300 calls at the shortest lengths, one thread, beside
the C function alone, and beside PyTorch, SciPy and an empty JAX program where there are some.

    taskset -c 0 chrt -f 1 bench/python_calls.py"""
import timeit

import numpy as np

import deeppcr
import deeppcr.signal
from deeppcr import linear, recurrent
from deeppcr import _library as library

deeppcr.set_threads(1)


def report(name, call):
    print(f"{name:56} {min(timeit.repeat(call, number=300, repeat=15)) / 300 * 1e6:7.2f} us", flush=True)


A, b, z0, x = np.full((4, 2, 2), 0.3, "f"), np.ones((4, 2), "f"), np.ones(2, "f"), np.zeros(8)
sos, zi = np.array([[1, 0, 0, 1, 0, 0.0]]), np.zeros((1, 2))
z = deeppcr.linear_chain(A, b, z0)
report("linear_chain", lambda: deeppcr.linear_chain(A, b))
report("linear_chain_vjp", lambda: deeppcr.linear_chain_vjp(A, z, b, z0))
report("signal.sosfilt", lambda: deeppcr.signal.sosfilt(sos, x))
report("signal.sosfilt with zi", lambda: deeppcr.signal.sosfilt(sos, x, zi=zi))

problem = linear.problem(A, b, None, False, "auto", None, 0)
chain = library.Call(linear._execute, problem.plan, (problem.a, problem.b, None, z[:, None]), problem.plan.workspace)
chain.run([library.address(v) if v is not None else 0 for v in (A, b, None, z)], None)
report("the library: dpcr_chain_execute", lambda: chain.function(*chain.given, None, chain.error_ref))
y = np.empty_like(x)
run = library.Call(library.lib.dpcr_filter_execute, deeppcr.signal._filter("sos", sos), (x[None], None, y[None], None))
run.run((library.address(x), 0, library.address(y)))
report("the library: dpcr_filter_execute", lambda: run.function(*run.given, run.error_ref))

for Kind in (recurrent.GRU, recurrent.LSTM):
    net, step = Kind(4, 8), np.zeros((1, 1, 4), "f")

    def both(net=net, step=step):
        net.backward(net(step, training=True)[0])

    report(f"recurrent.{Kind.__name__}", lambda: net(step))
    report(f"recurrent.{Kind.__name__} forward and back", both)
    slot = net._engine.free[-1]
    plan, trained = (next(p for key, p in slot.plans.items() if key[2] == t) for t in (False, True))
    keep = [np.empty(64, "f") for _ in range(11)]
    at = [library.address(k) for k in keep]
    cell = net.form.has_cell
    for p in (plan, trained):
        p.fill(at[0], 0, 0, 0, at[1], at[2], at[3] if cell else 0)
    for place, address in zip(trained.given, (at[4], 0, 0, at[5], at[6], at[7] if cell else 0)):
        place.data = address
    tape = library.aligned(trained.own_tape)
    report(f"the library: dpcr_recurrent_execute, {Kind.__name__}", lambda: plan.execute(None))
    report("    and dpcr_recurrent_backward", lambda: (trained.execute(tape), trained.backward(tape)))

try:
    from scipy import signal

    report("scipy.signal.sosfilt", lambda: signal.sosfilt(sos, x))
except ImportError:
    pass

try:
    import torch

    import deeppcr.torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
    step, ones = torch.randn(1, 1, 4), torch.ones(1, 1, 8)
    for name in ("GRU", "LSTM"):
        theirs = getattr(torch.nn, name)(4, 8)
        for who, module in ((f"torch.nn.{name}", theirs), (f"deeppcr.torch.{name}", deeppcr.torch.from_torch(theirs))):
            with torch.no_grad():
                report(who, lambda: module(step))
            report(f"{who} forward, with gradients", lambda: module(step))
            report(f"{who} forward and back", lambda: module(step)[0].backward(ones))
            report(f"{who} forward and back, of a sum", lambda: module(step)[0].sum().backward())
    gradients = [torch.randn(24, 4), torch.randn(24, 8), torch.randn(24), torch.randn(24)]
    parameters = [torch.nn.Parameter(g.clone()) for g in gradients]

    class Empty(torch.autograd.Function):
        """As many tensors in, kept and out as a GRU of one layer has, and no work."""

        @staticmethod
        def forward(ctx, x, *parameters):
            ctx.save_for_backward(x, *parameters)
            return x.new_empty(1, 1, 8), x.new_empty(1, 1, 8)

        @staticmethod
        def backward(ctx, *_):
            return None, *[torch.empty_like(p) for p in ctx.saved_tensors[1:]]

    class Module(torch.nn.Module):
        def forward(self, x):
            return x.new_empty(1, 1, 8), x.new_empty(1, 1, 8)

    with torch.no_grad():
        report("a module of PyTorch that does nothing", lambda m=Module(): m(step))
    report("an autograd function that does nothing, forward", lambda: Empty.apply(step, *parameters))
    report("an autograd function that does nothing, both", lambda: Empty.apply(step, *parameters)[0].backward(ones))
    report("an autograd function that does nothing, both, of a sum", lambda: Empty.apply(step, *parameters)[0].sum().backward())
    At, bt = torch.from_numpy(A), torch.from_numpy(b)
    report("deeppcr.torch.linear_chain", lambda: deeppcr.torch.linear_chain(At, bt))
    sos_t, x_t = torch.from_numpy(sos), torch.from_numpy(x)
    report("deeppcr.torch.sosfilt", lambda: deeppcr.torch.sosfilt(sos_t, x_t))

try:
    import jax

    import deeppcr.jax
except ImportError:
    pass
else:
    import ctypes

    from deeppcr import _xla

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def nothing(frame):  # what XLA asks at registration is answered
        return _xla.host(frame, None, 0) if ctypes.c_size_t.from_address(frame + 8).value else None

    jax.ffi.register_ffi_target("nothing", _xla.capsule(nothing), platform="cpu")
    _xla.functions["nothing"] = lambda: lambda given, found: None
    _xla.repeats["nothing"] = lambda words, given, found: _xla.Ready([], [], 0)
    foreign = jax.jit(lambda A, b: jax.ffi.ffi_call("nothing", jax.ShapeDtypeStruct(b.shape, b.dtype))(A, b))
    chained, empty = jax.jit(lambda A, b: deeppcr.jax.linear_chain(A, b)), jax.jit(lambda A, b: b + 1)
    gradient = jax.jit(jax.grad(lambda A, b: deeppcr.jax.linear_chain(A, b).sum(), (0, 1)))
    gates = {name: np.zeros(shape, np.float32) for name, shape in (("weight_ih_l0", (24, 8)), ("weight_hh_l0", (24, 8)), ("bias_ih_l0", 24), ("bias_hh_l0", 24))}
    inputs = np.zeros((1, 1, 8), np.float32)
    network = jax.jit(lambda p, x: deeppcr.jax.gru(p, x)[0])
    learning = jax.jit(jax.grad(lambda p, x: deeppcr.jax.gru(p, x)[0].sum(), (0, 1)))
    filtered = jax.jit(lambda s, x: deeppcr.jax.sosfilt(s, x))
    smoothing = jax.jit(jax.grad(lambda s, x: deeppcr.jax.sosfilt(s, x).sum(), (0, 1)))
    A, b, gates, inputs = jax.tree_util.tree_map(jax.numpy.asarray, (A, b, gates, inputs))
    sections, sound = (jax.numpy.asarray(v, np.float32) for v in (sos, x))
    state = np.zeros((1, 1, 8), np.float32)

    def idle(more, results, wanted):
        """A known call without steps, with as many arrays as another has."""
        shapes = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
        call = jax.ffi.ffi_call("deeppcr", shapes)
        return jax.jit(lambda *given: call(*given, *(jax.numpy.zeros(m.shape, m.dtype) for m in more), call="nothing")[:wanted])

    weights = list(gates.values())
    for name, call, given in (
        ("deeppcr.jax.linear_chain", chained, (A, b)),
        ("    that does nothing", idle([], [b], 1), (A, b)),
        ("deeppcr.jax.linear_chain with gradient", gradient, (A, b)),
        ("deeppcr.jax.gru", network, (gates, inputs)),
        ("    that does nothing", idle([state] * 2, [inputs] * 3, 1), (inputs, *weights)),
        ("deeppcr.jax.gru with gradient", learning, (gates, inputs)),
        ("    that does nothing", idle([state] * 5, [inputs] * 3 + weights, 5), (inputs, *weights)),
        ("deeppcr.jax.sosfilt", filtered, (sections, sound)),
        ("    that does nothing", idle([np.zeros((1, 1, 2), np.float32)], [sound, np.zeros((1, 1, 2), np.float32)], 1), (sections, sound)),
        ("deeppcr.jax.sosfilt with gradient", smoothing, (sections, sound)),
        ("an empty program of JAX", empty, (A, b)),
        ("a program with a call of Python that does nothing", foreign, (A, b)),
    ):
        jax.block_until_ready(call(*given))
        report(name, lambda: jax.block_until_ready(call(*given)))
