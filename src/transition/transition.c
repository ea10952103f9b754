// SPDX-License-Identifier: MIT
// The structures as an algebra: one row of capabilities each, apply and compose over the span kernels.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kern/kern.h"
#include "transition/transition_internal.h"

static const struct {
    const char *name;
    unsigned capabilities;
} structures[DPCR_STRUCTURE_COUNT] = {
    [DPCR_ZERO] = {"zero", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE},
    [DPCR_IDENTITY] = {"identity", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE},
    [DPCR_SCALAR] = {"scalar", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE | DPCR_HAS_VALUES},
    [DPCR_DIAGONAL] = {"diagonal", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE | DPCR_HAS_VALUES},
    [DPCR_BLOCK] = {"block", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE | DPCR_HAS_VALUES},
    [DPCR_DENSE] = {"dense", DPCR_CAN_APPLY | DPCR_CAN_COMPOSE | DPCR_HAS_VALUES},
    [DPCR_CSR] = {"csr", DPCR_CAN_APPLY | DPCR_HAS_VALUES},
};

static bool is_structure(dpcr_structure structure) { return (int)structure >= 0 && structure < DPCR_STRUCTURE_COUNT; }

const char *dpcr_structure_name(dpcr_structure structure) {
    return is_structure(structure) ? structures[structure].name : "unknown";
}

dpcr_status dpcr_structure_find(const char *name, dpcr_structure *structure, dpcr_error *error) {
    if (!name || !structure)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "structure_find: %s is NULL", name ? "structure" : "name");
    for (int i = 0; i < DPCR_STRUCTURE_COUNT; i++)
        if (strcmp(name, structures[i].name) == 0) {
            *structure = (dpcr_structure)i;
            return DPCR_OK;
        }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "structure_find: got \"%s\", wanted zero, identity, scalar, diagonal, block, dense or csr", name);
}

dpcr_transition dpcr_transition_square(dpcr_structure structure, int64_t width, int64_t block) {
    return (dpcr_transition){
        .structure = structure, .rows = width, .cols = width, .block = structure == DPCR_BLOCK ? block : 0};
}

dpcr_status dpcr_transition_check(const dpcr_transition *t, dpcr_error *error) {
    if (!t) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: got NULL, wanted a transition");
    if (!is_structure(t->structure))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: structure is %d, wanted 0..%d", (int)t->structure,
                          DPCR_STRUCTURE_COUNT - 1);
    const char *name = structures[t->structure].name;
    if (t->rows <= 0 || t->cols <= 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: %s %" PRId64 "x%" PRId64 ", wanted positive sizes",
                          name, t->rows, t->cols);
    if (t->structure == DPCR_CSR) return dpcri_csr_check(t, error);
    if (t->structure != DPCR_DENSE && t->rows != t->cols)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "transition: %s %" PRId64 "x%" PRId64 ", wanted rows equal to columns", name, t->rows,
                          t->cols);
    if (t->structure == DPCR_BLOCK && (t->block <= 0 || t->rows % t->block != 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "transition: blocks of %" PRId64 ", wanted a divisor of the width %" PRId64, t->block,
                          t->rows);
    if (t->structure != DPCR_BLOCK && t->block != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: block is %" PRId64 " in a %s transition, wanted 0",
                          t->block, name);
    if (t->pattern)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "transition: a pattern was given, %s wants NULL", name);
    int64_t values = 0;
    if ((t->structure == DPCR_DENSE && !dpcri_mul(t->rows, t->cols, &values)) ||
        (t->structure == DPCR_BLOCK && !dpcri_mul(t->rows, t->block, &values)))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "transition: %s of width %" PRId64 " has too many values", name,
                          t->rows);
    return DPCR_OK;
}

int64_t dpcr_transition_values(const dpcr_transition *t) {
    if (!t) return 0;
    switch (t->structure) {
        case DPCR_SCALAR: return 1;
        case DPCR_DIAGONAL: return t->rows;
        case DPCR_BLOCK: return t->rows * t->block;
        case DPCR_DENSE: return t->rows * t->cols;
        case DPCR_CSR: return t->pattern ? ((const dpcr_pattern *)t->pattern)->offsets[t->rows] : 0;
        default: return 0;
    }
}

unsigned dpcr_transition_capabilities(const dpcr_transition *t) {
    if (!t || !is_structure(t->structure)) return 0;
    const unsigned all = structures[t->structure].capabilities;
    return t->rows == t->cols ? all : all & ~(unsigned)DPCR_CAN_COMPOSE;
}

double dpcr_transition_apply_flops(const dpcr_transition *t) {
    if (!t) return 0;
    const double w = (double)t->rows;
    switch (t->structure) {
        case DPCR_ZERO: return 0;
        case DPCR_IDENTITY: return w;
        case DPCR_BLOCK: return 2 * w * (double)t->block;
        case DPCR_DENSE: return 2 * w * (double)t->cols;
        case DPCR_CSR: return 2 * (double)dpcr_transition_values(t);
        default: return 2 * w;
    }
}

double dpcr_transition_compose_flops(const dpcr_transition *t) {
    if (!t) return 0;
    const double w = (double)t->rows, k = (double)t->block;
    switch (t->structure) {
        case DPCR_SCALAR: return 1;
        case DPCR_DIAGONAL: return w;
        case DPCR_BLOCK: return 2 * w * k * k;
        case DPCR_DENSE: return 2 * w * w * (double)t->cols;
        default: return 0;
    }
}

static dpcr_status fail_shape(const dpcr_array *array, const dpcri_wanted *w, dpcr_error *error) {
    char got[128], steps[32] = "";
    if (w->steps >= 0) snprintf(steps, sizeof steps, "[%" PRId64 "]", w->steps);
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted %s[%" PRId64 "][%" PRId64 "] %s%s", w->function,
                      w->name, dpcri_array_text(array, got, sizeof got), steps, w->rows, w->values,
                      dpcr_dtype_name(w->dtype), w->shareable ? " (1 shares)" : "");
}

static bool extent_fits(int64_t got, int64_t wanted, bool shareable) {
    return got == wanted || (shareable && got == 1);
}

// Whether two rows share a place: those whose steps are d of the larger stride apart, with the two that lie nearest to
// d steps of it by the smaller one.
static bool rows_overlap(const dpcri_wanted *w, int64_t step, int64_t row) {
    if ((w->steps > 1 && step < w->values) || (w->rows > 1 && row < w->values)) return true;
    if (w->steps < 2 || w->rows < 2) return false;
    const int64_t far = step > row ? step : row, near = step > row ? row : step,
                  last_far = (step > row ? w->steps : w->rows) - 1, last = (step > row ? w->rows : w->steps) - 1;
    for (int64_t d = 1; d <= last_far && d * far - last * near < w->values; d++) {
        const int64_t k = d * far / near;
        if ((k <= last && d * far - k * near < w->values) || (k < last && (k + 1) * near - d * far < w->values))
            return true;
    }
    return false;
}

dpcr_status dpcri_view_of(const dpcr_array *array, const dpcri_wanted *w, dpcri_view *view, dpcr_error *error) {
    if (!array) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is NULL, wanted an array", w->function, w->name);
    const int32_t ndim = w->steps < 0 ? 2 : 3, row = ndim - 2, last = ndim - 1;
    if (array->ndim != ndim || array->dtype != w->dtype ||
        (ndim == 3 && !extent_fits(array->shape[0], w->steps, w->shareable)) ||
        !extent_fits(array->shape[row], w->rows, w->shareable) || array->shape[last] != w->values)
        return fail_shape(array, w, error);
    const bool on_device = w->device.type != 0 && w->device.type != DPCR_HOST;
    if (on_device && (array->device.type != w->device.type || array->device.id != w->device.id))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s lies on %s:%d, wanted %s:%d, the plan's", w->function,
                          w->name, dpcr_device_type_name(array->device.type), (int)array->device.id,
                          dpcr_device_type_name(w->device.type), (int)w->device.id);
    if (!on_device && array->device.type != DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %s lies on device type %d, wanted host memory (%d)",
                          w->function, w->name, (int)array->device.type, (int)DPCR_HOST);
    if (w->values > 1 && array->strides[last] != 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the last stride of %s is %" PRId64 ", wanted 1 (contiguous)",
                          w->function, w->name, array->strides[last]);
    if (dpcri_reaches_too_far(array))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the strides of %s reach beyond the address space",
                          w->function, w->name);
    const bool empty = w->steps == 0 || w->rows == 0 || w->values == 0;
    if (!array->data && !empty)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the data of %s is NULL", w->function, w->name);
    *view = (dpcri_view){.data = array->data,
                         .step = ndim == 3 && array->shape[0] > 1 ? array->strides[0] : 0,
                         .row = array->shape[row] > 1 ? array->strides[row] : 0};
    if (!w->written || empty) return DPCR_OK;
    if (rows_overlap(w, llabs(view->step), llabs(view->row)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is written, but its strides make rows overlap",
                          w->function, w->name);
    return DPCR_OK;
}

dpcr_status dpcri_check_steps(const char *function, const dpcr_array *array, dpcr_error *error) {
    if (!array) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: an array is NULL", function);
    if (dpcr_dtype_size(array->dtype) == 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: dtype is %d, wanted float32, float64 or uint32", function,
                          (int)array->dtype);
    if (array->ndim != 3)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: ndim is %d, wanted 3", function, (int)array->ndim);
    if (array->shape[0] < 0 || array->shape[1] < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: an extent is negative", function);
    return DPCR_OK;
}

dpcr_status dpcr_transition_apply(const dpcr_transition *transition, int transposed, const dpcr_array *a,
                                  const dpcr_array *x, const dpcr_array *r, const dpcr_array *y, dpcr_error *error) {
    static const char *const function = "transition_apply";
    dpcr_status status = DPCR_OK;
    dpcri_view va = {0}, vx = {0}, vr = {0}, vy = {0};
    DPCR_TRY(dpcr_transition_check(transition, error));
    DPCR_TRY(dpcri_check_steps(function, y, error));
    const int64_t out = transposed ? transition->cols : transition->rows,
                  in = transposed ? transition->rows : transition->cols;
    dpcri_wanted w = {
        .function = function, .dtype = y->dtype, .steps = y->shape[0], .rows = y->shape[1], .shareable = true};
    w.values = dpcr_transition_values(transition);
    w.name = "a";
    if (w.values > 0) DPCR_TRY(dpcri_view_of(a, &w, &va, error));
    w.values = in;
    w.name = "x";
    DPCR_TRY(dpcri_view_of(x, &w, &vx, error));
    w.values = out;
    w.name = "r";
    if (r) DPCR_TRY(dpcri_view_of(r, &w, &vr, error));
    w.name = "y";
    w.shareable = false;
    w.written = true;
    DPCR_TRY(dpcri_view_of(y, &w, &vy, error));
    if (w.steps > 0 && w.rows > 0 && vx.data == vy.data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: y is x, wanted another array (y may be r)", function);
    const dpcri_span span = {.n = w.steps,
                             .rows = w.rows,
                             .w = transition->rows,
                             .cols = transition->cols,
                             .block = transition->block,
                             .a = va.data,
                             .a_step = va.step,
                             .a_row = va.row,
                             .x = vx.data,
                             .x_step = vx.step,
                             .x_row = vx.row,
                             .r = r ? vr.data : NULL,
                             .r_step = vr.step,
                             .r_row = vr.row,
                             .y = vy.data,
                             .y_step = vy.step,
                             .y_row = vy.row};
    if (transition->structure == DPCR_CSR) {
        dpcri_csr_apply(transition, transposed, w.dtype, &span);
        return DPCR_OK;
    }
    dpcri_kernels_at(dpcri_isa_level(), w.dtype)
        ->table[transposed ? DPCRI_APPLY_T : DPCRI_APPLY][dpcri_kernel_form(transition)](&span);
done:
    return status;
}

dpcr_status dpcr_transition_compose(const dpcr_transition *transition, const dpcr_array *later,
                                    const dpcr_array *earlier, const dpcr_array *c, dpcr_error *error) {
    static const char *const function = "transition_compose";
    dpcr_status status = DPCR_OK;
    dpcri_view vl = {0}, ve = {0}, vc = {0};
    DPCR_TRY(dpcr_transition_check(transition, error));
    if (!(dpcr_transition_capabilities(transition) & DPCR_CAN_COMPOSE))
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "%s: %s %" PRId64 "x%" PRId64
            " does not compose with itself; square transitions but csr do, and dpcr_product multiplies any",
            function, dpcr_structure_name(transition->structure), transition->rows, transition->cols);
    dpcri_wanted w = {.function = function, .values = dpcr_transition_values(transition), .shareable = true};
    if (w.values == 0) return DPCR_OK;
    DPCR_TRY(dpcri_check_steps(function, c, error));
    w.dtype = c->dtype;
    w.steps = c->shape[0];
    w.rows = c->shape[1];
    w.name = "later";
    DPCR_TRY(dpcri_view_of(later, &w, &vl, error));
    w.name = "earlier";
    DPCR_TRY(dpcri_view_of(earlier, &w, &ve, error));
    w.name = "c";
    w.shareable = false;
    w.written = true;
    DPCR_TRY(dpcri_view_of(c, &w, &vc, error));
    if (w.steps > 0 && w.rows > 0 && (vc.data == vl.data || vc.data == ve.data))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: c is one of the inputs, wanted another array", function);
    const dpcri_span span = {.n = w.steps,
                             .rows = w.rows,
                             .w = transition->rows,
                             .cols = transition->cols,
                             .block = transition->block,
                             .a = vl.data,
                             .a_step = vl.step,
                             .a_row = vl.row,
                             .x = ve.data,
                             .x_step = ve.step,
                             .x_row = ve.row,
                             .y = vc.data,
                             .y_step = vc.step,
                             .y_row = vc.row};
    dpcri_kernels_at(dpcri_isa_level(), w.dtype)->table[DPCRI_COMPOSE][dpcri_kernel_form(transition)](&span);
done:
    return status;
}
