# SPDX-License-Identifier: MIT
"""Sequential computations, solved in parallel over their length.

`linear_chain` and `solve` run chains z_l = f_l(z_{l-1}); `plan` says how and why; `selective_scan` is that of state-space models,
`linear_attention` that of the delta rule and its kin;
`recurrent` has RNN, GRU and LSTM over NumPy, `signal` filters. `torch` and `jax` are modules for those frameworks, which are
looked for when they are imported.
"""
__version__ = "0.1.0"  # before the modules, which want a library of it

from . import recurrent, signal
from ._library import flush_denormals, set_threads, threads
from .attention import AttentionGradients, linear_attention, linear_attention_vjp
from .errors import ArgumentError, Error, NotConverged, OutOfMemory, RunError, UnsupportedError
from .linear import ChainReport, linear_chain, linear_chain_jvp, linear_chain_vjp
from .nonlinear import Report, Solution, plan, solve
from .selective import SelectiveGradients, selective_scan, selective_scan_vjp

__all__ = [
    "ArgumentError", "AttentionGradients", "ChainReport", "Error", "NotConverged", "OutOfMemory", "Report", "RunError", "Solution",
    "SelectiveGradients", "UnsupportedError", "flush_denormals", "linear_attention", "linear_attention_vjp", "linear_chain", "linear_chain_jvp", "linear_chain_vjp", "plan",
    "recurrent", "selective_scan", "selective_scan_vjp", "set_threads", "signal", "solve", "threads",
]  # fmt: skip
