#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A deep narrow network: 1000 residual layers of width 16 tell two spirals apart; `--compare` times eager PyTorch's step too.

    python deep_stack.py [--layers 1000] [--width 16] [--steps 150] [--compare]
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


def train(middle, steps, width):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, width), middle, torch.nn.Linear(width, 2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    begin = time.perf_counter()
    for _ in range(steps):
        x, label = spirals(128)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), label).backward()
        optimiser.step()
    each = (time.perf_counter() - begin) / steps
    x, label = spirals(2000)
    return each, (model(x).argmax(1) == label).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--compare", action="store_true")
    a = parser.parse_args()
    each, accuracy = train(deeppcr.torch.Chain(a.width, a.layers), a.steps, a.width)
    print(f"deeppcr.torch.Chain: {1e3 * each:.1f} ms a step, {100 * accuracy:.1f} % right")
    if a.compare:
        slow, _ = train(Eager(a.width, a.layers), 5, a.width)
        print(f"eager PyTorch: {1e3 * slow:.1f} ms a step, {slow / each:.1f} times as long")
    assert accuracy > 0.9 or a.steps < 150


main()
