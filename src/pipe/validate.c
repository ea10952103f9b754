// SPDX-License-Identifier: MIT
// What makes a schedule right (the rules stand at dpcr_schedule_validate): counts, placement, order on a rank, memory,
// sends and receives, and no deadlock, which one run under unit costs shows.
#include "pipe/pipe.h"

#include <string.h>

enum { SEEN_F = 1, SEEN_I = 2, SEEN_W = 4, SEEN_I1 = 8, SEEN_I2 = 16 };

typedef struct checking {
    dpcr_context *context;
    const dpcr_schedule *schedule;
    uint8_t *seen;     // [stages][microbatches] bits above
    uint8_t *moved;    // [stages][microbatches] bit of SEND_F, RECV_F, SEND_B, RECV_B
    int32_t *rank_of;  // [stages] -1: none yet
    bool lowered;
    double limit;
    dpcr_error *error;
} checking;

static dpcr_status bad(const checking *c, int64_t rank, const dpcr_action *a, const char *what) {
    char text[64];
    return dpcri_fail(c->error, DPCR_ERROR_FORMAT, "rank %lld: %s %s", (long long)rank,
                      dpcr_action_text(a, text, sizeof text), what);
}

static bool has_arrays(const dpcr_schedule *s) {
    if (s->ranks < 1 || s->stages < 1 || s->microbatches < 1 || s->ranks > INT32_MAX || s->stages > INT32_MAX ||
        s->microbatches > INT32_MAX || s->chains < 1 || s->chains > 2 || s->stages % s->chains != 0 ||
        s->accumulate < 1 || (unsigned)s->semantics >= DPCR_SEMANTICS_COUNT || !s->first || !s->actions || !s->delay ||
        s->first[0] != 0)
        return false;
    for (int64_t r = 0; r < s->ranks; r++)
        if (s->first[r] > s->first[r + 1]) return false;
    return true;
}

static dpcr_status check_shape(const checking *c) {
    const dpcr_schedule *s = c->schedule;
    if (!has_arrays(s))
        return dpcri_fail(c->error, DPCR_ERROR_ARGUMENT,
                          "schedule: sizes or arrays are missing or too large, or rows do not begin where others end");
    for (int64_t stage = 0; stage < s->stages; stage++)
        if (s->delay[stage] < 0)
            return dpcri_fail(c->error, DPCR_ERROR_ARGUMENT,
                              "schedule: the delay of stage %lld is %lld, wanted 0 or more", (long long)stage,
                              (long long)s->delay[stage]);
    const int64_t actions = s->first[s->ranks];
    if (s->microbatches > actions / s->stages)  // before there is memory by the cell
        return dpcri_fail(c->error, DPCR_ERROR_FORMAT,
                          "schedule: %lld actions for %lld stages and %lld microbatches: some have none",
                          (long long)actions, (long long)s->stages, (long long)s->microbatches);
    for (int64_t n = 0; n < actions; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->stage < 0 || a->stage >= s->stages || a->microbatch < 0 || a->microbatch >= s->microbatches ||
            a->task >= DPCR_TASK_COUNT || a->part > 2 || (a->part && a->task != DPCR_TASK_I))
            return dpcri_fail(c->error, DPCR_ERROR_ARGUMENT, "schedule: action %lld is out of range", (long long)n);
    }
    return DPCR_OK;
}

static dpcr_status see(const checking *c, int64_t rank, const dpcr_action *a, int bits, int excluding) {
    uint8_t *seen = &c->seen[dpcri_cell(c->schedule, a->stage, a->microbatch)];
    if (*seen & (bits | excluding)) return bad(c, rank, a, "comes twice");
    *seen = (uint8_t)(*seen | bits);
    return DPCR_OK;
}

// What is received is there before the task that takes it. (That a send waits for its task check_deadlock finds.)
static dpcr_status see_moved(const checking *c, int64_t rank, const dpcr_action *a) {
    const bool spread = c->schedule->semantics == DPCR_DELAYED;
    const int64_t cell = dpcri_cell(c->schedule, a->stage, a->microbatch);
    uint8_t *moved = &c->moved[cell];
    const int bit = 1 << (a->task - DPCR_TASK_SEND_F), seen = c->seen[cell];
    if (*moved & bit) return bad(c, rank, a, "comes twice");
    if (!spread && a->task == DPCR_TASK_RECV_F && seen & SEEN_F) return bad(c, rank, a, "comes after its F");
    if (!spread && a->task == DPCR_TASK_RECV_B && seen & (SEEN_I | SEEN_I1 | SEEN_I2))
        return bad(c, rank, a, "comes after its I or B");
    *moved = (uint8_t)(*moved | bit);
    return DPCR_OK;
}

static dpcr_status check_action(const checking *c, int64_t rank, const dpcr_action *a) {
    const bool spread = c->schedule->semantics == DPCR_DELAYED;
    const int seen = c->seen[dpcri_cell(c->schedule, a->stage, a->microbatch)];
    if (c->rank_of[a->stage] < 0) c->rank_of[a->stage] = (int32_t)rank;
    if (!spread && c->rank_of[a->stage] != rank)
        return bad(c, rank, a, "lies on another rank than the rest of its stage");
    if (!spread && a->task != DPCR_TASK_F && a->task < DPCR_TASK_SEND_F && !(seen & SEEN_F))
        return bad(c, rank, a, "comes before its F");
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: return see(c, rank, a, SEEN_F, 0);
        case DPCR_TASK_I:
            if (a->part) return see(c, rank, a, a->part == 1 ? SEEN_I1 : SEEN_I2, SEEN_I);
            return see(c, rank, a, SEEN_I, SEEN_I1 | SEEN_I2);
        case DPCR_TASK_W:
            if (!spread && !(seen & SEEN_I) && (seen & (SEEN_I1 | SEEN_I2)) != (SEEN_I1 | SEEN_I2))
                return bad(c, rank, a, "comes before its I");
            return see(c, rank, a, SEEN_W, 0);
        case DPCR_TASK_B: return see(c, rank, a, SEEN_I | SEEN_W, SEEN_I1 | SEEN_I2);
        default: return see_moved(c, rank, a);
    }
}

static dpcr_status check_pair(const checking *c, int64_t rank, const dpcr_action *a, bool last) {
    if (!a->paired) return DPCR_OK;
    if (a->task != DPCR_TASK_F || last) return bad(c, rank, a, "begins a pair that is none");
    return a[1].task == DPCR_TASK_B || a[1].task == DPCR_TASK_I ? DPCR_OK
                                                                : bad(c, rank, a, "begins a pair without B or I");
}

// What a rank holds of its microbatches: F takes one, I frees half, W half.
static dpcr_status check_memory(const checking *c, int64_t rank) {
    const dpcr_schedule *s = c->schedule;
    double held = 0;
    if (c->limit <= 0) return DPCR_OK;
    for (int64_t n = s->first[rank]; n < s->first[rank + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->task == DPCR_TASK_F) held += 1;
        if (a->task == DPCR_TASK_B) held -= 1;
        if (a->task == DPCR_TASK_W) held -= 0.5;
        if (a->task == DPCR_TASK_I) held -= a->part ? 0.25 : 0.5;
        if (held > c->limit) {
            char text[64];
            return dpcri_fail(c->error, DPCR_ERROR_FORMAT,
                              "rank %lld: %s makes it hold %g activations; the limit is %g", (long long)rank,
                              dpcr_action_text(a, text, sizeof text), held, c->limit);
        }
    }
    return DPCR_OK;
}

// When the copies of a stage on several ranks come and go no row tells.
static dpcr_status check_limit(const checking *c) {
    const dpcr_schedule *s = c->schedule;
    if (c->limit <= 0 || s->semantics != DPCR_DELAYED) return DPCR_OK;
    for (int64_t r = 0; r < s->ranks; r++)
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            int32_t *rank = &c->rank_of[s->actions[n].stage];
            if (*rank < 0) *rank = (int32_t)r;
            if (*rank != r)
                return dpcri_fail(
                    c->error, DPCR_ERROR_UNSUPPORTED,
                    "schedule: a limit of activations is for stages on one rank each, and stage %lld lies "
                    "on ranks %d and %lld; simulating tells what they hold",
                    (long long)s->actions[n].stage, (int)*rank, (long long)r);
        }
    return DPCR_OK;
}

static dpcr_status check_rows(checking *c) {
    const dpcr_schedule *s = c->schedule;
    dpcr_status status = DPCR_OK;
    for (int64_t r = 0; r < s->ranks; r++) {
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            const dpcr_action *a = &s->actions[n];
            c->lowered = c->lowered || a->task >= DPCR_TASK_SEND_F;
            DPCR_TRY(check_action(c, r, a));
            DPCR_TRY(check_pair(c, r, a, n + 1 == s->first[r + 1]));
        }
        DPCR_TRY(check_memory(c, r));
    }
done:
    return status;
}

static dpcr_status check_counts(const checking *c) {
    const dpcr_schedule *s = c->schedule;
    for (int64_t stage = 0; stage < s->stages; stage++)
        for (int64_t i = 0; i < s->microbatches; i++) {
            const int seen = c->seen[dpcri_cell(s, stage, i)];
            const bool input = (seen & SEEN_I) || (seen & (SEEN_I1 | SEEN_I2)) == (SEEN_I1 | SEEN_I2);
            const char *missing = !(seen & SEEN_F) ? "F" : !input ? "I or B" : !(seen & SEEN_W) ? "W or B" : NULL;
            if (missing)
                return dpcri_fail(c->error, DPCR_ERROR_FORMAT, "stage %lld has no %s of microbatch %lld",
                                  (long long)stage, missing, (long long)i);
        }
    return DPCR_OK;
}

static dpcr_status unmatched(const checking *c, int64_t stage, int64_t i, const char *what) {
    return dpcri_fail(c->error, DPCR_ERROR_FORMAT, "stage %lld, microbatch %lld: %s", (long long)stage, (long long)i,
                      what);
}

// In a lowered schedule a result moves exactly where two stages lie on different ranks.
static dpcr_status check_moves(const checking *c) {
    enum { SENT_F = 1, GOT_F = 2, SENT_B = 4, GOT_B = 8 };
    const dpcr_schedule *s = c->schedule;
    for (int64_t stage = 0; stage < s->stages; stage++)
        for (int64_t i = 0; i < s->microbatches; i++) {
            const int here = c->moved[dpcri_cell(s, stage, i)];
            const bool ends = dpcri_ends_chain(s, stage), begins = dpcri_begins_chain(s, stage);
            if ((begins && here & (GOT_F | SENT_B)) || (ends && here & (SENT_F | GOT_B)))
                return unmatched(c, stage, i, "a message beyond the ends of the chain");
            if (ends) continue;
            const int there = c->moved[dpcri_cell(s, stage + 1, i)];
            const bool across = c->rank_of[stage] != c->rank_of[stage + 1];
            if (!(here & SENT_F) != !(there & GOT_F))
                return unmatched(c, stage, i, "SEND_F without RECV_F, or the other way");
            if (!(there & SENT_B) != !(here & GOT_B))
                return unmatched(c, stage, i, "RECV_B without SEND_B, or the other way");
            if (across != !!(here & SENT_F) || across != !!(here & GOT_B))
                return unmatched(c, stage, i, across ? "its result reaches no other rank" : "a message within a rank");
        }
    return DPCR_OK;
}

// Updates are taken in order: the run waits for the last W of each.
static dpcr_status check_update_order(const checking *c) {
    const dpcr_schedule *s = c->schedule;
    if (s->semantics == DPCR_SYNCHRONOUS) return DPCR_OK;
    int32_t *next = dpcri_alloc_zero(c->context, (size_t)s->stages * sizeof *next);
    if (!next) return dpcri_fail(c->error, DPCR_ERROR_MEMORY, "schedule: no memory to check it");
    dpcr_status status = DPCR_OK;
    for (int64_t r = 0; r < s->ranks && status == DPCR_OK; r++)
        for (int64_t n = s->first[r]; n < s->first[r + 1] && status == DPCR_OK; n++) {
            const dpcr_action *a = &s->actions[n];
            if (a->task != DPCR_TASK_W && a->task != DPCR_TASK_B) continue;
            if (a->microbatch != next[a->stage]++)
                status = bad(c, r, a, "comes out of order; updates are made in order");
        }
    dpcri_free(c->context, next);
    return status;
}

static dpcr_status check_deadlock(const checking *c) {
    dpcri_run run;
    dpcr_status status = dpcri_run_create(c->context, c->schedule, NULL, &run, c->error);
    if (status != DPCR_OK) return status;
    if (!dpcri_run_once(&run, NULL, NULL)) status = dpcri_run_stuck(&run, c->error);
    dpcri_run_destroy(c->context, &run);
    return status;
}

dpcr_status dpcr_schedule_validate(dpcr_context *context, const dpcr_schedule *schedule, double memory_limit,
                                   dpcr_error *error) {
    if (!context || !schedule)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule_validate: context or schedule is NULL");
    if (!(memory_limit >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "schedule_validate: a limit of %g activations; wanted 0 (none) or more", memory_limit);
    checking c = {.context = context, .schedule = schedule, .limit = memory_limit, .error = error};
    dpcr_status status;
    DPCR_TRY(check_shape(&c));
    const size_t cells = (size_t)(schedule->stages * schedule->microbatches);  // no more than actions
    c.seen = dpcri_alloc_zero(context, cells);
    c.moved = dpcri_alloc_zero(context, cells);
    c.rank_of = dpcri_alloc(context, (size_t)schedule->stages * sizeof *c.rank_of);
    if (!c.seen || !c.moved || !c.rank_of)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory to check it"));
    for (int64_t s = 0; s < schedule->stages; s++) c.rank_of[s] = -1;
    DPCR_TRY(check_limit(&c));
    DPCR_TRY(check_rows(&c));
    DPCR_TRY(check_counts(&c));
    if (c.lowered) DPCR_TRY(check_moves(&c));
    DPCR_TRY(check_update_order(&c));
    DPCR_TRY(check_deadlock(&c));
done:
    dpcri_free(context, c.seen);
    dpcri_free(context, c.moved);
    dpcri_free(context, c.rank_of);
    return status;
}
