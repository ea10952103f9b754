# SPDX-License-Identifier: MIT
import collections
import ctypes
import os
import pathlib

import numpy as np
import pytest

from deeppcr import _abi, _library

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(config, items):
    """Of each test's cases one in DEEPPCR_TEST_ONE_OF runs, the first always."""
    one_of = int(os.environ.get("DEEPPCR_TEST_ONE_OF", "1"))
    cases = collections.Counter()
    kept, left = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        (left if cases[test] % one_of else kept).append(item)
        cases[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def by_price():
    """Of tests that hang on what auto takes at first: plans are for a machine that is told, so chains that tell what their steps take are
    planned alike however busy this one is. A sanitizer changes what the library's own steps take."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("auto takes other methods there")
    machine = _abi.Machine(size=ctypes.sizeof(_abi.Machine), threads=2, flops=6e10, latency=1.2e-9, region=1e-6, bandwidth=2e10, wake=3e-5,
                           thread_bandwidth=1.2e10, cache_bytes=(2**15, 2**19, 2**25), cache_bandwidth=(1e11, 4e10, 3e10))  # fmt: skip
    set_machine, owner = _library.bare(_library.lib.dpcr_context_set_machine), _library.context.get().address
    assert set_machine(ctypes.c_void_p(owner), ctypes.byref(machine), None) == 0
    yield
    assert set_machine(ctypes.c_void_p(owner), None, None) == 0


@pytest.fixture
def headers():
    """The folder of the public headers; tests that read them are skipped where the package is tested without the tree."""
    folder = ROOT / "include"
    if not (folder / "deeppcr" / "deeppcr.h").exists():
        pytest.skip("no headers beside the package")
    return folder
