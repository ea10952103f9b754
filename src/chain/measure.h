// SPDX-License-Identifier: MIT
#ifndef DPCRI_CHAIN_MEASURE_H
#define DPCRI_CHAIN_MEASURE_H

#include "chain/plan.h"

// Decides an AUTO scheme from wisdom or by timing; fills scheme, chunk and warm_up of plan->options and the sentence.
// False: neither knows (or memory was refused), nothing is changed.
bool dpcri_chain_recall(dpcr_chain_plan *plan);
bool dpcri_chain_measure(dpcr_chain_plan *plan);

#endif
