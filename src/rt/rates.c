// SPDX-License-Identifier: MIT
// What the machine reaches, each rate from the fastest of some short measurements: when nothing disturbs it. All of it
// takes some tens of milliseconds.
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "rt/cache.h"
#include "rt/rates.h"
#include "rt/rt.h"

static double fastest(double (*once)(dpcr_context *), dpcr_context *context, int repetitions) {
    double least = once(context);
    for (int i = 1; i < repetitions; i++) {
        const double seconds = once(context);
        if (seconds < least) least = seconds;
    }
    return least;
}

enum { CHAIN_STEPS = 20000, PRODUCT_SIZE = 32, PRODUCTS = 8, REGIONS = 20 };

static double dependent_chain(dpcr_context *context) {
    (void)context;
    volatile float sink = 1;
    float x = sink;
    const float a = 0.5f + x * 1e-3f, start = (float)dpcri_seconds() * 0;
    const double t0 = dpcri_seconds();
    for (int i = 0; i < CHAIN_STEPS; i++) x = x * a + start;  // a multiply and an add: two latencies without fma
    const double seconds = dpcri_seconds() - t0;
    sink = x;
    return seconds / CHAIN_STEPS / 2;
}

static double small_products(dpcr_context *context) {
    (void)context;
    static _Thread_local float a[PRODUCT_SIZE][PRODUCT_SIZE], c[PRODUCT_SIZE][PRODUCT_SIZE];
    for (int i = 0; i < PRODUCT_SIZE * PRODUCT_SIZE; i++) a[i / PRODUCT_SIZE][i % PRODUCT_SIZE] = (float)(i % 7) * 0.1f;
    const double t0 = dpcri_seconds();
    for (int p = 0; p < PRODUCTS; p++)
        for (int i = 0; i < PRODUCT_SIZE; i++)
            for (int k = 0; k < PRODUCT_SIZE; k++)
                for (int j = 0; j < PRODUCT_SIZE; j++) c[i][j] += a[i][k] * a[k][j];
    const double seconds = dpcri_seconds() - t0;
    volatile float sink = c[1][1];
    (void)sink;
    return seconds / PRODUCTS / (2.0 * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE);
}

static void nothing(void *argument, int64_t i) { (void)argument, (void)i; }

static double empty_regions(dpcr_context *context) {
    const int64_t tasks = dpcr_context_threads(context);
    const double t0 = dpcri_seconds();
    for (int i = 0; i < REGIONS; i++) dpcri_parallel(context, tasks, nothing, NULL);
    return (dpcri_seconds() - t0) / REGIONS;
}

// ---- waking ----

// Long enough that idle workers sleep well (after 0.2 ms they wake in 18 us, after 3 ms in 27, after 13 ms in 40, on a
// Zen 4 in a virtual machine); and what nobody waits for longer than.
static const double slept_seconds = 3e-3, patience_seconds = 2e-3;

typedef struct muster {
    _Atomic int64_t present;
    int64_t wanted;
    double start;
    _Atomic double seconds;  // until all were there
} muster;

// Keeps its thread until as many tasks are at work as there are threads.
static void be_present(void *argument, int64_t task) {
    muster *m = argument;
    (void)task;
    if (atomic_fetch_add(&m->present, 1) + 1 == m->wanted) atomic_store(&m->seconds, dpcri_seconds() - m->start);
    while (atomic_load(&m->present) < m->wanted && dpcri_seconds() - m->start < patience_seconds) {
    }
}

static double waking(dpcr_context *context) {
    const int64_t threads = dpcr_context_threads(context);
    if (threads <= 1 || dpcri_inside_task()) return 0;
    const struct timespec pause = {.tv_nsec = (long)(slept_seconds * 1e9)};
    nanosleep(&pause, NULL);
    muster m = {.wanted = threads, .start = dpcri_seconds(), .seconds = patience_seconds};
    dpcri_parallel(context, threads, be_present, &m);
    return m.seconds;
}

// ---- bandwidth ----

typedef struct copying {
    char *memory;
    size_t bytes;  // that one task copies from the first half of its part onto the second
    int64_t repetitions;
} copying;

static void copy_part(void *argument, int64_t task) {
    const copying *c = argument;
    char *part = c->memory + (size_t)task * 2 * c->bytes;
    for (int64_t i = 0; i < c->repetitions; i++) {
        memcpy(part + c->bytes, part, c->bytes);
        part[i % 64] = (char)i;  // keeps the copies apart
    }
}

static void touch_part(void *argument, int64_t task) {
    const copying *c = argument;
    memset(c->memory + (size_t)task * 2 * c->bytes, 1, 2 * c->bytes);
}

// Bytes read and written a second by `tasks` tasks side by side.
static double copied_bytes(dpcr_context *context, const copying *c, int64_t tasks) {
    double least = 1e9;
    dpcri_parallel(context, tasks, touch_part, (void *)c);
    for (int i = 0; i < 3; i++) {
        const double t0 = dpcri_seconds();
        dpcri_parallel(context, tasks, copy_part, (void *)c);
        const double seconds = dpcri_seconds() - t0;
        if (seconds < least) least = seconds;
    }
    return 2.0 * (double)c->bytes * (double)c->repetitions * (double)tasks / (least > 0 ? least : 1e-9);
}

static double cache_size(int cache, double usual) {
    const int64_t bytes = dpcri_cache_bytes(cache);
    return bytes > 0 ? (double)bytes : usual;
}

static void find_cache_sizes(dpcr_machine *m) {
    m->cache_bytes[0] = cache_size(1, 32 << 10);
    m->cache_bytes[1] = cache_size(2, 512 << 10);
    m->cache_bytes[2] = cache_size(3, 8 << 20);
}

// Under sanitizers these are no rates of the machine, and would take long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FAR_BYTES = 4 << 20, AMOUNT = 1 << 18 };
#else
enum { FAR_BYTES = 64 << 20, AMOUNT = 8 << 20 };
#endif

static void measure_bandwidth(dpcr_context *context, dpcr_machine *m) {
    find_cache_sizes(m);
    char *memory = dpcri_alloc(context, FAR_BYTES);
    m->bandwidth = m->thread_bandwidth = 5e9;  // memory that cannot be had leaves rates that favour the loop
    for (int i = 0; i < 3; i++) m->cache_bandwidth[i] = 5e9;
    if (!memory) return;
    for (int i = 0; i < 3; i++) {
        const double most = i < 2 ? m->cache_bytes[i] / 4 : 2 * m->cache_bytes[1];  // L3: well beyond L2
        copying c = {.memory = memory, .bytes = most < FAR_BYTES / 2 ? (size_t)most / 64 * 64 : FAR_BYTES / 2};
        c.repetitions = AMOUNT / (int64_t)c.bytes + 1;
        m->cache_bandwidth[i] = copied_bytes(context, &c, 1);
    }
    const int64_t threads = dpcr_context_threads(context), tasks = threads < 16 ? threads : 16;
    copying far = {.memory = memory, .bytes = (size_t)(FAR_BYTES / 2 / tasks) / 64 * 64, .repetitions = 1};
    m->bandwidth = m->thread_bandwidth = copied_bytes(context, &far, tasks);
    if (tasks > 1) {
        far.bytes *= (size_t)tasks;
        m->thread_bandwidth = copied_bytes(context, &far, 1);
    }
    dpcri_free(context, memory);
}

dpcr_machine dpcri_rates_measure(dpcr_context *context) {
    // This file is compiled for the least CPU; the kernels of higher levels do more a cycle, by their vectors' width
    // and fma.
    static const double gain[DPCRI_ISA_COUNT] = {1, 4, 8};
    dpcr_machine m = {.size = sizeof m, .threads = dpcr_context_threads(context)};
    m.latency = fastest(dependent_chain, context, 5);
    m.flops = gain[dpcri_isa_level()] / fastest(small_products, context, 5);
    m.region = fastest(empty_regions, context, 5);
    m.wake = fastest(waking, context, 7);
    measure_bandwidth(context, &m);
    return m;
}

double dpcri_rates_peak(void) {
    static const double a_cycle[DPCRI_ISA_COUNT] = {8, 32, 64};
    return 5e9 * a_cycle[dpcri_isa_level()];
}

dpcr_machine dpcri_rates_usual(const dpcr_context *context) {
    dpcr_machine m = {.size = sizeof m,
                      .threads = dpcr_context_threads(context),
                      .latency = 1.3e-9,
                      .flops = dpcri_rates_peak() / 5,
                      .bandwidth = 10e9,
                      .thread_bandwidth = 10e9,
                      .cache_bandwidth = {100e9, 50e9, 20e9}};
    if (m.threads > 1) m.region = 3e-6, m.wake = 30e-6;
    find_cache_sizes(&m);
    return m;
}
