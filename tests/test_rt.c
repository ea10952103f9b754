// SPDX-License-Identifier: MIT
// The thread pool: every task once, whatever the number of tasks and threads; nested and concurrent regions; after
// fork; refused memory; and the context's checks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "rt/core.h"
#include "base/checksum.h"
#include "rt/rt.h"
#include "rt/trial.h"

typedef struct counted {
    dpcr_context *context;
    _Atomic int *times;
    int64_t n;
    int nested;
} counted;

static void count_task(void *argument, int64_t i) {
    counted *c = argument;
    atomic_fetch_add(&c->times[i], 1);
    if (!c->nested) return;
    _Atomic int inner[7] = {0};
    counted below = {.context = c->context, .times = inner, .n = 7};
    dpcri_parallel(c->context, 7, count_task, &below);  // from inside a task: serially
    for (int k = 0; k < 7; k++)
        if (inner[k] != 1) atomic_fetch_add(&c->times[i], 100);
}

static int wrong_counts(dpcr_context *context, int64_t n, int nested) {
    _Atomic int *times = calloc((size_t)n + 1, sizeof *times);
    counted c = {.context = context, .times = times, .n = n, .nested = nested};
    dpcri_parallel(context, n, count_task, &c);
    int wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong += times[i] != 1;
    free(times);
    return wrong;
}

static dpcr_context *context_of(int threads) {
    const dpcr_context_options options = {.size = sizeof options, .threads = threads};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static void every_task_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 9; threads += 2) {
        dpcr_context *context = context_of(threads);
        assert_int_equal(dpcr_context_threads(context), threads);
        for (int64_t n = 0; n < 70; n++) assert_int_equal(wrong_counts(context, n, n % 3 == 0), 0);
        for (int i = 0; i < 3000; i++) assert_int_equal(wrong_counts(context, 2, 0), 0);
        assert_int_equal(wrong_counts(context, 100000, 0), 0);
        usleep(2000);  // long enough for the workers to sleep
        assert_int_equal(wrong_counts(context, 64, 0), 0);
        dpcr_context_destroy(context);
    }
}

// A limit is the calling thread's: no more threads than it says are at work at once, and 0 takes it away.
typedef struct crowd {
    _Atomic int now, most;
} crowd;

static void join_crowd(void *argument, int64_t i) {
    (void)i;
    crowd *c = argument;
    const int now = atomic_fetch_add(&c->now, 1) + 1;
    for (int most = atomic_load(&c->most); most < now && !atomic_compare_exchange_weak(&c->most, &most, now);) {
    }
    usleep(200);  // the others come meanwhile
    atomic_fetch_sub(&c->now, 1);
}

static int largest_crowd(dpcr_context *context, int limit) {
    crowd c = {0};
    dpcri_threads_limit(limit);
    dpcri_parallel(context, 40, join_crowd, &c);
    dpcri_threads_limit(0);
    return c.most;
}

static void threads_keep_a_limit(void **state) {
    (void)state;
    dpcr_context *context = context_of(4);
    int tries = 0;  // a busy machine may not wake them all at once
    while (largest_crowd(context, 0) < 4) assert_true(++tries < 1000);
    assert_int_equal(largest_crowd(context, 1), 1);
    assert_in_range(largest_crowd(context, 2), 1, 2);
    assert_in_range(largest_crowd(context, 3), 1, 3);
    assert_in_range(largest_crowd(context, 9), 1, 4);
    for (int64_t n = 0; n < 70; n++) {
        dpcri_threads_limit((int)(n % 5));
        assert_int_equal(wrong_counts(context, n, n % 3 == 0), 0);
    }
    dpcri_threads_limit(0);
    dpcr_context_destroy(context);
}

// Of two series of kinds, as their users number them, each finds that one thread is the quickest, whatever comes
// between; a limit of threads tells nothing, and takes nothing away for good; more kinds than have places begin anew.
static void kinds_have_trials_of_their_own(void **state) {
    (void)state;
    enum { KINDS = 60, MANY = 1000 };
    dpcr_context *context = context_of(4);
    uint64_t kinds[MANY];
    for (int k = 0; k < MANY; k++) {
        const double shape[2] = {2 + k, 1};
        kinds[k] = k < KINDS / 2 ? (uint64_t)k : dpcri_checksum(DPCRI_CHECKSUM, shape, sizeof shape);
    }
    dpcri_threads_limit(2);
    for (int turn = 0; turn < 30; turn++) {
        for (int k = 0; k < KINDS; k++) {
            const int threads = dpcri_trial_threads(context, kinds[k], 4);
            if (turn < 10) assert_int_equal(threads, 4);
            dpcri_trial_took(context, kinds[k], threads, threads, 1);
        }
        if (turn == 9) assert_int_equal(dpcri_trials_told(context), 0), dpcri_threads_limit(0);
    }
    assert_int_equal(dpcri_trials_told(context), 20 * KINDS);
    for (int k = 0; k < KINDS; k++) assert_int_equal(dpcri_trial_threads(context, kinds[k], 4), 1);
    for (int k = KINDS; k < MANY; k++) assert_int_equal(dpcri_trial_threads(context, kinds[k], 4), 4);
    const int64_t told = dpcri_trials_told(context);
    for (int k = 0; k < KINDS; k++) dpcri_trial_took(context, kinds[k], 4, 1, 1);  // who is left is at 1
    assert_int_equal(dpcri_trials_told(context), told);
    dpcr_context_destroy(context);
}

// Task i goes on when task i - 1 is done.
static void wait_for_the_one_before(void *argument, int64_t i) {
    _Atomic int64_t *done = argument;
    while (*done < i) sched_yield();
    *done = i + 1;
}

static void tasks_may_wait_for_the_one_before(void **state) {
    (void)state;
    dpcr_context *context = context_of(6);
    for (int limit = 0; limit <= 7; limit++) {
        dpcri_threads_limit(limit);
        const int64_t threads = dpcri_threads_at_hand(context);
        assert_int_equal(threads, limit > 0 && limit < 6 ? limit : 6);
        for (int turn = 0; turn < 300; turn++) {
            _Atomic int64_t done = 0;
            dpcri_parallel(context, threads, wait_for_the_one_before, &done);
            assert_int_equal(done, threads);
        }
    }
    dpcri_threads_limit(0);
    dpcr_context_destroy(context);
}

// Every thread waits in its first task until all have one: which tasks are first, and who runs the rest.
enum { TASKS = 42, CREW = 4 };

typedef struct shares {
    _Atomic int arrived;
    pthread_t by[TASKS];
    _Atomic int first[TASKS];
} shares;

static _Thread_local const shares *arrived_at;

static void take_share(void *argument, int64_t i) {
    shares *s = argument;
    s->by[i] = pthread_self();
    if (i < 11) usleep(500);  // the caller's, so that the others help it
    if (arrived_at == s) return;
    arrived_at = s;
    s->first[i] = 1;
    atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) < CREW) usleep(20);
}

static void threads_begin_with_ranges_of_their_own(void **state) {
    (void)state;
    dpcr_context *context = context_of(CREW);
    shares s = {0};
    dpcri_parallel(context, TASKS, take_share, &s);
    for (int i = 0; i < TASKS; i++)  // 11, 10, 11, 10 tasks
        assert_int_equal(s.first[i], i == 0 || i == 11 || i == 21 || i == 32);
    assert_true(pthread_equal(s.by[0], pthread_self()));
    // What others took of a range is its end.
    const int begin[CREW + 1] = {0, 11, 21, 32, TASKS};
    for (int r = 0; r < CREW; r++) {
        int own = begin[r];
        while (own < begin[r + 1] && pthread_equal(s.by[own], s.by[begin[r]])) own++;
        for (int i = own; i < begin[r + 1]; i++) assert_false(pthread_equal(s.by[i], s.by[begin[r]]));
    }
    dpcr_context_destroy(context);
}

// ---- the caller's processor ----

typedef struct meeting {
    _Atomic int present;
    pthread_t caller;
    cpu_set_t all;
    int share;                   // the processor that the worker is to be found on after the region; -1: none
    int found_on;                // where the worker was
    bool may_go_anywhere, came;  // its affinity; whether there was one
} meeting;

static int first_of(const cpu_set_t *set) {
    int i = 0;
    while (!CPU_ISSET(i, set)) i++;
    return i;
}

// Both tasks wait for each other, for a second at most.
static void meet(void *argument, int64_t i) {
    meeting *m = argument;
    (void)i;
    atomic_fetch_add(&m->present, 1);
    for (int64_t turn = 0; turn < 1000000 && atomic_load(&m->present) < 2; turn++) sched_yield();
    if (pthread_equal(pthread_self(), m->caller)) return;
    cpu_set_t mine;
    m->came = true;
    m->found_on = sched_getcpu();
    m->may_go_anywhere = sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_EQUAL(&mine, &m->all);
    if (m->share < 0) return;
    CPU_ZERO(&mine);
    CPU_SET(m->share, &mine);
    sched_setaffinity(0, sizeof mine, &mine);
    sched_setaffinity(0, sizeof m->all, &m->all);
}

// Turns in which the worker was put on the caller's processor, and was there for the region after it too, and of which
// not.
static void share_and_meet(dpcr_context *context, meeting *m, int turns, int *came, int *elsewhere) {
    *came = *elsewhere = 0;
    for (int turn = 0; turn < turns; turn++) {
        atomic_store(&m->present, 0);
        m->share = first_of(&m->all);
        dpcri_parallel(context, 2, meet, m);
        atomic_store(&m->present, 0);
        m->share = -1, m->came = false;
        dpcri_parallel(context, 2, meet, m);
        if (!m->came) continue;
        *came += 1, *elsewhere += m->found_on != first_of(&m->all);
        assert_true(m->may_go_anywhere);
    }
}

// A worker that has come to be on the caller's processor leaves it, and may go anywhere afterwards as before. The
// system may put it back at any time, so of some rounds one must go well.
static void a_worker_makes_way_for_the_caller(void **state) {
    (void)state;
    cpu_set_t all, own;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) skip();
    dpcr_context *context = context_of(2);
    meeting m = {.caller = pthread_self(), .all = all, .share = -1};
    dpcri_parallel(context, 2, meet, &m);
    CPU_ZERO(&own);
    CPU_SET(first_of(&all), &own);
    assert_int_equal(sched_setaffinity(0, sizeof own, &own), 0);
    int came, elsewhere, rounds = 0;
    do {
        share_and_meet(context, &m, 40, &came, &elsewhere);
    } while (2 * elsewhere < came && ++rounds < 20);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    dpcr_context_destroy(context);
    assert_true(rounds < 20);
}

static void *many_regions(void *context) {
    intptr_t wrong = 0;
    for (int i = 0; i < 300; i++) wrong += wrong_counts(context, 1 + i % 17, 0);
    return (void *)wrong;
}

static void threads_share_a_context(void **state) {
    (void)state;
    dpcr_context *context = context_of(3);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, many_regions, context), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    dpcr_context_destroy(context);
}

static void works_after_fork(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip();  // its runtime cannot start threads after a fork
#endif
    dpcr_context *context = context_of(3);
    assert_int_equal(wrong_counts(context, 50, 0), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int wrong = wrong_counts(context, 50, 1) + wrong_counts(context, 3, 0);
        dpcr_context_destroy(context);
        _exit(wrong ? 1 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(wrong_counts(context, 50, 0), 0);
    dpcr_context_destroy(context);
}

static void *only_once(void *user, size_t bytes, size_t alignment) {
    return (*(int *)user)++ ? NULL : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void release(void *user, void *memory) {
    (void)user;
    free(memory);
}

static void without_memory_the_caller_does_it(void **state) {
    (void)state;
    int calls = 0;
    const dpcr_context_options options = {
        .size = sizeof options, .threads = 4, .allocate = only_once, .release = release, .allocator_user = &calls};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    assert_int_equal(wrong_counts(context, 40, 0), 0);
    dpcr_context_destroy(context);
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_ERROR_MEMORY);
    assert_null(context);
}

#if defined(__x86_64__) || defined(__aarch64__)
#define HAS_MODES 1
typedef struct mode_job {
    int flushes;
    _Atomic int wrong;
    _Atomic int elsewhere;
    pthread_t caller;
} mode_job;

static void look_at_mode(void *argument, int64_t i) {
    mode_job *job = argument;
    (void)i;
    volatile float tiny = 1e-38f, half = 0.5f;
    const float product = tiny * half;  // a denormal, or 0 where they are flushed
    const int flushed = product == 0;
    if (flushed != job->flushes) atomic_fetch_add(&job->wrong, 1);
    if (!pthread_equal(pthread_self(), job->caller)) atomic_fetch_add(&job->elsewhere, 1);
    usleep(200);  // long enough that the workers take some
}

// Tasks see denormals as the caller does, on whatever thread they run, and the workers' own mode comes back.
static void denormals_are_the_callers(void **state) {
    (void)state;
    dpcr_context *context = context_of(3);
    const int own = dpcr_flush_denormals(0);
    int elsewhere = 0;
    for (int k = 0; k < 4 || (elsewhere == 0 && k < 400); k++) {
        mode_job job = {.flushes = k % 2, .caller = pthread_self()};
        dpcr_flush_denormals(k % 2);
        dpcri_parallel(context, 60, look_at_mode, &job);
        assert_int_equal(dpcr_flush_denormals(own), k % 2);
        assert_int_equal(job.wrong, 0);
        elsewhere += job.elsewhere;
    }
    assert_true(elsewhere > 0);
    dpcr_context_destroy(context);
}

// On the thread that asks, both of results and operands, and back; other modes stay.
static void denormals_are_flushed_when_asked(void **state) {
    (void)state;
    volatile float tiny = 1e-38f, half = 0.5f, denormal = 1e-40f, many = 1e10f;
    const int own = dpcr_flush_denormals(0), rounding = fegetround();
    assert_int_equal(fesetround(FE_DOWNWARD), 0);
    assert_int_equal(dpcr_flush_denormals(1), 0);
    assert_true(tiny * half == 0 && denormal * many == 0);
    assert_int_equal(dpcr_flush_denormals(1), 1);
    assert_int_equal(fegetround(), FE_DOWNWARD);
    assert_int_equal(dpcr_flush_denormals(0), 1);
    assert_true(tiny * half > 0 && denormal * many > 0);
    assert_int_equal(fegetround(), FE_DOWNWARD);
#if defined(__x86_64__)
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8000);  // results only
    assert_int_equal(dpcr_flush_denormals(0), 0);
    _mm_setcsr(mode);
#endif
    fesetround(rounding);
    dpcr_flush_denormals(own);
}
#endif

static void refusals(void **state) {
    (void)state;
    dpcr_context *context = NULL;
    dpcr_error error = {0};
    dpcr_context_options options = {.size = sizeof options, .threads = -1};
    assert_int_equal(dpcr_context_create(&options, &context, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "threads"));
    options = (dpcr_context_options){.size = 3};
    assert_int_equal(dpcr_context_create(&options, &context, &error), DPCR_ERROR_ARGUMENT);
    options = (dpcr_context_options){.size = sizeof options, .allocate = only_once};
    assert_int_equal(dpcr_context_create(&options, &context, &error), DPCR_ERROR_ARGUMENT);
    assert_non_null(strstr(error.text, "together"));
    assert_int_equal(dpcr_context_create(NULL, NULL, NULL), DPCR_ERROR_ARGUMENT);
    dpcr_context_destroy(NULL);
}

static void rates_are_plausible(void **state) {
    (void)state;
    dpcr_context *context = context_of(2);
    dpcr_machine rates, again;
    dpcri_rates_of(context, &rates);
    dpcri_rates_of(context, &again);
    assert_memory_equal(&rates, &again, sizeof rates);
    assert_true(rates.flops > 1e7 && rates.latency > 1e-11 && rates.latency < 1e-6 && rates.bandwidth > 1e7 &&
                rates.region >= 0.85e-6 && rates.wake > 0 && rates.wake < 0.1 && rates.thread_bandwidth > 1e7);
    const dpcr_machine given = {.size = sizeof given, .region = 1e-7};
    assert_int_equal(dpcr_context_set_machine(context, &given, NULL), DPCR_OK);
    dpcri_rates_of(context, &again);
    assert_true(again.region == 1e-7);
    dpcr_context *alone = context_of(1);
    dpcri_rates_of(alone, &rates);
    assert_true(rates.wake == 0 && rates.thread_bandwidth == rates.bandwidth);
    dpcr_context_destroy(alone);
    dpcr_context_destroy(context);
}

// Every small shape and stride of three dimensions: refused where two elements share a place, and only there.
static void what_is_written_lies_apart(void **state) {
    (void)state;
    enum { MIDDLE = 64, PLACES = 2 * MIDDLE, SHAPES = 64, STRIDES = 13 };
    float x[PLACES];
    for (int c = 0; c < SHAPES * STRIDES * STRIDES * STRIDES; c++) {
        const int64_t shape[3] = {1 + c % 4, 1 + c / 4 % 4, 1 + c / 16 % 4};
        dpcr_array a = dpcr_array_make(x + MIDDLE, DPCR_F32, 3, shape);
        for (int d = 0, at = c / SHAPES; d < 3; d++, at /= STRIDES) a.strides[d] = at % STRIDES - STRIDES / 2;
        bool taken[PLACES] = {false}, shared = false;
        for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i++) {
            bool *place = &taken[MIDDLE + i / shape[2] / shape[1] * a.strides[0] +
                                 i / shape[2] % shape[1] * a.strides[1] + i % shape[2] * a.strides[2]];
            shared |= *place;
            *place = true;
        }
        assert_int_equal(dpcri_check_written("test", "x", &a, NULL), shared ? DPCR_ERROR_ARGUMENT : DPCR_OK);
    }
    dpcr_error error = {0};
    dpcr_array a = dpcr_array_make(x, DPCR_F32, 6, (const int64_t[]){1000000, 1, 1000, 20, 3, 1000});
    assert_int_equal(dpcri_check_written("test", "x", &a, &error), DPCR_OK);
    a.strides[2]--;
    assert_int_equal(dpcri_check_written("test", "x", &a, &error), DPCR_ERROR_ARGUMENT);
    assert_string_equal(error.text, "test: x is written, but its strides make it overlap itself");
    a.strides[0] = INT64_MAX / 4;
    assert_int_equal(dpcri_check_written("test", "x", &a, &error), DPCR_ERROR_OVERFLOW);
    a.shape[3] = 0;
    assert_int_equal(dpcri_check_written("test", "x", &a, &error), DPCR_OK);
    assert_int_equal(dpcri_check_written("test", "x", NULL, &error), DPCR_OK);
}

static void checked_sizes(void **state) {
    (void)state;
    int64_t x = 0;
    assert_true(dpcri_mul(INT64_MAX, 1, &x) && x == INT64_MAX);
    assert_true(dpcri_mul(0, INT64_MAX, &x) && x == 0);
    assert_false(dpcri_mul(INT64_MAX / 2 + 1, 2, &x) || dpcri_mul(-1, 2, &x));
    assert_false(dpcri_add(INT64_MAX, 1, &x));
    dpcri_arena arena = {0};
    dpcri_arena_take(&arena, 3, 8);
    dpcri_arena_take(&arena, 100, 1);
    assert_int_equal(arena.used, 64 + 128);
    unsigned char *memory = aligned_alloc(64, 192);
    dpcri_arena real = {.base = memory, .size = 192};
    assert_ptr_equal(dpcri_arena_take(&real, 3, 8), memory);
    assert_ptr_equal(dpcri_arena_take(&real, 100, 1), memory + 64);
    assert_false(real.overflow);
    assert_null(dpcri_arena_take(&real, 1, 1));
    assert_true(real.overflow);
    dpcri_arena_take(&arena, INT64_MAX, 8);
    assert_true(arena.overflow);
    free(memory);
}

// Names as dpcr_processor_name gives them; what no kind is known of does vectors whole.
static void kinds_of_processors(void **state) {
    (void)state;
    static const struct {
        const char *name;
        dpcri_core kind;
    } known[] = {{"AMD EPYC (family 23 model 1)", DPCRI_CORE_HALVES},
                 {"AMD Ryzen 5 2600 (family 23 model 8)", DPCRI_CORE_HALVES},
                 {"AMD EPYC 7B12 (family 23 model 49)", DPCRI_CORE_WHOLE},
                 {"AMD EPYC 7B13 (family 25 model 1)", DPCRI_CORE_TURNS},
                 {"AMD EPYC 9B14 (family 25 model 17)", DPCRI_CORE_TURNS},
                 {"AMD EPYC 9B45 (family 26 model 2)", DPCRI_CORE_WHOLE},
                 {"Intel(R) Xeon(R) Platinum 8581C (family 6 model 207)", DPCRI_CORE_SHARED},
                 {"ARM (implementer 0x41 part 0xd0c)", DPCRI_CORE_WHOLE},
                 {"unknown processor", DPCRI_CORE_WHOLE}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (dpcri_core_named(known[i].name) != known[i].kind)
            fail_msg("%s: kind %d, wanted %d", known[i].name, dpcri_core_named(known[i].name), known[i].kind);
    // And one whose vectors are of another level does those of this level whole.
    const dpcri_core own = dpcri_core_kind();
    for (int kind = DPCRI_CORE_WHOLE; kind <= DPCRI_CORE_HALVES; kind++) {
        dpcri_core_let_be((dpcri_core)kind);
        const dpcri_isa its = kind == DPCRI_CORE_HALVES ? DPCRI_AVX2 : DPCRI_AVX512;
        assert_int_equal(dpcri_core_kind(), dpcri_isa_level() == its ? kind : DPCRI_CORE_WHOLE);
        assert_true((dpcri_kernels_slower().lanes > 1) == (dpcri_core_kind() != DPCRI_CORE_WHOLE));
    }
    dpcri_core_let_be(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(threads_keep_a_limit),
        cmocka_unit_test(kinds_have_trials_of_their_own),
        cmocka_unit_test(tasks_may_wait_for_the_one_before),
        cmocka_unit_test(threads_begin_with_ranges_of_their_own),
        cmocka_unit_test(a_worker_makes_way_for_the_caller),
        cmocka_unit_test(threads_share_a_context),
        cmocka_unit_test(works_after_fork),
        cmocka_unit_test(without_memory_the_caller_does_it),
        cmocka_unit_test(refusals),
        cmocka_unit_test(rates_are_plausible),
        cmocka_unit_test(what_is_written_lies_apart),
        cmocka_unit_test(checked_sizes),
#if defined(HAS_MODES)
        cmocka_unit_test(kinds_of_processors),
        cmocka_unit_test(denormals_are_the_callers),
        cmocka_unit_test(denormals_are_flushed_when_asked),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
