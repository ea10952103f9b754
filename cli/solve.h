// SPDX-License-Identifier: MIT
// solve linear: what it was asked for, and what its ranks share with one process.
#ifndef DEEPPCR_CLI_SOLVE_H
#define DEEPPCR_CLI_SOLVE_H

#include "cli.h"

enum { CLI_WHY = 256 };

typedef struct cli_linear {
    cli_common common;
    const char *a, *b, *z0, *input, *output;
    const char *indptr, *indices;  // of csr, else NULL
    bool transposed;
    dpcr_chain_options options;
    size_t memory_limit;
    char why[CLI_WHY];  // the scheme is what it is
    // Over ranks.
    bool distributed, scheme_given;
    int64_t ranks;
    dpcr_scan scan;
    bool scan_given;
    double deadline;
} cli_linear;

// The structure is decided by A's number of dimensions, or csr where there is a pattern; only shapes and types are
// looked at. `a` becomes a view of A, [L][B or 1][values]. Returns the exit code.
int cli_linear_shape(const dpcr_array *from, const dpcr_array *b, const dpcr_pattern *pattern, bool transposed,
                     dpcr_chain_shape *shape, dpcr_array *a);

// ", finished in order from step N" where a report's finished_from is before the chain's end; else "".
const char *cli_linear_in_order(int64_t finished_from, int64_t length, char text[64]);

// A plan whose workspace keeps to the limit (0: none), and why it is what it is. Where auto's choice would take more it
// is the loop. Returns the exit code.
int cli_linear_plan(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_options *options,
                    size_t limit, dpcr_chain_plan **plan, char why[CLI_WHY]);

// solve_csr.c: a pattern of width w from SciPy's arrays, checked, and what frees it (NULL is allowed).
int cli_pattern_create(const dpcr_array *indptr, const dpcr_array *indices, int64_t w, dpcr_pattern **pattern);
void cli_pattern_destroy(dpcr_pattern *pattern);
// z0 as a view [B][w].
int cli_linear_start(const dpcr_array *from, const dpcr_chain_shape *shape, dpcr_array *z0);

// An array's numbers on a device.
typedef struct cli_moved {
    dpcr_array array;
    size_t bytes;
} cli_moved;

// Puts copies into the stream: there, with memory of their own, and back, where there is something.
dpcr_status cli_send(dpcr_device device, const dpcr_array *from, void *stream, cli_moved *to, dpcr_error *error);
dpcr_status cli_bring(dpcr_device device, const cli_moved *from, const dpcr_array *to, void *stream, dpcr_error *error);

// Seconds by the host's clock.
typedef struct cli_device_times {
    double to_device, solve, to_host, back;  // back: of networks
} cli_device_times;

// Does what multiplies on chip there go at the rate of memory, in no chunks?
bool cli_linear_in_one_pass(const dpcr_transition *t);
// Is the memory that is free there enough for a copy of all (z0 may be NULL) and the workspace? DPCR_ERROR_MEMORY: it
// is not.
dpcr_status cli_linear_fits(const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b, const dpcr_array *z0,
                            dpcr_device device, dpcr_error *error);
// Would the device of --device auto be faster, transfers included? Decides, with the reason.
bool cli_linear_pays(const cli_linear *s, dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_array *a,
                     const dpcr_array *b);
// Solves on the plan's device; the states take the place of b. Returns the exit code.
int cli_linear_on_device(const cli_linear *s, const dpcr_chain_plan *plan, const dpcr_array *a, const dpcr_array *b,
                         const dpcr_array *z0, cli_device_times *times);

// A pass of a network by a plan of the device, over the host's arrays, and with gradients back: the parameters' are
// added to the network's. Returns the exit code.
int cli_recurrent_on_device(dpcr_device device, dpcr_recurrent *network, const dpcr_recurrent_plan *plan,
                            const dpcr_recurrent_pass *pass, const dpcr_recurrent_gradients *gradients,
                            dpcr_solve_report *reports, dpcr_solve_report *back_reports, cli_device_times *times);

// By ranks that are processes of mpirun, or threads. Returns the exit code.
int cli_solve_linear_ranks(const cli_linear *s);

#endif
