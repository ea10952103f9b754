# SPDX-License-Identifier: MIT
"""For PyTorch, on the CPU: `RNN`, `GRU` and `LSTM` for torch.nn's, and `linear_chain`, all with gradients."""
from .linear import linear_chain
from .recurrent import GRU, LSTM, RNN, from_torch, replace_in

__all__ = ["GRU", "LSTM", "RNN", "from_torch", "linear_chain", "replace_in"]
