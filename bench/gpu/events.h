// SPDX-License-Identifier: MIT
// What programs that measure on a device share: the device, its events, medians of runs timed one by one, arrays,
// arguments, rows of tables.
#ifndef DEEPPCR_BENCH_GPU_EVENTS_H
#define DEEPPCR_BENCH_GPU_EVENTS_H

#include <string.h>

#include "../timing.h"
#include "rt/dev/device.h"

enum { MOST = 101 };

typedef struct gpu {
    dpcr_context *context;
    dpcr_device device;
    const dpcri_device_table *table;
    dpcr_device_info info;
    char command[400];
    int repetitions;
    double seconds;  // of all runs of a row, about
    void *stream, *events[2];
} gpu;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Median seconds of run(argument, set), sets 0..sets-1 by turns, each after prepare(argument, set) where there is one,
// which is not timed. Ends early, after three runs or more (one that takes half a second is enough), where they have
// taken the row's seconds in all; *runs, or NULL, gets how many there were.
static inline double median_after(const gpu *t, void (*prepare)(const gpu *t, const void *argument, int set),
                                  void (*run)(const gpu *t, const void *argument, int set), const void *argument,
                                  int sets, int *runs) {
    double times[MOST], all = 0, last = 0;
    dpcr_error error = {0};
    int count = 0, warm = 3;
    for (int i = 0; count < t->repetitions && (all < t->seconds || (count < 3 && last < 0.5)); i++) {
        if (prepare) prepare(t, argument, i % sets);
        must(t->table->event_record(t->device.id, t->events[0], t->stream, &error), &error);
        run(t, argument, i % sets);
        must(t->table->event_record(t->device.id, t->events[1], t->stream, &error), &error);
        must(dpcr_stream_wait(t->device, t->stream, &error), &error);
        must(t->table->event_seconds(t->device.id, t->events[0], t->events[1], &last, &error), &error);
        if (i >= warm || (i > 0 && last > 0.1)) {  // the first ones warm up
            times[count++] = last;
            all += last;
        }
    }
    qsort(times, (size_t)count, sizeof *times, by_size);
    if (runs) *runs = count;
    return times[count / 2];
}

static inline double median(const gpu *t, void (*run)(const gpu *t, const void *argument, int set),
                            const void *argument, int sets, int *runs) {
    return median_after(t, NULL, run, argument, sets, runs);
}

static const char *value_of(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

// From the program's arguments --device, --repetitions and --seconds; ends the program where there is no device.
static void gpu_open(gpu *t, const char *name, int argc, char **argv) {
    dpcr_error error = {0};
    t->repetitions = atoi(value_of(argc, argv, "--repetitions", "21"));
    t->seconds = atof(value_of(argc, argv, "--seconds", "0.2"));
    snprintf(t->command, sizeof t->command, "%s", name);
    for (int i = 1; i < argc && strlen(t->command) + strlen(argv[i]) + 2 < sizeof t->command; i++)
        strcat(strcat(t->command, " "), argv[i]);
    if (t->repetitions < 1 || t->repetitions > MOST) {
        fprintf(stderr, "%s: wanted 1 to %d repetitions\n", name, MOST);
        exit(2);
    }
    must(dpcr_device_find(value_of(argc, argv, "--device", "cuda"), &t->device, &error), &error);
    t->info.size = sizeof t->info;
    if (dpcr_device_describe(t->device, &t->info, &error) != DPCR_OK) {
        fprintf(stderr, "%s: skipped: %s\n", name, error.text);
        exit(77);
    }
    must(dpcri_device_ready(t->device, name, &t->table, &error), &error);
    must(dpcr_context_create(NULL, &t->context, &error), &error);
    must(dpcr_stream_create(t->device, &t->stream, &error), &error);
    for (int i = 0; i < 2; i++) must(t->table->event_create(t->device.id, &t->events[i], &error), &error);
}

// The columns that every table begins with, and what stands in them.
#define GPU_COLUMNS "device,capability,driver,runtime,command,"

static inline void gpu_row(const gpu *t) {
    printf("\"%s\",%d.%d,%d,%d,\"%s\",", t->info.name, t->info.major, t->info.minor, t->info.driver, t->info.runtime,
           t->command);
}

// An array there of numbers in -scale..scale, or those of `from`.
static inline dpcr_array gpu_numbers(const gpu *t, int ndim, const int64_t *shape, double scale, const void *from) {
    dpcr_error error = {0};
    dpcr_array array = dpcr_array_make(NULL, DPCR_F32, ndim, shape);
    int64_t count = 1;
    uint64_t seed = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    float *host = malloc((size_t)count * sizeof *host + 1);
    if (!host) exit(1);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        host[i] = from ? ((const float *)from)[i] : (float)(scale * ((double)(int32_t)(seed >> 32) / 2147483648.0));
    }
    array.device = t->device;
    must(dpcr_device_allocate(t->device, (size_t)count * 4, &array.data, &error), &error);
    must(dpcr_device_copy(t->device, array.data, (dpcr_device){.type = DPCR_HOST}, host, (size_t)count * 4, t->stream,
                          &error),
         &error);
    must(dpcr_stream_wait(t->device, t->stream, &error), &error);
    free(host);
    return array;
}

static void gpu_close(gpu *t) {
    for (int i = 0; i < 2; i++) t->table->event_destroy(t->device.id, t->events[i]);
    dpcr_stream_destroy(t->device, t->stream);
    dpcr_context_destroy(t->context);
}

#endif
