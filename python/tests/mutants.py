# SPDX-License-Identifier: MIT
"""Shows that the property tests can fail: each line below is a mistake put into a copy of the package, which they have to find.

    DEEPPCR_LIBRARY=build/libdeeppcr.so python3 python/tests/mutants.py

With hypothesis, PyTorch and JAX where its tests want them. Prints what each mistake did; ends with 1 where one was not found."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (file, what stands there, what is put there, the test that has to fail)
MUTANTS = [
    ("_library.py", "    if ok:\n        return array", "    if True:\n        return array", "test_linear_chain"),
    ("_library.py", "ok = ok and array.strides[axis] == step", "pass", "test_linear_chain"),
    ("_library.py", 'return np.dtype(dtype.newbyteorder("="))', "return np.dtype(np.float64)", "test_dtypes_of_a_chain"),
    ("_library.py", "return made if made.flags.c_contiguous and made.flags.aligned", "return made if True", "test_a_sequence_runs_as_if_alone"),
    ("linear.py", "key = (A.shape, A.strides, A.dtype, b.shape, b.strides", "key = (A.shape, A.dtype, b.shape", "test_linear_chain"),
    ("linear.py", "if _unchanged(((p.a, A), (p.b, b), (p.z0, z0))):", "if True:", "test_linear_chain"),
    ("linear.py", "z0 = library.numbers(z0.reshape(-1, width), 1)", "z0 = None", "test_linear_chain"),
    ("nonlinear.py", "z, l + k, s.row, (self.width,)", "z, l, s.row, (self.width,)", "test_solve"),
    ("recurrent.py", "_address(ends)", "0", "test_a_sequence_runs_as_if_alone"),
    ("signal.py", "y = np.moveaxis(y, -1, axis)", "pass", "test_filters"),
    ("signal.py", "zi_in(state, axis).reshape", "state.reshape", "test_filters"),
    ("signal.py", "key if x.flags.c_contiguous and x.flags.aligned and", "key if", "test_filters"),
    ("linear.py", "if lead[axis] == 1 and values.shape[axis] != 1:", "if False:", "test_gradients_of_a_chain"),
    ("torch/recurrent.py", "        x = plain(x)\n        if h0", "        if h0", "test_modules_of_pytorch"),
    ("jax.py", "x.reshape(self.length, *self.mapped, self.batch, *x.shape[2:]), 0, len(self.mapped)", "x.reshape(*self.mapped, self.length, self.batch, *x.shape[2:]), 0, 0", "test_chains_of_jax"),
]  # fmt: skip


def outcome(folder: pathlib.Path, test: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(ROOT / "tests" / "test_properties.py"), "-k", f"{test} or {test}["]
    return subprocess.run(command, env=environment, capture_output=True).returncode


def main() -> int:
    missed = 0
    for file, there, instead, test in MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "deeppcr"
            shutil.copytree(ROOT / "src" / "deeppcr", package)
            text = (package / file).read_text()
            if text.count(there) != 1:
                sys.exit(f"mutants: {file} has {there!r} {text.count(there)} times, wanted once")
            (package / file).write_text(text.replace(there, instead))
            code = outcome(pathlib.Path(folder), test)
        found = code == 1
        missed += not found
        print(f"{'found' if found else f'NOT FOUND ({code})'}: {file}: {instead!r} for {there!r}, by {test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
