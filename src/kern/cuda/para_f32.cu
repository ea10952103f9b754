// SPDX-License-Identifier: MIT
// para.h for float.
#include "kern/cuda/para_run.h"

extern template struct gates::kinds<float>;
template struct gates::para_kinds<float>;
