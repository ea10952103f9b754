// SPDX-License-Identifier: MIT
#include "kern/narrow_level.h"
