// SPDX-License-Identifier: MIT
// para.h for double.
#include "kern/cuda/para_run.h"

extern template struct gates::kinds<double>;
template struct gates::para_kinds<double>;
