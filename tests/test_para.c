// SPDX-License-Identifier: MIT
// The kernels of recurrent kinds whose units do not mix, at every level: every step against its definition in long
// double, Jacobians, adjoints and the gates' gradients against differences of that definition; the same bits for rows
// and units apart; ends; NaN that stays in its unit; and nothing read or written outside the arrays.
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

#include "kern/para.h"

enum { DIAGONALS, PEEPHOLES, INPUT, IN, STATES, TAPE, DIRECT, KEPT, E, LAST, OUT, F, A, USES, MOST_BYTES = 1 << 18 };
#include "guarded.h"

enum { STEPS = 3, LANES = 2, ROWS = 3 };
static const int64_t widths[] = {1, 3, 8, 17, 37, 64};

static void fill(dpcr_dtype dtype, void *data, int64_t count, double size) {
    static uint32_t seed = 1;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        put_number(dtype, data, i, size * ((double)(seed >> 8) / (1 << 23) - 1));
    }
}

typedef struct problem {
    const dpcri_para_kernels *kernels;
    dpcr_dtype dtype;
    dpcri_gates gates;
    int64_t count, tape, state, values;  // numbers of input, tape, state and Jacobian
    char *arrays[USES];
} problem;

static problem problem_make(dpcri_isa level, dpcr_dtype dtype, int kind, int64_t H, bool beginning) {
    problem p = {.kernels = dpcri_para_kernels_at(level, dtype), .dtype = dtype};
    p.gates.kind = (dpcri_gates_kind)kind;
    p.gates.width = H;
    p.count = dpcri_gates_count[kind] * H, p.tape = dpcri_gates_tape[kind] * H, p.state = dpcri_gates_state[kind] * H;
    p.values = kind == DPCRI_PARA_LSTM ? 4 * H : H;
    const int64_t strands = LANES * ROWS, all = strands * STEPS;
    const int64_t sizes[USES] = {
        [DIAGONALS] = 3 * H,      [PEEPHOLES] = 2 * H,        [INPUT] = all * p.count,   [IN] = strands * p.state,
        [STATES] = all * p.state, [TAPE] = all * p.tape,      [DIRECT] = all * p.state,  [KEPT] = all * p.state,
        [E] = all * p.tape,       [LAST] = strands * p.state, [OUT] = strands * p.state, [F] = strands * p.state,
        [A] = strands * p.values};
    for (int use = 0; use < USES; use++) {
        p.arrays[use] = guarded(use, (size_t)sizes[use] * p.kernels->gates.element, beginning);
        fill(dtype, p.arrays[use], sizes[use], use == INPUT ? 2 : 1);
    }
    for (int64_t i = 0; i < all * p.count; i += 5)  // gates that are all but closed
        put_number(dtype, p.arrays[INPUT], i, number_at(dtype, p.arrays[INPUT], i) - 15);
    p.gates.forward = kind == DPCRI_PARA_LINEAR ? NULL : p.arrays[DIAGONALS];
    p.gates.bias = kind == DPCRI_PARA_LSTM ? p.arrays[PEEPHOLES] : NULL;
    return p;
}

static dpcri_grid grid(const problem *p, int use, int64_t width) {
    return (dpcri_grid){p->arrays[use], STEPS * ROWS * width, ROWS * width, width};
}

static dpcri_grid edge(const problem *p, int use, int64_t width) {
    return (dpcri_grid){p->arrays[use], ROWS * width, 0, width};
}

static void run_forward(const problem *p, const int64_t *ends) {
    assert_true(p->kernels->gates.advance(&p->gates, &(dpcri_gates_forward){.lanes = LANES,
                                                                            .steps = STEPS,
                                                                            .rows = ROWS,
                                                                            .input = grid(p, INPUT, p->count),
                                                                            .in = edge(p, IN, p->state),
                                                                            .states = grid(p, STATES, p->state),
                                                                            .tape = grid(p, TAPE, p->tape),
                                                                            .last = edge(p, OUT, p->state),
                                                                            .ends = ends,
                                                                            .stride = STEPS}));
}

// The states that go in lie one step earlier in `STATES`; those of the first one are moved there by whoever goes back.
static void run_back(const problem *p, const int64_t *ends) {
    dpcri_grid in = grid(p, STATES, p->state);
    assert_true(p->kernels->gates.adjoint(&p->gates, &(dpcri_gates_adjoint){.lanes = LANES,
                                                                            .steps = STEPS,
                                                                            .rows = ROWS,
                                                                            .in = in,
                                                                            .tape = grid(p, TAPE, p->tape),
                                                                            .direct = grid(p, DIRECT, p->state),
                                                                            .kept = grid(p, KEPT, p->state),
                                                                            .e = grid(p, E, p->tape),
                                                                            .last = edge(p, LAST, p->state),
                                                                            .first_out = edge(p, OUT, p->state),
                                                                            .ends = ends,
                                                                            .stride = STEPS}));
}

static int64_t place(int64_t lane, int64_t step, int64_t row, int64_t width) {
    return ((lane * STEPS + step) * ROWS + row) * width;
}

static double number(const problem *p, int use, int64_t i) { return number_at(p->dtype, p->arrays[use], i); }

// ---- the definition ----

static long double sigmoid(long double u) { return 1 / (1 + expl(-u)); }

// state (c, h), x the input's part of the gates, t the tape
static void cell(const problem *p, int64_t i, const long double x[3], long double state[2], long double t[3]) {
    const int64_t H = p->gates.width;
    const bool diagonals = p->gates.kind != DPCRI_PARA_LINEAR, peepholes = p->gates.kind == DPCRI_PARA_LSTM;
    long double a[3] = {0}, c[2] = {0};
    const long double h = state[1];
    for (int q = 0; diagonals && q < 3; q++) a[q] = number(p, DIAGONALS, q * H + i);
    for (int q = 0; peepholes && q < 2; q++) c[q] = number(p, PEEPHOLES, q * H + i);
    if (p->gates.kind == DPCRI_PARA_GRU) {
        t[0] = sigmoid(a[0] * h + x[0]), t[1] = sigmoid(a[1] * h + x[1]);
        t[2] = tanhl(a[2] * (h * t[1]) + x[2]);
        state[1] = (1 - t[0]) * h + t[0] * t[2];
    } else if (p->gates.kind == DPCRI_PARA_LSTM) {
        t[0] = sigmoid(a[0] * h + c[0] * state[0] + x[0]), t[1] = tanhl(a[1] * h + x[1]);
        state[0] = t[0] * state[0] + (1 - t[0]) * t[1];
        t[2] = sigmoid(a[2] * h + c[1] * state[0] + x[2]);
        state[1] = t[2] * tanhl(state[0]);
    } else {
        t[0] = sigmoid(x[0]), t[1] = x[1], t[2] = 0;
        state[1] = (1 - t[0]) * h + t[0] * t[1];
    }
}

static void read_state(const problem *p, int use, int64_t at, int64_t i, long double s[2]) {
    const bool pairs = p->state > p->gates.width;
    s[0] = pairs ? number(p, use, at + 2 * i) : 0;
    s[1] = number(p, use, at + (pairs ? 2 * i + 1 : i));
}

// Derivatives of (c', h') by c, h, x_0, x_1, x_2, by differences: d[which][out].
static void differences(const problem *p, int64_t i, const long double x[3], const long double s[2],
                        long double d[5][2]) {
    const long double step = 1e-6L;
    for (int which = 0; which < 5; which++) {
        long double to[2][2], t[3];
        for (int side = 0; side < 2; side++) {
            long double moved[3] = {x[0], x[1], x[2]}, at[2] = {s[0], s[1]};
            *(which < 2 ? &at[which] : &moved[which - 2]) += side ? step : -step;
            cell(p, i, moved, at, t);
            memcpy(to[side], at, sizeof at);
        }
        for (int out = 0; out < 2; out++) d[which][out] = (to[1][out] - to[0][out]) / (2 * step);
    }
}

static void near(const char *what, const problem *p, double got, long double wanted) {
    const long double own = p->dtype == DPCR_F64 ? 1e-11L : 6e-6L;  // that of differences and of the functions
    if (!(fabsl((long double)got - wanted) <= own * (1 + fabsl(wanted))))
        fail_msg("%s, kind %d, width %d: %.12g, wanted %.12Lg", what, (int)p->gates.kind, (int)p->gates.width, got,
                 wanted);
}

// ---- tests ----

static void input_of(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t i, long double x[3]) {
    x[2] = 0;
    for (int q = 0; q < dpcri_gates_count[p->gates.kind]; q++)
        x[q] = number(p, INPUT, place(lane, step, row, p->count) + q * p->gates.width + i);
}

static void check_forward(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t i) {
    const int64_t H = p->gates.width, now = place(lane, step, row, p->state);
    long double x[3], s[2], t[3], got[2];
    input_of(p, lane, step, row, i, x);
    read_state(p, step ? STATES : IN, step ? place(lane, step - 1, row, p->state) : (lane * ROWS + row) * p->state, i,
               s);
    cell(p, i, x, s, t);
    read_state(p, STATES, now, i, got);
    near("c'", p, (double)got[0], s[0]);
    near("h'", p, (double)got[1], s[1]);
    for (int q = 0; q < (p->gates.kind == DPCRI_PARA_LINEAR ? 2 : 3); q++) {
        const double tape = number(p, TAPE, place(lane, step, row, p->tape) + q * H + i);
        near("tape", p, tape, t[q]);
        const bool gate = q == 0 || (q == 1) == (p->gates.kind == DPCRI_PARA_GRU);
        const long double eps = p->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON;
        // The sum that a gate is made of is rounded by up to 20 eps.
        if (gate && !(fabsl(tape - t[q]) <= 40 * eps * t[q]))
            fail_msg("gate %d, kind %d: %.9g, wanted %.9Lg to digits of its own", q, (int)p->gates.kind, tape, t[q]);
    }
    if (step < STEPS - 1) return;
    read_state(p, OUT, (lane * ROWS + row) * p->state, i, s);
    assert_true(s[0] == got[0] && s[1] == got[1]);
}

// Back through the states of STATES as those that go in: their own tape is made first, as one step of every strand.
static void check_back(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t i) {
    const int64_t H = p->gates.width, e = place(lane, step, row, p->tape) + i;
    long double x[3], s[2], d[5][2], g[2], before[2], direct[2] = {0};
    input_of(p, lane, step, row, i, x);
    read_state(p, STATES, place(lane, step, row, p->state), i, s);
    differences(p, i, x, s, d);
    read_state(p, KEPT, place(lane, step, row, p->state), i, g);
    for (int q = 0; q < dpcri_gates_count[p->gates.kind]; q++)
        near("e", p, number(p, E, e + q * H), d[2 + q][0] * g[0] + d[2 + q][1] * g[1]);
    if (p->gates.kind == DPCRI_PARA_GRU)
        near("e by r", p, number(p, E, e + 3 * H), number(p, E, e + 2 * H) * number(p, TAPE, e + H));
    if (step > 0) {
        read_state(p, KEPT, place(lane, step - 1, row, p->state), i, before);
        read_state(p, DIRECT, place(lane, step - 1, row, p->state), i, direct);
    } else {
        read_state(p, OUT, (lane * ROWS + row) * p->state, i, before);
    }
    for (int out = 0; out < 2; out++)
        near("g", p, (double)before[out], d[out][0] * g[0] + d[out][1] * g[1] + direct[out]);
}

static void check_jacobian(const problem *p, int64_t lane, int64_t row, int64_t i) {
    const int64_t strand = lane * ROWS + row, H = p->gates.width;
    long double x[3], s[2], t[3], d[5][2], f[2];
    input_of(p, lane, 0, row, i, x);
    read_state(p, IN, strand * p->state, i, s);
    differences(p, i, x, s, d);
    cell(p, i, x, s, t);
    read_state(p, F, strand * p->state, i, f);
    near("f", p, (double)f[1], s[1]);
    for (int k = 0; p->values > H && k < 4; k++)
        near("J", p, number(p, A, strand * p->values + 4 * i + k), d[k % 2][k / 2]);
    if (p->values == H) near("J", p, number(p, A, strand * p->values + i), d[1][1]);
}

static void linearise(const problem *p, const int64_t *ends) {
    dpcri_grid input = grid(p, INPUT, p->count);
    p->kernels->linearise(&p->gates, &(dpcri_para_linearised){.lanes = LANES,
                                                              .rows = ROWS,
                                                              .input = input,
                                                              .in = edge(p, IN, p->state),
                                                              .f = edge(p, F, p->state),
                                                              .a = edge(p, A, p->values),
                                                              .ends = ends,
                                                              .stride = STEPS});
}

// The tape at the states of STATES as those that go in.
static void retrace(const problem *p) {
    const dpcri_grid input = grid(p, INPUT, p->count), states = grid(p, STATES, p->state),
                     tape = grid(p, TAPE, p->tape);
    for (int64_t lane = 0; lane < LANES; lane++) {
        const size_t element = p->kernels->gates.element;
#define OF_LANE(g) ((dpcri_grid){(char *)(g).data + (size_t)(lane * (g).lane) * element, (g).step, 0, (g).row})
        assert_true(p->kernels->gates.advance(&p->gates, &(dpcri_gates_forward){.lanes = STEPS,
                                                                                .steps = 1,
                                                                                .rows = ROWS,
                                                                                .input = OF_LANE(input),
                                                                                .in = OF_LANE(states),
                                                                                .tape = OF_LANE(tape)}));
#undef OF_LANE
    }
}

static void check_sums(const problem *p) {
    const int64_t H = p->gates.width, rows = LANES * STEPS * ROWS - ROWS;
    double before[5];
    const int64_t at = H / 2;
    if (p->gates.kind == DPCRI_PARA_LINEAR) return;
    char *sums = p->arrays[A], *holes = p->arrays[F];  // as places: 3 H and 2 H numbers fit
    if (p->gates.kind == DPCRI_PARA_GRU) sums = p->arrays[KEPT];
    for (int q = 0; q < 5; q++) before[q] = number_at(p->dtype, q < 3 ? sums : holes, (q < 3 ? q : q - 3) * H + at);
    const char *after = p->arrays[STATES] + (size_t)(ROWS * p->state) * p->kernels->gates.element;
    p->kernels->sums(&p->gates, &(dpcri_para_sums){.rows = rows,
                                                   .e = p->arrays[E],
                                                   .before = p->arrays[STATES],
                                                   .after = after,
                                                   .e_row = p->tape,
                                                   .before_row = p->state,
                                                   .after_row = p->state,
                                                   .diagonals = sums,
                                                   .peepholes = holes,
                                                   .to = H});
    long double sum[5];
    for (int q = 0; q < 5; q++) sum[q] = before[q];
    for (int64_t i = 0; i < rows; i++) {
        long double s[2], next[2], e[4];
        read_state(p, STATES, i * p->state, at, s);
        read_state(p, STATES, (i + ROWS) * p->state, at, next);
        for (int64_t q = 0; q < p->tape / H; q++) e[q] = number(p, E, i * p->tape + q * H + at);
        sum[0] += e[0] * s[1], sum[1] += e[1] * s[1], sum[2] += e[p->tape / H - 1] * s[1];
        sum[3] += e[0] * s[0], sum[4] += e[2] * next[0];
    }
    for (int q = 0; q < (p->gates.kind == DPCRI_PARA_LSTM ? 5 : 3); q++)
        near("sum", p, number_at(p->dtype, q < 3 ? sums : holes, (q < 3 ? q : q - 3) * H + at), sum[q]);
}

#define EACH_PROBLEM(...)                                                                      \
    for (int level = 0; level < DPCRI_ISA_COUNT; level++)                                      \
        for (int wide = 0; wide < 2; wide++)                                                   \
            for (int kind = DPCRI_PARA_GRU; kind < DPCRI_GATES_ALL; kind++)                    \
                for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {                \
                    const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;                       \
                    if (!dpcri_para_kernels_at((dpcri_isa)level, dtype)) continue;             \
                    problem p = problem_make((dpcri_isa)level, dtype, kind, widths[w], w % 2); \
                    __VA_ARGS__                                                                \
                }

#define EACH_NUMBER(check)                           \
    for (int64_t lane = 0; lane < LANES; lane++)     \
        for (int64_t step = 0; step < STEPS; step++) \
            for (int64_t row = 0; row < ROWS; row++) \
                for (int64_t i = 0; i < p.gates.width; i++) check

static void test_definition(void **state) {
    (void)state;
    EACH_PROBLEM({
        run_forward(&p, NULL);
        EACH_NUMBER(check_forward(&p, lane, step, row, i));
        linearise(&p, NULL);
        EACH_NUMBER(check_jacobian(&p, lane, row, i));
        retrace(&p);
        run_back(&p, NULL);
        EACH_NUMBER(check_back(&p, lane, step, row, i));
        check_sums(&p);
    })
}

// Units from 0, m and so on apart, in both directions.
static void test_units_apart(void **state) {
    (void)state;
    EACH_PROBLEM({
        const size_t element = p.kernels->gates.element, states = (size_t)(LANES * STEPS * ROWS * p.state) * element,
                     tapes = (size_t)(LANES * STEPS * ROWS * p.tape) * element;
        char *whole = malloc(2 * states + 2 * tapes);
        for (int parts = 0; parts < 2; parts++) {
            const int64_t H = p.gates.width, m = parts ? (H + 2) / 3 : H;
            memset(p.arrays[TAPE], 0, tapes);  // the fourth number is not written forward
            for (int64_t from = 0; from < H; from += m) {
                p.gates.from = from, p.gates.to = from + m < H ? from + m : H;
                run_forward(&p, NULL);
            }
            if (!parts) memcpy(whole, p.arrays[STATES], states), memcpy(whole + states, p.arrays[TAPE], tapes);
            assert_memory_equal(whole, p.arrays[STATES], states);
            assert_memory_equal(whole + states, p.arrays[TAPE], tapes);
            for (int64_t from = 0; from < H; from += m) {
                p.gates.from = from, p.gates.to = from + m < H ? from + m : H;
                run_back(&p, NULL);
            }
            char *back = whole + states + tapes;
            if (!parts) memcpy(back, p.arrays[KEPT], states), memcpy(back + states, p.arrays[E], tapes);
            assert_memory_equal(back, p.arrays[KEPT], states);
            assert_memory_equal(back + states, p.arrays[E], tapes);
        }
        free(whole);
    })
}

// Past its end a row keeps its state, its tape and e are 0, g passes through and the Jacobian is 1; the others' bits
// are as without ends. NaN at one unit of one row stays there.
static void test_ends_and_nan(void **state) {
    (void)state;
    static const int64_t ends[ROWS] = {STEPS * LANES, 2, 0};
    EACH_PROBLEM({
        const int64_t H = p.gates.width, unit = H / 2;
        const size_t element = p.kernels->gates.element, states = (size_t)(LANES * STEPS * ROWS * p.state) * element;
        char *plain = malloc(states);
        run_forward(&p, NULL);
        memcpy(plain, p.arrays[STATES], states);
        put_number(dtype, p.arrays[INPUT], unit, NAN);  // lane 0, step 0, row 0
        run_forward(&p, ends);
        linearise(&p, ends);
        for (int64_t lane = 0; lane < LANES; lane++)
            for (int64_t step = 0; step < STEPS; step++)
                for (int64_t row = 0; row < ROWS; row++)
                    for (int64_t i = 0; i < H; i++) {
                        const int64_t at = place(lane, step, row, p.state), l = lane * STEPS + step;
                        long double now[2], was[2];
                        read_state(&p, STATES, at, i, now);
                        if (l < ends[row]) {
                            const double alone = number_at(dtype, plain, at + (p.state > H ? 2 * i + 1 : i));
                            if (lane == 0 && row == 0 && i == unit)
                                assert_true(isnan((double)now[1]));
                            else
                                assert_true((double)now[1] == alone);
                            continue;
                        }
                        read_state(&p, step ? STATES : IN,
                                   step ? place(lane, step - 1, row, p.state) : (lane * ROWS + row) * p.state, i, was);
                        assert_true(now[0] == was[0] && now[1] == was[1]);
                        for (int64_t q = 0; q < p.tape / H; q++)
                            assert_true(number(&p, TAPE, place(lane, step, row, p.tape) + q * H + i) == 0);
                        const int64_t j = (lane * ROWS + row) * p.values;
                        for (int k = 0; step == 0 && p.values > H && k < 4; k++)
                            assert_true(number(&p, A, j + 4 * i + k) == (k == 0 || k == 3));
                        if (step == 0 && p.values == H) assert_true(number(&p, A, j + i) == 1);
                    }
        run_back(&p, ends);
        for (int64_t i = 0; i < p.state; i++)  // the row without steps
            assert_true(number(&p, OUT, 2 * p.state + i) == number(&p, LAST, 2 * p.state + i));
        for (int64_t i = 0; i < p.tape; i++) assert_true(number(&p, E, 2 * p.tape + i) == 0);
        free(plain);
    })
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_definition), cmocka_unit_test(test_units_apart),
                                       cmocka_unit_test(test_ends_and_nan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
