// SPDX-License-Identifier: MIT
// A product of transitions may overflow, underflow or cancel where no state does. What pcr and blelloch made of it is
// then no solution: some state is not what its step makes of the state before. So all steps are taken once more, side
// by side and into a buffer, one application a step beside the log2 n of pcr. By induction, states that all are what
// their steps make of those before are the loop's, as nearly as the bound and the chain allow.
//
// A component holds within 1e-4 of itself (double: 1e-9), which is far more than products round by; or of the terms of
// its sum, or 256 times what rounding made of it in the last steps, since sums that come near zero keep the rounding of
// what they are made of (joins.h). Where many of a sequence hold by the last alone, the loop is quicker than to ask.
// What becomes of a sequence hangs on its own numbers alone, and on those of its steps before.
#include "chain/recheck.h"

#include <math.h>
#include <stdatomic.h>

#include "chain/joins.h"

enum {
    MOST_TASKS = 16,
    ROWS = 64,          // of a buffer: steps times sequences
    LAST_STEPS = 256,   // through which rounding is followed
    MOST_FOLLOWED = 64  // components
};

static int64_t steps_of(const dpcri_flow *f) { return f->rows < ROWS ? ROWS / f->rows : 1; }
static int64_t most_states(const dpcri_flow *f) { return f->rows < ROWS ? ROWS : f->rows; }
static int64_t tasks_of(const dpcri_flow *f) { return f->n < MOST_TASKS ? f->n : MOST_TASKS; }

void *dpcri_recheck_take(const dpcri_flow *f, dpcri_arena *arena) {
    return dpcri_flow_take(f, arena, tasks_of(f), most_states(f), f->w);
}

typedef struct job {
    const dpcri_flow *flow;
    void *space;
    int64_t tasks;
    _Atomic bool apart;        // some step is to be asked for
    _Atomic int64_t finished;  // the first step that the loop had to finish; n: none
} job;

// *followed: components that rounding had to be followed for; NULL: it is not.
static bool component_holds(const dpcri_flow *f, int64_t m, int64_t row, int64_t i, double z, double made,
                            int64_t *followed) {
    const double off = fabs(z - made), bound = DPCRI_RECHECK(f->size);
    if (z == made || (isnan(z) && isnan(made))) return true;
    if (!isfinite(off)) return false;
    if (off <= bound * fabs(made) || off <= bound * dpcri_joins_terms(f, m, row, i)) return true;
    if (off <= DPCRI_RECHECK_ROUNDS * dpcri_joins_least(f->size)) return true;
    if (!followed || (*followed += dpcri_joins_block(f)) > MOST_FOLLOWED) return false;
    return off <= DPCRI_RECHECK_ROUNDS * dpcri_joins_disturbed(f, m, m < LAST_STEPS ? m + 1 : LAST_STEPS, row, i);
}

// The first of `n` steps from m on that does not hold in sequence `row`, against what they make, one `step` elements
// from the next; m + n: none.
static int64_t first_off(const dpcri_flow *f, int64_t m, int64_t n, int64_t row, const void *made, int64_t step,
                         int64_t *followed) {
    const void *const z = dpcri_at(f, f->z, m * f->z_step + row * f->z_row);
    if (dpcri_states_near(f->dtype, &(dpcri_chunk_states){z, f->z_step, 1}, &(dpcri_chunk_states){made, step, 1}, n,
                          f->w, DPCRI_RECHECK(f->size)))
        return m + n;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < f->w; i++)
            if (!component_holds(f, m + k, row, i, dpcri_number(f, z, k * f->z_step + i),
                                 dpcri_number(f, made, k * step + i), followed))
                return m + k;
    return m + n;
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
    void *const made = dpcri_at_out(f, j->space, i * most_states(f) * f->w);
    int64_t lo = 0, hi = 0;
    dpcri_task_range(f->n - 1, j->tasks, i, &lo, &hi);  // step 0 has no state before it
    for (int64_t m = lo + 1; m <= hi && !j->apart; m += steps_of(f)) {
        const int64_t n = hi + 1 - m < steps_of(f) ? hi + 1 - m : steps_of(f);
        make(f, m, n, 0, f->rows, made);
        if (dpcri_watch_stopped(f->watch)) return;  // and made nothing
        for (int64_t row = 0; row < f->rows; row++)
            if (first_off(f, m, n, row, dpcri_at(f, made, row * f->w), f->rows * f->w, NULL) < m + n) j->apart = true;
    }
}

// Sequence `row` by the loop from the first step that does not hold, which it returns; n: none.
static int64_t mend(const dpcri_flow *f, int64_t row, void *made) {
    int64_t followed = 0;
    for (int64_t m = 1; m < f->n; m += steps_of(f)) {
        const int64_t n = f->n - m < steps_of(f) ? f->n - m : steps_of(f);
        make(f, m, n, row, 1, made);
        if (dpcri_watch_stopped(f->watch)) break;
        const int64_t off = first_off(f, m, n, row, made, f->w, &followed);
        if (off == m + n) continue;
        dpcri_flow_loop(f, off, f->n - off, row, dpcri_at(f, f->z, (off - 1) * f->z_step + row * f->z_row));
        return off;
    }
    return f->n;
}

static void mend_rows(void *argument, int64_t i) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    void *const made = dpcri_at_out(f, j->space, i * most_states(f) * f->w);
    int64_t lo = 0, hi = 0;
    dpcri_task_range(f->rows, j->tasks, i, &lo, &hi);
    for (int64_t row = lo; row < hi; row++) dpcri_joint_first(&j->finished, mend(f, row, made));
}

int64_t dpcri_recheck(const dpcri_flow *f, void *space) {
    job j = {.flow = f, .space = space, .finished = f->n};
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
