// SPDX-License-Identifier: MIT
// A linear chain whose steps are spread over ranks, each with consecutive ones:
//
//   1  each rank reduces its range to (M, v), what it makes of a state: g -> M g + v        (reduce.c)
//   2  an exclusive scan over the ranks, in their order:  (M2, v2) (M1, v1) = (M2 M1, M2 v1 + v2);  not commutative
//   3  each rank runs its states from what its scan found, the first one from z0
//
// The first rank that has steps knows what comes in: it runs the loop at once and its summary is its end. The last
// one's summary is nobody's; of two ranks it waits for the first and then runs the loop. Ranks without steps, and the
// state before the first step, take part as summaries that may be absent, so no unit element is ever multiplied (0
// times infinity is no 0).
//
// Between 2 and 3 a number of each rank goes to all: the first one into which no finite state comes. Summaries'
// products may overflow where the loop does not, so from there on the ranks run in order.
//
// After 3 each rank looks whether what goes out of it is what the scan told the next one (joins.h): products may also
// underflow, and stay finite where a state does not. From the first that does not join the ranks run in order too;
// where a rank whose b is gone, as its z took b's place, would have to, all ranks refuse.
//
// Work of a rank in between: a composition and two applications a step; of the first and second of two: one. Depth 2 n
// + log2 P rounds. One message a round: batch (w + values) numbers; and one of batch w to the rank before.
// Source: the two-level scan of ParaRNN (arXiv 2510.21450) over processes. Derivation: docs/math/chunked.md.
#include "chain/distributed.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "chain/joins.h"
#include "chain/plan.h"
#include "rt/comm/collective.h"

static const char function[] = "chain_distributed";

// What all ranks must agree on, and how long each range is.
typedef struct hello {
    int64_t length, batch, width, block, structure, dtype, transposed, scan, shared_rows, has_z0;
} hello;

typedef struct job {
    dpcr_context *context;
    dpcri_carried carried;
    dpcr_distributed_options options;
    dpcr_chain_shape shape;
    int64_t values;
    dpcri_view a, b, z0, z, in, out;
    bool has_z0;
    hello *all;                       // [ranks]
    int64_t *places;                  // [ranks], behind them
    int64_t length;                   // of the whole chain
    int64_t first, position, before;  // first step; place in the recurrence's order; steps of the ranks before it there
    dpcri_range range;
    // A summary as a message: present, M [sum_rows][values], v [B][w].
    size_t summary, sum_at, end_at;
    void *mine, *prefix, *scratch, *product;
    void *asked;           // the state that the scan gave the next rank, [B][w]
    void *parcel;          // what goes out, [B][w], and which sequences' starts it takes the place of, [B] bytes
    unsigned char *moved;  // [B]: what goes out of this rank is not what the scan gave the next one
    void *pieces;
    void *plan_space;
    dpcr_chain_plan *plan;  // of a rank that goes through its range once
    dpcri_watch watch;
    bool stopped;      // by the caller's cancel function: what goes out of here is worth nothing, and all get to know
    bool lost;         // so is it where a chain in place would have to go on in order (dpcri_linear.lost)
    int64_t in_order;  // step of the whole recurrence from which this rank ran in order; the length: it did not
    dpcr_distributed_report report;
} job;

static size_t element(const job *j) { return dpcr_dtype_size(j->shape.dtype); }
static int64_t state_numbers(const job *j) { return j->shape.batch * j->shape.transition.rows; }

// ---- arguments ----

static dpcr_status check_options(job *j, const dpcr_distributed_options *given, dpcr_error *error) {
    dpcr_distributed_options *o = &j->options;
    DPCRI_COPY_IN(*o, given);
    if ((unsigned)o->scan >= DPCR_SCAN_COUNT || o->chunk < 0 || (int)o->scheme < 0 || o->scheme >= DPCR_SCHEME_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: scan is %d, chunk %" PRId64 " and scheme %d; wanted 0..%d, 0 or more, and 0..%d",
                          function, (int)o->scan, o->chunk, (int)o->scheme, DPCR_SCAN_COUNT - 1, DPCR_SCHEME_COUNT - 1);
    if (o->scan == DPCR_SCAN_TRANSPORT && !o->transport->exscan)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "%s: the transport has no scan of its own; DPCR_SCAN_MESSAGES works", function);
    if (o->scheme == DPCR_SCHEME_AUTO) o->scheme = DPCR_SCHEME_SEQUENTIAL;
    return DPCR_OK;
}

static dpcr_status view_state(const job *j, const dpcr_array *array, const char *name, dpcri_view *view,
                              dpcr_error *error) {
    const dpcri_wanted wanted = {.function = function,
                                 .name = name,
                                 .dtype = j->shape.dtype,
                                 .steps = -1,
                                 .rows = j->shape.batch,
                                 .values = j->shape.transition.rows,
                                 .written = name[0] != 'z'};
    return array ? dpcri_view_of(array, &wanted, view, error) : DPCR_OK;
}

static dpcr_status check_arrays(job *j, const dpcr_array *a, const dpcr_array *b, const dpcr_array *z0,
                                const dpcr_array *z, const dpcr_array *in, const dpcr_array *out, dpcr_error *error) {
    dpcr_status status;
    dpcri_wanted wanted = dpcri_plan_wants(j->plan, function, "a", j->shape.length, j->values);
    wanted.shareable = true;
    if (j->values > 0) DPCR_TRY(dpcri_view_of(a, &wanted, &j->a, error));
    wanted = dpcri_plan_wants(j->plan, function, "b", j->shape.length, j->shape.transition.rows);
    DPCR_TRY(dpcri_view_of(b, &wanted, &j->b, error));
    wanted.name = "z";
    wanted.written = true;
    DPCR_TRY(dpcri_view_of(z, &wanted, &j->z, error));
    if (z0 && j->shape.transposed)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "%s: z0 was given to a transposed chain, which starts at b of the last step; add it there",
                            function));
    j->has_z0 = z0 && j->carried.comm.rank == 0;
    DPCR_TRY(view_state(j, z0, "z0", &j->z0, error));
    DPCR_TRY(view_state(j, in, "in", &j->in, error));
    DPCR_TRY(view_state(j, out, "out", &j->out, error));
    if (j->has_z0) DPCR_TRY(dpcri_check_start(function, z0, z, error));
    DPCR_TRY(dpcri_check_in_place(function, &j->b, &j->z, error));
done:
    return status;
}

static dpcr_status check(job *j, const dpcr_chain_shape *shape, const dpcr_distributed_options *options,
                         const dpcr_array *a, const dpcr_array *b, const dpcr_array *z0, const dpcr_array *z,
                         const dpcr_array *in, const dpcr_array *out, const dpcr_distributed_report *report,
                         dpcr_error *error) {
    dpcr_status status;
    if (!j->context || !shape)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is NULL", function, j->context ? "shape" : "context");
    if (report && report->size < offsetof(dpcr_distributed_report, length) + sizeof report->length)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: report.size is %zu, wanted sizeof(dpcr_distributed_report)",
                          function, report->size);
    DPCR_TRY(check_options(j, options, error));
    const dpcr_chain_options local = {.size = sizeof local, .scheme = j->options.scheme};
    DPCR_TRY(dpcr_chain_plan_create(j->context, shape, &local, &j->plan, error));
    j->shape = j->plan->shape;
    j->values = dpcr_transition_values(&j->shape.transition);
    if (!(dpcr_transition_capabilities(&j->shape.transition) & DPCR_CAN_COMPOSE))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %s transitions do not compose", function,
                            dpcr_structure_name(j->shape.transition.structure)));
    DPCR_TRY(check_arrays(j, a, b, z0, z, in, out, error));
done:
    return status;
}

// ---- what the ranks know of each other ----

static dpcr_status meet(job *j, dpcr_error *error) {
    dpcr_status status;
    dpcri_comm *comm = &j->carried.comm;
    const dpcr_chain_shape *s = &j->shape;
    const hello mine = {.length = s->length,
                        .batch = s->batch,
                        .width = s->transition.rows,
                        .block = s->transition.block,
                        .structure = s->transition.structure,
                        .dtype = s->dtype,
                        .transposed = s->transposed != 0,
                        .scan = j->options.scan,
                        .shared_rows = j->a.row == 0,
                        .has_z0 = j->has_z0};
    j->all = dpcri_alloc(j->context, (size_t)comm->ranks * (sizeof *j->all + sizeof *j->places));
    DPCR_TRY(dpcri_agree(
        comm,
        j->all ? DPCR_OK
               : dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %lld ranks", function, (long long)comm->ranks),
        error));
    j->places = (int64_t *)(j->all + comm->ranks);
    DPCR_TRY(dpcri_gather_all(comm, &mine, sizeof mine, j->all, error));
    for (int64_t r = 0; r < comm->ranks; r++) {
        const hello *h = &j->all[r], *h0 = &j->all[0];
        if (h->batch != h0->batch || h->width != h0->width || h->block != h0->block || h->structure != h0->structure ||
            h->dtype != h0->dtype || h->transposed != h0->transposed || h->scan != h0->scan)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                "%s: rank %lld has %s %s of width %lld, batch %lld, rank 0 %s %s of width %lld, batch "
                                "%lld; wanted the same, in the same direction and by the same scan",
                                function, (long long)r, dpcr_structure_name((dpcr_structure)h->structure),
                                dpcr_dtype_name((dpcr_dtype)h->dtype), (long long)h->width, (long long)h->batch,
                                dpcr_structure_name((dpcr_structure)h0->structure),
                                dpcr_dtype_name((dpcr_dtype)h0->dtype), (long long)h0->width, (long long)h0->batch));
        if (!dpcri_add(j->length, h->length, &j->length))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the ranks' lengths together do not fit", function));
        if (r < comm->rank) j->first += h->length;
    }
    const bool reversed = s->transposed != 0;
    j->position = reversed ? comm->ranks - 1 - comm->rank : comm->rank;
    j->before = reversed ? j->length - j->first - s->length : j->first;
done:
    return status;
}

// The place of a rank in the recurrence's order, and back.
static int64_t rank_at(const job *j, int64_t position) {
    return j->shape.transposed ? j->carried.comm.ranks - 1 - position : position;
}

// Whether something is there that later ranks need: steps, or the initial state.
static bool is_there(const job *j, int64_t position) {
    const hello *h = &j->all[rank_at(j, position)];
    return h->length > 0 || (position == 0 && h->has_z0);
}

static int64_t there(const job *j) {
    int64_t count = 0;
    for (int64_t p = 0; p < j->carried.comm.ranks; p++) count += is_there(j, p);
    return count;
}

static bool is_first(const job *j, int64_t position) {
    for (int64_t p = 0; p < position; p++)
        if (is_there(j, p)) return false;
    return true;
}

// Nobody asks what goes out of it; not of one before ranks without steps, who tell their callers.
static bool is_last(const job *j, int64_t position) { return position + 1 == j->carried.comm.ranks; }

// Whether the rank there makes a summary of its range: not the first, which runs at once; the last only where others
// make theirs meanwhile.
static bool reduces_at(const job *j, int64_t position) {
    return j->all[rank_at(j, position)].length > 0 && !is_first(j, position) && (!is_last(j, position) || there(j) > 2);
}
static bool reduces(const job *j) { return reduces_at(j, j->position); }

// ---- memory ----

static int64_t default_chunk(int64_t length) {
    int64_t root = 16;
    while (root < 1024 && root * root < length) root *= 2;
    return root | 1;
}

static size_t state_bytes(const job *j) { return (size_t)state_numbers(j) * element(j); }
static size_t parcel_bytes(const job *j) { return state_bytes(j) + (size_t)j->shape.batch; }

static void carve(job *j, dpcri_arena *arena) {
    dpcri_range *r = &j->range;
    const size_t size = element(j);
    j->mine = dpcri_arena_take(arena, (int64_t)j->summary, 1);
    j->prefix = dpcri_arena_take(arena, (int64_t)j->summary, 1);
    j->scratch = dpcri_arena_take(arena, (int64_t)j->summary, 1);
    j->product = dpcri_arena_take(arena, r->sum_rows * j->values, size);
    j->parcel = dpcri_arena_take(arena, (int64_t)parcel_bytes(j), 1);
    j->moved = dpcri_arena_take(arena, j->shape.batch, 1);
    if (reduces(j)) {
        j->asked = dpcri_arena_take(arena, state_numbers(j), size);
        dpcri_range_carve(r, arena);
    } else {
        j->plan_space = dpcri_arena_take(arena, (int64_t)dpcr_chain_plan_workspace(j->plan), 1);
    }
}

static dpcr_status prepare(job *j, dpcr_error *error) {
    enum { HEAD = 64 };
    dpcr_status status = DPCR_OK;
    dpcri_linear chain = dpcri_plan_linear(j->plan, &j->a, j->shape.transposed);
    chain.b = j->b.data, chain.b_step = j->b.step, chain.b_row = j->b.row;
    chain.z = j->z.data, chain.z_step = j->z.step, chain.z_row = j->z.row;
    chain.lost = &j->lost;
    int64_t chunk = j->options.chunk ? j->options.chunk : default_chunk(j->shape.length);
    if (j->shape.length > 0 && chunk > j->shape.length) chunk = j->shape.length;
    const double applications = (double)j->shape.length * (double)j->shape.batch,
                 each = reduces(j) ? (double)(j->shape.transition.rows + 2) : 1;  // a composition is worth w of them
    chain.watch = dpcri_linear_watch(&j->watch, j->context, &j->shape.transition, applications * each);
    j->range = (dpcri_range){.flow = dpcri_flow_of(j->context, &chain), .sum_rows = 1};
    j->range.chunks = dpcri_chunks_of(&j->range.flow, chunk);
    for (int64_t r = 0; r < j->carried.comm.ranks; r++)
        if (!j->all[r].shared_rows) j->range.sum_rows = j->shape.batch;
    int64_t sums = 0, bytes = 0;
    const bool fits = dpcri_mul(j->range.sum_rows, j->values, &sums) && dpcri_mul(sums, (int64_t)element(j), &sums) &&
                      dpcri_mul(state_numbers(j), (int64_t)element(j), &bytes) && sums < INT64_MAX / 4 &&
                      dpcri_add(bytes, (sums + 63) / 64 * 64 + HEAD, &bytes);
    j->sum_at = HEAD;
    j->end_at = HEAD + ((size_t)sums + 63) / 64 * 64;
    j->summary = fits ? (size_t)bytes : 0;
    dpcri_arena arena = {0};
    carve(j, &arena);
    if (!fits || arena.overflow)
        status = dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: the summaries do not fit the address space", function);
    if (status == DPCR_OK && !(j->pieces = dpcri_alloc(j->context, arena.used)))
        status = dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %zu bytes", function, arena.used);
    DPCR_TRY(dpcri_agree(&j->carried.comm, status, error));
    j->report.workspace_bytes = arena.used;
    j->report.summary_bytes = j->summary;
    arena = (dpcri_arena){.base = j->pieces, .size = arena.used};
    memset(j->pieces, 0, 3 * j->summary < arena.size ? 3 * j->summary : arena.size);
    carve(j, &arena);
    memset(j->moved, 0, (size_t)j->shape.batch);
done:
    return status;
}

// ---- summaries ----

static int64_t *present(void *summary) { return summary; }
static void *sum_of(const job *j, void *summary) { return (char *)summary + j->sum_at; }
static void *end_of(const job *j, void *summary) { return (char *)summary + j->end_at; }

// (M, v) of right := that of left, then right.
static void combine(void *user, const void *left, void *right) {
    const job *j = user;
    const dpcri_flow *f = &j->range.flow;
    void *before = (void *)(uintptr_t)left;  // read only
    if (!*present(before)) return;
    if (!*present(right)) {
        memcpy(right, left, j->summary);
        return;
    }
    const int64_t rows = j->range.sum_rows, row = rows > 1 ? j->values : 0;
    dpcri_span apply = dpcri_flow_span(f, 1, f->rows);
    apply.a = sum_of(j, right);
    apply.a_row = row;
    apply.x = end_of(j, before);
    apply.x_row = apply.r_row = apply.y_row = f->w;
    apply.r = apply.y = end_of(j, right);
    dpcri_flow_apply(f, &apply);
    if (j->values == 0) return;
    dpcri_span product = dpcri_flow_span(f, 1, rows);
    product.a = sum_of(j, right);
    product.x = sum_of(j, before);
    product.y = j->product;
    product.a_row = product.x_row = product.y_row = j->values;
    dpcri_flow_compose(f, product);
    memcpy(sum_of(j, right), j->product, (size_t)(rows * j->values) * f->size);
}

static void copy_state(const job *j, const void *from, int64_t from_row, void *to, int64_t to_row) {
    const size_t bytes = (size_t)j->shape.transition.rows * element(j);
    for (int64_t row = 0; to && row < j->shape.batch; row++)
        memcpy((char *)to + (size_t)(row * to_row) * element(j),
               (const char *)from + (size_t)(row * from_row) * element(j), bytes);
}

// ---- the states of a rank that goes through its range once, from g (NULL: nothing comes in) ----

static dpcr_array array_of(const job *j, const dpcri_view *view, int64_t values) {
    dpcr_array array =
        dpcr_array_make(view->data, j->shape.dtype, 3, (const int64_t[]){j->shape.length, j->shape.batch, values});
    array.strides[0] = view->step;
    array.strides[1] = view->row;
    return array;
}

// Transposed: b of the last step, to which g is added, goes to z with the rest of b.
static void put_first(job *j, const void *g) {
    const dpcri_flow *f = &j->range.flow;
    dpcri_span span = dpcri_flow_span(f, f->n, f->rows);
    span.r = f->b, span.r_step = f->b_step, span.r_row = f->b_row;
    span.y = f->z, span.y_step = f->z_step, span.y_row = f->z_row;
    if (j->b.data != j->z.data) dpcri_flow_copy(f, &span);
    span.n = 1;
    span.x = g, span.x_row = f->w;
    span.r = f->z, span.r_row = f->z_row;
    f->kernels->table[DPCRI_APPLY][DPCR_IDENTITY](&span);
}

// By the loop, what put_first put there.
static void run_loop(job *j) {
    const int64_t steps = j->range.flow.n - 1;  // the first is b of its step
    dpcri_flow f = j->range.flow;
    f.b = f.z, f.b_step = f.z_step, f.b_row = f.z_row;
    for (int64_t row = 0; row < f.rows; row++) dpcri_flow_loop(&f, 0, f.n, row, NULL);
    j->report.applications += f.rows * steps;
    j->report.depth += steps;
    j->in_order = j->before;
}

static dpcr_status run_once(job *j, const void *g, dpcr_error *error) {
    const bool reversed = j->shape.transposed != 0;
    const dpcri_view start = {.data = (void *)(uintptr_t)g, .row = j->shape.transition.rows};
    const dpcr_array a = array_of(j, &j->a, j->values), z = array_of(j, &j->z, j->shape.transition.rows);
    const dpcr_array b = g && reversed ? z : array_of(j, &j->b, j->shape.transition.rows);
    const dpcr_array z0 =
        dpcr_array_make(start.data, j->shape.dtype, 2, (const int64_t[]){j->shape.batch, j->shape.transition.rows});
    dpcr_chain_report report = {.size = sizeof report};
    bool lost = false;
    if (g && reversed) put_first(j, g);
    const dpcr_status status = dpcri_plan_execute(j->plan, &a, &b, g && !reversed ? &z0 : NULL, &z, j->plan_space,
                                                  dpcr_chain_plan_workspace(j->plan), &report, &lost, error);
    if (status != DPCR_OK) return status;
    if (lost && j->b.data != j->z.data) {  // in place for put_first's sake alone
        put_first(j, g);
        run_loop(j);
        return dpcri_plan_finished(j->range.flow.watch, function, error);
    }
    j->lost = j->lost || lost;  // the others, who wait, get on with what there is, to where all hear of it
    j->report.compositions += report.compositions;
    j->report.applications += report.applications;
    j->report.depth += report.depth;
    if (report.finished_from < j->shape.length) j->in_order = j->before + report.finished_from;
    return DPCR_OK;
}

// ---- the phases ----

// What comes in before anything is known: the initial state of rank 0.
static const void *given_start(job *j) {
    if (!j->has_z0 || j->position != 0) return NULL;
    copy_state(j, j->z0.data, j->z0.row, end_of(j, j->mine), j->shape.transition.rows);
    *present(j->mine) = 1;
    return end_of(j, j->mine);
}

static dpcr_status reduce(job *j, dpcr_error *error) {
    const void *start = given_start(j);
    if (j->shape.length == 0 || state_numbers(j) == 0) return DPCR_OK;
    if (reduces(j)) {
        j->report.depth = 2 * j->range.chunks.size + 2 * j->range.chunks.count;
        dpcri_range_reduce(&j->range, sum_of(j, j->mine), end_of(j, j->mine));
        *present(j->mine) = 1;
        return dpcri_plan_finished(j->range.flow.watch, function, error);
    }
    if (!is_first(j, j->position)) return DPCR_OK;  // the last one of two
    const dpcr_status status = run_once(j, start, error);
    if (status != DPCR_OK) return status;
    dpcri_range_out(&j->range.flow, end_of(j, j->mine));
    *present(j->mine) = 1;
    return DPCR_OK;
}

// *g: what comes into the range, NULL: nothing.
static dpcr_status scan(job *j, const void **g, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_transport *by = j->carried.by;
    const int reversed = j->shape.transposed != 0;
    bool any = j->position > 0;
    void *prefix = j->prefix;
    *g = NULL;
    if (j->options.scan == DPCR_SCAN_TRANSPORT) {
        DPCR_TRY(by->exscan(by->user, reversed, j->mine, j->summary, combine, j, j->carried.comm.deadline, error));
        prefix = j->mine;
    } else {
        DPCR_TRY(dpcri_exscan(&j->carried.comm, reversed, j->mine, j->prefix, j->scratch, j->summary, combine, j, &any,
                              error));
    }
    if (any && *present(prefix)) *g = end_of(j, prefix);
done:
    return status;
}

static dpcr_status apply(job *j, const void *g, dpcr_error *error) {
    const dpcri_flow *f = &j->range.flow;
    if (state_numbers(j) == 0) return DPCR_OK;
    if (g) copy_state(j, g, f->w, j->in.data, j->in.row);
    if (j->shape.length == 0) return DPCR_OK;
    if (!reduces(j)) return is_first(j, j->position) ? DPCR_OK : run_once(j, g, error);
    dpcri_range_apply(&j->range, g);
    if (j->range.in_order < j->shape.length) j->in_order = j->before + j->range.in_order;
    return dpcri_plan_finished(j->range.flow.watch, function, error);
}

// Of nothing, zeros go in and out.
static void clear(const job *j, const dpcri_view *view) {
    for (int64_t row = 0; view->data && row < j->shape.batch; row++)
        memset((char *)view->data + (size_t)(row * view->row) * element(j), 0,
               (size_t)j->shape.transition.rows * element(j));
}

// What goes out of the range, whose states are there, as [B][w]; NULL: nothing, not even an initial state.
static const void *out_of(job *j, const void *g) {
    if (j->shape.length > 0) {
        dpcri_range_out(&j->range.flow, j->scratch);
        return j->scratch;
    }
    if (!j->has_z0) return g;
    copy_state(j, j->z0.data, j->z0.row, j->scratch, j->shape.transition.rows);
    return j->scratch;
}

static void take_out(job *j, const void *g) {
    if (!j->out.data || state_numbers(j) == 0) return;
    const void *out = out_of(j, g);
    if (out)
        copy_state(j, out, j->shape.transition.rows, j->out.data, j->out.row);
    else
        clear(j, &j->out);
}

// ---- products that leave the finite numbers ----

static bool is_finite(const job *j, const void *g, int64_t row) {
    const dpcri_flow *f = &j->range.flow;
    return dpcri_flow_finite(f, dpcri_at(f, g, row * f->w), f->w);
}

// Stopping is no failure for those who wait: they get on to where all hear of it.
static dpcr_status hear(job *j, dpcr_status status) {
    if (status != DPCR_ERROR_CANCELLED) return status;
    j->stopped = true;
    return DPCR_OK;
}

static dpcr_status fail_stopped(const job *j, int64_t rank, dpcr_error *error) {
    if (j->stopped) return dpcri_fail_stopped(error, function);
    return dpcri_fail(error, DPCR_ERROR_CANCELLED, "rank %lld: %s: stopped by its caller's cancel function",
                      (long long)rank, function);
}

static dpcr_status fail_lost(int64_t rank, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "rank %lld: %s: products of this chain's transitions lose what its states keep, and z has taken "
                      "b's place; wanted an array of its own",
                      (long long)rank, function);
}

// The first position into which no finite state comes by the scan: summaries' products make no number of a state where
// the loop may have one. The number of ranks: there is none.
static dpcr_status find_broken(job *j, const void *g, int64_t *broken, dpcr_error *error) {
    dpcr_status status;
    const int64_t ranks = j->carried.comm.ranks;
    int64_t mine = ranks, *const all = j->places;
    for (int64_t row = 0; g && state_numbers(j) > 0 && row < j->shape.batch; row++)
        if (!is_finite(j, g, row)) mine = j->position;
    if (j->stopped) mine = -1;
    *broken = ranks;
    DPCR_TRY(dpcri_gather_all(&j->carried.comm, &mine, sizeof mine, all, error));
    for (int64_t r = 0; r < ranks; r++) {
        if (all[r] < 0) DPCR_TRY(fail_stopped(j, r, error));
        *broken = all[r] < *broken ? all[r] : *broken;
    }
done:
    return status;
}

// From there on the ranks run in order: what really goes out of one comes into those sequences of the next of which the
// scan gave no finite state, or another one than goes out. again: their states stand already, and are run once more.
static dpcr_status take_start(job *j, const void *g, bool again, dpcr_error *error) {
    dpcr_status status;
    const size_t bytes = (size_t)j->shape.transition.rows * element(j);
    const char *const came = j->parcel;
    DPCR_TRY(dpcri_receive(&j->carried.comm, rank_at(j, j->position - 1), DPCRI_TAG_STATE, j->parcel, parcel_bytes(j),
                           error));
    for (int64_t row = 0; g && row < j->shape.batch; row++) {
        if (!came[state_bytes(j) + (size_t)row] && is_finite(j, g, row)) continue;
        void *const to = (char *)(uintptr_t)g + (size_t)row * bytes;
        memcpy(to, came + (size_t)row * bytes, bytes);
        j->moved[row] = 1;
        if (again && reduces(j) && j->b.data == j->z.data) j->lost = true;
        if (again && reduces(j) && !j->lost) dpcri_range_again(&j->range, row, to);
    }
done:
    return status;
}

static dpcr_status give_end(job *j, const void *g, dpcr_error *error) {
    const void *const out = out_of(j, g);
    char *const parcel = j->parcel;
    memset(parcel, 0, state_bytes(j));
    if (out) memcpy(parcel, out, state_bytes(j));
    memcpy(parcel + state_bytes(j), j->moved, (size_t)j->shape.batch);
    return dpcri_send(&j->carried.comm, rank_at(j, j->position + 1), DPCRI_TAG_STATE, parcel, parcel_bytes(j), error);
}

// ---- products that lose what the states keep ----

// Whether the rank at a position, which made a summary, is told what the scan gave the one after it.
static bool is_told(const job *j, int64_t position, int64_t broken) {
    return position >= 0 && position + 1 < broken && !is_last(j, position) && state_numbers(j) > 0 &&
           reduces_at(j, position);
}

static dpcr_status tell_starts(job *j, const void *g, int64_t broken, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const size_t bytes = state_bytes(j);
    if (is_told(j, j->position - 1, broken))
        DPCR_TRY(dpcri_send(&j->carried.comm, rank_at(j, j->position - 1), DPCRI_TAG_START, g, bytes, error));
    if (is_told(j, j->position, broken))
        DPCR_TRY(dpcri_receive(&j->carried.comm, rank_at(j, j->position + 1), DPCRI_TAG_START, j->asked, bytes, error));
done:
    return status;
}

// Whether what the next rank started a sequence from is near enough to what goes out of this one for what it is off by
// not to matter where it grows (joins.h).
static bool holds(const job *j, const void *out, int64_t row) {
    const dpcri_flow *f = &j->range.flow;
    void *const error = j->range.error;
    if (!dpcri_carries(f)) return true;
    dpcri_difference(f, dpcri_at(f, out, row * f->w), dpcri_at(f, j->asked, row * f->w), error);
    return dpcri_carried_holds(f, dpcri_at(f, j->asked, row * f->w), error, 1, 1, DPCRI_CARRIED(f->size));
}

// Whether what goes out of the range, whose states stand, is what the next rank started from; else j->moved says which.
static bool joins(job *j, const void *g) {
    const dpcri_flow *f = &j->range.flow;
    const void *const out = out_of(j, g);
    bool all = true;
    for (int64_t row = 0; row < j->shape.batch; row++) {
        const dpcri_joint joint = {.chunk = f->n,
                                   .count = 1,
                                   .row = row,
                                   .end = {dpcri_at(f, out, row * f->w), 0, 1},
                                   .next = {dpcri_at(f, j->asked, row * f->w), 0, 1},
                                   .goes_out = f->transposed};
        if (dpcri_joins(f, &joint, 0) && holds(j, out, row)) continue;
        j->moved[row] = 1;
        all = false;
    }
    return all;
}

// The first position that started from another state than goes out of the one before it. The number of ranks: none did.
static dpcr_status find_apart(job *j, const void *g, int64_t broken, int64_t *apart, dpcr_error *error) {
    dpcr_status status;
    const int64_t ranks = j->carried.comm.ranks;
    int64_t mine = is_told(j, j->position, broken) && !joins(j, g) ? j->position + 1 : ranks;
    *apart = ranks;
    DPCR_TRY(dpcri_gather_all(&j->carried.comm, &mine, sizeof mine, j->places, error));
    for (int64_t r = 0; r < ranks; r++) *apart = j->places[r] < *apart ? j->places[r] : *apart;
done:
    return status;
}

// ---- the states, from what came in, and what goes out of them ----

// The ranks from `from` on, one after the other. again: their states stand, but from other starts.
static dpcr_status run_ranks(job *j, const void *g, int64_t from, bool again, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const bool in_order = j->position >= from;
    if (in_order) DPCR_TRY(take_start(j, g, again, error));
    if (!again || in_order) {
        clear(j, &j->in);
        if (!again) DPCR_TRY(hear(j, apply(j, g, error)));
        if (again && g && state_numbers(j) > 0) copy_state(j, g, j->range.flow.w, j->in.data, j->in.row);
        take_out(j, g);
    }
    if (in_order) j->in_order = j->before;
    if (j->position + 1 >= from && !is_last(j, j->position)) DPCR_TRY(give_end(j, g, error));
done:
    return status;
}

static dpcr_status finish(job *j, const void *g, dpcr_error *error) {
    dpcr_status status;
    int64_t broken = 0, apart = 0;
    DPCR_TRY(find_broken(j, g, &broken, error));
    DPCR_TRY(tell_starts(j, g, broken, error));
    DPCR_TRY(run_ranks(j, g, broken, false, error));
    DPCR_TRY(find_apart(j, g, broken, &apart, error));
    if (apart < j->carried.comm.ranks) DPCR_TRY(run_ranks(j, g, apart, true, error));
done:
    return status;
}

// The counts of all ranks, from their lengths.
static dpcr_status count_all(job *j, dpcr_error *error) {
    dpcr_status status;
    enum { STOPPED = -1, LOST = -2 };
    typedef struct counts {
        int64_t compositions, applications, depth, in_order;
    } counts;
    dpcr_distributed_report *r = &j->report;
    const int64_t ranks = j->carried.comm.ranks;
    const counts mine = {r->compositions + j->range.compositions, r->applications + j->range.applications, r->depth,
                         j->stopped ? STOPPED
                         : j->lost  ? LOST
                                    : j->in_order};
    counts *all = (counts *)j->all;  // smaller than what lay there
    static_assert(sizeof(counts) <= sizeof(hello), "the counts take the place of the first words");
    DPCR_TRY(dpcri_gather_all(&j->carried.comm, &mine, sizeof mine, all, error));
    int64_t once = 0, rounds = 0;
    *r = (dpcr_distributed_report){
        .workspace_bytes = r->workspace_bytes, .summary_bytes = r->summary_bytes, .finished_from = j->length};
    for (int64_t p = 0; p < ranks; p++) {
        if (all[p].in_order == STOPPED) DPCR_TRY(fail_stopped(j, p, error));
        if (all[p].in_order == LOST) DPCR_TRY(fail_lost(p, error));
        r->compositions += all[p].compositions;
        r->applications += all[p].applications;
        once = once > all[p].depth ? once : all[p].depth;
        if (all[p].in_order < r->finished_from) r->finished_from = all[p].in_order;
    }
    while ((int64_t)1 << rounds < ranks) rounds++;
    r->depth = once + rounds;
done:
    return status;
}

dpcr_status dpcr_chain_distributed(dpcr_context *context, const dpcr_chain_shape *shape,
                                   const dpcr_distributed_options *options, const dpcr_array *a, const dpcr_array *b,
                                   const dpcr_array *z0, const dpcr_array *z, const dpcr_array *in,
                                   const dpcr_array *out, dpcr_distributed_report *report, dpcr_error *error) {
    dpcr_status status;
    if (!options || options->size < offsetof(dpcr_distributed_options, scan))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: options %s, wanted sizeof(dpcr_distributed_options) and a transport", function,
                          options ? "have another size" : "is NULL");
    const double start = dpcri_seconds();
    double reduced = 0, scanned = 0;
    job j = {.context = context};
    const void *g = NULL;
    // Nobody else can be told of a transport that is none.
    const double deadline = options->size >= sizeof *options ? options->deadline : 0;
    status = dpcri_carry(&j.carried, options->transport, deadline, function, error);
    if (status != DPCR_OK) return status;
    status = check(&j, shape, options, a, b, z0, z, in, out, report, error);
    DPCR_TRY(dpcri_agree(&j.carried.comm, status, error));
    DPCR_TRY(meet(&j, error));
    DPCR_TRY(prepare(&j, error));
    j.in_order = j.length;
    const double began = dpcri_seconds();
    DPCR_TRY(hear(&j, reduce(&j, error)));
    reduced = dpcri_seconds();
    DPCR_TRY(scan(&j, &g, error));
    scanned = dpcri_seconds();
    DPCR_TRY(finish(&j, g, error));
    const double ended = dpcri_seconds();
    const int64_t length = j.length, first = j.first;
    DPCR_TRY(count_all(&j, error));
    if (report) {
        dpcr_distributed_report told = j.report;
        told.length = length, told.first = first;
        told.seconds = ended - start;
        told.seconds_reduce = reduced - began;
        told.seconds_scan = scanned - reduced;
        told.seconds_apply = ended - scanned;
        dpcri_copy_out(report, &told, sizeof told);
    }
done:
    dpcri_free(context, j.pieces);
    dpcri_free(context, j.all);
    dpcr_chain_plan_destroy(j.plan);
    return status;
}
