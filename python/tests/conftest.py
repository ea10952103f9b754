# SPDX-License-Identifier: MIT
import collections
import os
import pathlib

import numpy as np
import pytest

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
    """Of tests that hang on what auto takes at first: on what the library's own steps are reckoned to take, which a sanitizer changes."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("auto takes other methods there")


@pytest.fixture
def headers():
    """The folder of the public headers; tests that read them are skipped where the package is tested without the tree."""
    folder = ROOT / "include"
    if not (folder / "deeppcr" / "deeppcr.h").exists():
        pytest.skip("no headers beside the package")
    return folder
