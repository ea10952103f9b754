// SPDX-License-Identifier: MIT
// linear.h for widths 1 to 8, float.
#include "kern/cuda/linear_widths.h"

DPCRI_LINEAR_NARROW(, float);
