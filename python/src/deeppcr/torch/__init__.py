# SPDX-License-Identifier: MIT
"""For PyTorch, on the CPU: `RNN`, `GRU` and `LSTM` for torch.nn's, `ParaGRU`, `ParaLSTM`, `MinGRU`, `Chain` for deep stacks,
`linear_chain`, `selective_scan` and `mamba2_scan`, `linear_attention` and `gated_delta_rule`, and the filters `sosfilt` and `lfilter`;
all with gradients."""
from .attention import gated_delta_rule, linear_attention
from .chain import Chain
from .linear import linear_chain
from .recurrent import GRU, LSTM, RNN, MinGRU, ParaGRU, ParaLSTM, from_torch, replace_in
from .selective import mamba2_scan, selective_scan
from .signal import lfilter, sosfilt

__all__ = [
    "Chain", "GRU", "LSTM", "MinGRU", "ParaGRU", "ParaLSTM", "RNN", "from_torch", "gated_delta_rule", "lfilter", "linear_attention",
    "linear_chain", "mamba2_scan", "replace_in", "selective_scan", "sosfilt",
]  # fmt: skip
