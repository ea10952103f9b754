// SPDX-License-Identifier: MIT
// gates.h for float.
#include "kern/cuda/gates_run.h"

template struct gates::kinds<float>;
