# SPDX-License-Identifier: MIT
"""For PyTorch, on the CPU: `RNN`, `GRU` and `LSTM` for torch.nn's, `Chain` for deep stacks, `linear_chain`; all with gradients."""
from .chain import Chain
from .linear import linear_chain
from .recurrent import GRU, LSTM, RNN, from_torch, replace_in

__all__ = ["Chain", "GRU", "LSTM", "RNN", "from_torch", "linear_chain", "replace_in"]
