// SPDX-License-Identifier: MIT
// The adjoint kernels of every level: every step against its definition in long double, within the rounding errors of
// its sums; lanes and cut chains against the loop bit for bit, wherever their arrays lie; NaN that stays in its lane;
// and nothing read or written outside the arrays, on either side.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/adjoint.h"

enum { STEPS = 300, W = DPCRI_NARROW_WIDTH, EIGHT = 8 };

enum { WEIGHTS, SLOPES, DIRECT, KEPT, E, LAST, OUT, USES, MOST_BYTES = 1 << 20 };
#include "guarded.h"
#include "noise.h"
#include "sampled.h"

static long double at(dpcr_dtype dtype, const void *data, int64_t i) { return number_at(dtype, data, i); }

// How the chain's weights lie: shared, a step's own one after the other, in records with a bias, or with gaps.
enum { SHARED, OWN, RECORD, GAPS, LAYOUTS };

typedef struct form {
    dpcr_dtype dtype;
    int64_t w;
    int layout;
    bool residual, diagonal;
} form;

static size_t element_of(const form *f) { return f->dtype == DPCR_F64 ? 8 : 4; }

static dpcri_narrow chain_make(const form *f, int64_t steps, bool beginning) {
    const int64_t w = f->w, values = f->diagonal ? w : w * w;
    dpcri_narrow n = {.dtype = f->dtype,
                      .width = w,
                      .activation = DPCRI_ACT_TANH,
                      .residual = f->residual,
                      .scale = f->residual ? 0.37 : 1,
                      .diagonal = f->diagonal,
                      .weight_in_out = f->layout == RECORD || (f->layout == SHARED && w == 2)};
    n.weight_step = f->layout == SHARED ? 0 : f->layout == OWN ? values : f->layout == RECORD ? values + w : values + 3;
    const int64_t all = (steps - 1) * n.weight_step + values + (f->layout == RECORD ? w : 0);
    char *weights = guarded(WEIGHTS, (size_t)all * element_of(f), beginning);
    noise_fill(f->dtype, weights, all, 1.6 / sqrt((double)w));
    n.weight = weights;
    if (f->layout == RECORD) n.bias = weights + (size_t)values * element_of(f), n.bias_step = n.weight_step;
    assert_true(dpcri_adjoint_serves(&n));
    return n;
}

static long double weight_at(const form *f, const dpcri_narrow *n, int64_t step, int64_t i, int64_t j) {
    const int64_t w = f->w, base = step * n->weight_step;
    if (f->diagonal) return i == j ? at(f->dtype, n->weight, base + i) : 0;
    return at(f->dtype, n->weight, base + (n->weight_in_out ? j * w + i : i * w + j));
}

// ---- the loop against its definition ----

// Every step from the kernel's own numbers, within the errors of its sums: each term is rounded at most five times, and
// there are w + 2 of them.
static void check_loop(const dpcri_adjoint_kernels *k, const form *f) {
    enum { COUNT = 50 };
    const int64_t w = f->w;
    const dpcri_narrow n = chain_make(f, COUNT, false);
    const size_t bytes = (size_t)(COUNT * w) * element_of(f);
    char *slope = guarded(SLOPES, bytes, false), *direct = guarded(DIRECT, bytes, false);
    char *kept = guarded(KEPT, bytes, false), *e = guarded(E, bytes, false);
    char *last = guarded(LAST, bytes / COUNT, false), *out = guarded(OUT, bytes / COUNT, false);
    noise_fill(f->dtype, slope, COUNT * w, 1), noise_fill(f->dtype, direct, COUNT * w, 1),
        noise_fill(f->dtype, last, w, 1);
    k->run(&n, &(dpcri_adjoint_run){.lanes = 1,
                                    .stride = 1,
                                    .steps = COUNT,
                                    .rows = 1,
                                    .slope = {slope, 0, w, 0},
                                    .direct = {direct, 0, w, 0},
                                    .kept = {kept, 0, w, 0},
                                    .e = {e, 0, w, 0},
                                    .last = {last, 0, 0, 0},
                                    .first_out = {out, 0, 0, 0}});
    const long double eps = f->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON, bound = (long double)(w + 7) * eps;
    const long double scale = (long double)(f->dtype == DPCR_F64 ? n.scale : (double)(float)n.scale);
    for (int64_t l = COUNT; l-- > 0;)
        for (int64_t j = 0; j < w; j++) {
            const long double g = at(f->dtype, kept, l * w + j), d = at(f->dtype, slope, l * w + j);
            const long double got_e = at(f->dtype, e, l * w + j);
            if (!(fabsl(got_e - scale * d * g) <= 2 * eps * fabsl(scale * d * g)))
                fail_msg("e of step %d: %.9Lg, wanted %.9Lg", (int)l, got_e, scale * d * g);
            long double sum = f->residual ? g : 0, size = fabsl(sum);
            for (int64_t i = 0; i < w; i++) {
                const long double term =
                    weight_at(f, &n, l, i, j) * scale * at(f->dtype, slope, l * w + i) * at(f->dtype, kept, l * w + i);
                sum += term, size += fabsl(term);
            }
            if (l) sum += at(f->dtype, direct, (l - 1) * w + j), size += fabsl(at(f->dtype, direct, (l - 1) * w + j));
            const long double got = l ? at(f->dtype, kept, (l - 1) * w + j) : at(f->dtype, out, j);
            if (!(fabsl(got - sum) <= bound * size))
                fail_msg("width %d, layout %d, residual %d, diagonal %d, step %d: %.9Lg, wanted %.9Lg", (int)w,
                         f->layout, f->residual, f->diagonal, (int)l, got, sum);
        }
    for (int64_t j = 0; j < w; j++) {
        const long double sum = at(f->dtype, last, j) + at(f->dtype, direct, (COUNT - 1) * w + j);
        assert_true(at(f->dtype, kept, (COUNT - 1) * w + j) ==
                    (f->dtype == DPCR_F64 ? (long double)(double)sum : (long double)(float)sum));
    }
}

// ---- lanes against the loop ----

// What a call leaves, and what it starts from: which of direct, kept and e there are, and whether kept is direct and e
// the slopes; kept in one place of each lane.
enum { WITH_DIRECT = 1, WITH_KEPT = 2, WITH_E = 4, IN_PLACE = 8, ONE_PLACE = 16, WITH_OUT = 32, CHOICES = 64 };

typedef struct layout {
    int64_t lanes, stride, steps, rows, gap;
    int choice;
    bool beginning;
} layout;

typedef struct arrays {
    char *slope, *direct, *kept, *e, *last, *out;
    int64_t numbers, states;  // of the large ones, and of last and out
} arrays;

static void same(const form *f, const layout *l, const char *what, const char *got, const char *wanted, int64_t count) {
    const size_t element = element_of(f);
    if (memcmp(got, wanted, (size_t)count * element) == 0) return;
    for (int64_t i = 0; i < count; i++)
        if (memcmp(got + (size_t)i * element, wanted + (size_t)i * element, element) != 0)
            fail_msg(
                "%s: width %d, layout %d, residual %d, diagonal %d, %d lanes of %d steps %d apart, %d rows, choice "
                "%d: number %d is %.9Lg, the loop has %.9Lg",
                what, (int)f->w, f->layout, f->residual, f->diagonal, (int)l->lanes, (int)l->steps, (int)l->stride,
                (int)l->rows, l->choice, (int)i, at(f->dtype, got, i), at(f->dtype, wanted, i));
}

// The call's grids: arrays over the chain's steps, of which lane c has those from c stride on, `gap` numbers between
// the steps; kept and e of overlapping lanes would not be disjoint, so lanes have places of their own there.
static dpcri_adjoint_run run_of(const form *f, const layout *l, const arrays *a) {
    const int64_t w = f->w, row = w, step = l->rows * w + l->gap, own = l->steps * step, chain = l->stride * step;
    dpcri_adjoint_run r = {.lanes = l->lanes, .stride = l->stride, .steps = l->steps, .rows = l->rows};
    const bool in_place = l->choice & IN_PLACE;
    r.slope = (dpcri_grid){a->slope, in_place ? own : chain, step, row};
    if (l->choice & WITH_DIRECT) r.direct = (dpcri_grid){a->direct, in_place ? own : chain, step, row};
    if (l->choice & WITH_KEPT) r.kept = (dpcri_grid){a->kept, own, step, row};
    if (l->choice & WITH_E) r.e = (dpcri_grid){a->e, own, step, row};
    if (in_place && (l->choice & WITH_DIRECT) && (l->choice & WITH_KEPT)) r.kept = r.direct;
    if (in_place && (l->choice & WITH_E)) r.e = r.slope;
    if ((l->choice & ONE_PLACE) && (l->choice & WITH_KEPT) && !in_place)
        r.kept = (dpcri_grid){a->kept, l->rows * w, 0, row};
    r.last = (dpcri_grid){a->last, l->rows * w, 0, row};
    if (l->choice & WITH_OUT) r.first_out = (dpcri_grid){in_place ? a->last : a->out, l->rows * w, 0, row};
    return r;
}

static dpcri_grid from(dpcri_grid g, int64_t c, int64_t k, int64_t row, size_t element) {
    if (g.data) g.data = (char *)g.data + (size_t)(c * g.lane + k * g.step + row * g.row) * element;
    return g;
}

// Steps first .. first + count - 1 of one lane and row of a call.
static dpcri_adjoint_run part_of(const dpcri_adjoint_run *r, int64_t c, int64_t row, int64_t first, int64_t count,
                                 size_t element) {
    return (dpcri_adjoint_run){.first = r->first + c * r->stride + first,
                               .lanes = 1,
                               .stride = 1,
                               .steps = count,
                               .rows = 1,
                               .slope = from(r->slope, c, first, row, element),
                               .direct = from(r->direct, c, first, row, element),
                               .kept = from(r->kept, c, first, row, element),
                               .e = from(r->e, c, first, row, element),
                               .last = from(r->last, c, 0, row, element),
                               .first_out = from(r->first_out, c, 0, row, element)};
}

static void arrays_fill(const form *f, const arrays *a) {
    noise_fill(f->dtype, a->slope, a->numbers, 1), noise_fill(f->dtype, a->direct, a->numbers, 1);
    noise_fill(f->dtype, a->kept, a->numbers, 1), noise_fill(f->dtype, a->e, a->numbers, 1);
    noise_fill(f->dtype, a->last, a->states, 1), noise_fill(f->dtype, a->out, a->states, 1);
}

// One call, between the guarding pages, and its lanes and rows one by one by the loop, in two parts where there is a
// place for what lies between: whole arrays must agree, gaps and what is only read among them.
static void check_lanes(const dpcri_adjoint_kernels *k, const form *f, const layout *l) {
    const int64_t w = f->w, step = l->rows * w + l->gap, reach = l->stride > l->steps ? l->stride : l->steps;
    const dpcri_narrow n = chain_make(f, l->lanes * reach + 1, l->beginning);
    arrays a = {.numbers = ((l->lanes - 1) * reach + l->steps) * step - l->gap, .states = l->lanes * l->rows * w};
    if (l->steps == 0) a.numbers = 0;
    const size_t element = element_of(f), bytes = (size_t)a.numbers * element, state = (size_t)a.states * element;
    a.slope = guarded(SLOPES, bytes, l->beginning), a.direct = guarded(DIRECT, bytes, l->beginning);
    a.kept = guarded(KEPT, bytes, l->beginning), a.e = guarded(E, bytes, l->beginning);
    a.last = guarded(LAST, state, l->beginning), a.out = guarded(OUT, state, l->beginning);
    arrays b = a;
    char *const copy = malloc(4 * bytes + 2 * state + 1);
    assert_non_null(copy);
    b.slope = copy, b.direct = copy + bytes, b.kept = copy + 2 * bytes, b.e = copy + 3 * bytes;
    b.last = copy + 4 * bytes, b.out = copy + 4 * bytes + state;
    arrays_fill(f, &a);
    memcpy(b.slope, a.slope, bytes), memcpy(b.direct, a.direct, bytes);
    memcpy(b.kept, a.kept, bytes), memcpy(b.e, a.e, bytes);
    memcpy(b.last, a.last, state), memcpy(b.out, a.out, state);
    const dpcri_adjoint_run whole = run_of(f, l, &a), alone = run_of(f, l, &b);
    k->run(&n, &whole);
    for (int64_t c = 0; c < l->lanes; c++)
        for (int64_t r = 0; r < l->rows; r++) {
            const int64_t half = (l->choice & WITH_OUT) ? l->steps / 2 : 0;
            dpcri_adjoint_run part = part_of(&alone, c, r, half, l->steps - half, element);
            k->run(&n, &part);
            if (half == 0) continue;
            part = part_of(&alone, c, r, 0, half, element);
            part.last = part.first_out;
            k->run(&n, &part);
        }
    same(f, l, "slope", a.slope, b.slope, a.numbers), same(f, l, "direct", a.direct, b.direct, a.numbers);
    same(f, l, "kept", a.kept, b.kept, a.numbers), same(f, l, "e", a.e, b.e, a.numbers);
    same(f, l, "last", a.last, b.last, a.states), same(f, l, "out", a.out, b.out, a.states);
    free(copy);
}

static void check_splits(const dpcri_adjoint_kernels *k, const form *f) {
    static const int64_t counts[] = {1, 2, 3, 7, 16, 33, 64, 81}, lengths[] = {0, 1, 2, 5, 16, 17, 32, 48};
    static const int64_t some_rows[] = {1, 2, 3, 8, 16, 37};
    static int64_t run;
    int choice = (int)f->w;
    for (size_t q = 0; q < sizeof some_rows / sizeof *some_rows; q++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (size_t j = 0; j < sizeof lengths / sizeof *lengths; j++) {
                const int64_t rows = some_rows[q];
                if (rows * counts[i] > 120 || rows * counts[i] * lengths[j] * f->w > 16000) continue;
                choice = (choice + 11) % CHOICES;
                if (!sampled(run++)) continue;
                layout l = {.lanes = counts[i],
                            .stride = lengths[j] + 1,
                            .steps = lengths[j],
                            .rows = rows,
                            .gap = j % 3 == 1,
                            .choice = choice,
                            .beginning = i % 2};
                check_lanes(k, f, &l);
                if (f->w > W && f->w != EIGHT) continue;
                l.stride = lengths[j], l.choice = (choice + 32) % CHOICES, l.gap = 0, l.beginning = !l.beginning;
                check_lanes(k, f, &l);
            }
}

static int64_t combinations(void (*check)(const dpcri_adjoint_kernels *, const form *)) {
    static const int64_t wide[] = {5, EIGHT, 16, 17, 33, 70};
    int64_t run = 0;
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++) {
            const dpcri_adjoint_kernels *k = dpcri_adjoint_kernels_at((dpcri_isa)level, (dpcr_dtype)dtype);
            for (int64_t i = 0; k && i < W + (int64_t)(sizeof wide / sizeof *wide); i++)
                for (int bits = 0; bits < 4 * LAYOUTS; bits++, run++) {
                    const bool eight = dtype == DPCR_F32 && i >= W && wide[i - W] == EIGHT;
                    const form f = {.dtype = (dpcr_dtype)dtype,
                                    .w = i < W ? i + 1 : wide[i - W],
                                    .layout = bits / 4,
                                    .residual = bits & 1,
                                    .diagonal = (i >= W && !eight) || (bits & 2)};
                    if (sampled(run)) check(k, &f);
                }
        }
    return run;
}

static void loop_is_the_adjoint_chain(void **state) {
    (void)state;
    assert_true(combinations(check_loop) >= 2 * 10 * 4 * LAYOUTS);
}

static void lanes_are_the_loop(void **state) {
    (void)state;
    combinations(check_splits);
}

// ---- what is not finite ----

// A NaN in one lane's start stays there; one that comes with a slope or a direct part goes left from its step on.
static void check_nan(const dpcri_adjoint_kernels *k, const form *f) {
    enum { LANES = 40, COUNT = 37 };
    if ((f->w > W && f->w != EIGHT) || f->layout == GAPS) return;
    const int64_t w = f->w, numbers = LANES * COUNT * w;
    const dpcri_narrow n = chain_make(f, LANES * COUNT, false);
    static double slope[LANES * COUNT * EIGHT], direct[LANES * COUNT * EIGHT], kept[LANES * COUNT * EIGHT],
        last[LANES * EIGHT];
    noise_fill(f->dtype, slope, numbers, 1), noise_fill(f->dtype, direct, numbers, 1),
        noise_fill(f->dtype, last, LANES * w, 1);
    put_number(f->dtype, last, 11 * w, NAN);
    put_number(f->dtype, slope, (20 * COUNT + 5) * w, NAN);
    put_number(f->dtype, direct, (30 * COUNT + 9) * w, INFINITY);
    put_number(f->dtype, slope, (30 * COUNT + 8) * w, 0);  // Inf times 0
    const dpcri_grid lanes = {NULL, COUNT * w, w, w};
    dpcri_adjoint_run r = {.lanes = LANES, .stride = COUNT, .steps = COUNT, .rows = 1};
    r.slope = r.direct = r.kept = lanes;
    r.slope.data = slope, r.direct.data = direct, r.kept.data = kept;
    r.last = (dpcri_grid){last, w, 0, w};
    k->run(&n, &r);
    for (int64_t l = 0; l < LANES; l++)
        for (int64_t s = 0; s < COUNT; s++) {
            const double got = (double)at(f->dtype, kept, (l * COUNT + s) * w);
            if (l == 11 || (l == 20 && s < 5))
                assert_true(isnan(got));
            else if (l == 30 && s == 9)
                assert_true(isinf(got));
            else if (l == 30 && s < 8)
                assert_true(isnan(got));
            else if (l != 30)
                assert_true(isfinite(got));
        }
}

static void nan_stays_in_its_lane(void **state) {
    (void)state;
    combinations(check_nan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_is_the_adjoint_chain),
        cmocka_unit_test(lanes_are_the_loop),
        cmocka_unit_test(nan_stays_in_its_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
