// SPDX-License-Identifier: MIT
// Linear attention: heads, and forward slabs of their columns, over the threads, the length walked by the kernels
// (src/kern/attention.h).
//
//   work     L B H 6 K V flops forward and 16 K V back, 4 of them for states again; of a chunk's own some 32 (K + V),
//            and 90 (K + V)
//   memory   q, k, v and o once; the states stay in the second cache
//
// Weighed: chunks of 64 steps with the triangular system's inverse (more work where steps meet, less exact); step by
// step (the state read twice and written once a step instead of once in 16); docs/design.md says more.
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

#include "chain/operands.h"
#include "chain/sums.h"
#include "deeppcr/attention.h"
#include "kern/attention.h"
#include "rt/watch.h"

enum {
    MOST_EXTENT = 1 << 20,  // of a state's rows and columns
    UNIT = 4,               // heads of a group whose gradients of q and k are summed one after another, by one thread
    PIECE = 256             // steps that one task puts together
};
static const double number_flops[2] = {7, 20};  // forward, back; a step's, a number's of a state

typedef struct job {
    const char *call;
    dpcr_context *context;
    dpcr_attention in;
    const dpcri_attention_kernels *kernels;
    int64_t batch, length, groups, heads, keys, values;
    int64_t element, group;  // bytes; heads a group
    int64_t slab, slabs;     // columns of a slab, slabs of a head; forward
    int64_t units;           // of UNIT heads, of a group; back
    int64_t tasks;
    char *kept;  // of the whole, or NULL
    // Forward.
    const dpcr_array *o, *last;
    // Back.
    const dpcr_array *go, *glast;
    dpcr_attention_gradients out;
    char *gq, *gk;             // [batch][groups][units][length][keys], where units are several
    char *scratch;             // [workers] of `bytes`
    size_t bytes, kept_bytes;  // of a worker; of a head's states where none are kept
    int64_t workers;
    _Atomic int64_t next;
    dpcri_watch *watch;
} job;

static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t windows_of(const job *j) {
    return ceiling(j->length, (int64_t)DPCRI_ATTENTION_CHUNK * DPCRI_ATTENTION_WINDOW);
}

// ---- arguments ----

static dpcr_status check(const job *j, const char *name, const dpcr_array *a, int32_t ndim, const int64_t *shape,
                         dpcri_role role, dpcr_error *error) {
    return dpcri_operand_check(j->call, j->in.q->dtype, name, a, ndim, shape, role, error);
}

// No product of extents and 64 bytes overflows; not beside an extent of 0 either, for there are products without it.
static bool sizes_fit(const job *j) {
    int64_t rows = j->heads, states = j->heads;
    const int64_t width = j->keys > j->values ? j->keys : j->values;
    return dpcri_mul(rows, j->batch ? j->batch : 1, &rows) && dpcri_mul(rows, j->length ? j->length : 1, &rows) &&
           dpcri_mul(rows, 64 * width, &rows) && dpcri_mul(states, j->batch ? j->batch : 1, &states) &&
           dpcri_mul(states, windows_of(j) + 1, &states) && dpcri_mul(states, 64 * (j->keys + 64), &states) &&
           dpcri_mul(states, j->values + 64, &states);
}

static dpcr_status take_extents(job *j, dpcr_error *error) {
    const dpcr_array *q = j->in.q, *v = j->in.v;
    char text[96], other[96];
    if (q->device.type != DPCR_HOST || q->ndim != 4 || (q->dtype != DPCR_F32 && q->dtype != DPCR_F64))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: q is %s, wanted [B][L][G][K] of float32 or float64 on the host", j->call,
                          dpcri_array_text(q, text, sizeof text));
    j->batch = q->shape[0], j->length = q->shape[1], j->groups = q->shape[2], j->keys = q->shape[3];
    j->heads = v->ndim == 4 ? v->shape[2] : 0, j->values = v->ndim == 4 ? v->shape[3] : 0;
    if (j->batch < 0 || j->length < 0 || j->groups < 1 || j->keys < 1 || j->keys > MOST_EXTENT || j->heads < 1 ||
        j->values < 1 || j->values > MOST_EXTENT || j->heads % j->groups != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: q is %s and v %s, wanted [B][L][G][K] and [B][L][H][V], of which G divides H, K and V "
                          "from 1 to %d",
                          j->call, dpcri_array_text(q, text, sizeof text), dpcri_array_text(v, other, sizeof other),
                          MOST_EXTENT);
    if (!sizes_fit(j))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "%s: B L H = %" PRId64 " x %" PRId64 " x %" PRId64 " rows of K = %" PRId64 " and V = %" PRId64
                          " numbers are more than memory can number",
                          j->call, j->batch, j->length, j->heads, j->keys, j->values);
    return DPCR_OK;
}

typedef struct extents {
    int64_t key[4], value[4], part[4], state[4];  // [B][L][G][K], [B][L][H][V], [B][L][H][K], [B][H][K][V]
} extents;

static extents extents_of(const job *j) {
    return (extents){.key = {j->batch, j->length, j->groups, j->keys},
                     .value = {j->batch, j->length, j->heads, j->values},
                     .part = {j->batch, j->length, j->heads, j->keys},
                     .state = {j->batch, j->heads, j->keys, j->values}};
}

static bool by_row(const job *j) { return j->in.g && j->in.g->ndim == 4; }

// What goes in.
static dpcr_status prepare(job *j, const dpcr_attention *in, dpcr_error *error) {
    dpcr_status status;
    if (!in || in->size < sizeof *in)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the arrays are NULL or of another size", j->call);
    j->in = *in;
    if (!in->q || !in->k || !in->v) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: q, k or v is NULL", j->call);
    DPCR_TRY(take_extents(j, error));
    const extents e = extents_of(j);
    DPCR_TRY(check(j, "q", in->q, 4, e.key, DPCRI_READ, error));
    DPCR_TRY(check(j, "k", in->k, 4, e.key, DPCRI_READ, error));
    DPCR_TRY(check(j, "v", in->v, 4, e.value, DPCRI_READ, error));
    DPCR_TRY(check(j, "g", in->g, by_row(j) ? 4 : 3, e.part, DPCRI_READ, error));
    DPCR_TRY(check(j, "beta", in->beta, 3, e.part, DPCRI_READ, error));
    DPCR_TRY(check(j, "s0", in->s0, 4, e.state, DPCRI_READ, error));
    if (!isfinite(in->scale) || (in->q->dtype == DPCR_F32 && !isfinite((float)in->scale)))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: scale is %g, wanted a finite number of the arrays' dtype",
                          j->call, in->scale);
    DPCR_TRY(dpcri_kept_check(j->call, j->kept, error));
    j->kernels = dpcri_attention_kernels_get(in->q->dtype);
    j->element = (int64_t)dpcr_dtype_size(in->q->dtype);
    j->group = j->heads / j->groups;
done:
    return status;
}

// Whole heads, or slabs of their columns where those would leave threads idle.
static void cut(job *j) {
    const int64_t unit = j->kernels->columns, units = ceiling(j->values, unit);
    const int64_t heads = j->batch * j->heads, few = 2 * dpcri_threads_at_hand(j->context);
    const int64_t slabs = heads >= few ? 1 : ceiling(few, heads);
    j->slab = ceiling(units, slabs < units ? slabs : units) * unit;
    j->slabs = ceiling(j->values, j->slab);
}

// ---- views ----

// From [B][L][H][.] or [B][L][H] those of a head, from a part on; from [B][H][.][.].
static dpcri_attention_array steps_of(const job *j, const dpcr_array *a, int64_t b, int64_t h, int64_t part) {
    if (!a || !a->data) return (dpcri_attention_array){0};
    const int64_t stride = a->ndim == 4 ? a->strides[3] : 0;
    const int64_t at = b * a->strides[0] + h * a->strides[2] + part * stride;
    return (dpcri_attention_array){(char *)a->data + at * j->element, a->strides[1], stride};
}

static dpcri_attention_array state_of(const job *j, const dpcr_array *a, int64_t b, int64_t h, int64_t column) {
    if (!a || !a->data) return (dpcri_attention_array){0};
    const int64_t at = b * a->strides[0] + h * a->strides[1] + column * a->strides[3];
    return (dpcri_attention_array){(char *)a->data + at * j->element, a->strides[2], a->strides[3]};
}

static size_t state_bytes(const job *j, int64_t columns) {
    return (size_t)(j->kernels->state_numbers(j->keys, columns) * j->element);
}

static size_t kept_of_head(const job *j) { return (size_t)windows_of(j) * state_bytes(j, j->values); }

// A head's columns [column, column + columns).
static dpcri_attention_run run_of(const job *j, int64_t b, int64_t h, int64_t column, int64_t columns, void *scratch) {
    const int64_t g = h / j->group;
    char *kept = j->kept ? j->kept + (size_t)(b * j->heads + h) * kept_of_head(j) : NULL;
    if (kept && column > 0) kept += state_bytes(j, column);
    return (dpcri_attention_run){.keys = j->keys,
                                 .values = columns,
                                 .length = j->length,
                                 .scale = j->in.scale,
                                 .by_row = by_row(j),
                                 .q = steps_of(j, j->in.q, b, g, 0),
                                 .k = steps_of(j, j->in.k, b, g, 0),
                                 .v = steps_of(j, j->in.v, b, h, column),
                                 .g = steps_of(j, j->in.g, b, h, 0),
                                 .beta = steps_of(j, j->in.beta, b, h, 0),
                                 .s0 = state_of(j, j->in.s0, b, h, column),
                                 .scratch = scratch,
                                 .kept = kept,
                                 .kept_step = j->kernels->state_numbers(j->keys, j->values)};
}

// ---- workers, who take tasks as they come ----

static double flops_of(const job *j, double steps, int64_t columns, bool back) {
    return steps * (double)j->keys * (double)columns * number_flops[back];
}

static int64_t windows_at_once(const job *j, int64_t columns, bool back) {
    if (!j->watch) return windows_of(j) + 1;
    const double steps = DPCRI_ATTENTION_CHUNK * DPCRI_ATTENTION_WINDOW;
    const int64_t most = dpcri_watch_steps(flops_of(j, steps, columns, back));
    return most > 1 ? most : 1;
}

static void walk_forward(const job *j, const dpcri_attention_run *run) {
    const int64_t windows = windows_of(j), each = windows_at_once(j, run->values, false);
    j->kernels->forward_begin(run);
    for (int64_t w = 0; w < windows && !dpcri_watch_stopped(j->watch); w += each)
        j->kernels->forward(run, w, w + each < windows ? w + each : windows);
    if (!dpcri_watch_stopped(j->watch)) j->kernels->forward_end(run);
}

static void walk_back(const job *j, const dpcri_attention_run *run) {
    const int64_t each = windows_at_once(j, run->values, true);
    j->kernels->adjoint_begin(run);
    for (int64_t w = windows_of(j); w > 0 && !dpcri_watch_stopped(j->watch); w -= each)
        j->kernels->adjoint(run, w > each ? w - each : 0, w);
    if (!dpcri_watch_stopped(j->watch)) j->kernels->adjoint_end(run);
}

static void forward_worker(void *argument, int64_t worker) {
    job *j = argument;
    int64_t index;
    while (!dpcri_watch_stopped(j->watch) && (index = atomic_fetch_add(&j->next, 1)) < j->tasks) {
        const int64_t slab = index % j->slabs, h = index / j->slabs % j->heads, b = index / j->slabs / j->heads;
        const int64_t column = slab * j->slab, left = j->values - column;
        dpcri_attention_run run =
            run_of(j, b, h, column, left < j->slab ? left : j->slab, j->scratch + (size_t)worker * j->bytes);
        run.o = steps_of(j, j->o, b, h, column);
        run.last = state_of(j, j->last, b, h, column);
        walk_forward(j, &run);
    }
}

// [length][keys] of a unit: where the gradients go, or a sum of its heads' alone.
static dpcri_attention_array unit_of(const job *j, const dpcr_array *to, char *sums, int64_t b, int64_t g,
                                     int64_t index) {
    if (!to || !to->data || j->units == 1) return steps_of(j, to, b, g, 0);
    return (dpcri_attention_array){sums + index * j->length * j->keys * j->element, j->keys, 1};
}

// A unit's heads one after another, which add to the gradients of its q and k.
static void back_worker(void *argument, int64_t worker) {
    job *j = argument;
    int64_t index;
    while (!dpcri_watch_stopped(j->watch) && (index = atomic_fetch_add(&j->next, 1)) < j->tasks) {
        const int64_t unit = index % j->units, g = index / j->units % j->groups, b = index / j->units / j->groups;
        const int64_t first = g * j->group + unit * UNIT, left = (g + 1) * j->group - first;
        char *scratch = j->scratch + (size_t)worker * j->bytes;
        for (int64_t h = first; h < first + (left < UNIT ? left : UNIT); h++) {
            dpcri_attention_run run = run_of(j, b, h, 0, j->values, scratch + j->kept_bytes);
            if (!run.kept) {
                run.kept = scratch;
                walk_forward(j, &run);
            }
            run.adds = h > first;
            run.go = steps_of(j, j->go, b, h, 0);
            run.glast = state_of(j, j->glast, b, h, 0);
            run.gq = unit_of(j, j->out.q, j->gq, b, g, index);
            run.gk = unit_of(j, j->out.k, j->gk, b, g, index);
            run.gv = steps_of(j, j->out.v, b, h, 0);
            run.gg = steps_of(j, j->out.g, b, h, 0);
            run.gbeta = steps_of(j, j->out.beta, b, h, 0);
            run.gs0 = state_of(j, j->out.s0, b, h, 0);
            walk_back(j, &run);
        }
    }
}

// Some steps' gradients of a group's q and k: the sums over its units.
static void put_together(void *argument, int64_t index) {
    const job *j = argument;
    const int64_t pieces = ceiling(j->length, PIECE), from = index % pieces * PIECE, group = index / pieces;
    const int64_t left = j->length - from, all = j->length * j->keys;
    const dpcr_array *const out[2] = {j->out.q, j->out.k};
    char *const made[2] = {j->gq, j->gk};
    for (int k = 0; k < 2; k++) {
        const dpcri_attention_array to = steps_of(j, out[k], group / j->groups, group % j->groups, 0);
        const dpcri_sum_axis axes[] = {
            {left < PIECE ? left : PIECE, j->keys, to.step}, {j->keys, 1, to.part}, {j->units, all, 0}};
        if (!to.data) continue;
        dpcri_sum_over(j->in.q->dtype, made[k] + (group * j->units * all + from * j->keys) * j->element,
                       (char *)to.data + from * to.step * j->element, axes, 3);
    }
}

// ---- calls ----

// Sums of units, and the workers' scratch.
static size_t carve(job *j, dpcri_arena *arena) {
    const int64_t sums = j->units > 1 ? j->tasks * j->length * j->keys : 0;
    if (j->out.q) j->gq = dpcri_arena_take(arena, sums, (size_t)j->element);
    if (j->out.k) j->gk = dpcri_arena_take(arena, sums, (size_t)j->element);
    j->scratch = dpcri_arena_take(arena, j->workers, j->bytes);
    return arena->used;
}

// Runs all tasks, in scratch of `bytes` a worker.
static dpcr_status run(job *j, bool back, dpcr_error *error) {
    dpcri_watch watch;
    const int64_t threads = dpcri_threads_at_hand(j->context);
    j->workers = j->tasks < threads ? j->tasks : threads;
    dpcri_arena count = {0};
    const size_t bytes = carve(j, &count);
    dpcri_arena arena = {.base = count.overflow || !j->bytes ? NULL : dpcri_alloc(j->context, bytes), .size = bytes};
    if (!arena.base)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for sums and states (%zu bytes)", j->call, bytes);
    void *memory = arena.base;
    carve(j, &arena);
    const double steps = j->length > 0 ? (double)j->length : 1;  // of none there are states to copy
    const double flops = flops_of(j, steps, j->values, back) * (double)(j->batch * j->heads);
    j->watch = dpcri_watch_begin(&watch, j->context, flops);
    atomic_init(&j->next, 0);
    dpcri_parallel(j->context, j->workers, back ? back_worker : forward_worker, j);
    if (j->units > 1 && !dpcri_watch_stopped(j->watch))
        dpcri_parallel(j->context, j->batch * j->groups * ceiling(j->length, PIECE), put_together, j);
    dpcri_free(j->context, memory);
    return dpcri_watch_stopped(j->watch) ? dpcri_fail_stopped(error, j->call) : DPCR_OK;
}

size_t dpcr_attention_kept_bytes(const dpcr_attention *in) {
    job j = {.call = "attention_kept_bytes"};
    if (prepare(&j, in, NULL) != DPCR_OK) return 0;
    return (size_t)(j.batch * j.heads) * kept_of_head(&j);
}

// Every number of b in the place of a's; the stride of an extent of 1 says nothing.
static bool same_places(const dpcr_array *a, const dpcr_array *b) {
    bool same = a->data == b->data;
    for (int i = 0; i < a->ndim; i++) same = same && (a->shape[i] <= 1 || a->strides[i] == b->strides[i]);
    return same;
}

dpcr_status dpcr_attention_scan(dpcr_context *context, const dpcr_attention *in, const dpcr_array *o,
                                const dpcr_array *last, void *kept, dpcr_error *error) {
    job j = {.call = "attention_scan", .context = context, .o = o, .last = last, .kept = kept};
    dpcr_status status;
    if (!context || !o) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: context or o is NULL", j.call);
    DPCR_TRY(prepare(&j, in, error));
    const extents e = extents_of(&j);
    DPCR_TRY(check(&j, "o", o, 4, e.value, DPCRI_WRITTEN, error));
    DPCR_TRY(check(&j, "last", last, 4, e.state, DPCRI_WRITTEN, error));
    const bool goes_on = last && in->s0 && same_places(last, in->s0);  // which s0 may
    const dpcri_operand all[] = {{"o", o, DPCRI_WRITTEN},        {"last", last, DPCRI_WRITTEN},
                                 {"q", in->q, DPCRI_READ},       {"k", in->k, DPCRI_READ},
                                 {"v", in->v, DPCRI_READ},       {"g", in->g, DPCRI_READ},
                                 {"beta", in->beta, DPCRI_READ}, {"s0", goes_on ? NULL : in->s0, DPCRI_READ}};
    DPCR_TRY(dpcri_operands_apart(j.call, all, sizeof all / sizeof *all, error));
    if (j.batch == 0 || (j.length == 0 && !last)) return DPCR_OK;
    cut(&j);
    j.tasks = j.batch * j.heads * j.slabs;
    j.bytes = j.kernels->forward_bytes(j.keys, j.slab);
    status = run(&j, false, error);
done:
    return status;
}

static dpcr_status check_gradients(const job *j, dpcr_error *error) {
    dpcr_status status;
    const dpcr_attention_gradients *g = &j->out;
    const extents e = extents_of(j);
    DPCR_TRY(check(j, "go", j->go, 4, e.value, DPCRI_READ, error));
    DPCR_TRY(check(j, "glast", j->glast, 4, e.state, DPCRI_READ, error));
    DPCR_TRY(check(j, "the gradient of q", g->q, 4, e.key, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of k", g->k, 4, e.key, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of v", g->v, 4, e.value, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of g", g->g, by_row(j) ? 4 : 3, e.part, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of beta", g->beta, 3, e.part, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of s0", g->s0, 4, e.state, DPCRI_WRITTEN, error));
    if ((g->g && !j->in.g) || (g->beta && !j->in.beta))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a gradient of what is not there", j->call));
    const dpcr_attention *in = &j->in;
    const dpcri_operand all[] = {{"the gradient of q", g->q, DPCRI_WRITTEN},
                                 {"the gradient of k", g->k, DPCRI_WRITTEN},
                                 {"the gradient of v", g->v, DPCRI_WRITTEN},
                                 {"the gradient of g", g->g, DPCRI_WRITTEN},
                                 {"the gradient of beta", g->beta, DPCRI_WRITTEN},
                                 {"the gradient of s0", g->s0, DPCRI_WRITTEN},
                                 {"q", in->q, DPCRI_READ},
                                 {"k", in->k, DPCRI_READ},
                                 {"v", in->v, DPCRI_READ},
                                 {"g", in->g, DPCRI_READ},
                                 {"beta", in->beta, DPCRI_READ},
                                 {"s0", in->s0, DPCRI_READ},
                                 {"go", j->go, DPCRI_READ},
                                 {"glast", j->glast, DPCRI_READ}};
    DPCR_TRY(dpcri_operands_apart(j->call, all, sizeof all / sizeof *all, error));
done:
    return status;
}

dpcr_status dpcr_attention_adjoint(dpcr_context *context, const dpcr_attention *in, const dpcr_array *go,
                                   const dpcr_array *glast, const void *kept, const dpcr_attention_gradients *gradients,
                                   dpcr_error *error) {
    job j = {.call = "attention_adjoint", .context = context, .go = go, .glast = glast, .kept = (char *)kept};
    dpcr_status status;
    if (!context || !go || !gradients || gradients->size < sizeof *gradients)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: context, go or gradients is NULL, or of another size",
                          j.call);
    j.out = *gradients;
    DPCR_TRY(prepare(&j, in, error));
    DPCR_TRY(check_gradients(&j, error));
    if (j.batch == 0 || (j.length == 0 && !gradients->s0)) return DPCR_OK;
    j.units = ceiling(j.group, UNIT);
    j.tasks = j.batch * j.groups * j.units;
    j.kept_bytes = j.kept ? 0 : kept_of_head(&j);
    j.bytes = j.kernels->adjoint_bytes(j.keys, j.values);
    if (j.bytes) j.bytes += j.kept_bytes;
    status = run(&j, true, error);
done:
    return status;
}
