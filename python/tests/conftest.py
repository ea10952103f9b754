# SPDX-License-Identifier: MIT
import pathlib

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def headers():
    """The folder of the public headers; tests that read them are skipped where the package is tested without the tree."""
    folder = ROOT / "include"
    if not (folder / "deeppcr" / "deeppcr.h").exists():
        pytest.skip("no headers beside the package")
    return folder
