# SPDX-License-Identifier: MIT
"""What recurrent_torch.py, recurrent_onnx.py and recurrent_jax.py share: arguments and printing. Import this before numpy, torch
or jax, as common.py."""
import argparse

import common

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def prepare(description, extend=None):
    """`extend`, if given, adds a program's own options to the parser."""
    parser = argparse.ArgumentParser(description=description)
    for name, value in (("inputs", 32), ("hidden", 32), ("batch", 16), ("length", 1024), ("threads", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--kind", choices=GATES, default="gru")
    parser.add_argument("--seconds", type=float, default=1)
    if extend:
        extend(parser)
    common.clear_presets()
    return parser.parse_args()


def show(a, forward, both, rounds):
    """forward and both: seconds of all steps; nan: not measured."""
    each = 1e9 / a.length
    print(f"{a.kind},{a.inputs},{a.hidden},{a.batch},{a.length},{a.threads},{forward * each:.1f},{both * each:.1f},{rounds}")
