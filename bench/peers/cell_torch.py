#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recurrences in PyTorch; cells.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/cell_torch.py --cell tanh --length 65536 --width 2 --threads 1 --json

tanh: nn.RNN (its own loop in C++), the loop in Python, and torch.compile over blocks of steps. linear: the loop, the blocks, and
a scan of log2 L whole-tensor levels. mlp: the loop over nn.functional.linear, and the blocks. Backward is autograd's, after a forward pass outside the timing.
"""
import cells

options = cells.prepare(__doc__)

import numpy as np  # noqa: E402,F401  after the presets are cleared
import torch  # noqa: E402

torch.set_num_threads(options.threads)
options.numbers = cells.numbers(options)
W, X, G, Z0 = (torch.from_numpy(a) for a in options.numbers)
LINEAR, EACH, DENSE = options.cell == "linear", options.cell != "tanh", options.structure == "dense"
MLP = options.cell == "mlp"
LENGTH, BATCH, WIDTH = G.shape
BLOCKS = (32,)  # a larger one takes minutes to compile and is no faster


def step(A, z, b):
    if MLP:
        return torch.relu(torch.nn.functional.linear(z, A, b[0]))
    u = (z @ A.T if DENSE else z * A) + b
    return u if LINEAR else torch.tanh(u)


# Steps are taken apart by unbind and split, whose gradients are one copy: that of an index is as large as the whole array, every step.
def loop(W, x, z):
    states = []
    for A, b in zip(W.unbind(0) if EACH else [W] * len(x), x.unbind(0)):
        z = step(A, z, b)
        states.append(z)
    return torch.stack(states)


def in_blocks(size):
    """The loop, compiled for `size` steps at a time; what is left runs as it is."""
    block = torch.compile(loop, dynamic=False)

    def forward(W, x, z):
        parts, pieces = [], x.split(size)
        for A, b in zip(W.split(size) if EACH else [W] * len(pieces), pieces):
            parts.append((block if len(b) == size else loop)(A, b, z))
            z = parts[-1][-1]
        return torch.cat(parts)

    return forward


def rnn():
    """nn.RNN wants weights for its input: the identity."""
    net = torch.nn.RNN(WIDTH, WIDTH, bias=False)
    with torch.no_grad():
        net.weight_hh_l0.copy_(W)
        net.weight_ih_l0.copy_(torch.eye(WIDTH))
    net.requires_grad_(False)
    return lambda W, x, z: net(x, z[None])[0]


def levels(W, x, z):
    """Hillis and Steele's scan over (A, b); z0 is zero."""
    A, b, reach = W[:, None].expand(-1, BATCH, *W.shape[1:]), x, 1
    while reach < LENGTH:
        A1, b1, A2, b2 = A[:-reach], b[:-reach], A[reach:], b[reach:]
        moved = (A2 @ b1[..., None])[..., 0] if DENSE else A2 * b1
        A, b = torch.cat((A[:reach], A2 @ A1 if DENSE else A2 * A1)), torch.cat((b[:reach], moved + b2))
        reach *= 2
    return b


def forward_of(make):
    def made():
        function, kept = make(), []

        def run():
            with torch.inference_mode():
                kept[:] = [function(W, X, Z0)]

        return run, lambda: kept[0].numpy()

    return made


def backward_of(make):
    def made():
        function, kept = make(), []
        x, z0 = X.clone().requires_grad_(), Z0.clone().requires_grad_()
        weights = W.clone().requires_grad_() if MLP else W
        states = function(weights, x, z0)

        def run():
            kept[:] = torch.autograd.grad(states, (z0, x, weights) if MLP else (z0, x), G, retain_graph=True)

        return run, lambda: kept[0].numpy()

    return made


VARIANTS = {"loop": lambda: loop}
VARIANTS.update({f"torch.compile in blocks of {n}": (lambda n=n: in_blocks(n)) for n in BLOCKS if n <= LENGTH})
if LINEAR:
    VARIANTS["scan in log2 L levels"] = lambda: levels
elif DENSE and not MLP:
    VARIANTS["nn.RNN"] = rnn
FORWARD = {name: forward_of(make) for name, make in VARIANTS.items()}
BACKWARD = {name: backward_of(make) for name, make in VARIANTS.items() if name != "scan in log2 L levels"}
cells.run(options, "torch", torch.__version__, FORWARD, BACKWARD)
