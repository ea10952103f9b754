// SPDX-License-Identifier: MIT
// The selective scan: slabs of channels over the threads, the length walked by the kernels (src/kern/selective.h).
//
//   work     L B D (20 N + ...) flops forward, 16 of them of e^x; 50 N back, of which 20 make the states again
//   memory   u, delta, z and y once, b and c once a slab, or a group; the states stay in the first two caches
//
// Weighed: the linear chain of width D N that it is (src/chain): its transitions and inputs take 2 L D N numbers, 32
// times what goes in and out at N = 16, and it waits for memory; chunks of the length side by side, whose products are
// e^(a sum t): twice the work, for who has fewer channels than lanes and threads.
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "chain/operands.h"
#include "chain/sums.h"
#include "deeppcr/selective.h"
#include "kern/selective.h"
#include "rt/watch.h"

enum {
    SLAB = 64,  // lanes; of shorter slabs so many are added up first
    PART = 256  // steps that one task puts together
};
static const double state_flops[2] = {20, 50};  // forward, back; a step's, a state's

// b or c. Where its groups are smaller than blocks they go by lane, in cells, which share a group and lie within a
// block.
typedef struct shared {
    const dpcr_array *in, *out;   // out: its gradient, or NULL
    int64_t groups, group, cell;  // channels of a group and, by lane, of a cell, else 0
    // Its gradient's parts: [slabs in all][length][states], or by lane, where strides of 0 or groups of several cells
    // want them summed, [batch][cells][states] of what is constant in time and [batch][cells][states][length] of
    // others.
    void *parts;
} shared;

typedef struct job {
    const char *call;
    dpcr_context *context;
    dpcr_selective in;
    const dpcri_selective_kernels *kernels;
    int64_t batch, channels, length, states;
    int64_t element;        // bytes
    shared shared[2];       // b and c
    int64_t width, span;    // channels of a block; of what is cut into slabs: a group that goes not by lane, or all
    int64_t blocks, slabs;  // of a slab, of a span
    bool keeps;
    char *kept;  // of the whole, or NULL
    // Forward.
    const dpcr_array *y, *last;
    // Back.
    const dpcr_array *gy, *glast;
    dpcr_selective_gradients out;
    char *ga, *gskip, *gbias;  // [batch][channels][states], [batch][channels]
    char *scratch;             // [workers] of `bytes`
    size_t bytes, kept_bytes;  // of a worker; of a slab's states where none are kept
    int64_t workers;
    _Atomic int64_t next;
    dpcri_watch *watch;
} job;

static int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t tiles_of(const job *j) { return ceiling(j->length, DPCRI_SELECTIVE_TILE); }
static int64_t spans_of(const job *j) { return j->channels / j->span; }
static int64_t blocks_of(const job *j) { return ceiling(j->span, j->width); }  // of a span
static int64_t slabs_in_all(const job *j) { return j->batch * spans_of(j) * j->slabs; }
static bool by_lane(const job *j) { return j->shared[0].cell > 0 || j->shared[1].cell > 0; }

// ---- arguments ----

enum { MOST_STATES = 1 << 20 };

static dpcr_status check(const job *j, const char *name, const dpcr_array *a, int32_t ndim, const int64_t *shape,
                         dpcri_role role, dpcr_error *error) {
    return dpcri_operand_check(j->call, j->in.u->dtype, name, a, ndim, shape, role, error);
}

// No product of extents and 64 bytes overflows; not beside an extent of 0 either, for there are products without it.
static bool sizes_fit(const job *j) {
    int64_t count = j->channels;
    for (int i = 0; i < 2; i++)
        if (j->shared[i].groups > count) count = j->shared[i].groups;
    return dpcri_mul(count, j->batch ? j->batch : 1, &count) && dpcri_mul(count, j->length ? j->length : 1, &count) &&
           dpcri_mul(count, 64 * j->states, &count);
}

static dpcr_status take_extents(job *j, dpcr_error *error) {
    const dpcr_array *u = j->in.u, *a = j->in.a, *b = j->in.b, *c = j->in.c;
    char text[96], other[96], third[96];
    if (u->device.type != DPCR_HOST || u->ndim != 3 || (u->dtype != DPCR_F32 && u->dtype != DPCR_F64))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: u is %s, wanted [B][D][L] of float32 or float64 on the host",
                          j->call, dpcri_array_text(u, text, sizeof text));
    j->batch = u->shape[0], j->channels = u->shape[1], j->length = u->shape[2];
    j->states = a->ndim == 2 ? a->shape[1] : 0;
    bool divides = true;
    for (int i = 0; i < 2; i++) {
        const dpcr_array *x = i ? c : b;
        const int64_t groups = x->ndim == 4 ? x->shape[1] : 0;
        divides = divides && groups > 0 && j->channels % groups == 0;
        j->shared[i] = (shared){.in = x, .groups = groups, .group = divides ? j->channels / groups : 0};
    }
    if (j->batch < 0 || j->channels < 0 || j->length < 0 || j->states < 1 || j->states > MOST_STATES || !divides)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: a is %s, b %s and c %s, wanted [D][N], N from 1 to %d, and [B][G][N][L], of which G "
                          "divides D = %" PRId64,
                          j->call, dpcri_array_text(a, text, sizeof text), dpcri_array_text(b, other, sizeof other),
                          dpcri_array_text(c, third, sizeof third), MOST_STATES, j->channels);
    if (!sizes_fit(j))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW,
                          "%s: B D L N = %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                          " numbers are more than memory can number",
                          j->call, j->batch, j->channels, j->length, j->states);
    return DPCR_OK;
}

static int64_t common(int64_t a, int64_t b) {  // the greatest divisor of both
    while (b > 0) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

// Blocks, by groups alone: of whole lanes within the smallest ones; or, where several of those fit, of as many, within
// the largest ones or, where several of these fit, of as many of them.
static void cut_blocks(job *j) {
    const int64_t lanes = j->kernels->lanes;
    const int64_t b = j->shared[0].group, c = j->shared[1].group, least = common(b, c), most = b > c ? b : c;
    j->width = lanes, j->span = least > 0 ? least : 1;
    if (j->channels == 0 || 2 * least > lanes || least == j->channels) return;
    const bool all = 2 * most <= lanes;
    j->width = all ? lanes / most * most : lanes / least * least;
    j->span = all ? j->channels : most;
    for (int i = 0; i < 2; i++) {
        const int64_t group = j->shared[i].group;
        if (all || group < most) j->shared[i].cell = most % group == 0 ? group : least;
    }
}

// Slabs are of several blocks, but where that is all of a span, has nothing to share or would leave threads idle.
static void cut_slabs(job *j) {
    const int64_t blocks = blocks_of(j), several = SLAB / j->kernels->lanes;
    const bool shares = j->shared[0].cell == 0 || j->shared[1].cell == 0;
    const bool few = j->batch * spans_of(j) * ceiling(blocks, several) < 2 * dpcri_threads_at_hand(j->context);
    j->blocks = blocks == 1 || !shares || few ? 1 : several;
    j->slabs = ceiling(blocks, j->blocks);
}

// What goes in, and its blocks.
static dpcr_status prepare(job *j, const dpcr_selective *in, dpcr_error *error) {
    dpcr_status status;
    if (!in || in->size < sizeof *in)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the arrays are NULL or of another size", j->call);
    j->in = *in;
    if (!in->u || !in->delta || !in->a || !in->b || !in->c)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: u, delta, a, b or c is NULL", j->call);
    DPCR_TRY(take_extents(j, error));
    const int64_t rows[3] = {j->batch, j->channels, j->length}, a[2] = {j->channels, j->states};
    const int64_t b[4] = {j->batch, j->shared[0].groups, j->states, j->length};
    const int64_t c[4] = {j->batch, j->shared[1].groups, j->states, j->length};
    const int64_t h[3] = {j->batch, j->channels, j->states};
    DPCR_TRY(check(j, "u", in->u, 3, rows, DPCRI_READ, error));
    DPCR_TRY(check(j, "delta", in->delta, 3, rows, DPCRI_READ, error));
    DPCR_TRY(check(j, "a", in->a, 2, a, DPCRI_READ, error));
    DPCR_TRY(check(j, "b", in->b, 4, b, DPCRI_READ, error));
    DPCR_TRY(check(j, "c", in->c, 4, c, DPCRI_READ, error));
    DPCR_TRY(check(j, "skip", in->skip, 1, a, DPCRI_READ, error));
    DPCR_TRY(check(j, "z", in->z, 3, rows, DPCRI_READ, error));
    DPCR_TRY(check(j, "delta_bias", in->delta_bias, 1, a, DPCRI_READ, error));
    DPCR_TRY(check(j, "h0", in->h0, 3, h, DPCRI_READ, error));
    // States that share a rate are made again as fast as they are read.
    j->keeps = in->a->strides[1] != 0;
    if (!j->keeps) j->kept = NULL;
    DPCR_TRY(dpcri_kept_check(j->call, j->kept, error));
    j->kernels = dpcri_selective_kernels_get(in->u->dtype);
    j->element = (int64_t)dpcr_dtype_size(in->u->dtype);
    cut_blocks(j);
done:
    return status;
}

// ---- views ----

static dpcri_selective_array view(const dpcr_array *a, int64_t element, int64_t first, int64_t second, int lane) {
    if (!a || !a->data) return (dpcri_selective_array){0};
    const int64_t at = first * a->strides[0] + (lane == 0 ? 0 : second * a->strides[1]);
    char *data = a->data;
    return (dpcri_selective_array){data + at * element, a->strides[lane],
                                   lane + 1 < a->ndim ? a->strides[lane + 1] : 0};
}

// [B][D][.] from channel d of entry b on; [D] or [D][N] from channel d on.
static dpcri_selective_array rows_of(const job *j, const dpcr_array *a, int64_t b, int64_t d) {
    return view(a, j->element, b, d, 1);
}
static dpcri_selective_array channels_of(const job *j, const dpcr_array *a, int64_t d) {
    return view(a, j->element, d, 0, 0);
}
// [B][G][N][L] from a group on. The stride of a single step says nothing.
static dpcri_selective_shared groups_of(const job *j, const dpcr_array *a, int64_t b, int64_t g) {
    if (!a || !a->data) return (dpcri_selective_shared){0};
    char *data = a->data;
    return (dpcri_selective_shared){.data = data + (b * a->strides[0] + g * a->strides[1]) * j->element,
                                    .group = a->strides[1],
                                    .state = a->strides[2],
                                    .step = j->length == 1 ? 1 : a->strides[3]};
}

static size_t kept_block(const job *j) { return (size_t)(tiles_of(j) * j->states * j->kernels->lanes * j->element); }

// A slab's place: its first channel and, of all blocks, its first one.
typedef struct slab_place {
    int64_t index, b, channel, block, channels;
} slab_place;

static slab_place place_of(const job *j, int64_t index) {
    const int64_t slab = index % j->slabs, span = index / j->slabs, spans = spans_of(j),
                  from = slab * j->blocks * j->width;
    const int64_t left = j->span - from, most = j->blocks * j->width;
    return (slab_place){.index = index,
                        .b = span / spans,
                        .channel = span % spans * j->span + from,
                        .block = span * blocks_of(j) + slab * j->blocks,
                        .channels = left < most ? left : most};
}

static dpcri_selective_shared read_of(const job *j, const shared *x, const slab_place *p) {
    dpcri_selective_shared a = groups_of(j, x->in, p->b, p->channel / x->group);
    if (x->cell > 0) a.every = x->group, a.ahead = p->channel % x->group;
    return a;
}

static dpcri_selective_run run_of(const job *j, const slab_place *p, char *scratch) {
    const int64_t d = p->channel;
    return (dpcri_selective_run){.channels = p->channels,
                                 .width = j->width,
                                 .states = j->states,
                                 .length = j->length,
                                 .softplus = j->in.softplus != 0,
                                 .by_lane = by_lane(j),
                                 .u = rows_of(j, j->in.u, p->b, d),
                                 .delta = rows_of(j, j->in.delta, p->b, d),
                                 .z = rows_of(j, j->in.z, p->b, d),
                                 .a = channels_of(j, j->in.a, d),
                                 .b = read_of(j, &j->shared[0], p),
                                 .c = read_of(j, &j->shared[1], p),
                                 .skip = channels_of(j, j->in.skip, d),
                                 .bias = channels_of(j, j->in.delta_bias, d),
                                 .h0 = rows_of(j, j->in.h0, p->b, d),
                                 .scratch = scratch,
                                 .kept = j->kept ? j->kept + (size_t)p->block * kept_block(j) : NULL};
}

// ---- workers, who take slabs as they come ----

static double flops_of(const job *j, double tiles, bool back) {
    return tiles * DPCRI_SELECTIVE_TILE * (double)j->states * state_flops[back];
}

static int64_t tiles_at_once(const job *j, bool back) {
    if (!j->watch) return tiles_of(j) + 1;
    const int64_t most = dpcri_watch_steps(flops_of(j, 1, back) * (double)(j->blocks * j->kernels->lanes));
    return most > 1 ? most : 1;
}

static void walk_forward(const job *j, const dpcri_selective_run *run) {
    const int64_t tiles = tiles_of(j), each = tiles_at_once(j, false);
    j->kernels->forward_begin(run);
    for (int64_t t = 0; t < tiles && !dpcri_watch_stopped(j->watch); t += each)
        j->kernels->forward(run, t, t + each < tiles ? t + each : tiles);
    j->kernels->forward_end(run);
}

static void walk_back(const job *j, const dpcri_selective_run *run) {
    const int64_t each = tiles_at_once(j, true);
    j->kernels->adjoint_begin(run);
    for (int64_t t = tiles_of(j); t > 0 && !dpcri_watch_stopped(j->watch); t -= each)
        j->kernels->adjoint(run, t > each ? t - each : 0, t);
    j->kernels->adjoint_end(run);
}

static void forward_worker(void *argument, int64_t worker) {
    job *j = argument;
    int64_t index;
    while ((index = atomic_fetch_add(&j->next, 1)) < slabs_in_all(j)) {
        const slab_place p = place_of(j, index);
        dpcri_selective_run run = run_of(j, &p, j->scratch + (size_t)worker * j->bytes);
        run.y = rows_of(j, j->y, p.b, p.channel);
        run.last = rows_of(j, j->last, p.b, p.channel);
        walk_forward(j, &run);
    }
}

static dpcri_selective_array piece(char *from, int64_t at, int64_t element, int64_t lane, int64_t step) {
    return (dpcri_selective_array){from ? from + at * element : NULL, lane, step};
}

// Where a gradient by lane has its sums over steps, and whether its cells are summed further.
static bool is_steady(const job *j, const shared *x) { return j->length != 1 && x->out->strides[3] == 0; }
static bool has_parts(const job *j, const shared *x) {
    return x->cell == 0 || x->cell != x->group || is_steady(j, x) || dpcri_shares_places(x->out);
}
static int64_t cell_numbers(const job *j, const shared *x) { return j->states * (is_steady(j, x) ? 1 : j->length); }

static dpcri_selective_shared written_of(const job *j, const shared *x, const slab_place *p) {
    if (!x->out || !x->out->data) return (dpcri_selective_shared){0};
    dpcri_selective_shared a = {.every = x->cell};
    if (x->cell == 0) {
        a.data = (char *)x->parts + p->index * j->length * j->states * j->element;
        a.state = 1, a.step = j->states;
    } else if (has_parts(j, x)) {
        const int64_t each = cell_numbers(j, x);
        a.data = (char *)x->parts + (p->b * j->channels + p->channel) / x->cell * each * j->element;
        a.group = each, a.state = each / j->states, a.step = is_steady(j, x) ? 0 : 1;
    } else {
        a = groups_of(j, x->out, p->b, p->channel / x->group);
        a.every = x->cell;
    }
    return a;
}

static void back_worker(void *argument, int64_t worker) {
    job *j = argument;
    int64_t index;
    const int64_t e = j->element, N = j->states;
    while ((index = atomic_fetch_add(&j->next, 1)) < slabs_in_all(j)) {
        const slab_place p = place_of(j, index);
        const int64_t channel = p.b * j->channels + p.channel;
        char *scratch = j->scratch + (size_t)worker * j->bytes;
        dpcri_selective_run run = run_of(j, &p, scratch + j->kept_bytes);
        if (!run.kept) {
            run.kept = scratch;
            walk_forward(j, &run);
        }
        run.gy = rows_of(j, j->gy, p.b, p.channel);
        run.glast = rows_of(j, j->glast, p.b, p.channel);
        run.gu = rows_of(j, j->out.u, p.b, p.channel);
        run.gdelta = rows_of(j, j->out.delta, p.b, p.channel);
        run.gz = rows_of(j, j->out.z, p.b, p.channel);
        run.gh0 = rows_of(j, j->out.h0, p.b, p.channel);
        run.ga = piece(j->ga, channel * N, e, N, 1);
        run.gskip = piece(j->gskip, channel, e, 1, 0);
        run.gbias = piece(j->gbias, channel, e, 1, 0);
        run.gb = written_of(j, &j->shared[0], &p);
        run.gc = written_of(j, &j->shared[1], &p);
        walk_back(j, &run);
    }
}

// ---- sums over slabs, and over the batch ----

// Over the slabs of a group's spans: those of SLAB lanes first, as a slab of that length adds up its blocks, so that
// bits do not tell how channels were cut; both are powers of two.
#define DEFINE_SUMS(T, name)                                                                                      \
    static void over_slabs_##name(const job *j, const shared *x, const dpcri_selective_shared *to, int64_t index, \
                                  int64_t from, int64_t end) {                                                    \
        const int64_t N = j->states, last = SLAB / j->kernels->lanes / j->blocks - 1, spans = x->group / j->span; \
        const T *parts = (const T *)x->parts;                                                                     \
        for (int64_t l = from; l < end; l++)                                                                      \
            for (int64_t n = 0; n < N; n++) {                                                                     \
                T sum = 0;                                                                                        \
                for (int64_t k = index * spans; k < (index + 1) * spans; k++) {                                   \
                    T part = 0;                                                                                   \
                    for (int64_t s = 0; s < j->slabs; s++) {                                                      \
                        part += parts[((k * j->slabs + s) * j->length + l) * N + n];                              \
                        if ((s & last) == last) sum += part, part = 0;                                            \
                    }                                                                                             \
                    sum += part;                                                                                  \
                }                                                                                                 \
                ((T *)to->data)[n * to->state + l * to->step] = sum;                                              \
            }                                                                                                     \
    }
DEFINE_SUMS(float, f32)
DEFINE_SUMS(double, f64)
#undef DEFINE_SUMS

typedef struct together {
    const job *job;
    const shared *shared;
} together;

// Of groups that go not by lane. What is summed further stays in the place of its first slab.
static void put_together(void *argument, int64_t index) {
    const job *j = ((const together *)argument)->job;
    const shared *x = ((const together *)argument)->shared;
    const int64_t parts = ceiling(j->length, PART), from = index % parts * PART, group = index / parts;
    const int64_t end = from + PART < j->length ? from + PART : j->length;
    dpcri_selective_shared to = groups_of(j, x->out, group / x->groups, group % x->groups);
    if (!to.data) return;
    if (dpcri_shares_places(x->out)) {
        to.data = (char *)x->parts + group * (x->group / j->span) * j->slabs * j->length * j->states * j->element;
        to.state = 1, to.step = j->states;
    }
    if (j->element == sizeof(float))
        over_slabs_f32(j, x, &to, group, from, end);
    else
        over_slabs_f64(j, x, &to, group, from, end);
}

// Cells of a group, and what an array's strides of 0 want summed.
static void sum_shared(const job *j, const shared *x) {
    if (!x->out || !x->out->data || !has_parts(j, x)) return;
    const bool none = j->channels == 0;
    const int64_t *to = x->out->strides, each = x->cell ? cell_numbers(j, x) : j->length * j->states;
    const int64_t group = x->cell ? x->group / x->cell : x->group / j->span * j->slabs;  // parts
    const int64_t state = x->cell ? each / j->states : 1, step = x->cell ? 1 : j->states;
    const dpcri_sum_axis axes[] = {{j->batch, x->groups * group * each, to[0]},
                                   {x->groups, group * each, to[1]},
                                   {x->cell || none ? group : 1, each, 0},
                                   {j->states, state, to[2]},
                                   {x->cell && is_steady(j, x) ? 1 : j->length, step, to[3]}};
    together t = {j, x};
    if (x->cell == 0 && !none)
        dpcri_parallel(j->context, j->batch * x->groups * ceiling(j->length, PART), put_together, &t);
    if (x->cell > 0 || none || dpcri_shares_places(x->out))
        dpcri_sum_over(x->out->dtype, x->parts, x->out->data, axes, 5);
}

static void sum_batch(const job *j, const dpcr_array *out, const char *made) {
    if (!out || !out->data) return;
    const int64_t each = out->ndim == 2 ? j->states : 1;
    const dpcri_sum_axis axes[] = {{j->batch, j->channels * each, 0},
                                   {j->channels, each, out->strides[0]},
                                   {each, 1, each > 1 ? out->strides[1] : 1}};
    dpcri_sum_over(out->dtype, made, out->data, axes, 3);
}

static void add_up(const job *j) {
    sum_shared(j, &j->shared[0]);
    sum_shared(j, &j->shared[1]);
    sum_batch(j, j->out.a, j->ga);
    sum_batch(j, j->out.skip, j->gskip);
    sum_batch(j, j->out.delta_bias, j->gbias);
}

// ---- calls ----

static int64_t workers_of(const job *j) {
    const int64_t threads = dpcri_threads_at_hand(j->context), tasks = slabs_in_all(j);
    return tasks < threads ? tasks : threads;
}

// Runs all slabs; `numbers` beside the workers' scratch come first.
static dpcr_status run(job *j, bool back, dpcr_error *error) {
    dpcri_watch watch;
    const int64_t tiles = tiles_of(j) > 0 ? tiles_of(j) : 1;  // of no steps there are states to copy
    const double flops = flops_of(j, (double)tiles, back) * (double)(j->batch * j->channels);
    j->watch = dpcri_watch_begin(&watch, j->context, flops);
    atomic_init(&j->next, 0);
    dpcri_parallel(j->context, j->workers, back ? back_worker : forward_worker, j);
    if (back && !dpcri_watch_stopped(j->watch)) add_up(j);
    return dpcri_watch_stopped(j->watch) ? dpcri_fail_stopped(error, j->call) : DPCR_OK;
}

size_t dpcr_selective_kept_bytes(const dpcr_selective *in) {
    job j = {.call = "selective_kept_bytes"};
    if (prepare(&j, in, NULL) != DPCR_OK || !j.keeps) return 0;
    return (size_t)(j.batch * spans_of(&j) * blocks_of(&j)) * kept_block(&j);
}

dpcr_status dpcr_selective_scan(dpcr_context *context, const dpcr_selective *in, const dpcr_array *y,
                                const dpcr_array *last, void *kept, dpcr_error *error) {
    job j = {.call = "selective_scan", .context = context, .y = y, .last = last, .kept = kept};
    dpcr_status status;
    if (!context || !y) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: context or y is NULL", j.call);
    DPCR_TRY(prepare(&j, in, error));
    const int64_t rows[3] = {j.batch, j.channels, j.length}, h[3] = {j.batch, j.channels, j.states};
    DPCR_TRY(check(&j, "y", y, 3, rows, DPCRI_WRITTEN, error));
    DPCR_TRY(check(&j, "last", last, 3, h, DPCRI_WRITTEN, error));
    const dpcri_operand all[] = {{"y", y, DPCRI_WRITTEN},   {"last", last, DPCRI_WRITTEN},
                                 {"u", in->u, DPCRI_READ},  {"delta", in->delta, DPCRI_READ},
                                 {"a", in->a, DPCRI_READ},  {"b", in->b, DPCRI_READ},
                                 {"c", in->c, DPCRI_READ},  {"skip", in->skip, DPCRI_READ},
                                 {"z", in->z, DPCRI_READ},  {"delta_bias", in->delta_bias, DPCRI_READ},
                                 {"h0", in->h0, DPCRI_READ}};
    DPCR_TRY(dpcri_operands_apart(j.call, all, sizeof all / sizeof *all, error));
    if (j.batch == 0 || j.channels == 0 || (j.length == 0 && !last)) return DPCR_OK;
    cut_slabs(&j);
    j.workers = workers_of(&j);
    j.bytes = j.kernels->forward_bytes(j.blocks, j.states, by_lane(&j));
    j.scratch = dpcri_alloc(context, (size_t)j.workers * j.bytes);
    if (!j.scratch)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for the states of %" PRId64 " slabs", j.call,
                          j.workers);
    status = run(&j, false, error);
    dpcri_free(context, j.scratch);
done:
    return status;
}

static dpcr_status check_gradients(job *j, dpcr_error *error) {
    dpcr_status status;
    const dpcr_selective_gradients *g = &j->out;
    const int64_t rows[3] = {j->batch, j->channels, j->length}, a[2] = {j->channels, j->states};
    const int64_t b[4] = {j->batch, j->shared[0].groups, j->states, j->length};
    const int64_t c[4] = {j->batch, j->shared[1].groups, j->states, j->length};
    const int64_t h[3] = {j->batch, j->channels, j->states};
    DPCR_TRY(check(j, "gy", j->gy, 3, rows, DPCRI_READ, error));
    DPCR_TRY(check(j, "glast", j->glast, 3, h, DPCRI_READ, error));
    DPCR_TRY(check(j, "the gradient of u", g->u, 3, rows, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of delta", g->delta, 3, rows, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of a", g->a, 2, a, DPCRI_SUMMED, error));
    DPCR_TRY(check(j, "the gradient of b", g->b, 4, b, DPCRI_SUMMED, error));
    DPCR_TRY(check(j, "the gradient of c", g->c, 4, c, DPCRI_SUMMED, error));
    DPCR_TRY(check(j, "the gradient of skip", g->skip, 1, a, DPCRI_SUMMED, error));
    DPCR_TRY(check(j, "the gradient of z", g->z, 3, rows, DPCRI_WRITTEN, error));
    DPCR_TRY(check(j, "the gradient of delta_bias", g->delta_bias, 1, a, DPCRI_SUMMED, error));
    DPCR_TRY(check(j, "the gradient of h0", g->h0, 3, h, DPCRI_WRITTEN, error));
    if ((g->skip && !j->in.skip) || (g->z && !j->in.z) || (g->delta_bias && !j->in.delta_bias))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: a gradient of what is not there", j->call));
    const dpcr_selective *in = &j->in;
    const dpcri_operand all[] = {{"the gradient of u", g->u, DPCRI_WRITTEN},
                                 {"the gradient of delta", g->delta, DPCRI_WRITTEN},
                                 {"the gradient of a", g->a, DPCRI_SUMMED},
                                 {"the gradient of b", g->b, DPCRI_SUMMED},
                                 {"the gradient of c", g->c, DPCRI_SUMMED},
                                 {"the gradient of skip", g->skip, DPCRI_SUMMED},
                                 {"the gradient of z", g->z, DPCRI_WRITTEN},
                                 {"the gradient of delta_bias", g->delta_bias, DPCRI_SUMMED},
                                 {"the gradient of h0", g->h0, DPCRI_WRITTEN},
                                 {"u", in->u, DPCRI_READ},
                                 {"delta", in->delta, DPCRI_READ},
                                 {"a", in->a, DPCRI_READ},
                                 {"b", in->b, DPCRI_READ},
                                 {"c", in->c, DPCRI_READ},
                                 {"skip", in->skip, DPCRI_READ},
                                 {"z", in->z, DPCRI_READ},
                                 {"delta_bias", in->delta_bias, DPCRI_READ},
                                 {"h0", in->h0, DPCRI_READ},
                                 {"gy", j->gy, DPCRI_READ},
                                 {"glast", j->glast, DPCRI_READ}};
    DPCR_TRY(dpcri_operands_apart(j->call, all, sizeof all / sizeof *all, error));
done:
    return status;
}

// Sums in pieces, and the workers' scratch.
static size_t carve(job *j, dpcri_arena *arena) {
    const int64_t rows = j->batch * j->channels, slabs = slabs_in_all(j) * j->length * j->states;
    const size_t e = (size_t)j->element;
    if (j->out.a) j->ga = dpcri_arena_take(arena, rows * j->states, e);
    if (j->out.skip) j->gskip = dpcri_arena_take(arena, rows, e);
    if (j->out.delta_bias) j->gbias = dpcri_arena_take(arena, rows, e);
    for (int i = 0; i < 2; i++) {
        shared *x = &j->shared[i];
        if (x->out && has_parts(j, x))
            x->parts = dpcri_arena_take(arena, x->cell ? rows / x->cell * cell_numbers(j, x) : slabs, e);
    }
    j->scratch = dpcri_arena_take(arena, j->workers, j->bytes);
    return arena->used;
}

dpcr_status dpcr_selective_adjoint(dpcr_context *context, const dpcr_selective *in, const dpcr_array *gy,
                                   const dpcr_array *glast, const void *kept, const dpcr_selective_gradients *gradients,
                                   dpcr_error *error) {
    job j = {.call = "selective_adjoint", .context = context, .gy = gy, .glast = glast, .kept = (char *)kept};
    dpcr_status status;
    if (!context || !gy || !gradients || gradients->size < sizeof *gradients)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: context, gy or gradients is NULL, or of another size",
                          j.call);
    j.out = *gradients;
    DPCR_TRY(prepare(&j, in, error));
    j.shared[0].out = gradients->b, j.shared[1].out = gradients->c;
    DPCR_TRY(check_gradients(&j, error));
    cut_slabs(&j);
    j.workers = workers_of(&j);
    const size_t back = j.kernels->adjoint_bytes(j.blocks, j.states, by_lane(&j));
    j.kept_bytes = j.kept ? 0 : (size_t)j.blocks * kept_block(&j);
    j.bytes = j.kept_bytes + back;
    dpcri_arena count = {0};
    const size_t bytes = carve(&j, &count);
    dpcri_arena arena = {.base = count.overflow ? NULL : dpcri_alloc(context, bytes), .size = bytes};
    if (!arena.base && bytes)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for sums and states (%zu bytes)", j.call, bytes);
    void *memory = arena.base;
    carve(&j, &arena);
    status = run(&j, true, error);
    dpcri_free(context, memory);
done:
    return status;
}
