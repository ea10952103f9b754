// SPDX-License-Identifier: MIT
// Straight pipelines, stage s on rank s, in closed rules (docs/math/schedules.md):
//   gpipe          m F, then m B                                   idle (p-1)(tF+tB+tW), m activations
//   1f1b           min(p-1-s, m) F, then F and B in turn           the same idle, p-s activations
//   pipedream      the rows of 1f1b, an update a microbatch: delay p-1-s, p-s weight versions
//   pipedream-2bw  the same with an update every `accumulate` >= p microbatches: delay 1, two versions
//   ooo            m F, then every I, then every W                 with v > 1, stage s on rank s mod p
// Sources: GPipe (arXiv 1811.06965), PipeDream (arXiv 1806.03377), PipeDream-2BW (arXiv 2006.09503), out-of-order
// backprop (doi 10.1145/3492321.3519563).
#include "pipe/pipe.h"

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

dpcr_status dpcri_make_gpipe(dpcri_maker *maker) {
    const dpcr_status status = dpcri_maker_start(maker, maker->p, maker->m, 2);
    if (status != DPCR_OK) return status;
    for (int64_t r = 0; r < maker->p; r++) {
        for (int64_t i = 0; i < maker->m; i++) dpcri_put(maker, DPCR_TASK_F, r, i);
        for (int64_t i = 0; i < maker->m; i++) dpcri_put(maker, DPCR_TASK_B, r, i);
        dpcri_end_row(maker);
    }
    return DPCR_OK;
}

dpcr_status dpcri_make_1f1b(dpcri_maker *maker) {
    const dpcr_status status = dpcri_maker_start(maker, maker->p, maker->m, 2);
    if (status != DPCR_OK) return status;
    const bool flushes = maker->options->kind == DPCR_SCHEDULE_1F1B;
    for (int64_t r = 0; r < maker->p; r++) {
        const int64_t warm_up = min64(maker->p - 1 - r, maker->m);
        for (int64_t i = 0; i < warm_up; i++) dpcri_put(maker, DPCR_TASK_F, r, i);
        for (int64_t i = warm_up; i < maker->m; i++) {
            dpcri_put(maker, DPCR_TASK_F, r, i);
            dpcri_put(maker, DPCR_TASK_B, r, i - warm_up);
        }
        for (int64_t i = maker->m - warm_up; i < maker->m; i++) dpcri_put(maker, DPCR_TASK_B, r, i);
        dpcri_end_row(maker);
        if (!flushes) maker->schedule->delay[r] = maker->p - 1 - r;
    }
    if (!flushes) maker->schedule->accumulate = 1;
    return DPCR_OK;
}

dpcr_status dpcri_make_2bw(dpcri_maker *maker) {
    const int64_t accumulate = maker->options->accumulate ? maker->options->accumulate : maker->p;
    if (accumulate < maker->p)
        return dpcri_fail(
            maker->error, DPCR_ERROR_UNSUPPORTED,
            "pipedream-2bw: %lld microbatches an update on %lld ranks need more than two weight versions; "
            "wanted at least as many as ranks",
            (long long)accumulate, (long long)maker->p);
    const dpcr_status status = dpcri_make_1f1b(maker);
    if (status != DPCR_OK) return status;
    maker->schedule->accumulate = accumulate;
    for (int64_t s = 0; s < maker->p; s++) maker->schedule->delay[s] = 1;
    return DPCR_OK;
}

// With fewer microbatches than ranks the next stage's I arrives late: that gap takes the W of the stage before.
dpcr_status dpcri_make_ooo(dpcri_maker *maker) {
    const int64_t p = maker->p, v = maker->v, m = maker->m, gap = m < p ? min64(m, p - m) : 0;
    const dpcr_status status = dpcri_maker_start(maker, p * v, m, 3);
    if (status != DPCR_OK) return status;
    for (int64_t r = 0; r < p; r++) {
        for (int64_t c = 0; c < v; c++)
            for (int64_t i = 0; i < m; i++) dpcri_put(maker, DPCR_TASK_F, c * p + r, i);
        for (int64_t c = v - 1; c >= 0; c--) {
            for (int64_t i = 0; i < m; i++) dpcri_put(maker, DPCR_TASK_I, c * p + r, i);
            for (int64_t i = 0; i < gap; i++) dpcri_put(maker, DPCR_TASK_W, c * p + r, i);
        }
        for (int64_t c = v - 1; c >= 0; c--)
            for (int64_t i = gap; i < m; i++) dpcri_put(maker, DPCR_TASK_W, c * p + r, i);
        dpcri_end_row(maker);
    }
    return DPCR_OK;
}
