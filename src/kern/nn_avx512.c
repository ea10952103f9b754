// SPDX-License-Identifier: MIT
#include "kern/nn_level.h"
