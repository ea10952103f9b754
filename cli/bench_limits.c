// SPDX-License-Identifier: MIT
// What the machine itself can do, measured in the run that quotes it: bytes a second of a triad (STREAM, McCalpin
// 1995), the seconds that one fused multiply-add waits for another, and those that a line of cache takes from a thread
// to another. The last tells where a virtual machine's processors are by now: on a Zen 5 30 to 65 ns within one
// third-level cache, 190 to 210 between two.
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { TRIADS = 7, MOST_THREADS = 64, FMAS = 1 << 16, FMA_RUNS = 15 };
static const size_t least_bytes = (size_t)32 << 20, most_bytes = (size_t)96 << 20;  // of an array

typedef struct triad {
    double *a;
    const double *b, *c;
    int64_t begin, end;
    pthread_barrier_t *start, *finish;
} triad;

static void run_triad(const triad *t) {
    const double s = 3;
    double *restrict a = t->a;
    const double *restrict b = t->b, *restrict c = t->c;
    for (int64_t i = t->begin; i < t->end; i++) a[i] = b[i] + s * c[i];
}

static void *work(void *argument) {
    const triad *t = argument;
    for (int i = 0; i < TRIADS; i++) {
        pthread_barrier_wait(t->start);
        run_triad(t);
        pthread_barrier_wait(t->finish);
    }
    return NULL;
}

// The fastest of a few passes, after one that touches the pages.
static double best_pass(triad *parts, int threads) {
    pthread_t workers[MOST_THREADS];
    double least = HUGE_VAL;
    int started = 1;
    for (; started < threads; started++)
        if (pthread_create(&workers[started], NULL, work, &parts[started]) != 0) return -1;
    for (int i = 0; i < TRIADS; i++) {
        pthread_barrier_wait(parts[0].start);
        const double begin = cli_now();
        run_triad(&parts[0]);
        pthread_barrier_wait(parts[0].finish);
        if (i > 0) least = fmin(least, cli_now() - begin);
    }
    for (int i = 1; i < started; i++) pthread_join(workers[i], NULL);
    return least;
}

// Negative where memory or threads are refused.
static double triad_bandwidth(int threads) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t wanted = cache > 0 ? 3 * (size_t)cache : least_bytes;
    const size_t bytes = wanted < least_bytes ? least_bytes : wanted > most_bytes ? most_bytes : wanted;
    const int64_t n = (int64_t)(bytes / sizeof(double));
    triad parts[MOST_THREADS];
    pthread_barrier_t start, finish;
    threads = threads < 1 ? 1 : threads > MOST_THREADS ? MOST_THREADS : threads;
    double *memory = cli_allocate(3 * bytes);
    if (!memory) return -1;
    memset(memory, 0, 3 * bytes);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    pthread_barrier_init(&finish, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        parts[i] = (triad){memory, memory + n, memory + 2 * n, n * i / threads, n * (i + 1) / threads, &start, &finish};
    const double seconds = best_pass(parts, threads);
    pthread_barrier_destroy(&start);
    pthread_barrier_destroy(&finish);
    cli_release(memory);
    return seconds > 0 ? 3 * (double)bytes / seconds : -1;
}

#if defined(__x86_64__)
__attribute__((target("fma"))) static float fma_chain(float x, float a, float b) {
    for (int i = 0; i < FMAS; i++) x = __builtin_fmaf(x, a, b);
    return x;
}
static bool has_fma(void) { return __builtin_cpu_supports("fma"); }
#else
static float fma_chain(float x, float a, float b) {
    for (int i = 0; i < FMAS; i++) x = fmaf(x, a, b);
    return x;
}
static bool has_fma(void) { return true; }
#endif

static double fma_latency(void) {
    double least = HUGE_VAL;
    volatile float a = 0.5f, b = 1, x = 0;  // so that no chain is known beforehand or left out
    if (!has_fma()) return -1;
    for (int i = 0; i < FMA_RUNS; i++) {
        const double begin = cli_now();
        x = fma_chain(x, a, b);
        least = fmin(least, cli_now() - begin);
    }
    return least / FMAS;
}

enum { TURNS = 4000, LINE_RUNS = 7, PATIENCE = 1 << 14 };

typedef struct line {
    _Alignas(128) _Atomic int turn;
} line;

static void await_turn(line *l, int turn) {
    for (int spins = 0; atomic_load_explicit(&l->turn, memory_order_acquire) != turn; spins++)
        if (spins > PATIENCE) sched_yield();  // both on one processor
}

// Every second turn, from `first` on.
static void pass_on(line *l, int first) {
    for (int i = first; i < TURNS; i += 2) {
        await_turn(l, i);
        atomic_store_explicit(&l->turn, i + 1, memory_order_release);
    }
}

static void *pass_back(void *argument) {
    pass_on(argument, 1);
    return NULL;
}

static double line_passing(void) {
    double least = HUGE_VAL;
    for (int run = 0; run < LINE_RUNS; run++) {
        line l;
        pthread_t other;
        atomic_init(&l.turn, -1);
        if (pthread_create(&other, NULL, pass_back, &l) != 0) return -1;
        const struct timespec awake = {.tv_nsec = 200000};
        nanosleep(&awake, NULL);  // until the other waits
        const double begin = cli_now();
        atomic_store(&l.turn, 0);
        pass_on(&l, 0);
        await_turn(&l, TURNS);
        least = fmin(least, cli_now() - begin);
        pthread_join(other, NULL);
    }
    return least / TURNS;
}

bench_limits bench_limits_measure(int threads) {
    return (bench_limits){.triad_bytes_per_second = triad_bandwidth(threads),
                          .fma_seconds = fma_latency(),
                          .line_seconds = threads > 1 ? line_passing() : -1};
}
