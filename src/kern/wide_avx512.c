// SPDX-License-Identifier: MIT
#include "kern/wide_level.h"
