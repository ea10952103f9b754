// SPDX-License-Identifier: MIT
// cells.h for float.
#include "kern/cuda/cells_run.h"

template struct cells::widths<float>;
