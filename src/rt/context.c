// SPDX-License-Identifier: MIT
// The context: allocator, thread pool, cancel.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rt/pool.h"
#include "rt/rt.h"

struct dpcr_context {
    dpcr_context_options options;
    pthread_mutex_t rates_lock;
    dpcri_rates rates;  // threads is 0 until they are measured
    int threads;
    pthread_mutex_t turn;  // one parallel region at a time
    dpcri_pool *pool;
    unsigned pool_forks;  // a pool does not survive fork: rebuilt when the process has forked off since
};

// Forks that lie between this process and the one that loaded the library: asking the system who we are would cost more
// than a parallel region's handing over.
static _Atomic unsigned forks = 0;
static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;
static int watching_failed = 0;

static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void watch_forks(void) { watching_failed = pthread_atfork(NULL, NULL, count_fork); }
static unsigned forks_so_far(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

static void *default_allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    return rounded < bytes ? NULL : aligned_alloc(alignment, rounded);
}

static void default_release(void *user, void *memory) {
    (void)user;
    free(memory);
}

static int available_threads(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int count = CPU_COUNT(&set);
        if (count > 0) return count;
    }
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

dpcr_status dpcr_context_create(const dpcr_context_options *options, dpcr_context **context, dpcr_error *error) {
    if (!context) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "context_create: no place for the context given");
    *context = NULL;
    dpcr_context_options given = {.size = sizeof given};
    if (options) {
        if (options->size < offsetof(dpcr_context_options, threads) + sizeof options->threads)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "context_create: options.size is %zu, wanted sizeof(dpcr_context_options)",
                              options->size);
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    }
    if (given.threads < 0 || given.threads > 4096)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "context_create: threads is %d, wanted 0..4096", given.threads);
    if ((given.allocate == NULL) != (given.release == NULL))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "context_create: allocate and release must be given together");
    if (!given.allocate) {
        given.allocate = default_allocate;
        given.release = default_release;
    }
    if (pthread_once(&forks_watched, watch_forks) != 0 || watching_failed)
        return dpcri_fail(error, DPCR_ERROR_SYSTEM, "context_create: the system cannot tell us of forks");
    dpcr_context *made = given.allocate(given.allocator_user, sizeof *made, 64);
    if (!made)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "context_create: no memory for the context (%zu bytes)",
                          sizeof *made);
    memset(made, 0, sizeof *made);
    made->options = given;
    made->threads = given.threads ? given.threads : available_threads();
    const bool first = pthread_mutex_init(&made->turn, NULL) == 0;
    if (!first || pthread_mutex_init(&made->rates_lock, NULL) != 0) {
        if (first) pthread_mutex_destroy(&made->turn);
        given.release(given.allocator_user, made);
        return dpcri_fail(error, DPCR_ERROR_SYSTEM, "context_create: the system gave no mutex");
    }
    *context = made;
    return DPCR_OK;
}

void dpcr_context_destroy(dpcr_context *context) {
    if (!context) return;
    if (context->pool_forks == forks_so_far())
        dpcri_pool_destroy(context, context->pool);
    else  // after fork the workers are the parent's
        dpcri_free(context, context->pool);
    pthread_mutex_destroy(&context->turn);
    pthread_mutex_destroy(&context->rates_lock);
    context->options.release(context->options.allocator_user, context);
}

int dpcr_context_threads(const dpcr_context *context) { return context ? context->threads : 0; }

bool dpcri_cancelled(const dpcr_context *context) {
    return context->options.cancel && context->options.cancel(context->options.cancel_user) != 0;
}

void *dpcri_alloc(dpcr_context *context, size_t bytes) {
    return bytes ? context->options.allocate(context->options.allocator_user, bytes, 64) : NULL;
}

void *dpcri_alloc_zero(dpcr_context *context, size_t bytes) {
    void *memory = dpcri_alloc(context, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

char *dpcri_strdup(dpcr_context *context, const char *text) {
    const size_t bytes = strlen(text) + 1;
    char *copy = dpcri_alloc(context, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

void dpcri_free(dpcr_context *context, void *memory) {
    if (memory) context->options.release(context->options.allocator_user, memory);
}

// Denormals and rounding: the library never chooses a mode. Tasks run in that of the thread that asked for the region,
// so that results do not depend on which thread takes them, and a worker's own is restored afterwards.
#if defined(__x86_64__)
enum { MODE_FLAGS = 0x3f };  // exceptions that were raised: not a mode
static unsigned floating_mode(void) { return _mm_getcsr() & ~(unsigned)MODE_FLAGS; }
static void set_floating_mode(unsigned mode) { _mm_setcsr(mode); }
#else
static unsigned floating_mode(void) { return 0; }
static void set_floating_mode(unsigned mode) { (void)mode; }
#endif

typedef struct region {
    void (*task)(void *argument, int64_t i);
    void *argument;
    unsigned mode;
} region;

static _Thread_local bool inside_task = false;

static void run_task(void *argument, int64_t i) {
    region *r = argument;
    const unsigned own = floating_mode();
    if (own != r->mode) set_floating_mode(r->mode);
    inside_task = true;
    r->task(r->argument, i);
    inside_task = false;
    if (own != r->mode) set_floating_mode(own);
}

void dpcri_parallel(dpcr_context *context, int64_t n, void (*task)(void *argument, int64_t i), void *argument) {
    if (n <= 0) return;
    if (n == 1 || context->threads == 1 || inside_task) {
        for (int64_t i = 0; i < n; i++) task(argument, i);
        return;
    }
    pthread_mutex_lock(&context->turn);
    if (context->pool && context->pool_forks != forks_so_far()) {  // after fork the workers are the parent's
        dpcri_free(context, context->pool);
        context->pool = NULL;
    }
    if (!context->pool) {
        context->pool = dpcri_pool_create(context, context->threads - 1);
        context->pool_forks = forks_so_far();
    }
    region r = {.task = task, .argument = argument, .mode = floating_mode()};
    if (context->pool)
        dpcri_pool_run(context->pool, n, run_task, &r);
    else  // memory was refused: the caller does it all
        for (int64_t i = 0; i < n; i++) run_task(&r, i);
    pthread_mutex_unlock(&context->turn);
}

// The fastest of some repetitions: what the machine reaches when nothing disturbs it.
static double fastest(double (*once)(dpcr_context *), dpcr_context *context, int repetitions) {
    double least = once(context);
    for (int i = 1; i < repetitions; i++) {
        const double seconds = once(context);
        if (seconds < least) least = seconds;
    }
    return least;
}

enum { CHAIN_STEPS = 20000, PRODUCT_SIZE = 32, PRODUCTS = 8 };

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
    const double t0 = dpcri_seconds();
    for (int i = 0; i < 20; i++) dpcri_parallel(context, context->threads, nothing, NULL);
    return (dpcri_seconds() - t0) / 20;
}

// Memory that cannot be had leaves a rate that favours the loop.
static double copied_bytes(dpcr_context *context) {
    const size_t bytes = (size_t)16 << 20;
    char *memory = dpcri_alloc(context, 2 * bytes);
    if (!memory) return 5e9;
    memset(memory, 1, 2 * bytes);
    double least = 1;
    for (int i = 0; i < 3; i++) {
        const double t0 = dpcri_seconds();
        memcpy(memory, memory + bytes, bytes);
        const double seconds = dpcri_seconds() - t0;
        if (seconds < least) least = seconds;
        memory[bytes + (size_t)i] = memory[i];  // keeps the copies apart
    }
    dpcri_free(context, memory);
    return 2 * (double)bytes / least;
}

static dpcri_rates measure(dpcr_context *context) {
    // This file is compiled for the least CPU; the kernels of higher levels do more a cycle, by their vectors' width
    // and fma.
    static const double gain[DPCRI_ISA_COUNT] = {1, 4, 8};
    return (dpcri_rates){.latency = fastest(dependent_chain, context, 5),
                         .flops = gain[dpcri_isa_level()] / fastest(small_products, context, 5),
                         .region = fastest(empty_regions, context, 5),
                         .bandwidth = copied_bytes(context),
                         .threads = context->threads};
}

// Measured without the lock, since a region may have to wait for another thread's; the first to finish wins. From
// inside a task nothing can be measured that would hold outside: such rates are not kept.
void dpcri_rates_of(dpcr_context *context, dpcri_rates *rates) {
    pthread_mutex_lock(&context->rates_lock);
    *rates = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
    if (rates->threads != 0) return;
    *rates = measure(context);
    if (inside_task) return;
    pthread_mutex_lock(&context->rates_lock);
    if (context->rates.threads == 0) context->rates = *rates;
    *rates = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
}
