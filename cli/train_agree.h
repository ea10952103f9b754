// SPDX-License-Identifier: MIT
// train over processes: launchers may give them options and files of their own, of which a network would be trained
// that nobody asked for.
#ifndef DEEPPCR_CLI_TRAIN_AGREE_H
#define DEEPPCR_CLI_TRAIN_AGREE_H

#include "train_workers.h"

// All that the network that comes out follows from.
typedef struct cli_train_subject {
    const dpcr_train_options *train;
    dpcr_model *model;  // as it begins, but for a checkpoint's parameters
    const dpcr_dataset *data;
    const cli_pipeline *pipeline;
    const cli_workers *workers;
} cli_train_subject;

// All ranks call it before any other message: refuses what is not rank 0's. What each may have of its own, as paths,
// threads and patience, is not compared. Returns the exit code.
int cli_train_agree(const cli_train_subject *subject);

#endif
