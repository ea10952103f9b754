// SPDX-License-Identifier: MIT
// Parareal: the chain in K blocks of n steps; F runs a block's steps, G one coarse step over the block (without noise):
//
//   U_0 = z0;  U_{i+1} = G(U_i)
//   repeat:    F(U_i) for all blocks at once;   U_{i+1} <- F(U_i) + G(U_i new) - G(U_i old), in order
//
// Sweep p makes the first p blocks the loop's, bit for bit, so K sweeps always do. It ends when every F(U_i) is U_{i+1}
// to the tolerance. Work a sweep: L evaluations, n after one another, and K coarse ones in order; memory 3 K states.
// Wins where one coarse step says much of the block: smooth paths with many steps. Sources: Lions, Maday, Turinici, C.
// R. Acad. Sci. 332 (2001); SRDS (arXiv 2412.20292). docs/diffusion.md.
#include <string.h>

#include "sample/sweeping.h"

typedef struct parareal {
    dpcri_sweeping *s;
    dpcr_sampler coarse;     // the sampler with one step a block
    int64_t blocks, n, row;  // row: numbers of a state of all sequences
    void *u, *g, *fresh;     // [K + 1][B][w], [K][B][w], [B][w]
} parareal;

static int64_t steps_of(const parareal *p, int64_t block) {
    const int64_t left = p->s->length - block * p->n;
    return left < p->n ? left : p->n;
}

static dpcr_status make_coarse(parareal *p) {
    const dpcr_sampler *fine = p->s->sampler;
    const dpcr_sampler_options *o = &fine->options;
    const dpcr_sampler_kind kind =
        o->kind == DPCR_SAMPLER_DDPM || o->kind == DPCR_SAMPLER_DDIM ? DPCR_SAMPLER_DDIM : o->kind;
    double abar[DPCRI_MOST_TIMES];
    dpcri_step *steps = dpcri_alloc(fine->context, (size_t)p->blocks * sizeof *steps);
    if (!steps)
        return dpcri_fail(p->s->error, DPCR_ERROR_MEMORY, "parareal: no memory for %lld coarse steps",
                          (long long)p->blocks);
    dpcri_noise_fill(&o->noise, NULL, abar);
    for (int64_t i = 0; i < p->blocks; i++) {
        const int64_t first = i * p->n, end = first + steps_of(p, i);
        const dpcri_step *last = &fine->steps[end - 1];
        const dpcri_place at = dpcri_place_at(&o->noise, abar, fine->steps[first].first.time);
        const dpcri_place to = {
            .time = end < p->s->length ? fine->steps[end].first.time : 0, .alpha = last->alpha, .sigma = last->sigma};
        steps[i] = dpcri_step_make(kind, fine->denoiser.prediction, 0, at, to, NULL);
    }
    p->coarse = *fine;
    p->coarse.steps = steps;
    p->coarse.noise = NULL;
    p->coarse.chain.user = &p->coarse;
    p->coarse.chain.length = p->blocks;
    return DPCR_OK;
}

static void *boundary(const parareal *p, void *of, int64_t i) { return dpcri_state_at(p->s->dtype, of, i * p->row); }

static dpcr_status coarse_step(parareal *p, int64_t block, void *to) {
    return dpcri_sweeping_run(&p->coarse, block, 1, 1, 1, boundary(p, p->u, block), p->row, NULL, to, p->row,
                              p->s->active, p->s->error);
}

// F of blocks first .. K-1, all states to z; the last block may be shorter.
static dpcr_status run_blocks(parareal *p, int64_t first) {
    dpcr_status status = DPCR_OK;
    dpcri_sweeping *s = p->s;
    const int64_t tail = steps_of(p, p->blocks - 1), whole = p->blocks - (tail < p->n);
    const int64_t stride = p->n * p->row;
    if (first < whole)
        DPCR_TRY(dpcri_sweeping_run(s->sampler, first * p->n, whole - first, p->n, p->n, boundary(p, p->u, first),
                                    p->row, boundary(p, s->z.data, first * p->n), NULL, stride, s->active, s->error));
    if (whole < p->blocks)
        DPCR_TRY(dpcri_sweeping_run(s->sampler, whole * p->n, 1, 1, tail, boundary(p, p->u, whole), p->row,
                                    boundary(p, s->z.data, whole * p->n), NULL, stride, s->active, s->error));
done:
    return status;
}

static const void *end_of(const parareal *p, int64_t block) {
    return boundary(p, p->s->z.data, block * p->n + steps_of(p, block) - 1);
}

// Judges every sequence by where its blocks end and where the next ones started.
static void judge(parareal *p, int64_t first) {
    dpcri_sweeping *s = p->s;
    const size_t bytes = (size_t)s->width * dpcr_dtype_size(s->dtype);
    s->residual = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        double most = 0;
        bool equal = true;
        for (int64_t i = first; s->active[b] && i + 1 < p->blocks; i++) {
            const void *end = dpcri_state_at(s->dtype, end_of(p, i), b * s->width);
            const void *start = dpcri_state_at(s->dtype, boundary(p, p->u, i + 1), b * s->width);
            const double d = dpcri_state_distance(s->dtype, start, end, s->width);
            equal = equal && !memcmp(start, end, bytes);
            most = !(d <= most) ? d : most;
            if (isnan(d)) break;
        }
        if (!(most <= s->residual)) s->residual = most;
        if (s->active[b] && (equal || most <= s->options.tolerance))
            dpcri_sweeping_done(s, b, equal ? DPCR_REASON_EXACT : DPCR_REASON_RESIDUAL_ONLY);
    }
}

// U of the blocks after `first`, whose own start is final.
static dpcr_status correct(parareal *p, int64_t first) {
    dpcr_status status = DPCR_OK;
    const dpcri_sweeping *s = p->s;
    const dpcr_dtype dtype = s->dtype;
    for (int64_t i = first; i + 1 < p->blocks; i++) {
        void *old = boundary(p, p->g, i), *next = boundary(p, p->u, i + 1);
        const void *end = end_of(p, i);
        if (i > first) DPCR_TRY(coarse_step(p, i, p->fresh));
        for (int64_t k = 0; k < p->row; k++) {
            if (!s->active[k / s->width]) continue;
            const double f = dpcri_state_get(dtype, end, k);
            const double now = i > first ? dpcri_state_get(dtype, p->fresh, k) : 0;
            const double change = i > first ? now - dpcri_state_get(dtype, old, k) : 0;
            dpcri_state_set(dtype, next, k, isfinite(change) ? f + change : f);
            if (i > first) dpcri_state_set(dtype, old, k, now);
        }
    }
done:
    return status;
}

static dpcr_status finish(parareal *p, int64_t from) {
    dpcri_sweeping *s = p->s;
    const dpcr_status status =
        dpcri_sweeping_run(s->sampler, from, 1, 1, s->length - from, boundary(p, s->z.data, from - 1), p->row,
                           boundary(p, s->z.data, from), NULL, p->row, s->active, s->error);
    for (int64_t b = 0; b < s->batch; b++)
        if (s->active[b]) dpcri_sweeping_done(s, b, DPCR_REASON_FALLBACK);
    return status;
}

static dpcr_status iterate(parareal *p) {
    dpcr_status status;
    dpcri_sweeping *s = p->s;
    const size_t bytes = (size_t)p->row * dpcr_dtype_size(s->dtype);
    memcpy(p->u, s->z0.data, bytes);
    for (int64_t i = 0; i + 1 < p->blocks; i++) {
        DPCR_TRY(coarse_step(p, i, boundary(p, p->g, i)));
        memcpy(boundary(p, p->u, i + 1), boundary(p, p->g, i), bytes);
    }
    for (int64_t front = 0;; front++) {
        if (dpcri_cancelled(s->sampler->context))
            DPCR_TRY(dpcri_fail(s->error, DPCR_ERROR_CANCELLED, "parareal: stopped by the caller's cancel function"));
        DPCR_TRY(run_blocks(p, front));
        s->sweeps++;
        judge(p, front);
        if (!dpcri_sweeping_any(s)) break;
        if (s->sweeps >= s->options.max_sweeps) {
            status = finish(p, (front + 1) * p->n);
            break;
        }
        DPCR_TRY(correct(p, front));
    }
done:
    return status;
}

dpcr_status dpcri_solve_parareal(dpcri_sweeping *s) {
    dpcr_status status;
    parareal p = {.s = s, .n = s->options.block < s->length ? s->options.block : s->length};
    const size_t real = dpcr_dtype_size(s->dtype);
    dpcr_context *context = s->sampler->context;
    p.blocks = (s->length + p.n - 1) / p.n;
    p.row = s->batch * s->width;
    p.u = dpcri_alloc_zero(context, (size_t)((p.blocks + 1) * p.row) * real);
    p.g = dpcri_alloc_zero(context, (size_t)(p.blocks * p.row) * real);
    p.fresh = dpcri_alloc_zero(context, (size_t)p.row * real);
    if (!p.u || !p.g || !p.fresh)
        DPCR_TRY(dpcri_fail(s->error, DPCR_ERROR_MEMORY, "parareal: no memory for %lld states", (long long)p.blocks));
    DPCR_TRY(make_coarse(&p));
    p.coarse.rows = p.coarse.products = p.coarse.calls = 0;
    status = iterate(&p);
    s->sampler->rows += p.coarse.rows;
    s->sampler->calls += p.coarse.calls;
    dpcri_free(context, p.coarse.steps);
done:
    dpcri_free(context, p.u);
    dpcri_free(context, p.g);
    dpcri_free(context, p.fresh);
    return status;
}
