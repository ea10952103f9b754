// SPDX-License-Identifier: MIT
#include "kern/para_level.h"
