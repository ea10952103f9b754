// SPDX-License-Identifier: MIT
// gates_back.h for double.
#include "kern/cuda/gates_back_run.h"

extern template struct gates::kinds<double>;
template struct gates::back_kinds<double>;
