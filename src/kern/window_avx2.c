// SPDX-License-Identifier: MIT
#include "kern/window_level.h"
