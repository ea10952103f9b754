// SPDX-License-Identifier: MIT
// What the files of pipe share: the table of named schedules, the maker that rows are put into, the in-order run.
#ifndef DPCRI_PIPE_H
#define DPCRI_PIPE_H

#include "base/base.h"
#include "deeppcr/schedule.h"

// ---- making ----

typedef struct dpcri_maker {
    dpcr_context *context;
    const dpcr_schedule_options *options;
    int64_t p, v, m;  // ranks, stages a rank, microbatches
    dpcr_schedule *schedule;
    int64_t used, capacity;  // actions put, room for them
    int64_t row;             // rank whose row is being put
    dpcr_error *error;
} dpcri_maker;

// One row of the table: `make` fills maker->schedule, which has its sizes already unless the generator says otherwise.
typedef struct dpcri_generator {
    const char *name, *summary;
    dpcr_semantics semantics;
    int64_t chunks;     // stages a rank where the caller names none
    bool chunks_fixed;  // and no other number will do
    dpcr_status (*make)(dpcri_maker *maker);
} dpcri_generator;

dpcr_status dpcri_make_gpipe(dpcri_maker *maker);
dpcr_status dpcri_make_1f1b(dpcri_maker *maker);
dpcr_status dpcri_make_2bw(dpcri_maker *maker);
dpcr_status dpcri_make_ooo(dpcri_maker *maker);
dpcr_status dpcri_make_interleaved_1f1b(dpcri_maker *maker);
dpcr_status dpcri_make_interleaved_zb(dpcri_maker *maker);
dpcr_status dpcri_make_zb_v(dpcri_maker *maker);
dpcr_status dpcri_make_dualpipe(dpcri_maker *maker);
dpcr_status dpcri_make_dualpipev(dpcri_maker *maker);
dpcr_status dpcri_make_zb_h2(dpcri_maker *maker);
dpcr_status dpcri_make_layerpipe(dpcri_maker *maker);
dpcr_status dpcri_make_best(dpcri_maker *maker);

// Memory for a schedule of these sizes and at most `actions` actions; first, delay and actions are zero.
dpcr_status dpcri_schedule_alloc(dpcr_context *context, int64_t ranks, int64_t stages, int64_t microbatches,
                                 int64_t actions, dpcr_schedule *schedule, dpcr_error *error);
// Makes maker->schedule with S = p v stages of m microbatches and room for `tasks` actions of each.
dpcr_status dpcri_maker_start(dpcri_maker *maker, int64_t stages, int64_t microbatches, int64_t tasks);
// Appends to the row being made. Room was asked for before: more than that is a fault of the generator.
void dpcri_put(dpcri_maker *maker, dpcr_task task, int64_t stage, int64_t microbatch);
void dpcri_put_pair(dpcri_maker *maker, int64_t f_stage, int64_t f_microbatch, int64_t b_stage, int64_t b_microbatch);
void dpcri_end_row(dpcri_maker *maker);

// Where V-shaped schedules put a rank's two stages: the one before the turn, and the one after it.
static inline int64_t dpcri_v_stage(int64_t p, int64_t rank, int phase) { return phase ? 2 * p - 1 - rank : rank; }

// ---- running ----

// When the tasks of a (stage, microbatch) ended and where they ran.
typedef enum dpcri_slot { DPCRI_F, DPCRI_I, DPCRI_W, DPCRI_I2, DPCRI_SEND_F, DPCRI_SEND_B, DPCRI_SLOTS } dpcri_slot;

typedef struct dpcri_run {
    const dpcr_schedule *schedule;
    dpcr_schedule_costs costs;
    int64_t cells;       // stages * microbatches
    int slots;           // DPCRI_SLOTS, or DPCRI_SEND_F where nothing is sent by itself
    bool spread;         // tasks of a stage may lie on several ranks
    uint8_t *halved;     // [stages] I comes in two parts
    double *ended;       // [slots][cells] negative: not yet
    int32_t *where;      // [slots][cells] rank that ran it
    int32_t *waiting;    // [slots][cells] first rank that waits for it, -1: none
    int32_t *next;       // [ranks] the next rank that waits for the same, or the next one to go on
    int64_t *position;   // [ranks] action that is next
    double *rank_free;   // [ranks]
    int64_t looks;       // how often an action was looked at, all runs together
    double *stage_done;  // [stages] end of its last W
} dpcri_run;

dpcr_status dpcri_run_create(dpcr_context *context, const dpcr_schedule *schedule, const dpcr_schedule_costs *costs,
                             dpcri_run *run, dpcr_error *error);
void dpcri_run_destroy(dpcr_context *context, dpcri_run *run);
// One iteration from rank_free, which it moves on; start and end [actions] may be NULL. Returns false on a deadlock.
bool dpcri_run_once(dpcri_run *run, double *start, double *end);
// Who waits for what after a deadlock: DPCR_ERROR_FORMAT.
dpcr_status dpcri_run_stuck(const dpcri_run *run, dpcr_error *error);
// Of an action of rank's row.
double dpcri_duration(const dpcri_run *run, int64_t rank, const dpcr_action *action);

static inline int64_t dpcri_cell(const dpcr_schedule *s, int64_t stage, int64_t microbatch) {
    return stage * s->microbatches + microbatch;
}
static inline int64_t dpcri_chain_stages(const dpcr_schedule *s) { return s->stages / s->chains; }
static inline bool dpcri_begins_chain(const dpcr_schedule *s, int64_t stage) {
    return stage % dpcri_chain_stages(s) == 0;
}
static inline bool dpcri_ends_chain(const dpcr_schedule *s, int64_t stage) {
    return (stage + 1) % dpcri_chain_stages(s) == 0;
}

// ---- costs ----

static inline double dpcri_cost_of(const double *array, double single, int64_t stage) {
    return array ? array[stage] : single;
}
// A copy whose every B is I, then W. The caller's.
dpcr_status dpcri_schedule_split(dpcr_context *context, const dpcr_schedule *schedule, dpcr_schedule *split,
                                 dpcr_error *error);
// So many of them, and quotients of two, add up to a finite number, whatever the schedule.
#define DPCRI_MOST_COST 1e100
// The costs with every default filled in; NULL: unit costs.
dpcr_status dpcri_costs_check(const dpcr_schedule_costs *given, int64_t stages, dpcr_schedule_costs *costs,
                              dpcr_error *error);

#endif
