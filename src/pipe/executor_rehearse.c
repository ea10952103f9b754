// SPDX-License-Identifier: MIT
// What a run's tasks and messages take, measured as the run will have them: every rank runs its own row of the table,
// all of them at once, on its own memory, but takes nothing from the others and gives them nothing, so that no rank
// ever waits. The median over a task's microbatches is its time. Ranks 0 and 1 then exchange small and whole messages:
//     send, receive   seconds that a rank spends on a message that need not wait: part of the tasks' times
//     hop             half of a round trip less both; what is left over between the two sizes is bandwidth
// From these figures the simulator makes the makespan to compare a run with.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"

enum { SAMPLES = 64, FEWEST = 3, EXCHANGES = 32, SMALL = 8 };
static const double ENOUGH_SECONDS = 0.3;

typedef enum task_kind { FORWARD, INPUT, WEIGHT, UPDATE, KINDS } task_kind;

typedef struct samples {
    double *seconds;  // [stages][KINDS][SAMPLES]
    int64_t *count;   // [stages][KINDS]
} samples;

static void note(samples *x, int64_t stage, task_kind k, double seconds) {
    const int64_t at = stage * KINDS + k;
    x->seconds[at * SAMPLES + x->count[at]++ % SAMPLES] = seconds;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int64_t count) {
    const int64_t n = count < SAMPLES ? count : SAMPLES;
    if (n == 0) return 0;
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

// ---- tasks ----

static void note_action(const dpcri_rank *rank, const dpcr_action *a, double start, double stop, samples *x) {
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: note(x, a->stage, FORWARD, stop - start); break;
        case DPCR_TASK_I: note(x, a->stage, INPUT, a->part ? 2 * (stop - start) : stop - start); break;
        case DPCR_TASK_B: note(x, a->stage, INPUT, rank->passed_on - start); break;
        default: break;
    }
    if (a->task != DPCR_TASK_W && a->task != DPCR_TASK_B) return;
    note(x, a->stage, WEIGHT, rank->weighed - (a->task == DPCR_TASK_B ? rank->passed_on : start));
    const dpcr_schedule *s = rank->table->schedule;
    if (s->semantics != DPCR_SYNCHRONOUS && (a->microbatch + 1) % s->accumulate == 0)
        note(x, a->stage, UPDATE, stop - rank->weighed);
}

// Seconds for every task of the row, or enough samples of each.
static bool is_enough(const dpcri_rank *rank, const samples *x, double seconds) {
    int64_t least = SAMPLES;
    for (int64_t k = 0; k < rank->share_count; k++) {
        const int64_t *count = x->count + rank->shares[k].stage * KINDS;
        for (int k2 = FORWARD; k2 <= WEIGHT; k2++)
            if (count[k2] && count[k2] < least) least = count[k2];
    }
    return least >= SAMPLES || (least >= FEWEST && seconds > ENOUGH_SECONDS) || seconds > 8 * ENOUGH_SECONDS;
}

static dpcr_status run_row(dpcri_rank *rank, double began, samples *x, bool *enough, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_schedule *s = rank->table->schedule;
    double start, stop;
    for (int64_t n = s->first[rank->index]; n < s->first[rank->index + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        DPCR_TRY(dpcri_rank_action(rank, a, &start, &stop, error));
        note_action(rank, a, start, stop, x);
        *enough = s->semantics != DPCR_SYNCHRONOUS && is_enough(rank, x, stop - began);
        if (*enough) return DPCR_OK;
    }
    if (s->semantics != DPCR_SYNCHRONOUS) return DPCR_OK;
    for (int64_t k = 0; k < rank->share_count; k++) {
        dpcri_share *share = &rank->shares[k];
        if (!share->optimiser) continue;
        start = dpcri_seconds();
        dpcri_share_step(share);
        note(x, share->stage, UPDATE, dpcri_seconds() - start);
    }
    *enough = is_enough(rank, x, dpcri_seconds() - began);
done:
    return status;
}

static dpcr_status run_rows(dpcri_rank *rank, const dpcri_rows_source *source, void (*next)(void *), samples *x,
                            dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t stages = rank->table->schedule->stages;
    const double began = dpcri_seconds();
    bool enough = false;
    for (int64_t turn = 0; !enough; turn++) {
        DPCR_TRY(dpcri_rank_start(rank, source, error));
        DPCR_TRY(run_row(rank, began, x, &enough, error));
        if (next) next(source->user);
        // The first row is the one that gets its memory, unless it is the only one.
        if (turn == 0 && !enough) memset(x->count, 0, (size_t)(stages * KINDS) * sizeof *x->count);
    }
done:
    return status;
}

// ---- messages ----

typedef struct exchange {
    double send, receive, way;  // seconds: at the sender, at the receiver, from one to the other
} exchange;

// Rank 0 and rank 1 send `bytes` to each other: EXCHANGES round trips, then as many that wait to be taken.
static dpcr_status exchange_between(dpcri_rank *rank, char *data, size_t bytes, exchange *x, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t peer = 1 - rank->index, tag = dpcri_tag(rank, DPCRI_MESSAGE_OTHER, 0, 0, 0);
    double sends[SAMPLES], receives[SAMPLES], ways[SAMPLES];
    for (int k = 0; k < EXCHANGES; k++) {
        const double start = dpcri_seconds();
        if (rank->index == 0) DPCR_TRY(dpcri_send(rank->comm, peer, tag, data, bytes, error));
        DPCR_TRY(dpcri_receive(rank->comm, peer, tag, data, bytes, error));
        if (rank->index == 1) DPCR_TRY(dpcri_send(rank->comm, peer, tag, data, bytes, error));
        ways[k] = 0.5 * (dpcri_seconds() - start);
    }
    for (int k = 0; k < EXCHANGES; k++) {
        const double start = dpcri_seconds();
        DPCR_TRY(dpcri_send(rank->comm, peer, tag, data, bytes, error));
        sends[k] = dpcri_seconds() - start;
    }
    DPCR_TRY(dpcri_send(rank->comm, peer, tag + DPCRI_MESSAGES, data, 0, error));
    DPCR_TRY(dpcri_receive(rank->comm, peer, tag + DPCRI_MESSAGES, data, 0, error));
    for (int k = 0; k < EXCHANGES; k++) {
        const double start = dpcri_seconds();
        DPCR_TRY(dpcri_receive(rank->comm, peer, tag, data, bytes, error));
        receives[k] = dpcri_seconds() - start;
    }
    *x = (exchange){median(sends, EXCHANGES), median(receives, EXCHANGES), median(ways, EXCHANGES)};
done:
    return status;
}

static double more_than_0(double x) { return x > 0 ? x : 0; }

// `whole` is of a message between stages; the hop and the bandwidth are what its way takes beside both ends' work.
static dpcr_status measure_messages(dpcri_rank *rank, size_t bytes, exchange *whole, dpcri_costs *costs,
                                    dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    exchange small;
    char *data = dpcri_alloc_zero(rank->context, bytes + SMALL);
    if (!data) return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for a message of %zu bytes", bytes);
    DPCR_TRY(exchange_between(rank, data, SMALL, &small, error));
    DPCR_TRY(exchange_between(rank, data, bytes, whole, error));
    const double least = more_than_0(small.way - small.send - small.receive);
    const double more = more_than_0(whole->way - whole->send - whole->receive - least);
    costs->hop = least;
    costs->bandwidth = more > 0 ? (double)bytes / more : 0;
done:
    dpcri_free(rank->context, data);
    return status;
}

// ---- together ----

// All ranks begin at once.
static dpcr_status gather_round(dpcri_rank *rank, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t tag = dpcri_tag(rank, DPCRI_MESSAGE_OTHER, 0, 0, 0);
    char word = 0;
    if (rank->index) {
        DPCR_TRY(dpcri_send(rank->comm, 0, tag, &word, 1, error));
        return dpcri_receive(rank->comm, 0, tag, &word, 1, error);
    }
    for (int64_t r = 1; r < rank->comm->ranks; r++) DPCR_TRY(dpcri_receive(rank->comm, r, tag, &word, 1, error));
    for (int64_t r = 1; r < rank->comm->ranks; r++) DPCR_TRY(dpcri_send(rank->comm, r, tag, &word, 1, error));
done:
    return status;
}

// medians [stages][KINDS]; a task that runs elsewhere is 0 here.
static dpcr_status sum_up(dpcri_rank *rank, samples *x, double *medians, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t tag = dpcri_tag(rank, DPCRI_MESSAGE_OTHER, 0, 0, 0), all = rank->table->schedule->stages * KINDS;
    double *theirs = NULL;
    for (int64_t at = 0; at < all; at++) medians[at] = median(x->seconds + at * SAMPLES, x->count[at]);
    if (rank->index) return dpcri_send(rank->comm, 0, tag, medians, (size_t)all * sizeof *medians, error);
    theirs = dpcri_alloc(rank->context, (size_t)all * sizeof *theirs);
    if (!theirs) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the tasks' times"));
    for (int64_t r = 1; r < rank->comm->ranks; r++) {
        DPCR_TRY(dpcri_receive(rank->comm, r, tag, theirs, (size_t)all * sizeof *theirs, error));
        for (int64_t at = 0; at < all; at++)
            if (theirs[at] > medians[at]) medians[at] = theirs[at];  // the halves of I may lie on two ranks
    }
done:
    dpcri_free(rank->context, theirs);
    return status;
}

static bool is_elsewhere(const dpcri_table *t, dpcri_place from, int64_t stage, dpcri_place to, int64_t other) {
    return t->where[from][dpcri_cell(t->schedule, stage, 0)] != t->where[to][dpcri_cell(t->schedule, other, 0)];
}

static void fill_costs(const dpcri_rank *rank, const double *medians, const exchange *x, dpcri_costs *costs) {
    const dpcri_table *t = rank->table;
    for (int64_t s = 0; s < t->schedule->stages; s++) {
        const double *m = medians + s * KINDS;
        costs->forward[s] = m[FORWARD];
        costs->input[s] = m[INPUT];
        costs->weight[s] = m[WEIGHT];
        costs->update[s] = m[UPDATE];
        if (!dpcri_begins_chain(t->schedule, s)) {
            if (is_elsewhere(t, DPCRI_AT_F, s - 1, DPCRI_AT_F, s)) costs->forward[s] += x->receive;
            if (is_elsewhere(t, DPCRI_AT_I, s, DPCRI_AT_I, s - 1)) costs->input[s] += x->send;
        }
        if (!dpcri_ends_chain(t->schedule, s)) {
            if (is_elsewhere(t, DPCRI_AT_F, s, DPCRI_AT_F, s + 1)) costs->forward[s] += x->send;
            if (is_elsewhere(t, DPCRI_AT_I, s + 1, DPCRI_AT_I, s)) costs->input[s] += x->receive;
        }
    }
}

dpcr_status dpcri_rank_rehearse(dpcri_rank *rank, const dpcri_rows_source *source, void (*next)(void *user),
                                dpcri_costs *costs, dpcr_error *error) {
    dpcr_status status;
    const dpcri_table *t = rank->table;
    const size_t all = (size_t)(t->schedule->stages * KINDS);
    const size_t bytes = (size_t)(dpcri_table_extent(t, source, 0).rows * rank->model->options.width) *
                         dpcr_dtype_size(rank->model->options.dtype);
    exchange whole = {0};
    samples x = {.seconds = dpcri_alloc_zero(rank->context, all * SAMPLES * sizeof(double)),
                 .count = dpcri_alloc_zero(rank->context, all * sizeof(int64_t))};
    double *medians = dpcri_alloc_zero(rank->context, all * sizeof *medians);
    if (!x.seconds || !x.count || !medians)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for the tasks' times"));
    DPCR_TRY(gather_round(rank, error));
    rank->dry = true;
    DPCR_TRY(run_rows(rank, source, next, &x, error));
    rank->dry = false;
    DPCR_TRY(gather_round(rank, error));
    costs->hop = costs->bandwidth = 0;
    if (rank->comm->ranks > 1 && rank->index < 2) DPCR_TRY(measure_messages(rank, bytes, &whole, costs, error));
    DPCR_TRY(sum_up(rank, &x, medians, error));
    if (rank->index == 0) fill_costs(rank, medians, &whole, costs);
done:
    dpcri_free(rank->context, x.seconds);
    dpcri_free(rank->context, x.count);
    dpcri_free(rank->context, medians);
    return status;
}
