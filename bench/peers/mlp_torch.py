#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A whole network in PyTorch, forward and backward, several variants; mlp_common.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/mlp_torch.py --width 8 --threads 2
"""
import signal
import warnings

import mlp_common as common

options = common.prepare(__doc__)

import torch  # noqa: E402  after the presets are cleared

warnings.filterwarnings("ignore")
torch.set_num_threads(options.threads)
X, W, B = (torch.from_numpy(a) for a in common.numbers(options))
COMPILED_LAYERS = 128  # layers in one compiled function


def calls(chain, weights, parameters):
    def forward():
        with torch.inference_mode():
            return chain(X, *weights).sum()

    def taped():
        return chain(X, *weights).sum()

    def both():
        for p in parameters:
            p.grad = None
        taped().backward()

    return forward, taped, both


def unrolled(z, ws, bs):
    for w, b in zip(ws, bs):
        z = torch.relu(torch.addmm(b, z, w))
    return z


def separate():
    ws = [w.clone().requires_grad_() for w in W]
    bs = [b.clone().requires_grad_() for b in B]
    return ws, bs


def eager():
    ws, bs = separate()
    return calls(unrolled, (ws, bs), ws + bs)


def scripted():
    @torch.jit.script
    def chain(z, W, B):
        for i in range(W.shape[0]):
            z = torch.relu(torch.addmm(B[i], z, W[i]))
        return z

    w, b = W.clone().requires_grad_(), B.clone().requires_grad_()
    return calls(chain, (w, b), [w, b])


def compiled():
    ws, bs = separate()
    block = torch.compile(unrolled, dynamic=False)

    def chain(z, ws, bs):
        for i in range(0, len(ws), COMPILED_LAYERS):
            z = block(z, ws[i : i + COMPILED_LAYERS], bs[i : i + COMPILED_LAYERS])
        return z

    def late(*_):
        raise TimeoutError(f"compiling took more than {options.compile_seconds} s")

    forward, taped, both = calls(chain, (ws, bs), ws + bs)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(options.compile_seconds)
    forward(), both()
    signal.alarm(0)
    return forward, taped, both


common.run(options, "torch", torch.__version__, {"eager": eager, "jit.script": scripted, "compile": compiled})
