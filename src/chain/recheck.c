// SPDX-License-Identifier: MIT
// A product of transitions may overflow, underflow or cancel where no state does, and what it rounds by may grow in the
// steps after. What pcr and blelloch made of it is then no solution. So all steps are taken once more, side by side and
// into a buffer, one application a step beside the log2 n of pcr: where each state is what its step makes of the one
// before but for roundings of the terms of that sum, states are as good as the loop's.
//
// Where they are not, as beside sums that come near zero after many steps and keep the rounding of all of them, what a
// sequence is off by is carried along in order, e_m = A_m e_{m-1} + made_m - z_m, beside what rounding may leave the
// loop off by: disturbances d_m = A_m d_{m-1} +- eps (|A_m| |z_{m-1}| + |b_m|), of four draws of signs. A
// component holds within 1e-4 of itself (double: 1e-9) or within 16 times the largest of them; from the first step
// that does not hold the loop goes on, from z + e. What becomes of a sequence hangs on its own numbers alone, and on
// those of its steps before.
#include "chain/recheck.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "chain/joins.h"

enum {
    MOST_TASKS = 16,
    ROWS = 64,                     // of a buffer: steps times sequences
    DRAWS = 4,                     // of signs
    FOLLOWED = 1 + DRAWS,          // what a sequence is off by, and disturbances
    FOLLOWING = 2 * FOLLOWED + 1,  // now and next, and sizes of terms
    LOOPS = 16,                    // times what rounding may leave the loop off by, a state may be off
    ROUNDINGS = 64,                // of a sum's terms, that a state may be off by unasked
    LOOKS = 1 << 20                // multiply-adds between two looks at the clock
};

static int64_t steps_of(const dpcri_flow *f) { return f->rows < ROWS ? ROWS / f->rows : 1; }
static int64_t most_states(const dpcri_flow *f) { return f->rows < ROWS ? ROWS : f->rows; }
static int64_t tasks_of(const dpcri_flow *f) { return f->n < MOST_TASKS ? f->n : MOST_TASKS; }

typedef struct job {
    const dpcri_flow *flow;
    void *made;        // [tasks][most_states][w]
    double *followed;  // [tasks][FOLLOWING][w]
    int64_t tasks;
    _Atomic bool apart;        // some step is to be asked for
    _Atomic int64_t finished;  // the first step that the loop had to finish; n: none
} job;

static double epsilon(const dpcri_flow *f) { return f->size == 8 ? DBL_EPSILON : (double)FLT_EPSILON; }

static bool is_rounding(const dpcri_flow *f, int64_t m, int64_t row, int64_t i, double z, double made) {
    const double off = fabs(z - made), bound = ROUNDINGS * epsilon(f);
    if (z == made || (isnan(z) && isnan(made))) return true;
    if (!isfinite(off)) return false;
    return off <= bound * fabs(made) || off <= bound * dpcri_joins_terms(f, m, row, i) ||
           off <= DPCRI_RECHECK_ROUNDS * dpcri_joins_least(f->size);
}

// Whether `n` steps from m on of sequence `row` are what they make, one `step` elements from the next.
static bool are_roundings(const dpcri_flow *f, int64_t m, int64_t n, int64_t row, const void *made, int64_t step) {
    const void *const z = dpcri_at(f, f->z, m * f->z_step + row * f->z_row);
    if (dpcri_states_near(f->dtype, &(dpcri_chunk_states){z, f->z_step, 1}, &(dpcri_chunk_states){made, step, 1}, n,
                          f->w, ROUNDINGS * epsilon(f)))
        return true;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < f->w; i++)
            if (!is_rounding(f, m + k, row, i, dpcri_number(f, z, k * f->z_step + i),
                             dpcri_number(f, made, k * step + i)))
                return false;
    return true;
}

// What the steps m .. m + n - 1 of sequences row .. row + rows - 1 make of the states before them, [n][rows][w].
static void make(const dpcri_flow *f, int64_t m, int64_t n, int64_t row, int64_t rows, void *made) {
    dpcri_span span = dpcri_flow_span(f, n, rows);
    span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    span.a_step = f->a_step;
    span.a_row = f->a_row;
    span.x = dpcri_at(f, f->z, (m - 1) * f->z_step + row * f->z_row);
    span.x_step = f->z_step;
    span.x_row = f->z_row;
    span.r = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
    span.r_step = f->b_step;
    span.r_row = f->b_row;
    span.y = made;
    span.y_step = rows * f->w;
    span.y_row = f->w;
    dpcri_flow_apply(f, &span);
}

static void look(void *argument, int64_t i) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    void *const made = dpcri_at_out(f, j->made, i * most_states(f) * f->w);
    int64_t lo = 0, hi = 0;
    dpcri_task_range(f->n - 1, j->tasks, i, &lo, &hi);  // step 0 has no state before it
    for (int64_t m = lo + 1; m <= hi && !j->apart; m += steps_of(f)) {
        const int64_t n = hi + 1 - m < steps_of(f) ? hi + 1 - m : steps_of(f);
        make(f, m, n, 0, f->rows, made);
        if (dpcri_watch_stopped(f->watch)) return;  // and made nothing
        for (int64_t row = 0; row < f->rows; row++)
            if (!are_roundings(f, m, n, row, dpcri_at(f, made, row * f->w), f->rows * f->w)) j->apart = true;
    }
}

// What a step makes of what is followed, and the sizes of the terms of its sums: of rows of a block that lie `row`
// values apart, with columns `column` apart. now, next [FOLLOWED][w].
#define CARRY(T, name)                                                                                         \
    static void name(const T *a, int64_t row, int64_t column, const T *z, int64_t first, int64_t k, int64_t w, \
                     const double *now, double *next, double *terms) {                                         \
        for (int64_t i = 0; i < k; i++) {                                                                      \
            double sums[FOLLOWED] = {0}, size = 0;                                                             \
            for (int64_t q = 0; q < k; q++) {                                                                  \
                const double value = (double)a[i * row + q * column];                                          \
                for (int n = 0; n < FOLLOWED; n++) sums[n] += value * now[n * w + first + q];                  \
                size += fabs(value * (double)z[first + q]);                                                    \
            }                                                                                                  \
            for (int n = 0; n < FOLLOWED; n++) next[n * w + first + i] = sums[n];                              \
            terms[i] = size;                                                                                   \
        }                                                                                                      \
    }
CARRY(float, carry_f32)
CARRY(double, carry_f64)
#undef CARRY

// Carries what is followed over a step, to next: e by made - z, the disturbances by eps times the sizes of the terms,
// for which terms [w] is room.
static void follow_step(const dpcri_flow *f, int64_t m, int64_t row, const void *made, uint32_t *draw,
                        const double *now, double *next, double *terms) {
    const int64_t w = f->w, k = dpcri_joins_block(f);
    const void *const a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    const void *const z = dpcri_at(f, f->z, m * f->z_step + row * f->z_row), *const before = dpcri_at(f, z, -f->z_step);
    const void *const b = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
    const int64_t a_row = f->transposed ? 1 : k, a_column = f->transposed ? k : 1;
    for (int64_t first = 0; first < w; first += k) {
        if (k == 1) {
            const double value = dpcri_joins_entry(f, a, first, 1, 0, 0);
            for (int i = 0; i < FOLLOWED; i++) next[i * w + first] = value * now[i * w + first];
            terms[first] = fabs(value * dpcri_number(f, before, first));
        } else if (f->size == 8) {
            carry_f64((const double *)a + first * k, a_row, a_column, before, first, k, w, now, next, terms + first);
        } else {
            carry_f32((const float *)a + first * k, a_row, a_column, before, first, k, w, now, next, terms + first);
        }
    }
    for (int64_t i = 0; i < w; i++) {
        const double is = dpcri_number(f, z, i), wanted = dpcri_number(f, made, i);
        const double eps = epsilon(f) * (terms[i] + fabs(dpcri_number(f, b, i)));
        *draw = dpcri_next_signs(*draw);
        if (is != wanted && !(isnan(is) && isnan(wanted))) next[i] += wanted - is;
        for (int n = 1; n < FOLLOWED; n++) next[n * w + i] += *draw >> (32 - n) & 1 ? -eps : eps;
    }
}

// Whether a state may be off by what is followed; least: the smallest number.
static bool holds(const dpcri_flow *f, int64_t m, int64_t row, double least, const double *now) {
    const void *const z = dpcri_at(f, f->z, m * f->z_step + row * f->z_row);
    const double bound = DPCRI_RECHECK(f->size);
    for (int64_t i = 0; i < f->w; i++) {
        const double size = fabs(dpcri_number(f, z, i)), off = fabs(now[i]);
        double loops = least;
        for (int n = 1; n < FOLLOWED; n++) loops = fmax(loops, fabs(now[n * f->w + i]));
        if (!isfinite(off)) return false;
        if (off > bound * size && off > LOOPS * loops) return false;  // what is not finite, as made was not, holds
    }
    return true;
}

// Whether all of a sequence's states are what their steps make of those before but for roundings.
static bool is_as_the_loops(const dpcri_flow *f, int64_t row, void *made) {
    for (int64_t m = 1; m < f->n; m += steps_of(f)) {
        const int64_t n = f->n - m < steps_of(f) ? f->n - m : steps_of(f);
        make(f, m, n, row, 1, made);
        if (dpcri_watch_stopped(f->watch)) return true;
        if (!are_roundings(f, m, n, row, made, f->w)) return false;
    }
    return true;
}

// The loop from step m on, from the state before it and what that is off by.
static void go_on(const dpcri_flow *f, int64_t m, int64_t row, const double *off, void *state) {
    const void *const z = dpcri_at(f, f->z, (m - 1) * f->z_step + row * f->z_row);
    for (int64_t i = 0; i < f->w; i++) {
        const double is = dpcri_number(f, z, i), sum = isfinite(off[i]) ? is + off[i] : is;
        if (f->size == 8)
            ((double *)state)[i] = sum;
        else
            ((float *)state)[i] = (float)sum;
    }
    dpcri_flow_loop(f, m, f->n - m, row, state);
}

// Sequence `row` by the loop from the first step that does not hold, which it returns; n: none.
static int64_t mend(const dpcri_flow *f, int64_t row, void *made, double *followed) {
    const int64_t block = dpcri_joins_block(f), looks = LOOKS / (block * f->w) + 1;
    double *now = followed, *next = now + FOLLOWED * f->w, *const terms = next + FOLLOWED * f->w;
    const double least = dpcri_joins_least(f->size);
    uint32_t draw = 1;
    if (is_as_the_loops(f, row, made)) return f->n;
    memset(now, 0, (size_t)(FOLLOWED * f->w) * sizeof *now);
    for (int64_t m = 1, asked = 0; m < f->n; m += steps_of(f)) {
        const int64_t n = f->n - m < steps_of(f) ? f->n - m : steps_of(f);
        make(f, m, n, row, 1, made);
        for (int64_t k = 0; k < n; k++) {
            follow_step(f, m + k, row, dpcri_at(f, made, k * f->w), &draw, now, next, terms);
            if (!holds(f, m + k, row, least, next)) {
                go_on(f, m + k, row, now, made);
                return m + k;
            }
            double *const before = now;
            now = next, next = before;
        }
        if ((asked += n) < looks) continue;
        if (dpcri_watch_stopped(f->watch)) break;
        asked = 0;
    }
    return f->n;
}

static void mend_rows(void *argument, int64_t i) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    void *const made = dpcri_at_out(f, j->made, i * most_states(f) * f->w);
    double *const followed = j->followed + i * FOLLOWING * f->w;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(f->rows, j->tasks, i, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) dpcri_joint_first(&j->finished, mend(f, row, made, followed));
}

void dpcri_recheck_take(const dpcri_flow *f, dpcri_arena *arena, dpcri_recheck_space *space) {
    space->made = dpcri_flow_take(f, arena, tasks_of(f), most_states(f), f->w);
    space->followed = dpcri_arena_take(arena, tasks_of(f) * FOLLOWING * f->w, sizeof *space->followed);
}

int64_t dpcri_recheck(const dpcri_flow *f, const dpcri_recheck_space *space) {
    job j = {.flow = f, .made = space->made, .followed = space->followed, .finished = f->n};
#ifdef DPCRI_MUTANTS
    if (dpcri_mutant != 0) return f->n;  // the loop would mend what tests are to see
#endif
    if (f->z == f->b || (f->dtype != DPCR_F32 && f->dtype != DPCR_F64) || dpcri_watch_stopped(f->watch)) return f->n;
    j.tasks = dpcri_task_count(f->n, (double)f->rows * f->flops);
    if (j.tasks > tasks_of(f)) j.tasks = tasks_of(f);
    dpcri_parallel(f->context, j.tasks, look, &j);
    if (j.apart) dpcri_parallel(f->context, j.tasks, mend_rows, &j);
    return j.finished;
}
