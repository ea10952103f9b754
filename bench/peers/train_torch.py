#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One training step of a deep residual network in PyTorch, several variants; common.py tells the problem.

    bench/peers/.venv/bin/python bench/peers/train_torch.py --layers 1024 --width 32 --batch 128 --threads 2 --json

Those marked autodiff let PyTorch derive the backward pass; `hand-written` gives it, in place, with preallocated memory.
"""
import contextlib
import signal
import warnings

import common

options = common.prepare(__doc__)

import torch  # noqa: E402  after the presets are cleared
import torch.nn.functional as F  # noqa: E402

warnings.filterwarnings("ignore", message=".*jit.script.*", category=FutureWarning)
torch.set_num_threads(options.threads)
X, LABELS, NUMBERS = common.numbers(options)
X, LABELS = torch.from_numpy(X), torch.from_numpy(LABELS)
LAYERS, WIDTH, BATCH = options.layers, options.width, options.batch
SCALE = LAYERS**-0.5
ADAMW = {"lr": common.RATE, "weight_decay": common.WEIGHT_DECAY, "betas": (common.BETA1, common.BETA2),
         "eps": common.EPSILON}  # fmt: skip
COMPILED_LAYERS = 16  # layers in one compiled function


def stacked():
    return {name: torch.tensor(value).requires_grad_() for name, value in NUMBERS.items()}


def training_step(optimiser, forward):
    def step():
        optimiser.zero_grad()
        loss = F.cross_entropy(forward(), LABELS)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


def with_chain(chain, **adamw):
    """A step over stacked weights, given chain(z, W, b)."""
    p = stacked()

    def forward():
        z = chain(torch.addmm(p["be"], X, p["We"]), p["W"], p["b"])
        return torch.addmm(p["bh"], z, p["Wh"])

    return training_step(torch.optim.AdamW(list(p.values()), **ADAMW, **adamw), forward)


# ---- chains ----


def multiply_add(z, W, b):
    for weight, bias in zip(W.unbind(0), b.unbind(0)):
        z = z + SCALE * torch.tanh(torch.addmm(bias, z, weight))
    return z


def add_alpha(z, W, b):
    for weight, bias in zip(W.unbind(0), b.unbind(0)):
        z = torch.add(z, torch.tanh(torch.addmm(bias, z, weight)), alpha=SCALE)
    return z


def scripted_chain(z: torch.Tensor, W: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    weights = W.unbind(0)
    biases = b.unbind(0)
    for i in range(len(weights)):
        z = torch.add(z, torch.tanh(torch.addmm(biases[i], z, weights[i])), alpha=scale)
    return z


# ---- variants ----


def script():
    chain = torch.jit.script(scripted_chain)
    return with_chain(lambda z, W, b: chain(z, W, b, SCALE), fused=True)


def lists(**adamw):
    p = stacked()
    weights = [w.detach().clone().requires_grad_() for w in p["W"]]
    biases = [b.detach().clone().requires_grad_() for b in p["b"]]

    def forward():
        z = torch.addmm(p["be"], X, p["We"])
        for weight, bias in zip(weights, biases):
            z = torch.add(z, torch.tanh(torch.addmm(bias, z, weight)), alpha=SCALE)
        return torch.addmm(p["bh"], z, p["Wh"])

    ends = [p[name] for name in ("We", "be", "Wh", "bh")]
    return training_step(torch.optim.AdamW(ends + weights + biases, **ADAMW, **adamw), forward)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(common.INPUTS, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, common.CLASSES)

    @torch.no_grad()
    def load(self, p):
        linears = [self.encoder, *self.layers, self.head]
        weights = [p["We"], *p["W"], p["Wh"]]
        biases = [p["be"], *p["b"], p["bh"]]
        for linear, weight, bias in zip(linears, weights, biases):
            linear.weight.copy_(weight.T)
            linear.bias.copy_(bias)

    def forward(self, x):
        z = self.encoder(x)
        for layer in self.layers:
            z = z + SCALE * torch.tanh(layer(z))
        return self.head(z)


def modules():
    network = Network()
    network.load(stacked())
    return training_step(torch.optim.AdamW(network.parameters(), fused=True, **ADAMW), lambda: network(X))


@contextlib.contextmanager
def time_limit(seconds):
    def late(_signal, _frame):
        raise TimeoutError(f"not compiled within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def compiled():
    """torch.compile of COMPILED_LAYERS layers at a time: all of them in one function take minutes to compile."""

    def block(z, W, b):
        for i in range(W.shape[0]):
            z = torch.add(z, torch.tanh(torch.addmm(b[i], z, W[i])), alpha=SCALE)
        return z

    block = torch.compile(block, dynamic=False)

    def chain(z, W, b):
        for weights, biases in zip(W.split(COMPILED_LAYERS), b.split(COMPILED_LAYERS)):
            z = block(z, weights, biases)
        return z

    with time_limit(options.compile_seconds):
        step = with_chain(chain, fused=True)
        step()
    return with_chain(chain, fused=True)


def hand_written():
    p = stacked()
    for value in p.values():
        value.grad = torch.zeros_like(value)
    optimiser = torch.optim.AdamW(list(p.values()), fused=True, **ADAMW)
    W, Wt, b = p["W"].detach().unbind(0), p["W"].detach().transpose(1, 2).unbind(0), p["b"].detach().unbind(0)
    states = torch.empty(LAYERS + 1, BATCH, WIDTH)
    tanhs, deltas = torch.empty(LAYERS, BATCH, WIDTH), torch.empty(LAYERS, BATCH, WIDTH)
    z, t, e = states.unbind(0), tanhs.unbind(0), deltas.unbind(0)

    def forward():
        torch.addmm(p["be"], X, p["We"], out=z[0])
        for l in range(LAYERS):
            torch.addmm(b[l], z[l], W[l], out=t[l])
            t[l].tanh_()
            torch.add(z[l], t[l], alpha=SCALE, out=z[l + 1])
        return torch.addmm(p["bh"], z[LAYERS], p["Wh"])

    def backward(logits):
        torch.softmax(logits, 1, out=logits)
        logits[torch.arange(BATCH), LABELS] -= 1
        logits.div_(BATCH)
        torch.mm(z[LAYERS].T, logits, out=p["Wh"].grad)
        torch.sum(logits, 0, out=p["bh"].grad)
        d = logits @ p["Wh"].T
        slopes = torch.addcmul(torch.full_like(tanhs[:1], SCALE), tanhs, tanhs, value=-SCALE, out=tanhs).unbind(0)
        for l in reversed(range(LAYERS)):
            torch.mul(d, slopes[l], out=e[l])
            d.addmm_(e[l], Wt[l])
        torch.bmm(states[:LAYERS].transpose(1, 2), deltas, out=p["W"].grad)
        torch.sum(deltas, 1, out=p["b"].grad)
        torch.mm(X.T, d, out=p["We"].grad)
        torch.sum(d, 0, out=p["be"].grad)

    @torch.no_grad()
    def step():
        logits = forward()
        loss = F.cross_entropy(logits, LABELS)
        backward(logits)
        optimiser.step()
        return loss

    return step


VARIANTS = {
    "unbind": (True, lambda: with_chain(multiply_add)),
    "unbind fused": (True, lambda: with_chain(multiply_add, fused=True)),
    "unbind add-alpha fused": (True, lambda: with_chain(add_alpha, fused=True)),
    "lists foreach": (True, lambda: lists(foreach=True)),
    "lists fused": (True, lambda: lists(fused=True)),
    "module list fused": (True, modules),
    "jit.script fused": (True, script),
    "compile blocks fused": (True, compiled),
    "hand-written backward fused": (False, hand_written),
}

common.run(options, "torch", torch.__version__, common.wanted(options, VARIANTS))
