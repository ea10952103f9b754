// SPDX-License-Identifier: MIT
#include "kern/linear_level.h"
