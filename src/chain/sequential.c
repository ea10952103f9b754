// SPDX-License-Identifier: MIT
// The loop: z_m = op(A_m) z_{m-1} + b_m in order. Sequences are independent, so groups of them run in parallel.
//
// Work n applications a sequence, depth n, no memory. Wins on short chains, on dense ones with few workers
// (compositions cost w times an application), and whenever there are sequences enough to fill the machine. What every
// other scheme must equal. Derivation: docs/math/linear-chains.md.
#include "chain/flow.h"

// Sequences a group: the kernels interleave four of them, and narrow states join into vectors.
static int64_t group_rows(const dpcri_flow *flow) { return flow->w >= 16 ? 4 : (64 + flow->w - 1) / flow->w; }

typedef struct job {
    const dpcri_flow *flow;
    int64_t group, groups, tasks;
} job;

static void run_group(void *argument, int64_t i) {
    const job *j = argument;
    const dpcri_flow *f = j->flow;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(j->groups, j->tasks, i, &lo, &hi);
    lo *= j->group;
    hi = hi * j->group < f->rows ? hi * j->group : f->rows;
    dpcri_span span = dpcri_flow_span(f, f->n, hi - lo);
    span.a = dpcri_at(f, f->a, lo * f->a_row);
    span.a_step = f->a_step;
    span.a_row = f->a_row;
    span.x = dpcri_at(f, f->z0, lo * f->z0_row);
    span.x_row = f->z0_row;
    span.r = dpcri_at(f, f->b, lo * f->b_row);
    span.r_step = f->b_step;
    span.r_row = f->b_row;
    span.y = dpcri_at_out(f, f->z, lo * f->z_row);
    span.y_step = f->z_step;
    span.y_row = f->z_row;
    dpcri_flow_serial(f, &span);
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    (void)flow;
    (void)options;
    (void)arena;
}

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    (void)options;
    (void)arena;
    job j = {.flow = f, .group = group_rows(f)};
    j.groups = (f->rows + j.group - 1) / j.group;
    j.tasks = dpcri_task_count(j.groups, (double)j.group * (double)f->n * (4 + f->flops));
    dpcri_parallel(f->context, j.tasks, run_group, &j);
    report->applications = (f->n - (f->z0 ? 0 : 1)) * f->rows;
    report->depth = f->n;
}

const dpcri_scheme_row dpcri_sequential = {"sequential", carve, run};
