// SPDX-License-Identifier: MIT
// Linear chains on a device beside a copy of its memory: bytes that a chain has to move (a, b, z once each) over the
// time of a solve, against a copy in the same run. Medians of solves timed one by one by the device's events; arrays
// rotate, so that its caches do not help. CSV on standard output. Not yet run on a device.
//
//   bench_gpu_chains [--device cuda:N] [--bytes N] [--repetitions N] [--structure NAME]
#include <inttypes.h>
#include <string.h>

#include "../timing.h"
#include "rt/dev/device.h"

enum { SETS = 8, MOST = 101 };

typedef struct bench {
    dpcr_context *context;
    dpcr_device device;
    const dpcri_device_table *table;
    dpcr_device_info info;
    const char *only, *command;
    double copy;  // bytes a second, read and written
    size_t bytes;
    int repetitions;
    void *stream, *events[2];
} bench;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct chain {
    dpcr_chain_plan *plan;
    dpcr_array a[SETS], b[SETS], z[SETS];
    void *workspace;
    int64_t copy_bytes;  // > 0: a copy instead
} chain;

static void solve(const bench *t, const chain *c, int set) {
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

static double median(const bench *t, const chain *c, int sets) {
    double times[MOST];
    dpcr_error error = {0};
    for (int i = -3; i < t->repetitions; i++) {  // the first ones warm up
        must(t->table->event_record(t->device.id, t->events[0], t->stream, &error), &error);
        solve(t, c, (i + 3) % sets);
        must(t->table->event_record(t->device.id, t->events[1], t->stream, &error), &error);
        must(dpcr_stream_wait(t->device, t->stream, &error), &error);
        if (i >= 0) must(t->table->event_seconds(t->device.id, t->events[0], t->events[1], &times[i], &error), &error);
    }
    qsort(times, (size_t)t->repetitions, sizeof *times, by_size);
    return times[t->repetitions / 2];
}

// Zeros: the time does not depend on the numbers, and nothing overflows.
static dpcr_array numbers(const bench *t, dpcr_dtype dtype, const int64_t *shape) {
    dpcr_error error = {0};
    dpcr_array array = dpcr_array_make(NULL, dtype, 3, shape);
    const size_t bytes = (size_t)(shape[0] * shape[1] * shape[2]) * dpcr_dtype_size(dtype);
    array.device = t->device;
    must(dpcr_device_allocate(t->device, bytes, &array.data, &error), &error);
    if (bytes) must(t->table->fill(t->device.id, array.data, 0, bytes, t->stream, &error), &error);
    return array;
}

static void print_row(const bench *t, const char *what, int64_t width, dpcr_dtype dtype, int64_t length, int64_t batch,
                      int transposed, double bytes, double seconds) {
    printf("\"%s\",%d.%d,%d,%d,\"%s\",%s,%" PRId64 ",%s,%" PRId64 ",%" PRId64 ",%d,%d,%.0f,%.4g,%.4g,%.4g,%.4g\n",
           t->info.name, t->info.major, t->info.minor, t->info.driver, t->info.runtime, t->command, what, width,
           dpcr_dtype_name(dtype), length, batch, transposed, t->repetitions, bytes, 1e6 * seconds,
           1e-9 * bytes / seconds, 1e-9 * t->copy, t->copy > 0 ? bytes / seconds / t->copy : 1);
    fflush(stdout);
}

// Sets whose arrays together are four times the last cache, and at least two.
static int sets_for(const bench *t, double bytes) {
    int sets = 2;
    while (sets < SETS && sets * bytes < 4.0 * (double)t->info.cache_bytes) sets++;
    return sets;
}

static void time_chain(const bench *t, dpcr_structure structure, int64_t width, dpcr_dtype dtype, int64_t batch,
                       int transposed) {
    const dpcr_transition transition = dpcr_transition_square(structure, width, 2);
    const int64_t values = dpcr_transition_values(&transition), size = (int64_t)dpcr_dtype_size(dtype);
    const int64_t step = batch * (values + 2 * width) * size, length = (int64_t)t->bytes / step;
    const dpcr_chain_shape shape = {.size = sizeof shape,
                                    .length = length,
                                    .batch = batch,
                                    .transition = transition,
                                    .dtype = dtype,
                                    .transposed = transposed};
    const dpcr_chain_options options = {.size = sizeof options, .device = t->device};
    const int sets = sets_for(t, (double)(length * step));
    chain c = {.plan = NULL};
    dpcr_error error = {0};
    if (length < 1 || (t->only && strcmp(t->only, dpcr_structure_name(structure)) != 0)) return;
    must(dpcr_chain_plan_create(t->context, &shape, &options, &c.plan, &error), &error);
    must(dpcr_device_allocate(t->device, dpcr_chain_plan_workspace(c.plan), &c.workspace, &error), &error);
    for (int i = 0; i < sets; i++) {
        c.a[i] = numbers(t, dtype, (const int64_t[]){length, batch, values});
        c.b[i] = numbers(t, dtype, (const int64_t[]){length, batch, width});
        c.z[i] = numbers(t, dtype, (const int64_t[]){length, batch, width});
    }
    print_row(t, dpcr_structure_name(structure), width, dtype, length, batch, transposed, (double)(length * step),
              median(t, &c, sets));
    for (int i = 0; i < sets; i++) {
        dpcr_device_release(t->device, c.a[i].data);
        dpcr_device_release(t->device, c.b[i].data);
        dpcr_device_release(t->device, c.z[i].data);
    }
    dpcr_device_release(t->device, c.workspace);
    dpcr_chain_plan_destroy(c.plan);
}

static void time_copy(bench *t) {
    const int64_t count = (int64_t)(t->bytes / 8);
    const int sets = sets_for(t, (double)t->bytes);
    chain c = {.copy_bytes = 4 * count};
    for (int i = 0; i < sets; i++) {
        c.b[i] = numbers(t, DPCR_F32, (const int64_t[]){count, 1, 1});
        c.z[i] = numbers(t, DPCR_F32, (const int64_t[]){count, 1, 1});
    }
    const double bytes = 2.0 * (double)c.copy_bytes, seconds = median(t, &c, sets);
    t->copy = bytes / seconds;
    print_row(t, "copy", 1, DPCR_F32, count, 1, 0, bytes, seconds);
    for (int i = 0; i < sets; i++) {
        dpcr_device_release(t->device, c.b[i].data);
        dpcr_device_release(t->device, c.z[i].data);
    }
}

static void run_all(bench *t) {
    static const struct {
        dpcr_structure structure;
        int width;
    } forms[] = {{DPCR_DIAGONAL, 1}, {DPCR_DIAGONAL, 64}, {DPCR_DIAGONAL, 1024}, {DPCR_BLOCK, 64}, {DPCR_DENSE, 2},
                 {DPCR_DENSE, 3},    {DPCR_DENSE, 4},     {DPCR_DENSE, 8},       {DPCR_DENSE, 16}, {DPCR_SCALAR, 64}};
    time_copy(t);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int dtype = DPCR_F32; dtype <= DPCR_F64; dtype++)
            for (int64_t batch = 1; batch <= 64; batch *= 64)
                for (int transposed = 0; transposed < 2; transposed++)
                    time_chain(t, forms[f].structure, forms[f].width, (dpcr_dtype)dtype, batch, transposed);
}

static const char *value_of(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

int main(int argc, char **argv) {
    static char command[400];
    dpcr_error error = {0};
    bench t = {.bytes = strtoull(value_of(argc, argv, "--bytes", "1073741824"), NULL, 10),
               .repetitions = atoi(value_of(argc, argv, "--repetitions", "21")),
               .only = value_of(argc, argv, "--structure", NULL),
               .command = command};
    strcpy(command, "bench_gpu_chains");
    for (int i = 1; i < argc && strlen(command) + strlen(argv[i]) + 2 < sizeof command; i++)
        strcat(strcat(command, " "), argv[i]);
    if (t.repetitions < 1 || t.repetitions > MOST || t.bytes < 4096 || t.bytes > (size_t)1 << 40) {
        fprintf(stderr, "bench_gpu_chains: wanted 1 to %d repetitions and 4096 bytes or more\n", MOST);
        return 2;
    }
    must(dpcr_device_find(value_of(argc, argv, "--device", "cuda"), &t.device, &error), &error);
    t.info.size = sizeof t.info;
    if (dpcr_device_describe(t.device, &t.info, &error) != DPCR_OK) {
        fprintf(stderr, "bench_gpu_chains: skipped: %s\n", error.text);
        return 77;
    }
    must(dpcri_device_ready(t.device, "bench_gpu_chains", &t.table, &error), &error);
    must(dpcr_context_create(NULL, &t.context, &error), &error);
    must(dpcr_stream_create(t.device, &t.stream, &error), &error);
    for (int i = 0; i < 2; i++) must(t.table->event_create(t.device.id, &t.events[i], &error), &error);
    printf(
        "device,capability,driver,runtime,command,structure,width,dtype,length,batch,transposed,repetitions,bytes,"
        "median_us,"
        "gb_per_s,copy_gb_per_s,of_copy\n");
    run_all(&t);
    for (int i = 0; i < 2; i++) t.table->event_destroy(t.device.id, t.events[i]);
    dpcr_stream_destroy(t.device, t.stream);
    dpcr_context_destroy(t.context);
    return 0;
}
