// SPDX-License-Identifier: MIT
// linear_large.h for double.
#include "kern/cuda/linear_large_run.h"

template struct large::kinds<double>;
