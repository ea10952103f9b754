// SPDX-License-Identifier: MIT
// para_back.h for double.
#include "kern/cuda/para_back_run.h"

extern template struct gates::kinds<double>;
extern template struct gates::back_kinds<double>;
template struct gates::para_back_kinds<double>;
