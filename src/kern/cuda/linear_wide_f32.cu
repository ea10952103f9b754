// SPDX-License-Identifier: MIT
// linear.h for widths 9 to 16, float.
#include "kern/cuda/linear_widths.h"

DPCRI_LINEAR_WIDE(, float);
