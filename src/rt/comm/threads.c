// SPDX-License-Identifier: MIT
// Ranks as threads of one process: a mailbox a rank, a list of messages in the order of arrival under one lock. A
// receive looks for the first that bears its name, and waits until one comes, a rank fails, or the deadline passes:
// awake for a little while, where there is a processor for every rank, since waking up takes longer than most tasks.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "rt/comm/comm.h"

static const double AWAKE_SECONDS = 1e-3;

typedef struct message {
    struct message *next;
    int64_t from, tag;
    size_t bytes, room;  // of what data holds, and can hold
    _Alignas(64) unsigned char data[];
} message;

typedef struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    bool open;
    message *first, **end;
    message *spare;       // received; their memory is used again, as large pieces are slow to get
    atomic_uint changes;  // messages that came, and failures
} mailbox;

typedef struct group group;

typedef struct end {
    dpcri_comm comm;  // first: a comm is its end
    group *group;
    pthread_t thread;
    bool started;
    dpcr_status status;
} end;

struct group {
    dpcr_context *context;
    int64_t ranks;
    mailbox *boxes;
    end *ends;
    dpcri_rank_body *body;
    void *argument;
    bool crowded;          // more ranks than processors
    pthread_mutex_t fate;  // of the two below
    bool failed;
    dpcr_error error;  // of the rank that failed first
};

static group *group_of(dpcri_comm *comm) { return ((end *)comm)->group; }

// ---- failing ----

static bool has_failed(dpcri_comm *comm, dpcr_error *error) {
    group *g = group_of(comm);
    pthread_mutex_lock(&g->fate);
    const bool failed = g->failed;
    if (failed) dpcri_fail(error, DPCR_ERROR_CANCELLED, "another rank failed: %.400s", g->error.text);
    pthread_mutex_unlock(&g->fate);
    return failed;
}

static void fail(dpcri_comm *comm, const dpcr_error *error) {
    group *g = group_of(comm);
    pthread_mutex_lock(&g->fate);
    if (!g->failed) g->error = *error;
    g->failed = true;
    pthread_mutex_unlock(&g->fate);
    for (int64_t r = 0; r < g->ranks; r++) {
        pthread_mutex_lock(&g->boxes[r].lock);
        atomic_fetch_add(&g->boxes[r].changes, 1);
        pthread_cond_broadcast(&g->boxes[r].arrived);
        pthread_mutex_unlock(&g->boxes[r].lock);
    }
}

// ---- messages ----

// A spare message with room for so many bytes, or NULL.
static message *spare_of(mailbox *box, size_t bytes) {
    pthread_mutex_lock(&box->lock);
    message **at = &box->spare;
    while (*at && (*at)->room < bytes) at = &(*at)->next;
    message *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&box->lock);
    return m;
}

static void keep_spare(mailbox *box, message *m) {
    pthread_mutex_lock(&box->lock);
    m->next = box->spare;
    box->spare = m;
    pthread_mutex_unlock(&box->lock);
}

static dpcr_status send(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    group *g = group_of(comm);
    mailbox *box = &g->boxes[to];
    message *m = spare_of(box, bytes);
    const size_t room = m ? m->room : bytes;
    if (!m && bytes <= SIZE_MAX / 2) m = dpcri_alloc(g->context, sizeof *m + bytes);
    if (!m) return dpcri_fail(error, DPCR_ERROR_MEMORY, "no memory for a message of %zu bytes", bytes);
    *m = (message){.from = comm->rank, .tag = tag, .bytes = bytes, .room = room};
    if (bytes) memcpy(m->data, data, bytes);
    pthread_mutex_lock(&box->lock);
    *box->end = m;
    box->end = &m->next;
    atomic_fetch_add(&box->changes, 1);
    pthread_cond_signal(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    return DPCR_OK;
}

// Takes the first message of that name out; the lock is held.
static message *take(mailbox *box, int64_t from, int64_t tag) {
    for (message **at = &box->first; *at; at = &(*at)->next) {
        message *m = *at;
        if (m->from != from || m->tag != tag) continue;
        *at = m->next;
        if (box->end == &m->next) box->end = at;
        return m;
    }
    return NULL;
}

dpcri_patience dpcri_patience_begin(double deadline) {
    const double now = dpcri_seconds(), most = !(deadline > 0) ? 0 : deadline < 1e9 ? deadline : 1e9;
    return (dpcri_patience){.until = now + most, .seen = now, .slice = most < 4 ? most / 4 : 1};
}

double dpcri_patience_next(const dpcri_patience *p) {
    const double next = p->seen + p->slice;
    return next < p->until ? next : p->until;
}

bool dpcri_patience_over(dpcri_patience *p) {
    const double now = dpcri_seconds(), since = now - p->seen;
    if (since > p->slice + 1) p->until += since;
    p->seen = now;
    return now >= p->until;
}

static struct timespec moment(double seconds) {
    const time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

static void stay_awake(mailbox *box, unsigned seen) {
    const double until = dpcri_seconds() + AWAKE_SECONDS;
    while (atomic_load(&box->changes) == seen && dpcri_seconds() < until) continue;
}

static dpcr_status receive(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    group *g = group_of(comm);
    mailbox *box = &g->boxes[comm->rank];
    dpcri_patience patience = dpcri_patience_begin(comm->deadline);
    dpcr_status status = DPCR_OK;
    message *m = NULL;
    bool late = false;
    pthread_mutex_lock(&box->lock);
    for (bool asleep = g->crowded; !(m = take(box, from, tag)); asleep = true) {
        if (has_failed(comm, error)) {
            status = DPCR_ERROR_CANCELLED;
            break;
        }
        if (late) {
            status = dpcri_fail(error, DPCR_ERROR_SYSTEM, "rank %lld waited %g s for rank %lld, which sent nothing",
                                (long long)comm->rank, comm->deadline, (long long)from);
            break;
        }
        if (asleep) {
            const struct timespec next = moment(dpcri_patience_next(&patience));
            if (pthread_cond_timedwait(&box->arrived, &box->lock, &next) == ETIMEDOUT)
                late = dpcri_patience_over(&patience);
            continue;
        }
        const unsigned seen = atomic_load(&box->changes);
        pthread_mutex_unlock(&box->lock);
        stay_awake(box, seen);
        pthread_mutex_lock(&box->lock);
    }
    pthread_mutex_unlock(&box->lock);
    if (!m) return status;
    if (m->bytes != bytes)
        status = dpcri_fail(error, DPCR_ERROR_FORMAT, "rank %lld sent %zu bytes, rank %lld wanted %zu", (long long)from,
                            m->bytes, (long long)comm->rank, bytes);
    else if (bytes)
        memcpy(data, m->data, bytes);
    keep_spare(box, m);
    return status;
}

static int64_t processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static const dpcri_comm_table threads_table = {
    .send = send, .receive = receive, .failed = fail, .has_failed = has_failed};

// ---- a run ----

static bool open_box(mailbox *box) {
    pthread_condattr_t monotonic;
    box->end = &box->first;
    if (pthread_condattr_init(&monotonic) != 0) return false;
    box->open = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&box->arrived, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (!box->open) return false;
    if (pthread_mutex_init(&box->lock, NULL) == 0) return true;
    pthread_cond_destroy(&box->arrived);
    return box->open = false;
}

static void free_messages(dpcr_context *context, message *first) {
    while (first) {
        message *m = first;
        first = m->next;
        dpcri_free(context, m);
    }
}

static void close_box(dpcr_context *context, mailbox *box) {
    if (!box->open) return;
    free_messages(context, box->first);  // of a run that failed
    free_messages(context, box->spare);
    pthread_cond_destroy(&box->arrived);
    pthread_mutex_destroy(&box->lock);
}

static void *run_rank(void *argument) {
    end *e = argument;
    dpcr_error error = {0};
    e->status = e->group->body(e->group->argument, &e->comm, &error);
    if (e->status == DPCR_OK) return NULL;
    error.status = e->status;  // a caller's body may leave `error` as it was
    if (!error.text[0])
        dpcri_fail_code(&error, e->status, error.code, "rank %lld failed and did not say why", (long long)e->comm.rank);
    fail(&e->comm, &error);
    return NULL;
}

// All or none run: a rank that cannot start ends the others' waiting.
static void run_ranks(group *g) {
    for (int64_t r = 1; r < g->ranks; r++) {
        end *e = &g->ends[r];
        e->started = pthread_create(&e->thread, NULL, run_rank, e) == 0;
        if (e->started) continue;
        dpcr_error error;
        dpcri_fail(&error, DPCR_ERROR_SYSTEM, "the system gave no thread for rank %lld", (long long)r);
        fail(&e->comm, &error);
        break;
    }
    run_rank(&g->ends[0]);
    for (int64_t r = 1; r < g->ranks; r++)
        if (g->ends[r].started) pthread_join(g->ends[r].thread, NULL);
}

dpcr_status dpcri_threads_run(dpcr_context *context, int64_t ranks, double deadline, dpcri_rank_body *body,
                              void *argument, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    group g = {.context = context, .ranks = ranks, .body = body, .argument = argument, .crowded = ranks > processors()};
    if (pthread_mutex_init(&g.fate, NULL) != 0)
        return dpcri_fail(error, DPCR_ERROR_SYSTEM, "pipeline: the system gave no mutex");
    g.boxes = dpcri_alloc_zero(context, (size_t)ranks * sizeof *g.boxes);
    g.ends = dpcri_alloc_zero(context, (size_t)ranks * sizeof *g.ends);
    if (!g.boxes || !g.ends)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for %lld ranks", (long long)ranks));
    for (int64_t r = 0; r < ranks; r++) {
        g.ends[r] = (end){.comm = {.table = &threads_table,
                                   .rank = r,
                                   .ranks = ranks,
                                   .largest_tag = INT64_MAX,
                                   .deadline = deadline},
                          .group = &g};
        if (!open_box(&g.boxes[r]))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_SYSTEM, "pipeline: the system gave no mailbox"));
    }
    run_ranks(&g);
    if (g.failed) {
        status = g.error.status;
        if (error) *error = g.error;
    }
done:
    for (int64_t r = 0; g.boxes && r < ranks; r++) close_box(context, &g.boxes[r]);
    dpcri_free(context, g.boxes);
    dpcri_free(context, g.ends);
    pthread_mutex_destroy(&g.fate);
    return status;
}
