#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# setup.sh: a virtual environment with the current releases of the libraries that the benchmarks compare with, from PyPI by
# pip as it is configured. In bench/peers/.venv, or in DEEPPCR_PEERS_VENV. A second run changes nothing that is there;
# `setup.sh --upgrade` takes newer releases. Prints the versions.
set -euo pipefail
cd "$(dirname "$0")"
venv=${DEEPPCR_PEERS_VENV:-$PWD/.venv}
packages=(numpy torch jax onnx onnxruntime transformers)
case "$*" in
    '' | --upgrade) ;;
    *) echo "setup.sh: '$*' is no option; there is --upgrade" >&2; exit 2 ;;
esac

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
present() { "$venv/bin/python" -c 'import importlib.metadata as m, sys; [m.version(p) for p in sys.argv[1:]]' "${packages[@]}" 2>/dev/null; }
if [ "${1:-}" = --upgrade ] || ! present; then
    "$venv/bin/python" -m pip install --quiet --upgrade "${packages[@]}"
fi
"$venv/bin/python" -c '
import importlib.metadata as m, platform, sys
print("python", platform.python_version())
for package in sys.argv[1:]:
    print(package, m.version(package))' "${packages[@]}"
