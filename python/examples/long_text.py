#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A recurrent network trained over a very long text, without cutting it: characters of 16384 steps a sequence, batch 1.

By default the text is what Python's own modules say of themselves. The GRU sees each sequence as a whole, so gradients reach back as
far as the text goes; `--compare` also times a step of torch.nn.GRU with the same parameters.

    python long_text.py [--text FILE] [--hidden 128] [--length 16384] [--steps 40] [--compare] [--plot picture.png]

When PyTorch alone is the better choice: on a GPU; where many short sequences go together in a batch (64 and more of some hundred
steps), whose products libraries for matrices do as well; and where a network of attention fits the memory that there is.
"""
import argparse
import pathlib
import sysconfig
import time

import torch

import deeppcr.torch


def read(path):
    if path:
        return pathlib.Path(path).read_bytes()
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return b"".join(f.read_bytes() for f in sorted(folder.glob("*.py"))[:60])


class Model(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embed = torch.nn.Embedding(128, hidden)
        self.gru = torch.nn.GRU(hidden, hidden)
        self.head = torch.nn.Linear(hidden, 128)

    def forward(self, text):
        return self.head(self.gru(self.embed(text)[:, None])[0][:, 0])


def step(model, optimiser, text):
    optimiser.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(text[:-1]), text[1:])
    loss.backward()
    optimiser.step()
    return loss.item()


def plot(path, losses, times, theirs, a):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    bits = [loss / 0.6931 for loss in losses]
    axes.plot(times, bits, "C0", label=f"deeppcr.torch.GRU, {times[-1] / len(times):.2f} s a step")
    if theirs:  # the same steps, at PyTorch's pace
        axes.plot([theirs * (n + 1) for n in range(len(bits))], bits, "C1--", label=f"the same steps at torch.nn.GRU's {theirs:.2f} s")
    axes.set(xlabel="seconds", ylabel="bits a character", title=f"GRU {a.hidden}, gradients through {a.length} characters", xscale="log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2, frameon=False)  # where no curve can lie under it
    figure.savefig(path, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    a = parser.parse_args()
    text = torch.tensor([c for c in read(a.text) if c < 128])
    torch.manual_seed(0)
    model = Model(a.hidden)
    theirs = None
    if a.compare:
        begin = time.perf_counter()
        step(model, torch.optim.SGD(model.parameters(), 0), text[: a.length + 1])
        theirs = time.perf_counter() - begin
        print(f"torch.nn.GRU: {theirs:.2f} s a step")
    deeppcr.torch.replace_in(model)  # the same parameters, another engine
    optimiser, losses, times, begin = torch.optim.Adam(model.parameters(), lr=3e-3), [], [], time.perf_counter()
    for n in range(a.steps):
        at = n * a.length % max(1, len(text) - a.length - 1)
        losses.append(step(model, optimiser, text[at : at + a.length + 1]))
        times.append(time.perf_counter() - begin)
        if n % 10 == 0:
            print(f"step {n}: {losses[-1] / 0.6931:.2f} bits a character")
    print(f"deeppcr.torch.GRU: {(time.perf_counter() - begin) / a.steps:.3f} s a step; {'; '.join(model.gru.sentences)}")
    if a.plot:
        plot(a.plot, losses, times, theirs, a)
    assert losses[-1] < 0.8 * losses[0] or a.steps < 20


main()
