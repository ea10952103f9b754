# SPDX-License-Identifier: MIT
"""The package under mypy, as strict as pyproject.toml says."""
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

pytest.importorskip("mypy")
pytestmark = pytest.mark.skipif(np.__version__.startswith("1."), reason="NumPy 1's own types are other ones")


def test_types(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
    run = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=ROOT / "python", env=environment, text=True,
                         capture_output=True)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


USER = '''
from typing import Any, Tuple
import numpy as np
import numpy.typing as npt
import deeppcr
from deeppcr import recurrent, signal

Numbers = npt.NDArray[Any]
A, b = np.full((4, 2, 2), 0.3), np.ones((4, 2))
z: Numbers = deeppcr.linear_chain(A, b)
told: Tuple[Numbers, deeppcr.ChainReport] = deeppcr.linear_chain(A, b, report=True)
dA, db, dz0 = deeppcr.linear_chain_vjp(A, z, b)
dz: Numbers = deeppcr.linear_chain_jvp(A, z, dA)
method: str = deeppcr.plan(lambda z, l: 0.5 * z, b[0], 50).method
length: int = deeppcr.plan("linear", length=5).length
sweeps: int = deeppcr.solve(lambda z, l: 0.5 * z, b[0], 50).report.sweeps
y: Numbers = signal.sosfilt(np.ones((1, 6)), b)
y, zf = signal.lfilter([1.0], [1.0, 0.5], b, zi=np.zeros((4, 1)))
h: Numbers = recurrent.GRU(2, 3)(b)[1]
last: Tuple[Numbers, Numbers] = recurrent.LSTM(2, 3)(b)[1]
u, D, V = np.ones((1, 2, 4)), np.ones((2, 3)), np.ones((1, 3, 4))
scanned: Numbers = deeppcr.selective_scan(u, u, -D, V, V)
both: Tuple[Numbers, Numbers] = deeppcr.selective_scan(u, u, -D, V, V, return_last_state=True)
gu: Numbers = deeppcr.selective_scan_vjp(u, u, -D, V, V, scanned).u
q, v = np.ones((1, 4, 2, 3)), np.ones((1, 4, 2, 5))
read: Numbers = deeppcr.linear_attention(q, q, v)
with_states: Tuple[Numbers, Numbers] = deeppcr.linear_attention(q, q, v, return_final_state=True)
gv: Numbers = deeppcr.linear_attention_vjp(q, q, v, read).v
threads: int = deeppcr.threads()
try:
    deeppcr.set_threads(2)
except deeppcr.ArgumentError as error:
    print(error.what, error.got, error.wanted)
none: str = deeppcr.linear_chain(A, b)  # type: ignore[assignment]
none = signal.sosfilt(np.ones((1, 6)), b)  # type: ignore[assignment]
none = recurrent.GRU(2, 3)(b)[1]  # type: ignore[assignment]
none = deeppcr.selective_scan(u, u, -D, V, V, return_last_state=True)  # type: ignore[assignment]
none = deeppcr.linear_attention(q, q, v, return_final_state=True)  # type: ignore[assignment]
none = deeppcr.linear_attention_vjp(q, q, v, read).g  # type: ignore[assignment]
deeppcr.plan("linear", length=5).method  # type: ignore[attr-defined]
'''


def test_types_of_who_uses_it(tmp_path):
    """Strict, and without a cast: what an argument decides, types know."""
    (tmp_path / "user.py").write_text(USER)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")}
    environment["MYPYPATH"] = str(ROOT / "python" / "src")
    run = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(tmp_path / "user.py")],
                         cwd=tmp_path, env=environment, text=True, capture_output=True)  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
