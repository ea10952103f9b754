// SPDX-License-Identifier: MIT
#include "kern/narrow_rows_level.h"
