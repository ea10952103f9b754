// SPDX-License-Identifier: MIT
// What solve selective and solve attention share: named arrays of an npz file go in, an output and last states come
// out, and with a loss's gradient by those its gradients by what went in, under the same names.
#ifndef DEEPPCR_CLI_SCAN_H
#define DEEPPCR_CLI_SCAN_H

#include "cli.h"

enum { CLI_SCAN_MEMBERS = 9 };  // arrays that go in, at most

// Keys of the options that all have; a scan's own come after.
enum {
    CLI_SCAN_INPUT = 0x7000,
    CLI_SCAN_OUTPUT,
    CLI_SCAN_FINAL,
    CLI_SCAN_GRAD_OUTPUT,
    CLI_SCAN_GRAD_FINAL,
    CLI_SCAN_GRADS,
    CLI_SCAN_OWN
};

typedef struct cli_scan {
    // What goes in: `count` names, of which the first `needed`, one or more, must be there.
    const char *const *names;
    int count, needed;
    // As it was asked for.
    cli_common common;
    const char *input, *output, *final, *grad_output, *grad_final, *grads;
    // What it works on; what is not there is NULL or has no data.
    dpcr_context *context;
    dpcr_tensors file, gradient_files[2];
    const dpcr_array *given[CLI_SCAN_MEMBERS];
    const dpcr_array *by_output, *by_last;   // the loss's gradients that go back; by_output: or `zeros`
    dpcr_array y, last, zeros;               // made here
    dpcr_array gradients[CLI_SCAN_MEMBERS];  // in the members' shapes
    void *kept;
    double seconds, back_seconds;
} cli_scan;

error_t cli_scan_parse(int key, const char *text, cli_scan *scan);
// Parses, refuses what the options do not say or say twice, and makes the context; true: go on, cli_scan_release ends
// it. False: `status` is the exit code, as is what is returned below.
bool cli_scan_begin(cli_scan *scan, const cli_syntax *syntax, int argc, char **argv, int *status);
void cli_scan_release(cli_scan *scan);
static inline bool cli_scan_goes_back(const cli_scan *scan) { return scan->grads != NULL; }

// "WHAT has shape [2][3]: wanted WANTED".
int cli_scan_wrong(const char *what, const dpcr_array *array, const char *wanted);
// Has the array this shape? NULL has.
int cli_scan_check(const char *what, const dpcr_array *array, int32_t ndim, const int64_t *shape);

// The members of --input, all float32 or all float64.
int cli_scan_read(cli_scan *scan);
// Once their shapes are checked: reads the gradients that go back, and makes what comes out, of these shapes.
int cli_scan_create(cli_scan *scan, int32_t ndim, const int64_t *y, const int64_t *last);
// So many bytes of states for the way back, where there is one.
int cli_scan_keep(cli_scan *scan, size_t bytes);
// All that was asked for, y and last by these names.
int cli_scan_write(const cli_scan *scan, const char *y, const char *last);
// Ends the report and the line that a scan has begun, "LINE, 2 threads: 0.1 s", and takes the report over.
int cli_scan_tell(const cli_scan *scan, cli_result *report, const char *line);

#endif
