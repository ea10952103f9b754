// SPDX-License-Identifier: MIT
// The table of named schedules, and the memory that all schedules live in: one flat array of actions with an offset a
// rank (docs/design.md weighs it against lists).
#include "pipe/pipe.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const dpcri_generator generators[DPCR_SCHEDULE_COUNT] = {
    [DPCR_SCHEDULE_GPIPE] = {"gpipe", "all forwards, then all backwards", DPCR_SYNCHRONOUS, 1, true, dpcri_make_gpipe},
    [DPCR_SCHEDULE_1F1B] = {"1f1b", "one forward, one backward, then flush", DPCR_SYNCHRONOUS, 1, true,
                            dpcri_make_1f1b},
    [DPCR_SCHEDULE_INTERLEAVED_1F1B] = {"interleaved-1f1b", "1f1b over several stages a rank", DPCR_SYNCHRONOUS, 2,
                                        false, dpcri_make_interleaved_1f1b},
    [DPCR_SCHEDULE_ZB_H1] = {"zb-h1", "weight gradients fill the bubble, memory as 1f1b", DPCR_SYNCHRONOUS, 1, true,
                             dpcri_make_interleaved_zb},
    [DPCR_SCHEDULE_ZB_H2] = {"zb-h2", "no bubble within a rank's span, twice the memory", DPCR_SYNCHRONOUS, 1, true,
                             dpcri_make_zb_h2},
    [DPCR_SCHEDULE_INTERLEAVED_ZB] = {"interleaved-zb", "zb-h1 over several stages a rank", DPCR_SYNCHRONOUS, 2, false,
                                      dpcri_make_interleaved_zb},
    [DPCR_SCHEDULE_ZB_V] = {"zb-v", "two stages a rank, there and back: no bubble within the span", DPCR_SYNCHRONOUS, 2,
                            true, dpcri_make_zb_v},
    [DPCR_SCHEDULE_DUALPIPE] = {"dualpipe", "microbatches from both ends, each rank with two stages' weights",
                                DPCR_SYNCHRONOUS, 2, true, dpcri_make_dualpipe},
    [DPCR_SCHEDULE_DUALPIPEV] = {"dualpipev", "dualpipe cut in half: overlapped pairs over a V", DPCR_SYNCHRONOUS, 2,
                                 true, dpcri_make_dualpipev},
    [DPCR_SCHEDULE_PIPEDREAM] = {"pipedream", "1f1b without flush, a weight version each microbatch in flight",
                                 DPCR_STASHED, 1, true, dpcri_make_1f1b},
    [DPCR_SCHEDULE_PIPEDREAM_2BW] = {"pipedream-2bw", "1f1b without flush, two weight versions", DPCR_DOUBLE_BUFFERED,
                                     1, true, dpcri_make_2bw},
    [DPCR_SCHEDULE_OOO] = {"ooo", "out-of-order backprop: input gradients first, weight gradients last",
                           DPCR_SYNCHRONOUS, 1, false, dpcri_make_ooo},
    [DPCR_SCHEDULE_LAYERPIPE] = {"layerpipe", "F, I and W of a stage on different ranks, delayed gradients",
                                 DPCR_DELAYED, 1, false, dpcri_make_layerpipe},
    [DPCR_SCHEDULE_BEST] = {"best", "the best that our search finds", DPCR_SYNCHRONOUS, 1, false, dpcri_make_best},
};

static const char *const task_names[DPCR_TASK_COUNT] = {"F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
static const char *const semantics_names[DPCR_SEMANTICS_COUNT] = {"synchronous", "stashed", "double-buffered",
                                                                  "delayed"};

const char *dpcr_task_name(dpcr_task task) { return (unsigned)task < DPCR_TASK_COUNT ? task_names[task] : "unknown"; }

const char *dpcr_semantics_name(dpcr_semantics semantics) {
    return (unsigned)semantics < DPCR_SEMANTICS_COUNT ? semantics_names[semantics] : "unknown";
}

const char *dpcr_schedule_name(dpcr_schedule_kind kind) {
    return (unsigned)kind < DPCR_SCHEDULE_COUNT ? generators[kind].name : "unknown";
}

const char *dpcr_schedule_summary(dpcr_schedule_kind kind) {
    return (unsigned)kind < DPCR_SCHEDULE_COUNT ? generators[kind].summary : "unknown";
}

dpcr_semantics dpcr_schedule_semantics(dpcr_schedule_kind kind) {
    return (unsigned)kind < DPCR_SCHEDULE_COUNT ? generators[kind].semantics : DPCR_SYNCHRONOUS;
}

int64_t dpcr_schedule_default_chunks(dpcr_schedule_kind kind) {
    return (unsigned)kind < DPCR_SCHEDULE_COUNT ? generators[kind].chunks : 1;
}

dpcr_status dpcr_schedule_find(const char *name, dpcr_schedule_kind *kind, dpcr_error *error) {
    if (!name || !kind) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule_find: name or kind is NULL");
    for (int i = 0; i < DPCR_SCHEDULE_COUNT; i++) {
        if (strcmp(name, generators[i].name) != 0) continue;
        *kind = (dpcr_schedule_kind)i;
        return DPCR_OK;
    }
    char names[320];
    int used = 0;
    for (int i = 0; i < DPCR_SCHEDULE_COUNT && used < (int)sizeof names; i++)
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i ? ", " : "", generators[i].name);
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "no schedule '%.40s'; there are %s", name, names);
}

// ---- memory ----

void dpcr_schedule_free(dpcr_context *context, dpcr_schedule *schedule) {
    if (!schedule) return;
    dpcri_free(context, schedule->first);
    dpcri_free(context, schedule->actions);
    dpcri_free(context, schedule->delay);
    *schedule = (dpcr_schedule){0};
}

dpcr_status dpcri_schedule_alloc(dpcr_context *context, int64_t ranks, int64_t stages, int64_t microbatches,
                                 int64_t actions, dpcr_schedule *schedule, dpcr_error *error) {
    bool overflow = false;
    const size_t bytes = dpcri_bytes(actions, (int64_t)sizeof(dpcr_action), 1, &overflow);
    if (overflow || actions > INT64_MAX / 256)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "schedule: %lld actions are too many", (long long)actions);
    *schedule = (dpcr_schedule){
        .ranks = ranks, .stages = stages, .microbatches = microbatches, .chains = 1, .accumulate = microbatches};
    schedule->first = dpcri_alloc_zero(context, (size_t)(ranks + 1) * sizeof(int64_t));
    schedule->delay = dpcri_alloc_zero(context, (size_t)stages * sizeof(int64_t));
    schedule->actions = dpcri_alloc_zero(context, bytes ? bytes : 1);
    if (schedule->first && schedule->delay && schedule->actions) return DPCR_OK;
    dpcr_schedule_free(context, schedule);
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory for %lld actions", (long long)actions);
}

dpcr_status dpcri_schedule_split(dpcr_context *context, const dpcr_schedule *schedule, dpcr_schedule *split,
                                 dpcr_error *error) {
    const int64_t actions = schedule->first[schedule->ranks];
    int64_t both = 0, at = 0;
    for (int64_t n = 0; n < actions; n++) both += schedule->actions[n].task == DPCR_TASK_B;
    const dpcr_status status = dpcri_schedule_alloc(context, schedule->ranks, schedule->stages, schedule->microbatches,
                                                    actions + both, split, error);
    if (status != DPCR_OK) return status;
    split->chains = schedule->chains;
    split->semantics = schedule->semantics;
    split->accumulate = schedule->accumulate;
    memcpy(split->delay, schedule->delay, (size_t)schedule->stages * sizeof *split->delay);
    for (int64_t r = 0; r < schedule->ranks; r++) {
        for (int64_t n = schedule->first[r]; n < schedule->first[r + 1]; n++) {
            dpcr_action a = schedule->actions[n];
            if (a.task == DPCR_TASK_B) {
                a.task = DPCR_TASK_I;
                split->actions[at++] = a;
                a.task = DPCR_TASK_W;
            }
            split->actions[at++] = a;
        }
        split->first[r + 1] = at;
    }
    return DPCR_OK;
}

// ---- the maker ----

dpcr_status dpcri_maker_start(dpcri_maker *maker, int64_t stages, int64_t microbatches, int64_t tasks) {
    int64_t actions;
    if (!dpcri_mul(stages, microbatches, &actions) || !dpcri_mul(actions, tasks, &actions))
        return dpcri_fail(maker->error, DPCR_ERROR_OVERFLOW, "schedule: %lld stages times %lld microbatches overflow",
                          (long long)stages, (long long)microbatches);
    maker->used = maker->row = 0;
    maker->capacity = actions;
    return dpcri_schedule_alloc(maker->context, maker->p, stages, microbatches, actions, maker->schedule, maker->error);
}

void dpcri_put(dpcri_maker *maker, dpcr_task task, int64_t stage, int64_t microbatch) {
    assert(maker->used < maker->capacity);
    if (maker->used >= maker->capacity) return;
    maker->schedule->actions[maker->used++] =
        (dpcr_action){.stage = (int32_t)stage, .microbatch = (int32_t)microbatch, .task = (uint8_t)task};
}

void dpcri_put_pair(dpcri_maker *maker, int64_t f_stage, int64_t f_microbatch, int64_t b_stage, int64_t b_microbatch) {
    dpcri_put(maker, DPCR_TASK_F, f_stage, f_microbatch);
    maker->schedule->actions[maker->used - 1].paired = 1;
    dpcri_put(maker, DPCR_TASK_B, b_stage, b_microbatch);
}

void dpcri_end_row(dpcri_maker *maker) { maker->schedule->first[++maker->row] = maker->used; }

static dpcr_status check_options(const dpcr_schedule_options *o, const dpcri_generator *g, int64_t *chunks,
                                 dpcr_error *error) {
    const int64_t most = INT32_MAX;
    if (o->ranks < 1 || o->microbatches < 1 || o->chunks < 0 || o->stages < 0 || o->accumulate < 0 ||
        !(o->memory_limit >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "schedule: wanted at least 1 rank and 1 microbatch and nothing negative");
    *chunks = o->chunks ? o->chunks : g->chunks;
    if (g->chunks_fixed && *chunks != g->chunks)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %lld stages a rank; it is made for %lld", g->name,
                          (long long)*chunks, (long long)g->chunks);
    int64_t stages;
    if (o->stages > most)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: so many stages do not fit 32 bits", g->name);
    if (!dpcri_mul(o->ranks, *chunks, &stages) || stages > most || o->microbatches > most / 4)
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: so many stages or microbatches do not fit 32 bits", g->name);
    const bool layers = g->semantics == DPCR_DELAYED || (o->kind == DPCR_SCHEDULE_BEST && o->semantics == DPCR_DELAYED);
    if (o->stages && o->stages != stages && (!layers || o->chunks > 1))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: %lld stages on %lld ranks with %lld each; wanted %lld",
                          g->name, (long long)o->stages, (long long)o->ranks, (long long)*chunks, (long long)stages);
    return DPCR_OK;
}

dpcr_status dpcr_schedule_make(dpcr_context *context, const dpcr_schedule_options *options, dpcr_schedule *schedule,
                               dpcr_error *error) {
    if (schedule) *schedule = (dpcr_schedule){0};
    if (!context || !options || !schedule)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule_make: context, options or schedule is NULL");
    if (options->size < sizeof *options || (unsigned)options->kind >= DPCR_SCHEDULE_COUNT ||
        (unsigned)options->semantics >= DPCR_SEMANTICS_COUNT || (unsigned)options->objective >= DPCR_OBJECTIVE_COUNT)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "schedule_make: options of another size, no such kind, semantics or objective");
    const dpcri_generator *g = &generators[options->kind];
    dpcri_maker maker = {.context = context,
                         .options = options,
                         .p = options->ranks,
                         .m = options->microbatches,
                         .schedule = schedule,
                         .error = error};
    dpcr_status status = check_options(options, g, &maker.v, error);
    if (status != DPCR_OK) return status;
    status = g->make(&maker);
    if (status != DPCR_OK) {
        dpcr_schedule_free(context, schedule);
        return status;
    }
    if (options->kind != DPCR_SCHEDULE_BEST) schedule->semantics = g->semantics;
    return DPCR_OK;
}
