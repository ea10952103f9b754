// SPDX-License-Identifier: MIT
// para_back.h for float.
#include "kern/cuda/para_back_run.h"

extern template struct gates::kinds<float>;
extern template struct gates::back_kinds<float>;
template struct gates::para_back_kinds<float>;
