// SPDX-License-Identifier: MIT
// The context: allocator, thread pool, cancel.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rt/pool.h"
#include "rt/rates.h"
#include "rt/rt.h"
#include "rt/trial.h"
#include "rt/wisdom.h"

struct dpcr_context {
    dpcr_context_options options;
    pthread_mutex_t rates_lock;
    dpcr_machine rates;  // threads is 0 until they are known
    dpcr_machine given;  // by the caller; 0: as measured
    dpcri_wisdom wisdom;
    int threads;
    pthread_mutex_t turn;  // one parallel region at a time
    dpcri_pool *pool;
    unsigned pool_forks;  // a pool does not survive fork: rebuilt when the process has forked off since
    pthread_mutex_t trials_lock;
    dpcri_trial trials[DPCRI_TRIALS];
    uint64_t kinds[DPCRI_TRIALS];  // of which they are
    int64_t trials_told;
};

// Forks that lie between this process and the one that loaded the library: asking the system who we are would cost more
// than a parallel region's handing over.
static _Atomic unsigned forks = 0;
static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;
static int watching_failed = 0;

static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void watch_forks(void) { watching_failed = pthread_atfork(NULL, NULL, count_fork); }
static unsigned forks_so_far(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

// Large arrays lie in large pages, where the system gives some to those who ask: what is read from far away, as a
// denoiser's weights, comes a tenth faster without the walks for small ones. NumPy asks from the same size on.
enum { LARGE_PAGE = 2 << 20, LARGE_ARRAY = 4 << 20 };

static void *default_allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    const bool large = bytes >= LARGE_ARRAY && alignment <= LARGE_PAGE;
    if (large) alignment = LARGE_PAGE;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void *memory = rounded < bytes ? NULL : aligned_alloc(alignment, rounded);
#if defined(MADV_HUGEPAGE)
    if (large && memory) (void)madvise(memory, rounded, MADV_HUGEPAGE);  // refused: small pages serve as well
#endif
    return memory;
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
        DPCRI_COPY_IN(given, options);
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
    const bool second = first && pthread_mutex_init(&made->rates_lock, NULL) == 0;
    const bool third = second && pthread_mutex_init(&made->trials_lock, NULL) == 0;
    if (!third || !dpcri_wisdom_open(&made->wisdom)) {
        if (first) pthread_mutex_destroy(&made->turn);
        if (second) pthread_mutex_destroy(&made->rates_lock);
        if (third) pthread_mutex_destroy(&made->trials_lock);
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
    dpcri_wisdom_close(context, &context->wisdom);
    pthread_mutex_destroy(&context->turn);
    pthread_mutex_destroy(&context->rates_lock);
    pthread_mutex_destroy(&context->trials_lock);
    context->options.release(context->options.allocator_user, context);
}

int dpcr_context_threads(const dpcr_context *context) { return context ? context->threads : 0; }

int dpcr_cancel_locked(void *locked_cancel) {
    const dpcr_locked_cancel *c = locked_cancel;
    const int locked = c->lock(), stop = c->cancel();
    c->unlock(locked);
    return stop;
}

bool dpcri_cancels(const dpcr_context *context) { return context->options.cancel != NULL; }

int dpcri_cancel_answer(const dpcr_context *context) {
    return context->options.cancel ? context->options.cancel(context->options.cancel_user) : 0;
}

bool dpcri_cancelled(const dpcr_context *context) { return dpcri_cancel_answer(context) != 0; }

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

int dpcr_flush_denormals(int flush) {
    enum { FLUSH = 0x8040 };  // results, and operands
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(flush ? mode | FLUSH : mode & ~(unsigned)FLUSH);
    return (mode & FLUSH) == FLUSH;
}
#elif defined(__aarch64__)
static unsigned floating_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (unsigned)mode;
}
static void set_floating_mode(unsigned mode) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode)); }

int dpcr_flush_denormals(int flush) {
    enum { FLUSH = 1 << 24 };  // results, and operands
    const unsigned mode = floating_mode();
    set_floating_mode(flush ? mode | FLUSH : mode & ~(unsigned)FLUSH);
    return (mode & FLUSH) == FLUSH;
}
#else
static unsigned floating_mode(void) { return 0; }
static void set_floating_mode(unsigned mode) { (void)mode; }

int dpcr_flush_denormals(int flush) { return (void)flush, -1; }
#endif

typedef struct region {
    void (*task)(void *argument, int64_t i);
    void *argument;
    unsigned mode;
} region;

static _Thread_local bool inside_task = false;
static _Thread_local int limit = 0;

int dpcri_threads_limit(int threads) {
    const int before = limit;
    limit = threads;
    return before;
}

static void run_task(void *argument, int64_t i) {
    region *r = argument;
    const unsigned own = floating_mode();
    if (own != r->mode) set_floating_mode(r->mode);
    inside_task = true;
    r->task(r->argument, i);
    inside_task = false;
    if (own != r->mode) set_floating_mode(own);
}

int64_t dpcri_threads_at_hand(const dpcr_context *context) {
    return inside_task ? 1 : limit > 0 && limit < context->threads ? limit : context->threads;
}

void dpcri_parallel(dpcr_context *context, int64_t n, void (*task)(void *argument, int64_t i), void *argument) {
    if (n <= 0) return;
    const int threads = (int)dpcri_threads_at_hand(context);
    if (n == 1 || threads == 1) {
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
        dpcri_pool_run(context->pool, threads - 1, n, run_task, &r);
    else  // memory was refused: the caller does it all
        for (int64_t i = 0; i < n; i++) run_task(&r, i);
    pthread_mutex_unlock(&context->turn);
}

bool dpcri_inside_task(void) { return inside_task; }

static bool is_of(const dpcr_context *context, int place, uint64_t kind) {
    return context->trials[place].all > 0 && context->kinds[place] == kind;
}

// Where a kind's trial lies or may begin. Called with the lock.
static int place_of(const dpcr_context *context, uint64_t kind) {
    enum { NEAR = 8 };
    const int home = (int)(((kind ^ kind >> 32) * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (DPCRI_TRIALS - 1);
    int place = -1;
    for (int i = 0; i < NEAR; i++) {
        const int at = (home + i) & (DPCRI_TRIALS - 1);
        if (is_of(context, at, kind)) return at;
        if (context->trials[at].all == 0 && place < 0) place = at;
    }
    return place < 0 ? home : place;
}

int dpcri_trial_threads(dpcr_context *context, uint64_t kind, int most) {
    pthread_mutex_lock(&context->trials_lock);
    const int place = place_of(context, kind);
    dpcri_trial *t = &context->trials[place];
    if (!is_of(context, place, kind)) {
        context->kinds[place] = kind;
        *t = (dpcri_trial){0};
        t->all = t->now = context->threads < most ? context->threads : most;
    }
    const int threads = t->now;
    pthread_mutex_unlock(&context->trials_lock);
    return threads;
}

void dpcri_trial_took(dpcr_context *context, uint64_t kind, int threads, double seconds, int64_t rows) {
    pthread_mutex_lock(&context->trials_lock);
    const int place = place_of(context, kind);
    dpcri_trial *t = &context->trials[place];
    // Else another kind or caller has gone on, or the threads were not there.
    if (is_of(context, place, kind) && t->now == threads && threads <= dpcri_threads_at_hand(context)) {
        dpcri_trial_note(t, seconds, rows, INT64_MAX);
        context->trials_told++;
    }
    pthread_mutex_unlock(&context->trials_lock);
}

int64_t dpcri_trials_told(dpcr_context *context) {
    pthread_mutex_lock(&context->trials_lock);
    const int64_t told = context->trials_told;
    pthread_mutex_unlock(&context->trials_lock);
    return told;
}

// ---- rates ----

// Measured without the lock, since a region may have to wait for another thread's; the first to finish wins. From
// inside a task nothing can be measured that would hold outside: such rates are not kept.
static dpcr_machine own_rates(dpcr_context *context) {
    pthread_mutex_lock(&context->rates_lock);
    dpcr_machine rates = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
    if (rates.threads != 0) return rates;
    if (!dpcri_wisdom_rates(context, &rates)) rates = dpcri_rates_measure(context);
    if (inside_task) return rates;
    pthread_mutex_lock(&context->rates_lock);
    if (context->rates.threads == 0) context->rates = rates;
    rates = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
    return rates;
}

// A host may move virtual processors between caches at any time: some 0.3 us of handing over become 1.7. By a value
// between them neither loses more than half of what its best way takes.
static void count_moves(dpcr_machine *machine) {
    if (machine->threads > 1 && machine->region < DPCRI_LEAST_REGION) machine->region = DPCRI_LEAST_REGION;
}

void dpcri_rates_note(dpcr_context *context) {
    pthread_mutex_lock(&context->rates_lock);
    const dpcr_machine rates = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
    if (rates.threads != 0) dpcri_wisdom_keep_rates(context, &rates);
}

void dpcri_rates_forget(dpcr_context *context) {
    pthread_mutex_lock(&context->rates_lock);
    context->rates.threads = 0;
    pthread_mutex_unlock(&context->rates_lock);
}

static void set_given(double *field, double given) {
    if (given > 0) *field = given;
}

static void put_given(dpcr_context *context, dpcr_machine *machine) {
    pthread_mutex_lock(&context->rates_lock);
    const dpcr_machine given = context->given;
    pthread_mutex_unlock(&context->rates_lock);
    set_given(&machine->threads, given.threads);
    set_given(&machine->flops, given.flops);
    set_given(&machine->latency, given.latency);
    set_given(&machine->region, given.region);
    set_given(&machine->wake, given.wake);
    set_given(&machine->bandwidth, given.bandwidth);
    set_given(&machine->thread_bandwidth, given.thread_bandwidth);
    for (int i = 0; i < 3; i++) {
        set_given(&machine->cache_bytes[i], given.cache_bytes[i]);
        set_given(&machine->cache_bandwidth[i], given.cache_bandwidth[i]);
    }
}

void dpcri_rates_here(dpcr_context *context, dpcr_machine *machine) {
    *machine = own_rates(context);
    count_moves(machine);
}

void dpcri_rates_of(dpcr_context *context, dpcr_machine *machine) {
    dpcri_rates_here(context, machine);
    put_given(context, machine);
}

bool dpcri_rates_known(dpcr_context *context, dpcr_machine *machine) {
    pthread_mutex_lock(&context->rates_lock);
    *machine = context->rates;
    pthread_mutex_unlock(&context->rates_lock);
    if (machine->threads == 0 && !dpcri_wisdom_rates(context, machine)) return false;
    count_moves(machine);
    put_given(context, machine);
    return true;
}

void dpcri_rates_at_hand(dpcr_context *context, dpcr_machine *machine) {
    if (dpcri_rates_known(context, machine)) return;
    *machine = dpcri_rates_usual(context);
    count_moves(machine);
    put_given(context, machine);
}

bool dpcri_is_described(dpcr_context *context, dpcr_machine *given) {
    pthread_mutex_lock(&context->rates_lock);
    const dpcr_machine m = context->given;
    pthread_mutex_unlock(&context->rates_lock);
    if (given) *given = m;
    bool described = m.threads > 0 || m.flops > 0 || m.latency > 0 || m.region > 0 || m.wake > 0 || m.bandwidth > 0 ||
                     m.thread_bandwidth > 0;
    for (int i = 0; i < 3; i++) described = described || m.cache_bytes[i] > 0 || m.cache_bandwidth[i] > 0;
    return described;
}

dpcr_status dpcr_context_machine(dpcr_context *context, dpcr_machine *machine, dpcr_error *error) {
    if (!context || !machine || machine->size < sizeof machine->size)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "context_machine: wanted a context and a machine with its size");
    dpcr_machine all;
    dpcri_rates_of(context, &all);
    dpcri_copy_out(machine, &all, sizeof all);
    return DPCR_OK;
}

static bool is_rate(double value) { return value >= 0 && value < 1e300; }

dpcr_status dpcr_context_set_machine(dpcr_context *context, const dpcr_machine *machine, dpcr_error *error) {
    dpcr_machine given = {.size = sizeof given};
    if (!context || (machine && machine->size < sizeof machine->size))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "context_set_machine: wanted a context and a machine with its size");
    if (machine) DPCRI_COPY_IN(given, machine);
    bool good = is_rate(given.threads) && is_rate(given.flops) && is_rate(given.latency) && is_rate(given.region) &&
                is_rate(given.wake) && is_rate(given.bandwidth) && is_rate(given.thread_bandwidth);
    for (int i = 0; i < 3; i++) good = good && is_rate(given.cache_bytes[i]) && is_rate(given.cache_bandwidth[i]);
    if (!good)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "context_set_machine: a rate is negative or not finite; wanted 0 (as measured) or more");
    if (given.threads > 0 && given.threads < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "context_set_machine: %g threads, wanted 0 (as measured), 1 or more", given.threads);
    pthread_mutex_lock(&context->rates_lock);
    context->given = given;
    pthread_mutex_unlock(&context->rates_lock);
    return DPCR_OK;
}

dpcri_wisdom *dpcri_context_wisdom(dpcr_context *context) { return &context->wisdom; }
