// SPDX-License-Identifier: MIT
// A region's tasks are cut into one range a thread, by their numbers: a thread runs its own from the front, so that a
// call finds the parts of its data in the cores where the call before left them, and then helps the others from the
// back of theirs. A range is one word, both its ends, and claiming is a compare-and-swap of it.
//
// The gate is one word too, generation and visitors. A worker enters an open generation by counting itself in, and
// touches nothing of a region it has not entered. Odd generations are closed: the region's fields change only then,
// after every visitor has left. (A worker that slept through exactly 2^31 regions would take the new one for the old
// and miss it, which the others make up for.)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "rt/pool.h"
#include "rt/rt.h"

// Seconds that a worker looks out for the next region before it sleeps. To wake one takes 5 to 50 us and more, which is
// what many a region takes; so where regions come soon after workers fell asleep, they wait longer, and less where they
// would have waited in vain.
static const double least_patience = 20e-6, most_patience = 250e-6;

typedef struct worker {
    dpcri_pool *pool;
    int number;
    pthread_t thread;
} worker;

// The tasks of one thread that nobody has claimed: begin << 32 | end.
typedef struct range {
    _Alignas(64) _Atomic uint64_t ends;
} range;

struct dpcri_pool {
    _Alignas(64) _Atomic uint64_t gate;  // generation << 32 | workers inside
    _Atomic int helpers;                 // workers that may enter: the first ones
    _Atomic int caller_at;               // processor on which the last region was opened
    void (*task)(void *argument, int64_t i);
    void *argument;
    int ranges_used;
    _Alignas(64) pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic int sleepers;
    _Atomic int stop;
    int asked, started;  // workers that were to start; of the creator: those that did
    worker *workers;
    range ranges[];  // the caller's, then one a worker
};

static uint32_t generation_of(uint64_t gate) { return (uint32_t)(gate >> 32); }

// An open region that is not the one seen last.
static bool is_new(uint64_t gate, uint32_t seen) { return generation_of(gate) != seen && generation_of(gate) % 2 == 0; }

// Claims the first task of a range, or the last; -1: none is left.
static int64_t claim(range *r, bool first) {
    uint64_t ends = atomic_load_explicit(&r->ends, memory_order_relaxed);
    for (;;) {
        const uint32_t begin = (uint32_t)(ends >> 32), end = (uint32_t)ends;
        if (begin >= end) return -1;
        const uint64_t rest = first ? ends + ((uint64_t)1 << 32) : ends - 1;
        if (atomic_compare_exchange_weak_explicit(&r->ends, &ends, rest, memory_order_relaxed, memory_order_relaxed))
            return first ? begin : end - 1;
    }
}

// Runs tasks of the current region until none is left to claim: those of range `own`, then the others'.
static void work(dpcri_pool *pool, int own) {
    const int ranges = pool->ranges_used;
    for (int k = 0; k < ranges; k++) {
        const int r = (own + k) % ranges;
        for (int64_t i; (i = claim(&pool->ranges[r], r == own)) >= 0;) pool->task(pool->argument, i);
    }
}

// A worker that is woken on the caller's processor would take it from the caller, for all of its patience after the
// region too, and the system wakes it there again and again (two processors in use: 270 us instead of 8 for a call that
// follows a short region). So it goes to another one, where its next wake-ups find it. False: there is none for it.
static bool make_way(const dpcri_pool *pool) {
    const int at = atomic_load_explicit(&pool->caller_at, memory_order_relaxed);
    cpu_set_t allowed;
    if (sched_getcpu() != at) return true;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) <= pool->asked) return false;
    cpu_set_t others = allowed;
    CPU_CLR(at, &others);
    return sched_setaffinity(0, sizeof others, &others) == 0 && sched_setaffinity(0, sizeof allowed, &allowed) == 0;
}

void dpcri_wait_longer(int64_t turn) {
    enum { YIELDS = 2000 };
    const struct timespec nap = {.tv_nsec = 20000};
    if (turn < YIELDS) {
        sched_yield();
        return;
    }
    // A thread that is cancelled in here would leave others at work on what lies on its stack.
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    nanosleep(&nap, NULL);
    pthread_setcancelstate(before, NULL);
}

// Waits for an open generation other than `seen`, awake for as long as patience goes; false when the pool stops.
// `slept`: seconds that it took, of a worker that had to be woken; else 0.
static bool await(dpcri_pool *pool, uint32_t seen, double patience, double *slept) {
    const double start = dpcri_seconds();
    *slept = 0;
    do {
        for (int i = 0; i < 32; i++) {
            if (is_new(atomic_load_explicit(&pool->gate, memory_order_relaxed), seen)) return true;
            dpcri_pause();
        }
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return false;
    } while (make_way(pool) && dpcri_seconds() - start < patience);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!is_new(atomic_load(&pool->gate), seen) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    make_way(pool);
    *slept = dpcri_seconds() - start;
    return !atomic_load(&pool->stop);
}

// Counts the worker in, unless the open region is over by now or is not for it.
static bool enter(dpcri_pool *pool, int number, uint32_t *seen) {
    uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    while (is_new(gate, *seen)) {
        if (number >= atomic_load_explicit(&pool->helpers, memory_order_relaxed)) break;
        if (atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1, memory_order_acquire,
                                                  memory_order_acquire)) {
            *seen = generation_of(gate);
            return true;
        }
    }
    *seen = generation_of(gate);
    return false;
}

static void *attend(void *argument) {
    const worker *self = argument;
    dpcri_pool *pool = self->pool;
    uint32_t seen = 0;
    double patience = least_patience, slept = 0;
    while (await(pool, seen, patience, &slept)) {
        const bool mine = enter(pool, self->number, &seen);
        if (mine) {
            work(pool, self->number + 1);
            atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
        }
        if (slept == 0) continue;
        const double less = patience / 2 > least_patience ? patience / 2 : least_patience;
        patience = mine && slept < most_patience ? most_patience : less;
    }
    return NULL;
}

static void wake_sleepers(dpcri_pool *pool) {
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

dpcri_pool *dpcri_pool_create(dpcr_context *context, int workers) {
    const size_t ranges = (size_t)(workers + 1) * sizeof(range);
    dpcri_pool *pool = dpcri_alloc_zero(context, sizeof *pool + ranges + (size_t)workers * sizeof(worker));
    if (!pool) return NULL;
    pool->workers = (worker *)((char *)pool + sizeof *pool + ranges);
    pool->asked = workers;
    if (pthread_mutex_init(&pool->lock, NULL) != 0) {
        dpcri_free(context, pool);
        return NULL;
    }
    if (pthread_cond_init(&pool->wake, NULL) != 0) {
        pthread_mutex_destroy(&pool->lock);
        dpcri_free(context, pool);
        return NULL;
    }
    atomic_init(&pool->gate, (uint64_t)1 << 32);
    sigset_t all, before;  // signals are the program's threads' business, not the workers'
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < workers; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .number = i};
        if (pthread_create(&w->thread, NULL, attend, w) != 0) break;
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool;
}

void dpcri_pool_destroy(dpcr_context *context, dpcri_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    dpcri_free(context, pool);
}

void dpcri_pool_run(dpcri_pool *pool, int helpers, int64_t n, void (*task)(void *argument, int64_t i), void *argument) {
    if (n >= UINT32_MAX) {  // more tasks than a word counts: nobody needs them side by side
        for (int64_t i = 0; i < n; i++) task(argument, i);
        return;
    }
    const int64_t threads = 1 + (helpers < pool->started ? helpers : pool->started);
    const int64_t ranges = threads < n ? threads : n;
    atomic_store_explicit(&pool->caller_at, sched_getcpu(), memory_order_relaxed);
    pool->task = task;
    pool->argument = argument;
    pool->ranges_used = (int)ranges;
    for (int64_t r = 0; r < ranges; r++) {  // a first range is never shorter than a later one: its thread is here
        const int64_t begin = (r * n + ranges - 1) / ranges, end = ((r + 1) * n + ranges - 1) / ranges;
        atomic_store_explicit(&pool->ranges[r].ends, (uint64_t)begin << 32 | (uint64_t)end, memory_order_relaxed);
    }
    atomic_store_explicit(&pool->helpers, (int)ranges - 1, memory_order_relaxed);  // each with a range of its own
    const uint64_t generation = (uint64_t)1 << 32;
    atomic_fetch_add(&pool->gate, generation);
    wake_sleepers(pool);
    work(pool, 0);
    uint64_t gate = atomic_fetch_add_explicit(&pool->gate, generation, memory_order_acq_rel);
    for (int i = 0; (uint32_t)gate != 0; i++) {
        dpcri_wait(i);
        gate = atomic_load_explicit(&pool->gate, memory_order_acquire);
    }
}
