// SPDX-License-Identifier: MIT
#include "nn/window.h"

#include <assert.h>

#include "kern/window.h"

static_assert(sizeof(dpcri_window_team) <= DPCR_WINDOW_TEAM_BYTES && DPCRI_TEAM_THREADS < DPCRI_TEAM_SLOTS,
              "a team has the room that callers give it");

bool dpcri_narrow_has_window(const dpcri_narrow *chain) {
    return dpcri_window_kernels_get(chain->dtype) && !chain->diagonal && chain->width <= DPCRI_NARROW_WIDTH &&
           dpcri_narrow_serves(chain);
}

int dpcri_narrow_window_threads(void) { return DPCRI_TEAM_THREADS; }

int dpcri_narrow_window(const dpcri_narrow *chain, const dpcr_span *span, const dpcr_array *in,
                        const dpcr_array *states, dpcr_window *window) {
    if (span->rows != 1 || span->lanes != 1) return 1;
    if (window->method != DPCR_METHOD_NEWTON && window->method != DPCR_METHOD_SHOOTING) return 1;
    dpcri_window w = {.method = window->method == DPCR_METHOD_NEWTON ? DPCRI_WINDOW_NEWTON : DPCRI_WINDOW_SHOOTING,
                      .atol = window->atol,
                      .rtol = window->rtol,
                      .max_sweeps = window->max_sweeps,
                      .team = window->team,
                      .closing = window->closing != 0};
    const dpcri_window_place place = {
        .first = span->first, .count = span->steps, .in = in->data, .states = states->data, .step = states->strides[1]};
    const int code = dpcri_window_kernels_get(chain->dtype)->solve(chain, &place, &w);
    window->sweeps = w.sweeps, window->good = w.good;
    window->residual = w.residual, window->estimate = w.estimate;
    return code;
}
