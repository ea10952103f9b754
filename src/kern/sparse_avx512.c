// SPDX-License-Identifier: MIT
#include "kern/sparse_level.h"
