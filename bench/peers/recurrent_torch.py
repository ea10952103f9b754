#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch.nn.RNN, GRU or LSTM: median nanoseconds a time step of a forward pass, and of forward and backward with all gradients.

    recurrent_torch.py --kind gru --inputs 32 --hidden 32 --batch 16 --length 1024 --threads 2 --seconds 1

Prints kind, inputs, hidden, batch, length, threads, forward, both, rounds; as bench_recurrent does."""
import argparse
import os
import statistics
import time

for name in list(os.environ):
    if name.startswith(("OPENBLAS_", "MKL_", "OMP_", "KMP_", "GOMP_")):
        del os.environ[name]
import torch

parser = argparse.ArgumentParser()
for name, value in (("inputs", 32), ("hidden", 32), ("batch", 16), ("length", 1024), ("threads", 1)):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--kind", default="gru")
parser.add_argument("--seconds", type=float, default=1)
a = parser.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(1)
module = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[a.kind](a.inputs, a.hidden)
x = torch.randn(a.length, a.batch, a.inputs)
taken = x.clone().requires_grad_()
g = torch.randn(a.length, a.batch, a.hidden)


def forward():
    with torch.no_grad():
        module(x)


def both():
    module.zero_grad()
    taken.grad = None
    module(taken)[0].backward(g)


times = {forward: [], both: []}
for work in times:
    work()
start = time.perf_counter()
while len(times[both]) < 5 or time.perf_counter() - start < a.seconds:
    for work, kept in times.items():
        begin = time.perf_counter()
        work()
        kept.append(time.perf_counter() - begin)
each = 1e9 / a.length
print(f"{a.kind},{a.inputs},{a.hidden},{a.batch},{a.length},{a.threads},{statistics.median(times[forward]) * each:.1f},"
      f"{statistics.median(times[both]) * each:.1f},{len(times[both])}")
