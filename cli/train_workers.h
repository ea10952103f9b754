// SPDX-License-Identifier: MIT
// train --data-parallel, --swap, --layer-wise: several workers that each have the whole network.
#ifndef CLI_TRAIN_WORKERS_H
#define CLI_TRAIN_WORKERS_H

#include "train_pipeline.h"

typedef enum cli_workers_kind {
    CLI_ALONE,
    CLI_DATA_PARALLEL,
    CLI_SWAP,
    CLI_LAYERWISE,
    CLI_WORKERS_KINDS
} cli_workers_kind;

typedef struct cli_accuracy {
    double loss, accuracy;
} cli_accuracy;

// Tests the network; the exit code.
typedef int cli_test_network(void *user, dpcr_model *model, cli_accuracy *accuracy);

typedef struct cli_workers {
    cli_workers_kind kind, other;  // other: a second one that was asked for
    const char *first_given;       // an option of one kind
    cli_workers_kind first_kind;   // and which
    double rate;                   // of a worker apart; < 0: the first phase's
    dpcr_workers_options options;
    dpcr_swap_options swap;
    dpcr_layerwise_options layerwise;
    // The run.
    dpcr_workers_figures figures;
    cli_test_network *test;
    void *test_user;
    int status;  // of a test
    cli_accuracy together, averaged;
    json_t *apart;  // the workers' accuracies
} cli_workers;

extern const struct argp cli_workers_argp;
#define CLI_WORKERS_DEFAULTS                                                   \
    {                                                                          \
        .rate = -1, .options = {.size = sizeof(dpcr_workers_options)},         \
        .swap = {.size = sizeof(dpcr_swap_options), .epochs = 1, .batch = 32}, \
        .layerwise = {.size = sizeof(dpcr_layerwise_options)}, .figures = {    \
            .size = sizeof(dpcr_workers_figures)                               \
        }                                                                      \
    }
// Refuses options that do not go together, and takes those over that the pipeline's group has. Returns the exit code.
int cli_workers_settle(cli_workers *workers, const cli_pipeline *pipeline);
const char *cli_workers_name(cli_workers_kind kind);
bool cli_workers_are_threads_only(const cli_workers *workers);
dpcr_status cli_workers_train(cli_workers *workers, dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                              const dpcr_train_options *train, dpcr_train_state *last, dpcr_error *error);
void cli_workers_set(const cli_workers *workers, cli_result *result);
void cli_workers_say(const cli_workers *workers, const cli_common *common);

void cli_workers_free(cli_workers *workers);

#endif
