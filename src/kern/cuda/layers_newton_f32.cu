// SPDX-License-Identifier: MIT
// layers_newton.h for float.
#include "kern/cuda/layers_newton_run.h"

template struct layers::newton_kinds<float>;
