// SPDX-License-Identifier: MIT
// Filters: creation, and what is known of a filter before its signals: the powers of its A.
//
// The states s of a stage obey s_l = A s_{l-1} + B x_l. Squaring gives A^(2^k), any A^n from those, and how soon the
// filter forgets: the least m with |A^m| <= 1e-24, by descending through the powers. A filter without feedback forgets
// after its order.
#include "chain/filter.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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

// One step of the stage without input, in place.
static void step(const dpcr_filter *f, const dpcri_filter_stage *stage, double *s) {
    const int64_t p = f->order;
    double x = 0;
    for (int64_t c = stage->first; c < stage->first + stage->count && p; c++, s += p) {
        const double *b = f->b + c * (p + 1), *a = f->a + c * (p + 1), y = b[0] * x + s[0];
        for (int64_t i = 0; i < p; i++) s[i] = b[i + 1] * x + (i + 1 < p ? s[i + 1] : 0) - a[i + 1] * y;
        x = y;
    }
}

static void multiply(int64_t w, const double *x, const double *y, double *xy) {
    memset(xy, 0, (size_t)(w * w) * sizeof *xy);
    for (int64_t i = 0; i < w; i++)
        for (int64_t k = 0; k < w; k++)
            for (int64_t j = 0; j < w; j++) xy[i * w + j] += x[i * w + k] * y[k * w + j];
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
static int64_t memory_of(const dpcri_filter_stage *stage, double *at, double *next) {
    const int64_t w = stage->width;
    int64_t m = 0;
    for (int64_t i = 0; i < w * w; i++) at[i] = i % (w + 1) == 0;
    for (int64_t k = stage->powers - 1; k >= 0; k--) {
        multiply(w, at, stage->power + k * w * w, next);
        if (largest(next, w * w) <= FORGOTTEN) continue;
        memcpy(at, next, (size_t)(w * w) * sizeof *at);
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
    stage->power = dpcri_alloc(f->context, (size_t)((POWERS + 2) * entries) * sizeof *stage->power);
    if (!stage->power)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "filter_create: no memory for powers of %" PRId64 " states", w);
    for (int64_t j = 0; j < w; j++) {
        double *unit = stage->power + POWERS * entries;  // room kept for memory_of
        memset(unit, 0, (size_t)w * sizeof *unit);
        unit[j] = 1;
        step(f, stage, unit);
        for (int64_t i = 0; i < w; i++) stage->power[i * w + j] = unit[i];
    }
    for (stage->powers = 1; stage->powers < POWERS; stage->powers++) {
        double *const last = stage->power + (stage->powers - 1) * entries;
        const double size = largest(last, entries);
        if (size > SLOW && stage->slow == INT64_MAX) stage->slow = (int64_t)1 << (stage->powers - 1);
        if (size <= FORGOTTEN) break;
        if (size > GROWN) {
            stage->limit = (int64_t)1 << (stage->powers - 1);
            return DPCR_OK;
        }
        multiply(w, last, last, last + entries);
    }
    if (largest(stage->power + (stage->powers - 1) * entries, entries) <= FORGOTTEN)
        stage->memory = memory_of(stage, stage->power + POWERS * entries, stage->power + (POWERS + 1) * entries);
    return DPCR_OK;
}

void dpcri_filter_power(const dpcri_filter_stage *stage, int64_t n, double *power, double *scratch) {
    const int64_t w = stage->width;
    for (int64_t i = 0; i < w * w; i++) power[i] = i % (w + 1) == 0;
    for (int64_t k = 0; k < stage->powers && n >> k; k++) {
        if (!(n >> k & 1)) continue;
        multiply(w, power, stage->power + k * w * w, scratch);
        memcpy(power, scratch, (size_t)(w * w) * sizeof *power);
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
