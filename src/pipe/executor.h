// SPDX-License-Identifier: MIT
// What the files of the executor share: who runs what (table), a rank's stages and their weights (rank), and the
// run of its row.
#ifndef DPCRI_PIPE_EXECUTOR_H
#define DPCRI_PIPE_EXECUTOR_H

#include "deeppcr/pipeline.h"
#include "pipe/executor_stage.h"
#include "pipe/pipe.h"
#include "rt/comm/comm.h"
#include "train/optimiser.h"

// ---- the table: a schedule, and where each of its tasks runs ----

typedef enum dpcri_place { DPCRI_AT_F, DPCRI_AT_I, DPCRI_AT_I2, DPCRI_AT_W, DPCRI_PLACES } dpcri_place;

typedef struct dpcri_table {
    const dpcr_schedule *schedule;
    bool lowered;                  // its rows say themselves when messages go
    bool halved;                   // I comes in two halves somewhere
    int64_t microbatches;          // of all chains together
    int64_t updates;               // of one run
    int32_t *where[DPCRI_PLACES];  // [stages][microbatches] rank; I2 is I's where that is whole
    uint8_t *halves;               // [stages] I comes in two halves
    // Another one that ranks made for this one may go over to, and so on; NULL: none. Not owned.
    const struct dpcri_table *after;
} dpcri_table;

dpcr_status dpcri_table_create(dpcr_context *context, const dpcr_schedule *schedule, dpcri_table *table,
                               dpcr_error *error);
void dpcri_table_destroy(dpcr_context *context, dpcri_table *table);

// Numbers of microbatch i of a stage among all chains', and of the stage's twin in the other chain (-1: none).
static inline int64_t dpcri_table_global(const dpcri_table *t, int64_t stage, int64_t i) {
    return stage / dpcri_chain_stages(t->schedule) * t->schedule->microbatches + i;
}
static inline int64_t dpcri_table_twin(const dpcri_table *t, int64_t stage) {
    const dpcr_schedule *s = t->schedule;
    if (s->chains == 1) return -1;
    return stage < s->stages / 2 ? stage + s->stages / 2 : stage - s->stages / 2;
}
// Updates that the weights of microbatch i have seen.
static inline int64_t dpcri_table_version(const dpcr_schedule *s, int64_t stage, int64_t i) {
    const int64_t updates = i / s->accumulate - s->delay[stage];
    return updates > 0 ? updates : 0;
}

// ---- a batch of rows, as one run of the table takes it ----

typedef struct dpcri_rows_source {
    // x (NULL: not wanted) and labels y (NULL: not wanted) of rows first .. first + rows - 1.
    void (*get)(void *user, int64_t first, int64_t rows, void *x, uint8_t *y);
    void *user;
    int64_t rows;   // in all
    int64_t batch;  // rows an update: as many, or of an asynchronous run so many for each but the last
} dpcri_rows_source;

typedef struct dpcri_extent {
    int64_t first, rows;  // of a microbatch
    int64_t batch;        // rows of its update
} dpcri_extent;
dpcri_extent dpcri_table_extent(const dpcri_table *table, const dpcri_rows_source *source, int64_t global);

// ---- a rank ----

typedef struct dpcri_held {
    char *memory;
    char *inner;  // recomputing: what lies between input and result, lent while a task needs it
    char *input;  // [rows][w] where the result of the stage before goes
    dpcri_kept kept;
    bool has_act, has_kept, has_dz, has_forward, has_adjoints[DPCRI_PARTS];
    int left;  // actions of this rank that still use it
} dpcri_held;

// A stage, or some of its tasks, on a rank.
typedef struct dpcri_share {
    int64_t stage;
    int64_t first_unit, end_unit;
    dpcri_stage layers;
    bool owner;        // runs W: has the gradient and updates
    bool alone;        // runs all of the stage's tasks
    bool turns;        // and every I before its W, so that I may leave the adjoint states in the tape
    int64_t versions;  // weights kept at once
    int64_t newest;    // updates that the newest of them has seen
    char *ring;        // [versions][count]; NULL: the stage's own vector is the only version
    dpcr_optimiser *optimiser;
    char *average, *rebuilt;  // reconstruction: mean decrease an update, weights made from it
    size_t slot_bytes;
    int64_t slots, rows;  // slots made; rows that fit one
    dpcri_held *slot;     // [room]
    int64_t room;
    int32_t *free_slots;  // [room] stack
    int64_t free_count;
    bool recomputes;              // keeps a microbatch's input alone from F to I
    size_t inner_bytes;           // recomputing: of all the rest
    char **inner;                 // [room] those that nobody has
    int64_t inners, free_inners;  // made; of them in `inner`
    uint8_t *again;               // [microbatches of a chain] I has to run F again
    int32_t *slot_of;             // [microbatches of a chain] -1: none
    uint8_t *uses;                // [microbatches of a chain] actions of this rank
} dpcri_share;

typedef struct dpcri_rank {
    int64_t index;     // which one
    dpcri_comm *comm;  // of the run under way
    dpcr_context *context;
    const dpcr_model *model;  // the whole one; its parameters are read at the start only
    dpcr_pipeline_options options;
    const int64_t *first;  // [stages of a chain + 1] units
    int64_t units;
    const dpcri_table *table;
    dpcri_share *shares;
    int64_t share_count;
    int32_t *share_of;  // [stages] -1: none here
    double *unit_sums;  // [units] sums of squared gradients
    // The run under way.
    const dpcri_rows_source *source;
    uint8_t *labels;
    int64_t label_room;
    double loss[2];  // sums over rows, by chain
    int64_t correct[2];
    double busy, began, ended;  // seconds at work; of the first action and the last, by the clock
    double *times;              // [actions of the row][2] or NULL: where start and end of each go
    double norm;                // of the last clipped gradient
    double passed_on, weighed;  // when the last B's I ended, and when the last W ended and its update, if any, began
    bool dry;                   // a rehearsal: nothing is taken from other ranks nor given to them
} dpcri_rank;

// The options with defaults filled in, or refused in words.
dpcr_status dpcri_pipeline_options_fill(const dpcr_pipeline_options *given, const dpcr_schedule *schedule,
                                        dpcr_pipeline_options *options, dpcr_error *error);
// [stages of a chain + 1] units: as the options say, checked, or even. The caller's.
dpcr_status dpcri_stages_cut(dpcr_context *context, const dpcr_model *model, const dpcr_schedule *schedule,
                             const int64_t *given, int64_t **first, dpcr_error *error);
// Makes the shares of rank `index` for a table and those after it; `first` and `model` must live on. `state` (may be
// NULL) is an optimiser of the whole model to go on from. rank is to be destroyed also after a failure.
dpcr_status dpcri_rank_create(dpcri_rank *rank, dpcr_context *context, int64_t index, const dpcr_model *model,
                              const dpcri_table *table, const int64_t *first, const dpcr_pipeline_options *options,
                              const dpcr_optimiser *state, dpcr_error *error);
void dpcri_rank_destroy(dpcri_rank *rank);
// Goes over to another of the tables.
dpcr_status dpcri_rank_use(dpcri_rank *rank, const dpcri_table *table, dpcr_error *error);
// Runs the rank's row over the rows of `source`: gradients, and updates where the options name an optimiser.
dpcr_status dpcri_rank_run(dpcri_rank *rank, const dpcri_rows_source *source, dpcr_error *error);
// Its parts: before the first action; an action, with the times at which it had what it needs and at which it ended.
dpcr_status dpcri_rank_start(dpcri_rank *rank, const dpcri_rows_source *source, dpcr_error *error);
dpcr_status dpcri_rank_action(dpcri_rank *rank, const dpcr_action *action, double *start, double *stop,
                              dpcr_error *error);
// Bytes that the rank has had for microbatches at most.
double dpcri_rank_activation_bytes(const dpcri_rank *rank);
dpcri_share *dpcri_rank_share(const dpcri_rank *rank, int64_t stage);

// ---- rehearsal ----

// What the tasks and messages of a run take, in seconds.
typedef struct dpcri_costs {
    double *forward, *input, *weight, *update;  // [stages]
    double hop, bandwidth;                      // of a message, beside what sender and receiver spend on it
} dpcri_costs;

// Called on all ranks at once: each runs its row of the table as it stands, but takes nothing from the others and gives
// them nothing, for a short while; then two ranks exchange messages. Rank 0 has the result. `rank` is to be destroyed
// afterwards. `next` (may be NULL) moves the source on to other rows.
dpcr_status dpcri_rank_rehearse(dpcri_rank *rank, const dpcri_rows_source *source, void (*next)(void *user),
                                dpcri_costs *costs, dpcr_error *error);

// ---- weights ----

// Computes with the weights that microbatch i reads, waiting for them where another rank makes them, or rebuilding
// them.
dpcr_status dpcri_share_use_version(dpcri_rank *rank, dpcri_share *share, int64_t i, dpcr_error *error);
// After W of microbatch i of an asynchronous run: the update, if it is the last of one.
dpcr_status dpcri_share_update(dpcri_rank *rank, dpcri_share *share, int64_t i, dpcr_error *error);
// At the end of a synchronous run: twins' sums, clipping, updates of all shares.
dpcr_status dpcri_rank_update(dpcri_rank *rank, dpcr_error *error);
// Before a run: the newest weights are version 0. After one: whoever has a copy has the newest.
void dpcri_share_restart(dpcri_share *share);
dpcr_status dpcri_share_catch_up(dpcri_rank *rank, dpcri_share *share, dpcr_error *error);
// Step of the model that a stage's first one is.
int64_t dpcri_share_first_step(const dpcri_rank *rank, const dpcri_share *share);
// Sums of tied steps' gradients, in every copy's place.
dpcr_status dpcri_rank_tie(dpcri_rank *rank, dpcr_error *error);
// The optimiser's step of a synchronous run.
void dpcri_share_step(dpcri_share *share);
char *dpcri_share_newest(const dpcri_share *share);

// Names of messages. Of a stage's microbatch, or (for weights) of its update.
typedef enum dpcri_kind {
    DPCRI_MESSAGE_ACT,      // result of the stage before
    DPCRI_MESSAGE_KEPT,     // what F keeps, to I or W elsewhere
    DPCRI_MESSAGE_ERROR,    // gradient of the result, from the stage behind to I and W
    DPCRI_MESSAGE_WEIGHTS,  // after an update
    DPCRI_MESSAGE_TWIN,     // gradient of the other chain's copy
    DPCRI_MESSAGE_OTHER,    // clipping, gathering, control
    DPCRI_MESSAGES
} dpcri_kind;
static inline int64_t dpcri_tag(const dpcri_rank *rank, dpcri_kind kind, int64_t stage, int64_t number, int part) {
    const dpcr_schedule *s = rank->table->schedule;
    return ((stage * (s->microbatches + 1) + number) * DPCRI_PARTS + part) * DPCRI_MESSAGES + kind;
}

#endif
