// SPDX-License-Identifier: MIT
// The callback `adjoint` of chains of narrow steps, on the kernels of kern/adjoint.h.
#ifndef DPCRI_NN_ADJOINT_H
#define DPCRI_NN_ADJOINT_H

#include "deeppcr/solve.h"
#include "kern/adjoint.h"

// [lanes][steps][rows][w], or [lanes][rows][w].
static inline dpcri_grid dpcri_grid_of(const dpcr_array *array) {
    if (!array || !array->data) return (dpcri_grid){0};
    if (array->ndim == 3) return (dpcri_grid){array->data, array->strides[0], 0, array->strides[1]};
    return (dpcri_grid){array->data, array->strides[0], array->strides[1], array->strides[2]};
}

// The same from lane c, step k, row r on.
static inline dpcri_grid dpcri_grid_at(dpcri_grid grid, int64_t c, int64_t k, int64_t r, size_t element) {
    if (grid.data) grid.data = (char *)grid.data + (c * grid.lane + k * grid.step + r * grid.row) * (int64_t)element;
    return grid;
}

// act'(u) of steps first .. first + count - 1 and rows row .. row + rows - 1 at the states that go in: in.step and
// to.step from one step to the next.
typedef void dpcri_slopes_function(const void *user, int64_t first, int64_t count, int64_t row, int64_t rows,
                                   dpcri_grid in, dpcri_grid to);

// dpcr_steps.adjoint of a chain that dpcri_adjoint_serves: slopes from the tape, or without one from `slopes`. With a
// tape and no place for the adjoint states, e = scale slope g goes to the tape.
void dpcri_narrow_adjoint(const dpcri_narrow *chain, dpcri_slopes_function *slopes, const void *user,
                          const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape, const dpcr_array *direct,
                          const dpcr_array *last, const dpcr_array *kept, const dpcr_array *first_out);

// Whether dpcri_narrow_adjoint_window serves chains of this form, and the measured seconds of a step.
bool dpcri_narrow_has_adjoint_window(const dpcri_narrow *chain);
double dpcri_narrow_adjoint_window_seconds(const dpcri_narrow *chain);
// dpcr_steps.adjoint_window_steps and dpcr_steps.adjoint_window.
int64_t dpcri_narrow_adjoint_window_steps(const dpcri_narrow *chain);
int dpcri_narrow_adjoint_window(const dpcri_narrow *chain, dpcri_slopes_function *slopes, const void *user,
                                const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                                const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                                const dpcr_array *first_out, const dpcr_handover *handover);

#endif
