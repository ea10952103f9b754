// SPDX-License-Identifier: MIT
#include "kern/chunked_level.h"
