// SPDX-License-Identifier: MIT
// Two levels: chunks of C steps, cut at absolute multiples of C.
//
//   1  chunk 0: solved by the loop.   Chunks 1..K-2: summary M_c = A_last ... A_first, v_c = the chunk run from zero.
//   2  carry, in order over chunks:   s_c = M_c s_{c-1} + v_c      (s_0: the end of chunk 0)
//   3  chunks 1..K-1: the loop from s_{c-1}                         (the last chunk needs no summary)
//   4  the ends of 3 against s_c: where they do not join (joins.c), the loop from there; and where what they differ by
//      grows in the chunks after, e_c = end_c - s_c + M_c e_{c-1}: 3 once more, from s + e
//
// Chunks of one task run side by side as the kernels' rows, which hides a step's latency on one core already. Where all
// steps share one A, M = A^C is formed once.
//
// Work per step one composition and two applications, depth 2 C + K, memory K (w + values). The work-efficient choice
// for diagonal and small-block transitions; for dense A it pays from about w + 2 workers on.
// Source: the two-level scan of ParaRNN's kernels (arXiv 2510.21450). Derivation: docs/math/chunked.md.
#include <string.h>

#include "chain/joins.h"
#include "chain/windows.h"

typedef struct pieces {
    dpcri_chunks chunks;
    void *sums;        // M_c, [K][a_rows][values]
    void *ends;        // v_c, then s_c, [K][rows][w]
    void *stretch;     // states that are not kept: [tasks][DPCRI_SIDE][DPCRI_STRETCH][w]
    void *scratch;     // products on their way, [tasks + 1][values]
    void *errors;      // e_c of s_c (joins.h), [K][rows][w]; NULL: they are not carried
    double *rounding;  // of one sequence (joins.h)
    int64_t *moved;    // [rows]: the first chunk whose start does not hold; K: all do
    bool *runs;        // [rows]: that apply is to run
    int64_t sum_step, sum_row;
    int64_t tasks;  // groups of DPCRI_SIDE chunks
} pieces;

static int64_t groups_of(int64_t chunks) { return (chunks + DPCRI_SIDE - 1) / DPCRI_SIDE; }

static pieces take(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena) {
    const int64_t most = dpcri_chunks_most(f->n, options->chunk), groups = groups_of(most);
    const int64_t steps = dpcri_flow_a_steps(f) > 1 ? most : 1, rows = dpcri_flow_a_rows(f);
    pieces p = {.chunks = dpcri_chunks_of(f, options->chunk),
                .sum_step = steps > 1 ? rows * f->values : 0,
                .sum_row = rows > 1 ? f->values : 0};
    p.sums = dpcri_flow_take(f, arena, steps, rows, f->values);
    p.ends = dpcri_flow_take(f, arena, most, f->rows, f->w);
    p.stretch = dpcri_flow_take(f, arena, groups, DPCRI_SIDE * DPCRI_STRETCH, f->w);
    p.scratch = dpcri_flow_take(f, arena, groups + 1, f->values, 1);
    if (dpcri_mixes(f)) p.errors = dpcri_flow_take(f, arena, most, f->rows, f->w);
    if (!dpcri_carries(f)) p.errors = NULL;
    p.rounding = dpcri_arena_take(arena, DPCRI_ROUNDING_NUMBERS * f->w, sizeof *p.rounding);
    p.moved = dpcri_arena_take(arena, f->rows, sizeof *p.moved);
    p.runs = dpcri_arena_take(arena, f->rows, sizeof *p.runs);
    p.tasks = groups_of(p.chunks.count - 1);
    return p;
}

static void carve(const dpcri_flow *flow, const dpcr_chain_options *options, dpcri_arena *arena) {
    dpcri_arena fused = *arena;
    dpcri_windows_carve(flow, options->chunk, &fused);
    take(flow, options, arena);
    arena->overflow |= fused.overflow;
    if (fused.used > arena->used) arena->used = fused.used;
}

typedef struct job {
    const dpcri_flow *flow;
    pieces p;
    _Atomic bool apart;        // chunks do not join
    _Atomic bool lost;         // and b, which the loop would need, is gone
    _Atomic int64_t finished;  // the first step that the loop had to finish; n: none
} job;

static void solve_first(const dpcri_flow *f, const pieces *p) {
    dpcri_span span = dpcri_flow_span(f, p->chunks.head, f->rows);
    span.a = f->a;
    span.a_step = f->a_step;
    span.a_row = f->a_row;
    span.x = f->z0;
    span.x_row = f->z0_row;
    span.r = f->b;
    span.r_step = f->b_step;
    span.r_row = f->b_row;
    span.y = f->z;
    span.y_step = f->z_step;
    span.y_row = f->z_row;
    dpcri_flow_serial(f, &span);
    dpcri_span end = dpcri_flow_span(f, 1, f->rows);
    end.r = dpcri_at(f, f->z, (p->chunks.head - 1) * f->z_step);
    end.r_row = f->z_row;
    end.y = p->ends;
    end.y_row = f->w;
    dpcri_flow_copy(f, &end);
}

// M of `count` chunks from chunk c on, for every distinct sequence.
static void form_sums(const dpcri_flow *f, const pieces *p, int64_t c, int64_t count, int64_t slot) {
    if (f->values == 0) return;
    for (int64_t row = 0; row < dpcri_flow_a_rows(f); row++) {
        dpcri_span span = dpcri_flow_span(f, p->chunks.size, count);
        span.a = dpcri_at(f, f->a, dpcri_chunk_start(&p->chunks, c) * f->a_step + row * f->a_row);
        span.a_step = f->a_step;
        span.a_row = p->chunks.size * f->a_step;
        span.r = dpcri_at(f, p->scratch, slot * f->values);
        span.y = dpcri_at_out(f, p->sums, c * p->sum_step + row * p->sum_row);
        span.y_row = p->sum_step;
        dpcri_flow_product(f, &span);
    }
}

// `count` full chunks from chunk c on, of one sequence, side by side from zero; only their ends are kept.
static void run_from_zero(const dpcri_flow *f, const pieces *p, int64_t c, int64_t count, int64_t row, int64_t slot) {
    void *states = dpcri_at_out(f, p->stretch, slot * DPCRI_SIDE * DPCRI_STRETCH * f->w);
    dpcri_span keep = dpcri_flow_span(f, 1, count);
    keep.r = dpcri_chunks_from_zero(f, &p->chunks, c, count, p->chunks.size, row, states);
    keep.r_row = DPCRI_STRETCH * f->w;
    keep.y = dpcri_at_out(f, p->ends, (c * f->rows + row) * f->w);
    keep.y_row = f->rows * f->w;
    dpcri_flow_copy(f, &keep);
}

// Task 0: chunk 0, and M where it is shared. Task i: the summaries of group i-1 of the chunks 1..K-2.
static void summarise(void *argument, int64_t i) {
    const job *j = argument;
    const dpcri_flow *f = j->flow;
    const pieces *p = &j->p;
    const bool shared = dpcri_flow_a_steps(f) == 1;
    if (i == 0) {
        solve_first(f, p);
        if (shared && p->chunks.count > 2) form_sums(f, p, 1, 1, p->tasks);
        return;
    }
    const int64_t c = 1 + (i - 1) * DPCRI_SIDE, past = p->chunks.count - 1;
    const int64_t count = past - c < DPCRI_SIDE ? past - c : DPCRI_SIDE;
    if (count <= 0) return;
    if (!shared) form_sums(f, p, c, count, i - 1);
    for (int64_t row = 0; row < f->rows; row++) run_from_zero(f, p, c, count, row, i - 1);
}

// x_c = M_c x_{c-1} + x_c of what lies in x, [K][rows][w], for the chunks that have summaries.
static void carry(const dpcri_flow *f, const pieces *p, void *x) {
    if (p->chunks.count <= 2) return;
    dpcri_span span = dpcri_flow_span(f, p->chunks.count - 2, f->rows);
    span.a = dpcri_at(f, p->sums, p->sum_step);
    span.a_step = p->sum_step;
    span.a_row = p->sum_row;
    span.x = x;
    span.x_row = f->w;
    span.y = dpcri_at_out(f, x, f->rows * f->w);
    span.r = span.y;
    span.r_step = span.y_step = f->rows * f->w;
    span.r_row = span.y_row = f->w;
    dpcri_flow_serial(f, &span);
}

static void run_chunks(const dpcri_flow *f, const pieces *p, int64_t c, int64_t count, int64_t row) {
    const int64_t m = dpcri_chunk_start(&p->chunks, c);
    dpcri_span span = dpcri_flow_span(f, dpcri_chunk_end(f, &p->chunks, c) - m, count);
    span.a = dpcri_at(f, f->a, m * f->a_step + row * f->a_row);
    span.a_step = f->a_step;
    span.a_row = p->chunks.size * f->a_step;
    span.x = dpcri_at(f, p->ends, ((c - 1) * f->rows + row) * f->w);
    span.x_row = f->rows * f->w;
    span.r = dpcri_at(f, f->b, m * f->b_step + row * f->b_row);
    span.r_step = f->b_step;
    span.r_row = p->chunks.size * f->b_step;
    span.y = dpcri_at_out(f, f->z, m * f->z_step + row * f->z_row);
    span.y_step = f->z_step;
    span.y_row = p->chunks.size * f->z_step;
    dpcri_flow_serial(f, &span);
}

static dpcri_joint joint_of(const dpcri_flow *f, const pieces *p, int64_t c, int64_t count, int64_t row) {
    dpcri_joint joint = {
        .first = dpcri_chunk_start(&p->chunks, c),
        .chunk = p->chunks.size,
        .count = count,
        .row = row,
        .next = {dpcri_at(f, p->ends, (c * f->rows + row) * f->w), f->rows * f->w, 1},
    };
    joint.end = dpcri_joint_ends(f, &joint);
    return joint;
}

// Whether chunks c .. c + count - 1, which have run, end where those after them start.
static void look(job *j, int64_t c, int64_t count, int64_t row) {
    const dpcri_joint joint = joint_of(j->flow, &j->p, c, count, row);
    if (count > 0 && !dpcri_joins_at_once(j->flow, &joint)) j->apart = true;
}

// Group i of the chunks 1..K-1; the last chunk may be shorter and runs on its own.
static void apply_again(void *argument, int64_t i) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    const int64_t last = j->p.chunks.count - 1, c = 1 + i * DPCRI_SIDE;
    int64_t count = last + 1 - c < DPCRI_SIDE ? last + 1 - c : DPCRI_SIDE;
    const bool has_last = c + count - 1 == last;
    if (has_last) count--;
    for (int64_t row = 0; row < f->rows; row++) {
        if (!j->p.runs[row]) continue;
        if (count > 0) run_chunks(f, &j->p, c, count, row);
        if (has_last) run_chunks(f, &j->p, last, 1, row);
        look(j, c, count, row);
    }
}

// s_c, or e_c.
static void *state_at(const dpcri_flow *f, void *states, int64_t c, int64_t row) {
    return dpcri_at_out(f, states, (c * f->rows + row) * f->w);
}

// The first chunk of a sequence out of which no finite state came, a product having left the finite numbers; K - 1,
// which has no summary, where there is none.
static int64_t first_broken(const dpcri_flow *f, const pieces *p, int64_t row) {
    const int64_t last = p->chunks.count - 1;
    int64_t c = last;
    // What is not finite stays so, whatever it is multiplied by: the last state tells of all.
    if (last < 2 || dpcri_flow_finite(f, state_at(f, p->ends, last - 1, row), f->w)) return last;
    while (c > 1 && !dpcri_flow_finite(f, state_at(f, p->ends, c - 1, row), f->w)) c--;
    return c;
}

// Sequence `row` as apply_again runs it, but by the loop from the first broken chunk on.
static void apply_in_order(void *argument, int64_t row) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    const int64_t broken = first_broken(f, &j->p, row), m = dpcri_chunk_start(&j->p.chunks, broken);
    if (!j->p.runs[row]) return;
    for (int64_t c = 1; c < broken; c++) run_chunks(f, &j->p, c, 1, row);
    dpcri_flow_loop(f, m, f->n - m, row, state_at(f, j->p.ends, broken - 1, row));
    look(j, 1, broken - 1, row);
}

static void apply(job *j, int64_t broken) {
    const dpcri_flow *f = j->flow;
    if (broken == j->p.chunks.count - 1)
        dpcri_parallel(f->context, j->p.tasks, apply_again, j);
    else
        dpcri_parallel(f->context, f->rows, apply_in_order, j);
}

// The first of a sequence's chunks that does not end where the next one starts; first_broken: all do.
static int64_t first_apart(const dpcri_flow *f, const pieces *p, int64_t row) {
    const int64_t past = first_broken(f, p, row);
    for (int64_t c = 1; c < past; c++) {
        const dpcri_joint joint = joint_of(f, p, c, 1, row);
        if (!dpcri_joins(f, &joint, 0)) return c;
    }
    return past;
}

static dpcri_chunk_maps maps_of(const dpcri_flow *f, const pieces *p, int64_t c, int64_t row) {
    return (dpcri_chunk_maps){dpcri_at(f, p->sums, c * p->sum_step + row * p->sum_row), 1, p->sum_step, f->transposed};
}

// The first chunk of a sequence whose s_c does not hold within the bound, nor, if that excuses it, may be off by
// rounding; K: all before the broken one do.
static int64_t first_moved(const dpcri_flow *f, const pieces *p, int64_t row, double bound, bool rounding_excuses) {
    const int64_t past = first_broken(f, p, row);
    dpcri_chunk_rounding rounding;
    dpcri_rounding_begin(f, &rounding, p->rounding);
    for (int64_t c = 1; c < past; c++) {
        const void *const e = state_at(f, p->errors, c, row);
        if (dpcri_carried_holds(f, state_at(f, p->ends, c, row), e, 1, 1, bound)) continue;
        if (!rounding_excuses) return c;
        while (rounding.chunks <= c) {
            const int64_t at = rounding.chunks;
            const dpcri_chunk_maps map = maps_of(f, p, at, row);
            dpcri_rounding_take(f, &rounding, at ? &map : NULL, dpcri_chunk_start(&p->chunks, at),
                                dpcri_chunk_end(f, &p->chunks, at), row);
        }
        if (!dpcri_is_rounding(f, &rounding, e, 1)) return c;
    }
    return p->chunks.count;
}

// e of every s, for the sequences that have run.
static void find_errors(const dpcri_flow *f, const pieces *p) {
    const int64_t last = p->chunks.count - 1;
    for (int64_t c = 0; c < last; c++)
        for (int64_t row = 0; row < f->rows; row++) {
            const dpcri_joint joint = joint_of(f, p, c, 1, row);
            if (c > 0)
                dpcri_difference(f, joint.end.x, joint.next.x, state_at(f, p->errors, c, row));
            else
                memset(state_at(f, p->errors, 0, row), 0, (size_t)f->w * f->size);
        }
    carry(f, p, p->errors);
}

// Whether e may have grown anywhere: some summary of the sequence does not shrink what it is given.
static bool may_grow(const dpcri_flow *f, const pieces *p, int64_t row) {
    const dpcri_chunk_maps maps = maps_of(f, p, 1, row);
    return !dpcri_chunks_halve(f, &maps, p->sum_step ? first_broken(f, p, row) - 1 : 1);
}

// Where differences grew to what does not hold, the sequence once more from s + e, if that is near enough. Sets
// `moved`, and returns whether any sequence still is.
static bool refine(job *j, int64_t broken) {
    const dpcri_flow *f = j->flow;
    const pieces *p = &j->p;
    const double bound = DPCRI_CARRIED(f->size);
    bool any = false, runs = false;
    for (int64_t row = 0; row < f->rows; row++) {
        p->moved[row] = may_grow(f, p, row) ? 0 : p->chunks.count;
        any |= p->moved[row] == 0;
    }
    if (!any) return false;
    find_errors(f, p);
    for (int64_t row = 0; row < f->rows; row++) {
        const int64_t past = first_broken(f, p, row);
        // Rounding may grow too: it excuses what cannot be bettered.
        if (p->moved[row] == 0) p->moved[row] = first_moved(f, p, row, bound, false);
        p->runs[row] = p->moved[row] < past && f->z != f->b &&
                       first_moved(f, p, row, DPCRI_REFINED(f->size), true) > past && first_apart(f, p, row) == past;
        for (int64_t c = 1; c < past && p->runs[row]; c++) {
            void *const s = state_at(f, p->ends, c, row);
            dpcri_carried_add(f, s, state_at(f, p->errors, c, row), 1, s);
        }
        runs |= p->runs[row];
    }
    if (runs) {
        apply(j, broken);
        find_errors(f, p);
    }
    any = false;
    for (int64_t row = 0; row < f->rows; row++) {
        if (p->runs[row]) p->moved[row] = first_moved(f, p, row, bound, true);
        any |= p->moved[row] < p->chunks.count;
    }
    return any;
}

// Sequence `row` by the loop after the first of its chunks that does not end where the next one starts, or from the
// start of the first after which that does not hold: its own start held, and by its product a difference may have
// grown to more than e tells.
static void mend(void *argument, int64_t row) {
    job *j = argument;
    const dpcri_flow *f = j->flow;
    const pieces *p = &j->p;
    const int64_t past = first_broken(f, p, row), apart = first_apart(f, p, row), moved = p->moved[row];
    const int64_t from = dpcri_chunk_start(&p->chunks, moved < apart ? moved : apart + 1);
    if (apart >= past && moved >= past) return;
    if (f->z == f->b) {
        j->lost = true;
        return;
    }
    const void *start = dpcri_at(f, f->z, (from - 1) * f->z_step + row * f->z_row);
    if (moved < apart) {
        void *const e = state_at(f, p->errors, moved - 1, row);
        dpcri_carried_add(f, state_at(f, p->ends, moved - 1, row), e, 1, e);
        start = e;
    }
    dpcri_flow_loop(f, from, f->n - from, row, start);
    dpcri_joint_first(&j->finished, from);
}

// Returns the first step that the loop had to finish; n: none.
static int64_t run_spans(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena) {
    job j = {.flow = f, .p = take(f, options, arena), .finished = f->n};
    const int64_t last = j.p.chunks.count - 1;
    int64_t broken = last;
    dpcri_parallel(f->context, 1 + j.p.tasks, summarise, &j);
    carry(f, &j.p, j.p.ends);
    for (int64_t row = 0; row < f->rows; row++) j.p.runs[row] = true, j.p.moved[row] = j.p.chunks.count;
    for (int64_t row = 0; row < f->rows && last > 1; row++) {
        const int64_t c = first_broken(f, &j.p, row);
        broken = c < broken ? c : broken;
    }
    apply(&j, broken);
    if (broken < last) dpcri_joint_first(&j.finished, dpcri_chunk_start(&j.p.chunks, broken));
    const bool moved = j.p.errors && last > 1 && !dpcri_watch_stopped(f->watch) && refine(&j, broken);
    if (j.apart || moved) dpcri_parallel(f->context, f->rows, mend, &j);
    if (j.lost) *f->lost = true;
    return j.finished;
}

static void run(const dpcri_flow *f, const dpcr_chain_options *options, dpcri_arena *arena, dpcr_chain_report *report) {
    const dpcri_chunks cut = dpcri_chunks_of(f, options->chunk), *chunks = &cut;
    const int64_t middle = chunks->count > 2 ? chunks->count - 2 : 0;
    report->finished_from = dpcri_windows_serve(f, options->chunk) ? dpcri_windows_run(f, options->chunk, arena)
                                                                   : run_spans(f, options, arena);
    const int64_t starts = f->z0 ? 0 : 1;
    report->applications = f->rows * (f->n - starts + middle * (chunks->size - 1) + middle);
    if (middle > 0)
        report->compositions = (chunks->size - 1) * (dpcri_flow_a_steps(f) > 1 ? middle : 1) * dpcri_flow_a_rows(f);
    report->depth = chunks->count > 1 ? 2 * chunks->size + middle : f->n;
}

const dpcri_scheme_row dpcri_chunked = {"chunked", carve, run};
