// SPDX-License-Identifier: MIT
// One sequence, or a few, through a recurrent layer whose units mix: each step's units are shared out among threads,
// which meet after every step. Pays where a step's weights take a core longer than the meeting does, and where another
// core brings a path to them of its own; two threads of one core do not, nor do busy ones. So the clock tells
// (trial.h), piece by piece. A unit's numbers do not depend on what runs beside it, nor the bits on the number of
// threads.
//
// Whoever takes part has a part of the units that is his, so that its weights stay in his cache. He takes it, and waits
// until all parts are through the step; one that nobody has taken for a while he takes too, for its owner may not have
// come, or may have lost his processor. So one alone gets through.
#include <stdatomic.h>
#include <string.h>

#include "nn/recurrent_views.h"
#include "rt/rt.h"
#include "rt/trial.h"

enum {
    MOST_PARTS = 64,
    LINE = 64,
    // Bytes of weights a step beyond which it is tried, and those that a part has at least, which take longer than a
    // meeting. Bytes of all steps of a piece, and its least steps, which take longer than a region's beginning.
    STEP_BYTES = 1 << 19,
    PART_BYTES = 1 << 17,
    PIECE_BYTES = 1 << 22,
    PIECE_STEPS = 8,
    A_WHILE = 128  // looks at what others have done before a part of theirs is taken
};

typedef struct counter {
    _Alignas(LINE) _Atomic int64_t count;
} counter;

typedef struct meeting {
    const dpcri_recurrent *layer;
    const dpcri_gates_forward *forward;  // or
    const dpcri_gates_adjoint *adjoint;
    int64_t steps, parts, units;  // units of a part
    void *turns;
    counter done;               // parts of steps, all together
    counter taken[MOST_PARTS];  // steps of a part that somebody has taken
} meeting;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Part p of step k, where nobody has taken it.
static void take(meeting *m, int64_t k, int64_t p) {
    int64_t before = k;
    if (atomic_load_explicit(&m->taken[p].count, memory_order_relaxed) != k) return;
    if (!atomic_compare_exchange_strong_explicit(&m->taken[p].count, &before, k + 1, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    dpcri_gates mine = m->layer->gates;
    mine.from = p * m->units;
    mine.to = least(mine.from + m->units, mine.width);
    if (m->forward)
        m->layer->kernels->advance_step(&mine, m->forward, k, m->turns);
    else
        m->layer->kernels->adjoint_step(&mine, m->adjoint, m->adjoint->steps - 1 - k, m->turns);
    atomic_fetch_add_explicit(&m->done.count, 1, memory_order_acq_rel);
}

static void take_part(void *argument, int64_t own) {
    meeting *m = argument;
    for (int64_t k = 0; k < m->steps; k++) {
        take(m, k, own);
        for (int64_t turn = 0; atomic_load_explicit(&m->done.count, memory_order_acquire) < (k + 1) * m->parts;
             turn++) {
            if (turn % A_WHILE == A_WHILE - 1)
                for (int64_t p = 0; p < m->parts; p++) take(m, k, p);
            dpcri_wait(turn);
        }
    }
}

// Bytes of weights that a step reads; 0: its units are not shared.
static int64_t bytes_of(const dpcri_recurrent *c, int64_t strands, const int64_t *ends, const dpcri_marks *resets) {
    const double H = (double)c->gates.width, element = (double)c->kernels->element;
    const double bytes = dpcri_gates_count[c->gates.kind] * H * H * element;
    const bool few = strands >= 1 && strands <= DPCRI_GATES_FEW && dpcri_threads_at_hand(c->context) > 1;
    return few && !c->gates.varied && !ends && !resets->at && bytes > STEP_BYTES ? (int64_t)bytes : 0;
}

// What is tried together: weights of a power of two, so many strands, a direction.
typedef struct kind {
    uint64_t number;
    int most;  // parts that the least of these weights are worth
} kind;

static kind kind_of(int64_t bytes, int64_t strands, bool back) {
    enum { POWERS = 12 };  // up to 2^11 times the least
    int power = 0;
    while (power < POWERS - 1 && bytes >> (power + 1) > STEP_BYTES) power++;
    const int64_t number = (2 * power + back) * DPCRI_GATES_FEW + strands - 1;
    return (kind){(uint64_t)number, (int)least(MOST_PARTS, (int64_t)(STEP_BYTES / PART_BYTES) << power)};
}

// Parts for so many threads: of units, a multiple of what fills vectors and lines.
static void divide(meeting *m, int64_t threads) {
    const dpcri_recurrent *c = m->layer;
    const int64_t H = c->gates.width, line = LINE / (int64_t)c->kernels->element;
    const int64_t whole = c->kernels->units > line ? c->kernels->units : line, even = (H + threads - 1) / threads;
    m->units = (even + whole - 1) / whole * whole;
    m->parts = (H + m->units - 1) / m->units;
}

// Steps of a piece.
static int64_t piece_of(int64_t bytes) { return PIECE_BYTES / bytes > PIECE_STEPS ? PIECE_BYTES / bytes : PIECE_STEPS; }

static void meet(meeting *m, int64_t steps) {
    m->steps = steps;
    atomic_init(&m->done.count, 0);
    for (int64_t p = 0; p < m->parts; p++) atomic_init(&m->taken[p].count, 0);
    dpcri_parallel(m->layer->context, m->parts, take_part, m);
}

// [lanes][rows] of `from` to `to`.
static void copy_states(const dpcri_recurrent *c, int64_t lanes, int64_t rows, dpcri_grid from, dpcri_grid to) {
    const size_t element = c->kernels->element, bytes = (size_t)dpcri_gates_states(&c->gates) * element;
    for (int64_t l = 0; l < lanes; l++)
        for (int64_t r = 0; r < rows; r++) {
            const void *x = at(from, l, r, element).data;
            void *y = at(to, l, r, element).data;
            if (x != y) memcpy(y, x, bytes);
        }
}

static bool forward_piece(meeting *m, const dpcri_gates_forward *run) {
    const dpcri_recurrent *c = m->layer;
    if (m->parts == 1) return c->kernels->advance(&c->gates, run);
    m->forward = run;
    meet(m, run->steps);
    const int64_t state = dpcri_gates_states(&c->gates), end = run->steps - 1, turn = run->lanes * run->rows * state;
    const dpcri_grid turns = {m->turns, run->rows * state, turn, state};
    const dpcri_grid from =
        from_step(run->states.data ? run->states : turns, run->states.data ? end : end % 2, c->kernels->element);
    if (run->last.data) copy_states(c, run->lanes, run->rows, from, run->last);
    return true;
}

static bool back_piece(meeting *m, const dpcri_gates_adjoint *run) {
    const dpcri_recurrent *c = m->layer;
    if (m->parts == 1) return c->kernels->adjoint(&c->gates, run);
    m->adjoint = run;
    meet(m, run->steps + 1);
    return true;
}

// Room for two turns of `numbers` a strand. False: no memory.
static bool make_turns(meeting *m, int64_t strands, int64_t numbers) {
    m->turns = dpcri_alloc(m->layer->context, (size_t)(2 * strands * numbers) * m->layer->kernels->element);
    return m->turns;
}

bool dpcri_units_advance(const dpcri_recurrent *c, const dpcri_gates_forward *run) {
    const int64_t bytes = bytes_of(c, run->lanes * run->rows, run->ends, &run->resets);
    // Pieces hand on the states, or the last ones.
    const bool hands_on = run->states.data || run->last.data || run->steps == 1;
    meeting m = {.layer = c};
    if (!bytes || run->steps < 1 || !hands_on ||
        (!run->states.data && !make_turns(&m, run->lanes * run->rows, dpcri_gates_states(&c->gates))))
        return c->kernels->advance(&c->gates, run);
    const size_t element = c->kernels->element;
    const int64_t each = piece_of(bytes);
    const kind trial = kind_of(bytes, run->lanes * run->rows, false);
    bool done = true;
    for (int64_t k = 0; done && k < run->steps; k += each) {
        const int threads = dpcri_trial_threads(c->context, trial.number, trial.most);
        const double began = dpcri_seconds();
        dpcri_gates_forward piece = *run;
        piece.steps = least(each, run->steps - k);
        piece.first = run->first + k;
        piece.input = from_step(run->input, k, element), piece.states = from_step(run->states, k, element);
        piece.tape = from_step(run->tape, k, element), piece.hidden = from_step(run->hidden, k, element);
        if (k > 0) piece.in = run->states.data ? from_step(run->states, k - 1, element) : run->last;
        divide(&m, least(threads, dpcri_threads_at_hand(c->context)));
        done = forward_piece(&m, &piece);
        dpcri_trial_took(c->context, trial.number, threads, dpcri_seconds() - began, piece.steps);
    }
    dpcri_free(c->context, m.turns);
    return done;
}

bool dpcri_units_adjoint(const dpcri_recurrent *c, const dpcri_gates_adjoint *run) {
    const int64_t bytes = bytes_of(c, run->lanes * run->rows, run->ends, &run->resets);
    meeting m = {.layer = c};
    if (!bytes || run->gates_only || !run->first_out.data || run->steps < 1 ||
        (!run->e.data && !make_turns(&m, run->lanes * run->rows, dpcri_gates_tapes(&c->gates))))
        return c->kernels->adjoint(&c->gates, run);
    const size_t element = c->kernels->element;
    const int64_t each = piece_of(bytes);
    const kind trial = kind_of(bytes, run->lanes * run->rows, true);
    bool done = true;
    for (int64_t end = run->steps; done && end > 0; end -= each) {
        const int threads = dpcri_trial_threads(c->context, trial.number, trial.most);
        const double began = dpcri_seconds();
        const int64_t begin = end > each ? end - each : 0;
        dpcri_gates_adjoint piece = *run;
        piece.steps = end - begin;
        piece.first = run->first + begin;
        piece.in = from_step(run->in, begin, element), piece.tape = from_step(run->tape, begin, element);
        piece.direct = from_step(run->direct, begin, element), piece.kept = from_step(run->kept, begin, element);
        piece.e = from_step(run->e, begin, element);
        if (end < run->steps) piece.last = run->first_out;
        divide(&m, least(threads, dpcri_threads_at_hand(c->context)));
        done = back_piece(&m, &piece);
        dpcri_trial_took(c->context, trial.number, threads, dpcri_seconds() - began, piece.steps);
    }
    dpcri_free(c->context, m.turns);
    return done;
}
