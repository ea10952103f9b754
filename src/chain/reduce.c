// SPDX-License-Identifier: MIT
// A range of a chain reduced to its summary, and run from the state that comes in: the phases of `chunked` (chunked.c)
// with a scan over other ranges between them.
//
//   1  chunks of C steps, side by side as the kernels' rows: M_c = A_last ... A_first, v_c = the chunk run from zero
//   2  M = M_{K-1} ... M_0,  v by the loop over (M_c, v_c)
//   3  g_c = M_c g_{c-1} + v_c from the g that comes in, then every chunk from its own, side by side
//   4  what really goes out of them against g_c: where they do not join, or what they differ by grows to more than
//      holds (joins.h), a sequence goes on in order; where z is b, which is gone, nothing can, and flow->lost says so
//
// Chunks are fixed by the range's length, so bits do not depend on threads. Work a step: one composition and two
// applications; memory K (w + values).
#include <string.h>

#include "chain/distributed.h"
#include "chain/joins.h"
#include "chain/windows.h"
#include "kern/squares.h"

static int64_t groups_of(int64_t chunks) { return (chunks + DPCRI_SIDE - 1) / DPCRI_SIDE; }

void dpcri_range_carve(dpcri_range *r, dpcri_arena *arena) {
    const dpcri_flow *f = &r->flow;
    r->groups = groups_of(r->chunks.count);
    r->sums = dpcri_flow_take(f, arena, r->chunks.count, r->sum_rows, f->values);
    r->ends = dpcri_flow_take(f, arena, r->chunks.count, f->rows, f->w);
    r->stretch = dpcri_flow_take(f, arena, r->groups, DPCRI_SIDE * DPCRI_STRETCH, f->w);
    r->scratch = dpcri_flow_take(f, arena, r->groups + 1, f->values, 1);
    r->starts = dpcri_flow_take(f, arena, r->chunks.count + 1, f->rows, f->w);
    r->error = dpcri_flow_take(f, arena, 2, f->w, 1);
    r->carried = r->starts;  // the one is read before the other is made
}

static int64_t start_of(const dpcri_range *r, int64_t c) { return dpcri_chunk_start(&r->chunks, c); }
static int64_t steps_of(const dpcri_range *r, int64_t c) {
    return dpcri_chunk_end(&r->flow, &r->chunks, c) - start_of(r, c);
}

// The transition of step m in the recurrence's order: the flow's, or transposed the one that it puts before step m + 1.
static const void *own(const dpcri_range *r, int64_t m, int64_t row) {
    const dpcri_flow *f = &r->flow;
    return dpcri_at(f, f->a, (m + f->transposed) * f->a_step + row * f->a_row);
}

static void *sum_at(const dpcri_range *r, int64_t c, int64_t row) {
    return dpcri_at_out(&r->flow, r->sums, (c * r->sum_rows + row) * r->flow.values);
}
static const void *start_at(const dpcri_range *r, int64_t c, int64_t row) {
    return dpcri_at(&r->flow, r->starts, (c * r->flow.rows + row) * r->flow.w);
}
static void *end_at(const dpcri_range *r, int64_t c, int64_t row) {
    return dpcri_at_out(&r->flow, r->ends, (c * r->flow.rows + row) * r->flow.w);
}

// M of `count` chunks of `steps` steps from chunk c on.
static void form_sums(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t group) {
    const dpcri_flow *f = &r->flow;
    for (int64_t row = 0; f->values > 0 && row < r->sum_rows; row++) {
        dpcri_span span = dpcri_flow_span(f, steps, count);
        span.a = own(r, start_of(r, c), row);
        span.a_step = f->a_step;
        span.a_row = r->chunks.size * f->a_step;
        span.r = dpcri_at(f, r->scratch, group * f->values);
        span.y = sum_at(r, c, row);
        span.y_row = r->sum_rows * f->values;
        dpcri_flow_product(f, &span);
    }
}

// What goes out of `count` chunks from c on, of one sequence, whose last states are x.
static void take_out(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t row, const void *x,
                     int64_t x_row) {
    const dpcri_flow *f = &r->flow;
    dpcri_span span = dpcri_flow_span(f, 1, count);
    span.y = end_at(r, c, row);
    span.y_row = f->rows * f->w;
    if (!f->transposed) {
        span.r = x;
        span.r_row = x_row;
        dpcri_flow_copy(f, &span);
        return;
    }
    span.a = own(r, start_of(r, c) + steps - 1, row);
    span.a_row = r->chunks.size * f->a_step;
    span.x = x;
    span.x_row = x_row;
    dpcri_flow_apply(f, &span);
}

// `count` chunks of `steps` steps from c on, of one sequence, side by side from zero; only what goes out is kept.
static void run_from_zero(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t row, int64_t group) {
    void *states = dpcri_at_out(&r->flow, r->stretch, group * DPCRI_SIDE * DPCRI_STRETCH * r->flow.w);
    const void *last = dpcri_chunks_from_zero(&r->flow, &r->chunks, c, count, steps, row, states);
    take_out(r, c, count, steps, row, last, DPCRI_STRETCH * r->flow.w);
}

// The chunks of group i that have the same length, then the range's last one where it is shorter.
typedef void chunk_work(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t group);

static void for_group(const dpcri_range *r, int64_t i, chunk_work *work) {
    if (dpcri_watch_stopped(r->flow.watch)) return;
    const int64_t first = i * DPCRI_SIDE,
                  past = r->chunks.count - first < DPCRI_SIDE ? r->chunks.count : first + DPCRI_SIDE;
    const int64_t even = past == r->chunks.count && steps_of(r, past - 1) < r->chunks.size ? past - 1 : past;
    if (even > first) work(r, first, even - first, r->chunks.size, i);
    if (even < past) work(r, even, 1, steps_of(r, even), i);
}

// M and v at once, where a kernel makes them (kern/squares.h) and its results are what ours are.
static bool summarise_fused(const dpcri_range *r, int64_t c, int64_t count, int64_t steps) {
    const dpcri_flow *f = &r->flow;
    const dpcr_dtype dtype = f->kernels == dpcri_kernels_at(dpcri_isa_level(), DPCR_F32) ? DPCR_F32 : DPCR_U32;
    dpcri_summary_kernel *kernel =
        dtype == DPCR_F32 ? dpcri_summary_at(dpcri_isa_level(), dtype, f->form, f->w, false) : NULL;
    if (!kernel || f->transposed || f->rows != 1 || f->a_step == 0) return false;
    const int64_t m = start_of(r, c);
    kernel(&(dpcri_summary){.n = steps,
                            .count = count,
                            .a = own(r, m, 0),
                            .a_step = f->a_step,
                            .a_row = r->chunks.size * f->a_step,
                            .b = dpcri_at(f, f->b, m * f->b_step),
                            .b_step = f->b_step,
                            .b_row = r->chunks.size * f->b_step,
                            .m = sum_at(r, c, 0),
                            .v = end_at(r, c, 0),
                            .ahead = dpcri_windows_ahead(f)});
    return true;
}

static void summarise(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t group) {
    if (summarise_fused(r, c, count, steps)) return;
    form_sums(r, c, count, steps, group);
    for (int64_t row = 0; row < r->flow.rows; row++) run_from_zero(r, c, count, steps, row, group);
}

static void summarise_group(void *argument, int64_t i) { for_group(argument, i, summarise); }

// What goes out of each chunk, where g (NULL: 0) comes into the first.
static void carry(const dpcri_range *r, const void *g, void *to) {
    const dpcri_flow *f = &r->flow;
    dpcri_span span = dpcri_flow_span(f, r->chunks.count, f->rows);
    span.a = r->sums;
    span.a_step = r->sum_rows * f->values;
    span.a_row = r->sum_rows > 1 ? f->values : 0;
    span.x = g;
    span.x_row = f->w;
    span.r = r->ends;
    span.y = to;
    span.r_step = span.y_step = f->rows * f->w;
    span.r_row = span.y_row = f->w;
    dpcri_flow_serial(f, &span);
}

void dpcri_range_reduce(dpcri_range *r, void *sum, void *end) {
    const dpcri_flow *f = &r->flow;
    const int64_t count = r->chunks.count;
    dpcri_parallel(f->context, r->groups, summarise_group, r);
    for (int64_t row = 0; f->values > 0 && row < r->sum_rows; row++) {
        dpcri_span span = dpcri_flow_span(f, count, 1);
        span.a = sum_at(r, 0, row);
        span.a_step = r->sum_rows * f->values;
        span.r = dpcri_at(f, r->scratch, r->groups * f->values);
        span.y = dpcri_at_out(f, sum, row * f->values);
        dpcri_flow_product(f, &span);
    }
    carry(r, NULL, r->carried);
    memcpy(end, dpcri_at(f, r->carried, (count - 1) * f->rows * f->w), (size_t)(f->rows * f->w) * f->size);
    r->compositions += r->sum_rows * (f->n - 1);
    r->applications += f->rows * (f->n - count + (f->transposed ? count : 0) + count - 1);
}

// `count` chunks of `steps` steps from c on, of one sequence, from what goes out of the chunks before them.
static void run_row(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t row) {
    const dpcri_flow *f = &r->flow;
    const int64_t chunk_b = r->chunks.size * f->b_step, chunk_z = r->chunks.size * f->z_step, m = start_of(r, c);
    dpcri_span span = dpcri_flow_span(f, steps, count);
    span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    span.a_step = f->a_step;
    span.a_row = r->chunks.size * f->a_step;
    span.x = start_at(r, c, row);
    span.x_row = f->rows * f->w;
    span.r = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
    span.r_step = f->b_step;
    span.r_row = chunk_b;
    span.y = dpcri_at_out(f, f->z, m * f->z_step + row * f->z_row);
    span.y_step = f->z_step;
    span.y_row = chunk_z;
    if (!f->transposed) {
        dpcri_flow_serial(f, &span);
        return;
    }
    dpcri_span first = span;  // z = g + b
    first.n = 1;
    f->kernels->table[DPCRI_APPLY][DPCR_IDENTITY](&first);
    if (steps == 1) return;
    span.n = steps - 1;
    span.a = dpcri_at(f, span.a, f->a_step);
    span.x = span.y;
    span.x_row = chunk_z;
    span.r = dpcri_at(f, span.r, f->b_step);
    span.y = dpcri_at_out(f, span.y, f->z_step);
    dpcri_flow_serial(f, &span);
}

static void run_from(const dpcri_range *r, int64_t c, int64_t count, int64_t steps, int64_t group) {
    (void)group;
    for (int64_t row = 0; row < r->flow.rows; row++) run_row(r, c, count, steps, row);
}

static void run_group(void *argument, int64_t i) { for_group(argument, i, run_from); }

// To end_at: what really goes out of chunk c, whose states are there.
static void find_end(const dpcri_range *r, int64_t c, int64_t row) {
    const dpcri_flow *f = &r->flow;
    const int64_t last = dpcri_chunk_end(f, &r->chunks, c) - 1;
    take_out(r, c, 1, steps_of(r, c), row, dpcri_at(f, f->z, last * f->z_step + row * f->z_row), f->z_row);
}

static void start_from_end(const dpcri_range *r, int64_t c, int64_t row) {
    const dpcri_flow *f = &r->flow;
    memcpy((void *)(uintptr_t)start_at(r, c + 1, row), end_at(r, c, row), (size_t)f->w * f->size);
}

// The starts after chunk c that are not finite.
static void mend_starts(const dpcri_range *r, int64_t c) {
    for (int64_t row = 0; row < r->flow.rows; row++) {
        if (dpcri_flow_finite(&r->flow, start_at(r, c + 1, row), r->flow.w)) continue;
        find_end(r, c, row);
        start_from_end(r, c, row);
    }
}

// A sequence from chunk c on, whose start is there.
static void run_in_order(const dpcri_range *r, int64_t c, int64_t row) {
    for (int64_t past = r->chunks.count; c < past && !dpcri_watch_stopped(r->flow.watch); c++) {
        run_row(r, c, 1, steps_of(r, c), row);
        if (c + 1 == past) break;
        find_end(r, c, row);
        start_from_end(r, c, row);
    }
}

// r->error = M_c r->error + what chunk c's end differs by from the start after it: whether that start holds.
static bool holds(const dpcri_range *r, int64_t c, int64_t row) {
    const dpcri_flow *f = &r->flow;
    void *const difference = dpcri_at_out(f, r->error, f->w);
    if (!dpcri_carries(f) || r->in_order < f->n) return true;  // in order: what comes after was not made by products
    dpcri_difference(f, end_at(r, c, row), start_at(r, c + 1, row), difference);
    dpcri_span span = dpcri_flow_span(f, 1, 1);
    span.a = sum_at(r, c, r->sum_rows > 1 ? row : 0);
    span.x = r->error;
    span.r = span.y = difference;
    dpcri_flow_serial(f, &span);
    memcpy(r->error, difference, (size_t)f->w * f->size);
    return dpcri_carried_holds(f, start_at(r, c + 1, row), r->error, 1, 1, DPCRI_CARRIED(f->size));
}

// Goes on in order after the first of a sequence's chunks that does not join or hold.
static void look(dpcri_range *r, int64_t row) {
    const dpcri_flow *f = &r->flow;
    memset(r->error, 0, (size_t)f->w * f->size);
    for (int64_t c = 0; c + 1 < r->chunks.count; c++) {
        find_end(r, c, row);
        const dpcri_joint joint = {
            .first = start_of(r, c),
            .chunk = r->chunks.size,
            .count = 1,
            .row = row,
            .end = {end_at(r, c, row), 0, 1},
            .next = {start_at(r, c + 1, row), 0, 1},
            .goes_out = f->transposed,
        };
        const bool joins = dpcri_joins(f, &joint, 0);
        if (joins && holds(r, c, row)) continue;
        if (f->z == f->b) {
            *f->lost = true;
            return;
        }
        if (joins)
            dpcri_carried_add(f, start_at(r, c + 1, row), r->error, 1, (void *)(uintptr_t)start_at(r, c + 1, row));
        else
            start_from_end(r, c, row);
        run_in_order(r, c + 1, row);
        if (start_of(r, c + 1) < r->in_order) r->in_order = start_of(r, c + 1);
        return;
    }
}

// A product that leaves the finite numbers makes no number of a state where the loop may have one (chunked.c). What is
// not finite stays so: the last start tells of all, and then the chunks run in order.
void dpcri_range_apply(dpcri_range *r, const void *g) {
    const dpcri_flow *f = &r->flow;
    const int64_t last = r->chunks.count - 1;
    memcpy(r->starts, g, (size_t)(f->rows * f->w) * f->size);
    carry(r, g, dpcri_at_out(f, r->starts, f->rows * f->w));
    r->in_order = f->n;
    if (last < 1 || dpcri_flow_finite(f, start_at(r, last, 0), f->rows * f->w)) {
        dpcri_parallel(f->context, r->groups, run_group, r);
    } else {
        int64_t whole = 1;
        while (dpcri_flow_finite(f, start_at(r, whole, 0), f->rows * f->w)) whole++;
        r->in_order = (whole - 1) * r->chunks.size;
        for (int64_t c = 0; c <= last; c++) {
            run_from(r, c, 1, steps_of(r, c), 0);
            if (c < last) mend_starts(r, c);
        }
    }
    for (int64_t row = 0; row < f->rows; row++) look(r, row);
    r->applications += f->rows * (r->chunks.count - 1 + f->n - (f->transposed ? r->chunks.count : 0));
}

void dpcri_range_again(dpcri_range *r, int64_t row, const void *g) {
    memcpy((void *)(uintptr_t)start_at(r, 0, row), g, (size_t)r->flow.w * r->flow.size);
    run_in_order(r, 0, row);
}

void dpcri_range_out(const dpcri_flow *f, void *out) {
    dpcri_span span = dpcri_flow_span(f, 1, f->rows);
    span.x = span.r = dpcri_at(f, f->z, (f->n - 1) * f->z_step);
    span.x_row = span.r_row = f->z_row;
    span.y = out;
    span.y_row = f->w;
    if (!f->transposed) {
        dpcri_flow_copy(f, &span);
        return;
    }
    span.r = NULL;
    span.a = dpcri_at(f, f->a, f->n * f->a_step);
    span.a_row = f->a_row;
    dpcri_flow_apply(f, &span);
}
