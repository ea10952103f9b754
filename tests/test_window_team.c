// SPDX-License-Identifier: MIT
// Shooting by several threads (dpcri_window_team), of every level: the same bits, the same answer, as by one, whoever
// takes part, comes late or not at all; chains with and without a residual, chains that stop being finite or that no
// window solves, rests of every kind. Against the loop: test_window.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kern/window.h"
#include "sampled.h"

enum { SEED = 23, MOST_STEPS = 30000 };

typedef struct team_case {
    const dpcri_window_kernels *k;
    dpcri_narrow p;
    dpcri_window_place place;
    dpcri_window asked;
    double memory[2][MOST_STEPS * 4];
    double parameters[MOST_STEPS * 20], in[4];
} team_case;

static void put(dpcr_dtype dtype, void *to, int64_t i, double x) {
    if (dtype == DPCR_F32)
        ((float *)to)[i] = (float)x;
    else
        ((double *)to)[i] = x;
}

// Steps with weights up to `size`; scale 0: no residual.
static void make(team_case *c, dpcr_dtype dtype, int64_t w, int64_t count, double size, double scale) {
    const int64_t record = w * w + w;
    c->p = (dpcri_narrow){.dtype = dtype,
                          .width = w,
                          .activation = DPCRI_ACT_TANH,
                          .residual = scale > 0,
                          .scale = scale,
                          .weight_in_out = true,
                          .weight = c->parameters,
                          .bias = (char *)c->parameters + (size_t)(w * w) * dpcr_dtype_size(dtype),
                          .weight_step = record,
                          .bias_step = record};
    for (int64_t i = 0; i < count * record; i++)
        put(dtype, c->parameters, i, size * (2 * dpcri_random_uniform(SEED, (uint64_t)w, (uint64_t)i) - 1));
    for (int64_t i = 0; i < w; i++) put(dtype, c->in, i, 0.4 - 0.3 * (double)i);
    c->place = (dpcri_window_place){.count = count, .in = c->in, .step = w};
    const double tolerance = dtype == DPCR_F32 ? 1e-5 : 1e-10;
    c->asked = (dpcri_window){.method = DPCRI_WINDOW_SHOOTING, .atol = tolerance, .rtol = tolerance};
}

typedef struct member {
    team_case *c;
    dpcri_window_team *team;
    dpcri_window window;
} member;

static void *take_part(void *argument) {
    member *m = argument;
    dpcri_window_place place = m->c->place;
    place.states = m->c->memory[1];
    m->window = m->c->asked;
    m->window.team = m->team;
    assert_int_equal(m->c->k->solve(&m->c->p, &place, &m->window), 0);
    return NULL;
}

static dpcri_window by_team(team_case *c, int threads, bool closing_alone) {
    static dpcri_window_team team;
    pthread_t others[DPCRI_TEAM_THREADS];
    member members[DPCRI_TEAM_THREADS];
    memset(&team, 0, sizeof team);
    for (int i = 0; i < threads; i++) members[i] = (member){.c = c, .team = &team};
    for (int i = 1; i < threads; i++) assert_int_equal(pthread_create(&others[i], NULL, take_part, &members[i]), 0);
    if (!closing_alone) take_part(&members[0]);
    for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
    dpcri_window_place place = c->place;
    place.states = c->memory[1];
    dpcri_window window = c->asked;
    window.team = &team, window.closing = true;
    assert_int_equal(c->k->solve(&c->p, &place, &window), 0);
    return window;
}

static dpcri_window alone(team_case *c) {
    dpcri_window_place place = c->place;
    place.states = c->memory[0];
    dpcri_window window = c->asked;
    assert_int_equal(c->k->solve(&c->p, &place, &window), 0);
    return window;
}

static void compare(team_case *c, const dpcri_window *one, const dpcri_window *team) {
    assert_int_equal(one->good, team->good);
    assert_int_equal(one->sweeps, team->sweeps);
    assert_true(one->residual == team->residual && one->estimate == team->estimate);
    assert_memory_equal(c->memory[0], c->memory[1], (size_t)(one->good * c->p.width) * dpcr_dtype_size(c->p.dtype));
}

static void each(void (*test)(team_case *c, dpcr_dtype dtype, int64_t w, int64_t number)) {
    int64_t number = 0;
    team_case *c = malloc(sizeof *c);
    for (int level = 0; level <= (int)dpcri_isa_level(); level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            c->k = dpcri_window_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (int64_t w = 1; c->k && w <= 4; w++)
                if (sampled(number++) || w == 2) test(c, (dpcr_dtype)dtype, w, number);
        }
    free(c);
}

static void same_bits(team_case *c, dpcr_dtype dtype, int64_t w, int64_t number) {
    static const int64_t counts[] = {1024, 3071, 5000, 12345, MOST_STEPS};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int residual = 0; residual < 2; residual++) {
            make(c, dtype, w, counts[i], 1 / sqrt((double)w), residual ? 1 / sqrt((double)counts[i]) : 0);
            const dpcri_window one = alone(c);
            if (residual) assert_int_equal(one.good, counts[i]);
            const int threads = 1 + (int)((number + (int64_t)i) % DPCRI_TEAM_THREADS);
            const dpcri_window team = by_team(c, threads, false);
            compare(c, &one, &team);
        }
}

// The closing call finds everything done, or nothing.
static void whoever_takes_part(team_case *c, dpcr_dtype dtype, int64_t w, int64_t number) {
    make(c, dtype, w, 8000, 0.7, 0.01);
    const dpcri_window one = alone(c);
    const dpcri_window team = by_team(c, 1 + (int)(number % 3), true);
    compare(c, &one, &team);
}

// A window in the midst gives up, and none after it counts, whatever others have made of them by then.
static void windows_that_give_up(team_case *c, dpcr_dtype dtype, int64_t w, int64_t number) {
    for (int kind = 0; kind < 3; kind++) {
        make(c, dtype, w, 20000, 0.7, 0.01);
        const int64_t record = w * w + w, at = 9000 + 7 * number;
        if (kind == 0)  // not a number: the loop ends there
            put(dtype, c->parameters, at * record + w * w, NAN);
        else  // weights so large that nothing is smooth: halved windows, in order at last
            for (int64_t i = at * record; i < (at + (kind == 1 ? 300 : 9000)) * record; i++)
                put(dtype, c->parameters, i, 900 * (2 * dpcri_random_uniform(SEED, 9, (uint64_t)i) - 1));
        if (kind > 0) c->p.scale = 0.3;
        if (kind == 2) c->asked.max_sweeps = 3;
        const dpcri_window one = alone(c);
        if (kind == 0) assert_true(one.good <= at);
        for (int threads = 2; threads <= DPCRI_TEAM_THREADS; threads += 2) {
            const dpcri_window team = by_team(c, threads, false);
            compare(c, &one, &team);
        }
    }
}

// Short chains, and newton, are no team's work.
static void what_is_left_to_the_closing_call(team_case *c, dpcr_dtype dtype, int64_t w, int64_t number) {
    make(c, dtype, w, 100 + number, 0.7, 0.05);
    dpcri_window one = alone(c), team = by_team(c, 2, false);
    compare(c, &one, &team);
    make(c, dtype, w, 5000, 0.7, 0.01);
    c->asked.method = DPCRI_WINDOW_NEWTON;
    one = alone(c), team = by_team(c, 2, false);
    assert_true(team.good > 0);
    compare(c, &one, &team);
}

static void same_bits_test(void **state) { (void)state, each(same_bits); }
static void whoever_takes_part_test(void **state) { (void)state, each(whoever_takes_part); }
static void windows_that_give_up_test(void **state) { (void)state, each(windows_that_give_up); }
static void closing_test(void **state) { (void)state, each(what_is_left_to_the_closing_call); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_test),
        cmocka_unit_test(whoever_takes_part_test),
        cmocka_unit_test(windows_that_give_up_test),
        cmocka_unit_test(closing_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
