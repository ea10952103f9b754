#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch.nn.RNN, GRU or LSTM: median nanoseconds a time step of a forward pass, and of forward and backward with all gradients.

    recurrent_torch.py --kind gru --inputs 32 --hidden 32 --batch 16 --length 1024 --threads 2 --seconds 1

Prints kind, inputs, hidden, batch, length, threads, forward, both, rounds; as bench_recurrent does."""
import statistics

import common
import recurrent

a = recurrent.prepare(__doc__)

import torch  # noqa: E402  after the presets are cleared

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


times, _ = common.measure(a.seconds, forward, both)
recurrent.show(a, *map(statistics.median, times), len(times[0]))
