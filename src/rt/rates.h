// SPDX-License-Identifier: MIT
// The machine's rates where nobody may wait for their measurement.
#ifndef DPCRI_RATES_H
#define DPCRI_RATES_H

#include <stdbool.h>

#include "base/base.h"

// Seconds of an empty parallel region that plans count at least (context.c: a host may move virtual processors apart).
#define DPCRI_LEAST_REGION 0.85e-6

// Without measuring any: those that are known, else such as processors of this level usually reach.
void dpcri_rates_at_hand(dpcr_context *context, dpcr_machine *machine);
// Whether any are known, and those.
bool dpcri_rates_known(dpcr_context *context, dpcr_machine *machine);
dpcr_machine dpcri_rates_usual(const dpcr_context *context);

// What no thread of the level exceeds, float32 multiply-adds, in flops a second.
double dpcri_rates_peak(void);

#endif
