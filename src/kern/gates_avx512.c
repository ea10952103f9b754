// SPDX-License-Identifier: MIT
#include "kern/gates_level.h"
