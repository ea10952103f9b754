// SPDX-License-Identifier: MIT
// Overlapped chunks: the loop itself, run side by side over chunks of C steps that start from a guess and warm up.
//
//   sweep 1   chunk c > 0: s_c <- the state after the W steps before it, run from zero (nothing stored);
//             then the chunk's own steps from s_c, stored. Chunk 0, and chunks whose warm-up reaches it, start from z0.
//   check     chunk c stands if s_c equals the end of chunk c-1: within tolerance max(1, |z|), or bit for bit with
//   tolerance 0; with a negative one, AUTO's own of wide dense chains (forgets.c), each component within so many times
//   what its last sum rounds by, that is of sum_j |op(A)_ij z_j| + |b_i|: as much as the loop itself may be off there
//   sweep k   chunks that do not stand run again from their neighbour's end, until they meet what is stored
//   after max_sweeps: each sequence with a bad chunk in order, again until they meet, from the first chunk on that does
//   not join bit for bit, or whose rerun met what is stored within the tolerance alone; negative: as before
//
// Only boundaries can be wrong: inside a chunk every state is the loop's. With tolerance 0 the result is the loop's,
// bit for bit, because the serial kernel's arithmetic does not depend on where a run starts. Each sequence decides for
// itself, so its bits do not depend on the others.
//
// Work (1 + W/C) applications a step and no composition at all, depth W + C on a chain that forgets; about the loop's
// twice on one that does not. Memory K w. Wins on contracting chains, dense ones too.
// Source: Song et al. (2002.03629, Jacobi-Gauss-Seidel), restricted additive Schwarz in time.
// Derivation: docs/math/overlap.md.
#include <math.h>
#include <string.h>

#include "chain/flow.h"

typedef struct pieces {
    dpcri_chunks chunks;
    void *starts;        // s_c, [K][rows][w]
    void *copy;          // of b where z is b, [n][rows][w]
    void *stretch;       // [groups][DPCRI_SIDE][DPCRI_STRETCH][w]
    unsigned char *bad;  // [K][rows]: AGAIN, NEAR
    int64_t *steps;      // applications so far, by chunk, [K]
    int64_t *row_steps;  // applications of the finish, by sequence, [rows]
    int64_t groups;
} pieces;

// A chunk that does not stand; one in which a rerun met what is stored within a positive tolerance, not bit for bit.
enum { AGAIN = 1, NEAR = 2 };

typedef struct job {
    const dpcri_flow *flow;
    const dpcr_chain_options *options;
    pieces p;
    const void *b;  // what is read: the caller's, or the copy
    int64_t b_step, b_row;
    bool is_double, is_float;
    double tolerance;
} job;

static int64_t groups_of(int64_t chunks) { return (chunks + DPCRI_SIDE - 1) / DPCRI_SIDE; }

// Groups are as even as chunks allow: nine chunks are four and five, not eight and one that a thread would wait for.
static int64_t group_start(const pieces *p, int64_t group) { return group * p->chunks.count / p->groups; }

static pieces take(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena) {
    const int64_t most = dpcri_chunks_most(f->n, options->chunk), groups = groups_of(most);
    const int64_t workers = groups > f->rows ? groups : f->rows;  // the finish runs by sequence
    pieces p = {.chunks = dpcri_chunks_of(f, options->chunk)};
    p.starts = dpcri_flow_take(f, arena, most, f->rows, f->w);
    p.copy = dpcri_flow_take(f, arena, f->n, f->rows, f->w);
    p.stretch = dpcri_flow_take(f, arena, workers, DPCRI_SIDE * DPCRI_STRETCH, f->w);
    p.bad = dpcri_arena_take(arena, most * f->rows, 1);
    p.steps = dpcri_arena_take(arena, most, sizeof *p.steps);
    p.row_steps = dpcri_arena_take(arena, f->rows, sizeof *p.row_steps);
    p.groups = groups_of(p.chunks.count);
    return p;
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    take(flow, options, arena);
}

static void *start_of(const job *j, int64_t c, int64_t row) {
    return dpcri_at_out(j->flow, j->p.starts, (c * j->flow->rows + row) * j->flow->w);
}

static void *state_at(const job *j, int64_t m, int64_t row) {
    return dpcri_at_out(j->flow, j->flow->z, m * j->flow->z_step + row * j->flow->z_row);
}

static void *stretch_of(const job *j, int64_t worker) {
    return dpcri_at_out(j->flow, j->p.stretch, worker * DPCRI_SIDE * DPCRI_STRETCH * j->flow->w);
}

// `count` runs of n steps of one sequence, the first from step m, each a chunk further on.
static dpcri_span steps_from(const job *j, int64_t m, int64_t n, int64_t count, int64_t row) {
    const dpcri_flow *f = j->flow;
    dpcri_span span = dpcri_flow_span(f, n, count);
    span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    span.a_step = f->a_step;
    span.a_row = j->p.chunks.size * f->a_step;
    span.r = dpcri_at(f, j->b, m * j->b_step + row * j->b_row);
    span.r_step = j->b_step;
    span.r_row = j->p.chunks.size * j->b_step;
    return span;
}

// The starts of `count` chunks from c on: `steps` steps before each, from `from` (NULL: zero).
static void warm_up(const job *j, int64_t c, int64_t count, int64_t row, int64_t steps, const void *from,
                    void *states) {
    const dpcri_flow *f = j->flow;
    const int64_t m = dpcri_chunk_start(&j->p.chunks, c) - steps;
    int64_t last = 0;
    for (int64_t t = 0; t < steps; t += DPCRI_STRETCH) {
        dpcri_span span = steps_from(j, m + t, steps - t < DPCRI_STRETCH ? steps - t : DPCRI_STRETCH, count, row);
        span.x = t == 0 ? from : dpcri_at(f, states, last * f->w);
        span.y = states;
        span.y_step = f->w;
        span.x_row = span.y_row = DPCRI_STRETCH * f->w;
        dpcri_flow_serial(f, &span);
        last = span.n - 1;
    }
    dpcri_span keep = dpcri_flow_span(f, 1, count);
    keep.r = dpcri_at(f, states, last * f->w);
    keep.r_row = DPCRI_STRETCH * f->w;
    keep.y = start_of(j, c, row);
    keep.y_row = f->rows * f->w;
    dpcri_flow_copy(f, &keep);
}

// Steps from .. past - 1 of each of `count` chunks from c on; x as the serial kernel takes it.
static void run_steps(const job *j, int64_t c, int64_t count, int64_t row, int64_t from, int64_t past, const void *x,
                      int64_t x_row) {
    const dpcri_flow *f = j->flow;
    const int64_t m = dpcri_chunk_start(&j->p.chunks, c) + from;
    dpcri_span span = steps_from(j, m, past - from, count, row);
    if (count <= 0 || past <= from) return;
    span.x = x;
    span.x_row = x_row;
    span.y = state_at(j, m, row);
    span.y_step = f->z_step;
    span.y_row = j->p.chunks.size * f->z_step;
    dpcri_flow_serial(f, &span);
}

// Goes on from step `from` - 1 of each.
static void run_on(const job *j, int64_t c, int64_t count, int64_t row, int64_t from, int64_t past) {
    const int64_t m = dpcri_chunk_start(&j->p.chunks, c) + from;
    run_steps(j, c, count, row, from, past, m > 0 ? state_at(j, m - 1, row) : NULL, j->p.chunks.size * j->flow->z_step);
}

// All side by side, though chunk 0 starts otherwise and the last one may be shorter. Chunk 0 is full, or alone.
static void run_chunks(const job *j, int64_t c, int64_t count, int64_t row) {
    const dpcri_flow *f = j->flow;
    const int64_t last = c + count - 1, start = dpcri_chunk_start(&j->p.chunks, last);
    const int64_t least = dpcri_chunk_end(f, &j->p.chunks, last) - start, rest = c == 0 ? count - 1 : count;
    const int64_t most = count > 1 ? j->p.chunks.size : least, lead = c == 0 ? 1 : least;
    if (c == 0) run_steps(j, 0, 1, row, 0, 1, dpcri_at(f, f->z0, row * f->z0_row), 0);
    if (rest > 0) run_steps(j, last + 1 - rest, rest, row, 0, lead, start_of(j, last + 1 - rest, row), f->rows * f->w);
    run_on(j, c, count, row, lead, least);
    run_on(j, c, count - 1, row, least, most);
}

// The starts of chunks c .. hi - 1.
static void warm_up_all(const job *j, int64_t c, int64_t hi, int64_t row, void *states) {
    const dpcri_flow *f = j->flow;
    for (; c < hi && dpcri_chunk_start(&j->p.chunks, c) <= j->options->warm_up; c++) {
        const int64_t steps = dpcri_chunk_start(&j->p.chunks, c);
        warm_up(j, c, 1, row, steps, dpcri_at(f, f->z0, row * f->z0_row), states);
        j->p.steps[c] += steps - (f->z0 ? 0 : 1);
    }
    if (c >= hi) return;
    warm_up(j, c, hi - c, row, j->options->warm_up, NULL, states);
    for (; c < hi; c++) j->p.steps[c] += j->options->warm_up - 1;
}

static void first_group(void *argument, int64_t group) {
    const job *j = argument;
    const dpcri_flow *f = j->flow;
    const int64_t lo = group_start(&j->p, group), hi = group_start(&j->p, group + 1);
    const bool apart = lo == 0 && j->p.chunks.head != j->p.chunks.size;
    for (int64_t c = lo; c < hi; c++) j->p.steps[c] = 0;
    for (int64_t row = 0; row < f->rows; row++) {
        warm_up_all(j, lo == 0 ? 1 : lo, hi, row, stretch_of(j, group));
        if (apart) run_chunks(j, 0, 1, row);
        if (hi > lo + apart) run_chunks(j, lo + apart, hi - lo - apart, row);
        for (int64_t c = lo; c < hi; c++)
            j->p.steps[c] +=
                dpcri_chunk_end(f, &j->p.chunks, c) - dpcri_chunk_start(&j->p.chunks, c) - (c == 0 && !f->z0 ? 1 : 0);
    }
}

static double value_of(const job *j, const void *x, int64_t i) {
    return j->is_double ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

// The larger of 1 and what the tolerance is relative to: component i, and of a dense chain's state the largest.
static double size_of(const job *j, const void *x, int64_t i) {
    const int64_t first = j->flow->form == DPCR_DENSE ? 0 : i, past = j->flow->form == DPCR_DENSE ? j->flow->w : i + 1;
    double size = 1;
    for (int64_t k = first; k < past; k++) size = fabs(value_of(j, x, k)) > size ? fabs(value_of(j, x, k)) : size;
    return size;
}

// A number that is not finite is near itself alone.
static bool near_by(double x, double y, double distance) {
    if (!isfinite(x) || !isfinite(y)) return x == y || (x != x && y != y);
    return fabs(x - y) <= distance;
}

// The sum of the magnitudes that component i of z_m, m > 0, is the sum of, after the state `before`: dense transitions.
static double terms_of(const job *j, int64_t m, int64_t row, const void *before, int64_t i) {
    const dpcri_flow *f = j->flow;
    const void *const a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    const int64_t first = f->transposed ? i : i * f->w, stride = f->transposed ? f->w : 1;
    double sum = fabs(value_of(j, dpcri_at(f, j->b, m * j->b_step + row * j->b_row), i));
    for (int64_t k = 0; k < f->w; k++) sum += fabs(value_of(j, a, first + k * stride) * value_of(j, before, k));
    return sum;
}

// Whether x and y are the same state z_m, which comes after the state `before`. Two NaN count as the same: nothing that
// is run again could tell them apart.
static bool same_state(const job *j, int64_t m, int64_t row, const void *before, const void *x, const void *y) {
    const int64_t w = j->flow->w;
    const double tolerance = j->tolerance;
    if (memcmp(x, y, (size_t)w * j->flow->size) == 0) return true;
    if (!j->is_double && !j->is_float) return false;
    for (int64_t i = 0; tolerance < 0 && i < w; i++)
        if (!near_by(value_of(j, x, i), value_of(j, y, i), -tolerance * terms_of(j, m, row, before, i))) return false;
    if (tolerance < 0) return true;
    double distance = 0;
    for (int64_t i = 0; i < w; i++) {
        const double xi = value_of(j, x, i), yi = value_of(j, y, i);
        if (tolerance > 0 && (i == 0 || j->flow->form != DPCR_DENSE)) distance = tolerance * size_of(j, x, i);
        const bool same = tolerance > 0 ? near_by(xi, yi, distance)
                                        : (xi == yi && signbit(xi) == signbit(yi)) || (xi != xi && yi != yi);
        if (!same) return false;
    }
    return true;
}

static unsigned char *mark_of(const job *j, int64_t c, int64_t row) { return &j->p.bad[c * j->flow->rows + row]; }

// The state before a chunk, the end of its neighbour, and whether the chunk starts from that.
static bool starts_there(const job *j, int64_t c, int64_t row, const void **end) {
    const int64_t m = dpcri_chunk_start(&j->p.chunks, c) - 1;
    *end = state_at(j, m, row);
    return same_state(j, m, row, m > 0 ? state_at(j, m - 1, row) : *end, *end, start_of(j, c, row));
}

// Marks chunk c of a sequence when its start differs from its neighbour's end, which becomes its start.
static bool check(const job *j, int64_t c, int64_t row) {
    const void *end;
    const bool bad = !starts_there(j, c, row, &end);
    if (bad) memcpy(start_of(j, c, row), end, (size_t)j->flow->w * j->flow->size);
    *mark_of(j, c, row) = (unsigned char)((*mark_of(j, c, row) & NEAR) | (bad ? AGAIN : 0));
    return bad;
}

// Stores n fresh states from step m of chunk c on, [n][w], but for those that are there already; whether it came to
// such. A run that has met what is stored stays with it, so the last one tells. The state before step m may be another
// thread's, if it is not the chunk's own.
static bool meets(const job *j, int64_t c, int64_t m, int64_t n, int64_t row, const void *fresh) {
    const dpcri_flow *f = j->flow;
    const void *before = m == dpcri_chunk_start(&j->p.chunks, c) ? start_of(j, c, row) : state_at(j, m - 1, row);
    const void *last = n > 1 ? dpcri_at(f, fresh, (n - 2) * f->w) : before;
    const bool met =
        same_state(j, m + n - 1, row, last, dpcri_at(f, fresh, (n - 1) * f->w), state_at(j, m + n - 1, row));
    int64_t keep = met ? 0 : n;
    for (; met && !same_state(j, m + keep, row, before, dpcri_at(f, fresh, keep * f->w), state_at(j, m + keep, row));
         keep++)
        before = dpcri_at(f, fresh, keep * f->w);
    if (met && j->tolerance > 0 &&
        memcmp(dpcri_at(f, fresh, keep * f->w), state_at(j, m + keep, row), (size_t)f->w * f->size) != 0)
        *mark_of(j, c, row) |= NEAR;
    dpcri_span span = dpcri_flow_span(f, keep, 1);
    span.r = fresh;
    span.r_step = f->w;
    span.y = state_at(j, m, row);
    span.y_step = f->z_step;
    dpcri_flow_copy(f, &span);
    return met;
}

// Runs `count` chunks from c on again, from their starts, side by side, until those among them that are bad have met
// what is stored, or, `whole`, to their ends. Adds the steps that each took to `steps`.
static void run_again(const job *j, int64_t c, int64_t count, int64_t row, void *states, int64_t *steps, bool whole) {
    const dpcri_flow *f = j->flow;
    const int64_t start = dpcri_chunk_start(&j->p.chunks, c), length = dpcri_chunk_end(f, &j->p.chunks, c) - start;
    bool at_work[DPCRI_SIDE], any = true;
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) at_work[i] = *mark_of(j, c + i, row) & AGAIN;
    for (int64_t t = 0; t < length && any; t += DPCRI_STRETCH) {
        dpcri_span span = steps_from(j, start + t, length - t < DPCRI_STRETCH ? length - t : DPCRI_STRETCH, count, row);
        span.x = t == 0 ? start_of(j, c, row) : dpcri_at(f, states, last * f->w);
        span.x_row = t == 0 ? f->rows * f->w : DPCRI_STRETCH * f->w;
        span.y = states;
        span.y_step = f->w;
        span.y_row = DPCRI_STRETCH * f->w;
        dpcri_flow_serial(f, &span);
        last = span.n - 1;
        any = false;
        for (int64_t i = 0; i < count; i++) {
            if (!at_work[i]) continue;
            steps[i] += span.n;
            const void *const fresh = dpcri_at(f, states, i * DPCRI_STRETCH * f->w);
            at_work[i] = !meets(j, c + i, start + i * j->p.chunks.size + t, span.n, row, fresh) || whole;
            any |= at_work[i];
        }
    }
    for (int64_t i = 0; i < count; i++)
        if (at_work[i]) *mark_of(j, c + i, row) &= (unsigned char)~NEAR;  // all of it is one run
}

// All chunks of a group that have the same length side by side, where more than one is bad.
static void again_group(void *argument, int64_t group) {
    const job *j = argument;
    const int64_t lo = group_start(&j->p, group), hi = group_start(&j->p, group + 1), rows = j->flow->rows;
    const int64_t first = lo == 0 ? 1 : lo;
    const int64_t past = hi == j->p.chunks.count ? hi - 1 : hi;
    for (int64_t row = 0; row < rows; row++) {
        int64_t bad = 0, one = 0;
        for (int64_t c = first; c < past; c++)
            if (*mark_of(j, c, row) & AGAIN) bad++, one = c;
        if (bad == 1) run_again(j, one, 1, row, stretch_of(j, group), j->p.steps + one, false);
        if (bad > 1) run_again(j, first, past - first, row, stretch_of(j, group), j->p.steps + first, false);
        if (past < hi && past > 0 && *mark_of(j, past, row) & AGAIN)
            run_again(j, past, 1, row, stretch_of(j, group), j->p.steps + past, false);
    }
}

// Checks all boundaries before anything moves; the number of bad ones.
static int64_t check_all(const job *j) {
    int64_t bad = 0;
    for (int64_t c = 1; c < j->p.chunks.count; c++)
        for (int64_t row = 0; row < j->flow->rows; row++) bad += check(j, c, row);
    return bad;
}

static bool any_again(const job *j, int64_t row) {
    bool any = false;
    for (int64_t c = 1; c < j->p.chunks.count; c++) any |= *mark_of(j, c, row) & AGAIN;
    return any;
}

// What is left of a sequence that has a bad chunk, in order. A chunk is checked again even where it is known to be bad:
// its neighbour may have moved since, and with it the start.
static void finish(void *argument, int64_t row) {
    const job *j = argument;
    j->p.row_steps[row] = 0;
    if (!any_again(j, row)) return;
    for (int64_t c = 1; c < j->p.chunks.count; c++) {
        const unsigned char before = *mark_of(j, c, row);
        if (!check(j, c, row) && !before) continue;
        *mark_of(j, c, row) |= AGAIN;
        run_again(j, c, 1, row, stretch_of(j, row), &j->p.row_steps[row], before & NEAR);
    }
}

// The step from which on they are finished.
static int64_t first_bad(const job *j) {
    int64_t first = j->flow->n;
    for (int64_t row = 0; row < j->flow->rows; row++) {
        if (!any_again(j, row)) continue;
        for (int64_t c = 1; c < j->p.chunks.count && dpcri_chunk_start(&j->p.chunks, c) < first; c++) {
            const void *end;
            if (*mark_of(j, c, row) || !starts_there(j, c, row, &end)) first = dpcri_chunk_start(&j->p.chunks, c);
        }
    }
    return first;
}

static void keep_b(job *j) {
    const dpcri_flow *f = j->flow;
    j->b = f->b;
    j->b_step = f->b_step;
    j->b_row = f->b_row;
    if (f->z != f->b) return;
    dpcri_flow copy = *f;
    copy.z = j->p.copy;
    copy.z_step = f->rows * f->w;
    copy.z_row = f->w;
    copy.z0 = NULL;
    dpcri_flow_start(&copy);
    j->b = copy.z;
    j->b_step = copy.z_step;
    j->b_row = copy.z_row;
}

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    job j = {.flow = f, .options = options, .p = take(f, options, arena), .tolerance = options->tolerance};
    j.is_double = f->kernels == dpcri_kernels_at(dpcri_isa_level(), DPCR_F64);
    j.is_float = f->kernels == dpcri_kernels_at(dpcri_isa_level(), DPCR_F32);
    const int64_t size = j.p.chunks.size;
    keep_b(&j);
    dpcri_parallel(f->context, j.p.groups, first_group, &j);
    const int64_t run_up = options->warm_up < f->n ? options->warm_up : f->n;
    report->depth = j.p.chunks.count > 1 ? run_up + size : f->n;
    memset(j.p.bad, 0, (size_t)(j.p.chunks.count * f->rows));
    int64_t bad = check_all(&j);
    for (; bad > 0 && report->sweeps < options->max_sweeps; report->sweeps++) {
        dpcri_parallel(f->context, j.p.groups, again_group, &j);
        report->depth += size;
        bad = check_all(&j);
    }
    if (bad > 0) {
        if (j.tolerance > 0) j.tolerance = 0;  // what was near may have been carried on since
        report->finished_from = first_bad(&j);
        report->depth += f->n - report->finished_from;
        dpcri_parallel(f->context, f->rows, finish, &j);
        for (int64_t row = 0; row < f->rows; row++) report->applications += j.p.row_steps[row];
    }
    for (int64_t c = 0; c < j.p.chunks.count; c++) report->applications += j.p.steps[c];
}

const dpcri_scheme_row dpcri_overlap = {"overlap", carve, run};
