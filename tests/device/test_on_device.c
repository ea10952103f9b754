// SPDX-License-Identifier: MIT
// The suite for a device that is there, through the public calls alone: linear chains of every structure against the
// loop on the host (the exact ring to the bit), both directions, every short length and borders of blocks, shared
// transitions, in place, streams side by side, a NaN that stays in its sequence, the same bits from run to run; narrow
// cells by every method and back, recurrent networks, stacks of layers, against the host's. Without
// a device it is skipped (exit status 77), with the reason. It runs over the tests' stand-in too, which proves the
// suite, not a device.
//
//   test_on_device [PATTERN]    the tests whose names match (cmocka's * and ?); default: all
//   test_on_device --list       the names
//   DEEPPCR_DEVICE=cuda:N       which one (default cuda)
//   DEEPPCR_DEVICE_LAUNCHES=N   repeated launches (default 200)
//   DEEPPCR_DEVICE_SHARE=N      one chain of N of the suites over forms and lengths (default 1: all), for the simulator
#include "on_device.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dpcr_device there;
const dpcr_device here = {.type = DPCR_HOST};
dpcr_context *context;

void ok(dpcr_status status, const dpcr_error *error) {
    if (status != DPCR_OK) fail_msg("%s", error->text);
}

// ---- one chain, on the host and on the device ----

enum { A, B, Z0, Z, ARRAYS };

typedef struct chain {
    dpcr_chain_shape shape;
    bool shared, start, in_place;
    dpcr_scheme scheme;
    int64_t chunk;
    dpcr_chain_plan *plan;
    dpcr_array host[ARRAYS], device[ARRAYS];
    size_t bytes[ARRAYS];
    void *workspace, *stream, *got;
} chain;

static void fill_numbers(const dpcr_array *array, int64_t count, uint64_t seed, double scale) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double value = scale * ((double)(int32_t)(seed >> 32) / 2147483648.0);
        if (array->dtype == DPCR_F32) ((float *)array->data)[i] = (float)value;
        if (array->dtype == DPCR_F64) ((double *)array->data)[i] = value;
        if (array->dtype == DPCR_U32) ((uint32_t *)array->data)[i] = (uint32_t)(seed >> 32);
    }
}

static void make_chain(chain *c, uint64_t seed) {
    const dpcr_chain_options on = {.size = sizeof on, .scheme = c->scheme, .chunk = c->chunk, .device = there};
    const int64_t n = c->shape.length, rows = c->shape.batch, w = c->shape.transition.rows;
    const int64_t values = dpcr_transition_values(&c->shape.transition);
    dpcr_error error = {0};
    c->shape.size = sizeof c->shape;
    ok(dpcr_chain_plan_create(context, &c->shape, &on, &c->plan, &error), &error);
    ok(dpcr_stream_create(there, &c->stream, &error), &error);
    const int64_t shapes[ARRAYS][3] = {{c->shared ? 1 : n, rows, values}, {n, rows, w}, {rows, w, 1}, {n, rows, w}};
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t count = shapes[i][0] * shapes[i][1] * shapes[i][2];
        c->bytes[i] = (size_t)count * dpcr_dtype_size(c->shape.dtype);
        c->host[i] = dpcr_array_make(malloc(c->bytes[i] + 8), c->shape.dtype, i == Z0 ? 2 : 3, shapes[i]);
        assert_non_null(c->host[i].data);
        // Rows of A sum to less than 1: rounding does not grow.
        fill_numbers(&c->host[i], count, seed + 77 * (uint64_t)i,
                     i == A ? 0.9 / (double)(values / w > 1 ? values / w : 1) : 1);
        c->device[i] = c->host[i];
        c->device[i].device = there;
        ok(dpcr_device_allocate(there, c->bytes[i], &c->device[i].data, &error), &error);
        if (i != Z)
            ok(dpcr_device_copy(there, c->device[i].data, here, c->host[i].data, c->bytes[i], c->stream, &error),
               &error);
    }
    ok(dpcr_device_allocate(there, dpcr_chain_plan_workspace(c->plan), &c->workspace, &error), &error);
    c->got = malloc(c->bytes[Z] + 8);
    assert_non_null(c->got);
}

static void free_chain(chain *c) {
    for (int i = 0; i < ARRAYS; i++) {
        free(c->host[i].data);
        dpcr_device_release(there, c->device[i].data);
    }
    free(c->got);
    dpcr_device_release(there, c->workspace);
    dpcr_stream_destroy(there, c->stream);
    dpcr_chain_plan_destroy(c->plan);
}

// Into its stream: the solve, and the states back.
static void begin(chain *c) {
    dpcr_error error = {0};
    const dpcr_array *z = &c->device[c->in_place ? B : Z];
    ok(dpcr_chain_enqueue(c->plan, &c->device[A], &c->device[B], c->start ? &c->device[Z0] : NULL, z, c->workspace,
                          dpcr_chain_plan_workspace(c->plan), c->stream, &error),
       &error);
    ok(dpcr_device_copy(here, c->got, there, z->data, c->bytes[Z], c->stream, &error), &error);
}

static void finish(chain *c) {
    dpcr_error error = {0};
    ok(dpcr_stream_wait(there, c->stream, &error), &error);
}

static void host_solve(chain *c) {
    const dpcr_chain_options loop = {.size = sizeof loop, .scheme = DPCR_SCHEME_SEQUENTIAL};
    dpcr_chain_plan *plan = NULL;
    dpcr_error error = {0};
    ok(dpcr_chain_plan_create(context, &c->shape, &loop, &plan, &error), &error);
    ok(dpcr_chain_execute(plan, &c->host[A], &c->host[B], c->start ? &c->host[Z0] : NULL, &c->host[Z], NULL, 0, NULL,
                          &error),
       &error);
    dpcr_chain_plan_destroy(plan);
}

static double number(const void *data, dpcr_dtype dtype, int64_t i) {
    return dtype == DPCR_F32   ? (double)((const float *)data)[i]
           : dtype == DPCR_F64 ? ((const double *)data)[i]
                               : (double)((const uint32_t *)data)[i];
}

// A row of A sums to at most 0.9, so an error of w eps |b| a step adds up to ten times that; the device's order of sums
// makes as much again.
static void compare(const chain *c) {
    const dpcr_dtype dtype = c->shape.dtype;
    const double w = (double)c->shape.transition.rows;
    const double eps = dtype == DPCR_U32 ? 0 : dtype == DPCR_F32 ? 6e-8 : 1.2e-16, allowed = 400 * (w + 2) * eps;
    const int64_t count = c->shape.length * c->shape.batch * c->shape.transition.rows;
    for (int64_t i = 0; i < count; i++) {
        const double got = number(c->got, dtype, i), wanted = number(c->host[Z].data, dtype, i);
        if (!(fabs(got - wanted) <= allowed))
            fail_msg(
                "%s w %lld k %lld %s L %lld B %lld transposed %d shared %d z0 %d in place %d: state %lld is %.9g, the "
                "loop's %.9g",
                dpcr_structure_name(c->shape.transition.structure), (long long)c->shape.transition.rows,
                (long long)c->shape.transition.block, dpcr_dtype_name(dtype), (long long)c->shape.length,
                (long long)c->shape.batch, c->shape.transposed, c->shared, c->start, c->in_place, (long long)i, got,
                wanted);
    }
}

// Another one of the share each time, and every form, type and length in some.
bool left_out(void) {
    static int64_t asked;
    const char *share = getenv("DEEPPCR_DEVICE_SHARE");
    return share && atoi(share) > 1 && ++asked % atoi(share) != 0;
}

static void once_by(dpcr_scheme scheme, int64_t chunk, dpcr_transition transition, dpcr_dtype dtype, int64_t length,
                    int64_t batch, int variant) {
    if (left_out()) return;
    chain c = {.shape = {.length = length,
                         .batch = batch,
                         .transition = transition,
                         .dtype = dtype,
                         .transposed = variant & 1},
               .start = (variant & 2) && !(variant & 1),
               .shared = (variant & 4) != 0,
               .in_place = (variant & 8) != 0,
               .scheme = scheme,
               .chunk = chunk};
    make_chain(&c, (uint64_t)(length * 31 + variant));
    host_solve(&c);
    begin(&c);
    finish(&c);
    compare(&c);
    free_chain(&c);
}

static void once(dpcr_transition transition, dpcr_dtype dtype, int64_t length, int64_t batch, int variant) {
    once_by(DPCR_SCHEME_AUTO, 0, transition, dtype, length, batch, variant);
}

// ---- suites ----

static dpcr_transition form(int i) {
    static const int kinds[][3] = {{DPCR_ZERO, 3, 0},     {DPCR_IDENTITY, 2, 0},  {DPCR_SCALAR, 3, 0},
                                   {DPCR_DIAGONAL, 1, 0}, {DPCR_DIAGONAL, 37, 0}, {DPCR_BLOCK, 6, 2},
                                   {DPCR_BLOCK, 6, 3},    {DPCR_BLOCK, 8, 4}};
    if (i < 8) return dpcr_transition_square((dpcr_structure)kinds[i][0], kinds[i][1], kinds[i][2]);
    return dpcr_transition_square(DPCR_DENSE, i - 7, 0);  // 1..16
}
enum { FORMS = 24 };

static void every_form(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 33, 257, 1025};
    for (int f = 0; f < FORMS; f++)
        for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
            for (int l = 0; l < 4; l++)
                for (int variant = 0; variant < 16; variant += l == 3 ? 5 : 1)
                    if (l != 1 || variant < 4) once(form(f), (dpcr_dtype)dtype, lengths[l], 1 + f % 3, variant);
}

static void every_short_length(void **state) {
    (void)state;
    for (int64_t length = 1; length <= 130; length++)
        for (int i = 0; i < 3; i++)
            once(dpcr_transition_square(i == 0 ? DPCR_DIAGONAL : DPCR_DENSE, 1 + i, 0), DPCR_U32, length, 2,
                 (int)(length % 4));
}

static void long_chains(void **state) {
    (void)state;
    static const int64_t lengths[] = {8191, 32769, 100003};
    for (int l = 0; l < 3; l++)
        for (int transposed = 0; transposed < 2; transposed++) {
            once(dpcr_transition_square(DPCR_DIAGONAL, 2, 0), DPCR_U32, lengths[l], 1, transposed);
            once(dpcr_transition_square(DPCR_DENSE, 2, 0), DPCR_U32, lengths[l], 1, transposed);
        }
    once(dpcr_transition_square(DPCR_DENSE, 4, 0), DPCR_F32, 32769, 1, 0);
    once(dpcr_transition_square(DPCR_DIAGONAL, 64, 0), DPCR_F32, 4099, 5, 0);
}

// So long that tiles outnumber a device's blocks many times over, where DEEPPCR_DEVICE_LONGEST asks for that: the
// simulator would take minutes.
static void longest_chains(void **state) {
    (void)state;
    const char *asked = getenv("DEEPPCR_DEVICE_LONGEST");
    const int64_t length = asked ? atoll(asked) : 50021;
    for (int transposed = 0; transposed < 2; transposed++)
        for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++) {
            const dpcr_dtype type = (dpcr_dtype)dtype;
            once(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), type, length, 1, transposed);
            once(dpcr_transition_square(DPCR_DENSE, 2, 0), type, length / 4, 1, transposed + 2);
            once(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), type, length / 32, 37, transposed);
            once(dpcr_transition_square(DPCR_BLOCK, 8, 2), type, length / 64, 5, transposed);
        }
}

// Wider than multiplies on chip: by the loop and by products of chunks.
static void wide_chains(void **state) {
    (void)state;
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_CHUNKED, DPCR_SCHEME_AUTO};
    static const int64_t widths[] = {17, 32, 33, 64, 100, 129}, lengths[] = {1, 2, 20, 130}, chunks[] = {0, 1, 7};
    int n = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
        for (int w = 0; w < 6; w++)
            for (int l = 0; l < (widths[w] < 40 ? 4 : 3); l++, n++)  // the simulator multiplies one by one
                for (int s = 0; s < 3; s++)
                    once_by(schemes[s], chunks[n % 3],
                            n % 5 == 4 ? dpcr_transition_square(DPCR_BLOCK, 2 * widths[w], widths[w])
                                       : dpcr_transition_square(DPCR_DENSE, widths[w], 0),
                            (dpcr_dtype)dtype, lengths[l], 1 + n % 5, n % 16);
}

// A csr chain's loop on the host: step by step, from z0 or from the first state.
static void host_sparse(chain *c) {
    const int64_t rows = c->shape.batch, w = c->shape.transition.rows;
    const int64_t values = dpcr_transition_values(&c->shape.transition);
    const size_t size = dpcr_dtype_size(c->shape.dtype);
    dpcr_error error = {0};
    const int64_t one[] = {1, rows, w}, of_a[] = {1, rows, values};
    for (int64_t n = 0; n < c->shape.length; n++) {
        const bool back = c->shape.transposed != 0;
        const int64_t l = back ? c->shape.length - 1 - n : n, at = c->shared ? 0 : back ? l + 1 : l;
        char *const z = c->host[Z].data, *const b = c->host[B].data, *const a = c->host[A].data;
        const size_t state = (size_t)(rows * w) * size;
        char *const before = n == 0 ? c->host[Z0].data : z + (size_t)(back ? l + 1 : l - 1) * state;
        const dpcr_array to = dpcr_array_make(z + (size_t)l * state, c->shape.dtype, 3, one),
                         from = dpcr_array_make(before, c->shape.dtype, 3, one),
                         add = dpcr_array_make(b + (size_t)l * state, c->shape.dtype, 3, one);
        if (n == 0 && !c->start) {
            memcpy(to.data, add.data, state);
            continue;
        }
        const dpcr_array step = dpcr_array_make(a + (size_t)(at * rows * values) * size, c->shape.dtype, 3, of_a);
        ok(dpcr_transition_apply(&c->shape.transition, back, &step, &from, &add, &to, &error), &error);
    }
}

static void sparse_once(dpcr_scheme scheme, dpcr_dtype dtype, int64_t w, int64_t length, int n) {
    if (left_out()) return;
    int64_t *const offsets = malloc((size_t)(w + 1) * sizeof *offsets);
    int32_t *const columns = malloc((size_t)(w * w) * sizeof *columns);
    assert_true(offsets && columns);
    offsets[0] = 0;
    for (int64_t i = 0; i < w; i++) {  // a band, and some far from it
        offsets[i + 1] = offsets[i];
        for (int64_t j = 0; j < w; j++)
            if ((j >= i - 1 && j <= i + 1) || (i * 7 + j * 3) % 11 == n % 11) columns[offsets[i + 1]++] = (int32_t)j;
    }
    const dpcr_pattern pattern = {.rows = w, .cols = w, .offsets = offsets, .columns = columns};
    chain c = {.shape = {.length = length,
                         .batch = 1 + n % 5,
                         .transition = dpcr_transition_csr(&pattern),
                         .dtype = dtype,
                         .transposed = n & 1},
               .start = (n & 2) && !(n & 1),
               .shared = (n & 4) != 0,
               .in_place = (n & 8) != 0,
               .scheme = scheme,
               .chunk = n % 3 ? 0 : 7};
    make_chain(&c, (uint64_t)n);
    host_sparse(&c);
    begin(&c);
    finish(&c);
    compare(&c);
    free_chain(&c);
    free(offsets), free(columns);
}

static void sparse_chains(void **state) {
    (void)state;
    static const dpcr_scheme schemes[] = {DPCR_SCHEME_SEQUENTIAL, DPCR_SCHEME_CHUNKED, DPCR_SCHEME_AUTO};
    static const int64_t widths[] = {1, 2, 9, 33, 70}, lengths[] = {1, 2, 33, 130};
    int n = 0;
    for (int dtype = DPCR_F32; dtype <= DPCR_U32; dtype++)
        for (int w = 0; w < 5; w++)
            for (int l = 0; l < 4; l++, n++)
                for (int s = 0; s < 3; s++) sparse_once(schemes[s], (dpcr_dtype)dtype, widths[w], lengths[l], n);
}

static void streams_side_by_side(void **state) {
    (void)state;
    chain c[3];
    memset(c, 0, sizeof c);
    for (int i = 0; i < 3; i++) {
        c[i].shape = (dpcr_chain_shape){
            .length = 3000 + i, .batch = 2, .transition = dpcr_transition_square(DPCR_DENSE, 2, 0), .dtype = DPCR_U32};
        make_chain(&c[i], 5 + (uint64_t)i);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) begin(&c[i]);
        for (int i = 2; i >= 0; i--) finish(&c[i]);
        for (int i = 0; i < 3; i++) {
            host_solve(&c[i]);
            compare(&c[i]);
        }
    }
    for (int i = 0; i < 3; i++) free_chain(&c[i]);
}

static void again_and_again(dpcr_transition transition, int64_t length, int64_t batch, int launches) {
    chain c = {.shape = {.length = length, .batch = batch, .transition = transition, .dtype = DPCR_F32}, .start = true};
    make_chain(&c, 11);
    begin(&c);
    finish(&c);
    void *first = malloc(c.bytes[Z]);
    assert_non_null(first);
    memcpy(first, c.got, c.bytes[Z]);
    for (int i = 0; i < launches; i++) {
        begin(&c);
        if (i % 8) continue;
        finish(&c);
        assert_memory_equal(first, c.got, c.bytes[Z]);
    }
    finish(&c);
    assert_memory_equal(first, c.got, c.bytes[Z]);
    free(first);
    free_chain(&c);
}

static void the_same_bits_again(void **state) {
    (void)state;
    const char *asked = getenv("DEEPPCR_DEVICE_LAUNCHES"), *longest = getenv("DEEPPCR_DEVICE_LONGEST");
    const int launches = asked ? atoi(asked) : 200;
    again_and_again(dpcr_transition_square(DPCR_DENSE, 3, 0), 5000, 3, launches);
    again_and_again(dpcr_transition_square(DPCR_DIAGONAL, 1, 0), longest ? atoll(longest) / 8 : 30011, 1,
                    longest ? launches / 10 : 3);
    again_and_again(dpcr_transition_square(DPCR_DENSE, 2, 0), longest ? atoll(longest) / 512 : 1201, 40,
                    longest ? launches / 10 : 3);
}

static void a_nan_stays_in_its_sequence(void **state) {
    (void)state;
    dpcr_error error = {0};
    chain c = {
        .shape = {
            .length = 2000, .batch = 3, .transition = dpcr_transition_square(DPCR_DENSE, 2, 0), .dtype = DPCR_F32}};
    make_chain(&c, 21);
    begin(&c);
    finish(&c);
    float *clean = malloc(c.bytes[Z]);
    assert_non_null(clean);
    memcpy(clean, c.got, c.bytes[Z]);
    ((float *)c.host[B].data)[(700 * 3 + 1) * 2] = NAN;  // step 700 of sequence 1
    ok(dpcr_device_copy(there, c.device[B].data, here, c.host[B].data, c.bytes[B], c.stream, &error), &error);
    begin(&c);
    finish(&c);
    const float *got = c.got;
    for (int64_t i = 0; i < 2000 * 3; i++)
        for (int j = 0; j < 2; j++) {
            const int64_t l = i / 3, row = i % 3, at = i * 2 + j;
            if (row != 1 || l < 700)
                assert_memory_equal(&got[at], &clean[at], sizeof *got);
            else if (l > 700)
                assert_true(isnan(got[at]));
        }
    free(clean);
    free_chain(&c);
}

// ---- nonlinear chains: cells and recurrent networks by the public calls ----

void *to_device(const void *host, size_t bytes) {
    void *memory = NULL;
    dpcr_error error = {0};
    ok(dpcr_device_allocate(there, bytes ? bytes : 1, &memory, &error), &error);
    if (host) ok(dpcr_device_copy(there, memory, here, host, bytes, NULL, &error), &error);
    ok(dpcr_stream_wait(there, NULL, &error), &error);
    return memory;
}

void from_device(void *host, const void *device, size_t bytes) {
    dpcr_error error = {0};
    ok(dpcr_device_copy(here, host, there, device, bytes, NULL, &error), &error);
    ok(dpcr_stream_wait(there, NULL, &error), &error);
}

moved make_moved(dpcr_dtype dtype, int ndim, const int64_t *shape, uint64_t seed, double scale) {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    moved m = {.bytes = (size_t)count * dpcr_dtype_size(dtype)};
    m.host = dpcr_array_make(calloc(1, m.bytes + 8), dtype, ndim, shape);
    m.got = calloc(1, m.bytes + 8);
    assert_true(m.host.data && m.got);
    fill_numbers(&m.host, count, seed, scale);
    m.device = m.host;
    m.device.device = there;
    m.device.data = to_device(m.host.data, m.bytes);
    return m;
}

void free_moved(moved *m) {
    free(m->host.data);
    free(m->got);
    dpcr_device_release(there, m->device.data);
}

void assert_near(moved *m, double allowed, const char *what) {
    from_device(m->got, m->device.data, m->bytes);
    const int64_t count = (int64_t)(m->bytes / dpcr_dtype_size(m->host.dtype));
    for (int64_t i = 0; i < count; i++) {
        const double got = number(m->got, m->host.dtype, i), wanted = number(m->host.data, m->host.dtype, i);
        if (!(fabs(got - wanted) <= allowed * (1 + fabs(wanted))))
            fail_msg("%s: number %lld is %.9g, the host's %.9g", what, (long long)i, got, wanted);
    }
}

typedef struct cell_job {
    dpcr_cell_options options;
    dpcr_method method;
    bool start;
} cell_job;

static void solve_cell(const cell_job *job) {
    if (left_out()) return;
    dpcr_cell_options o = job->options;
    const int64_t w = o.width, states[3] = {o.length, o.batch, w}, weights[3] = {w, w, 1};
    const bool dense = o.kind == DPCR_CELL_DENSE;
    const double near = o.dtype == DPCR_F64 ? 1e-8 : 3e-4;
    moved weight = make_moved(o.dtype, dense ? 2 : 1, weights, 3, 0.8 / (dense ? (double)w : 1)),
          x = make_moved(o.dtype, 3, states, 4, 1), z0 = make_moved(o.dtype, 2, states + 1, 5, 1),
          z = make_moved(o.dtype, 3, states, 6, 1), direct = make_moved(o.dtype, 3, states, 7, 1),
          lambda = make_moved(o.dtype, 3, states, 8, 1), dz0 = make_moved(o.dtype, 2, states + 1, 9, 1);
    if (!job->start) memset(z0.host.data, 0, z0.bytes);
    dpcr_cell *cells[2] = {NULL};
    dpcr_solve_plan *plans[2] = {NULL};
    dpcr_error error = {0};
    for (int i = 0; i < 2; i++) {  // the host, the device
        dpcr_steps steps = {.size = sizeof steps};
        const dpcr_solve_options options = {.size = sizeof options,
                                            .method = i ? job->method : DPCR_METHOD_SEQUENTIAL,
                                            .backward = i ? DPCR_SCHEME_AUTO : DPCR_SCHEME_SEQUENTIAL,
                                            .device = i ? there : here};
        o.weight = i ? weight.device : weight.host;
        o.input = i ? x.device : x.host;
        ok(dpcr_cell_create(context, &o, &cells[i], &error), &error);
        ok(dpcr_cell_steps(cells[i], &steps, &error), &error);
        ok(dpcr_solve_plan_create(context, &steps, &options, &plans[i], &error), &error);
    }
    const size_t host_bytes = dpcr_solve_plan_workspace(plans[0]), bytes = dpcr_solve_plan_workspace(plans[1]);
    void *host_workspace = aligned_alloc(64, (host_bytes + 127) / 64 * 64), *workspace = to_device(NULL, bytes);
    ok(dpcr_solve_execute(plans[0], &z0.host, &z.host, NULL, host_workspace, host_bytes, NULL, &error), &error);
    ok(dpcr_solve_backward(plans[0], &z0.host, &z.host, NULL, &direct.host, NULL, &lambda.host, &dz0.host,
                           host_workspace, host_bytes, NULL, &error),
       &error);
    ok(dpcr_solve_enqueue(plans[1], job->start ? &z0.device : NULL, &z.device, workspace, bytes, NULL, &error), &error);
    dpcr_solve_report report = {.size = sizeof report};
    ok(dpcr_solve_collect(plans[1], workspace, bytes, NULL, &report, &error), &error);
    assert_true(report.reason > 0 && report.method == dpcr_solve_plan_method(plans[1]));
    assert_true(job->method == DPCR_METHOD_AUTO || report.method == job->method);
    assert_near(&z, near, "states");
    ok(dpcr_solve_enqueue_backward(plans[1], job->start ? &z0.device : NULL, &z.device, &direct.device, &lambda.device,
                                   &dz0.device, workspace, bytes, NULL, &error),
       &error);
    assert_near(&lambda, 10 * near, "lambda");
    assert_near(&dz0, 10 * near, "dz0");
    for (int i = 0; i < 2; i++) {
        dpcr_solve_plan_destroy(plans[i]);
        dpcr_cell_destroy(cells[i]);
    }
    moved *const all[] = {&weight, &x, &z0, &z, &direct, &lambda, &dz0};
    for (int i = 0; i < 7; i++) free_moved(all[i]);
    free(host_workspace);
    dpcr_device_release(there, workspace);
}

static void cells_as_on_the_host(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_AUTO, DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP,
                                          DPCR_METHOD_NEWTON};
    static const int64_t widths[] = {1, 2, 4, 9}, lengths[] = {1, 70, 600, 1500};
    static const dpcr_activation activations[] = {DPCR_ACT_TANH, DPCR_ACT_GELU, DPCR_ACT_SIGMOID, DPCR_ACT_SILU};
    int n = 0;
    for (int m = 0; m < 4; m++)
        for (int i = 0; i < 4; i++)
            for (int l = 0; l < 4; l++, n++)
                solve_cell(&(cell_job){.method = methods[m],
                                       .start = n % 3 != 0,
                                       .options = {.size = sizeof(dpcr_cell_options),
                                                   .kind = i == 3 ? DPCR_CELL_DIAGONAL : DPCR_CELL_DENSE,
                                                   .dtype = n % 2 ? DPCR_F64 : DPCR_F32,
                                                   .length = lengths[l],
                                                   .batch = 1 + n % 3,
                                                   .width = widths[i],
                                                   .scale = n % 5 == 4 ? 0.05 : 0,
                                                   .activation = activations[n / 2 % 4]}});
}

// A chain that ends beyond all numbers has its loop's states and no error estimate.
static void an_infinite_end_is_not_converged(void **state) {
    (void)state;
    static const dpcr_method methods[] = {DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};
    for (int m = 0; m < 2; m++) {
        const int64_t states[3] = {600, 1, 1};
        moved weight = make_moved(DPCR_F32, 2, states + 1, 3, 0), x = make_moved(DPCR_F32, 3, states, 4, 0),
              z = make_moved(DPCR_F32, 3, states, 5, 1);
        const float two = 2;
        float ones[600];
        for (int l = 0; l < 600; l++) ones[l] = 1;
        dpcr_error error = {0};
        ok(dpcr_device_copy(there, weight.device.data, here, &two, sizeof two, NULL, &error), &error);
        ok(dpcr_device_copy(there, x.device.data, here, ones, sizeof ones, NULL, &error), &error);
        const dpcr_cell_options o = {.size = sizeof o,
                                     .kind = DPCR_CELL_DENSE,
                                     .dtype = DPCR_F32,
                                     .length = 600,
                                     .batch = 1,
                                     .width = 1,
                                     .activation = DPCR_ACT_RELU,
                                     .weight = weight.device,
                                     .input = x.device};
        const dpcr_solve_options options = {
            .size = sizeof options, .method = methods[m], .chunk = 64, .warm_up = 16, .device = there};
        dpcr_cell *cell = NULL;
        dpcr_steps steps = {.size = sizeof steps};
        dpcr_solve_plan *plan = NULL;
        ok(dpcr_cell_create(context, &o, &cell, &error), &error);
        ok(dpcr_cell_steps(cell, &steps, &error), &error);
        ok(dpcr_solve_plan_create(context, &steps, &options, &plan, &error), &error);
        const size_t bytes = dpcr_solve_plan_workspace(plan);
        void *workspace = to_device(NULL, bytes);
        dpcr_solve_report report = {.size = sizeof report};
        ok(dpcr_solve_enqueue(plan, NULL, &z.device, workspace, bytes, NULL, &error), &error);
        ok(dpcr_solve_collect(plan, workspace, bytes, NULL, &report, &error), &error);
        assert_true(report.reason != DPCR_REASON_CONVERGED && report.reason != DPCR_REASON_EXACT);
        from_device(z.got, z.device.data, z.bytes);
        const float *got = z.got;
        assert_true(got[100] == (float)(0x1p101 - 1) && isinf(got[599]));
        dpcr_solve_plan_destroy(plan);
        dpcr_cell_destroy(cell);
        dpcr_device_release(there, workspace);
        free_moved(&weight), free_moved(&x), free_moved(&z);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form),
        cmocka_unit_test(every_short_length),
        cmocka_unit_test(long_chains),
        cmocka_unit_test(longest_chains),
        cmocka_unit_test(wide_chains),
        cmocka_unit_test(sparse_chains),
        cmocka_unit_test(streams_side_by_side),
        cmocka_unit_test(the_same_bits_again),
        cmocka_unit_test(a_nan_stays_in_its_sequence),
        cmocka_unit_test(cells_as_on_the_host),
        cmocka_unit_test(networks_as_on_the_host),
        cmocka_unit_test(layers_as_on_the_host),
        cmocka_unit_test(units_that_blocks_share),
        cmocka_unit_test(layers_that_are_refused),
        cmocka_unit_test(updates_as_on_the_host),
        cmocka_unit_test(clipping_as_on_the_host),
        cmocka_unit_test(ties_as_on_the_host),
        cmocka_unit_test(training_that_is_refused),
        cmocka_unit_test(training_as_on_the_host),
        cmocka_unit_test(training_goes_on),
        cmocka_unit_test(networks_that_are_refused),
        cmocka_unit_test(steps_that_fail),
        cmocka_unit_test(memory_that_is_refused),
        cmocka_unit_test(checkpoints_of_the_processor),
        cmocka_unit_test(evaluation_is_cancelled),
        cmocka_unit_test(sequences_as_on_the_host),
        cmocka_unit_test(dropout_as_on_the_host),
        cmocka_unit_test(segments_as_on_the_host),
        cmocka_unit_test(wide_batches_of_sequences),
        cmocka_unit_test(sequences_go_on),
        cmocka_unit_test(sequences_of_the_processor),
        cmocka_unit_test(sequences_that_are_refused),
        cmocka_unit_test(steps_of_sequences_that_fail),
        cmocka_unit_test(memory_of_sequences_that_is_refused),
        cmocka_unit_test(copies_of_sequences_that_fail),
        cmocka_unit_test(samples_as_on_the_host),
        cmocka_unit_test(sweeps_as_on_the_host),
        cmocka_unit_test(sweeps_in_blocks),
        cmocka_unit_test(samplers_that_are_refused),
        cmocka_unit_test(reports_of_sweeps_that_fail),
        cmocka_unit_test(an_infinite_end_is_not_converged),
        cmocka_unit_test(newtons_way_back_is_a_scan_or_chunks),
    };
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) puts(tests[i].name);
        return 0;
    }
    size_t named = 0;
    for (size_t i = 0; argc > 1 && i < sizeof tests / sizeof *tests; i++)
        named += fnmatch(argv[1], tests[i].name, 0) == 0;
    if (argc > 1 && named == 0) {
        fprintf(stderr, "test_on_device: no test '%s' (--list names them)\n", argv[1]);
        return 2;
    }
    const char *name = getenv("DEEPPCR_DEVICE");
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    if (dpcr_device_find(name ? name : "cuda", &there, &error) != DPCR_OK) {
        fprintf(stderr, "test_on_device: %s\n", error.text);
        return 1;
    }
    if (dpcr_device_describe(there, &info, &error) != DPCR_OK) {
        printf("test_on_device: skipped: %s\n", error.text);
        return 77;
    }
    printf("test_on_device: %s, compute capability %d.%d\n", info.name, info.major, info.minor);
    if (dpcr_context_create(NULL, &context, &error) != DPCR_OK) return 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests_name("on_device", tests, NULL, NULL);
    dpcr_context_destroy(context);
    return failed != 0;
}
