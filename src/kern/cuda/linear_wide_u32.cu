// SPDX-License-Identifier: MIT
// linear.h for widths 9 to 16, uint32_t.
#include "kern/cuda/linear_widths.h"

DPCRI_LINEAR_WIDE(, uint32_t);
