#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does training amplify rounding? BPPSA's bit streams by the loop, by the loop after the lowest bit of one weight was changed, and
by the scan (BPPSA), from one checkpoint of the first few updates: the loss of every update, a column a way.

    bench/bitstream_rounding.py PROGRAM FOLDER [--length 1000] [--updates 400] [--rate 1e-3]

FOLDER/bitstream_rounding.csv. The checkpoint is what an interrupt leaves; of a run that goes on every number follows from it."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from machine import commit, processor, wants


def training(a, *more):
    return [a.program, "train", "rnn", "--data", "bitstream", "--length", str(a.length), "--limit", str(16 * a.updates), "--epochs", "1", "--batch", "16",
            "--rate", str(a.rate), "--test-every", "0", *more]


def begin(a, path):
    """A checkpoint of the first updates."""
    child = subprocess.Popen(training(a, "--method", "sequential", "--backward", "sequential", "--checkpoint-seconds", "0.001", "--save", path, "--quiet"),
                             stderr=subprocess.DEVNULL)
    while not os.path.exists(path) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    child.wait()


def header(data):
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), 8 + length


def change_one_bit(path, to):
    data = bytearray(pathlib.Path(path).read_bytes())
    tensors, base = header(data)
    data[base + tensors["rnn.weight_hh_l0"]["data_offsets"][0]] ^= 1  # the lowest bit of the first number
    pathlib.Path(to).write_bytes(data)


def losses(a, folder, start, backward):
    """The mean loss since the beginning, by update, on from the checkpoint `start`, which is told which way back goes on from it."""
    mine, log = os.path.join(folder, "mine"), os.path.join(folder, "log")
    data = bytearray(pathlib.Path(start).read_bytes())
    tensors, base = header(data)
    tensors["__metadata__"]["deeppcr.train.solve.backward"] = backward
    tensors["__metadata__"]["deeppcr.train.plan0.backward"] = backward
    made = json.dumps(tensors).encode()
    made += b" " * (-len(made) % 8)
    pathlib.Path(mine).write_bytes(len(made).to_bytes(8, "little") + made + data[base:])
    subprocess.run(training(a, "--method", "sequential", "--backward", backward, "--resume", mine, "--log", log, "--quiet"), check=True)
    steps = [json.loads(line) for line in open(log, encoding="utf-8")]
    return {s["step"]: s["loss"] for s in steps if s.get("event") == "step"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rate", default="1e-3")
    a = parser.parse_args()
    wants(a.program)
    os.makedirs(a.folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        start, changed = os.path.join(work, "start"), os.path.join(work, "changed")
        begin(a, start)
        change_one_bit(start, changed)
        columns = [losses(a, work, start, "sequential"), losses(a, work, changed, "sequential"), losses(a, work, start, "blelloch")]
    path = pathlib.Path(a.folder) / "bitstream_rounding.csv"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# {processor()}; commit {commit()}; {' '.join(['bench/bitstream_rounding.py', 'PROGRAM', 'FOLDER', *sys.argv[3:]])}\n")
        file.write("step,loop,one_bit,blelloch\n")
        for step in sorted(columns[0]):
            file.write(",".join([str(step), *(f"{c[step]:.12g}" for c in columns)]) + "\n")
    for step in sorted(columns[0]):
        if step % 50 == 0:
            print(step, *(f"{abs(c[step] - columns[0][step]):.2g}" for c in columns[1:]))


main()
