// SPDX-License-Identifier: MIT
// adjoint.h for double.
#include "kern/cuda/adjoint_run.h"

template struct cells::backward_widths<double>;
