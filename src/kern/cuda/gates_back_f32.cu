// SPDX-License-Identifier: MIT
// gates_back.h for float.
#include "kern/cuda/gates_back_run.h"

extern template struct gates::kinds<float>;
template struct gates::back_kinds<float>;
