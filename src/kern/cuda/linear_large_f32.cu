// SPDX-License-Identifier: MIT
// linear_large.h for float.
#include "kern/cuda/linear_large_run.h"

template struct large::kinds<float>;
