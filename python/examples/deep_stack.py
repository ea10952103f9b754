#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A deep narrow network: 1000 residual layers of width 16 tell two spirals apart; `--compare` times eager PyTorch's step too.

    python deep_stack.py [--layers 1000] [--width 16] [--steps 150] [--compare] [--plot picture.png]

When PyTorch alone is the better choice: on a GPU; where layers are wide (hundreds of numbers) or batches large (thousands of rows), so that products
are all the work; where layers differ from each other; and where second gradients are wanted, which PyTorch's operators give here too.
"""
import argparse
import math
import time

import torch

import deeppcr.torch


def spirals(count):
    t = 3 * math.pi * torch.rand(count).sqrt() + 0.5
    label = torch.arange(count) % 2
    angle = t + math.pi * label
    return torch.stack([t * angle.cos(), t * angle.sin()], 1) / 5 + 0.02 * torch.randn(count, 2), label


class Eager(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, z):
        for layer in self.layers:
            z = z + len(self.layers) ** -0.5 * torch.tanh(layer(z))
        return z


def plot(path, model, losses, title):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    left.semilogy(losses)
    left.set(xlabel="step of learning", title="cross entropy")
    n, reach = 160, 2.2
    axis = torch.linspace(-reach, reach, n)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).reshape(-1, 2)
    x, label = spirals(600)
    with torch.no_grad():
        shades = model(grid).softmax(1)[:, 1].reshape(n, n)
        states = []
        for l in range(0, model[1].form.layers + 1, max(1, model[1].form.layers // 50)):
            states.append(through(model, x[:60], l))
    middle.imshow(shades, extent=(-reach, reach) * 2, origin="lower", cmap="coolwarm", alpha=0.7)
    middle.scatter(*x.T, c=label, s=4, cmap="coolwarm")
    middle.set(title=title)
    depth = torch.linspace(0, model[1].form.layers, len(states))
    for i in range(60):
        right.plot(depth, [s[i, 0] for s in states], color=("C0", "C3")[label[i]], lw=0.6)
    right.set(xlabel="layer", title="a state's first number, by depth")
    figure.savefig(path, dpi=80)


def through(model, x, count):
    """The states after `count` layers."""
    z, chain = model[0](x), model[1]
    for l in range(count):
        part = chain.layer(l)
        z = z + chain.form.scale * torch.tanh(torch.nn.functional.linear(z, part["weight"], part["bias"]))
    return z


def train(middle, steps, width):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, width), middle, torch.nn.Linear(width, 2))
    fused = {"fused": True} if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4) else {}  # on the CPU since 2.4
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, **fused)
    begin, losses = time.perf_counter(), []
    for _ in range(steps):
        x, label = spirals(128)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), label)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    each = (time.perf_counter() - begin) / steps
    x, label = spirals(2000)
    return each, (model(x).argmax(1) == label).float().mean().item(), model, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    a = parser.parse_args()
    each, accuracy, model, losses = train(deeppcr.torch.Chain(a.width, a.layers), a.steps, a.width)
    title = f"deeppcr.torch.Chain: {1e3 * each:.1f} ms a step, {100 * accuracy:.1f} % right"
    print(title)
    if a.compare:
        slow = train(Eager(a.width, a.layers), 5, a.width)[0]
        print(f"eager PyTorch: {1e3 * slow:.1f} ms a step, {slow / each:.1f} times as long")
        title = f"{1e3 * each:.1f} ms a step (eager PyTorch {1e3 * slow:.0f} ms), {100 * accuracy:.1f} % right"
    if a.plot:
        plot(a.plot, model, losses, title)
    assert accuracy > 0.9 or a.steps < 150


main()
