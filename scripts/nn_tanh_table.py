#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/kern/nn_tanh_table.h: 32 polynomials of degree 4 in |x| for tanh in float. Needs numpy (long double)."""

import numpy as np

ALPHA, DEGREE, NODES, ROUNDS = 0.82, 4, 400, 60
LAST = 15  # up to 9.146, where |x| is cut
f32 = np.float32

HEADER = """// SPDX-License-Identifier: MIT
// tanh(x) for 16 floats at a time: 32 segments with a polynomial of degree 4 in |x| each, weighted for the relative
// error and rounded from the highest coefficient down, the lower ones refitted. The segment is bits 20..24 of the float
// u = 0.82 |x| + 0.5 (two exponent bits, three of the mantissa), u in [0.5, 8). The last segment's constant was rounded
// first: its polynomial is 1 to the bit where tanh is, so that gates close and what is saturated has the slope 0.
// Made by scripts/nn_tanh_table.py: do not edit.
#ifndef DPCRI_NN_TANH_TABLE_H
#define DPCRI_NN_TANH_TABLE_H

static const float tanh_table[5][32] __attribute__((aligned(64))) = {
"""


def segment(i):
    """Bounds in |x| of the segment whose index bits are i: exponents 126, 127, 128, 129 end in the bits 2, 3, 0, 1."""
    exponent = {2: -1, 3: 0, 0: 1, 1: 2}[i >> 3]
    low = (1 + (i & 7) / 8) * 2.0**exponent
    high = (1 + ((i & 7) + 1) / 8) * 2.0**exponent
    return (low - 0.5) / ALPHA, (high - 0.5) / ALPHA


def least_squares(basis, values, weight):
    scaled = (basis * weight[:, None]).astype(np.float64)
    size = np.abs(scaled).max(0)
    return np.linalg.lstsq(scaled / size, (values * weight).astype(np.float64), rcond=None)[0] / size


def fit(low, high, constant_first):
    """Lawson's iteration towards the minimax relative error, then rounding with refits."""
    x = np.cos(np.pi * (2 * np.arange(NODES) + 1) / (2 * NODES)) * (high - low) / 2 + (high + low) / 2
    x = x.astype(np.longdouble)
    t = np.tanh(x)
    weight = 1 / t
    start = 1 if low == 0 else 0  # the first segment has no constant, so that the relative error holds down to 0
    basis = np.stack([x**k for k in range(start, DEGREE + 1)], 1)
    w = np.ones(NODES)
    for _ in range(ROUNDS):
        c = least_squares(basis, t, np.sqrt(w) / t)
        r = np.abs((basis @ c - t) / t).astype(np.float64)
        w = w * (r + 1e-12)
        w /= w.sum()
    rounded = np.zeros(DEGREE + 1)
    c = np.concatenate([np.zeros(start), c])
    if constant_first:
        rounded[0] = f32(c[0])
        t = t - rounded[0]
        start = 1
        c[1:] = least_squares(basis[:, 1:], t, np.ones(NODES))
        basis = basis[:, 1:]
    for k in range(DEGREE, start - 1, -1):
        rounded[k] = f32(c[k])
        if k > start:
            rest = t - sum(rounded[j] * x**j for j in range(k, DEGREE + 1))
            c[start:k] = least_squares(basis[:, : k - start], rest, weight)
    return rounded


def main():
    table = np.stack([fit(*segment(i), i == LAST) for i in range(32)], 1)
    with open("src/kern/nn_tanh_table.h", "w", encoding="ascii") as out:
        out.write(HEADER)
        for row in table:
            out.write("    {\n")
            for i in range(0, 32, 4):
                out.write("        " + ", ".join(float(v).hex() + "f" for v in row[i : i + 4]) + ",\n")
            out.write("    },\n")
        out.write("};\n\n#endif\n")


if __name__ == "__main__":
    main()
