// SPDX-License-Identifier: MIT
// The recurrent kernels of every level: every step against its definition in long double, within the rounding errors of
// its sums and the stated error of its functions; strands against themselves alone, bit for bit, however many run
// together and wherever their arrays lie; ends; NaN that stays in its strand; and nothing read or written outside the
// arrays.
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

#include "kern/gates.h"

enum {
    WEIGHTS,
    FORWARD,
    BACKWARD,
    BIAS,
    INPUT,
    IN,
    STATES,
    TAPE,
    DIRECT,
    KEPT,
    E,
    LAST,
    OUT,
    USES,
    MOST_BYTES = 1 << 23
};
#include "guarded.h"

static uint32_t seed = 1;

static void fill(dpcr_dtype dtype, void *data, int64_t count, double size) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        put_number(dtype, data, i, size * ((double)(seed >> 8) / (1 << 23) - 1));
    }
}

static dpcr_context *scratch;  // for what does not fit the kernels' stack

// One problem: a kind and its widths, and arrays for lanes x steps x rows.
typedef struct problem {
    const dpcri_gates_kernels *kernels;
    dpcr_dtype dtype;
    dpcri_gates gates;
    int64_t lanes, steps, rows, count, tape, state;  // numbers of gates, tape and state
    char *weight;
    char *arrays[USES];
} problem;

static dpcri_grid grid(const problem *p, int use, int64_t width) {
    return (dpcri_grid){p->arrays[use], p->steps * p->rows * width, p->rows * width, width};
}

static dpcri_grid edge(const problem *p, int use) {
    return (dpcri_grid){p->arrays[use], p->rows * p->state, 0, p->state};
}

static problem problem_make(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind, int64_t H, int64_t lanes,
                            int64_t steps, int64_t rows, bool beginning) {
    problem p = {
        .kernels = dpcri_gates_kernels_at(level, dtype), .dtype = dtype, .lanes = lanes, .steps = steps, .rows = rows};
    const size_t element = p.kernels->element;
    int64_t forward, backward;
    assert_true(dpcri_gates_packed(p.kernels, kind, H, &forward, &backward));
    p.count = dpcri_gates_count[kind] * H, p.tape = dpcri_gates_tape[kind] * H, p.state = dpcri_gates_state[kind] * H;
    p.weight = guarded(WEIGHTS, (size_t)(p.count * H) * element, beginning);
    fill(dtype, p.weight, p.count * H, 1.5 / sqrt((double)H));
    char *f = guarded(FORWARD, (size_t)(forward)*element, false),
         *b = guarded(BACKWARD, (size_t)(backward)*element, false);
    char *bias = guarded(BIAS, (size_t)(H)*element, beginning);
    fill(dtype, bias, H, 1);
    dpcri_gates_pack(p.kernels, dpcri_nn_kernels_at(level, dtype), kind, H, p.weight, f, b);
    p.gates = (dpcri_gates){.context = scratch,
                            .kind = kind,
                            .activation = H % 2 ? DPCRI_ACT_RELU : DPCRI_ACT_TANH,
                            .width = H,
                            .forward = f,
                            .backward = b,
                            .bias = bias};
    const int64_t strands = lanes * rows, all = strands * steps;
    const int64_t sizes[USES] = {[INPUT] = all * p.count, [IN] = strands * p.state,   [STATES] = all * p.state,
                                 [TAPE] = all * p.tape,   [DIRECT] = all * p.state,   [KEPT] = all * p.state,
                                 [E] = all * p.tape,      [LAST] = strands * p.state, [OUT] = strands * p.state};
    for (int use = INPUT; use < USES; use++) {
        p.arrays[use] = guarded(use, (size_t)sizes[use] * element, beginning);
        fill(dtype, p.arrays[use], sizes[use], 1);
    }
    return p;
}

static void run_forward(const problem *p, const int64_t *ends, bool states, bool tape, bool last) {
    const dpcri_grid none = {0};
    assert_true(
        p->kernels->advance(&p->gates, &(dpcri_gates_forward){.lanes = p->lanes,
                                                              .steps = p->steps,
                                                              .rows = p->rows,
                                                              .input = grid(p, INPUT, p->count),
                                                              .in = edge(p, IN),
                                                              .states = states ? grid(p, STATES, p->state) : none,
                                                              .tape = tape ? grid(p, TAPE, p->tape) : none,
                                                              .last = last ? edge(p, OUT) : none,
                                                              .ends = ends,
                                                              .stride = p->steps}));
}

static int64_t place(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t width) {
    return ((lane * p->steps + step) * p->rows + row) * width;
}

// The states that go into step k of a strand, within `states`, which lie after the step's.
static double state_in(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t i) {
    if (step == 0) return number_at(p->dtype, p->arrays[IN], (lane * p->rows + row) * p->state + i);
    return number_at(p->dtype, p->arrays[STATES], place(p, lane, step - 1, row, p->state) + i);
}

// ---- forward ----

typedef struct bound {
    long double value, error;
} bound;

static bound sum_of(const problem *p, int64_t lane, int64_t step, int64_t row, int64_t gate, long double start) {
    const int64_t H = p->gates.width;
    bound b = {start, fabsl(start)};
    for (int64_t k = 0; k < H; k++) {
        const long double term =
            (long double)number_at(p->dtype, p->weight, gate * H + k) * state_in(p, lane, step, row, k);
        b.value += term, b.error += fabsl(term);
    }
    b.error *= (long double)(p->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON) * (long double)(H + 4);
    return b;
}

static long double sigmoid(long double u) { return 1 / (1 + expl(-u)); }

// Every number of a step from the kernel's own state before it. The functions' slopes are at most 1, their own error
// 2e-6 in float (tables) and 1e-14 in double.
static void check_step(const problem *p, int64_t lane, int64_t step, int64_t row) {
    const int64_t H = p->gates.width, x = place(p, lane, step, row, p->count), z = place(p, lane, step, row, p->state);
    const int64_t t = place(p, lane, step, row, p->tape);
    const long double own = p->dtype == DPCR_F64 ? 1e-14L : 2e-6L;
    for (int64_t i = 0; i < H; i++) {
        bound u[4];
        const bool gru = p->gates.kind == DPCRI_GATES_GRU;
        long double error = own;
        for (int64_t q = 0; q * H < p->count; q++) {
            const long double start = gru && q == 2 ? number_at(p->dtype, p->gates.bias, i)
                                                    : number_at(p->dtype, p->arrays[INPUT], x + q * H + i);
            u[q] = sum_of(p, lane, step, row, q * H + i, start);
            error += 2 * (u[q].error + own);
        }
        long double wanted[8] = {0}, share[8] = {0};  // share: of the number itself, where that is to be known too
        int64_t states = 1, tapes;
        if (p->gates.kind == DPCRI_GATES_RNN) {
            const bool relu = p->gates.activation == DPCRI_ACT_RELU;
            wanted[0] = relu ? fmaxl(u[0].value, 0) : tanhl(u[0].value);
            wanted[1] = relu ? u[0].value > 0 : 1 - wanted[0] * wanted[0];
            if (relu && fabsl(u[0].value) < error) continue;  // either side
            tapes = 1;
        } else if (gru) {
            const long double r = sigmoid(u[0].value), s = sigmoid(u[1].value), m = u[2].value;
            const long double n = tanhl(number_at(p->dtype, p->arrays[INPUT], x + 2 * H + i) + r * m);
            error *= 1 + fabsl(m);
            wanted[0] = (1 - s) * n + s * state_in(p, lane, step, row, i);
            wanted[1] = r, wanted[2] = s, wanted[3] = m, wanted[4] = n, tapes = 4;
        } else {
            const long double a = sigmoid(u[0].value), f = sigmoid(u[1].value), g = tanhl(u[2].value),
                              o = sigmoid(u[3].value);
            const long double c = f * state_in(p, lane, step, row, H + i) + a * g;
            error *= 1 + fabsl((long double)state_in(p, lane, step, row, H + i));
            wanted[0] = o * tanhl(c), wanted[1] = c, states = 2;
            wanted[2] = a, wanted[3] = f, wanted[4] = g, wanted[5] = o, tapes = 4;
            const long double eps = p->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON;
            share[2] = u[0].error + 4 * eps, share[3] = u[1].error + 4 * eps, share[5] = u[3].error + 4 * eps;
        }
        for (int64_t q = 0; q < states + tapes; q++) {
            const double got = q < states ? number_at(p->dtype, p->arrays[STATES], z + q * H + i)
                                          : number_at(p->dtype, p->arrays[TAPE], t + (q - states) * H + i);
            const bool known = share[q] == 0 || fabsl(got - wanted[q]) <= share[q] * wanted[q];
            if (!(fabsl(got - wanted[q]) <= error) || !known)
                fail_msg("kind %d width %d dtype %d number %d of unit %d, step %d: %.9g, wanted %.9Lg within %.3Lg",
                         (int)p->gates.kind, (int)H, (int)p->dtype, (int)q, (int)i, (int)step, got, wanted[q], error);
        }
    }
}

// ---- backward ----

static void run_adjoint(const problem *p, const int64_t *ends, bool kept, bool only) {
    const dpcri_grid none = {0};
    const size_t element = p->kernels->element;
    // one lane: the states that go in are `in`, then the states
    dpcri_gates_adjoint run = {.lanes = 1, .rows = p->rows, .direct = none, .ends = ends, .gates_only = only};
    for (int part = 1; part >= 0; part--) {  // steps 1.., then step 0, whose input lies elsewhere
        run.steps = part ? p->steps - 1 : 1;
        run.first = part;
        run.in = part ? grid(p, STATES, p->state) : (dpcri_grid){p->arrays[IN], 0, 0, p->state};
        run.tape = grid(p, TAPE, p->tape), run.e = grid(p, E, p->tape), run.direct = grid(p, DIRECT, p->state);
        run.kept = kept ? grid(p, KEPT, p->state) : none;
        run.tape.data = (char *)run.tape.data + (size_t)(part * run.tape.step) * element;
        run.e.data = (char *)run.e.data + (size_t)(part * run.e.step) * element;
        run.direct.data = (char *)run.direct.data + (size_t)(part * run.direct.step) * element;
        if (kept) run.kept.data = (char *)run.kept.data + (size_t)(part * run.kept.step) * element;
        run.last = part ? edge(p, LAST) : edge(p, OUT);
        run.first_out = edge(p, OUT);
        assert_true(p->kernels->adjoint(&p->gates, &run));
    }
}

// e and the adjoint that goes on of one step, from the kernel's own adjoint that arrives (kept).
static void check_back(const problem *p, int64_t step, int64_t row) {
    const int64_t H = p->gates.width, z = place(p, 0, step, row, p->state), t = place(p, 0, step, row, p->tape);
    const long double eps = p->dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON;
    for (int64_t i = 0; i < H; i++) {
        const long double g = number_at(p->dtype, p->arrays[KEPT], z + i), h = state_in(p, 0, step, row, i);
        const long double a = number_at(p->dtype, p->arrays[TAPE], t + i);
        long double wanted[4], error = 16 * eps * (1 + fabsl(g)) * 8, through = 0, by_cell = 0;
        if (p->gates.kind == DPCRI_GATES_RNN) {
            wanted[0] = g * a;
        } else if (p->gates.kind == DPCRI_GATES_GRU) {
            const long double s = number_at(p->dtype, p->arrays[TAPE], t + H + i),
                              m = number_at(p->dtype, p->arrays[TAPE], t + 2 * H + i);
            const long double n = number_at(p->dtype, p->arrays[TAPE], t + 3 * H + i);
            const long double dn = g * (1 - s) * (1 - n * n);
            wanted[0] = dn * m * a * (1 - a), wanted[1] = g * (h - n) * s * (1 - s), wanted[2] = dn * a, wanted[3] = dn;
            through = g * s;
            error *= 1 + fabsl(m) + fabsl(h);
        } else {
            const long double f = number_at(p->dtype, p->arrays[TAPE], t + H + i),
                              cell = number_at(p->dtype, p->arrays[TAPE], t + 2 * H + i);
            const long double o = number_at(p->dtype, p->arrays[TAPE], t + 3 * H + i),
                              before = state_in(p, 0, step, row, H + i);
            const long double gc = number_at(p->dtype, p->arrays[KEPT], z + H + i), tc = tanhl(f * before + a * cell);
            const long double dc = gc + g * o * (1 - tc * tc);
            wanted[0] = dc * cell * a * (1 - a), wanted[1] = dc * before * f * (1 - f),
            wanted[2] = dc * a * (1 - cell * cell);
            wanted[3] = g * tc * o * (1 - o);
            by_cell = dc * f;
            error =
                (error + (p->dtype == DPCR_F64 ? 1e-14L : 4e-6L)) * (1 + fabsl(before)) * (1 + fabsl(g) + fabsl(gc));
        }
        for (int64_t q = 0; q * H < p->tape; q++) {
            const double got = number_at(p->dtype, p->arrays[E], t + q * H + i);
            if (!(fabsl(got - wanted[q]) <= error))
                fail_msg("kind %d width %d dtype %d: e %d of unit %d, step %d: %.9g, wanted %.9Lg", (int)p->gates.kind,
                         (int)H, (int)p->dtype, (int)q, (int)i, (int)step, got, wanted[q]);
        }
        // what goes on to the step before: kept there less what came in there
        bound on = {through, fabsl(through)};
        for (int64_t j = 0; j < p->count; j++) {
            const long double term =
                (long double)number_at(p->dtype, p->arrays[E], t + j) * number_at(p->dtype, p->weight, j * H + i);
            on.value += term, on.error += fabsl(term);
        }
        const int64_t before = place(p, 0, step - 1, row, p->state);
        for (int64_t q = 0; q < p->state / H; q++) {
            const long double arrived =
                step > 0 ? (long double)number_at(p->dtype, p->arrays[DIRECT], before + q * H + i) : 0;
            const double got = step > 0 ? number_at(p->dtype, p->arrays[KEPT], before + q * H + i)
                                        : number_at(p->dtype, p->arrays[OUT], row * p->state + q * H + i);
            const long double value = q ? by_cell : on.value;
            const long double slack =
                (q ? error : on.error * eps * (long double)(p->count + 8) + 8 * eps * fabsl(through)) +
                4 * eps * (fabsl(arrived) + fabsl(value));
            if (!(fabsl(got - (value + arrived)) <= slack))
                fail_msg("kind %d width %d dtype %d: adjoint %d of unit %d, step %d: %.9g, wanted %.9Lg",
                         (int)p->gates.kind, (int)H, (int)p->dtype, (int)q, (int)i, (int)step, got, value + arrived);
        }
    }
}

// Weights beyond the first cache, which eight strands and more go through by tiles of their own (gates_wide.inc): one
// block of terms, and several with a rest; one, two and four vectors of units left over, and some lanes.
static const int64_t wide_widths[] = {184, 261, 280, 290};

static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80};

static void each_table(void (*check)(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind)) {
    for (int level = DPCRI_PORTABLE; level < DPCRI_ISA_COUNT; level++)
        for (int wide = 0; wide < 2; wide++) {
            const dpcr_dtype dtype = wide ? DPCR_F64 : DPCR_F32;
            if (!dpcri_gates_kernels_at((dpcri_isa)level, dtype)) continue;
            for (int kind = 0; kind < DPCRI_GATES_KINDS; kind++) check((dpcri_isa)level, dtype, (dpcri_gates_kind)kind);
        }
}

static void check_widths(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind, const int64_t *width, size_t count,
                         int64_t steps, int64_t rows) {
    for (size_t w = 0; w < count; w++) {
        const problem p = problem_make(level, dtype, kind, width[w], 1, steps, rows + (int64_t)w % 11, w % 2);
        run_forward(&p, NULL, true, true, true);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t k = 0; k < p.steps; k++) check_step(&p, 0, k, r);
        for (int64_t i = 0; i < p.rows * p.state; i++)
            assert_true(number_at(dtype, p.arrays[OUT], i) ==
                        number_at(dtype, p.arrays[STATES], place(&p, 0, p.steps - 1, 0, p.state) + i));
        run_adjoint(&p, NULL, true, false);
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t k = 0; k < p.steps; k++) check_back(&p, k, r);
    }
}

static void check_steps(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    check_widths(level, dtype, kind, widths, sizeof widths / sizeof widths[0], 4, 1);
    check_widths(level, dtype, kind, wide_widths, sizeof wide_widths / sizeof wide_widths[0], 2, 8);
}

static void test_steps(void **state) {
    (void)state;
    each_table(check_steps);
}

// Of an LSTM, which multiplies them: to digits of their own.
static void check_closed(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    if (kind != DPCRI_GATES_LSTM) return;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (int64_t rows = 1; rows <= 5; rows += 4) {
            const problem p = problem_make(level, dtype, kind, widths[w], 1, 4, rows, false);
            for (int64_t i = 0; i < p.steps * p.rows * p.count; i++) {
                const double closed = (double)(i % 7) * (dtype == DPCR_F64 ? 9 : 4);
                put_number(dtype, p.arrays[INPUT], i, number_at(dtype, p.arrays[INPUT], i) - closed);
            }
            run_forward(&p, NULL, true, true, true);
            for (int64_t r = 0; r < p.rows; r++)
                for (int64_t k = 0; k < p.steps; k++) check_step(&p, 0, k, r);
        }
}

static void closed_gates_have_digits(void **state) {
    (void)state;
    each_table(check_closed);
}

// Single steps of some units at a time, the parts in turn and back: the bits of whole calls, whether states and e are
// wanted or not.
enum { PART_STEPS = 5 };

static void run_parts(const problem *p, const int64_t *bounds, int parts, const dpcri_gates_forward *forward,
                      const dpcri_gates_adjoint *back, void *turns) {
    for (int64_t k = 0; k < PART_STEPS + (back != NULL); k++)
        for (int i = 0; i < parts; i++) {
            const int part = k % 2 ? parts - 1 - i : i;
            dpcri_gates some = p->gates;
            some.from = bounds[part], some.to = bounds[part + 1];
            if (forward)
                p->kernels->advance_step(&some, forward, k, turns);
            else
                p->kernels->adjoint_step(&some, back, PART_STEPS - 1 - k, turns);
        }
}

static void keep_and_clear(const problem *p, int use, void *kept, size_t bytes) {
    memcpy(kept, p->arrays[use], bytes);
    memset(p->arrays[use], 0xff, bytes);
}

static void check_parts(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    static const int64_t part_widths[] = {48, 65, 130, 290};
    static char kept[3][1 << 18], turns[1 << 18], hidden[1 << 17];
    const dpcri_grid none = {0};
    for (size_t w = 0; w < 4; w++)
        for (int64_t rows = 1; rows <= 2; rows++) {
            const int64_t H = part_widths[w], lanes = rows, strands = lanes * rows;  // 1, and 4
            problem p = problem_make(level, dtype, kind, H, lanes, PART_STEPS, rows, w % 2);
            const size_t element = p.kernels->element;
            const int64_t unit = p.kernels->units, middle = (H / 2 + unit - 1) / unit * unit;
            const int64_t bounds[] = {0, unit, middle > unit ? middle : unit, H};
            const size_t states = (size_t)(PART_STEPS * strands * p.state) * element, ends = states / PART_STEPS;
            const size_t tapes = (size_t)(PART_STEPS * strands * p.tape) * element;
            assert_true(states <= sizeof kept[0] && tapes <= sizeof kept[1]);
            run_forward(&p, NULL, true, true, true);
            keep_and_clear(&p, STATES, kept[0], states), keep_and_clear(&p, TAPE, kept[1], tapes);
            dpcri_gates_forward forward = {.lanes = lanes,
                                           .steps = PART_STEPS,
                                           .rows = rows,
                                           .input = grid(&p, INPUT, p.count),
                                           .in = edge(&p, IN),
                                           .states = grid(&p, STATES, p.state),
                                           .tape = grid(&p, TAPE, p.tape)};
            if (kind == DPCRI_GATES_LSTM) forward.hidden = (dpcri_grid){hidden, PART_STEPS * rows * H, rows * H, H};
            run_parts(&p, bounds, 3, &forward, NULL, NULL);
            for (int64_t i = 0; kind == DPCRI_GATES_LSTM && i < PART_STEPS * strands; i++)
                assert_memory_equal(hidden + (size_t)(i * H) * element, kept[0] + (size_t)(i * p.state) * element,
                                    (size_t)H * element);
            assert_memory_equal(p.arrays[STATES], kept[0], states);
            assert_memory_equal(p.arrays[TAPE], kept[1], tapes);
            forward.states = none;
            memset(p.arrays[TAPE], 0xff, tapes);
            run_parts(&p, bounds, 3, &forward, NULL, turns);
            assert_memory_equal(p.arrays[TAPE], kept[1], tapes);
            for (int64_t i = 0; i < strands; i++)  // step 4 lies in turn 0
                assert_memory_equal(turns + (size_t)(i * p.state) * element,
                                    kept[0] + (size_t)place(&p, i / rows, PART_STEPS - 1, i % rows, p.state) * element,
                                    (size_t)p.state * element);

            // Back over states as they are, whatever chain they are of: each step's own input.
            dpcri_gates_adjoint back = {.lanes = lanes,
                                        .steps = PART_STEPS,
                                        .rows = rows,
                                        .in = grid(&p, STATES, p.state),
                                        .tape = grid(&p, TAPE, p.tape),
                                        .direct = grid(&p, DIRECT, p.state),
                                        .kept = grid(&p, KEPT, p.state),
                                        .e = grid(&p, E, p.tape),
                                        .last = edge(&p, LAST),
                                        .first_out = edge(&p, OUT)};
            assert_true(p.kernels->adjoint(&p.gates, &back));
            keep_and_clear(&p, KEPT, kept[0], states), keep_and_clear(&p, E, kept[1], tapes);
            keep_and_clear(&p, OUT, kept[2], ends);
            run_parts(&p, bounds, 3, NULL, &back, NULL);
            assert_memory_equal(p.arrays[KEPT], kept[0], states);
            assert_memory_equal(p.arrays[E], kept[1], tapes);
            assert_memory_equal(p.arrays[OUT], kept[2], ends);
            // e in the place of the tape, kept of what came in, and the adjoint that goes on of the last one.
            static char tape[1 << 18], direct[1 << 18], last[1 << 18];
            memcpy(tape, p.arrays[TAPE], tapes), memcpy(direct, p.arrays[DIRECT], states);
            memcpy(last, p.arrays[LAST], ends);
            dpcri_gates_adjoint over = back;
            over.e = over.tape, over.kept = over.direct, over.first_out = over.last;
            assert_true(p.kernels->adjoint(&p.gates, &over));
            assert_memory_equal(p.arrays[TAPE], kept[1], tapes);
            memcpy(p.arrays[TAPE], tape, tapes), memcpy(p.arrays[DIRECT], direct, states);
            memcpy(p.arrays[LAST], last, ends);
            run_parts(&p, bounds, 3, NULL, &over, NULL);
            assert_memory_equal(p.arrays[TAPE], kept[1], tapes);
            assert_memory_equal(p.arrays[DIRECT], kept[0], states);
            assert_memory_equal(p.arrays[LAST], kept[2], ends);
            memcpy(p.arrays[TAPE], tape, tapes), memcpy(p.arrays[DIRECT], direct, states);
            memcpy(p.arrays[LAST], last, ends);
            back.e = none, back.kept = none;
            memset(p.arrays[OUT], 0xff, ends);
            run_parts(&p, bounds, 3, NULL, &back, turns);
            assert_memory_equal(p.arrays[OUT], kept[2], ends);
        }
}

static void test_parts(void **state) {
    (void)state;
    each_table(check_parts);
}

static void copy(const problem *p, int use, void *to, int64_t width, int64_t strand_rows, int64_t row) {
    const size_t element = p->kernels->element;
    for (int64_t k = 0; k < p->steps; k++)
        memcpy((char *)to + (size_t)(k * width) * element,
               p->arrays[use] + (size_t)((k * strand_rows + row) * width) * element, (size_t)width * element);
}

// What row's strand ends with.
static const char *states_end(const problem *p, int64_t row) {
    return p->arrays[STATES] + (size_t)place(p, 0, p->steps - 1, row, p->state) * p->kernels->element;
}

// Every row together with 1 to 129 others has the bits that it has alone: states, tape, last, e and adjoints. And kept,
// e and first_out are the same whether they are wanted together or not.
static void check_strands_alone(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    enum { NARROW = 9, WIDE = 7 };
    static const int64_t counts[NARROW + WIDE] = {2, 5, 8,  11, 14, 17, 20, 67, 130,  // 64 go together
                                                  8, 9, 10, 11, 12, 13, 67};
    for (size_t n = 0; n < NARROW + WIDE; n++) {
        // one and two whole vectors, which a strand alone goes through by steps of its own; others; and wide ones
        const int64_t rows = counts[n], units = dpcri_gates_kernels_at(level, dtype)->units,
                      H = n < 2        ? ((int64_t)n + 1) * units
                          : n < NARROW ? 5 + 7 * (rows % 5)
                                       : wide_widths[n % 4];
        problem p = problem_make(level, dtype, kind, H, 1, 3, rows, true);
        const size_t element = p.kernels->element;
        run_forward(&p, NULL, true, true, false);
        memcpy(p.arrays[OUT], p.arrays[LAST], (size_t)(rows * p.state) * element);
        run_adjoint(&p, NULL, false, false);
        const int compared[] = {STATES, TAPE, E};
        const int64_t wide_of[] = {p.state, p.tape, p.tape};
        for (int64_t row = 0; row < rows; row += rows / 2) {
            char *kept[3];
            char *last = malloc((size_t)p.state * element), *x = malloc((size_t)(p.steps * p.count) * element);
            char *in = malloc((size_t)p.state * element), *direct = malloc((size_t)(p.steps * p.state) * element);
            char *out = malloc((size_t)p.state * element);
            for (int q = 0; q < 3; q++) {
                kept[q] = malloc((size_t)(p.steps * wide_of[q]) * element);
                copy(&p, compared[q], kept[q], wide_of[q], rows, row);
            }
            copy(&p, INPUT, x, p.count, rows, row), copy(&p, DIRECT, direct, p.state, rows, row);
            memcpy(in, p.arrays[IN] + (size_t)(row * p.state) * element, (size_t)p.state * element);
            memcpy(last, p.arrays[LAST] + (size_t)(row * p.state) * element, (size_t)p.state * element);
            memcpy(out, p.arrays[OUT] + (size_t)(row * p.state) * element, (size_t)p.state * element);
            problem one = p;
            one.rows = 1;
            for (int use = INPUT; use < USES; use++)
                one.arrays[use] = malloc((size_t)(p.steps * (p.tape + p.state)) * element);
            memcpy(one.arrays[INPUT], x, (size_t)(p.steps * p.count) * element);
            memcpy(one.arrays[DIRECT], direct, (size_t)(p.steps * p.state) * element);
            memcpy(one.arrays[IN], in, (size_t)p.state * element);
            memcpy(one.arrays[LAST], last, (size_t)p.state * element);
            run_forward(&one, NULL, false, false, true);
            assert_memory_equal(one.arrays[OUT], states_end(&p, row), (size_t)p.state * element);
            memcpy(one.arrays[IN], in, (size_t)p.state * element);
            run_forward(&one, NULL, true, true, true);
            run_adjoint(&one, NULL, true, false);
            for (int q = 0; q < 3; q++) {
                assert_memory_equal(one.arrays[compared[q]], kept[q], (size_t)(p.steps * wide_of[q]) * element);
                free(kept[q]);
            }
            assert_memory_equal(one.arrays[OUT], out, (size_t)p.state * element);
            for (int use = INPUT; use < USES; use++) free(one.arrays[use]);
            free(last), free(x), free(in), free(direct), free(out);
        }
    }
}

static void test_strands_alone(void **state) {
    (void)state;
    each_table(check_strands_alone);
}

// Lanes are strands too: 3 lanes of 4 steps against each run apart; without states, by scratch alone, last is the same.
static void check_lanes(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    const problem p = problem_make(level, dtype, kind, 21, 3, 4, 2, false);
    const size_t bytes = (size_t)(p.lanes * p.rows * p.state) * p.kernels->element;
    char *whole = malloc(bytes);
    run_forward(&p, NULL, true, true, true);
    memcpy(whole, p.arrays[OUT], bytes);
    for (int64_t lane = 0; lane < 3; lane++)
        for (int64_t i = 0; i < p.rows * p.state; i++)
            assert_true(number_at(dtype, whole, lane * p.rows * p.state + i) ==
                        number_at(dtype, p.arrays[STATES], place(&p, lane, 3, 0, p.state) + i));
    memset(p.arrays[OUT], 0, bytes);
    run_forward(&p, NULL, false, false, true);
    assert_memory_equal(p.arrays[OUT], whole, bytes);
    problem one = p;
    one.lanes = 1;
    for (int64_t lane = 0; lane < 3; lane++) {
        one.arrays[INPUT] = p.arrays[INPUT] + (size_t)(lane * p.steps * p.rows * p.count) * p.kernels->element;
        one.arrays[IN] = p.arrays[IN] + (size_t)(lane * p.rows * p.state) * p.kernels->element;
        run_forward(&one, NULL, false, false, true);
        assert_memory_equal(p.arrays[OUT], whole + (size_t)lane * (bytes / 3), bytes / 3);
    }
    free(whole);
}

static void test_lanes(void **state) {
    (void)state;
    each_table(check_lanes);
}

// Rows that end: before their end the bits of a run without ends, afterwards the state they had; back, e is 0 there and
// the adjoint goes through; and a NaN beyond an end, or in another row, changes nothing.
static void check_ends_of(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind, int64_t H) {
    static const int64_t ends[] = {6, 2, 3, 6, 1, 2, 6, 5, 4, 6, 0};
    enum { ROWS = 11, STEPS = 6 };
    const problem p = problem_make(level, dtype, kind, H, 1, STEPS, ROWS, true);
    const int64_t all = STEPS * ROWS * p.state;
    double *free_run = malloc((size_t)all * sizeof *free_run);
    run_forward(&p, NULL, true, true, false);
    for (int64_t i = 0; i < all; i++) free_run[i] = number_at(dtype, p.arrays[STATES], i);
    put_number(dtype, p.arrays[INPUT], place(&p, 0, 4, 2, p.count), NAN);
    put_number(dtype, p.arrays[DIRECT], place(&p, 0, 4, 2, p.state), NAN);
    run_forward(&p, ends, true, true, true);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t k = 0; k < STEPS; k++)
            for (int64_t i = 0; i < p.state; i++) {
                const double x = number_at(dtype, p.arrays[STATES], place(&p, 0, k, r, p.state) + i);
                const double wanted =
                    k < ends[r] ? free_run[place(&p, 0, k, r, p.state) + i] : state_in(&p, 0, k, r, i);
                assert_true(x == wanted);
            }
    run_adjoint(&p, ends, true, false);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t k = 0; k < STEPS; k++) {
            for (int64_t i = 0; k >= ends[r] && i < p.tape; i++)
                assert_true(number_at(dtype, p.arrays[E], place(&p, 0, k, r, p.tape) + i) == 0);
            for (int64_t i = 0; k >= ends[r] && i < p.state; i++)
                assert_true(number_at(dtype, p.arrays[KEPT], place(&p, 0, k, r, p.state) + i) ==
                            number_at(dtype, p.arrays[LAST], r * p.state + i));
            if (k + 1 < ends[r]) check_back(&p, k + 1, r);
        }
    free(free_run);
}

// Wide ones begin as many and become few on the way.
static void check_ends(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    check_ends_of(level, dtype, kind, 19);
    check_ends_of(level, dtype, kind, 261);
}

static void test_ends(void **state) {
    (void)state;
    each_table(check_ends);
}

// gates_only: e of states whose adjoint is known is the loop's e, and the adjoint stays as it was.
static void check_gates_only(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    const problem p = problem_make(level, dtype, kind, 26, 1, 5, 6, false);
    const size_t element = p.kernels->element, bytes = (size_t)(p.steps * p.rows * p.tape) * element;
    run_forward(&p, NULL, true, true, false);
    run_adjoint(&p, NULL, true, false);
    char *e = malloc(bytes), *kept = malloc((size_t)(p.steps * p.rows * p.state) * element);
    memcpy(e, p.arrays[E], bytes);
    memcpy(kept, p.arrays[KEPT], (size_t)(p.steps * p.rows * p.state) * element);
    memset(p.arrays[E], 0, bytes);
    const dpcri_grid in_lanes = {p.arrays[STATES], p.rows * p.state, 0, p.state};
    assert_true(p.kernels->adjoint(
        &p.gates, &(dpcri_gates_adjoint){
                      .lanes = p.steps - 1,
                      .steps = 1,
                      .rows = p.rows,
                      .in = in_lanes,
                      .tape = {p.arrays[TAPE] + (size_t)(p.rows * p.tape) * element, p.rows * p.tape, 0, p.tape},
                      .e = {p.arrays[E] + (size_t)(p.rows * p.tape) * element, p.rows * p.tape, 0, p.tape},
                      .last = {p.arrays[KEPT] + (size_t)(p.rows * p.state) * element, p.rows * p.state, 0, p.state},
                      .first = 1,
                      .stride = 1,
                      .gates_only = true}));
    assert_memory_equal(p.arrays[E] + bytes / 5, e + bytes / 5, bytes / 5 * 4);
    assert_memory_equal(p.arrays[KEPT], kept, (size_t)(p.steps * p.rows * p.state) * element);
    free(e), free(kept);
}

static void test_gates_only(void **state) {
    (void)state;
    each_table(check_gates_only);
}

// Stores past the caches leave what the others do, through several turns of the states' scratch; an LSTM's h besides is
// its states' h. Then where the numbers do not lie as such stores want it, which are made as always.
static void check_beside(dpcri_isa level, dpcr_dtype dtype, dpcri_gates_kind kind) {
    enum { STEPS = 71, ROWS = 3 };
    for (int whole = 0; whole < 2; whole++) {
        const int64_t H = whole ? 32 : 20;
        const problem p = problem_make(level, dtype, kind, H, 1, STEPS, ROWS, true);
        const size_t element = p.kernels->element;
        const size_t bytes[3] = {(size_t)(STEPS * ROWS * p.state) * element, (size_t)(STEPS * ROWS * p.tape) * element,
                                 (size_t)(ROWS * p.state) * element};
        static const int uses[3] = {STATES, TAPE, OUT};
        char *kept[3];
        run_forward(&p, NULL, true, true, true);
        for (int u = 0; u < 3; u++) {
            kept[u] = malloc(bytes[u]);
            memcpy(kept[u], p.arrays[uses[u]], bytes[u]);
            memset(p.arrays[uses[u]], 0xff, bytes[u]);
        }
        memset(p.arrays[KEPT], 0xff, (size_t)(STEPS * ROWS * H) * element);
        assert_true(p.kernels->advance(&p.gates, &(dpcri_gates_forward){.lanes = 1,
                                                                        .steps = STEPS,
                                                                        .rows = ROWS,
                                                                        .input = grid(&p, INPUT, p.count),
                                                                        .in = edge(&p, IN),
                                                                        .states = grid(&p, STATES, p.state),
                                                                        .tape = grid(&p, TAPE, p.tape),
                                                                        .hidden = grid(&p, KEPT, H),
                                                                        .last = edge(&p, OUT),
                                                                        .beside = true,
                                                                        .stride = STEPS}));
        for (int u = 0; u < 3; u++) assert_memory_equal(p.arrays[uses[u]], kept[u], bytes[u]);
        for (int64_t i = 0; kind == DPCRI_GATES_LSTM && i < STEPS * ROWS; i++)
            assert_memory_equal(p.arrays[KEPT] + (size_t)(i * H) * element, kept[0] + (size_t)(i * p.state) * element,
                                (size_t)H * element);
        for (int u = 0; u < 3; u++) free(kept[u]);
    }
}

static void test_beside(void **state) {
    (void)state;
    each_table(check_beside);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),      cmocka_unit_test(closed_gates_have_digits),
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_strands_alone),
        cmocka_unit_test(test_lanes),      cmocka_unit_test(test_ends),
        cmocka_unit_test(test_gates_only), cmocka_unit_test(test_beside),
    };
    const dpcr_context_options options = {.size = sizeof options, .threads = 1};
    if (dpcr_context_create(&options, &scratch, NULL) != DPCR_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dpcr_context_destroy(scratch);
    return failed;
}
