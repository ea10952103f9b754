// SPDX-License-Identifier: MIT
// Convolutions of training by oneDNN's C API. Pictures go in pieces of DPCRI_CONV_PICTURES whatever the batch and the
// threads; each piece is one thread's, with oneDNN kept to that thread, and the pieces' gradients are summed in order:
//
//   y_p = act(w * x_p + b),   du_p = act' dy_p,   dw = sum_p x_p * du_p,   db = sum_p sum du_p,   dx_p = w' * du_p
//
// so the bits do not depend on the number of threads, ours or OpenMP's. Work as convolution.c's; memory: for each of
// two pieces a thread the layer's weights, and what is doubled the doubled pictures, twice. The library is loaded when
// first asked for: linked, it would cost every program a millisecond to start, and its 40 MB as a dependency.
// Source: oneDNN's developer guide, version 2.6 (convolution, primitive attributes, scratchpad).
#include <assert.h>
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "sample/convolution.h"

static_assert(DNNL_VERSION_MAJOR == 2, "descriptors of operations are those of version 2");

#define FUNCTIONS(X)                          \
    X(version)                                \
    X(get_effective_cpu_isa)                  \
    X(engine_create)                          \
    X(engine_destroy)                         \
    X(stream_create)                          \
    X(stream_destroy)                         \
    X(memory_desc_init_by_tag)                \
    X(memory_desc_get_size)                   \
    X(memory_create)                          \
    X(memory_destroy)                         \
    X(primitive_attr_create)                  \
    X(primitive_attr_set_scratchpad_mode)     \
    X(primitive_attr_destroy)                 \
    X(convolution_forward_desc_init)          \
    X(convolution_backward_weights_desc_init) \
    X(convolution_backward_data_desc_init)    \
    X(reorder_primitive_desc_create)          \
    X(primitive_desc_create)                  \
    X(primitive_desc_query_md)                \
    X(primitive_desc_destroy)                 \
    X(primitive_create)                       \
    X(primitive_execute)                      \
    X(primitive_destroy)

// Loaded once a process and kept.
static struct {
    bool there;
    char name[48];
    void (*set_threads)(int n);
    int (*threads)(void);
#define X(f) __typeof__(dnnl_##f) *f;
    FUNCTIONS(X)
#undef X
} dnnl;

static const char *level_name(dnnl_cpu_isa_t isa) {
    switch (isa) {
        case dnnl_cpu_isa_avx2: return "avx2";
        case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
        case dnnl_cpu_isa_avx512_core: return "avx512_core";
        case dnnl_cpu_isa_avx512_core_vnni: return "avx512_core_vnni";
        case dnnl_cpu_isa_avx512_core_bf16: return "avx512_core_bf16";
        case dnnl_cpu_isa_avx512_core_amx: return "avx512_core_amx";
        default: return NULL;  // slower than what we have
    }
}

// OpenMP's library, which comes along, keeps the thread that loads it on one processor where its environment asks for
// that (OMP_PROC_BIND, GOMP_CPU_AFFINITY): our threads, which this one starts, would stay there too.
static void *open_unmoved(const char *file) {
    cpu_set_t allowed;
    const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (known) (void)sched_setaffinity(0, sizeof allowed, &allowed);
    return library;
}

static void load(void) {
    char file[32];
    snprintf(file, sizeof file, "libdnnl.so.%d", DNNL_VERSION_MAJOR);
    void *library = open_unmoved(file);
    if (!library) return;
    bool whole = true;
#define X(f) whole = whole && (*(void **)&dnnl.f = dlsym(library, "dnnl_" #f)) != NULL;
    FUNCTIONS(X)
#undef X
    // OpenMP's as the library itself finds it: the program's first.
    const char *const names[] = {"omp_set_num_threads", "omp_get_max_threads"};
    void *found[2];
    for (int i = 0; i < 2; i++) {
        found[i] = dlsym(RTLD_DEFAULT, names[i]);
        if (!found[i]) found[i] = dlsym(library, names[i]);
        whole = whole && found[i];
    }
    if (!whole) return;
    *(void **)&dnnl.set_threads = found[0], *(void **)&dnnl.threads = found[1];
    const dnnl_version_t *v = dnnl.version();
    const char *level = level_name(dnnl.get_effective_cpu_isa());
    if (!level || v->major != DNNL_VERSION_MAJOR || v->cpu_runtime != DNNL_RUNTIME_OMP) return;
    snprintf(dnnl.name, sizeof dnnl.name, "onednn %d.%d.%d %s", v->major, v->minor, v->patch, level);
    dnnl.there = true;
}

enum { FORWARD, WEIGHTS, STATES, DIRECTIONS };
enum { TO_FORWARD, TO_STATES, FROM_WEIGHTS, REORDERS };

typedef struct slot {
    dnnl_stream_t stream;
    float *weights, *bias;       // the piece's gradients
    float *doubled, *d_doubled;  // [pictures][rows][cols][channels], of what goes up
    unsigned char *scratch;
    dnnl_status_t status;
} slot;

struct dpcri_conv_run {
    const dpcri_net *net;
    const dpcri_dense *layer;
    int64_t rows;  // pictures
    int slots;
    slot *slot;  // [slots]
    dnnl_engine_t engine;
    dnnl_primitive_t direction[DIRECTIONS], reorder[REORDERS];
    dnnl_memory_desc_t order[DIRECTIONS], plain, source, result, numbers;  // of weights; theirs in the net; x; y; b
    int64_t scratch_bytes[DIRECTIONS];
    float *ordered[DIRECTIONS];  // weights as the directions take them; the sum of their gradients
    // a call's
    int64_t first;  // piece of slot 0
    const float *x, *dy;
    float *y, *slope, *dx;
};

static dpcr_status failed(dnnl_status_t status, const char *what, dpcr_error *error) {
    return dpcri_fail(error, status == dnnl_out_of_memory ? DPCR_ERROR_MEMORY : DPCR_ERROR_SYSTEM,
                      "convolution: %s %s with %d", dnnl.name, what, (int)status);
}

// ---- making ----

static dnnl_status_t describe(dpcri_conv_run *r, dnnl_memory_desc_t *any) {
    const struct dpcri_gather *g = r->layer->gather;
    const int64_t n = DPCRI_CONV_PICTURES, out = r->layer->out;
    const dnnl_dims_t source = {n, g->channels, g->rows, g->cols}, weights = {out, g->channels, 3, 3}, bias = {out};
    const dnnl_dims_t result = {n, out, g->up ? g->rows : (g->rows + 1) / 2, g->up ? g->cols : (g->cols + 1) / 2};
    dnnl_status_t s = dnnl.memory_desc_init_by_tag(&r->source, 4, source, dnnl_f32, dnnl_nhwc);
    if (!s) s = dnnl.memory_desc_init_by_tag(&r->result, 4, result, dnnl_f32, dnnl_nhwc);
    if (!s) s = dnnl.memory_desc_init_by_tag(&r->plain, 4, weights, dnnl_f32, dnnl_ohwi);
    if (!s) s = dnnl.memory_desc_init_by_tag(any, 4, weights, dnnl_f32, dnnl_format_tag_any);
    if (!s) s = dnnl.memory_desc_init_by_tag(&r->numbers, 1, bias, dnnl_f32, dnnl_a);
    return s;
}

static dnnl_status_t make_direction(dpcri_conv_run *r, int way, const dnnl_memory_desc_t *any,
                                    dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t forward,
                                    dnnl_primitive_desc_t *made) {
    const int64_t stride = r->layer->gather->up ? 1 : 2;
    const dnnl_dims_t strides = {stride, stride}, before = {1, 1};
    dnnl_dims_t after;
    for (int i = 0; i < 2; i++) after[i] = (r->result.dims[2 + i] - 1) * stride + 3 - 1 - r->source.dims[2 + i];
    dnnl_convolution_desc_t d;
    const dnnl_alg_kind_t algorithm = dnnl_convolution_direct;
    dnnl_status_t s =
        way == FORWARD   ? dnnl.convolution_forward_desc_init(&d, dnnl_forward_training, algorithm, &r->source, any,
                                                              &r->numbers, &r->result, strides, before, after)
        : way == WEIGHTS ? dnnl.convolution_backward_weights_desc_init(&d, algorithm, &r->source, any, &r->numbers,
                                                                       &r->result, strides, before, after)
                         : dnnl.convolution_backward_data_desc_init(&d, algorithm, &r->source, any, &r->result, strides,
                                                                    before, after);
    if (!s) s = dnnl.primitive_desc_create(made, &d, attributes, r->engine, forward);
    if (s) return s;
    const dnnl_query_t query = way == WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    r->order[way] = *dnnl.primitive_desc_query_md(*made, query, 0);
    const dnnl_memory_desc_t *scratch = dnnl.primitive_desc_query_md(*made, dnnl_query_scratchpad_md, 0);
    r->scratch_bytes[way] = scratch ? (int64_t)dnnl.memory_desc_get_size(scratch) : 0;
    return dnnl.primitive_create(&r->direction[way], *made);
}

static dnnl_status_t make_reorder(dpcri_conv_run *r, int way, const dnnl_memory_desc_t *from,
                                  const dnnl_memory_desc_t *to) {
    dnnl_primitive_desc_t made = NULL;
    dnnl_status_t s = dnnl.reorder_primitive_desc_create(&made, from, r->engine, to, r->engine, NULL);
    if (!s) s = dnnl.primitive_create(&r->reorder[way], made);
    if (made) dnnl.primitive_desc_destroy(made);
    return s;
}

static dnnl_status_t make_primitives(dpcri_conv_run *r) {
    dnnl_memory_desc_t any;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t made[DIRECTIONS] = {0};
    dnnl_status_t s = dnnl.engine_create(&r->engine, dnnl_cpu, 0);
    if (!s) s = describe(r, &any);
    if (!s) s = dnnl.primitive_attr_create(&attributes);
    if (!s) s = dnnl.primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    for (int w = 0; !s && w < DIRECTIONS; w++)
        s = make_direction(r, w, &any, attributes, w == FORWARD ? NULL : made[FORWARD], &made[w]);
    if (!s) s = make_reorder(r, TO_FORWARD, &r->plain, &r->order[FORWARD]);
    if (!s) s = make_reorder(r, TO_STATES, &r->plain, &r->order[STATES]);
    if (!s) s = make_reorder(r, FROM_WEIGHTS, &r->order[WEIGHTS], &r->plain);
    for (int i = 0; i < r->slots && !s; i++)
        s = dnnl.stream_create(&r->slot[i].stream, r->engine, dnnl_stream_default_flags);
    for (int w = 0; w < DIRECTIONS; w++)
        if (made[w]) dnnl.primitive_desc_destroy(made[w]);
    if (attributes) dnnl.primitive_attr_destroy(attributes);
    return s;
}

static void *take(const dpcri_conv_run *r, size_t bytes) { return dpcri_alloc_zero(r->net->context, bytes + 64); }

static bool take_memory(dpcri_conv_run *r) {
    const size_t doubled = r->layer->gather->up ? dnnl.memory_desc_get_size(&r->source) : 0;
    bool whole = true;
    int64_t scratch = 0;
    for (int w = 0; w < DIRECTIONS; w++) {
        r->ordered[w] = take(r, dnnl.memory_desc_get_size(&r->order[w]));
        scratch = r->scratch_bytes[w] > scratch ? r->scratch_bytes[w] : scratch;
        whole = whole && r->ordered[w];
    }
    for (int i = 0; i < r->slots; i++) {
        slot *s = &r->slot[i];
        s->weights = take(r, dnnl.memory_desc_get_size(&r->order[WEIGHTS]));
        s->bias = take(r, (size_t)r->layer->out * sizeof(float));
        s->doubled = take(r, doubled);
        s->d_doubled = take(r, doubled);
        s->scratch = take(r, (size_t)scratch);
        whole = whole && s->weights && s->bias && s->doubled && s->d_doubled && s->scratch;
    }
    return whole;
}

static void destroy(dpcri_conv_run *r) {
    if (!r) return;
    dpcr_context *context = r->net->context;
    for (int i = 0; r->slot && i < r->slots; i++) {
        slot *s = &r->slot[i];
        if (s->stream) dnnl.stream_destroy(s->stream);
        dpcri_free(context, s->weights);
        dpcri_free(context, s->bias);
        dpcri_free(context, s->doubled);
        dpcri_free(context, s->d_doubled);
        dpcri_free(context, s->scratch);
    }
    dpcri_free(context, r->slot);
    for (int w = 0; w < DIRECTIONS; w++) {
        if (r->direction[w]) dnnl.primitive_destroy(r->direction[w]);
        if (r->reorder[w]) dnnl.primitive_destroy(r->reorder[w]);
        dpcri_free(context, r->ordered[w]);
    }
    if (r->engine) dnnl.engine_destroy(r->engine);
    dpcri_free(context, r);
}

// OpenMP's number of threads is the calling thread's own; oneDNN reads it where it makes primitives and runs them.
static int alone(void) {
    const int before = dnnl.threads();
    dnnl.set_threads(1);
    return before;
}

static dpcr_status create(const dpcri_net *net, int layer, int64_t rows, dpcri_conv_run **run, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_conv_run *r = dpcri_alloc_zero(net->context, sizeof *r);
    const int64_t pieces = (rows + DPCRI_CONV_PICTURES - 1) / DPCRI_CONV_PICTURES;
    const int64_t slots = 2 * (int64_t)dpcr_context_threads(net->context);
    if (!r) return dpcri_fail(error, DPCR_ERROR_MEMORY, "convolution: no memory");
    *r = (dpcri_conv_run){
        .net = net, .layer = &net->layers[layer], .rows = rows, .slots = (int)(pieces < slots ? pieces : slots)};
    r->slot = dpcri_alloc_zero(net->context, (size_t)r->slots * sizeof *r->slot);
    if (!r->slot) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "convolution: no memory"));
    const int before = alone();
    const dnnl_status_t made = make_primitives(r);
    dnnl.set_threads(before);
    if (made) DPCR_TRY(failed(made, "refused a layer", error));
    if (!take_memory(r)) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "convolution: no memory for its pieces"));
    *run = r;
    r = NULL;
done:
    destroy(r);
    return status;
}

// ---- running ----

typedef struct place {
    int argument;
    const dnnl_memory_desc_t *order;
    const void *data;
} place;

static dnnl_status_t execute(const dpcri_conv_run *r, dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                             const place *places) {
    dnnl_exec_arg_t arguments[6];
    dnnl_status_t s = dnnl_success;
    int made = 0;
    for (; !s && made < count; made += !s) {
        arguments[made].arg = places[made].argument;
        s = dnnl.memory_create(&arguments[made].memory, places[made].order, r->engine,
                               (void *)(uintptr_t)places[made].data);
    }
    if (!s) s = dnnl.primitive_execute(primitive, stream, count, arguments);
    while (made > 0) dnnl.memory_destroy(arguments[--made].memory);
    return s;
}

static dnnl_status_t execute_way(const dpcri_conv_run *r, int way, slot *s, int count, place *places) {
    dnnl_memory_desc_t scratch;
    const dnnl_dims_t bytes = {r->scratch_bytes[way] > 0 ? r->scratch_bytes[way] : 1};
    const dnnl_status_t status = dnnl.memory_desc_init_by_tag(&scratch, 1, bytes, dnnl_u8, dnnl_a);
    if (status) return status;
    places[count] = (place){DNNL_ARG_SCRATCHPAD, &scratch, s->scratch};
    return execute(r, r->direction[way], s->stream, count + 1, places);
}

static dnnl_status_t reorder(const dpcri_conv_run *r, int which, const dnnl_memory_desc_t *from, const float *x,
                             const dnnl_memory_desc_t *to, float *y) {
    const place places[] = {{DNNL_ARG_FROM, from, x}, {DNNL_ARG_TO, to, y}};
    const int before = alone();
    const dnnl_status_t status = execute(r, r->reorder[which], r->slot[0].stream, 2, places);
    dnnl.set_threads(before);
    return status;
}

// Every place twice in either direction; and the adjoint.
static void double_pictures(const struct dpcri_gather *g, const float *from, float *to) {
    const int64_t c = g->channels, cols = (g->cols + 1) / 2;
    for (int64_t n = 0; n < DPCRI_CONV_PICTURES; n++, from += g->in_places * c)
        for (int64_t i = 0; i < g->rows; i++)
            for (int64_t j = 0; j < g->cols; j++, to += c)
                memcpy(to, from + (i / 2 * cols + j / 2) * c, (size_t)c * sizeof *to);
}

static void halve_pictures(const struct dpcri_gather *g, const float *from, float *to) {
    const int64_t c = g->channels, cols = (g->cols + 1) / 2;
    memset(to, 0, (size_t)(DPCRI_CONV_PICTURES * g->in_places * c) * sizeof *to);
    for (int64_t n = 0; n < DPCRI_CONV_PICTURES; n++, to += g->in_places * c)
        for (int64_t i = 0; i < g->rows; i++)
            for (int64_t j = 0; j < g->cols; j++, from += c)
                for (int64_t k = 0; k < c; k++) to[(i / 2 * cols + j / 2) * c + k] += from[k];
}

static const float *source_of(const dpcri_conv_run *r, slot *s, int64_t piece) {
    const struct dpcri_gather *g = r->layer->gather;
    const float *x = r->x + piece * DPCRI_CONV_PICTURES * g->in_places * g->channels;
    if (!g->up) return x;
    double_pictures(g, x, s->doubled);
    return s->doubled;
}

static int64_t result_numbers(const dpcri_conv_run *r) {
    return DPCRI_CONV_PICTURES * r->layer->gather->out_places * r->layer->out;
}

static const float *bias_of(const dpcri_conv_run *r) {
    return r->net->values + r->layer->weight + r->layer->in * r->layer->out;
}

static void forward_piece(void *argument, int64_t i) {
    const dpcri_conv_run *r = argument;
    slot *s = &r->slot[i];
    const int64_t piece = r->first + i, numbers = result_numbers(r);
    float *y = r->y + piece * numbers, *slope = r->slope ? r->slope + piece * numbers : NULL;
    place places[5] = {{DNNL_ARG_SRC, &r->source, source_of(r, s, piece)},
                       {DNNL_ARG_WEIGHTS, &r->order[FORWARD], r->ordered[FORWARD]},
                       {DNNL_ARG_BIAS, &r->numbers, bias_of(r)},
                       {DNNL_ARG_DST, &r->result, y}};
    const int before = alone();
    s->status = execute_way(r, FORWARD, s, 4, places);
    dnnl.set_threads(before);
    if (!s->status) r->net->nn->activate(r->layer->activation, numbers, y, y, slope);
}

// du in the slope's place; of pictures that are not there, 0.
static const float *scale(const dpcri_conv_run *r, int64_t piece) {
    const int64_t numbers = result_numbers(r), at = piece * numbers;
    const int64_t all = r->rows * r->layer->gather->out_places * r->layer->out;
    const int64_t left = all - at, count = left < numbers ? left : numbers;
    float *du = r->slope + at;
    for (int64_t k = 0; k < count; k++) du[k] *= r->dy[at + k];
    memset(du + count, 0, (size_t)(numbers - count) * sizeof *du);
    return du;
}

static void backward_piece(void *argument, int64_t i) {
    const dpcri_conv_run *r = argument;
    const struct dpcri_gather *g = r->layer->gather;
    slot *s = &r->slot[i];
    const int64_t piece = r->first + i;
    const float *du = scale(r, piece);
    float *dx = r->dx ? r->dx + piece * DPCRI_CONV_PICTURES * g->in_places * g->channels : NULL;
    place weights[5] = {{DNNL_ARG_SRC, &r->source, source_of(r, s, piece)},
                        {DNNL_ARG_DIFF_WEIGHTS, &r->order[WEIGHTS], s->weights},
                        {DNNL_ARG_DIFF_BIAS, &r->numbers, s->bias},
                        {DNNL_ARG_DIFF_DST, &r->result, du}};
    place states[4] = {{DNNL_ARG_DIFF_SRC, &r->source, g->up ? s->d_doubled : dx},
                       {DNNL_ARG_WEIGHTS, &r->order[STATES], r->ordered[STATES]},
                       {DNNL_ARG_DIFF_DST, &r->result, du}};
    const int before = alone();
    s->status = execute_way(r, WEIGHTS, s, 4, weights);
    if (!s->status && dx) s->status = execute_way(r, STATES, s, 3, states);
    dnnl.set_threads(before);
    if (!s->status && dx && g->up) halve_pictures(g, s->d_doubled, dx);
}

// All pieces, some at a time; each round's slots in order to `after`.
static dnnl_status_t run_pieces(dpcri_conv_run *r, void (*piece)(void *, int64_t),
                                void (*after)(dpcri_conv_run *, slot *)) {
    const int64_t pieces = (r->rows + DPCRI_CONV_PICTURES - 1) / DPCRI_CONV_PICTURES;
    for (r->first = 0; r->first < pieces; r->first += r->slots) {
        const int64_t count = pieces - r->first < r->slots ? pieces - r->first : r->slots;
        dpcri_parallel(r->net->context, count, piece, r);
        for (int64_t i = 0; i < count; i++) {
            if (r->slot[i].status) return r->slot[i].status;
            if (after) after(r, &r->slot[i]);
        }
    }
    return dnnl_success;
}

static void add_gradients(dpcri_conv_run *r, slot *s) {
    const size_t count = dnnl.memory_desc_get_size(&r->order[WEIGHTS]) / sizeof(float);
    float *bias = r->net->gradients + r->layer->weight + r->layer->in * r->layer->out;
    for (size_t k = 0; k < count; k++) r->ordered[WEIGHTS][k] += s->weights[k];
    for (int64_t k = 0; k < r->layer->out; k++) bias[k] += s->bias[k];
}

static dpcr_status forward(dpcri_conv_run *r, const float *x, float *y, float *slope, dpcr_error *error) {
    r->x = x, r->y = y, r->slope = slope;
    const float *weights = r->net->values + r->layer->weight;
    dnnl_status_t s = reorder(r, TO_FORWARD, &r->plain, weights, &r->order[FORWARD], r->ordered[FORWARD]);
    if (!s) s = run_pieces(r, forward_piece, NULL);
    return s ? failed(s, "ended going forward", error) : DPCR_OK;
}

static dpcr_status backward(dpcri_conv_run *r, const float *x, float *slope, const float *dy, float *dx,
                            dpcr_error *error) {
    r->x = x, r->slope = slope, r->dy = dy, r->dx = dx;
    const float *weights = r->net->values + r->layer->weight;
    float *gradient = r->net->gradients + r->layer->weight;
    memset(r->ordered[WEIGHTS], 0, dnnl.memory_desc_get_size(&r->order[WEIGHTS]));
    memset(gradient + r->layer->in * r->layer->out, 0, (size_t)r->layer->out * sizeof *gradient);
    dnnl_status_t s = dnnl_success;
    if (dx) s = reorder(r, TO_STATES, &r->plain, weights, &r->order[STATES], r->ordered[STATES]);
    if (!s) s = run_pieces(r, backward_piece, add_gradients);
    if (!s) s = reorder(r, FROM_WEIGHTS, &r->order[WEIGHTS], r->ordered[WEIGHTS], &r->plain, gradient);
    return s ? failed(s, "ended going back", error) : DPCR_OK;
}

const dpcri_conv_library *dpcri_onednn(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const dpcri_conv_library library = {dnnl.name, create, forward, backward, destroy};
    pthread_once(&once, load);
    return dnnl.there ? &library : NULL;
}
