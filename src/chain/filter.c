// SPDX-License-Identifier: MIT
// Filters: creation, and what is known of a filter before its signals: the powers of its A.
//
// The states s of a stage obey s_l = A s_{l-1} + B x_l. Squaring gives A^(2^k), any A^n from those, and how soon the
// filter forgets: the least m with |A^m| <= 1e-24, by descending through the powers. A filter without feedback forgets
// after its order. Squares of slow modes cancel, and would lose in double what tells 1 - 1e-6 from 1: they are formed
// in twice its digits. docs/math/filter.md, Powers.
#include "chain/filter.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "chain/twofold.h"

enum {
    STAGE_WIDTH = 32,  // states whose powers are formed
    POWERS = 41,       // up to A^(2^40)
    BA_ORDER = 128
};
static const double FORGOTTEN = 1e-24, GROWN = 1e12, SLOW = 4;

void dpcr_filter_destroy(dpcr_filter *filter) {
    if (!filter) return;
    dpcr_context *context = filter->context;
    for (int64_t i = 0; filter->stage && i < filter->stages; i++) dpcri_free(context, filter->stage[i].power);
    dpcri_free(context, filter->stage);
    dpcri_free(context, filter->a);
    dpcri_free(context, filter->b);
    dpcri_free(context, filter);
}

int64_t dpcr_filter_sections(const dpcr_filter *filter) { return filter ? filter->sections : 0; }

int64_t dpcr_filter_order(const dpcr_filter *filter) { return filter ? filter->order : 0; }

// A cascade forgets when its last stage has forgotten what the ones before it forgot.
int64_t dpcr_filter_memory(const dpcr_filter *filter) {
    int64_t memory = 0;
    if (!filter) return 0;
    for (int64_t i = 0; i < filter->stages; i++)
        if (filter->stage[i].memory == INT64_MAX || !dpcri_add(memory, filter->stage[i].memory, &memory)) return 0;
    return memory > 0 ? memory : 1;
}

static dpcri_filter_matrix matrix_at(double *data, int64_t i, int64_t w) {
    return (dpcri_filter_matrix){data + 2 * i * w * w, data + (2 * i + 1) * w * w};
}

static dpcri_twofold plus_product(dpcri_twofold sum, double factor, dpcri_twofold x) {
    dpcri_twofold_add(&sum.value, &sum.rest, factor, 0, x.value, x.rest);
    dpcri_twofold_settle(&sum.value, &sum.rest);
    return sum;
}

// One step of the stage without input, in place.
static void step(const dpcr_filter *f, const dpcri_filter_stage *stage, dpcri_twofold *s) {
    const int64_t p = f->order;
    const dpcri_twofold zero = {0};
    dpcri_twofold x = zero;
    for (int64_t c = stage->first; c < stage->first + stage->count && p; c++, s += p) {
        const double *b = f->b + c * (p + 1), *a = f->a + c * (p + 1);
        const dpcri_twofold y = plus_product(s[0], b[0], x);
        for (int64_t i = 0; i < p; i++)
            s[i] = plus_product(plus_product(i + 1 < p ? s[i + 1] : zero, b[i + 1], x), -a[i + 1], y);
        x = y;
    }
}

// A, column by column.
static void first_power(const dpcr_filter *f, const dpcri_filter_stage *stage, dpcri_filter_matrix power) {
    const int64_t w = stage->width;
    dpcri_twofold column[STAGE_WIDTH];
    for (int64_t j = 0; j < w; j++) {
        memset(column, 0, sizeof column);
        column[j].value = 1;
        step(f, stage, column);
        for (int64_t i = 0; i < w; i++)
            power.value[i * w + j] = column[i].value, power.rest[i * w + j] = column[i].rest;
    }
}

static void add_row(int64_t w, double x, double x_rest, const double *restrict y, const double *restrict y_rest,
                    double *restrict sum, double *restrict rest) {
    for (int64_t j = 0; j < w; j++) dpcri_twofold_add(&sum[j], &rest[j], x, x_rest, y[j], y_rest[j]);
}

static void multiply(int64_t w, dpcri_filter_matrix x, dpcri_filter_matrix y, dpcri_filter_matrix xy) {
    memset(xy.value, 0, (size_t)(w * w) * sizeof *xy.value);
    memset(xy.rest, 0, (size_t)(w * w) * sizeof *xy.rest);
    for (int64_t i = 0; i < w; i++) {
        for (int64_t k = 0; k < w; k++)
            if (x.value[i * w + k] != 0)  // nothing goes back from a section to those before it
                add_row(w, x.value[i * w + k], x.rest[i * w + k], y.value + k * w, y.rest + k * w, xy.value + i * w,
                        xy.rest + i * w);
        for (int64_t j = 0; j < w; j++) dpcri_twofold_settle(&xy.value[i * w + j], &xy.rest[i * w + j]);
    }
}

static void multiply_values(int64_t w, const double *x, const double *y, double *xy) {
    memset(xy, 0, (size_t)(w * w) * sizeof *xy);
    for (int64_t i = 0; i < w; i++)
        for (int64_t k = 0; k < w; k++)
            for (int64_t j = 0; j < w; j++) xy[i * w + j] += x[i * w + k] * y[k * w + j];
}

static void copy_matrix(int64_t w, dpcri_filter_matrix to, dpcri_filter_matrix from) {
    memcpy(to.value, from.value, (size_t)(w * w) * sizeof *to.value);
    memcpy(to.rest, from.rest, (size_t)(w * w) * sizeof *to.rest);
}

static void unit_matrix(int64_t w, dpcri_filter_matrix to) {
    for (int64_t i = 0; i < w * w; i++) to.value[i] = i % (w + 1) == 0, to.rest[i] = 0;
}

static double largest(const double *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = x[i] != x[i] ? HUGE_VAL : fmax(most, fabs(x[i]));
    return most;
}

static bool has_feedback(const dpcr_filter *f) {
    for (int64_t i = 0; i < f->sections * (f->order + 1); i++)
        if (i % (f->order + 1) && f->a[i] != 0) return true;
    return false;
}

// The least m with |A^m| <= FORGOTTEN: the largest that is not, from the highest power down, and one more.
static int64_t memory_of(const dpcri_filter_stage *stage, dpcri_filter_matrix at, dpcri_filter_matrix next) {
    const int64_t w = stage->width;
    int64_t m = 0;
    unit_matrix(w, at);
    for (int64_t k = stage->powers - 1; k >= 0; k--) {
        multiply(w, at, matrix_at(stage->power, k, w), next);
        if (largest(next.value, w * w) <= FORGOTTEN) continue;
        copy_matrix(w, at, next);
        m += (int64_t)1 << k;
    }
    return m + 1;
}

dpcr_status dpcri_filter_measure(const dpcr_filter *f, dpcri_filter_stage *stage, dpcr_error *error) {
    const int64_t w = stage->width = stage->count * f->order, entries = w * w;
    stage->memory = stage->slow = stage->limit = INT64_MAX;
    if (!has_feedback(f)) {
        stage->memory = f->order * stage->count;
        return DPCR_OK;
    }
    if (w > STAGE_WIDTH) {
        stage->limit = 0;
        return DPCR_OK;
    }
    stage->power = dpcri_alloc(f->context, (size_t)(2 * (POWERS + 2) * entries) * sizeof *stage->power);
    if (!stage->power)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_create: no memory for powers of %" PRId64 " states", w);
    first_power(f, stage, matrix_at(stage->power, 0, w));
    double size = 0;
    for (stage->powers = 1;; stage->powers++) {
        const dpcri_filter_matrix last = matrix_at(stage->power, stage->powers - 1, w);
        size = largest(last.value, entries);
        if (size > SLOW && stage->slow == INT64_MAX) stage->slow = (int64_t)1 << (stage->powers - 1);
        if (size > GROWN) {
            stage->limit = (int64_t)1 << (stage->powers - 1);
            return DPCR_OK;
        }
        if (size <= FORGOTTEN || stage->powers == POWERS) break;
        multiply(w, last, last, matrix_at(stage->power, stage->powers, w));
    }
    if (size <= FORGOTTEN)
        stage->memory = memory_of(stage, matrix_at(stage->power, POWERS, w), matrix_at(stage->power, POWERS + 1, w));
    return DPCR_OK;
}

void dpcri_filter_power(const dpcri_filter_stage *stage, int64_t n, bool twofold, dpcri_filter_matrix power,
                        dpcri_filter_matrix scratch) {
    const int64_t w = stage->width;
    bool first = true;
    unit_matrix(w, power);
    for (int64_t k = 0; k < stage->powers && n >> k; k++) {
        const dpcri_filter_matrix factor = matrix_at(stage->power, k, w);
        if (!(n >> k & 1)) continue;
        if (first) {
            copy_matrix(w, power, factor);
        } else if (twofold) {
            multiply(w, power, factor, scratch);
            copy_matrix(w, power, scratch);
        } else {
            multiply_values(w, power.value, factor.value, scratch.value);
            memcpy(power.value, scratch.value, (size_t)(w * w) * sizeof *power.value);
        }
        first = false;
    }
}

static dpcr_status make_stages(dpcr_filter *f, dpcr_error *error) {
    const int64_t together = f->order == 0 ? f->sections : f->order > STAGE_WIDTH ? 1 : STAGE_WIDTH / f->order;
    f->stages = (f->sections + together - 1) / together;
    f->stage = dpcri_alloc_zero(f->context, (size_t)f->stages * sizeof *f->stage);
    if (!f->stage) return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_create: no memory for the filter's stages");
    for (int64_t i = 0; i < f->stages; i++) {
        const int64_t left = f->sections - i * together;
        f->stage[i] = (dpcri_filter_stage){.first = i * together, .count = left < together ? left : together};
        const dpcr_status status = dpcri_filter_measure(f, &f->stage[i], error);
        if (status != DPCR_OK) return status;
    }
    return DPCR_OK;
}

static dpcr_status divide(dpcr_filter *f, dpcr_error *error) {
    for (int64_t c = 0; c < f->sections; c++) {
        double *b = f->b + c * (f->order + 1), *a = f->a + c * (f->order + 1);
        const double a0 = a[0];
        if (a0 == 0) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "filter_create: a_0 of section %" PRId64 " is 0", c);
        for (int64_t i = 0; i <= f->order; i++) {
            b[i] /= a0, a[i] /= a0;
            if (!isfinite(b[i]) || !isfinite(a[i]))
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                  "filter_create: coefficient %" PRId64 " of section %" PRId64 " is not finite", i, c);
        }
    }
    return DPCR_OK;
}

// An empty filter of this size.
static dpcr_status start(dpcr_context *context, int64_t sections, int64_t order, dpcr_filter **filter,
                         dpcr_error *error) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(sections, order + 1, sizeof(double), &overflow);
    dpcr_filter *f = overflow ? NULL : dpcri_alloc_zero(context, sizeof *f);
    if (f) {
        *f = (dpcr_filter){.context = context, .sections = sections, .order = order};
        f->b = dpcri_alloc_zero(context, bytes);
        f->a = dpcri_alloc_zero(context, bytes);
    }
    if (!f || !f->a || !f->b) {
        dpcr_filter_destroy(f);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_create: no memory for %" PRId64 " sections", sections);
    }
    *filter = f;
    return DPCR_OK;
}

static dpcr_status finish(dpcr_filter *f, dpcr_filter **filter, dpcr_error *error) {
    dpcr_status status = divide(f, error);
    if (status == DPCR_OK) status = make_stages(f, error);
    if (status == DPCR_OK)
        *filter = f;
    else
        dpcr_filter_destroy(f);
    return status;
}

dpcr_status dpcr_filter_create_sos(dpcr_context *context, int64_t sections, const double *sos, dpcr_filter **filter,
                                   dpcr_error *error) {
    if (!context || !sos || !filter)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "filter_create_sos: context, sos or filter is NULL");
    *filter = NULL;
    if (sections < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "filter_create_sos: %" PRId64 " sections, wanted 1 or more",
                          sections);
    dpcr_filter *f = NULL;
    const dpcr_status status = start(context, sections, 2, &f, error);
    if (status != DPCR_OK) return status;
    for (int64_t c = 0; c < sections; c++) {
        memcpy(f->b + 3 * c, sos + 6 * c, 3 * sizeof *sos);
        memcpy(f->a + 3 * c, sos + 6 * c + 3, 3 * sizeof *sos);
    }
    return finish(f, filter, error);
}

dpcr_status dpcr_filter_create_ba(dpcr_context *context, int64_t nb, const double *b, int64_t na, const double *a,
                                  dpcr_filter **filter, dpcr_error *error) {
    if (!context || !b || !a || !filter)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "filter_create_ba: context, b, a or filter is NULL");
    *filter = NULL;
    if (nb < 1 || na < 1 || nb > BA_ORDER + 1 || na > BA_ORDER + 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "filter_create_ba: %" PRId64 " and %" PRId64 " coefficients, wanted 1..%d", nb, na,
                          BA_ORDER + 1);
    dpcr_filter *f = NULL;
    const dpcr_status status = start(context, 1, (nb > na ? nb : na) - 1, &f, error);
    if (status != DPCR_OK) return status;
    memcpy(f->b, b, (size_t)nb * sizeof *b);
    memcpy(f->a, a, (size_t)na * sizeof *a);
    f->open = !has_feedback(f);
    return finish(f, filter, error);
}
