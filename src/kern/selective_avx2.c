// SPDX-License-Identifier: MIT
#include "kern/selective_level.h"
