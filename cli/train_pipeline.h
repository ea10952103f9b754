// SPDX-License-Identifier: MIT
// train --pipeline: the options of a pipeline, where its stages are cut, the run, and what it took beside what the
// simulator says.
#ifndef CLI_TRAIN_PIPELINE_H
#define CLI_TRAIN_PIPELINE_H

#include "cli.h"

typedef struct cli_pipeline {
    dpcr_schedule_options schedule;
    dpcr_pipeline_options options;
    dpcr_transport transport;
    bool given, ranks_given, microbatches_given;
    const char *first_given;   // an option that only makes sense with --pipeline
    const char *shared_given;  // one that --data-parallel and the like have too
    int cut;                   // 0: as the schedule wants it
    // The run.
    dpcr_pipeline_figures figures;
    int64_t *first;     // [stages of a chain + 1]
    int64_t stages;     // of a chain
    dpcr_schedule run;  // of a whole run
    const char *trace;
} cli_pipeline;

extern const struct argp cli_pipeline_argp;
#define CLI_PIPELINE_DEFAULTS                                                               \
    {                                                                                       \
        .schedule = {.size = sizeof(dpcr_schedule_options), .ranks = 2, .microbatches = 8}, \
        .options = {.size = sizeof(dpcr_pipeline_options)}, .figures = {                    \
            .size = sizeof(dpcr_pipeline_figures)                                           \
        }                                                                                   \
    }
// Refuses options that the schedule does not have. Returns the exit code.
int cli_pipeline_settle(const cli_pipeline *pipeline);
// Measures the network, cuts the stages, simulates a run. Returns the exit code.
int cli_pipeline_prepare(cli_pipeline *pipeline, dpcr_context *context, const dpcr_model *model,
                         const dpcr_train_options *train, int64_t images);
void cli_pipeline_set(const cli_pipeline *pipeline, cli_result *result);
void cli_pipeline_say(const cli_pipeline *pipeline, const cli_common *common);
// Writes the trace, where one is wanted and there was a whole run; `trained`: there was anything to do. Returns the
// exit code.
int cli_pipeline_trace(const cli_pipeline *pipeline, bool trained);
void cli_pipeline_free(cli_pipeline *pipeline, dpcr_context *context);

#endif
