#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What it costs PyTorch's operators, and gains ours, that PyTorch's waiting threads are sent home before a long pass of deeppcr.torch
(python/src/deeppcr/torch/_others.py): a GRU of ours and an operator of PyTorch in turn, with and without, milliseconds.

    bench/torch_threads.py [--rounds 3] [--repeats 15] [--threads 2] [--out bench/results/torch_threads.csv]

first, second: the operator's first and second call after a pass; ours: the pass after the operator. Medians of each round's repeats; of
the rounds the least, for on some machines the two processors pass data at two speeds, and a round falls on either."""
import argparse
import csv
import datetime
import pathlib
import statistics
import time

import torch
from machine import commit, processor

import deeppcr.torch
from deeppcr.torch import recurrent

here = pathlib.Path(__file__).resolve().parent
LENGTH, HIDDEN = 8192, 128


def operators():
    square, long = torch.randn(1024, 1024), torch.randn(1 << 20)
    convolution, pictures = torch.nn.Conv2d(32, 32, 3, padding=1), torch.randn(16, 32, 32, 32)
    lstm, sequence = torch.nn.LSTM(HIDDEN, HIDDEN), torch.randn(4096, 1, HIDDEN)
    parameters = [torch.nn.Parameter(torch.randn(HIDDEN, 3 * HIDDEN)) for _ in range(4)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    adam = torch.optim.Adam(parameters)
    return {"matmul 1024": lambda: square @ square, "conv2d 16 x 32 x 32 x 32": lambda: convolution(pictures),
            "softmax 1024 x 1024": lambda: torch.softmax(square, 1), "tanh 2^20": lambda: torch.tanh(long),
            "Adam, 4 x 49152": adam.step, "nn.LSTM 128, T = 4096": lambda: lstm(sequence)}  # fmt: skip


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turn(ours, theirs, repeats):
    """Medians of the operator's first and second call after a pass, and of the pass."""
    times = []
    for _ in range(repeats):
        times.append((seconds(theirs), seconds(theirs), seconds(ours)))
    return [1e3 * statistics.median(column) for column in zip(*times)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default=str(here / "results" / "torch_threads.csv"))
    a = parser.parse_args()
    pathlib.Path(a.out).parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(a.threads)
    gru, x = deeppcr.torch.GRU(HIDDEN, HIDDEN), torch.randn(LENGTH, 1, HIDDEN)
    ways = {"sent home": recurrent.send_home, "waiting": lambda flops: None}
    rows = []
    for name, operator in operators().items():
        found = {way: [] for way in ways}
        with torch.no_grad():
            for _ in range(a.rounds):
                for way, recurrent.send_home in ways.items():
                    in_turn(lambda: gru(x), operator, 2)
                    found[way].append(in_turn(lambda: gru(x), operator, a.repeats))
        for way, rounds in found.items():
            least = [f"{min(column):.3f}" for column in zip(*rounds)]
            rows.append([datetime.date.today(), commit(), processor(), a.threads, torch.__version__, name, way, *least, a.rounds])
            print(f"{name}, {way}: first {least[0]}, second {least[1]}, ours {least[2]}", flush=True)
    with open(a.out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("date commit machine threads torch operator way first_ms second_ms ours_ms rounds".split())
        writer.writerows(rows)


if __name__ == "__main__":
    main()
