// SPDX-License-Identifier: MIT
// Linear chains on a device beside a copy of its memory: bytes that a chain has to move (a, b, z once each) over the
// time of a solve, against a copy in the same run; of dense ones wider than 16 by the loop and by products of chunks.
// Medians of solves timed one by one by the device's events; arrays rotate, so that its caches do not help. CSV on
// standard output.
//
//   bench_gpu_chains [--device cuda:N] [--bytes N] [--repetitions N] [--seconds S] [--structure NAME]
#include <inttypes.h>

#include "events.h"

enum { SETS = 8 };

typedef struct bench {
    gpu on;
    const char *only;
    double copy;  // bytes a second, read and written
    size_t bytes;
} bench;

typedef struct chain {
    dpcr_chain_plan *plan;
    dpcr_array a[SETS], b[SETS], z[SETS];
    void *workspace;
    int64_t copy_bytes;  // > 0: a copy instead
} chain;

static void solve(const gpu *t, const void *argument, int set) {
    const chain *c = argument;
    dpcr_error error = {0};
    if (c->copy_bytes > 0)
        must(t->table->copy(t->device.id, c->z[set].data, c->b[set].data, (size_t)c->copy_bytes, DPCRI_ON_DEVICE,
                            t->stream, &error),
             &error);
    else
        must(dpcr_chain_enqueue(c->plan, &c->a[set], &c->b[set], NULL, &c->z[set], c->workspace,
                                dpcr_chain_plan_workspace(c->plan), t->stream, &error),
             &error);
}

// Zeros: the time does not depend on the numbers, and nothing overflows.
static dpcr_array numbers(const gpu *t, dpcr_dtype dtype, const int64_t *shape) {
    dpcr_error error = {0};
    dpcr_array array = dpcr_array_make(NULL, dtype, 3, shape);
    const size_t bytes = (size_t)(shape[0] * shape[1] * shape[2]) * dpcr_dtype_size(dtype);
    array.device = t->device;
    must(dpcr_device_allocate(t->device, bytes, &array.data, &error), &error);
    if (bytes) must(t->table->fill(t->device.id, array.data, 0, bytes, t->stream, &error), &error);
    return array;
}

static void print_row(const bench *t, const char *what, int64_t width, const char *scheme, dpcr_dtype dtype,
                      int64_t length, int64_t batch, int transposed, int runs, double bytes, double seconds) {
    gpu_row(&t->on);
    printf("%s,%" PRId64 ",%s,%s,%" PRId64 ",%" PRId64 ",%d,%d,%.0f,%.4g,%.4g,%.4g,%.4g\n", what, width, scheme,
           dpcr_dtype_name(dtype), length, batch, transposed, runs, bytes, 1e6 * seconds, 1e-9 * bytes / seconds,
           1e-9 * t->copy, t->copy > 0 ? bytes / seconds / t->copy : 1);
    fflush(stdout);
}

// Sets whose arrays together are four times the last cache, and at least two.
static int sets_for(const bench *t, double bytes) {
    int sets = 2;
    while (sets < SETS && sets * bytes < 4.0 * (double)t->on.info.cache_bytes) sets++;
    return sets;
}

static void time_chain(const bench *t, dpcr_structure structure, int64_t width, dpcr_scheme scheme, dpcr_dtype dtype,
                       int64_t batch, int transposed) {
    const dpcr_transition transition = dpcr_transition_square(structure, width, 2);
    const int64_t values = dpcr_transition_values(&transition), size = (int64_t)dpcr_dtype_size(dtype);
    const int64_t step = batch * (values + 2 * width) * size, length = (int64_t)t->bytes / step;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = length,
                                    .batch = batch,
                                    .transition = transition,
                                    .dtype = dtype,
                                    .transposed = transposed};
    const dpcr_chain_options options = {.size = sizeof options, .scheme = scheme, .device = t->on.device};
    const int sets = sets_for(t, (double)(length * step));
    chain c = {.plan = NULL};
    dpcr_error error = {0};
    if (length < 1 || (t->only && strcmp(t->only, dpcr_structure_name(structure)) != 0)) return;
    must(dpcr_chain_plan_create(t->on.context, &shape, &options, &c.plan, &error), &error);
    must(dpcr_device_allocate(t->on.device, dpcr_chain_plan_workspace(c.plan), &c.workspace, &error), &error);
    for (int i = 0; i < sets; i++) {
        c.a[i] = numbers(&t->on, dtype, (const int64_t[]){length, batch, values});
        c.b[i] = numbers(&t->on, dtype, (const int64_t[]){length, batch, width});
        c.z[i] = numbers(&t->on, dtype, (const int64_t[]){length, batch, width});
    }
    int runs = 0;
    const double seconds = median(&t->on, solve, &c, sets, &runs);
    print_row(t, dpcr_structure_name(structure), width, dpcr_scheme_name(scheme), dtype, length, batch, transposed,
              runs, (double)(length * step), seconds);
    for (int i = 0; i < sets; i++) {
        dpcr_device_release(t->on.device, c.a[i].data);
        dpcr_device_release(t->on.device, c.b[i].data);
        dpcr_device_release(t->on.device, c.z[i].data);
    }
    dpcr_device_release(t->on.device, c.workspace);
    dpcr_chain_plan_destroy(c.plan);
}

static void time_copy(bench *t) {
    const int64_t count = (int64_t)(t->bytes / 8);
    const int sets = sets_for(t, (double)t->bytes);
    chain c = {.copy_bytes = 4 * count};
    for (int i = 0; i < sets; i++) {
        c.b[i] = numbers(&t->on, DPCR_F32, (const int64_t[]){count, 1, 1});
        c.z[i] = numbers(&t->on, DPCR_F32, (const int64_t[]){count, 1, 1});
    }
    int runs = 0;
    const double bytes = 2.0 * (double)c.copy_bytes, seconds = median(&t->on, solve, &c, sets, &runs);
    t->copy = bytes / seconds;
    print_row(t, "copy", 1, "-", DPCR_F32, count, 1, 0, runs, bytes, seconds);
    for (int i = 0; i < sets; i++) {
        dpcr_device_release(t->on.device, c.b[i].data);
        dpcr_device_release(t->on.device, c.z[i].data);
    }
}

static void run_all(bench *t) {
    static const struct {
        dpcr_structure structure;
        int width;
        dpcr_scheme scheme;
    } forms[] = {{DPCR_DIAGONAL, 1, DPCR_SCHEME_CHUNKED},    {DPCR_DIAGONAL, 64, DPCR_SCHEME_CHUNKED},
                 {DPCR_DIAGONAL, 1024, DPCR_SCHEME_CHUNKED}, {DPCR_BLOCK, 64, DPCR_SCHEME_CHUNKED},
                 {DPCR_DENSE, 2, DPCR_SCHEME_CHUNKED},       {DPCR_DENSE, 3, DPCR_SCHEME_CHUNKED},
                 {DPCR_DENSE, 4, DPCR_SCHEME_CHUNKED},       {DPCR_DENSE, 8, DPCR_SCHEME_CHUNKED},
                 {DPCR_DENSE, 16, DPCR_SCHEME_CHUNKED},      {DPCR_SCALAR, 64, DPCR_SCHEME_CHUNKED},
                 {DPCR_DENSE, 32, DPCR_SCHEME_CHUNKED},      {DPCR_DENSE, 32, DPCR_SCHEME_SEQUENTIAL},
                 {DPCR_DENSE, 64, DPCR_SCHEME_CHUNKED},      {DPCR_DENSE, 64, DPCR_SCHEME_SEQUENTIAL},
                 {DPCR_DENSE, 256, DPCR_SCHEME_CHUNKED},     {DPCR_DENSE, 256, DPCR_SCHEME_SEQUENTIAL}};
    time_copy(t);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (int64_t batch = 1; batch <= 64; batch *= 64)
                for (int transposed = 0; transposed < 2 && (batch > 1 || forms[f].scheme != DPCR_SCHEME_SEQUENTIAL);
                     transposed++)
                    time_chain(t, forms[f].structure, forms[f].width, forms[f].scheme, (dpcr_dtype)dtype, batch,
                               transposed);
}

int main(int argc, char **argv) {
    bench t = {.bytes = strtoull(value_of(argc, argv, "--bytes", "1073741824"), NULL, 10),
               .only = value_of(argc, argv, "--structure", NULL)};
    if (t.bytes < 4096 || t.bytes > (size_t)1 << 40) {
        fprintf(stderr, "bench_gpu_chains: wanted 4096 bytes or more\n");
        return 2;
    }
    gpu_open(&t.on, "bench_gpu_chains", argc, argv);
    printf(GPU_COLUMNS
           "structure,width,scheme,dtype,length,batch,transposed,repetitions,bytes,median_us,gb_per_s,copy_gb_per_s,of_"
           "copy\n");
    run_all(&t);
    gpu_close(&t.on);
    return 0;
}
