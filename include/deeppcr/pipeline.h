// SPDX-License-Identifier: MIT
// Pipelined training: runs a schedule's table on a network, each rank on a thread of its own.
#ifndef DEEPPCR_PIPELINE_H
#define DEEPPCR_PIPELINE_H

#include "profile.h"
#include "train.h"
#include "transport.h"

#ifdef __cplusplus
extern "C" {
#endif

// A model's units in order: its encoder (where it has one), its steps, its head (with the loss). Stages are ranges of
// units.

// ---- profiles of our own models ----

// Measures forward, input gradient and weight gradient of a model on `rows` rows (a microbatch), as the pipeline runs
// them: one thread, all layers in turn, the median over some rounds, in seconds. A layer of the profile is the encoder,
// `group` neighbouring steps (0: as many as make at most 64 groups), or the head with the loss. Bytes are of `rows`
// rows. `workers` - 1 further threads do the same meanwhile, as the ranks of a pipeline do. *profile is the caller's.
DPCR_API dpcr_status dpcr_profile_measure(dpcr_context *context, const dpcr_model *model, int64_t rows, int64_t group,
                                          int64_t workers, dpcr_profile *profile, dpcr_error *error);
// The first unit of a layer of that profile; of one past its end the number of units.
DPCR_API int64_t dpcr_profile_unit(const dpcr_model *model, int64_t group, int64_t layer);

// ---- running a schedule ----

// What an asynchronous schedule does about gradients that come late.
typedef enum dpcr_compensation {
    DPCR_COMPENSATE_NOTHING = 0,
    DPCR_COMPENSATE_RATE,  // a stage's learning rate over 1 + its delay
    DPCR_COMPENSATE_COUNT
} dpcr_compensation;

typedef struct dpcr_pipeline_options {
    size_t size;           // sizeof(dpcr_pipeline_options) of the caller
    const int64_t *first;  // [stages of a chain + 1] stage s is units first[s] .. first[s + 1] - 1, the last one the
                           // number of units; NULL: as even in number as whole units allow
    const dpcr_optimiser_options *optimiser;  // NULL: gradients alone (synchronous schedules)
    double clip;      // largest norm of the gradient over all stages, as torch.nn.utils.clip_grad_norm_ (0: any).
                      // The norm is summed layer by layer, so its last bits may differ from dpcr_gradients_clip_norm's.
                      // Asynchronous schedules never have all stages' gradients at once: each stage's is clipped to
                      // clip sqrt(parameters of the stage / all), so that the norm over all stages is at most clip
    int reconstruct;  // asynchronous: no stashed weights; where the newest are not those that a task reads, they are
                      // rebuilt from the newest and the mean of the last updates (LayerPipe2). Where all tasks of a
                      // stage lie on one rank
    dpcr_compensation compensation;
    double deadline;  // seconds that a rank waits for another; 0: 60. Ranks with a transport give up one by one, from
                      // half of them on, and progress counts there; threads wait for it without end
    int64_t segment;  // training by an asynchronous schedule: updates of a run, after which the pipeline is empty, a
                      // checkpoint can be written and the delays begin anew; 0: 256
    int recompute;  // a stage keeps only the input of a microbatch from F to I, which runs F again: the same bits, less
                    // memory. Where all tasks of a stage lie on one rank, and not with reconstruct
    const dpcr_transport *transport;  // training: this process is one rank, the others are elsewhere; NULL: all ranks
                                      // are threads of this one
} dpcr_pipeline_options;

typedef struct dpcr_pipeline_report {
    size_t size;              // sizeof(dpcr_pipeline_report) of the caller
    double loss;              // mean over the rows
    int64_t correct;          // rows whose first largest logit is the label's
    double norm;              // of the gradient before clipping, where it is clipped
    double makespan;          // seconds from the first action's start to the last one's end, updates included
    double busy;              // seconds of the busiest rank's tasks
    double activation_bytes;  // that the fullest rank has had for microbatches at most
    double *start, *end;      // [actions] seconds from the first action's start, or NULL: not wanted; the caller's
} dpcr_pipeline_report;

typedef struct dpcr_pipeline dpcr_pipeline;

// A network spread over the ranks of a schedule, each rank a thread. Schedule, options and the parameters are copied;
// the model itself is only looked at again by dpcr_pipeline_gather. Any schedule that dpcr_schedule_validate accepts,
// with messages of its own or without:
//   synchronous    a run is one minibatch, cut into the schedule's microbatches: the gradients, and the updated
//                  parameters, are those of one process to the bit, since each sum over rows runs in their order.
//                  (DualPipe's two chains are each summed in order, then added. A table of the caller's own whose
//                  weight gradients do not come in the microbatches' order sums in its order.)
//   asynchronous   a run is one minibatch an update; microbatch i reads the weights after
//                  max(0, i / accumulate - delay) of the run's updates. Every run ends with the pipeline empty.
// Refused in words: more stages than units, a stage whose tasks of one kind lie on several ranks, options that do not
// fit the schedule.
DPCR_API dpcr_status dpcr_pipeline_create(dpcr_context *context, dpcr_model *model, const dpcr_schedule *schedule,
                                          const dpcr_pipeline_options *options, dpcr_pipeline **pipeline,
                                          dpcr_error *error);
DPCR_API void dpcr_pipeline_destroy(dpcr_pipeline *pipeline);
// One run over x [rows][inputs] and labels [rows] (classes below the model's outputs). Asynchronous: `batch` rows an
// update, the last one the rows that are left; synchronous: all rows, batch is not read. Fewer rows than microbatches
// leave some empty. `report` may be NULL. After a failure, which no rank's waiting outlives, the pipeline can only be
// destroyed.
DPCR_API dpcr_status dpcr_pipeline_run(dpcr_pipeline *pipeline, const dpcr_array *x, const uint8_t *labels,
                                       int64_t batch, dpcr_pipeline_report *report, dpcr_error *error);
// Copies parameters and gradients of all stages into the model (one of the same options).
DPCR_API dpcr_status dpcr_pipeline_gather(dpcr_pipeline *pipeline, dpcr_model *model, dpcr_error *error);

// ---- training ----

// What a training run's pipeline took: medians over its last runs of a whole minibatch (asynchronous: of a whole
// segment), and what one of them holds.
typedef struct dpcr_pipeline_figures {
    size_t size;            // sizeof(dpcr_pipeline_figures) of the caller
    int64_t runs, updates;  // of the call; updates of one run
    int64_t stages;
    double makespan, busy;  // seconds, as in dpcr_pipeline_report
    // What the simulator gives for the same run, whose tasks and messages are measured before training: every rank runs
    // its row side by side with the others, without waiting for them.
    double simulated, work;   // seconds: makespan; work of the busiest rank
    double activation_bytes;  // that the fullest rank has had for microbatches at most
    int trace;                // in: keep the times of the actions of the last whole run
    int64_t actions;      // of dpcr_schedule_make's schedule for a run; 0: no trace was asked for, or no whole run made
    double *start, *end;  // [actions] seconds from the run's first start; dpcr_pipeline_figures_free
} dpcr_pipeline_figures;
DPCR_API void dpcr_pipeline_figures_free(dpcr_context *context, dpcr_pipeline_figures *figures);

// dpcr_train by a pipeline: the same rows in the same order, the same loss, checkpoints that either goes on from, and
// with a synchronous schedule of one chain the same bits, whatever ranks and microbatches (train->solve says only what
// a checkpoint keeps: stages go in order). `schedule` is made by dpcr_schedule_make for the minibatches' microbatches;
// where it is asynchronous a minibatch is one update (pipedream-2bw: of `accumulate` microbatches), an epoch is cut
// into segments, and progress, checkpoints and requests to stop come between segments. A checkpoint holds the gathered
// network, so that any other number of ranks, another schedule or dpcr_train can go on from it. pipeline->optimiser
// is not read, train's is; pipeline->clip is 0, train's is taken. `figures` may be NULL.
// With pipeline->transport all processes make this call with the same arguments; only rank 0 reports progress, writes
// checkpoints, and has the model, `last` and `figures` in the end. A rank that fails leaves the others to their
// deadline: its caller should end the job.
DPCR_API dpcr_status dpcr_train_pipeline(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                         const dpcr_train_options *train, const dpcr_schedule_options *schedule,
                                         const dpcr_pipeline_options *pipeline, dpcr_train_state *last,
                                         dpcr_pipeline_figures *figures, dpcr_error *error);

#ifdef __cplusplus
}
#endif
#endif
