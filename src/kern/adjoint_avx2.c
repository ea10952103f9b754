// SPDX-License-Identifier: MIT
#include "kern/adjoint_level.h"
