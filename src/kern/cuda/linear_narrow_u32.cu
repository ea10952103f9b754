// SPDX-License-Identifier: MIT
// linear.h for widths 1 to 8, uint32_t.
#include "kern/cuda/linear_widths.h"

DPCRI_LINEAR_NARROW(, uint32_t);
