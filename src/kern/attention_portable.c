// SPDX-License-Identifier: MIT
#include "kern/attention_level.h"
