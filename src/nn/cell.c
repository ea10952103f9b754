// SPDX-License-Identifier: MIT
// Recurrent cells as chains: the callbacks. Narrow dense cells and all diagonal ones run on the narrow kernels, dense
// ones of one W up to 64 wide on those of fused layers, others by products over rows. Backward: e = s act'(u) g, then
// W^T e down the chain, e into the input's gradient, e z^T into a step's own weights'. Derivation: docs/math/cells.md.
#include "base/checksum.h"
#include "deeppcr/cell.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/adjoint.h"
#include "nn/device.h"
#include "nn/window.h"
#include "rt/core.h"
#include "solve/solve_internal.h"

enum { WIDEST = 4096, STACK_VALUES = 3 * WIDEST, TURNED_WIDTH = 64 };

struct dpcr_cell {
    dpcr_context *context;
    dpcr_cell_options options;  // every default filled in
    dpcri_narrow narrow;
    const dpcri_nn_kernels *kernels;
    bool own, narrow_advance, narrow_linearise, turned;
    int64_t values;  // of a step's Jacobian, and of its weights
};

// Rows of an array at [i] or [i][k]; the last dimension is contiguous.
static char *place(const dpcr_array *array, int64_t i, int64_t k, int64_t row) {
    if (!array || !array->data) return NULL;
    const int64_t at = array->ndim == 4 ? i * array->strides[0] + k * array->strides[1] + row * array->strides[2]
                                        : i * array->strides[0] + row * array->strides[1];
    return (char *)array->data + at * (int64_t)dpcr_dtype_size(array->dtype);
}

static int64_t stride_of(const dpcr_array *array, int from_last) {
    return array && array->data && array->ndim > from_last ? array->strides[array->ndim - 1 - from_last] : 0;
}

static const char *weight_of(const dpcr_cell *c, int64_t step) {
    return (const char *)c->narrow.weight + step * c->narrow.weight_step * (int64_t)c->kernels->element;
}

static const char *input_of(const dpcr_cell *c, int64_t step, int64_t row) {
    return (const char *)c->narrow.bias +
           (step * c->narrow.bias_step + row * c->narrow.bias_row) * (int64_t)c->kernels->element;
}

static bool on_device(const dpcr_cell_options *o) {
    return o->weight.device.type != 0 && o->weight.device.type != DPCR_HOST;
}

// Where all its arrays have to lie.
static dpcr_device place_of(const dpcr_cell_options *o) {
    return on_device(o) ? o->weight.device : (dpcr_device){.type = DPCR_HOST};
}

// ---- forward ----

// One step of one sequence by products: out and slope may be NULL; out may be `in`.
static void wide_step(const dpcr_cell *c, int64_t step, int64_t row, const void *in, void *out, void *slope) {
    _Alignas(64) double u[WIDEST];
    const dpcri_nn_kernels *k = c->kernels;
    const int64_t w = c->options.width;
    if (c->options.kind == DPCR_CELL_DIAGONAL)
        k->multiply_add(1, w, input_of(c, step, row), w, 1, weight_of(c, step), w, in, w, u, w);
    else
        k->product_transposed(&(dpcri_product){.m = 1,
                                               .n = w,
                                               .depth = w,
                                               .a = in,
                                               .a_row = w,
                                               .a_col = 1,
                                               .b = weight_of(c, step),
                                               .b_row = w,
                                               .init = input_of(c, step, row),
                                               .init_row = w,
                                               .c = u,
                                               .c_row = w});
    k->activate(c->narrow.activation, w, u, u, slope);
    if (out && c->narrow.residual)
        k->multiply_add(1, w, in, w, c->narrow.scale, u, w, NULL, 0, out, w);
    else if (out)
        memcpy(out, u, (size_t)w * k->element);
}

// One W for all steps, as the kernels of fused layers want it: [in][out], a call's own, and readable a vector beyond.
typedef struct turned_weight {
    _Alignas(64) double values[TURNED_WIDTH * TURNED_WIDTH + 8];
} turned_weight;

static dpcri_forward_steps turned_call(const dpcr_cell *c, int64_t step, int64_t stride, int64_t row,
                                       turned_weight *w) {
    const int64_t width = c->options.width;
    const size_t element = c->kernels->element;
    c->kernels->transpose(width, width, c->narrow.weight, width, w->values, width);
    memset((char *)w->values + (size_t)(width * width) * element, 0, 64);
    return (dpcri_forward_steps){.width = width,
                                 .activation = c->narrow.activation,
                                 .residual = c->narrow.residual,
                                 .scale = c->narrow.scale,
                                 .parameters = {w->values, 0, 0, 0},
                                 .bias = {(void *)(uintptr_t)input_of(c, step, row), stride * c->narrow.bias_step,
                                          c->narrow.bias_step, c->narrow.bias_row}};
}

static int advance_turned(const dpcr_cell *c, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                          const dpcr_array *last, const dpcr_array *tape) {
    turned_weight w;
    dpcri_forward_steps call = turned_call(c, span->first, span->stride, span->row, &w);
    call.lanes = span->lanes, call.steps = span->steps, call.rows = span->rows;
    call.in = dpcri_grid_of(in), call.states = dpcri_grid_of(states), call.last = dpcri_grid_of(last);
    call.tape = dpcri_grid_of(tape);
    c->kernels->forward_steps(&call);
    return 0;
}

static int advance_wide(const dpcr_cell *c, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                        const dpcr_array *last, const dpcr_array *tape) {
    _Alignas(64) double z[WIDEST];
    const size_t bytes = (size_t)c->options.width * c->kernels->element;
    for (int64_t lane = 0; lane < span->lanes; lane++)
        for (int64_t r = 0; r < span->rows; r++) {
            memcpy(z, place(in, lane, 0, r), bytes);
            for (int64_t k = 0; k < span->steps; k++) {
                wide_step(c, span->first + lane * span->stride + k, span->row + r, z, z, place(tape, lane, k, r));
                if (states && states->data) memcpy(place(states, lane, k, r), z, bytes);
            }
            if (last && last->data) memcpy(place(last, lane, 0, r), z, bytes);
        }
    return 0;
}

// The narrow chain of the sequences from span->row on.
static dpcri_narrow narrow_of(const dpcr_cell *c, const dpcr_span *span) {
    dpcri_narrow n = c->narrow;
    n.bias = input_of(c, 0, span->row);
    return n;
}

static int window(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                  dpcr_window *result) {
    const dpcri_narrow n = narrow_of(user, span);
    return dpcri_narrow_window(&n, span, in, states, result);
}

static int advance(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *states,
                   const dpcr_array *last, const dpcr_array *tape) {
    const dpcr_cell *c = user;
    if (c->turned) return advance_turned(c, span, in, states, last, tape);
    if (!c->narrow_advance) return advance_wide(c, span, in, states, last, tape);
    const dpcri_narrow n = narrow_of(c, span);
    dpcri_narrow_kernels_get(n.dtype)->advance(&n, &(dpcri_narrow_run){.first = span->first,
                                                                       .lanes = span->lanes,
                                                                       .stride = span->stride,
                                                                       .steps = span->steps,
                                                                       .rows = span->rows,
                                                                       .in = in->data,
                                                                       .in_lane = stride_of(in, 2),
                                                                       .in_row = stride_of(in, 1),
                                                                       .states = place(states, 0, 0, 0),
                                                                       .states_lane = stride_of(states, 3),
                                                                       .states_step = stride_of(states, 2),
                                                                       .states_row = stride_of(states, 1),
                                                                       .slopes = place(tape, 0, 0, 0),
                                                                       .slopes_lane = stride_of(tape, 3),
                                                                       .slopes_step = stride_of(tape, 2),
                                                                       .slopes_row = stride_of(tape, 1),
                                                                       .last = place(last, 0, 0, 0),
                                                                       .last_lane = stride_of(last, 2),
                                                                       .last_row = stride_of(last, 1)});
    return 0;
}

// act'(u) of steps first .. first + count - 1 and rows row .. row + rows - 1 at the states that go in: lanes of one
// step.
static void slopes_of(const void *user, int64_t first, int64_t count, int64_t row, int64_t rows, dpcri_grid in,
                      dpcri_grid to) {
    const dpcr_cell *c = user;
    const size_t element = c->kernels->element;
    if (c->turned) {
        turned_weight w;
        dpcri_forward_steps call = turned_call(c, first, 1, row, &w);
        call.lanes = count, call.steps = 1, call.rows = rows;
        call.in = in, call.in.lane = in.step;
        call.tape = to, call.tape.lane = to.step;
        c->kernels->forward_steps(&call);
        return;
    }
    if (!c->narrow_advance) {
        for (int64_t k = 0; k < count; k++)
            for (int64_t r = 0; r < rows; r++)
                wide_step(c, first + k, row + r, dpcri_grid_at(in, 0, k, r, element).data, NULL,
                          dpcri_grid_at(to, 0, k, r, element).data);
        return;
    }
    const dpcr_span span = {.row = row};
    const dpcri_narrow n = narrow_of(c, &span);
    dpcri_narrow_kernels_get(n.dtype)->advance(&n, &(dpcri_narrow_run){.first = first,
                                                                       .lanes = count,
                                                                       .stride = 1,
                                                                       .steps = 1,
                                                                       .rows = rows,
                                                                       .in = in.data,
                                                                       .in_lane = in.step,
                                                                       .in_row = in.row,
                                                                       .slopes = to.data,
                                                                       .slopes_lane = to.step,
                                                                       .slopes_row = to.row});
}

// a = s diag(slope) W, plus I with the residual.
static void jacobian_of(const dpcr_cell *c, int64_t step, const void *slope, void *a) {
    const int64_t w = c->options.width;
    if (c->options.kind == DPCR_CELL_DENSE) {
        c->kernels->scale_rows(w, w, c->narrow.scale, slope, weight_of(c, step), w, c->narrow.residual, a, w);
        return;
    }
    c->kernels->multiply_add(1, w, NULL, 0, c->narrow.scale, slope, w, weight_of(c, step), w, a, w);
    for (int64_t i = 0; c->narrow.residual && i < w; i++) {
        if (c->options.dtype == DPCR_F64)
            ((double *)a)[i] += 1;
        else
            ((float *)a)[i] += 1;
    }
}

static int linearise(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *f,
                     const dpcr_array *a) {
    const dpcr_cell *c = user;
    if (c->narrow_linearise) {
        const dpcri_narrow n = narrow_of(c, span);
        dpcri_narrow_kernels_get(n.dtype)->linearise(&n, &(dpcri_narrow_point){.first = span->first,
                                                                               .lanes = span->lanes,
                                                                               .stride = span->stride,
                                                                               .rows = span->rows,
                                                                               .in = in->data,
                                                                               .in_lane = stride_of(in, 2),
                                                                               .in_row = stride_of(in, 1),
                                                                               .f = place(f, 0, 0, 0),
                                                                               .f_lane = stride_of(f, 2),
                                                                               .f_row = stride_of(f, 1),
                                                                               .a = place(a, 0, 0, 0),
                                                                               .a_lane = stride_of(a, 2),
                                                                               .a_row = stride_of(a, 1)});
        return 0;
    }
    _Alignas(64) double slope[WIDEST];
    for (int64_t lane = 0; lane < span->lanes; lane++)
        for (int64_t r = 0; r < span->rows; r++) {
            const int64_t step = span->first + lane * span->stride, row = span->row + r;
            if (f && f->data) {
                const dpcr_span one = {.first = step, .lanes = 1, .stride = 1, .steps = 1, .row = row, .rows = 1};
                const dpcr_array from = dpcri_slice(in, lane, 1, r, 1), to = dpcri_slice(f, lane, 1, r, 1);
                advance(user, &one, &from, NULL, &to, NULL);
            }
            if (!a || !a->data) continue;
            slopes_of(c, step, 1, row, 1, (dpcri_grid){.data = place(in, lane, 0, r)}, (dpcri_grid){.data = slope});
            jacobian_of(c, step, slope, place(a, lane, 0, r));
        }
    return 0;
}

// ---- backward ----

// Wide dense cells: e = s slope g, and g = W^T e (plus g with the residual).
static void pull_back(const dpcr_cell *c, int64_t step, const void *slope, void *g, void *e) {
    const int64_t w = c->options.width;
    const dpcri_nn_kernels *k = c->kernels;
    k->multiply_add(1, w, NULL, 0, c->narrow.scale, g, w, slope, w, e, w);
    k->product(&(dpcri_product){.m = 1,
                                .n = w,
                                .depth = w,
                                .a = e,
                                .a_row = w,
                                .a_col = 1,
                                .b = weight_of(c, step),
                                .b_row = w,
                                .init = c->narrow.residual ? g : NULL,
                                .init_row = w,
                                .c = g,
                                .c_row = w});
}

static void adjoint_row(const dpcr_cell *c, const dpcr_span *span, int64_t lane, int64_t r, const dpcr_array *in,
                        const dpcr_array *tape, const dpcr_array *direct, void *g, const dpcr_array *kept) {
    _Alignas(64) double slopes[STACK_VALUES], e[WIDEST];
    const int64_t w = c->options.width, block = STACK_VALUES / w;
    const int64_t first = span->first + lane * span->stride, element = (int64_t)c->kernels->element;
    for (int64_t end = span->steps; end > 0;) {
        const int64_t begin = end > block ? end - block : 0;
        if (!tape || !tape->data)
            slopes_of(c, first + begin, end - begin, span->row + r, 1,
                      (dpcri_grid){.data = place(in, lane, begin, r), .step = stride_of(in, 2)},
                      (dpcri_grid){.data = slopes, .step = w});
        for (int64_t k = end - 1; k >= begin; k--) {
            const void *slope =
                tape && tape->data ? place(tape, lane, k, r) : (char *)slopes + (k - begin) * w * element;
            if (direct && direct->data)
                c->kernels->multiply_add(1, w, g, w, 1, place(direct, lane, k, r), w, NULL, 0, g, w);
            if (kept && kept->data) memcpy(place(kept, lane, k, r), g, (size_t)(w * element));
            pull_back(c, first + k, slope, g, e);
        }
        end = begin;
    }
}

static int adjoint(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                   const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                   const dpcr_array *first_out) {
    const dpcr_cell *c = user;
    if (dpcri_adjoint_serves(&c->narrow)) {
        dpcri_narrow_adjoint(&c->narrow, slopes_of, c, span, in, tape, direct, last, kept, first_out);
        return 0;
    }
    _Alignas(64) double g[WIDEST];
    const size_t bytes = (size_t)c->options.width * c->kernels->element;
    for (int64_t lane = 0; lane < span->lanes; lane++)
        for (int64_t r = 0; r < span->rows; r++) {
            memcpy(g, place(last, lane, 0, r), bytes);
            adjoint_row(c, span, lane, r, in, tape, direct, g, kept);
            if (first_out && first_out->data) memcpy(place(first_out, lane, 0, r), g, bytes);
        }
    return 0;
}

static int adjoint_window(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                          const dpcr_array *direct, const dpcr_array *last, const dpcr_array *kept,
                          const dpcr_array *first_out, const dpcr_handover *handover) {
    const dpcr_cell *c = user;
    return dpcri_narrow_adjoint_window(&c->narrow, slopes_of, c, span, in, tape, direct, last, kept, first_out,
                                       handover);
}

// dW += e z^T, or its diagonal.
static void add_outer(const dpcr_cell *c, const void *e, const void *z, void *gradient) {
    const int64_t w = c->options.width;
    if (c->options.kind == DPCR_CELL_DIAGONAL) {
        c->kernels->multiply_add(1, w, gradient, w, 1, e, w, z, w, gradient, w);
        return;
    }
    c->kernels->product(&(dpcri_product){.m = w,
                                         .n = w,
                                         .depth = 1,
                                         .a = e,
                                         .a_row = 1,
                                         .a_col = 1,
                                         .b = z,
                                         .b_row = w,
                                         .init = gradient,
                                         .init_row = w,
                                         .c = gradient,
                                         .c_row = w});
}

// out (or NULL: 0) + s slope g  to out, of `count` steps; one call where they all lie side by side.
static void add_slopes(const dpcr_cell *c, int64_t count, int64_t rows, bool onto, dpcri_grid g, dpcri_grid slope,
                       dpcri_grid out) {
    const int64_t w = c->options.width, each = rows * w;
    const size_t element = c->kernels->element;
    const bool packed = rows == 1 || (g.row == w && slope.row == w && out.row == w);
    const bool flat = packed && g.step == each && slope.step == each && out.step == each;
    if (packed) {
        const int64_t lines = flat ? 1 : count, width = flat ? count * each : each;
        c->kernels->multiply_add(lines, width, onto ? out.data : NULL, out.step, c->narrow.scale, g.data, g.step,
                                 slope.data, slope.step, out.data, out.step);
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        void *to = dpcri_grid_at(out, 0, k, 0, element).data;
        c->kernels->multiply_add(rows, w, onto ? to : NULL, out.row, c->narrow.scale,
                                 dpcri_grid_at(g, 0, k, 0, element).data, g.row,
                                 dpcri_grid_at(slope, 0, k, 0, element).data, slope.row, to, out.row);
    }
}

// dW_l += e z^T of steps first .. first + count - 1, rows in order.
static void add_outers(const dpcr_cell *c, int64_t first, int64_t count, int64_t rows, dpcri_grid g, dpcri_grid slope,
                       dpcri_grid in) {
    const dpcr_array *to = &c->options.weight_gradient;
    const size_t element = c->kernels->element;
    const int64_t w = c->options.width;
    const dpcri_grid all = {(char *)to->data + first * to->strides[0] * (int64_t)element, 0, to->strides[0], 0};
    _Alignas(64) double e[WIDEST];
    if (c->options.kind == DPCR_CELL_DENSE && w <= c->kernels->columns / 2) {
        for (int64_t r = 0; r < rows; r++)
            c->kernels->gradient_steps(&(dpcri_gradient_steps){.steps = count,
                                                               .rows = 1,
                                                               .width = w,
                                                               .out_in = true,
                                                               .scale = c->narrow.scale,
                                                               .in = dpcri_grid_at(in, 0, 0, r, element),
                                                               .slope = dpcri_grid_at(slope, 0, 0, r, element),
                                                               .g = dpcri_grid_at(g, 0, 0, r, element),
                                                               .gradients = all});
        return;
    }
    for (int64_t k = 0; k < count; k++)
        for (int64_t r = 0; r < rows; r++) {
            add_slopes(c, 1, 1, false, dpcri_grid_at(g, 0, k, r, element), dpcri_grid_at(slope, 0, k, r, element),
                       (dpcri_grid){.data = e});
            add_outer(c, e, dpcri_grid_at(in, 0, k, r, element).data, dpcri_grid_at(all, 0, k, 0, element).data);
        }
}

// Of `count` steps from k on of a span, rows r .. r + rows - 1; no more than STACK_VALUES numbers without a tape.
static void gradient_block(const dpcr_cell *c, const dpcr_span *span, int64_t k, int64_t count, int64_t r, int64_t rows,
                           dpcri_grid in, dpcri_grid slope, dpcri_grid g) {
    _Alignas(64) double slopes[STACK_VALUES];
    const size_t element = c->kernels->element;
    const int64_t w = c->options.width, first = span->first + k, row = span->row + r;
    in = dpcri_grid_at(in, 0, k, r, element), g = dpcri_grid_at(g, 0, k, r, element);
    if (slope.data) {
        slope = dpcri_grid_at(slope, 0, k, r, element);
    } else {
        slope = (dpcri_grid){slopes, 0, rows * w, w};
        slopes_of(c, first, count, row, rows, in, slope);
    }
    const dpcr_array *dx = &c->options.input_gradient;
    if (dx->data)
        add_slopes(c, count, rows, true, g, slope,
                   (dpcri_grid){place(dx, first, 0, row), 0, dx->strides[0], dx->strides[1]});
    if (c->options.weight_gradient.data) add_outers(c, first, count, rows, g, slope, in);
}

// [steps][rows][w]
static dpcri_grid steps_of(const dpcr_array *array) {
    const dpcri_grid lanes = dpcri_grid_of(array);
    return (dpcri_grid){lanes.data, 0, lanes.lane, lanes.row};
}

static int gradient(void *user, const dpcr_span *span, const dpcr_array *in, const dpcr_array *tape,
                    const dpcr_array *adjoints) {
    const dpcr_cell *c = user;
    const int64_t w = c->options.width, most = STACK_VALUES / w;  // steps times rows without a tape
    const dpcri_grid from = steps_of(in), slope = steps_of(tape), g = steps_of(adjoints);
    const int64_t rows = slope.data || span->rows < most ? span->rows : most;
    const int64_t block = slope.data ? span->lanes : rows ? most / rows : 1;
    for (int64_t k = 0; k < span->lanes; k += block)
        for (int64_t r = 0; r < span->rows; r += rows)
            gradient_block(c, span, k, block < span->lanes - k ? block : span->lanes - k, r,
                           rows < span->rows - r ? rows : span->rows - r, from, slope, g);
    return 0;
}

dpcr_status dpcr_cell_weight_gradient(const dpcr_cell *cell, const dpcr_array *z0, const dpcr_array *z,
                                      const dpcr_array *gradient_, dpcr_error *error) {
    const char *const call = "cell_weight_gradient";
    if (!cell || !gradient_) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: cell or gradient is NULL", call);
    const dpcr_cell_options *o = &cell->options;
    const int64_t w = o->width, states[3] = {o->length, o->batch, w}, matrix[2] = {w, w};
    const bool dense = o->kind == DPCR_CELL_DENSE;
    dpcr_status status;
    if (on_device(o)) return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: the cell lies on a device", call);
    if (!o->input_gradient.data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the cell was made without input_gradient", call);
    DPCR_TRY(dpcri_check_array(call, "z0", z0, o->dtype, 2, states + 1, error));
    DPCR_TRY(dpcri_check_array(call, "z", z, o->dtype, 3, states, error));
    DPCR_TRY(dpcri_check_array(call, "gradient", gradient_, o->dtype, dense ? 2 : 1, matrix, error));
    if (dense && gradient_->strides[0] != w)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradient's rows do not lie one after the other", call);
    for (int64_t l = 0; l < o->length; l++)
        for (int64_t b = 0; b < o->batch; b++) {
            const char *before = l ? place(z, l - 1, 0, b)
                                   : (const char *)z0->data + b * z0->strides[0] * (int64_t)cell->kernels->element;
            add_outer(cell, place(&o->input_gradient, l, 0, b), before, gradient_->data);
        }
done:
    return status;
}

// ---- making ----

static dpcr_status launch(void *user, dpcr_launch *what, dpcr_error *error) {
    const dpcr_cell *c = user;
    return dpcri_narrow_launch(&c->narrow, NULL, NULL, c->options.weight.device, c->options.length, c->options.batch,
                               what, error);
}

static dpcr_status check_weights(const dpcr_cell_options *o, const char *name, const dpcr_array *array, bool own_only,
                                 dpcr_error *error) {
    const int64_t w = o->width, shape[3] = {o->length, w, w};
    const int own = o->kind == DPCR_CELL_DENSE ? 3 : 2;
    const bool steps = own_only || array->ndim == own;
    char field[64];
    snprintf(field, sizeof field, "options.%s", name);
    const dpcr_status status = dpcri_check_array_on("cell_create", field, array, o->dtype, place_of(o),
                                                    steps ? own : own - 1, steps ? shape : shape + 1, error);
    if (status != DPCR_OK) return status;
    if (o->kind == DPCR_CELL_DENSE && w > 1 && array->strides[array->ndim - 2] != w)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "cell_create: options.%s: rows do not lie one after the other",
                          name);
    return DPCR_OK;
}

static dpcr_status check_options(const dpcr_cell_options *o, dpcr_error *error) {
    const char *const call = "cell_create";
    if (o->kind != DPCR_CELL_DENSE && o->kind != DPCR_CELL_DIAGONAL)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: kind is %d, wanted DPCR_CELL_DENSE or DPCR_CELL_DIAGONAL",
                          call, (int)o->kind);
    if (o->dtype != DPCR_F32 && o->dtype != DPCR_F64)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: dtype is %s, wanted float32 or float64", call,
                          dpcr_dtype_name(o->dtype));
    if (o->length < 0 || o->batch < 0 || o->width < 1 || o->width > WIDEST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: length %lld, batch %lld, width %lld; wanted none negative and width 1..%d", call,
                          (long long)o->length, (long long)o->batch, (long long)o->width, WIDEST);
    if ((int)o->activation < 0 || o->activation >= DPCR_ACT_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: activation is %d, wanted one of DPCR_ACT_...", call,
                          (int)o->activation);
    if (!isfinite(o->scale))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: scale is %g, wanted a finite number", call, o->scale);
    const int64_t states[3] = {o->length, o->batch, o->width};
    dpcr_status status;
    DPCR_TRY(check_weights(o, "weight", &o->weight, false, error));
    DPCR_TRY(dpcri_check_array_on(call, "options.input", &o->input, o->dtype, place_of(o), 3, states, error));
    if (on_device(o) && (o->input_gradient.data || o->weight_gradient.data))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: gradients of a cell on a device; wanted none: they follow from lambda on the host",
                          call);
    if (o->input_gradient.data) {
        DPCR_TRY(dpcri_check_array(call, "options.input_gradient", &o->input_gradient, o->dtype, 3, states, error));
        DPCR_TRY(dpcri_check_written(call, "options.input_gradient", &o->input_gradient, error));
    }
    if (o->weight_gradient.data) {
        DPCR_TRY(check_weights(o, "weight_gradient", &o->weight_gradient, true, error));
        DPCR_TRY(dpcri_check_written(call, "options.weight_gradient", &o->weight_gradient, error));
        if (o->weight.ndim != o->weight_gradient.ndim)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "%s: options.weight_gradient is a step's own, but options.weight is one for all steps",
                              call);
    }
done:
    return status;
}

dpcr_status dpcr_cell_create(dpcr_context *context, const dpcr_cell_options *options, dpcr_cell **cell,
                             dpcr_error *error) {
    if (!cell) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "cell_create: no place for the cell given");
    *cell = NULL;
    if (!context || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "cell_create: context and options are wanted");
    if (options->size < offsetof(dpcr_cell_options, input_gradient))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "cell_create: options.size is %zu, wanted sizeof(dpcr_cell_options)", options->size);
    dpcr_cell_options o = {0};
    DPCRI_COPY_IN(o, options);
    o.size = sizeof o;
    if (!o.dtype) o.dtype = DPCR_F32;
    if (o.activation == DPCR_ACT_DEFAULT) o.activation = DPCR_ACT_TANH;
    const dpcr_status status = check_options(&o, error);
    if (status != DPCR_OK) return status;
    dpcr_cell *c = dpcri_alloc_zero(context, sizeof *c);
    if (!c) return dpcri_fail(error, DPCR_ERROR_MEMORY, "cell_create: no memory for the cell (%zu bytes)", sizeof *c);
    const bool dense = o.kind == DPCR_CELL_DENSE;
    c->context = context;
    c->options = o;
    c->kernels = dpcri_nn_kernels_get(o.dtype);
    c->own = o.weight.ndim == (dense ? 3 : 2);
    c->values = dense ? o.width * o.width : o.width;
    c->narrow = (dpcri_narrow){.dtype = o.dtype,
                               .width = o.width,
                               .activation = (int)o.activation - (int)DPCR_ACT_IDENTITY,
                               .residual = o.scale != 0,
                               .diagonal = !dense,
                               .scale = o.scale != 0 ? o.scale : 1,
                               .weight = o.weight.data,
                               .bias = o.input.data,
                               .weight_step = c->own ? o.weight.strides[0] : 0,
                               .bias_step = o.input.strides[0],
                               .bias_row = o.input.strides[1]};
    c->narrow_advance = dpcri_narrow_serves(&c->narrow);
    c->narrow_linearise = c->narrow_advance && o.width <= DPCRI_NARROW_WIDTH;
    c->turned = dense && !c->own && !c->narrow_advance && o.width <= TURNED_WIDTH;
    *cell = c;
    return DPCR_OK;
}

void dpcr_cell_destroy(dpcr_cell *cell) {
    if (cell) dpcri_free(cell->context, cell);
}

const dpcr_cell_options *dpcr_cell_get_options(const dpcr_cell *cell) { return cell ? &cell->options : NULL; }

// Measured with AVX-512 on a Zen 5 (deeppcr bench cell --threads 1, float, tanh; 8 wide: tanh and, without, ReLU): a
// chain of w fmas and an activation alone, and what lanes side by side take; for which narrower vectors take longer.
static void set_turned_costs(const dpcr_cell *cell, dpcr_steps *steps) {
    static const double longer[DPCRI_ISA_COUNT] = {3.4, 2, 1};
    const double w = (double)cell->options.width, real = (double)cell->kernels->element / 4;
    const double activation = cell->narrow.activation <= DPCRI_ACT_RELU ? 0 : 4;
    const bool eight = w == 8 && real == 1 && cell->kernels->eights;
    steps->lanes = w > 32 ? 4 : 8;
    steps->latency = 1e-9 * dpcri_kernels_slower().wide * (eight ? 5.5 + 2 * activation : 8 + activation + 0.98 * w);
    steps->lane_seconds = 1e-9 * longer[dpcri_isa_level()] * dpcri_kernels_slower().lanes * real *
                          (1 + activation / 4 + 0.1 * w + 0.0095 * w * w);
}

static void fill_steps(const dpcr_cell *cell, dpcr_steps *steps) {
    const dpcr_cell_options *o = &cell->options;
    const bool dense = o->kind == DPCR_CELL_DENSE;
    const double w = (double)o->width, activation = o->activation == DPCR_ACT_IDENTITY ? 0
                                                    : o->activation == DPCR_ACT_RELU   ? 2
                                                    : o->activation == DPCR_ACT_GELU   ? 100
                                                                                       : 30;
    *steps = (dpcr_steps){.user = (void *)(uintptr_t)cell,
                          .length = o->length,
                          .batch = o->batch,
                          .width = o->width,
                          .dtype = o->dtype,
                          .concurrent = 1,
                          .jacobian = dpcr_transition_square(dense ? DPCR_DENSE : DPCR_DIAGONAL, o->width, 0),
                          .flops = 2 * (double)cell->values + w * activation + 2 * w,
                          .jacobian_flops = (double)cell->values,
                          .tape_values = o->width,
                          .weight_bytes = cell->own ? (double)cell->values * (double)dpcr_dtype_size(o->dtype) : 0,
                          .kinks = o->activation == DPCR_ACT_RELU ? DPCR_KINKS_AFFINE : DPCR_KINKS_NONE,
                          .advance = advance,
                          .linearise = linearise,
                          .adjoint = adjoint,
                          .gradient = o->input_gradient.data || o->weight_gradient.data ? gradient : NULL};
    if (on_device(o)) {  // the host cannot read its numbers
        steps->advance = NULL;
        steps->linearise = NULL;
        steps->adjoint = NULL;
        steps->tape_values = 0;
        const double form[] = {o->activation, o->scale, cell->own};  // what shape and flops do not tell
        steps->launch = launch;
        steps->identity = dpcri_checksum(DPCRI_CHECKSUM, form, sizeof form);
        return;
    }
    if (cell->turned) set_turned_costs(cell, steps);
    if (dense && !cell->narrow_advance)  // lane by lane
        steps->adjoint_latency = steps->adjoint_lane_seconds = 1e-9 * (20 + 0.024 * w * w);
    if (dpcri_adjoint_serves(&cell->narrow)) {
        steps->adjoint_latency = dpcri_adjoint_loop_seconds(&cell->narrow);
        steps->adjoint_lane_seconds = dpcri_adjoint_lane_seconds(&cell->narrow);
    }
    if (cell->narrow_advance) {
        steps->latency = dpcri_narrow_loop_seconds(&cell->narrow);
        steps->lanes = dpcri_narrow_lanes(&cell->narrow);
        steps->lane_seconds = dpcri_narrow_lane_seconds(&cell->narrow);
        if (dpcri_narrow_has_window(&cell->narrow)) {
            steps->window = window;
            steps->window_threads = dpcri_narrow_window_threads();
        }
        if (dpcri_narrow_has_adjoint_window(&cell->narrow)) {
            steps->adjoint_window = adjoint_window;
            steps->adjoint_window_seconds = dpcri_narrow_adjoint_window_seconds(&cell->narrow);
            steps->adjoint_window_steps = dpcri_narrow_adjoint_window_steps(&cell->narrow);
        }
    }
}

dpcr_status dpcr_cell_steps(const dpcr_cell *cell, dpcr_steps *steps, dpcr_error *error) {
    if (!cell || !steps || steps->size < offsetof(dpcr_steps, identity))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "cell_steps: wanted a cell and steps with their size");
    dpcr_steps all;
    fill_steps(cell, &all);
    dpcri_copy_out(steps, &all, sizeof all);
    return DPCR_OK;
}
