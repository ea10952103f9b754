// SPDX-License-Identifier: MIT
// The loop: z_m = op(A_m) z_{m-1} + b_m in order. Sequences are independent, so groups of them run in parallel; so are
// the components of an elementwise chain and the blocks of a block-diagonal one, where there are few sequences.
//
// Work n applications a sequence, depth n, no memory. Wins on short chains, on dense ones with few workers
// (compositions cost w times an application), and whenever there are sequences enough to fill the machine. What every
// other scheme must equal. Derivation: docs/math/linear-chains.md.
#include "chain/flow.h"

// Sequences a group: the kernels interleave four of them, and narrow states join into vectors. Of few narrow ones that
// mix every thread gets some, as long as its states fill pairs of cache lines, which processors fetch together.
static int64_t group_rows(const dpcri_flow *flow) {
    const int64_t most = flow->w >= 16 ? 4 : (64 + flow->w - 1) / flow->w,
                  threads = dpcr_context_threads(flow->context);
    if (flow->form != DPCR_DENSE && flow->form != DPCR_BLOCK) return most;
    const int64_t fill = 128 / ((int64_t)flow->size * flow->w), pair = fill > 4 ? fill : 4;
    const int64_t each = ((flow->rows + threads - 1) / threads + pair - 1) / pair * pair;
    return each < most ? each : most;
}

int64_t dpcri_part_width(dpcr_structure form, int64_t block, size_t element) {
    const int64_t line = 64 / (int64_t)element, k = form == DPCR_BLOCK ? block : 1;
    return form == DPCR_DENSE ? 0 : line % k == 0 ? line : line * k;
}

typedef struct job {
    const dpcri_flow *flow;
    bool by_parts;  // tasks take components of all sequences; else sequences
    int64_t group, groups, tasks;
} job;

// Narrow chains beside each other share cache lines, and the kernels pass over them a few at a time: stretch by
// stretch, so that a line is still there for the next ones.
static int64_t stretch_of(const dpcri_flow *f, const dpcri_span *span) {
    enum { STRETCH_BYTES = 96 << 10, LEAST_STEPS = 16, ROW_BYTES = 256 };
    const int64_t k = f->form == DPCR_BLOCK ? f->block : f->w, element = (int64_t)f->size;
    const bool narrow = (f->form == DPCR_DENSE || f->form == DPCR_BLOCK) && k * k * element <= ROW_BYTES;
    const int64_t chains = span->rows * (span->w / k), step = chains * (k * k + 2 * k) * element;
    if (!narrow || chains <= 4) return span->n;
    return STRETCH_BYTES / step > LEAST_STEPS ? STRETCH_BYTES / step : LEAST_STEPS;
}

static void run_group(void *argument, int64_t i) {
    const job *j = argument;
    const dpcri_flow *f = j->flow;
    const int64_t all = j->by_parts ? f->w : f->rows;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(j->groups, j->tasks, i, &lo, &hi);
    lo *= j->group;
    hi = hi * j->group < all ? hi * j->group : all;
    const int64_t row = j->by_parts ? 0 : lo, part = j->by_parts ? lo : 0;
    const int64_t values = f->form == DPCR_BLOCK ? f->block : f->form == DPCR_DIAGONAL ? 1 : 0;  // of a component
    dpcri_span span = dpcri_flow_span(f, f->n, j->by_parts ? f->rows : hi - lo);
    if (j->by_parts) span.w = span.cols = hi - lo;
    span.a = dpcri_at(f, f->a, row * f->a_row + part * values);
    span.a_step = f->a_step;
    span.a_row = f->a_row;
    span.x = dpcri_at(f, f->z0, row * f->z0_row + part);
    span.x_row = f->z0_row;
    span.r = dpcri_at(f, f->b, row * f->b_row + part);
    span.r_step = f->b_step;
    span.r_row = f->b_row;
    span.y = dpcri_at_out(f, f->z, row * f->z_row + part);
    span.y_step = f->z_step;
    span.y_row = f->z_row;
    dpcri_flow_serial_by(f, &span, stretch_of(f, &span));
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    (void)flow;
    (void)options;
    (void)arena;
}

// Of all components: below, handing parts over costs what they win (bench chain --structure diagonal, 64 wide: 1024
// steps take 4.2 us on one thread, 5.9 in two parts; 32 wide, 4096 steps 15 and 8.8; Zen 5).
static const double least_shared_flops = 2e5;

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    (void)options;
    (void)arena;
    job j = {.flow = f, .group = group_rows(f)};
    j.groups = (f->rows + j.group - 1) / j.group;
    double flops = (double)j.group * (double)f->n * (4 + f->flops);
    const int64_t part = dpcri_part_width(f->form, f->block, f->size);
    const bool worth = (double)f->rows * (double)f->n * f->flops >= least_shared_flops;
    j.by_parts = part > 0 && worth && j.groups < dpcr_context_threads(f->context) && f->w >= 2 * part;
    if (j.by_parts) {
        j.group = part, j.groups = (f->w + part - 1) / part;
        flops = (double)f->rows * (double)f->n * (4 + f->flops / (double)j.groups);
    }
    j.tasks = dpcri_task_count(j.groups, flops);
    // As wide as can be: narrow parts of a row waste what the caches fetch beside them.
    if (j.by_parts && j.tasks > dpcr_context_threads(f->context)) j.tasks = dpcr_context_threads(f->context);
    dpcri_parallel(f->context, j.tasks, run_group, &j);
    report->applications = (f->n - (f->z0 ? 0 : 1)) * f->rows;
    report->depth = f->n;
}

const dpcri_scheme_row dpcri_sequential = {"sequential", carve, run};
