// SPDX-License-Identifier: MIT
// layers.h for float.
#include "kern/cuda/layers_run.h"

template struct layers::kinds<float>;
