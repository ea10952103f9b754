// SPDX-License-Identifier: MIT
// layers.h for double.
#include "kern/cuda/layers_run.h"

template struct layers::kinds<double>;
