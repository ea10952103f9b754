// SPDX-License-Identifier: MIT
// Parallel cyclic reduction, affine form, double-buffered:
//
//   for s = 1, 2, 4, ... < n, all m at once:   r_m <- r_m + A_m r_{m-s}   (m >= s),   A_m <- A_m A_{m-s}   (m >= 2s)
//
// After the level of s, r_m sums the steps m-2s+1..m, so the first 2s states are solved and their products are never
// asked for again: they are not formed. Every element combines at fixed distances, so the bits of z_m depend on the
// steps before it alone. Where all steps share one A, a level needs one product: A^(2s).
//
// Work n log2 n applications and about n (log2 n - 1) compositions, and n applications to look (recheck.h), depth
// ceil(log2 n) levels, memory 2 n (w + values).
// Wins where workers are many and states narrow. Source: Hockney (1965), Hillis & Steele (1986, 10.1145/7902.7903),
// DeepPCR (arXiv 2309.16318). Derivation: docs/math/pcr.md.
#include "chain/flow.h"
#include "chain/recheck.h"

typedef struct buffers {
    void *r[2], *a[2];
    int64_t r_step;
    int64_t a_step, a_row;  // of the products; 0 where shared
} buffers;

static buffers take(const dpcri_flow *f, dpcri_arena *arena) {
    const int64_t steps = dpcri_flow_a_steps(f), rows = dpcri_flow_a_rows(f);
    buffers b = {
        .r_step = f->rows * f->w, .a_step = steps > 1 ? rows * f->values : 0, .a_row = rows > 1 ? f->values : 0};
    for (int i = 0; i < 2; i++) {
        b.r[i] = dpcri_flow_take(f, arena, f->n, f->rows, f->w);
        b.a[i] = dpcri_flow_take(f, arena, steps, rows, f->values);
    }
    return b;
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    (void)options;
    take(flow, arena);
    dpcri_recheck_space space;
    dpcri_recheck_take(flow, arena, &space);
}

typedef struct level {
    const dpcri_flow *flow;
    int64_t s, tasks;
    const void *r_old, *a_old;
    void *r_new, *a_new;
    int64_t r_step, r_row;
    int64_t old_step, old_row, new_step, new_row;  // of the products
} level;

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

static void keep_solved(const level *v, int64_t lo, int64_t hi) {
    const dpcri_flow *f = v->flow;
    if (lo >= hi) return;
    dpcri_span span = dpcri_flow_span(f, hi - lo, f->rows);
    span.r = dpcri_at(f, v->r_old, lo * v->r_step);
    span.y = dpcri_at_out(f, v->r_new, lo * v->r_step);
    span.r_step = span.y_step = v->r_step;
    span.r_row = span.y_row = v->r_row;
    dpcri_flow_copy(f, &span);
}

static void combine_vectors(const level *v, int64_t lo, int64_t hi) {
    const dpcri_flow *f = v->flow;
    if (lo >= hi) return;
    dpcri_span span = dpcri_flow_span(f, hi - lo, f->rows);
    span.a = dpcri_at(f, v->a_old, lo * v->old_step);
    span.a_step = v->old_step;
    span.a_row = v->old_row;
    span.x = dpcri_at(f, v->r_old, (lo - v->s) * v->r_step);
    span.r = dpcri_at(f, v->r_old, lo * v->r_step);
    span.y = dpcri_at_out(f, v->r_new, lo * v->r_step);
    span.x_step = span.r_step = span.y_step = v->r_step;
    span.x_row = span.r_row = span.y_row = v->r_row;
    dpcri_flow_apply(f, &span);
}

static void combine_products(const level *v, int64_t lo, int64_t hi) {
    const dpcri_flow *f = v->flow;
    if (lo >= hi) return;
    dpcri_span span = dpcri_flow_span(f, hi - lo, dpcri_flow_a_rows(f));
    span.a = dpcri_at(f, v->a_old, lo * v->old_step);
    span.x = dpcri_at(f, v->a_old, (lo - v->s) * v->old_step);
    span.a_step = span.x_step = v->old_step;
    span.a_row = span.x_row = v->old_row;
    span.y = dpcri_at_out(f, v->a_new, lo * v->new_step);
    span.y_step = v->new_step;
    span.y_row = v->new_row;
    dpcri_flow_compose(f, span);
}

static void run_part(void *argument, int64_t i) {
    const level *v = argument;
    const int64_t n = v->flow->n, s = v->s;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(n, v->tasks, i, &lo, &hi);
    keep_solved(v, lo, hi < s ? hi : s);
    combine_vectors(v, largest(lo, s), hi);
    if (dpcri_flow_a_steps(v->flow) > 1)
        combine_products(v, largest(lo, 2 * s), hi);
    else if (i == 0 && 2 * s < n)
        combine_products(v, 2 * s, 2 * s + 1);
}

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    (void)options;
    const buffers b = take(f, arena);
    dpcri_recheck_space space;
    dpcri_recheck_take(f, arena, &space);
    dpcri_flow first = *f;
    first.z = b.r[0];
    first.z_step = b.r_step;
    first.z_row = f->w;
    dpcri_flow_start(&first);
    report->applications = f->z0 ? f->rows : 0;
    level v = {.flow = f,
               .r_step = b.r_step,
               .r_row = f->w,
               .a_old = f->a,
               .old_step = f->a_step,
               .old_row = f->a_row,
               .new_step = b.a_step,
               .new_row = b.a_row};
    v.tasks = dpcri_task_count(f->n, (double)f->rows * f->flops * (double)(1 + f->values / f->w));
    int now = 0;
    for (v.s = 1; v.s < f->n; v.s *= 2) {
#ifdef DPCRI_MUTANTS
        if (dpcri_mutant == 1 && 2 * v.s >= f->n) break;
#endif
        v.r_old = b.r[now];
        v.r_new = b.r[1 - now];
        v.a_new = b.a[now];
        dpcri_parallel(f->context, v.tasks, run_part, &v);
        v.a_old = v.a_new;
        v.old_step = v.new_step;
        v.old_row = v.new_row;
        now = 1 - now;
        report->applications += (f->n - v.s) * f->rows;
        if (2 * v.s < f->n)
            report->compositions += (dpcri_flow_a_steps(f) > 1 ? f->n - 2 * v.s : 1) * dpcri_flow_a_rows(f);
        report->depth++;
    }
    if (f->z != f->b || f->lost) {
        dpcri_flow made = *f;  // before z takes b's place
        made.z = b.r[now];
        made.z_step = b.r_step;
        made.z_row = f->w;
        report->finished_from = dpcri_recheck(&made, &space);
    }
    dpcri_flow last = *f;
    last.b = b.r[now];
    last.b_step = b.r_step;
    last.b_row = f->w;
    last.z0 = NULL;
    dpcri_flow_start(&last);
}

const dpcri_scheme_row dpcri_pcr = {"pcr", carve, run};
