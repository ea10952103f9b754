// SPDX-License-Identifier: MIT
// linear_large.h for uint32_t.
#include "kern/cuda/linear_large_run.h"

template struct large::kinds<uint32_t>;
