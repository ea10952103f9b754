// SPDX-License-Identifier: MIT
// The log of a training run: JSON Lines, each line written whole by one call.
#ifndef DEEPPCR_CLI_TRAIN_LOG_H
#define DEEPPCR_CLI_TRAIN_LOG_H

#include "cli.h"

typedef struct cli_log {
    int fd;  // -1: no log
    const char *path;
} cli_log;

// `append`: goes on at the end of what is there (a resumed run), else starts anew. Returns the exit code.
int cli_log_open(cli_log *log, const char *path, bool append);
void cli_log_close(cli_log *log);
// Drops the lines of steps from `step` on: a killed run may have logged what it does again after its last checkpoint.
int cli_log_rewind(cli_log *log, int64_t step);
// Takes the object over.
int cli_log_write(cli_log *log, json_t *object);

// ---- what all training tells; `unit`: what is counted, such as "images" ----

// The library's clock runs on through the tests between the epochs; ours does not.
dpcr_train_state cli_train_without_tests(const dpcr_train_state *state, double test_seconds);
// {"event": event, "step", "epoch", "loss", "accuracy", "seconds", "UNIT_per_second"}, or NULL.
json_t *cli_log_line(const char *event, const dpcr_train_state *state, const char *unit);
// Every `every`th step as a line.
int cli_log_step(cli_log *log, int64_t every, const dpcr_train_state *state, const char *unit);
// --csv: a row an epoch.
int cli_log_table(const char *path, const json_t *epochs);

#endif
