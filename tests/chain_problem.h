// SPDX-License-Identifier: MIT
// What the tests of linear chains share: contexts by threads, a problem with its arrays, its solution by a scheme and
// by the plain loop, and options that take every path.
#ifndef TESTS_CHAIN_PROBLEM_H
#define TESTS_CHAIN_PROBLEM_H

#include "chain/chain_internal.h"
#include "linear_common.h"

static dpcr_context *contexts[4];  // by threads

static inline int open_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        const dpcr_context_options options = {.size = sizeof options, .threads = threads};
        assert_int_equal(dpcr_context_create(&options, &contexts[threads], NULL), DPCR_OK);
    }
    return 0;
}

static inline int close_contexts(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads++) dpcr_context_destroy(contexts[threads]);
    return 0;
}

typedef struct problem {
    dpcr_transition t;
    dpcr_dtype dtype;
    int64_t length, batch, values, w;
    bool transposed, shared_steps, shared_rows;
    void *a, *b, *z0, *z;
    dpcr_array va, vb, v0, vz;
    long double *want,
        *scale;  // the loop's states and, on absolute values, the errors' scale; made when first asked for
    uint32_t *want_ring;
} problem;

static inline void *room(int64_t count) {
    void *memory = aligned_alloc(64, ((size_t)count * 8 + 127) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, ((size_t)count * 8 + 127) / 64 * 64);
    return memory;
}

static inline problem make(dpcr_transition t, dpcr_dtype dtype, int64_t length, int64_t batch, bool transposed,
                           bool with_z0, fill how, bool shared_steps, bool shared_rows) {
    problem p = {.t = t,
                 .dtype = dtype,
                 .length = length,
                 .batch = batch,
                 .transposed = transposed,
                 .w = t.rows,
                 .values = dpcr_transition_values(&t),
                 .shared_steps = shared_steps,
                 .shared_rows = shared_rows};
    const int64_t steps = shared_steps ? 1 : length, rows = shared_rows ? 1 : batch;
    p.a = room(steps * rows * p.values);
    p.b = room(length * batch * p.w);
    p.z = room(length * batch * p.w);
    for (int64_t i = 0; i < steps * rows; i++) fill_transition(&t, dtype, how, p.a, i * p.values);
    fill_vector(dtype, how, p.b, length * batch * p.w);
    p.va = dpcr_array_make(p.a, dtype, 3, (const int64_t[]){steps, rows, p.values});
    p.vb = dpcr_array_make(p.b, dtype, 3, (const int64_t[]){length, batch, p.w});
    p.vz = dpcr_array_make(p.z, dtype, 3, (const int64_t[]){length, batch, p.w});
    if (with_z0 && !transposed) {
        p.z0 = room(batch * p.w);
        fill_vector(dtype, how, p.z0, batch * p.w);
        p.v0 = dpcr_array_make(p.z0, dtype, 2, (const int64_t[]){batch, p.w});
    }
    return p;
}

static inline void drop(problem *p) {
    free(p->a);
    free(p->b);
    free(p->z0);
    free(p->z);
    free(p->want);
    free(p->scale);
    free(p->want_ring);
}

static inline dpcr_chain_shape shape_of(const problem *p) {
    return (dpcr_chain_shape){.size = sizeof(dpcr_chain_shape),
                              .length = p->length,
                              .batch = p->batch,
                              .transition = p->t,
                              .dtype = p->dtype,
                              .transposed = p->transposed};
}

static inline dpcr_chain_report solve(problem *p, const dpcr_chain_options *options, int threads, bool in_place) {
    const dpcr_chain_shape shape = shape_of(p);
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    if (dpcr_chain_plan_create(contexts[threads], &shape, options, &plan, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    unsigned char *workspace = aligned_alloc(64, bytes + 64);
    memset(workspace, 0xff, bytes + 64);  // NaN in both floating-point types: nothing may be taken over from before
    dpcr_chain_report report = {.size = sizeof report};
    if (in_place) memcpy(p->z, p->b, (size_t)(p->length * p->batch * p->w) * dpcr_dtype_size(p->dtype));
    if (dpcr_chain_execute(plan, &p->va, in_place ? &p->vz : &p->vb, p->z0 ? &p->v0 : NULL, &p->vz, workspace, bytes,
                           &report, &error) != DPCR_OK)
        fail_msg("%s", error.text);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(workspace[i], 0xff);
    free(workspace);
    dpcr_chain_plan_destroy(plan);
    return report;
}

static inline loop_case loop_of(const problem *p) {
    const int64_t rows = p->shared_rows ? 1 : p->batch;
    return (loop_case){.t = p->t,
                       .dtype = p->dtype,
                       .length = p->length,
                       .batch = p->batch,
                       .values = p->values,
                       .transposed = p->transposed,
                       .a = p->a,
                       .b = p->b,
                       .z0 = p->z0,
                       .a_step = p->shared_steps ? 0 : rows * p->values,
                       .a_row = p->shared_rows ? 0 : p->values};
}

static inline const char *describe(const problem *p, const dpcr_chain_options *o) {
    static char text[256];
    snprintf(text, sizeof text, "%s %s %s w %d k %d L %d B %d%s chunk %d levels %d warm %d",
             dpcr_scheme_name(o->scheme), dpcr_dtype_name(p->dtype), dpcr_structure_name(p->t.structure), (int)p->w,
             (int)p->t.block, (int)p->length, (int)p->batch, p->transposed ? " transposed" : "", (int)o->chunk,
             o->levels, (int)o->warm_up);
    return text;
}

static inline void run_plain_loop(problem *p) {
    const size_t count = (size_t)(p->length * p->batch * p->w) + 1;
    loop_case c = loop_of(p);
    p->want = calloc(count, sizeof *p->want);
    p->scale = calloc(count, sizeof *p->scale);
    p->want_ring = calloc(count, sizeof *p->want_ring);
    plain_loop(&c, p->want, p->want_ring);
    c.absolute = true;
    if (p->dtype != DPCR_U32) plain_loop(&c, p->scale, p->want_ring);
}

// Elements that differ from the loop: bit for bit where `exact`, else by more than rounding explains.
static inline int64_t wrong_states(problem *p, bool exact) {
    if (!p->want) run_plain_loop(p);
    const int64_t count = p->length * p->batch * p->w;
    const double bound = epsilon_of(p->dtype) * 4.0 * (double)(p->w + 4) * (double)(p->length + 2);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        if (p->dtype == DPCR_U32)
            wrong += ((const uint32_t *)p->z)[i] != p->want_ring[i];
        else if (exact)
            wrong += get(p->dtype, p->z, i) != (double)p->want[i];
        else
            wrong += !(fabsl(get(p->dtype, p->z, i) - p->want[i]) <= (long double)bound * p->scale[i]);
    }
    return wrong;
}

// Options that between them take every path: limits of the tree, chunks of one step to longer than the chain, warm-ups
// shorter and longer than chunks.
static const dpcr_chain_options variants[] = {
    {.scheme = DPCR_SCHEME_SEQUENTIAL},
    {.scheme = DPCR_SCHEME_PCR},
    {.scheme = DPCR_SCHEME_BLELLOCH},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 1},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 2},
    {.scheme = DPCR_SCHEME_BLELLOCH, .levels = 4},
    {.scheme = DPCR_SCHEME_CHUNKED},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 1},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 2},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 7},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 33},
    {.scheme = DPCR_SCHEME_CHUNKED, .chunk = 1000},
    {.scheme = DPCR_SCHEME_OVERLAP},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 1, .warm_up = 3},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 5, .warm_up = 1, .max_sweeps = 1},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 8, .warm_up = 33, .max_sweeps = 2},
    {.scheme = DPCR_SCHEME_OVERLAP, .chunk = 40, .warm_up = 4, .max_sweeps = 100},
    {.scheme = DPCR_SCHEME_AUTO},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static inline dpcr_chain_options variant(int i) {
    dpcr_chain_options options = variants[i];
    options.size = sizeof options;
    return options;
}

typedef struct width {
    dpcr_structure structure;
    int64_t w, k;
} width;

#endif
