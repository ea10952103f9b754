// SPDX-License-Identifier: MIT
// gates.h for double.
#include "kern/cuda/gates_run.h"

template struct gates::kinds<double>;
