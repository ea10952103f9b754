// SPDX-License-Identifier: MIT
// The loop: z_m = op(A_m) z_{m-1} + b_m in order. Sequences are independent, so groups of them run in parallel; so are
// the components of an elementwise chain and the blocks of a block-diagonal one, where there are few sequences.
//
// Work n applications a sequence, depth n, no memory. Wins on short chains, on dense ones with few workers
// (compositions cost w times an application), and whenever there are sequences enough to fill the machine. What every
// other scheme must equal. Derivation: docs/math/linear-chains.md.
#include "chain/flow.h"

// Rows that fill whole cache lines, pairs of which processors fetch together: pairs, or, where that takes more than 16
// rows, lines.
static int64_t rows_of_lines(int64_t row_bytes) {
    const int64_t factor = row_bytes & -row_bytes, pairs = factor < 128 ? 128 / factor : 1;
    return pairs > 16 && pairs * row_bytes > 128 ? pairs / 2 : pairs;
}

// Fours of rows that fill a pair of lines, or three quarters of it.
static int64_t fours_of_rows(int64_t row_bytes) {
    const int64_t fours = 128 / row_bytes / 4 * 4;
    return fours * row_bytes < 96 ? fours + 4 : fours;
}

// Sequences a group: the kernels interleave eight of them, and narrow states join into vectors. Of few narrow ones that
// mix every thread gets some, as long as its states fill lines of their own, or, where that leaves threads without any,
// nearly so.
static int64_t group_rows(dpcr_structure form, int64_t w, size_t element, int64_t rows, int64_t threads) {
    const int64_t most = w >= 16 ? 4 : (64 + w - 1) / w, row_bytes = (int64_t)element * w;
    if (form != DPCR_DENSE && form != DPCR_BLOCK) return most;
    const int64_t lines = rows_of_lines(row_bytes), share = (rows + threads - 1) / threads;
    const int64_t fill = lines < 2 * share ? lines : fours_of_rows(row_bytes);
    const int64_t whole = fill > 4 ? fill : 4, each = (share + whole - 1) / whole * whole;
    const int64_t full = (most + whole - 1) / whole * whole;
    return each < full && each > 0 ? each : full;
}

int64_t dpcri_part_width(dpcr_structure form, int64_t block, size_t element) {
    const int64_t line = 64 / (int64_t)element, k = form == DPCR_BLOCK ? block : 1;
    return form == DPCR_DENSE ? 0 : line % k == 0 ? line : line * k;
}

// Of all components: below, handing parts over costs what they win (bench chain --structure diagonal, 64 wide: 1024
// steps take 4.2 us on one thread, 5.9 in two parts; 32 wide, 4096 steps 15 and 8.8; Zen 5).
static const double least_shared_flops = 2e5;

dpcri_loop_shares dpcri_loop_shares_of(dpcr_structure form, int64_t w, int64_t block, size_t element, int64_t rows,
                                       double flops, int64_t threads) {
    dpcri_loop_shares shares = {.group = group_rows(form, w, element, rows, threads)};
    shares.groups = (rows + shares.group - 1) / shares.group;
    const int64_t part = dpcri_part_width(form, block, element);
    shares.by_parts = part > 0 && flops >= least_shared_flops && shares.groups < threads && w >= 2 * part;
    if (shares.by_parts) shares.group = part, shares.groups = (w + part - 1) / part;
    return shares;
}

typedef struct job {
    const dpcri_flow *flow;
    dpcri_loop_shares shares;
    int64_t tasks;
} job;

// Narrow chains beside each other share cache lines, and the kernels pass over them a few at a time: stretch by
// stretch, so that a line is still there for the next ones.
static int64_t stretch_of(const dpcri_flow *f, const dpcri_span *span) {
    enum { STRETCH_BYTES = 96 << 10, LEAST_STEPS = 2, ROW_BYTES = 256 };
    const int64_t k = f->form == DPCR_BLOCK ? f->block : f->w, element = (int64_t)f->size;
    const bool narrow = (f->form == DPCR_DENSE || f->form == DPCR_BLOCK) && k * k * element <= ROW_BYTES;
    const int64_t chains = span->rows * (span->w / k), step = chains * (k * k + 2 * k) * element;
    const int64_t values = f->form == DPCR_BLOCK ? span->w * k : f->values;
    const bool on = span->a_row == values && span->r_row == span->w && span->y_row == span->w;
    const int64_t at_once = span->rows == 1 || on ? dpcri_chains_at_once(dpcri_isa_level(), f->dtype, k) : 4;
    if (!narrow || chains <= at_once) return span->n;
    return STRETCH_BYTES / step > LEAST_STEPS ? STRETCH_BYTES / step : LEAST_STEPS;
}

static void run_group(void *argument, int64_t i) {
    const job *j = argument;
    const dpcri_flow *f = j->flow;
    const bool by_parts = j->shares.by_parts;
    const int64_t all = by_parts ? f->w : f->rows, group = j->shares.group;
    int64_t lo = 0, hi = 0;
    dpcri_task_range(j->shares.groups, j->tasks, i, &lo, &hi);
    lo *= group;
    hi = hi * group < all ? hi * group : all;
    const int64_t row = by_parts ? 0 : lo, part = by_parts ? lo : 0;
    const int64_t values = f->form == DPCR_BLOCK ? f->block : f->form == DPCR_DIAGONAL ? 1 : 0;  // of a component
    dpcri_span span = dpcri_flow_span(f, f->n, by_parts ? f->rows : hi - lo);
    if (by_parts) span.w = span.cols = hi - lo;
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

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    (void)options;
    (void)arena;
    const int64_t threads = dpcr_context_threads(f->context);
    const double steps = (double)f->rows * (double)f->n;
    job j = {.flow = f};
    j.shares = dpcri_loop_shares_of(f->form, f->w, f->block, f->size, f->rows, steps * f->flops, threads);
    const double alone = (double)j.shares.group * (double)f->n * (4 + f->flops);
    const double flops = j.shares.by_parts ? steps * (4 + f->flops / (double)j.shares.groups) : alone;
    j.tasks = dpcri_task_count(j.shares.groups, flops);
    // As wide as can be: narrow parts of a row waste what the caches fetch beside them and ahead.
    if (f->form != DPCR_DENSE && j.tasks > threads) j.tasks = threads;
    dpcri_parallel(f->context, j.tasks, run_group, &j);
    report->applications = (f->n - (f->z0 ? 0 : 1)) * f->rows;
    report->depth = f->n;
}

const dpcri_scheme_row dpcri_sequential = {"sequential", carve, run};
