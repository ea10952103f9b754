// SPDX-License-Identifier: MIT
// Without a tape a few lanes go at a time, a block of steps from the right: their slopes first, side by side.
#include "nn/adjoint.h"

#include <string.h>

#include "kern/window.h"
#include "rt/core.h"

enum { NUMBERS = 12288, LEAST_STEPS = 16 };  // of the slopes and of g between blocks, on the stack

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Lanes c .. c + run->lanes - 1, rows row .. row + run->rows - 1 of the span.
static void untaped(const dpcri_narrow *chain, dpcri_slopes_function *slopes, const void *user,
                    const dpcri_adjoint_run *run, dpcri_grid in, int64_t row, double *buffer) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(chain->dtype);
    const size_t element = dpcr_dtype_size(chain->dtype);
    const int64_t w = chain->width, unit = run->rows * w, pairs = run->lanes * run->rows;
    const int64_t block = (NUMBERS - pairs * w) / (pairs * w);
    const dpcri_grid carry = {buffer, unit, 0, w};
    dpcri_adjoint_run part = *run;
    for (int64_t end = run->steps; end > 0; end -= part.steps) {
        const int64_t begin = end > block ? end - block : 0;
        part.steps = end - begin;
        part.first = run->first + begin;
        part.slope = (dpcri_grid){(char *)buffer + (size_t)(pairs * w) * element, part.steps * unit, unit, w};
        for (int64_t c = 0; c < run->lanes; c++)
            slopes(user, part.first + c * run->stride, part.steps, row, run->rows,
                   dpcri_grid_at(in, c, begin, 0, element), dpcri_grid_at(part.slope, c, 0, 0, element));
        part.direct = dpcri_grid_at(run->direct, 0, begin, 0, element);
        part.kept = dpcri_grid_at(run->kept, 0, begin, 0, element);
        part.first_out = begin ? carry : run->first_out;
        k->run(chain, &part);
        part.last = carry;
    }
}

void dpcri_narrow_adjoint(const dpcri_narrow *chain, dpcri_slopes_function *slopes, const void *user,
                          const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape, const dpcr_array *direct,
                          const dpcr_array *last, const dpcr_array *kept, const dpcr_array *first_out) {
    const size_t element = dpcr_dtype_size(chain->dtype);
    const dpcri_adjoint_run whole = {.first = span->first,
                                     .lanes = span->lanes,
                                     .stride = span->stride,
                                     .steps = span->steps,
                                     .rows = span->rows,
                                     .slope = dpcri_grid_of(tape),
                                     .direct = dpcri_grid_of(direct),
                                     .kept = dpcri_grid_of(kept),
                                     .e = kept && kept->data ? (dpcri_grid){0} : dpcri_grid_of(tape),
                                     .last = dpcri_grid_of(last),
                                     .first_out = dpcri_grid_of(first_out)};
    if (whole.slope.data || span->steps == 0) {
        dpcri_adjoint_kernels_get(chain->dtype)->run(chain, &whole);
        return;
    }
    _Alignas(64) double buffer[NUMBERS];
    const int64_t most = NUMBERS / (LEAST_STEPS * chain->width);  // lanes and rows together
    const int64_t rows = most < 1 ? 1 : least(most, span->rows),
                  lanes = most < rows ? 1 : least(most / rows, span->lanes);
    const dpcri_grid from = dpcri_grid_of(in);
    for (int64_t c = 0; c < span->lanes; c += lanes)
        for (int64_t r = 0; r < span->rows; r += rows) {
            dpcri_adjoint_run part = whole;
            part.first = span->first + c * span->stride;
            part.lanes = least(lanes, span->lanes - c), part.rows = least(rows, span->rows - r);
            part.direct = dpcri_grid_at(whole.direct, c, 0, r, element);
            part.kept = dpcri_grid_at(whole.kept, c, 0, r, element);
            part.last = dpcri_grid_at(whole.last, c, 0, r, element);
            part.first_out = dpcri_grid_at(whole.first_out, c, 0, r, element);
            untaped(chain, slopes, user, &part, dpcri_grid_at(from, c, 0, r, element), span->row + r, buffer);
        }
}

// ---- by composing ----

bool dpcri_narrow_has_adjoint_window(const dpcri_narrow *chain) {
    return dpcri_window_kernels_get(chain->dtype) && !chain->diagonal && chain->width <= DPCRI_NARROW_WIDTH &&
           dpcri_adjoint_serves(chain);
}

double dpcri_narrow_adjoint_window_seconds(const dpcri_narrow *chain) {
    const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_get(chain->dtype);
    return dpcri_kernels_slower().windows * k->window_seconds[chain->weight_step != 0][chain->width];
}

int64_t dpcri_narrow_adjoint_window_steps(const dpcri_narrow *chain) {
    return dpcri_window_kernels_get(chain->dtype)->adjoint_steps[chain->width];
}

// Without a tape in blocks, whose borders are windows' borders too: the same numbers.
int dpcri_narrow_adjoint_window(const dpcri_narrow *chain, dpcri_slopes_function *slopes, const void *user,
                                const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                                const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                                const dpcr_array *first_out, const dpcr_handover *handover) {
    enum { BLOCK = 2048 };
    const dpcri_grid parts = dpcri_grid_of(direct), to = dpcri_grid_of(kept), from = dpcri_grid_of(in);
    const dpcri_grid taped = dpcri_grid_of(tape);
    const size_t element = dpcr_dtype_size(chain->dtype);
    const int64_t w = chain->width, block = taped.data ? span->steps : BLOCK;
    if (span->lanes != 1 || span->rows != 1 || parts.data == to.data) return 1;
    _Alignas(64) double buffer[BLOCK * DPCRI_NARROW_WIDTH], g[DPCRI_NARROW_WIDTH];
    for (int64_t end = span->steps; end > 0;) {
        const int64_t begin = end > block ? end - block : 0;
        dpcri_grid slope = dpcri_grid_at(taped, 0, begin, 0, element);
        if (!slope.data) {
            slope = (dpcri_grid){buffer, 0, w, w};
            slopes(user, span->first + begin, end - begin, span->row, 1, dpcri_grid_at(from, 0, begin, 0, element),
                   slope);
        }
        const bool first = end == span->steps, final = begin == 0;
        const dpcri_window_adjoint a = {.first = span->first + begin,
                                        .count = end - begin,
                                        .slope = slope.data,
                                        .slope_step = slope.step,
                                        .direct = dpcri_grid_at(parts, 0, begin, 0, element).data,
                                        .direct_step = parts.step,
                                        .last = first ? last->data : g,
                                        .adjoint = dpcri_grid_at(to, 0, begin, 0, element).data,
                                        .adjoint_step = to.step,
                                        .first_out = !final      ? g
                                                     : first_out ? first_out->data
                                                                 : NULL,
                                        .hear = first && handover ? handover->hear : NULL,
                                        .tell = final && handover ? handover->tell : NULL,
                                        .user = handover ? handover->user : NULL};
        if (dpcri_window_kernels_get(chain->dtype)->adjoint(chain, &a) != 0) return 1;
        end = begin;
    }
    return 0;
}
