# SPDX-License-Identifier: MIT
"""The package under mypy, as strict as pyproject.toml says."""
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("mypy")


@pytest.mark.skipif(np.__version__.startswith("1."), reason="NumPy 1's own types are other ones")
def test_types(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
    run = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=ROOT / "python", env=environment, text=True,
                         capture_output=True)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
