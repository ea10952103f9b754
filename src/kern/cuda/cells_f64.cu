// SPDX-License-Identifier: MIT
// cells.h for double.
#include "kern/cuda/cells_run.h"

template struct cells::widths<double>;
