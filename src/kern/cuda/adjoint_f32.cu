// SPDX-License-Identifier: MIT
// adjoint.h for float.
#include "kern/cuda/adjoint_run.h"

template struct cells::backward_widths<float>;
