# SPDX-License-Identifier: MIT
"""What reports draw on."""
from __future__ import annotations

from typing import Any


def axes_or_new(axes: Any) -> Any:
    """matplotlib's Axes: those given, or a new figure's."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
