// SPDX-License-Identifier: MIT
// The processes of an MPI job, where this program was started by mpirun and its module for MPI is there.
#ifndef DEEPPCR_CLI_WORLD_H
#define DEEPPCR_CLI_WORLD_H

#include "cli.h"

// How many processes the launcher says there are (1: none), and which one this is. MPI is not needed to know.
int64_t cli_world_size(void);
int64_t cli_world_rank(void);
bool cli_world_launched(void);  // also as the only one
// To be called before joining. Seconds that leaving may take (60; at least 5 are given), after which the process ends
// with a line: `together`, all leave at the same time, and they hold for joining too; else rank 0 comes last, and the
// others give it four times as many.
void cli_world_patience(double seconds, bool together);
// Joins them; the transport lives until cli_world_close. Returns the exit code.
int cli_world_open(dpcr_transport *transport);
bool cli_world_asked(void);  // whether that was called
// Only after cli_world_open returned 0. Status 0: waits for the others and leaves. Else: ends all processes at once,
// and does not return.
void cli_world_close(int status);

#endif
