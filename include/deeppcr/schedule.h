// SPDX-License-Identifier: MIT
// Schedules of pipelined training as data: who runs what in which order. Generators of the published ones, a validator,
// the lowering to send and receive, a simulator, and a search of our own. Nothing here computes a network.
//
// A stage s (a group of layers) makes for every microbatch i
//     F(s,i)  forward                    needs F(s-1,i)
//     I(s,i)  gradient of its input      needs F(s,i) and I(s+1,i)
//     W(s,i)  gradient of its weights    needs I(s,i)
//     B(s,i)  I and W in one task
// A schedule gives each rank (processor) its row of such actions, which it runs in order, each as soon as what it needs
// has arrived. docs/pipelines.md is for users; docs/math/schedules.md derives the rules and formulas.
#ifndef DEEPPCR_SCHEDULE_H
#define DEEPPCR_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_task {
    DPCR_TASK_F = 0,
    DPCR_TASK_I,
    DPCR_TASK_W,
    DPCR_TASK_B,
    DPCR_TASK_SEND_F,  // the stage named is the one that sends
    DPCR_TASK_RECV_F,  // the stage named is the one that receives
    DPCR_TASK_SEND_B,
    DPCR_TASK_RECV_B,
    DPCR_TASK_COUNT
} dpcr_task;

typedef struct dpcr_action {
    int32_t stage, microbatch;
    uint8_t task;      // dpcr_task
    uint8_t part;      // 0: the whole task; 1 or 2: a half of I (LayerPipe)
    uint8_t paired;    // an F that runs overlapped with the next action of its row, a B or I
    uint8_t reserved;  // 0
} dpcr_action;

// Which weights an action reads, and when they are updated.
typedef enum dpcr_semantics {
    DPCR_SYNCHRONOUS = 0,  // one update at the end, from all microbatches
    DPCR_STASHED,          // PipeDream: an update each microbatch; a microbatch keeps the version of its F
    DPCR_DOUBLE_BUFFERED,  // PipeDream-2BW: an update every `accumulate` microbatches, one update late everywhere
    DPCR_DELAYED,          // LayerPipe: as stashed, and the tasks of a stage may lie on several ranks
    DPCR_SEMANTICS_COUNT
} dpcr_semantics;

// Microbatch i of stage s reads the weights after max(0, i / accumulate - delay[s]) updates.
typedef struct dpcr_schedule {
    int64_t ranks, stages;
    int64_t microbatches;  // of a chain
    int64_t chains;        // 1; DualPipe 2: stages 0..S/2-1 are one chain, S/2..S-1 another
    dpcr_semantics semantics;
    int64_t accumulate;    // microbatches an update
    int64_t *first;        // [ranks + 1] rank r's row is actions[first[r] .. first[r + 1])
    dpcr_action *actions;  // [first[ranks]]
    int64_t *delay;        // [stages] in updates
} dpcr_schedule;

DPCR_API void dpcr_schedule_free(dpcr_context *context, dpcr_schedule *schedule);

// "F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"; "synchronous", "stashed", "double-buffered", "delayed";
// "unknown" otherwise.
DPCR_API const char *dpcr_task_name(dpcr_task task);
DPCR_API const char *dpcr_semantics_name(dpcr_semantics semantics);

// ---- costs ----

// Times are in any one unit. An array that is NULL stands for the single value before it. All numbers lie in 0..1e100,
// so that no sum of them overflows, a bandwidth that limits in 1e-100..1e100; others are DPCR_ERROR_ARGUMENT.
typedef struct dpcr_schedule_costs {
    size_t size;                    // sizeof(dpcr_schedule_costs) of the caller
    double forward, input, weight;  // of every stage; all three 0: 1, 1, 1. B takes input + weight
    const double *stage_forward, *stage_input, *stage_weight;  // [stages]
    double hop;                                                // latency of a message between ranks
    double bandwidth;                // bytes a unit of time; 0: unlimited. Messages do not disturb each other
    const double *activation_bytes;  // [stages] what F of a stage sends, and I of the next one back; NULL: 1 each
    const double *parameter_bytes;   // [stages]; NULL: 0
    double update;                   // optimiser's step of a stage
    double replicas;                 // data-parallel copies of the pipeline (0: 1): gradients are all-reduced
    int atomic_pairs;                // a pair takes all at its start and gives all at its end (0: F's result is early)
    const double *stage_update;      // [stages] the optimiser's step; NULL: update each
    int recompute;                   // I takes F's time too, but where F is the rank's task right before it
} dpcr_schedule_costs;

// ---- named schedules ----

typedef enum dpcr_schedule_kind {
    DPCR_SCHEDULE_GPIPE = 0,
    DPCR_SCHEDULE_1F1B,
    DPCR_SCHEDULE_INTERLEAVED_1F1B,
    DPCR_SCHEDULE_ZB_H1,
    DPCR_SCHEDULE_ZB_H2,
    DPCR_SCHEDULE_INTERLEAVED_ZB,
    DPCR_SCHEDULE_ZB_V,
    DPCR_SCHEDULE_DUALPIPE,
    DPCR_SCHEDULE_DUALPIPEV,
    DPCR_SCHEDULE_PIPEDREAM,
    DPCR_SCHEDULE_PIPEDREAM_2BW,
    DPCR_SCHEDULE_OOO,
    DPCR_SCHEDULE_LAYERPIPE,
    DPCR_SCHEDULE_BEST,
    DPCR_SCHEDULE_COUNT
} dpcr_schedule_kind;

typedef enum dpcr_objective {
    DPCR_OBJECTIVE_ISOLATED = 0,  // makespan of one iteration
    DPCR_OBJECTIVE_STEADY,        // the period when iterations follow each other without a barrier
    DPCR_OBJECTIVE_COUNT
} dpcr_objective;

typedef struct dpcr_schedule_options {
    size_t size;  // sizeof(dpcr_schedule_options) of the caller
    dpcr_schedule_kind kind;
    int64_t ranks, chunks,
        microbatches;                  // chunks: stages a rank, 0: what the schedule wants (1, or 2 for the V shapes)
    int64_t accumulate;                // PipeDream-2BW's microbatches an update; 0: as many as ranks
    int64_t stages;                    // LayerPipe's layers, with chunks 0 or 1; 0: ranks * chunks, as of others
    int split_input;                   // LayerPipe: I in two halves (inter-layer)
    const dpcr_schedule_costs *costs;  // for zb-h2, layerpipe and best; NULL: unit costs
    double memory_limit;  // of zb-h2 and best: activations a rank (F takes one, I frees half, W half); 0: none
    dpcr_objective objective;
    dpcr_semantics semantics;  // of best: it keeps to the delays of PipeDream, 2BW or LayerPipe where asked
} dpcr_schedule_options;

// "gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "interleaved-zb", "zb-v", "dualpipe", "dualpipev",
// "pipedream", "pipedream-2bw", "ooo", "layerpipe", "best"; and what it does, in a line.
DPCR_API const char *dpcr_schedule_name(dpcr_schedule_kind kind);
DPCR_API const char *dpcr_schedule_summary(dpcr_schedule_kind kind);
DPCR_API dpcr_status dpcr_schedule_find(const char *name, dpcr_schedule_kind *kind, dpcr_error *error);
DPCR_API dpcr_semantics dpcr_schedule_semantics(dpcr_schedule_kind kind);
// Stages a rank where options say 0.
DPCR_API int64_t dpcr_schedule_default_chunks(dpcr_schedule_kind kind);

// Makes a named schedule. *schedule is the caller's (dpcr_schedule_free). What cannot be is refused in words:
// DPCR_ERROR_UNSUPPORTED for numbers that the schedule's rule excludes, DPCR_ERROR_ARGUMENT, OVERFLOW, MEMORY.
DPCR_API dpcr_status dpcr_schedule_make(dpcr_context *context, const dpcr_schedule_options *options,
                                        dpcr_schedule *schedule, dpcr_error *error);

// ---- text: PyTorch's notation ----
//
// One line a rank, cells apart by commas, empty cells ignored. Cell: <stage><task><microbatch>, such as 0F3, 2SEND_B1;
// a pair is (0F7;7B3)OVERLAP_F_B, a half of I is 3I5.1. In the notation of older PyTorch B means I, and BW means B.

typedef enum dpcr_notation { DPCR_NOTATION_NEW = 0, DPCR_NOTATION_OLD = 1 } dpcr_notation;

// Reads `bytes` characters. Every line is a rank, also an empty one (a last one without an end only where it has an
// action); stages and microbatches are what the text shows; `like` (NULL: synchronous, one chain) gives chains,
// semantics, accumulate and, where it has as many stages, delays. Damaged text: DPCR_ERROR_FORMAT with line and cell.
// The schedule read need not be a valid one.
DPCR_API dpcr_status dpcr_schedule_read(dpcr_context *context, const char *text, size_t bytes, dpcr_notation notation,
                                        const dpcr_schedule *like, dpcr_schedule *schedule, dpcr_error *error);
// The table as text ending in 0, the caller's (dpcr_schedule_text_free).
DPCR_API dpcr_status dpcr_schedule_write(dpcr_context *context, const dpcr_schedule *schedule, dpcr_notation notation,
                                         char **text, size_t *bytes, dpcr_error *error);
DPCR_API void dpcr_schedule_text_free(dpcr_context *context, char *text);
// A cell into `text`, which it cuts to `bytes`; of a pair its first half. Returns text.
DPCR_API const char *dpcr_action_text(const dpcr_action *action, char *text, size_t bytes);

// ---- validity and lowering ----

// Every (stage, microbatch) has one F and one B, or one I (or both halves) and one W; each stage lies on one rank
// (unless delayed); the rows run to their end; sends and receives, if any, match, a receive before the task that takes
// what it brings; a rank never holds more than memory_limit activations (0: no limit; else each stage lies on one rank,
// or DPCR_ERROR_UNSUPPORTED: when its copies come and go no row tells). Otherwise DPCR_ERROR_FORMAT and what is wrong;
// sizes (at most 2^31 - 1 each) and numbers out of range, and arrays that are missing: DPCR_ERROR_ARGUMENT.
DPCR_API dpcr_status dpcr_schedule_validate(dpcr_context *context, const dpcr_schedule *schedule, double memory_limit,
                                            dpcr_error *error);

// Joins neighbouring I and W of a stage and microbatch to B and puts a send after each task whose result another rank
// needs, and the receive into that rank's row (torch.distributed.pipelining's order). *lowered is the caller's.
// Schedules that are not valid: DPCR_ERROR_FORMAT; those of several ranks a stage: DPCR_ERROR_UNSUPPORTED.
DPCR_API dpcr_status dpcr_schedule_lower(dpcr_context *context, const dpcr_schedule *schedule, dpcr_schedule *lowered,
                                         dpcr_error *error);

// ---- simulation ----

typedef struct dpcr_simulation {
    int64_t ranks, stages, actions;
    double makespan;      // end of the last action of one isolated iteration (update included)
    double work;          // of the busiest rank
    double idle;          // makespan - work
    double span;          // longest last end (update and all-reduce included) - first start of a rank
    double idle_in_span;  // that - work
    // A further iteration's time when they follow each other without a barrier. Of asynchronous schedules an estimate,
    // the rate of the third quarter of the microbatches, at least work and, of whole updates, at most makespan; NaN:
    // too few of them.
    double steady_state;
    double utilisation;  // mean over ranks of work / steady_state
    // Activations and errors from a stage to another between ranks. What F of a stage hands to I and W of the same on
    // other ranks (LayerPipe) is in neither bytes nor messages.
    double bytes;
    double weight_bytes;  // weights between ranks (LayerPipe) and of the all-reduce, an iteration
    int64_t messages;
    double *rank_work;  // [ranks]
    // Of LayerPipe each rank that runs a task of a stage holds a copy of its own, from F's end to its last task of the
    // microbatch; memory and bytes then count the most of each of its stages, wherever it was in time.
    int64_t *peak_activations;  // [ranks] microbatches held from F to I or B
    int64_t *peak_operands;     // [ranks] microbatches held from F to W or B
    double *peak_memory;        // [ranks] F takes one, I frees half, W half, B all; of LayerPipe the same as operands
    double *peak_bytes;         // [ranks] activations held until W, and parameters in all their versions
    int64_t *weight_versions;   // [ranks] most of a stage, from the one that its next task reads to the newest
    int64_t *staleness;         // [stages] updates that a gradient comes late
    double *start, *end;        // [actions] of one isolated iteration
} dpcr_simulation;

// Times a schedule under costs (NULL: unit costs): start = max(rank is free, everything needed has arrived). What
// dpcr_schedule_validate refuses is refused with its words, rows that wait for each other among it: DPCR_ERROR_FORMAT,
// saying who waits for what. DPCR_ERROR_UNSUPPORTED where a stage has its F, its I or its W on several ranks by
// microbatch, or where they recompute and lie not all on one. *simulation is the caller's.
DPCR_API dpcr_status dpcr_schedule_simulate(dpcr_context *context, const dpcr_schedule *schedule,
                                            const dpcr_schedule_costs *costs, dpcr_simulation *simulation,
                                            dpcr_error *error);
DPCR_API void dpcr_simulation_free(dpcr_context *context, dpcr_simulation *simulation);

#ifdef __cplusplus
}
#endif
#endif
