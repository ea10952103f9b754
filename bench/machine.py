# SPDX-License-Identifier: MIT
"""What the scripts that measure share: the machine's name, the commit, surroundings without presets, programs that have to be there."""
import os
import pathlib
import platform
import shutil
import subprocess
import sys

PRESETS = ("OPENBLAS_", "NVPL_", "MKL_", "BLIS_", "ATEN_", "DNNL_", "ONEDNN_", "XLA_", "JAX_", "OMP_", "KMP_", "GOMP_", "DEEPPCR_ISA")
HERE = pathlib.Path(__file__).resolve().parent


def processor():
    """As `deeppcr info` names it: virtual machines call processors of several generations by one name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            cpu = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    except OSError:
        cpu = {}
    if "model name" not in cpu:
        return platform.processor() or platform.machine()
    return f"{cpu['model name']} (family {cpu.get('cpu family', '?')} model {cpu.get('model', '?')})"


def commit():
    """The commit that is measured, "-dirty" where anything but measurements and their tables differs from it."""
    name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout.strip()
    own = [":(top)", ":(top,exclude)bench/results", ":(top,exclude)docs"]
    keep = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no", "--", *own], capture_output=True, text=True, env=keep, cwd=HERE).stdout
    return f"{name}-dirty" if changed else name or "unknown"


def surroundings():
    """The environment without what presets libraries' kernels and threads."""
    return {k: v for k, v in os.environ.items() if not k.startswith(PRESETS)}


def wants(program):
    """Ends the script where the program is not there."""
    if not shutil.which(program):
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: no {program}: cmake --build makes it")


def programs(build, name):
    """(BUILD/NAME, the peers' interpreter), or an end that says how to make what is missing."""
    python = pathlib.Path(os.environ.get("DEEPPCR_PEERS_VENV", HERE / "peers" / ".venv")) / "bin" / "python"
    program = pathlib.Path(build) / name
    for path, how in ((program, "cmake -DDEEPPCR_BENCH=ON"), (python, "bench/peers/setup.sh")):
        if not path.exists():
            sys.exit(f"{pathlib.Path(sys.argv[0]).name}: no {path}: {how} makes it")
    return program, python
