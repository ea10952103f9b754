#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Denoising steps in PyTorch; diffusion.py tells the problem.

    diffusion_torch.py --model M.safetensors --start start.npy --samples end.npy --threads 2

Variants: the loop over nn.functional.linear; the same with preallocated results (addmm out=); torch.jit.trace of a step, frozen; a
step by torch.compile, as it is and with its weights as constants (freezing)."""
import diffusion

options = diffusion.prepare(__doc__)

import torch  # noqa: E402  after the presets are cleared

torch.set_num_threads(options.threads)
X, W, S, B, P, Q = diffusion.problem(options)
x0, weights, shifts, bias = torch.from_numpy(X), [torch.from_numpy(w.copy()) for w in W], [torch.from_numpy(s.copy()) for s in S], torch.from_numpy(B.copy())
scale, slope = torch.from_numpy(P), torch.from_numpy(Q)
N, D = len(P), len(S)


class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)
        self.bias = torch.nn.Parameter(bias)
        self.requires_grad_(False)

    def forward(self, x, s, p, q):
        h = torch.nn.functional.silu(torch.nn.functional.linear(x, self.weights[0], s[0]))
        for l in range(1, D):
            h = h + torch.nn.functional.silu(torch.nn.functional.linear(h, self.weights[l], s[l]))
        return p * x + q * torch.nn.functional.linear(h, self.weights[D], self.bias)


table = [tuple(s[n].contiguous() for s in shifts) for n in range(N)]
arguments = [(table[n], scale[n], slope[n]) for n in range(N)]


def loop(step):
    def run():
        with torch.inference_mode():
            x = x0
            for a in arguments:
                x = step(x, *a)
            return x

    return run


def eager():
    return loop(Step())


def preallocated():
    flipped = [w.t() for w in weights]
    h, u, x, y = (torch.empty(len(X), w) for w in (W[0].shape[0], W[0].shape[0], X.shape[1], X.shape[1]))
    silu_ = torch.nn.functional.silu

    def run():
        with torch.inference_mode():
            x.copy_(x0)
            for s, p, q in arguments:
                torch.addmm(s[0], x, flipped[0], out=h)
                silu_(h, inplace=True)
                for l in range(1, D):
                    torch.addmm(s[l], h, flipped[l], out=u)
                    h.add_(silu_(u, inplace=True))
                torch.addmm(bias, h, flipped[D], out=y)
                x.mul_(p).add_(y.mul_(q))
            return x

    return run


def traced():
    with torch.inference_mode():
        step = torch.jit.freeze(torch.jit.trace(Step().eval(), (x0, *arguments[0])))
    return loop(step)


def compiled():
    return loop(torch.compile(Step(), dynamic=False))


def frozen():
    import torch._inductor.config as config

    config.freezing = True
    return loop(torch.compile(Step().eval(), dynamic=False))


diffusion.run(options, "torch", {"eager": eager, "preallocated": preallocated, "traced": traced, "compiled": compiled, "frozen": frozen})
