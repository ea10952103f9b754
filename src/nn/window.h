// SPDX-License-Identifier: MIT
// The callback `window` of chains of narrow steps.
#ifndef DPCRI_NN_WINDOW_H
#define DPCRI_NN_WINDOW_H

#include "deeppcr/solve.h"
#include "kern/narrow.h"

// Whether dpcri_narrow_window serves chains of this form.
bool dpcri_narrow_has_window(const dpcri_narrow *chain);
// dpcr_steps.window_threads.
int dpcri_narrow_window_threads(void);
// dpcr_steps.window for one sequence, whose biases begin at chain->bias.
int dpcri_narrow_window(const dpcri_narrow *chain, const dpcr_span *span, const dpcr_array *in,
                        const dpcr_array *states, dpcr_window *window);

#endif
