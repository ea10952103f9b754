// SPDX-License-Identifier: MIT
// Interleaved pipelines: v stages a rank, stage s on rank s mod p, microbatches in rounds of k = m / max(1, m div p).
// Operation number op of a rank is microbatch (op div kv) k + op mod k of its chunk (op div k) mod v; backward runs the
// chunks the other way round.
//   interleaved-1f1b   warm-up min((v-1)k + 2(p-1-r), vm) F, then F and B in turn        idle (p-1)(tF+tB+tW) of a
//   chunk interleaved-zb     warm-up min((v-1)k + (p-1-r), vm) F, then F and I in turn; from the r-th I on a W after
//   each,
//                      oldest first; with v = 1 this is ZB-H1          idle (p-1) max(tF+tB-tW, tF, tB) for v = 1, m >=
//                      p
// Sources: Megatron-LM (arXiv 2104.04473), Zero Bubble (arXiv 2401.10241), torch.distributed.pipelining.
// docs/math/schedules.md derives the idle times.
#include "pipe/pipe.h"

typedef struct rounds {
    int64_t p, v, m, k, rank;
} rounds;

static void forward(dpcri_maker *maker, const rounds *n, int64_t op) {
    const int64_t chunk = op / n->k % n->v;
    dpcri_put(maker, DPCR_TASK_F, chunk * n->p + n->rank, op / (n->k * n->v) * n->k + op % n->k);
}

// The op-th backward, counted from 0.
static void backward(dpcri_maker *maker, const rounds *n, dpcr_task task, int64_t op) {
    const int64_t chunk = n->v - 1 - op / n->k % n->v;
    dpcri_put(maker, task, chunk * n->p + n->rank, op / (n->k * n->v) * n->k + op % n->k);
}

static dpcr_status start(dpcri_maker *maker, rounds *n, int64_t tasks) {
    const int64_t p = maker->p, v = maker->v, m = maker->m, count = m < p ? 1 : m / p;
    if (v > 1 && m % count != 0)
        return dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED,
                          "%s: %lld microbatches do not divide into %lld equal rounds; wanted a multiple of %lld",
                          dpcr_schedule_name(maker->options->kind), (long long)m, (long long)count, (long long)count);
    *n = (rounds){.p = p, .v = v, .m = m, .k = v > 1 ? m / count : 1};
    return dpcri_maker_start(maker, p * v, m, tasks);
}

static int64_t warm_up(const rounds *n, int64_t slope) {
    const int64_t wanted = (n->v - 1) * n->k + slope * (n->p - 1 - n->rank), most = n->v * n->m;
    return wanted < most ? wanted : most;
}

dpcr_status dpcri_make_interleaved_1f1b(dpcri_maker *maker) {
    rounds n = {0};
    const dpcr_status status = start(maker, &n, 2);
    if (status != DPCR_OK) return status;
    for (n.rank = 0; n.rank < n.p; n.rank++) {
        const int64_t all = n.v * n.m, w = warm_up(&n, 2);
        for (int64_t op = 0; op < w; op++) forward(maker, &n, op);
        for (int64_t op = w; op < all; op++) {
            forward(maker, &n, op);
            backward(maker, &n, DPCR_TASK_B, op - w);
        }
        for (int64_t op = all; op < all + w; op++) backward(maker, &n, DPCR_TASK_B, op - w);
        dpcri_end_row(maker);
    }
    return DPCR_OK;
}

dpcr_status dpcri_make_interleaved_zb(dpcri_maker *maker) {
    rounds n = {0};
    const dpcr_status status = start(maker, &n, 3);
    if (status != DPCR_OK) return status;
    for (n.rank = 0; n.rank < n.p; n.rank++) {
        const int64_t all = n.v * n.m, w = warm_up(&n, 1);
        int64_t weights = 0;
        for (int64_t op = 0; op < w; op++) forward(maker, &n, op);
        for (int64_t op = 0; op < all; op++) {
            if (op + w < all) forward(maker, &n, op + w);
            backward(maker, &n, DPCR_TASK_I, op);
            if (op >= n.rank) backward(maker, &n, DPCR_TASK_W, weights++);
        }
        while (weights < all) backward(maker, &n, DPCR_TASK_W, weights++);
        dpcri_end_row(maker);
    }
    return DPCR_OK;
}
