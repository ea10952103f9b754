#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# python.sh BUILD_DIR: the Python package's tests over the library of BUILD_DIR, with the system's python3. Those that want
# hypothesis, SciPy, PyTorch or JAX skip themselves where there is none. PYTHON: another interpreter.
set -u
build=$(cd "${1:?usage: python.sh BUILD_DIR}" && pwd)
python=${PYTHON:-python3}
# A python3 of the user's own may stand before Debian's, which install-deps gives what the tests want.
if [ -z "${PYTHON:-}" ] && ! python3 -c 'import numpy, pytest' 2>/dev/null && [ -x /usr/bin/python3 ]; then python=/usr/bin/python3; fi
command -v "$python" >/dev/null || { echo "python: no $python"; exit 77; }
"$python" -c 'import numpy, pytest' 2>/dev/null || { echo "python: $python has no numpy or no pytest"; exit 77; }
[ -f "$build/libdeeppcr.so" ] || { echo "python: no $build/libdeeppcr.so"; exit 1; }
export DEEPPCR_LIBRARY=$build/libdeeppcr.so PYTHONPATH=$PWD/python/src PYTHONDONTWRITEBYTECODE=1
if grep -qsE '^DEEPPCR_SANITIZE:STRING=.*address' "$build/CMakeCache.txt"; then
    # The interpreter is not instrumented and leaks on purpose; what others' libraries throw goes through the C++ runtime.
    # Its own small blocks have to come from malloc, or what is written past a structure of ctypes is not seen.
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)"
    export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc
    export DEEPPCR_TEST_ONE_OF=${DEEPPCR_TEST_ONE_OF:-8}  # most of the time is PyTorch's; calls differ little by case
elif grep -qsE '^DEEPPCR_SANITIZE:STRING=.+' "$build/CMakeCache.txt"; then
    echo "python: this sanitizer wants an interpreter of its own"
    exit 77
fi
exec "$python" -m pytest -q -p no:cacheprovider -rs python/tests
