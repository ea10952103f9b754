// SPDX-License-Identifier: MIT
// Overlapped chunks: K chunks of n steps run side by side by the chain's own loop, each after a warm-up of m steps from
// a guess; no Jacobian anywhere. A chain that forgets its past forgets the guess, so only the K boundaries are checked:
//     s_c <- state after steps [cn - m, cn) from z0      (chunk 0 starts from z0 itself)
//     z_l for l in [cn, cn + n) by the loop from s_c
//     e_c <- |z_{cn-1} - s_c|;  chunks with e_c above the tolerance run again from their neighbour's end, until they
//     meet what is stored; after max_sweeps the rest, from the first boundary that does not agree bit for bit on, is
//     done in order, until it meets what is stored bit for bit: what comes out is the loop's.
// With tolerance 0 boundaries must agree bit for bit, so the result has the loop's bits. Chunk c is exact
// after c + 1 sweeps at the latest. Work (1 + m/n) L evaluations, depth n + m. Sources: Song et al. (arXiv 2002.03629),
// restricted additive Schwarz in time; docs/math/overlap.md.
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "solve/solve_internal.h"

enum {
    LANES = 16,                     // a call of callbacks that do not say how many lanes they run at their best
    MEET_STEPS = DPCRI_LOOK_STEPS,  // of a rerun between two looks whether it has met what is stored
    LINE = 64,                      // bytes of a cache line
    ALIASED = 1024,                 // bytes at whose multiples chunks fall on the same few cache sets, lane by lane
    FEW = 4                         // 1 of FEW chunks of a group bad: they run again one by one, else the group does
};

// How a chain is cut: groups of `lanes` chunks, a call each, or one a part of it at first; the chunks of the first
// `longer` groups have `more` steps more than the others', n; the very last chunk also has the remainder.
typedef struct layout {
    int64_t lanes, groups, chunks, n, longer, more;
} layout;

typedef struct overlap {
    dpcri_run *run;
    const dpcr_solve_plan *plan;
    const dpcri_row_ops *ops;
    layout cut;
    double atol, rtol;  // within which chunks join; both 0: bit for bit
    double relative;    // the same, to a state's largest number, in their place; 0: they count
    int64_t parts;      // of a group, a task each in the first pass: a chunk's bits do not depend on those beside it
    dpcri_overlap_space space;
    dpcri_looks looks;  // within a call, and of what runs again
    _Atomic int64_t rerun_steps;
    _Atomic int code;
} overlap;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Groups of `lanes` chunks.
static int64_t overlap_groups(int64_t length, int64_t lanes, int64_t warm_up) {
    const int64_t share = length / lanes;
    if (share < 4 * warm_up) return 1;
    int64_t groups = 2;
    while (groups <= length / most(lanes, LANES) / (16 * warm_up)) groups *= 2;
    return groups;
}

int64_t dpcri_overlap_call(const dpcr_steps *steps) { return steps->lanes > 1 ? steps->lanes : LANES; }

// Whether lanes are places of vectors, so that a call of few takes as long as one of all: where as many are told, or
// of narrow dense steps half as many (a vector with AVX2, or of doubles) that do not take as long beside each other.
bool dpcri_overlap_fills(const dpcr_steps *steps) {
    enum { NARROW = 4 };  // states that are narrow; elementwise steps', too
    const bool dense = steps->jacobian.structure == DPCR_DENSE;
    const bool half = steps->lanes >= DPCRI_VECTOR_LANES / 2 && dense && steps->lane_seconds > 0 &&
                      steps->lane_seconds < steps->latency;
    return (steps->lanes >= DPCRI_VECTOR_LANES || half) && (steps->width <= NARROW || !dense);
}

bool dpcri_overlap_aliased(const dpcr_steps *steps, int64_t chunk) {
    enum { PAGE = 4096 };
    const int64_t step = steps->width * (int64_t)dpcr_dtype_size(steps->dtype);
    return dpcri_overlap_fills(steps) && step < LINE && chunk * step % PAGE == 0;
}

int64_t dpcri_overlap_chunks(const dpcr_steps *steps, int64_t length, int64_t warm_up) {
    enum { CALL = 8 };
    const int64_t lanes = dpcri_overlap_call(steps), affordable = most(length / (2 * warm_up), 1);
    int64_t chunks = affordable;
    if (affordable > 1 && affordable < CALL && !dpcri_overlap_fills(steps))
        for (chunks = 2; 2 * chunks <= affordable + 1;) chunks *= 2;
    return least(chunks, lanes * overlap_groups(length, lanes, warm_up));
}

int64_t dpcri_overlap_lanes(const dpcr_steps *steps, int64_t chunks, int64_t threads) {
    enum { IN_TURN = 2 };  // lanes that narrow dense steps take one after another, in no vector
    const int64_t lanes = dpcri_overlap_call(steps), share = (chunks + threads - 1) / most(threads, 1);
    const bool few = share <= IN_TURN && steps->jacobian.structure == DPCR_DENSE;
    return (few || !dpcri_overlap_fills(steps)) && steps->concurrent ? most(least(lanes, share), 1) : lanes;
}

// From the shape of one sequence and the options alone. Where chunks would lie on the same cache sets, those of half
// the groups are a cache line longer, the others' one shorter, if there are two groups or more and what is left over is
// short.
static layout layout_of(const dpcr_solve_plan *plan) {
    const dpcr_steps *steps = &plan->steps;
    const int64_t length = steps->length, m = plan->options.warm_up, lanes = dpcri_overlap_call(steps);
    layout cut = {.lanes = lanes};
    if (plan->options.chunk) {
        cut.chunks = most(length / plan->options.chunk, 1);
        cut.n = length ? least(plan->options.chunk, length) : 1;
    } else {
        const int64_t groups = overlap_groups(length, lanes, m);
        cut.chunks = dpcri_overlap_chunks(steps, length, m);
        cut.n = length / cut.chunks;
        const int64_t step = steps->width * (int64_t)dpcr_dtype_size(steps->dtype), line = most(LINE / step, 1);
        const int64_t rest = length - cut.n * cut.chunks;
        const bool aliased = cut.n * step % ALIASED == 0 && step % ALIASED;
        if (cut.chunks == lanes * groups) {
            if (aliased && groups > 1 && cut.n - line >= 2 * m && rest <= cut.n / 8)
                cut.n -= line, cut.longer = groups / 2, cut.more = 2 * line;
            else
                cut.longer = rest / lanes, cut.more = 1;
        }
    }
    cut.groups = (cut.chunks + lanes - 1) / lanes;
    return cut;
}

static int64_t chunk_start(const layout *cut, int64_t c) {
    return c * cut->n + cut->more * least(c, cut->longer * cut->lanes);
}

// Steps of the chunks of a group, without the very last one's remainder.
static int64_t group_steps(const layout *cut, int64_t group) { return cut->n + (group < cut->longer ? cut->more : 0); }

static int64_t group_lanes(const layout *cut, int64_t group) {
    return least(cut->lanes, cut->chunks - group * cut->lanes);
}

static int64_t chunk_end(const overlap *o, int64_t c) {
    return c + 1 < o->cut.chunks ? chunk_start(&o->cut, c + 1) : o->plan->steps.length;
}

int64_t dpcri_overlap_chunk(const dpcr_solve_plan *plan) {
    const layout cut = layout_of(plan);
    return cut.longer ? plan->steps.length / cut.chunks : cut.n;
}

void dpcri_join_within(const dpcr_solve_options *options, double *atol, double *rtol) {
    const double within = options->join_tolerance;
    *atol = within == 0 ? options->atol : 0;
    *rtol = within == 0 ? options->rtol : fmax(within, 0);
}

bool dpcri_joins_in_bits(const dpcr_solve_options *options) {
    double atol, rtol;
    dpcri_join_within(options, &atol, &rtol);
    return atol == 0 && rtol == 0;
}

void dpcri_overlap_carve(const dpcr_solve_plan *plan, dpcri_arena *arena, dpcri_overlap_space *space) {
    const int64_t chunks = layout_of(plan).chunks;
    int64_t rows = 0, numbers = 0;
    if (!dpcri_mul(chunks, plan->steps.batch, &rows) || !dpcri_mul(rows, plan->steps.width, &numbers))
        arena->overflow = true;
    space->starts = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    space->ends = dpcri_arena_take(arena, numbers, dpcr_dtype_size(plan->steps.dtype));
    space->met = dpcri_arena_take(arena, rows, sizeof *space->met);
    space->rerun = dpcri_arena_take(arena, rows, 1);
}

// [count][B][w] of chunk-wise states, from chunk c.
static dpcr_array chunk_states(const overlap *o, void *data, int64_t c, int64_t count, int64_t row, int64_t rows) {
    const int64_t shape[3] = {o->cut.chunks, o->plan->steps.batch, o->plan->steps.width};
    const dpcr_array whole = dpcr_array_make(data, o->plan->steps.dtype, 3, shape);
    return dpcri_slice(&whole, c, count, row, rows);
}

static void note(overlap *o, int code) {
    if (code < 0) o->code = code;
}

// `steps` more of lanes; false: leave out what is left.
static bool goes_on(overlap *o, dpcri_pace *pace, int64_t steps) {
    return !(dpcri_pace_over(pace, steps) && dpcri_looks_stopped(&o->looks)) && o->code >= 0;
}

// Warm-up of chunks [first, first + count), `stride` apart, all of which begin at least m steps into the chain.
static bool warm_up(overlap *o, dpcri_pace *pace, int64_t first, int64_t count, int64_t stride, int64_t m) {
    const dpcr_steps *steps = &o->plan->steps;
    const dpcr_array starts = chunk_states(o, o->space.starts, first, count, 0, steps->batch);
    dpcr_array in = dpcri_inputs(&o->run->t, 0, count, 0, steps->batch);
    in.strides[0] = 0;
    for (int64_t left = m, some = 0; left > 0; left -= some, in = starts) {
        some = dpcri_pace_stretch(pace, left);
        const dpcr_span span = dpcri_span(chunk_start(&o->cut, first) - left, count, stride, some, 0, steps->batch);
        note(o, dpcri_advance(steps, &span, &in, NULL, &starts, NULL));
        if (!goes_on(o, pace, some)) return false;
    }
    return true;
}

static bool start_chunks(overlap *o, dpcri_pace *pace, int64_t first, int64_t end, int64_t stride) {
    const int64_t m = o->plan->options.warm_up;
    for (int64_t c = first; c < end; c++) {
        const int64_t begin = chunk_start(&o->cut, c);
        if (c == 0) {
            const dpcr_array z0 = dpcri_inputs(&o->run->t, 0, 1, 0, o->plan->steps.batch);
            const dpcr_array start = chunk_states(o, o->space.starts, 0, 1, 0, o->plan->steps.batch);
            o->ops->copy(&z0, &start);
        } else if (begin < m) {
            if (!warm_up(o, pace, c, 1, stride, begin)) return false;  // reaches back to z0: exact
        } else {
            return warm_up(o, pace, c, end - c, stride, m);
        }
    }
    return true;
}

// The tape of `count` steps from `first` on, as one lane of them; data NULL where none is wanted. It is written with
// the states, so it is theirs.
static dpcr_array tape_of(const overlap *o, int64_t first, int64_t count, int64_t row, int64_t rows) {
    if (!o->run->tape) return (dpcr_array){0};
    const dpcr_array tape = dpcri_slice(o->run->tape, first, count, row, rows);
    return dpcri_as_steps(&tape);
}

// Steps [k, k + count) of `lanes` chunks of a group from number `chunk` on, side by side, from `in`, for `rows`
// sequences from number `row` on.
static void run_lanes(overlap *o, int64_t group, int64_t chunk, int64_t lanes, int64_t row, int64_t rows,
                      const dpcr_array *in, int64_t k, int64_t count) {
    const dpcr_steps *steps = &o->plan->steps;
    const int64_t first = chunk_start(&o->cut, chunk) + k, stride = group_steps(&o->cut, group);
    const dpcr_array z = dpcri_outputs(&o->run->t, first, count, row, rows);
    dpcr_array states = dpcri_as_steps(&z);
    states.shape[0] = lanes;
    states.strides[0] = stride * z.strides[0];
    dpcr_array tape = tape_of(o, first, count, row, rows);
    tape.shape[0] = lanes;
    if (tape.data) tape.strides[0] = stride * o->run->tape->strides[0];
    const dpcr_span span = dpcri_span(first, lanes, stride, count, row, rows);
    note(o, dpcri_advance(steps, &span, in, &states, NULL, tape.data ? &tape : NULL));
}

// The remainder of the very last chunk, from its whole steps' end; so many steps a sequence.
static int64_t run_remainder(overlap *o, dpcri_pace *pace, int64_t row, int64_t rows) {
    const dpcr_steps *steps = &o->plan->steps;
    const int64_t last = o->cut.chunks - 1, from = chunk_start(&o->cut, last) + group_steps(&o->cut, o->cut.groups - 1);
    for (int64_t l = from, count = 0; l < steps->length; l += count) {
        count = dpcri_pace_stretch(pace, steps->length - l);
        const dpcr_array in = dpcri_inputs(&o->run->t, l, 1, row, rows);
        const dpcr_array z = dpcri_outputs(&o->run->t, l, count, row, rows), states = dpcri_as_steps(&z);
        const dpcr_array tape = tape_of(o, l, count, row, rows);
        const dpcr_span span = dpcri_span(l, 1, 1, count, row, rows);
        note(o, dpcri_advance(steps, &span, &in, &states, NULL, tape.data ? &tape : NULL));
        if (!goes_on(o, pace, count)) break;
    }
    return most(steps->length - from, 0);
}

static void first_pass(void *argument, int64_t task) {
    overlap *o = argument;
    const int64_t group = task / o->parts, part = task % o->parts, all = group_lanes(&o->cut, group);
    const int64_t each = (all + o->parts - 1) / o->parts, lanes = least(each, all - part * each);
    const int64_t first = group * o->cut.lanes + part * each, n = group_steps(&o->cut, group);
    if (lanes <= 0) return;
    dpcri_pace pace;
    dpcri_pace_begin(&pace, o->plan, (double)lanes * (double)o->plan->steps.batch, n + o->plan->options.warm_up);
    if (!start_chunks(o, &pace, first, first + lanes, n)) return;
    dpcr_array in = chunk_states(o, o->space.starts, first, lanes, 0, o->plan->steps.batch);
    for (int64_t k = 0, count = 0; k < n; k += count) {
        count = dpcri_pace_stretch(&pace, n - k);
        run_lanes(o, group, first, lanes, 0, o->plan->steps.batch, &in, k, count);
        if (!goes_on(o, &pace, count)) return;
        in = dpcri_outputs(&o->run->t, chunk_start(&o->cut, first) + k + count - 1, lanes, 0, o->plan->steps.batch);
        in.strides[0] *= n;
    }
    if (first + lanes == o->cut.chunks) run_remainder(o, &pace, 0, o->plan->steps.batch);
}

static void *at(const dpcr_array *array, int64_t first, int64_t row) {
    return (char *)array->data +
           (first * array->strides[0] + row * array->strides[1]) * (int64_t)dpcr_dtype_size(array->dtype);
}

// The same bits; narrow states without a call.
static bool same_bits(const void *x, const void *y, size_t bytes) {
    const char *a = x, *b = y;
    if (bytes > 32) return memcmp(a, b, bytes) == 0;
    uint32_t differ = 0;
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t u, v;
        memcpy(&u, a + i, 4);
        memcpy(&v, b + i, 4);
        differ |= u ^ v;
    }
    return differ == 0;
}

static double number(const dpcr_array *row, int64_t i) {
    return row->dtype == DPCR_F64 ? ((const double *)row->data)[i] : (double)((const float *)row->data)[i];
}

// The largest number of the states of sequence b up to step l, of a few that lie from `first` on: where one crosses
// zero the others do not.
static double size_before(const overlap *o, int64_t first, int64_t l, int64_t b) {
    double size = 0;
    for (int64_t k = most(l - MEET_STEPS + 1, first); k <= l; k++) {
        const dpcr_array z = dpcri_outputs(&o->run->t, k, 1, b, 1);
        for (int64_t i = 0; i < o->plan->steps.width; i++) size = fmax(size, fabs(number(&z, i)));
    }
    return size;
}

// Two states after step l of a chunk that begins at `first`, of which what hangs on the first may be left as it is.
// What a tolerance lets pass beside states that are hardly larger is as large as they where the chain grows: it is none
// of its past that was forgotten.
static bool joins(const overlap *o, const void *stored, const void *state, int64_t first, int64_t l, int64_t b) {
    const int64_t width = o->plan->steps.width;
    if (o->relative > 0) return o->ops->apart(state, stored, width) <= o->relative;
    if (!o->ops->close(state, stored, width, o->atol, o->rtol)) return false;
    const double doubt = fmax(DPCRI_DOUBT, o->rtol);
    return o->ops->apart(state, stored, width) <= doubt ||
           o->ops->distance(state, stored, width) <= doubt * size_before(o, first, l, b);
}

static double *met_of(const overlap *o, int64_t c, int64_t b) { return &o->space.met[c * o->plan->steps.batch + b]; }

// Chunk c of sequence b has met what was stored, which `ends` still holds, in the state z.
static void note_meeting(overlap *o, int64_t c, int64_t b, const void *z) {
    const dpcr_steps *steps = &o->plan->steps;
    const dpcr_array stored = chunk_states(o, o->space.ends, c, 1, b, 1);
    if (same_bits(z, stored.data, (size_t)steps->width * dpcr_dtype_size(steps->dtype))) return;
    const double distance = fmax(o->ops->distance(z, stored.data, steps->width), DBL_MIN);  // of two zeros, or NaN
    *met_of(o, c, b) = fmax(*met_of(o, c, b), distance);
}

typedef enum meeting { WITHIN_TOLERANCE, IN_BITS, NOWHERE } meeting;

// Runs chunk c of sequence b again from starts[c], stopping where it meets what is stored, if it may.
static void rerun_row(overlap *o, dpcri_pace *pace, int64_t c, int64_t b, meeting stop) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t bytes = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    const dpcr_array ends = chunk_states(o, o->space.ends, c, 1, b, 1);
    dpcr_array in = chunk_states(o, o->space.starts, c, 1, b, 1);
    const int64_t begin = chunk_start(&o->cut, c);
    for (int64_t l = begin; l < chunk_end(o, c); l += MEET_STEPS) {
        const int64_t count = l + MEET_STEPS < chunk_end(o, c) ? MEET_STEPS : chunk_end(o, c) - l;
        const dpcr_array z = dpcri_outputs(&o->run->t, l, count, b, 1), states = dpcri_as_steps(&z);
        const dpcr_array tape = tape_of(o, l, count, b, 1);
        const dpcr_span span = dpcri_span(l, 1, 1, count, b, 1);
        memcpy(ends.data, at(&z, count - 1, 0), bytes);
        note(o, dpcri_advance(steps, &span, &in, &states, NULL, tape.data ? &tape : NULL));
        atomic_fetch_add_explicit(&o->rerun_steps, count, memory_order_relaxed);
        if (!goes_on(o, pace, count)) return;
        const void *const now = at(&z, count - 1, 0);
        if (stop == IN_BITS && same_bits(now, ends.data, bytes)) return;
        if (stop == WITHIN_TOLERANCE && joins(o, ends.data, now, begin, l + count - 1, b)) {
            note_meeting(o, c, b, now);
            return;
        }
        in = dpcri_slice(&z, count - 1, 1, 0, 1);
    }
    *met_of(o, c, b) = 0;  // all of it is one run
}

// The states of sequence b that lie where step l of the group's first chunk does, one of each chunk.
static dpcr_array across(const overlap *o, int64_t group, int64_t l, int64_t b) {
    dpcr_array z = dpcri_outputs(&o->run->t, l, group_lanes(&o->cut, group), b, 1);
    z.strides[0] *= group_steps(&o->cut, group);
    return z;
}

// Of chunks `stride` apart, after step l of the first, which begins at `first`.
static bool all_close(const overlap *o, const dpcr_array *x, const dpcr_array *y, int64_t first, int64_t l,
                      int64_t stride, int64_t b) {
    for (int64_t c = 0; c < x->shape[0]; c++, first += stride, l += stride)
        if (!joins(o, at(y, c, 0), at(x, c, 0), first, l, b)) return false;
    return true;
}

// All chunks of a group of one sequence again, side by side, until all have met what is stored. Good ones repeat their
// own bits.
static void rerun_lanes(overlap *o, dpcri_pace *pace, int64_t group, int64_t b) {
    const int64_t first = group * o->cut.lanes, n = group_steps(&o->cut, group), lanes = group_lanes(&o->cut, group);
    const int64_t begin = chunk_start(&o->cut, first);
    const dpcr_array ends = chunk_states(o, o->space.ends, first, lanes, b, 1);
    dpcr_array in = chunk_states(o, o->space.starts, first, lanes, b, 1);
    for (int64_t k = 0; k < n; k += MEET_STEPS) {
        const int64_t count = least(MEET_STEPS, n - k);
        const dpcr_array last = across(o, group, begin + k + count - 1, b);
        o->ops->copy(&last, &ends);
        run_lanes(o, group, first, lanes, b, 1, &in, k, count);
        atomic_fetch_add_explicit(&o->rerun_steps, count * lanes, memory_order_relaxed);
        if (!goes_on(o, pace, count)) return;
        if (all_close(o, &last, &ends, begin, begin + k + count - 1, n, b)) {
            for (int64_t c = 0; c < lanes; c++) note_meeting(o, first + c, b, at(&last, c, 0));
            return;
        }
        in = last;
    }
    if (group == o->cut.groups - 1)
        atomic_fetch_add_explicit(&o->rerun_steps, run_remainder(o, pace, b, 1), memory_order_relaxed);
    for (int64_t c = 0; c < lanes; c++) *met_of(o, first + c, b) = 0;
}

// Sequence by sequence, so that none depends on what the others need.
static void rerun_group(void *argument, int64_t group) {
    overlap *o = argument;
    const int64_t batch = o->plan->steps.batch, first = group * o->cut.lanes, lanes = group_lanes(&o->cut, group);
    dpcri_pace beside, alone;
    dpcri_pace_begin(&beside, o->plan, (double)lanes, INT64_MAX);
    dpcri_pace_begin(&alone, o->plan, 1, INT64_MAX);
    for (int64_t b = 0; b < batch && !o->looks.stopped; b++) {
        int64_t bad = 0;
        for (int64_t c = first; c < first + lanes; c++) bad += o->space.rerun[c * batch + b];
        if (bad * FEW > lanes) {
            rerun_lanes(o, &beside, group, b);
            continue;
        }
        for (int64_t c = first; c < first + lanes && bad > 0 && !o->looks.stopped; c++)
            if (o->space.rerun[c * batch + b]) rerun_row(o, &alone, c, b, WITHIN_TOLERANCE);
    }
}

// Where the start of a chunk differs from its left neighbour's end, which step l leaves, the chunk must run again from
// there. The sequence's largest defect so far goes to last_residual.
static bool adopt(overlap *o, const void *end, void *start, int64_t l, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t bytes = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    o->run->last_residual[b] = fmax(o->run->last_residual[b], o->ops->distance(end, start, steps->width));
    if (joins(o, start, end, 0, l, b)) return true;
    memcpy(start, end, bytes);
    return false;
}

// Whether a chunk's start is its left neighbour's end bit for bit; the end becomes its start.
static bool starts_there(overlap *o, int64_t c, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t bytes = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    const void *end = at(&o->run->t.z, chunk_start(&o->cut, c) - 1, b);
    void *start = (char *)o->space.starts + (size_t)(c * steps->batch + b) * bytes;
    if (same_bits(end, start, bytes)) return true;
    memcpy(start, end, bytes);
    return false;
}

// The steps that sequence b has of its own.
static int64_t own_steps(const overlap *o, int64_t b) {
    return o->plan->steps.ends ? o->plan->steps.ends[b] : o->plan->steps.length;
}

// Marks the chunks of sequence b that must run again; the first bad one goes to front. Returns whether any.
static bool check_sequence(overlap *o, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t real = dpcr_dtype_size(steps->dtype), bytes = (size_t)steps->width * real;
    const size_t chunk = (size_t)steps->batch * bytes, step = (size_t)o->run->t.z.strides[0] * real;
    const int64_t groups = o->cut.groups;
    unsigned char *rerun = o->space.rerun + b;
    char *start = (char *)o->space.starts + (size_t)b * bytes;
    const char *z = at(&o->run->t.z, 0, b);
    int64_t end = -(int64_t)step;   // in bytes: of the state before the chunk
    int64_t own = own_steps(o, b);  // to go, from the chunk on
    bool any = false;
    o->run->front[b] = steps->length;
    o->run->last_residual[b] = 0;
    for (int64_t group = 0; group < groups; group++) {
        const int64_t steps_of_chunk = group_steps(&o->cut, group);
        const size_t stride = (size_t)steps_of_chunk * step;
        for (int64_t c = 0, lanes = group_lanes(&o->cut, group); c < lanes; c++, own -= steps_of_chunk) {
            const bool good = (group == 0 && c == 0) || own <= 0 || same_bits(z + end, start, bytes) ||
                              adopt(o, z + end, start, end / (int64_t)step, b);
            *rerun = !good;
            if (!good && !any) o->run->front[b] = chunk_start(&o->cut, group * o->cut.lanes + c);
            any = any || !good;
            rerun += steps->batch;
            start += chunk;
            end += (int64_t)stride;
        }
    }
    return any;
}

static bool check_boundaries(overlap *o) {
    bool any = false;
    double defect = 0;
    for (int64_t b = 0; b < o->plan->steps.batch; b++) {
        any = check_sequence(o, b) || any;
        defect = fmax(defect, o->run->last_residual[b]);
    }
    o->run->residual = defect;
    dpcri_record_sweep(o->run, defect, o->run->last_residual);
    return any;
}

// In order from the first chunk of sequence b on that does not join bit for bit: what was within the tolerance may have
// been carried on since. Chunks that join are left as they are.
static void finish_row(void *argument, int64_t b) {
    overlap *o = argument;
    if (o->run->front[b] >= o->plan->steps.length) return;
    dpcri_pace pace;
    dpcri_pace_begin(&pace, o->plan, 1, INT64_MAX);
    for (int64_t c = 1; c < o->cut.chunks && !o->looks.stopped; c++) {
        const int64_t begin = chunk_start(&o->cut, c);
        if (begin >= own_steps(o, b)) return;
        if (begin < o->run->front[b]) continue;
        const bool near = *met_of(o, c, b) > 0;
        if (!starts_there(o, c, b) || near || o->space.rerun[c * o->plan->steps.batch + b])
            rerun_row(o, &pace, c, b, near ? NOWHERE : IN_BITS);
    }
}

// The first step of sequence b whose chunk does not start with the bits of its neighbour's end, or is not one run.
static int64_t first_apart(const overlap *o, int64_t b) {
    const dpcr_steps *steps = &o->plan->steps;
    const size_t bytes = (size_t)steps->width * dpcr_dtype_size(steps->dtype);
    for (int64_t c = 1; c < o->cut.chunks; c++) {
        const int64_t begin = chunk_start(&o->cut, c);
        if (begin >= o->run->front[b]) break;
        const void *start = (char *)o->space.starts + (size_t)(c * steps->batch + b) * bytes;
        if (*met_of(o, c, b) > 0 || !same_bits(at(&o->run->t.z, begin - 1, b), start, bytes)) return begin;
    }
    return o->run->front[b];
}

// Sequences side by side. false: the caller stopped it.
static bool finish_rows(overlap *o, double flops) {
    dpcri_run *run = o->run;
    const int64_t batch = o->plan->steps.batch, length = o->plan->steps.length;
    const bool forbidden = o->plan->options.no_fallback;
    bool any = false;
    for (int64_t b = 0; b < batch; b++) {
        if (run->front[b] < length && !forbidden) run->front[b] = first_apart(o, b);
        run->locked[b] = run->front[b];
        if (run->front[b] >= length) continue;
        run->reason[b] = forbidden ? DPCR_REASON_NOT_CONVERGED : DPCR_REASON_FALLBACK;
        any = !forbidden;
    }
    if (!any) return true;
    if (!dpcri_for_tasks_or_stop(o->plan, flops, batch, finish_row, o) || o->looks.stopped) return false;
    for (int64_t b = 0; b < batch; b++) run->front[b] = length;
    return true;
}

// [1][1][w]: the state, in the run that chunk c's left neighbour is, at which chunk c's run-up began with the guess.
static dpcr_array before_run_up(const overlap *o, int64_t c, int64_t b) {
    const int64_t at_step = chunk_start(&o->cut, c) - o->plan->options.warm_up;
    if (at_step == chunk_start(&o->cut, c - 1)) return chunk_states(o, o->space.starts, c - 1, 1, b, 1);
    return dpcri_outputs(&o->run->t, at_step - 1, 1, b, 1);
}

// What a component's boundaries say: its largest defect, and the largest beyond rounding, the largest distance that its
// run-ups began with, and the sum of its defects, relative to max(1, |z|). Chunks that ran again and then met what was
// stored began with no defect, which tells nothing of run-ups: of them the distance at which they met, of any
// component.
typedef struct component {
    double defect, beyond, distance, sum;
} component;

static component look_at_component(const overlap *o, int64_t b, int64_t i) {
    enum { ROUNDINGS = 32 };
    const int64_t m = o->plan->options.warm_up, own = own_steps(o, b);
    const double eps = o->plan->steps.dtype == DPCR_F64 ? DBL_EPSILON : FLT_EPSILON;
    const dpcr_array guess = dpcri_inputs(&o->run->t, 0, 1, b, 1);
    component k = {0};
    for (int64_t c = 1; c < o->cut.chunks && chunk_start(&o->cut, c) < own; c++) {
        const int64_t begin = chunk_start(&o->cut, c);
        k.sum += *met_of(o, c, b);
        if (begin <= m || *met_of(o, c, b) > 0) continue;
        const dpcr_array end = dpcri_outputs(&o->run->t, begin - 1, 1, b, 1), before = before_run_up(o, c, b),
                         start = chunk_states(o, o->space.starts, c, 1, b, 1);
        const double z = number(&end, i), apart = fabs(z - number(&start, i)), relative = apart / fmax(1, fabs(z));
        k.defect = fmax(k.defect, apart);
        if (relative > ROUNDINGS * eps) k.beyond = fmax(k.beyond, apart);
        k.sum += relative;
        k.distance = fmax(k.distance, fabs(number(&guess, i) - number(&before, i)));
    }
    return k;
}

// What run-ups left of a component, which may keep what the others forget if it mixes with none; of defects beyond
// rounding.
static double kept_of(const component *k) { return k->beyond > 0 ? k->beyond / k->distance : 0; }

// What a component's defects come to where run-ups did not halve the distance: one that keeps what it gets, such as a
// sum that grows by next to nothing, carries all of them on.
static double carried_by(const component *k) { return 2 * k->defect < k->distance ? 0 : k->sum; }

// How much of an error at a chunk's start is left at its end, at most: the warm-up took the distance between the guess
// and the chain down to the defect. Gives the sum of all defects of the sequence carried on; negative when nothing was
// forgotten.
static double carried_error(const overlap *o, int64_t b) {
    const int64_t m = o->plan->options.warm_up;
    double defect = o->run->last_residual[b];
    const int64_t own = own_steps(o, b);
    const void *end = at(&o->run->t.z, own > 0 ? own - 1 : 0, b);
    double ratio = 0;
    if (o->ops->distance(end, end, o->plan->steps.width) != 0) return -1;  // not finite: no error is told of it
    for (int64_t c = 1; c < o->cut.chunks; c++) defect = fmax(defect, *met_of(o, c, b));
    if (defect == 0) return 0;
    if (o->cut.n < m) return -1;  // a chunk forgets less than the warm-up measured
    for (int64_t c = 1; c < o->cut.chunks; c++) {
        const int64_t begin = chunk_start(&o->cut, c);
        if (begin <= m) continue;
        if (begin >= own) break;
        const dpcr_array before = before_run_up(o, c, b);
        const dpcr_array guess = dpcri_inputs(&o->run->t, 0, 1, b, 1);
        const double distance = o->ops->distance(guess.data, before.data, o->plan->steps.width);
        if (distance > 0) ratio = fmax(ratio, defect / distance);
    }
    double carried = 0;
    for (int64_t i = 0; i < o->plan->steps.width && ratio < 1; i++) {
        const component k = look_at_component(o, b, i);
        ratio = fmax(ratio, kept_of(&k));
        carried = fmax(carried, carried_by(&k));
    }
    return ratio < 1 ? fmax(carried, defect / (1 - ratio)) : -1;
}

static void judge(overlap *o) {
    dpcri_run *run = o->run;
    const bool exact = o->atol == 0 && o->rtol == 0;
    const double allowed = fmax(o->atol + o->rtol, o->plan->options.atol + o->plan->options.rtol);
    bool known = true;
    for (int64_t b = 0; b < o->plan->steps.batch; b++) {
        if (run->reason[b]) continue;
        const double estimate = exact ? 0 : carried_error(o, b);
        known = known && estimate >= 0;
        run->estimate = fmax(run->estimate, estimate);
        run->reason[b] = estimate == 0                          ? DPCR_REASON_EXACT  // all of it is one run
                         : estimate >= 0 && estimate <= allowed ? DPCR_REASON_CONVERGED
                                                                : DPCR_REASON_RESIDUAL_ONLY;
    }
    if (!known) run->estimate = -1;
}

// Steps of a sequence that chunks go before their own; those of the first ones reach back to z0 sooner.
static int64_t run_ups(const overlap *o) {
    int64_t steps = 0;
    for (int64_t c = 1; c < o->cut.chunks; c++) steps += least(chunk_start(&o->cut, c), o->plan->options.warm_up);
    return steps;
}

dpcr_status dpcri_solve_overlap(dpcri_run *run) {
    const dpcr_solve_plan *plan = run->plan;
    const dpcr_steps *steps = &plan->steps;
    overlap o = {.run = run, .plan = plan, .ops = dpcri_row_ops_of(steps->dtype), .cut = layout_of(plan)};
    dpcri_join_within(&plan->options, &o.atol, &o.rtol);
    o.relative = fmax(plan->options.join_tolerance, 0);
    dpcri_overlap_carve(plan, &run->arena, &o.space);
    const double flops = (double)steps->length * (double)steps->batch * steps->flops;
    memset(o.space.rerun, 0, (size_t)(o.cut.chunks * steps->batch));
    for (int64_t i = 0; i < o.cut.chunks * steps->batch; i++) o.space.met[i] = 0;
    const int64_t call = dpcri_overlap_lanes(steps, o.cut.chunks, dpcr_context_threads(plan->context));
    o.parts = (least(o.cut.lanes, o.cut.chunks) + call - 1) / call;
    dpcri_looks_begin(&o.looks, plan);
    bool stopped = !dpcri_for_tasks_or_stop(plan, flops, o.cut.groups * o.parts, first_pass, &o) || o.looks.stopped;
    run->report->evaluations += (steps->length + run_ups(&o)) * steps->batch;
    int sweeps = 1;
    for (int64_t b = 0; b < steps->batch; b++) run->sweeps[b] = 1;
    while (!stopped && o.code >= 0 && check_boundaries(&o) && sweeps < plan->options.max_sweeps) {
        sweeps++;
        for (int64_t b = 0; b < steps->batch; b++)
            if (run->front[b] < steps->length) run->sweeps[b] = sweeps;
        stopped = dpcri_cancelled(plan->context) ||
                  !dpcri_for_tasks_or_stop(plan, flops, o.cut.groups, rerun_group, &o) || o.looks.stopped;
    }
    if (stopped) return dpcri_fail_stopped(run->error, "solve");
    run->report->seconds_evaluate = dpcri_lap(run);
    if (o.code >= 0 && !finish_rows(&o, flops)) return dpcri_fail_stopped(run->error, "solve");
    run->report->seconds_finish = dpcri_lap(run);
    run->report->evaluations += o.rerun_steps;
    judge(&o);
    return dpcri_callback_status(run, "advance", o.code);
}
