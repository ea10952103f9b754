#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""filters.py LIBRARY [--examples FOLDER] [--csv FILE] [--seconds 60] [--rounds 9]: filters over a minute of sound.

Cascades of biquads by dpcr_filter_execute (LIBRARY is libdeeppcr.so) against scipy.signal.sosfilt, in turn, medians: into an array that is
there, and into a new one as SciPy's; and, with the folder of the built examples, the clipper and the ladder, loop against auto.
Needs NumPy and SciPy.
"""
import argparse
import ctypes
import csv
import os
import re
import statistics
import subprocess
import sys
import time

import numpy
import scipy
import scipy.signal

RATE = 48000


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int32)]


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("device", Device), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 6), ("strides", ctypes.c_int64 * 6)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


def view(values):
    """[1][samples] of one signal."""
    array = Array(values.ctypes.data, 1 if values.dtype == numpy.float32 else 2, Device(1, 0), 2)
    array.shape[:2] = [1, len(values)]
    array.strides[:2] = [len(values), 1]
    return array


class Filter:
    def __init__(self, library, sos):
        self.library, self.error = library, Error()
        self.context, self.filter = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(library.dpcr_context_create(None, ctypes.byref(self.context), ctypes.byref(self.error)))
        self.threads = library.dpcr_context_threads(self.context)
        self.sos = numpy.ascontiguousarray(sos, numpy.float64)
        self.check(library.dpcr_filter_create_sos(self.context, ctypes.c_int64(len(sos)), self.sos.ctypes.data_as(ctypes.c_void_p),
                                                  ctypes.byref(self.filter), ctypes.byref(self.error)))

    def check(self, status):
        if status:
            sys.exit(self.error.text.decode())

    def run(self, x, y):
        in_view, out_view = view(x), view(y)  # x and y hold the memory
        self.check(self.library.dpcr_filter_execute(self.filter, ctypes.byref(in_view), None, ctypes.byref(out_view), None,
                                                    ctypes.byref(self.error)))

    def close(self):
        self.library.dpcr_filter_destroy(self.filter)
        self.library.dpcr_context_destroy(self.context)


def race(rounds, **ways):
    """Median, least and largest seconds of each, taken in turn after one round that does not count."""
    times = {name: [] for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: (statistics.median(t), min(t), max(t)) for name, t in times.items()}


def biquads(library, order, dtype, samples, rounds):
    sos = scipy.signal.butter(order, 2000, fs=RATE, output="sos")
    x = numpy.random.default_rng(1).standard_normal(samples).astype(dtype)
    typed = sos.astype(dtype)
    ours, y = Filter(library, sos), numpy.zeros_like(x)
    times = race(rounds, scipy=lambda: scipy.signal.sosfilt(typed, x), ours=lambda: ours.run(x, y),
                 new=lambda: ours.run(x, numpy.empty_like(x)))
    wanted = scipy.signal.sosfilt(sos, x.astype(numpy.float64))
    difference = float(numpy.abs(y - wanted).max() / numpy.abs(wanted).max())
    own = float(numpy.abs(scipy.signal.sosfilt(typed, x) - wanted).max() / numpy.abs(wanted).max())
    ours.close()
    ns = {name: [1e9 * t / samples for t in ts] for name, ts in times.items()}
    return {"work": "biquads", "order": order, "dtype": numpy.dtype(dtype).name, "samples": samples, "threads": ours.threads,
            "baseline": "scipy " + scipy.__version__, "baseline_ns": ns["scipy"][0], "ns": ns["ours"][0], "least_ns": ns["ours"][1],
            "largest_ns": ns["ours"][2], "new_array_ns": ns["new"][0], "ratio": ns["scipy"][0] / ns["ours"][0],
            "new_array_ratio": ns["scipy"][0] / ns["new"][0], "difference": difference, "baseline_difference": own}


def example(folder, name, seconds):
    done = subprocess.run([os.path.join(folder, name), "-t", str(seconds)], capture_output=True, text=True)
    found = re.search(r"loop ([\d.]+) ns a sample; (\w+) ([\d.]+) ns .*: ([\d.]+) times as fast, (.*)", done.stdout)
    if done.returncode or not found:
        sys.exit("%s: %s" % (name, done.stdout + done.stderr))
    return {"work": name, "order": {"clipper": 1, "ladder": 4}[name], "dtype": "float32", "samples": int(seconds * RATE), "threads": "",
            "baseline": "compiled loop", "baseline_ns": float(found[1]), "ns": float(found[3]), "ratio": float(found[4]),
            "difference": 0 if found[5] == "bit for bit the same" else "OTHER BITS"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("library")
    arguments.add_argument("--examples")
    arguments.add_argument("--csv")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rounds", type=int, default=9)
    given = arguments.parse_args()
    library = ctypes.CDLL(os.path.abspath(given.library))
    rows = [biquads(library, order, dtype, int(given.seconds * RATE), given.rounds)
            for dtype in (numpy.float64, numpy.float32) for order in (2, 4, 8)]
    if given.examples:
        rows += [example(given.examples, name, given.seconds) for name in ("clipper", "ladder")]
    for row in rows:
        print("%-8s order %d %s: %s %.2f ns a sample, ours %.3f: %.1fx, difference %s" %
              (row["work"], row["order"], row["dtype"], row["baseline"], row["baseline_ns"], row["ns"], row["ratio"], row["difference"]) +
              (", into a new array %.1fx" % row["new_array_ratio"] if "new_array_ratio" in row else ""))
    if given.csv:
        with open(given.csv, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
