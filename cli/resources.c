// SPDX-License-Identifier: MIT
// Memory with a budget, the context, signals, the clock.
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "cli.h"

// ---- memory ----

static atomic_size_t used;

size_t cli_memory_budget(void) {
    static atomic_size_t known;
    size_t budget = atomic_load(&known);
    if (budget) return budget;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    budget = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
    const size_t limit = cli_cgroup_limit("");
    if (limit < budget) budget = limit;
    atomic_store(&known, budget);
    return budget;
}

// As the library's own allocator does: large arrays in large pages, where the system gives some to those who ask.
enum { LARGE_PAGE = 2 << 20, LARGE_ARRAY = 4 << 20 };

// Linux promises memory that it does not have, and ends the process that then uses it: so we count ourselves.
static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    const size_t budget = cli_memory_budget();
    const bool large = bytes >= LARGE_ARRAY && alignment <= LARGE_PAGE;
    if (large) alignment = LARGE_PAGE;
    if (bytes > budget || alignment > budget - bytes) return NULL;
    if (atomic_load(&used) > budget - bytes) return NULL;
    const size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
    void *memory = aligned_alloc(alignment, rounded ? rounded : alignment);
    if (memory) atomic_fetch_add(&used, malloc_usable_size(memory));
#if defined(MADV_HUGEPAGE)
    if (large && memory) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    return memory;
}

static void release(void *user, void *memory) {
    (void)user;
    if (memory) atomic_fetch_sub(&used, malloc_usable_size(memory));
    free(memory);
}

void *cli_allocate(size_t bytes) { return allocate(NULL, bytes, 64); }
void cli_release(void *memory) { release(NULL, memory); }

// ---- signals ----

static volatile sig_atomic_t stop_signal, at_once;
static atomic_llong heard_at;  // ns; 0: no signal yet
static atomic_flag taken_leave = ATOMIC_FLAG_INIT;
static char farewell[64];

static long long nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// timeout(1), and terminals over make, tell the process and its group: what comes so soon is the same signal again.
enum { SAME_NS = 200000000 };

static _Noreturn void end_by(int number) {
    const ssize_t told = write(STDERR_FILENO, farewell, strlen(farewell));
    (void)told;
    _exit(128 + number);
}

// Any thread may hear it: the first one takes leave, whole, before another one ends the process.
static void on_signal(int number) {
    const long long now = nanoseconds();
    long long first = 0;
    if (atomic_compare_exchange_strong(&heard_at, &first, now)) {
        stop_signal = number;
    } else if (now - first > SAME_NS) {  // asked again: at once, by the system's own action when this returns
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (at_once && !atomic_flag_test_and_set(&taken_leave)) end_by(number);
}

void cli_signals_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    const int stopping[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    action.sa_flags = SA_NODEFER;  // one that waits for a reader of its last line still hears the next
    for (int i = 0; i < 3; i++) {
        struct sigaction before;
        // What the caller has told us to ignore (nohup, background jobs) stays ignored.
        if (sigaction(stopping[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue;
        sigaction(stopping[i], &action, NULL);
    }
    // A closed pipe and a file size limit are write errors with an exit code of their own.
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

int cli_signal(void) { return stop_signal; }

bool cli_signals_at_once(bool on) {
    const bool before = at_once;
    if (on && !before) snprintf(farewell, sizeof farewell, "deeppcr %s: stopped as asked\n", cli_get_verb());
    at_once = on;
    if (!on || !stop_signal) return before;
    while (atomic_flag_test_and_set(&taken_leave)) pause();  // another thread's, which ends us
    end_by(stop_signal);
}

double cli_now(void) { return 1e-9 * (double)nanoseconds(); }

// ---- context ----

static int cancelled(void *user) {
    (void)user;
    return stop_signal;
}

dpcr_context *cli_context_create(const cli_common *common, int *status) {
    const dpcr_context_options options = {.size = sizeof options,
                                          .threads = common->threads,
                                          .allocate = allocate,
                                          .release = release,
                                          .cancel = cancelled};
    dpcr_context *context = NULL;
    dpcr_error error = {0};
    if (dpcr_context_create(&options, &context, &error) == DPCR_OK) return context;
    *status = cli_fail_error(&error, CLI_COMPUTING);
    return NULL;
}
