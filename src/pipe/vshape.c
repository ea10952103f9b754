// SPDX-License-Identifier: MIT
// Two stages a rank. In the V shapes stage s < p lies on rank s, else on rank 2p-1-s, so a microbatch goes there and
// back.
//   zb-v       F, I and W of both stages without a gap within the span, for equal costs and m >= 2p-1
//   dualpipev  forwards and backwards of different microbatches as overlapped pairs; m >= 2p
//   dualpipe   R ranks (even), half of the microbatches from each end: R stages twice; m even, m >= 2R
// DualPipe of R ranks runs, on rank r, DualPipeV's row of p = R/2 ranks, m/2 microbatches and rank h = min(r, R-1-r);
// ranks of the second half swap the phases. Sources: Zero Bubble (arXiv 2401.10241), DeepSeek-V3 (arXiv 2412.19437),
// DualPipeV (Qi et al. 2025, "Cut-in-half"). docs/math/schedules.md has the rules.
#include "pipe/pipe.h"

typedef struct row {
    dpcri_maker *maker;
    int64_t stage[2];                // by phase
    int64_t limit;                   // microbatches of a phase; those beyond are dropped
    int64_t forwards[2];             // counted so far, dropped ones too
    int64_t inputs[2], weights[2];   // of zb-v
    int64_t *queue, queued, pulled;  // W that wait, as 2 microbatch + phase (dualpipe)
} row;

static void put(row *w, dpcr_task task, int phase, int64_t microbatch) {
    if (microbatch < w->limit) dpcri_put(w->maker, task, w->stage[phase], microbatch);
}

static void f(row *w, int phase) { put(w, DPCR_TASK_F, phase, w->forwards[phase]++); }

// ---- ZB-V ----

static void i_and_w(row *w, int phase) {
    put(w, DPCR_TASK_I, phase, w->inputs[phase]++);
    put(w, DPCR_TASK_W, phase, w->weights[phase]++);
}

static void zb_v_row(row *w, int64_t p, int64_t r, int64_t n) {
    for (int64_t k = 0; k < 2 * (p - r) - 1; k++) f(w, 0);
    for (int64_t k = 0; k < r; k++) f(w, 1), f(w, 0);
    for (int64_t k = 0; k < p - r; k++) f(w, 1), i_and_w(w, 1);
    while (w->forwards[1] < w->forwards[0] || w->forwards[0] < n) {
        if (w->forwards[0] < n) f(w, 0);
        i_and_w(w, 0);
        f(w, 1);
        i_and_w(w, 1);
    }
    for (int64_t k = 0; k < r; k++) {
        put(w, DPCR_TASK_I, 0, w->inputs[0]++);
        put(w, DPCR_TASK_I, 1, w->inputs[1]++);
    }
    for (int64_t k = 0; k < p - r; k++) i_and_w(w, 0);
    while (w->weights[1] < w->inputs[1]) put(w, DPCR_TASK_W, 1, w->weights[1]++);
    while (w->weights[0] < w->inputs[0]) put(w, DPCR_TASK_W, 0, w->weights[0]++);
}

dpcr_status dpcri_make_zb_v(dpcri_maker *maker) {
    const int64_t p = maker->p, m = maker->m, n = m > 2 * p - 1 ? m : 2 * p - 1;
    const dpcr_status status = dpcri_maker_start(maker, 2 * p, m, 3);
    if (status != DPCR_OK) return status;
    for (int64_t r = 0; r < p; r++) {
        row w = {.maker = maker, .stage = {r, dpcri_v_stage(p, r, 1)}, .limit = m};
        zb_v_row(&w, p, r, n);
        dpcri_end_row(maker);
    }
    return DPCR_OK;
}

// ---- DualPipe ----

// The backwards of a phase so far are counted in inputs[].
static void b(row *w, int phase) { put(w, DPCR_TASK_B, phase, w->inputs[phase]++); }

static void pair(row *w, int f_phase) {
    const int b_phase = !f_phase;
    dpcri_put_pair(w->maker, w->stage[f_phase], w->forwards[f_phase]++, w->stage[b_phase], w->inputs[b_phase]++);
}

static void i_queued(row *w, int phase) {
    w->queue[w->queued++] = 2 * w->inputs[phase] + phase;
    put(w, DPCR_TASK_I, phase, w->inputs[phase]++);
}

static void w_pulled(row *w) {
    if (w->pulled == w->queued) return;
    const int64_t next = w->queue[w->pulled++];
    put(w, DPCR_TASK_W, (int)(next % 2), next / 2);
}

// Rank h of `half` ranks and m microbatches a phase.
static void dualpipe_row(row *w, int64_t half, int64_t h, int64_t m) {
    const int64_t far = half - h - 1, near = h + 1;
    for (int64_t k = 0; k < 2 * far; k++) f(w, 0);
    for (int64_t k = 0; k < near; k++) f(w, 0), f(w, 1);
    for (int64_t k = 0; k < far; k++) i_queued(w, 1), w_pulled(w), f(w, 1);
    for (int64_t k = 0; k < m - 2 * half + h + 1; k++) {
        if (k == 0 && far == 0)  // the microbatch has only just turned: nothing to overlap yet
            f(w, 0), b(w, 1);
        else
            pair(w, 0);
        pair(w, 1);
    }
    for (int64_t k = 0; k < far; k++) b(w, 1), pair(w, 1);
    for (int64_t k = 0; k < near; k++) {
        const bool split = k >= near / 2, split_first = split && (h % 2 == 1 || k > near / 2);
        split_first ? i_queued(w, 1) : b(w, 1);
        split ? i_queued(w, 0) : b(w, 0);
    }
    for (int64_t k = 0; k < far; k++) w_pulled(w), i_queued(w, 0);
    while (w->pulled < w->queued) w_pulled(w);
}

static dpcr_status dualpipe(dpcri_maker *maker, int64_t half, int64_t m, int64_t (*place)(int64_t, int64_t, int)) {
    dpcr_status status;
    int64_t *queue = NULL;
    DPCR_TRY(dpcri_maker_start(maker, 2 * maker->p, m, 3));
    queue = dpcri_alloc(maker->context, (size_t)(2 * m) * sizeof *queue);
    if (!queue) DPCR_TRY(dpcri_fail(maker->error, DPCR_ERROR_MEMORY, "schedule: no memory for a queue"));
    for (int64_t r = 0; r < maker->p; r++) {
        const bool second = r >= half;
        const int64_t h = second ? maker->p - 1 - r : r;
        row w = {.maker = maker, .limit = m, .queue = queue};
        for (int phase = 0; phase < 2; phase++) w.stage[phase] = place(maker->p, r, phase ^ (int)second);
        dualpipe_row(&w, half, h, m);
        dpcri_end_row(maker);
    }
done:
    dpcri_free(maker->context, queue);
    return status;
}

dpcr_status dpcri_make_dualpipev(dpcri_maker *maker) {
    if (maker->m < 2 * maker->p)
        return dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED,
                          "dualpipev: %lld microbatches; wanted at least as many as stages, %lld", (long long)maker->m,
                          (long long)(2 * maker->p));
    return dualpipe(maker, maker->p, maker->m, dpcri_v_stage);
}

// Direction 1 enters at the last rank: stage R + k on rank R-1-k.
static int64_t both_ways(int64_t p, int64_t rank, int direction) { return direction ? 2 * p - 1 - rank : rank; }

dpcr_status dpcri_make_dualpipe(dpcri_maker *maker) {
    const int64_t p = maker->p, m = maker->m;
    if (p % 2 != 0 || m % 2 != 0 || m < 2 * p)
        return dpcri_fail(
            maker->error, DPCR_ERROR_UNSUPPORTED,
            "dualpipe: %lld ranks and %lld microbatches; wanted both even, and microbatches at least twice "
            "the ranks",
            (long long)p, (long long)m);
    const dpcr_status status = dualpipe(maker, p / 2, m / 2, both_ways);
    if (status == DPCR_OK) maker->schedule->chains = 2;
    return status;
}
