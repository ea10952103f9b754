// SPDX-License-Identifier: MIT
// Recurrent networks over ranks, each with consecutive steps of the sequences. A layer and direction at a time: one
// network of one layer runs the rank's steps, another one the run-up over the neighbour's, and solve/relay.c checks the
// boundaries. Going back is the same against the recurrence: what the steps after the rank's own make of no gradient is
// the guess; their states are known to start from the rank's own last one.
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/checksum.h"
#include "model/recurrent_internal.h"
#include "solve/relay.h"

static const char function[] = "recurrent_distributed";
enum { WARM_UP = 64, SWEEPS = 3 };

// A network of one layer over some steps: its plan, memory and arrays.
typedef struct runner {
    dpcr_recurrent *network;
    dpcr_recurrent_plan *plan;
    void *workspace, *tape;
    size_t bytes;
    int64_t steps;
    dpcr_recurrent_pass pass;
    int64_t *lengths;
    unsigned char *resets;
    void *x, *y, *h0, *c0, *ht, *ct;
    void *dy, *dx, *dht, *dct, *dh0, *dc0;
    bool owns_x;
    dpcr_solve_report report;  // of the last way forward
} runner;

typedef struct chain {
    runner own;
    dpcri_relay forward;
} chain;

typedef struct job {
    dpcr_context *context;
    dpcr_recurrent *network;
    dpcri_carried carried;
    dpcr_recurrent_ranks options;
    dpcr_recurrent_pass pass;
    const dpcr_recurrent_gradients *gradients;
    int64_t *steps;        // [ranks]
    int64_t first, total;  // first step of this rank, and those of all
    int64_t B, H, C, W;    // batch, numbers of h, of c (0: none), and both
    chain *chains;         // [N]
    void **inputs;         // [layers]: x of each layer, [n][B][..]; the first is the pass's
    // The boundary at work.
    runner *at;
    dpcri_relay *relay;
    bool again;
} job;

static size_t size_of(const job *j) { return j->network->element; }
static int64_t own_steps(const job *j) { return j->steps[j->carried.comm.rank]; }
static bool goes_back(const job *j) { return j->gradients != NULL; }

// ---- memory ----

static void *zeros(const job *j, int64_t a, int64_t b, int64_t c, size_t each, dpcr_status *status, dpcr_error *error) {
    int64_t count = 0;
    const bool fits = dpcri_mul(a, b, &count) && dpcri_mul(count, c, &count) && count < INT64_MAX / 16;
    void *memory = fits ? dpcri_alloc_zero(j->context, (size_t)count * each + 64) : NULL;
    if (!memory && *status == DPCR_OK)
        *status = dpcri_fail(error, DPCR_ERROR_MEMORY,
                             "%s: no memory for %" PRId64 " x %" PRId64 " x %" PRId64 " numbers", function, a, b, c);
    return memory;
}

static void runner_close(const job *j, runner *r) {
    void *const made[] = {
        r->workspace, r->tape, r->lengths, r->resets, r->y,   r->h0,  r->c0,  r->ht,
        r->ct,        r->dy,   r->dx,      r->dht,    r->dct, r->dh0, r->dc0, r->owns_x ? r->x : NULL};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) dpcri_free(j->context, made[i]);
    dpcr_recurrent_plan_destroy(r->plan);
    dpcr_recurrent_destroy(r->network);
    *r = (runner){0};
}

static dpcr_array grid(const job *j, void *data, int64_t a, int64_t c) {
    return dpcr_array_make(data, j->network->options.dtype, 3, (const int64_t[]){a, j->B, c});
}

// ---- one layer and direction ----

static bool is_reversed(const job *j, int64_t c) {
    return c % j->network->directions == 1 || j->network->options.reverse;
}

// A network of that layer alone.
static dpcr_status copy_layer(const job *j, int64_t c, dpcr_recurrent **layer, dpcr_error *error) {
    const dpcr_recurrent *n = j->network;
    dpcr_recurrent_options o = n->options;
    o.layers = 1;
    o.bidirectional = 0;
    o.inputs = dpcri_recurrent_inputs(n, c);
    o.reverse = is_reversed(j, c);
    const dpcr_status status = dpcr_recurrent_create(j->context, &o, layer, error);
    if (status != DPCR_OK) return status;
    memcpy((*layer)->parameters, n->parameters + dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_IH) * (int64_t)n->element,
           (size_t)(*layer)->count * n->element);
    return DPCR_OK;
}

// `steps` steps from `first` of the whole sequences on, x given or (NULL) to be filled.
static dpcr_status runner_open(const job *j, runner *r, int64_t c, int64_t first, int64_t steps, void *x, bool back,
                               const dpcr_solve_options *solve, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t B = j->B, H = j->H, C = j->C;
    const size_t size = size_of(j);
    *r = (runner){.steps = steps, .x = x, .owns_x = !x};
    DPCR_TRY(copy_layer(j, c, &r->network, error));
    const int64_t inputs = r->network->options.inputs;
    if (!x) r->x = zeros(j, steps, B, inputs, size, &status, error);
    r->y = zeros(j, steps, B, H, size, &status, error);
    r->h0 = zeros(j, 1, B, H, size, &status, error);
    r->ht = zeros(j, 1, B, H, size, &status, error);
    if (C) r->c0 = zeros(j, 1, B, C, size, &status, error);
    if (C) r->ct = zeros(j, 1, B, C, size, &status, error);
    if (j->pass.lengths) r->lengths = zeros(j, 1, 1, B, sizeof *r->lengths, &status, error);
    if (j->pass.resets) r->resets = zeros(j, 1, steps, B, 1, &status, error);
    if (back) {
        r->dy = zeros(j, steps, B, H, size, &status, error);
        r->dx = zeros(j, steps, B, inputs, size, &status, error);
        r->dht = zeros(j, 1, B, H, size, &status, error);
        r->dh0 = zeros(j, 1, B, H, size, &status, error);
        if (C) r->dct = zeros(j, 1, B, C, size, &status, error);
        if (C) r->dc0 = zeros(j, 1, B, C, size, &status, error);
    }
    DPCR_TRY(status);
    for (int64_t b = 0; r->lengths && b < B; b++) {
        const int64_t left = j->pass.lengths[b] - first;
        r->lengths[b] = left < 0 ? 0 : left > steps ? steps : left;
    }
    r->pass = (dpcr_recurrent_pass){.size = sizeof r->pass,
                                    .x = grid(j, r->x, steps, inputs),
                                    .h0 = grid(j, r->h0, 1, H),
                                    .lengths = r->lengths,
                                    .y = grid(j, r->y, steps, H),
                                    .ht = grid(j, r->ht, 1, H),
                                    .resets = r->resets};
    if (C) r->pass.c0 = grid(j, r->c0, 1, C), r->pass.ct = grid(j, r->ct, 1, C);
    const dpcr_recurrent_plan_options plan = {.size = sizeof plan,
                                              .length = steps,
                                              .batch = B,
                                              .training = back,
                                              .packed = r->lengths != NULL,
                                              .resets = r->resets != NULL,
                                              .recompute = j->options.recompute,
                                              .solve = *solve};
    DPCR_TRY(dpcr_recurrent_plan_create(r->network, &plan, &r->plan, error));
    r->bytes = dpcr_recurrent_plan_workspace(r->plan);
    const size_t tape = dpcr_recurrent_plan_tape(r->plan);
    if (r->bytes == SIZE_MAX || tape == SIZE_MAX)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the network does not fit into memory", function));
    const size_t limit = j->options.solve.memory_limit;
    if (limit && (r->bytes > limit || tape > limit))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY,
                            "a rank's workspace of %zu and tape of %zu bytes are needed, the limit is %zu", r->bytes,
                            tape, limit));
    r->workspace = zeros(j, 1, 1, (int64_t)r->bytes, 1, &status, error);
    if (back) r->tape = zeros(j, 1, 1, (int64_t)tape, 1, &status, error);
done:
    return status;
}

static dpcr_status runner_forward(runner *r, dpcr_error *error) {
    r->report = (dpcr_solve_report){.size = sizeof r->report};
    const dpcr_status status =
        dpcr_recurrent_execute(r->plan, &r->pass, r->tape, r->workspace, r->bytes, &r->report, error);
    if (status == DPCR_OK && r->report.reason == DPCR_REASON_NOT_CONVERGED)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: a rank's steps did not converge, and no_fallback was set",
                          function);
    return status;
}

static dpcr_status runner_back(const job *j, runner *r, dpcr_error *error) {
    dpcr_recurrent_gradients g = {.size = sizeof g,
                                  .y = grid(j, r->dy, r->steps, j->H),
                                  .ht = grid(j, r->dht, 1, j->H),
                                  .x = grid(j, r->dx, r->steps, r->network->options.inputs),
                                  .h0 = grid(j, r->dh0, 1, j->H)};
    if (j->C) g.ct = grid(j, r->dct, 1, j->C), g.c0 = grid(j, r->dc0, 1, j->C);
    dpcr_recurrent_zero_gradients(r->network);
    return dpcr_recurrent_backward(r->plan, &r->pass, &g, r->tape, r->workspace, r->bytes, NULL, error);
}

// A boundary's rows are h, then c.
static void split(const job *j, const void *rows, void *h, void *c) {
    const size_t size = size_of(j);
    for (int64_t b = 0; b < j->B; b++) {
        const char *row = (const char *)rows + (size_t)(b * j->W) * size;
        memcpy((char *)h + (size_t)(b * j->H) * size, row, (size_t)j->H * size);
        if (j->C) memcpy((char *)c + (size_t)(b * j->C) * size, row + (size_t)j->H * size, (size_t)j->C * size);
    }
}

static void join(const job *j, const void *h, const void *c, void *rows) {
    const size_t size = size_of(j);
    for (int64_t b = 0; b < j->B; b++) {
        char *row = (char *)rows + (size_t)(b * j->W) * size;
        memcpy(row, (const char *)h + (size_t)(b * j->H) * size, (size_t)j->H * size);
        if (j->C) memcpy(row + (size_t)j->H * size, (const char *)c + (size_t)(b * j->C) * size, (size_t)j->C * size);
    }
}

// Against time nothing goes over a border to before the beginning of a new sequence; what leaves step 0 does.
static void cut_at_resets(const job *j, const runner *r, void *h, void *c) {
    const size_t size = size_of(j);
    for (int64_t b = 0; r->resets && r->steps > 0 && r->network->options.reverse && b < j->B; b++) {
        if (!r->resets[b] || (r->lengths && r->lengths[b] == 0)) continue;  // past its end nothing begins
        memset((char *)h + (size_t)(b * j->H) * size, 0, (size_t)j->H * size);
        if (j->C) memset((char *)c + (size_t)(b * j->C) * size, 0, (size_t)j->C * size);
    }
}

static dpcr_status run_forward(void *user, dpcr_error *error) {
    job *j = user;
    runner *r = j->at;
    if (r->steps == 0) {
        memcpy(j->relay->end, j->relay->start, (size_t)(j->B * j->W) * size_of(j));
        return DPCR_OK;
    }
    split(j, j->relay->start, r->h0, r->c0);
    const dpcr_status status = runner_forward(r, error);
    dpcri_relay_tell(j->relay, &r->report);
    if (j->first > 0) cut_at_resets(j, r, r->ht, r->ct);
    join(j, r->ht, r->ct, j->relay->end);
    return status;
}

static dpcr_status run_back(void *user, dpcr_error *error) {
    job *j = user;
    runner *r = j->at;
    dpcr_status status = DPCR_OK;
    if (r->steps == 0) {
        memcpy(j->relay->end, j->relay->start, (size_t)(j->B * j->W) * size_of(j));
        return DPCR_OK;
    }
    if (j->again) DPCR_TRY(runner_forward(r, error));  // a tape serves once
    j->again = true;
    split(j, j->relay->start, r->dht, r->dct);
    if (j->first > 0) cut_at_resets(j, r, r->dht, r->dct);
    DPCR_TRY(runner_back(j, r, error));
    join(j, r->dh0, r->dc0, j->relay->end);
done:
    return status;
}

// ---- what neighbours lend each other ----

// The place of the rank that comes `by` after this one in the recurrence (-1: before it); negative: there is none.
static int64_t neighbour(const job *j, bool reversed, int by) {
    const int64_t rank = j->carried.comm.rank + (reversed ? -by : by);
    return rank < j->carried.comm.ranks ? rank : -1;
}

static int64_t lent(const job *j, int64_t rank) {
    if (rank < 0) return 0;
    return j->steps[rank] < j->options.solve.warm_up ? j->steps[rank] : j->options.solve.warm_up;
}

static int64_t first_of(const job *j, int64_t rank) {
    int64_t first = 0;
    for (int64_t r = 0; r < rank; r++) first += j->steps[r];
    return first;
}

// The steps at the side of this rank's range, or of another's, that the other one wants: `late` those at the range's
// end.
static dpcr_status lend(job *j, int64_t to, bool late, const void *rows, size_t step, dpcr_error *error) {
    const int64_t n = own_steps(j), m = lent(j, j->carried.comm.rank);
    if (to < 0 || !rows) return DPCR_OK;
    return dpcri_send(&j->carried.comm, to, DPCRI_TAG_HALO, (const char *)rows + (late ? (size_t)(n - m) * step : 0),
                      (size_t)m * step, error);
}

static dpcr_status borrow(job *j, int64_t from, void *rows, size_t step, dpcr_error *error) {
    if (from < 0) return DPCR_OK;
    return dpcri_receive(&j->carried.comm, from, DPCRI_TAG_HALO, rows, (size_t)lent(j, from) * step, error);
}

// A runner over the lent steps of `from`, `late` those at its range's end.
static dpcr_status open_lent(const job *j, runner *r, int64_t c, int64_t from, bool late, bool back,
                             dpcr_error *error) {
    const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
    const int64_t m = lent(j, from), begin = first_of(j, from) + (late ? j->steps[from] - m : 0);
    return runner_open(j, r, c, begin, m, NULL, back, &loop, error);
}

// ---- forward ----

static dpcr_status make_boundary(const job *j, dpcri_relay *r, bool reversed, bool scaled, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_solve_options *o = &j->options.solve;
    *r = (dpcri_relay){.comm = (dpcri_comm *)(uintptr_t)&j->carried.comm,
                       .reversed = reversed,
                       .dtype = j->network->options.dtype,
                       .rows = j->B,
                       .width = j->W,
                       .atol = fmax(0, o->atol),
                       .rtol = fmax(0, o->rtol),
                       .scaled = scaled,
                       .max_sweeps = o->max_sweeps,
                       .no_fallback = o->no_fallback,
                       .user = (void *)(uintptr_t)j,
                       .run = scaled ? run_back : run_forward};
    r->start = zeros(j, 1, j->B, j->W, size_of(j), &status, error);
    r->end = zeros(j, 1, j->B, j->W, size_of(j), &status, error);
    return status;
}

// The last state of the whole sequences, or the gradient of the first one: rank `from` has it.
static dpcr_status share(job *j, int64_t from, void *state, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_comm *comm = &j->carried.comm;
    const size_t bytes = (size_t)(j->B * j->W) * size_of(j);
    if (comm->rank != from) return dpcri_receive(comm, from, DPCRI_TAG_ALL, state, bytes, error);
    for (int64_t r = 0; r < comm->ranks; r++)
        if (r != from) DPCR_TRY(dpcri_send(comm, r, DPCRI_TAG_ALL, state, bytes, error));
done:
    return status;
}

static char *state_at(const job *j, const dpcr_array *array, int64_t c, int64_t width) {
    return array->data ? (char *)array->data + (size_t)(c * j->B * width) * size_of(j) : NULL;
}

// h0, c0 of that chain as boundary rows; what is not given is zero.
static void initial(const job *j, int64_t c, void *rows) {
    const size_t size = size_of(j);
    const char *h = state_at(j, &j->pass.h0, c, j->H), *cell = state_at(j, &j->pass.c0, c, j->C);
    for (int64_t b = 0; b < j->B; b++) {
        char *row = (char *)rows + (size_t)(b * j->W) * size;
        if (h) memcpy(row, h + (size_t)(b * j->H) * size, (size_t)j->H * size);
        if (cell && j->C) memcpy(row + (size_t)j->H * size, cell + (size_t)(b * j->C) * size, (size_t)j->C * size);
    }
}

static void put_state(const job *j, const void *rows, const dpcr_array *h, const dpcr_array *cell, int64_t c) {
    const size_t size = size_of(j);
    char *to_h = state_at(j, h, c, j->H), *to_c = state_at(j, cell, c, j->C);
    for (int64_t b = 0; b < j->B; b++) {
        const char *row = (const char *)rows + (size_t)(b * j->W) * size;
        if (to_h) memcpy(to_h + (size_t)(b * j->H) * size, row, (size_t)j->H * size);
        if (to_c) memcpy(to_c + (size_t)(b * j->C) * size, row + (size_t)j->H * size, (size_t)j->C * size);
    }
}

// The run-up: from h0 over the steps lent by the rank before.
static dpcr_status guess_start(job *j, int64_t c, runner *ahead, dpcri_relay *relay, dpcr_error *error) {
    dpcr_status status = DPCR_OK, ready = DPCR_OK;
    const bool reversed = is_reversed(j, c);
    const int64_t before = neighbour(j, reversed, -1), after = neighbour(j, reversed, 1);
    const runner *own = &j->chains[c].own;
    const size_t step = (size_t)(j->B * own->network->options.inputs) * size_of(j);
    initial(j, c, relay->start);
    if (before >= 0) ready = open_lent(j, ahead, c, before, !reversed, false, error);
    DPCR_TRY(dpcri_agree(&j->carried.comm, ready, error));
    DPCR_TRY(lend(j, after, !reversed, own->x, step, error));
    DPCR_TRY(lend(j, j->pass.resets ? after : -1, !reversed, own->resets, (size_t)j->B, error));
    if (before < 0) return DPCR_OK;
    DPCR_TRY(borrow(j, before, ahead->x, step, error));
    if (j->pass.resets) DPCR_TRY(borrow(j, before, ahead->resets, (size_t)j->B, error));
    if (ahead->steps == 0) return DPCR_OK;
    split(j, relay->start, ahead->h0, ahead->c0);
    relay->ready = runner_forward(ahead, error);
    cut_at_resets(j, ahead, ahead->ht, ahead->ct);
    join(j, ahead->ht, ahead->ct, relay->start);
done:
    return status;
}

// y of a direction to its columns of [n][B][D H], or back.
static void columns(const job *j, int64_t c, void *one, void *all, bool out) {
    const size_t row = (size_t)j->H * size_of(j), wide = row * (size_t)j->network->directions;
    char *column = (char *)all + (size_t)(c % j->network->directions) * row;
    for (int64_t i = 0; i < own_steps(j) * j->B; i++) {
        char *a = (char *)one + (size_t)i * row, *b = column + (size_t)i * wide;
        memcpy(out ? b : a, out ? a : b, row);
    }
}

static dpcr_status chain_forward(job *j, int64_t c, dpcr_solve_report *report, dpcr_error *error) {
    dpcr_status status, ready;
    chain *at = &j->chains[c];
    runner ahead = {0};
    const int64_t layer = c / j->network->directions;
    void *guess = NULL;
    ready =
        runner_open(j, &at->own, c, j->first, own_steps(j), j->inputs[layer], goes_back(j), &j->options.solve, error);
    if (ready == DPCR_OK) ready = make_boundary(j, &at->forward, is_reversed(j, c), false, error);
    if (ready == DPCR_OK) guess = zeros(j, 1, j->B, j->W, size_of(j), &ready, error);
    DPCR_TRY(dpcri_agree(&j->carried.comm, ready, error));
    if (at->own.resets && own_steps(j) > 0) memcpy(at->own.resets, j->pass.resets, (size_t)(own_steps(j) * j->B));
    initial(j, c, guess);
    at->forward.guess = guess;
    DPCR_TRY(guess_start(j, c, &ahead, &at->forward, error));
    j->at = &at->own;
    j->relay = &at->forward;
    DPCR_TRY(dpcri_relay_run(&at->forward, j->context, error));
    dpcri_relay_report(&at->forward, j->total * j->B, report);
    columns(j, c, at->own.y, layer + 1 < j->network->options.layers ? j->inputs[layer + 1] : j->pass.y.data, true);
    // Not in place: a rank's own last state is where its way back begins. Whoever wants none of it cannot know of
    // others.
    memcpy(guess, at->forward.end, (size_t)(j->B * j->W) * size_of(j));
    DPCR_TRY(share(j, is_reversed(j, c) ? 0 : j->carried.comm.ranks - 1, guess, error));
    put_state(j, guess, &j->pass.ht, &j->pass.ct, c);
done:
    at->forward.guess = NULL;
    dpcri_free(j->context, guess);
    runner_close(j, &ahead);
    return status;
}

// ---- backward ----

// The run-up: over the steps lent by the rank after, from this one's last state, and back from the sequences' own
// gradients where it reaches their end, else from none.
static dpcr_status guess_back(job *j, int64_t c, runner *behind, dpcri_relay *relay, dpcr_error *error) {
    dpcr_status status = DPCR_OK, ready = DPCR_OK;
    const bool reversed = is_reversed(j, c);
    const int64_t before = neighbour(j, reversed, -1), after = neighbour(j, reversed, 1);
    runner *own = &j->chains[c].own;
    const size_t x = (size_t)(j->B * own->network->options.inputs) * size_of(j), y = (size_t)(j->B * j->H) * size_of(j);
    const dpcr_recurrent_gradients *g = j->gradients;
    if (after < 0) {
        join(j, g->ht.data ? state_at(j, &g->ht, c, j->H) : own->dht,
             g->ct.data ? state_at(j, &g->ct, c, j->C) : own->dct, relay->start);
    } else {
        ready = open_lent(j, behind, c, after, reversed, true, error);
    }
    DPCR_TRY(dpcri_agree(&j->carried.comm, ready, error));
    DPCR_TRY(lend(j, before, reversed, own->x, x, error));
    DPCR_TRY(lend(j, before, reversed, own->dy, y, error));
    if (j->pass.resets) DPCR_TRY(lend(j, before, reversed, own->resets, (size_t)j->B, error));
    if (after < 0) return DPCR_OK;
    DPCR_TRY(borrow(j, after, behind->x, x, error));
    DPCR_TRY(borrow(j, after, behind->dy, y, error));
    if (j->pass.resets) DPCR_TRY(borrow(j, after, behind->resets, (size_t)j->B, error));
    if (behind->steps == 0) return DPCR_OK;
    split(j, j->chains[c].forward.end, behind->h0, behind->c0);
    relay->ready = runner_forward(behind, error);
    const int64_t last = reversed ? 0 : j->carried.comm.ranks - 1;
    if (after == last && behind->steps == j->steps[last]) {
        if (g->ht.data) memcpy(behind->dht, state_at(j, &g->ht, c, j->H), y);
        if (g->ct.data) memcpy(behind->dct, state_at(j, &g->ct, c, j->C), (size_t)(j->B * j->C) * size_of(j));
    }
    if (relay->ready == DPCR_OK) relay->ready = runner_back(j, behind, error);
    join(j, behind->dh0, behind->dc0, relay->start);
done:
    return status;
}

static void add(const job *j, void *to, const void *from, int64_t count) {
    if (j->network->options.dtype == DPCR_F64)
        for (int64_t i = 0; i < count; i++) ((double *)to)[i] += ((const double *)from)[i];
    else
        for (int64_t i = 0; i < count; i++) ((float *)to)[i] += ((const float *)from)[i];
}

// The ranks' sums of the parameters' gradients, in their order, added to the network's.
static dpcr_status add_parameters(job *j, int64_t c, dpcr_error *error) {
    dpcr_status status = DPCR_OK, ready = DPCR_OK;
    dpcri_comm *comm = &j->carried.comm;
    const dpcr_recurrent *n = j->network;
    const dpcr_recurrent *layer = j->chains[c].own.network;
    const size_t bytes = (size_t)layer->count * n->element;
    void *sum = zeros(j, 1, 1, layer->count, n->element, &ready, error),
         *more = zeros(j, 1, 1, layer->count, n->element, &ready, error);
    DPCR_TRY(dpcri_agree(comm, ready, error));
    memcpy(sum, layer->gradients, bytes);
    if (comm->rank > 0) {
        DPCR_TRY(dpcri_send(comm, 0, DPCRI_TAG_GATHER, sum, bytes, error));
        DPCR_TRY(dpcri_receive(comm, 0, DPCRI_TAG_ALL, sum, bytes, error));
    }
    for (int64_t r = 1; comm->rank == 0 && r < comm->ranks; r++) {
        DPCR_TRY(dpcri_receive(comm, r, DPCRI_TAG_GATHER, more, bytes, error));
        add(j, sum, more, layer->count);
    }
    for (int64_t r = 1; comm->rank == 0 && r < comm->ranks; r++)
        DPCR_TRY(dpcri_send(comm, r, DPCRI_TAG_ALL, sum, bytes, error));
    add(j, n->gradients + dpcri_recurrent_offset(n, c, DPCRI_WEIGHT_IH) * (int64_t)n->element, sum, layer->count);
done:
    dpcri_free(j->context, sum);
    dpcri_free(j->context, more);
    return status;
}

static dpcr_status chain_back(job *j, int64_t c, void *outer, void *inner, dpcr_solve_report *report,
                              dpcr_error *error) {
    dpcr_status status;
    runner *own = &j->chains[c].own, behind = {0};
    dpcri_relay relay = {0};
    DPCR_TRY(dpcri_agree(&j->carried.comm, make_boundary(j, &relay, !is_reversed(j, c), true, error), error));
    if (outer) columns(j, c, own->dy, outer, false);
    DPCR_TRY(guess_back(j, c, &behind, &relay, error));
    j->at = own;
    j->relay = &relay;
    j->again = false;
    DPCR_TRY(dpcri_relay_run(&relay, j->context, error));
    dpcri_relay_report(&relay, j->total * j->B, report);
    DPCR_TRY(add_parameters(j, c, error));
    if (inner) {
        const int64_t count = own_steps(j) * j->B * own->network->options.inputs;
        if (c % j->network->directions == 0)
            memcpy(inner, own->dx, (size_t)count * size_of(j));
        else
            add(j, inner, own->dx, count);
    }
    DPCR_TRY(share(j, is_reversed(j, c) ? j->carried.comm.ranks - 1 : 0, relay.end, error));
    put_state(j, relay.end, &j->gradients->h0, &j->gradients->c0, c);
done:
    dpcri_free(j->context, relay.start);
    dpcri_free(j->context, relay.end);
    runner_close(j, &behind);
    return status;
}

static dpcr_status all_back(job *j, dpcr_solve_report *reports, dpcr_error *error) {
    dpcr_status status = DPCR_OK, ready = DPCR_OK;
    const dpcr_recurrent *n = j->network;
    const int64_t D = n->directions, n_steps = own_steps(j);
    void *turns[2] = {NULL, NULL};
    for (int i = 0; i < 2 && n->options.layers > 1; i++)
        turns[i] = zeros(j, n_steps, j->B, D * j->H, n->element, &ready, error);
    DPCR_TRY(dpcri_agree(&j->carried.comm, ready, error));
    void *outer = j->gradients->y.data;
    for (int64_t layer = n->options.layers - 1; layer >= 0; layer--) {
        void *inner = layer > 0 ? turns[layer % 2] : j->gradients->x.data;
        for (int64_t d = 0; d < D; d++)
            DPCR_TRY(chain_back(j, layer * D + d, outer, inner, dpcri_report_at(reports, layer * D + d), error));
        outer = inner;
    }
done:
    dpcri_free(j->context, turns[0]);
    dpcri_free(j->context, turns[1]);
    return status;
}

// ---- the call ----

static dpcr_status check_array(const job *j, const char *name, const dpcr_array *array, bool optional, int64_t a,
                               int64_t c, dpcr_error *error) {
    if (optional && !array->data) return DPCR_OK;
    const int64_t shape[] = {a, j->B, c};
    const dpcr_status status = dpcri_check_array(function, name, array, j->network->options.dtype, 3, shape, error);
    if (status != DPCR_OK || a * j->B == 0) return status;
    if ((a == 1 || array->strides[0] == j->B * c) && (j->B == 1 || array->strides[1] == c)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s has other strides, wanted it contiguous", function, name);
}

static dpcr_status check(job *j, const dpcr_recurrent_pass *pass, const dpcr_recurrent_gradients *g,
                         dpcr_error *error) {
    dpcr_status status;
    const dpcr_recurrent *n = j->network;
    if (!dpcri_recurrent_take_pass(pass, false, &j->pass) || j->pass.x.ndim != 3)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a pass with its size set and x [T][B][I] is wanted",
                          function);
    const int64_t T = j->pass.x.shape[0], N = n->chains, D = n->directions;
    j->B = j->pass.x.shape[1];
    j->W = dpcri_recurrent_w(n);
    j->H = dpcri_recurrent_h(n);
    j->C = j->W - j->H;
    if (n->options.kind == DPCR_PARALSTM) j->H = j->C = n->options.hidden;
    DPCR_TRY(check_array(j, "x", &j->pass.x, T * j->B == 0, T, n->options.inputs, error));
    DPCR_TRY(check_array(j, "y", &j->pass.y, T * j->B == 0, T, D * j->H, error));
    DPCR_TRY(check_array(j, "h0", &j->pass.h0, true, N, j->H, error));
    DPCR_TRY(check_array(j, "c0", &j->pass.c0, true, N, j->C, error));
    DPCR_TRY(check_array(j, "ht", &j->pass.ht, true, N, j->H, error));
    DPCR_TRY(check_array(j, "ct", &j->pass.ct, true, N, j->C, error));
    DPCR_TRY(dpcri_recurrent_check_apart(function, j->network, &j->pass, NULL, g != NULL, error));
    if (g && g->size < sizeof *g)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: gradients with their size set are wanted", function);
    if (g) {
        DPCR_TRY(check_array(j, "gradients.y", &g->y, true, T, D * j->H, error));
        DPCR_TRY(check_array(j, "gradients.x", &g->x, true, T, n->options.inputs, error));
        DPCR_TRY(check_array(j, "gradients.ht", &g->ht, true, N, j->H, error));
        DPCR_TRY(check_array(j, "gradients.ct", &g->ct, true, N, j->C, error));
        DPCR_TRY(check_array(j, "gradients.h0", &g->h0, true, N, j->H, error));
        DPCR_TRY(check_array(j, "gradients.c0", &g->c0, true, N, j->C, error));
        DPCR_TRY(dpcri_recurrent_check_apart(function, j->network, &j->pass, g, true, error));
    }
    j->gradients = g;
done:
    return status;
}

static dpcr_status fill_options(job *j, const dpcr_recurrent_ranks *given, dpcr_error *error) {
    dpcr_recurrent_ranks *o = &j->options;
    DPCRI_COPY_IN(*o, given);
    dpcr_solve_options *s = &o->solve;
    const double usual = j->network->options.dtype == DPCR_F32 ? DPCR_TOLERANCE_F32 : DPCR_TOLERANCE_F64;
    const dpcr_status status = dpcri_recurrent_solve_options(function, s, error);
    if (status != DPCR_OK) return status;
    if (s->size == 0) *s = (dpcr_solve_options){.size = sizeof *s, .method = DPCR_METHOD_SEQUENTIAL};
    if (s->method == DPCR_METHOD_AUTO) s->method = DPCR_METHOD_SEQUENTIAL;
    if (s->backward == DPCR_SCHEME_AUTO) s->backward = DPCR_SCHEME_SEQUENTIAL;
    if (s->warm_up < 0 || s->max_sweeps < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: warm_up %" PRId64 " and max_sweeps %d, wanted 0 or more",
                          function, s->warm_up, s->max_sweeps);
    s->consume_tape = 0;
    if (s->warm_up == 0) s->warm_up = WARM_UP;
    if (s->max_sweeps == 0) s->max_sweeps = SWEEPS;
    // As in solve/plan.c: where one is none and the other is not given, both are none.
    if (s->atol == 0) s->atol = s->rtol < 0 ? -1 : usual;
    if (s->rtol == 0) s->rtol = s->atol < 0 ? -1 : usual;
    return DPCR_OK;
}

typedef struct hello {
    int64_t steps, batch, warm_up, sweeps, strict, back, packed, resets;
    double atol, rtol;
    uint64_t sum;
} hello;

// Of an array [N][B][width], eight bytes at a time; what is 0 adds nothing, so NULL is zeros.
static uint64_t add_numbers(uint64_t sum, const void *numbers, int64_t count, size_t size) {
    uint64_t all = 0;
    const size_t bytes = numbers ? (size_t)count * size : 0;
    for (size_t at = 0; at < bytes; at += sizeof all) {
        const size_t n = bytes - at < sizeof all ? bytes - at : sizeof all;
        uint64_t word = 0;
        memcpy(&word, (const char *)numbers + at, n);
        if (word == 0) continue;
        word = (word + (at + 1) * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
        all += (word ^ word >> 32) * UINT64_C(0xc4ceb9fe1a85ec53);
    }
    return dpcri_checksum(sum, &all, sizeof all);
}

static uint64_t add_states(uint64_t sum, const job *j, const dpcr_array *states, int64_t width) {
    return add_numbers(sum, states->data, j->network->chains * j->B * width, size_of(j));
}

// Of what is to be the same on all ranks and too long to be told: network, lengths, states and gradients that go in.
static uint64_t sum_of(const job *j) {
    const dpcr_recurrent_options *o = &j->network->options;
    const dpcr_recurrent_gradients *g = goes_back(j) ? j->gradients : NULL;
    const int64_t facts[] = {o->kind,           o->dtype,           o->inputs,      o->hidden,
                             o->layers,         !!o->no_bias,       o->projection,  !!o->reverse,
                             !!o->reset_before, !!o->bidirectional, !!o->peepholes, !!o->input_forget};
    uint64_t sum = dpcri_checksum(DPCRI_CHECKSUM, facts, sizeof facts);
    sum = dpcri_checksum(sum, &o->clip, sizeof o->clip);
    if (j->pass.lengths) sum = dpcri_checksum(sum, j->pass.lengths, (size_t)j->B * sizeof *j->pass.lengths);
    sum = add_numbers(sum, j->network->parameters, j->network->count, size_of(j));
    sum = add_states(sum, j, &j->pass.h0, j->H);
    sum = add_states(sum, j, &j->pass.c0, j->C);
    if (g) sum = add_states(add_states(sum, j, &g->ht, j->H), j, &g->ct, j->C);
    return sum;
}

static dpcr_status meet(job *j, dpcr_error *error) {
    dpcr_status status, ready = DPCR_OK;
    dpcri_comm *comm = &j->carried.comm;
    const dpcr_recurrent *n = j->network;
    const dpcr_solve_options *s = &j->options.solve;
    const hello mine = {.steps = j->pass.x.shape[0],
                        .batch = j->B,
                        .warm_up = s->warm_up,
                        .sweeps = s->max_sweeps,
                        .strict = s->no_fallback != 0,
                        .back = goes_back(j),
                        .packed = j->pass.lengths != NULL,
                        .resets = j->pass.resets != NULL,
                        .atol = s->atol,
                        .rtol = s->rtol,
                        .sum = sum_of(j)};
    hello *all = zeros(j, 1, comm->ranks, 1, sizeof *all, &ready, error);
    j->steps = zeros(j, 1, comm->ranks, 1, sizeof *j->steps, &ready, error);
    j->chains = zeros(j, 1, n->chains, 1, sizeof *j->chains, &ready, error);
    j->inputs = zeros(j, 1, n->options.layers, 1, sizeof *j->inputs, &ready, error);
    DPCR_TRY(dpcri_agree(comm, ready, error));
    DPCR_TRY(dpcri_gather_all(comm, &mine, sizeof mine, all, error));
    for (int64_t r = 0; r < comm->ranks; r++) {
        j->steps[r] = all[r].steps;
        if (!dpcri_add(j->total, all[r].steps, &j->total))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the ranks' steps together do not fit", function));
        if (r < comm->rank) j->first += all[r].steps;
    }
    for (int64_t b = 0; j->pass.lengths && b < j->B; b++)
        if (j->pass.lengths[b] < 0 || j->pass.lengths[b] > j->total)
            ready = dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: lengths[%lld] is %lld, wanted 0..%lld", function,
                               (long long)b, (long long)j->pass.lengths[b], (long long)j->total);
    DPCR_TRY(dpcri_agree(comm, ready, error));
    for (int64_t r = 0; r < comm->ranks; r++) {
        hello other = all[r];
        other.steps = all[0].steps;
        if (memcmp(&other, &all[0], sizeof other) != 0)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                "%s: rank %lld has another network, batch, lengths, states, last gradients or options "
                                "than rank 0; wanted the same",
                                function, (long long)r));
    }
    j->inputs[0] = j->pass.x.data;
    for (int64_t l = 1; l < n->options.layers; l++)
        j->inputs[l] = zeros(j, own_steps(j), j->B, n->directions * j->H, n->element, &ready, error);
    // Without steps x may be nothing at all.
    if (!j->inputs[0]) j->inputs[0] = j->steps;
    DPCR_TRY(dpcri_agree(comm, ready, error));
done:
    dpcri_free(j->context, all);
    return status;
}

static void close_all(job *j) {
    for (int64_t c = 0; j->chains && c < j->network->chains; c++) {
        dpcri_free(j->context, j->chains[c].forward.start);
        dpcri_free(j->context, j->chains[c].forward.end);
        runner_close(j, &j->chains[c].own);
    }
    for (int64_t l = 1; j->inputs && l < j->network->options.layers; l++) dpcri_free(j->context, j->inputs[l]);
    dpcri_free(j->context, j->inputs);
    dpcri_free(j->context, j->chains);
    dpcri_free(j->context, j->steps);
}

dpcr_status dpcr_recurrent_distributed(dpcr_recurrent *network, const dpcr_recurrent_ranks *options,
                                       const dpcr_recurrent_pass *pass, const dpcr_recurrent_gradients *gradients,
                                       dpcr_solve_report *reports, dpcr_solve_report *back_reports, dpcr_error *error) {
    dpcr_status status;
    if (!network || !options || options->size < offsetof(dpcr_recurrent_ranks, solve))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a network and options with their size set are wanted",
                          function);
    job j = {.context = network->context, .network = network};
    status = dpcri_carry(&j.carried, options->transport, options->deadline, function, error);
    if (status != DPCR_OK) return status;
    status = fill_options(&j, options, error);
    if (status == DPCR_OK) status = check(&j, pass, gradients, error);
    if (status == DPCR_OK) status = dpcri_check_reports(function, reports, network->chains, error);
    if (status == DPCR_OK) status = dpcri_check_reports(function, back_reports, network->chains, error);
    DPCR_TRY(dpcri_agree(&j.carried.comm, status, error));
    DPCR_TRY(meet(&j, error));
    for (int64_t c = 0; c < network->chains; c++) DPCR_TRY(chain_forward(&j, c, dpcri_report_at(reports, c), error));
    if (gradients) DPCR_TRY(all_back(&j, back_reports, error));
done:
    close_all(&j);
    return status;
}
