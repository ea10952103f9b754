// SPDX-License-Identifier: MIT
// A region is one 64-bit word, generation and next task, and the fields that it publishes. Claiming is a
// compare-and-swap of that word, so a worker that comes late, for a generation that is over, claims nothing and has
// touched nothing. Odd generations are closed: the fields change only then, after every claimed task is done. (A worker
// that slept through exactly 2^31 regions would take the new one for the old and miss it, which the caller makes up
// for.)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "rt/pool.h"

enum {
    SPIN_PAUSES = 2000,  // about 20 us of waiting for the next region before a worker sleeps
    WAIT_PAUSES = 400    // about 4 us of waiting for the last tasks before the caller yields its processor
};

typedef struct worker {
    dpcri_pool *pool;
    int number;
    pthread_t thread;
} worker;

struct dpcri_pool {
    _Alignas(64) _Atomic uint64_t word;  // generation << 32 | next task
    _Atomic int64_t count;
    _Atomic(void *) argument;
    _Atomic(void (*)(void *, int64_t)) task;
    _Atomic int helpers;  // workers that may take part
    _Alignas(64) _Atomic int64_t done;
    _Alignas(64) pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic int sleepers;
    _Atomic int stop;
    int started;
    worker workers[];
};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t generation_of(uint64_t word) { return (uint32_t)(word >> 32); }

// Runs tasks of the current region until none is left to claim.
static void work(dpcri_pool *pool) {
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
    for (;;) {
        const int64_t next = (int64_t)(word & UINT32_MAX);
        if (next >= atomic_load_explicit(&pool->count, memory_order_acquire)) return;
        void (*task)(void *, int64_t) = atomic_load_explicit(&pool->task, memory_order_acquire);
        void *argument = atomic_load_explicit(&pool->argument, memory_order_acquire);
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        task(argument, next);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        word = atomic_load_explicit(&pool->word, memory_order_acquire);
    }
}

// An open region that is not the one seen last.
static bool is_new(uint64_t word, uint32_t seen) { return generation_of(word) != seen && generation_of(word) % 2 == 0; }

// Waits for an open generation other than `seen`; false when the pool stops.
static bool await(dpcri_pool *pool, uint32_t seen) {
    for (int i = 0; i < SPIN_PAUSES; i++) {
        if (is_new(atomic_load_explicit(&pool->word, memory_order_acquire), seen)) return true;
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return false;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!is_new(atomic_load(&pool->word), seen) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return !atomic_load(&pool->stop);
}

static void *attend(void *argument) {
    const worker *self = argument;
    dpcri_pool *pool = self->pool;
    uint32_t seen = 0;
    while (await(pool, seen)) {
        seen = generation_of(atomic_load_explicit(&pool->word, memory_order_acquire));
        if (self->number < atomic_load_explicit(&pool->helpers, memory_order_acquire)) work(pool);
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
    dpcri_pool *pool = dpcri_alloc_zero(context, sizeof *pool + (size_t)workers * sizeof pool->workers[0]);
    if (!pool) return NULL;
    if (pthread_mutex_init(&pool->lock, NULL) != 0) {
        dpcri_free(context, pool);
        return NULL;
    }
    if (pthread_cond_init(&pool->wake, NULL) != 0) {
        pthread_mutex_destroy(&pool->lock);
        dpcri_free(context, pool);
        return NULL;
    }
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
    const uint64_t closed = (uint64_t)(generation_of(atomic_load_explicit(&pool->word, memory_order_relaxed)) + 1)
                            << 32;
    atomic_store(&pool->word, closed | UINT32_MAX);  // whoever still holds the old word can claim nothing with it
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    // release: whoever sees a field of this region sees that the old one is closed
    atomic_store_explicit(&pool->count, n, memory_order_release);
    atomic_store_explicit(&pool->task, task, memory_order_release);
    atomic_store_explicit(&pool->argument, argument, memory_order_release);
    atomic_store_explicit(&pool->helpers, helpers, memory_order_release);
    atomic_store(&pool->word, closed + ((uint64_t)1 << 32));
    wake_sleepers(pool);
    work(pool);
    for (int i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < n; i++) {
        if (i < WAIT_PAUSES)
            pause_briefly();
        else
            sched_yield();
    }
}
