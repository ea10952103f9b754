// SPDX-License-Identifier: MIT
#include "kern/train_level.h"
