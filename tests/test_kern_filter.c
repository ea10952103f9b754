// SPDX-License-Identifier: MIT
// Few lanes, of which a kernel puts the sections, or one section's states, into the lanes of vectors, against each of
// them among as many as a call takes, of which it puts the lanes there: the same bits, zeros' signs too, every level,
// either way and dtype, whatever runs beside; arrays against inaccessible pages, and nothing written between samples.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kern/filter.h"

enum {
    FEW = 20,
    MANY = DPCRI_FILTER_LANES,
    SECTIONS = 33,
    STATES = DPCRI_FILTER_STATES,
    STEPS = 5000,  // seldom: more than lanes take at once
    USUAL = 150,
    STRIDE = 3,
    X = 0,  // arrays of the lanes
    Y = X + FEW,
    USES = Y + FEW,
    MOST_BYTES = 1 << 17
};
#include "guarded.h"

typedef struct problem {
    dpcri_filter_run run;
    double b[STATES + 1], a[STATES + 1];
    double x[MANY][STEPS], state[MANY][STATES];
} problem;

static uint32_t seed = 3;
static double noise(void) {
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / (1 << 23) - 1;
}

static int64_t drawn(int64_t below) { return (int64_t)((noise() + 1) / 2 * (double)below); }

// Mostly zeros of either sign.
static double zero_or_noise(void) {
    const int64_t kind = drawn(16);
    return kind ? kind % 2 ? 0.0 : -0.0 : noise();
}

static void draw(problem *p, int64_t sections, int64_t order, int64_t lanes) {
    dpcri_filter_run *r = &p->run;
    double *const b = p->b, *const a = p->a, most = order > 2 ? 1 / (double)order : 0.5;
    const bool quiet = drawn(5) == 0;
    *r = (dpcri_filter_run){.sections = sections, .order = order, .b = b, .a = a, .lanes = lanes};
    r->open = sections == 1 && drawn(4) == 0;
    r->steps = drawn(3) ? drawn(USUAL) : drawn(2 * sections * order + 1);
    if (drawn(40) == 0) r->steps = STEPS - drawn(USUAL);
    r->backward = drawn(2);
    r->x_dtype = drawn(2) ? DPCR_F32 : DPCR_F64, r->y_dtype = drawn(2) ? DPCR_F32 : DPCR_F64;
    r->x_stride = 1 + drawn(STRIDE), r->y_stride = 1 + drawn(STRIDE);
    for (int64_t i = 0; i < sections * (order + 1); i++) {
        const bool leads = i % (order + 1) == 0;
        b[i] = quiet ? zero_or_noise() : noise(), a[i] = leads ? 1 : r->open ? 0 : most * noise();
    }
    for (int64_t l = 0; l < lanes; l++) {
        for (int64_t k = 0; k < r->steps; k++) p->x[l][k] = (double)(float)(quiet ? zero_or_noise() : noise());
        for (int64_t s = 0; s < STATES; s++) p->state[l][s] = quiet ? zero_or_noise() : noise();
    }
}

// Lanes of the problem, each in an array that ends, or begins, where nobody may touch.
static void run_lanes(problem *p, dpcri_isa level, bool in_place, bool stored) {
    const void *x[FEW];
    void *y[FEW];
    double *state[FEW];
    dpcri_filter_run r = p->run;
    if (in_place) r.y_dtype = r.x_dtype, r.y_stride = r.x_stride;
    for (int64_t l = 0; l < r.lanes; l++) {
        const int64_t span = r.steps ? (r.steps - 1) * r.x_stride + 1 : 0;
        const int64_t out = r.steps ? (r.steps - 1) * r.y_stride + 1 : 0;
        char *in = guarded(X + (int)l, (size_t)span * dpcr_dtype_size(r.x_dtype), l % 2 == 0);
        for (int64_t i = 0; i < span; i++) put_number(r.x_dtype, in, i, i % r.x_stride ? NAN : p->x[l][i / r.x_stride]);
        x[l] = in;
        y[l] = in_place ? in : guarded(Y + (int)l, (size_t)out * dpcr_dtype_size(r.y_dtype), l % 2 == 0);
        for (int64_t i = 0; i < out && !in_place; i++) put_number(r.y_dtype, y[l], i, -3);
        state[l] = p->state[l];
    }
    r.x = x, r.y = stored ? y : NULL, r.state = state;
    dpcri_filter_at(level)(&r);
    p->run = r;
    for (int64_t l = 0; l < r.lanes && stored; l++)
        for (int64_t i = 0; i < (r.steps ? (r.steps - 1) * r.y_stride + 1 : 0); i++) {
            const double number = number_at(r.y_dtype, y[l], i);
            if (i % r.y_stride == 0)
                p->x[l][i / r.y_stride] = number;
            else
                assert_true(in_place ? isnan(number) : number == -3);
        }
}

// Lane `from` alone of those is right: copies of it in all places, as doubles that the lanes' dtype rounds.
static void run_among(const problem *p, dpcri_isa level, int64_t from, double *y, double *state) {
    static double in[MANY][STEPS], states[MANY][STATES];
    static union {
        float f[STEPS];
        double d[STEPS];
    } out[MANY];
    const void *x[MANY];
    void *to[MANY];
    double *own[MANY];
    dpcri_filter_run r = p->run;
    for (int64_t l = 0; l < MANY; l++) {
        memcpy(in[l], p->x[from], (size_t)r.steps * sizeof *in[l]);
        memcpy(states[l], p->state[from], sizeof states[l]);
        x[l] = in[l], to[l] = &out[l], own[l] = states[l];
    }
    r.lanes = MANY, r.x = x, r.y = to, r.state = own, r.x_stride = r.y_stride = 1, r.x_dtype = DPCR_F64;
    dpcri_filter_at(level)(&r);
    for (int64_t k = 0; k < r.steps; k++) y[k] = number_at(r.y_dtype, &out[MANY / 3], k);
    memcpy(state, states[MANY / 3], sizeof states[0]);
}

static void check(dpcri_isa level, int64_t sections, int64_t order, int64_t lanes) {
    static problem given, found;
    draw(&given, sections, order, lanes);
    const bool in_place = drawn(4) == 0, stored = drawn(6) > 0;
    if (in_place) given.run.y_dtype = given.run.x_dtype;
    const bool infinite = lanes > 1 && given.run.steps > 0 && drawn(4) == 0;
    if (infinite) given.x[lanes - 1][drawn(given.run.steps)] = INFINITY;
    found = given;
    run_lanes(&found, level, in_place, stored);
    for (int64_t l = 0; l < lanes - infinite; l++) {
        static double y[STEPS];
        double state[STATES];
        run_among(&given, level, l, y, state);
        assert_memory_equal(found.state[l], state, (size_t)(sections * order) * sizeof(double));
        if (stored) assert_memory_equal(found.x[l], y, (size_t)given.run.steps * sizeof *y);
    }
}

static void few_have_the_bits_of_many(void **unused) {
    (void)unused;
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int64_t sections = 1; sections <= SECTIONS; sections++)
            for (int64_t i = 0; i < 4 * FEW; i++) check((dpcri_isa)level, sections, 2, 1 + i % FEW);
}

static void other_orders_likewise(void **unused) {
    (void)unused;
    static const int64_t orders[] = {0, 1, 2, 3, 4, 5, 8, 17, 32, 33, 66, STATES};
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (size_t p = 0; p < sizeof orders / sizeof *orders; p++)
            for (int64_t i = 0; i < 8 * FEW; i++)
                check((dpcri_isa)level, 1, orders[p], 1 + (i % 2 ? i / 2 % FEW : drawn(4)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_have_the_bits_of_many),
                                       cmocka_unit_test(other_orders_likewise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
