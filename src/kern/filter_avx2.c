// SPDX-License-Identifier: MIT
#include "kern/filter_level.h"
