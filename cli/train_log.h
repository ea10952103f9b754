// SPDX-License-Identifier: MIT
// What all training tells: progress, the log (JSON Lines, each line written whole by one call), tests between epochs,
// tables and the result at the end.
#ifndef DEEPPCR_CLI_TRAIN_LOG_H
#define DEEPPCR_CLI_TRAIN_LOG_H

#include "cli.h"

typedef struct cli_log {
    int fd;       // -1: no log
    bool stream;  // standard output: nothing before it can be taken back
    bool missed;  // a line: a signal came while it waited for a reader
    const char *path;
} cli_log;

// Loss and accuracy of the network as it stands, on what it is tested on.
typedef dpcr_status cli_test_function(void *user, double *loss, double *accuracy, dpcr_error *error);

typedef struct cli_report {
    const char *log_path;
    int64_t log_every, test_every;  // 0: every step; only at the end
    dpcr_train_options *train;      // the run's: the group of options below settles its files
    cli_common *common;
    const char *unit;  // what is counted, such as "images"
    cli_test_function *test;
    void *test_user;
    bool resuming;
    int64_t from;  // step that it goes on from, 0 where it does not; -1: not told
    // The run.
    cli_progress progress;
    cli_log log;
    bool begun;                 // there was a step
    int status;                 // the exit code, when a callback stops the run
    int test_status;            // the same of a test that failed: the step is there and is kept
    int64_t finished_in_order;  // steps whose solve did not converge
    double test_seconds;        // spent in tests between the epochs
    int64_t tested_step;        // step that the figures below belong to; -1: none
    double test_loss, test_accuracy;
    dpcr_train_state state;  // the last one seen
    char sentence[512];
    json_t *epochs;  // a row each, for the CSV
    bool tabled;     // it is written
} cli_report;

#define CLI_REPORT_DEFAULTS \
    { .test_every = 1, .log = {.fd = -1}, .tested_step = -1 }
// The group of options of what a run leaves: --save, --resume, --checkpoint-seconds, --log, --log-every, --test-every.
extern const struct argp cli_report_argp;
// After parsing: the files by default, and whether they can be had; the exit code.
void cli_report_settle(cli_report *report);
int cli_report_check(const cli_report *report);
// Opens the log. Returns the exit code; to be closed also after a failure.
int cli_report_open(cli_report *report, dpcr_context *context);
void cli_report_close(cli_report *report);
// To be called after every step; what dpcr_train_options.progress returns.
int cli_report_step(cli_report *report, const dpcr_train_state *state);
// Tests now; the time does not count as training. Returns the exit code.
int cli_report_test(cli_report *report, int64_t step);
// The state to tell at the end, of a run whose last state was `last`, with the last test's figures of it.
int cli_report_final(cli_report *report, const dpcr_train_state *last, dpcr_train_state *final);
// test_accuracy, test_loss, train_..., seconds, phases and the like; `solver` names the scheme. Of the optimiser: its
// options.
void cli_report_set(const cli_report *report, const dpcr_train_state *final, const cli_solver *solver,
                    cli_result *result);
void cli_report_set_optimiser(const dpcr_optimiser_options *optimiser, cli_result *result);
// Why it went as it did, a line, where it went at all: not of a resumed run that was complete.
void cli_report_say_sentence(const cli_report *report);
// The result's line in the log, the CSV table, the JSON. Takes the result over.
int cli_report_end(cli_report *report, const dpcr_train_state *final, cli_result *result);

#endif
