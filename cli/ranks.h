// SPDX-License-Identifier: MIT
// Ranks of the program, processes of mpirun or threads: running them, and errors that all of them come to together.
#ifndef DEEPPCR_CLI_RANKS_H
#define DEEPPCR_CLI_RANKS_H

#include "cli.h"

typedef struct cli_ranks {
    const dpcr_transport *transport;  // this rank's
    dpcr_context *context;            // this rank's own
    double deadline;
    cli_doing doing;  // what was being done when all came to an error
    void *user;
} cli_ranks;

// What a rank does; failures by `error`. Those that all ranks have come to together (cli_ranks_agree) are told once.
typedef dpcr_status cli_rank_body(cli_ranks *rank, dpcr_error *error);

// Runs body on every rank: under mpirun as this process, else on `ranks` threads. Returns the exit code, having told
// what went wrong: in one line, by rank 0 where all know it, else by the rank that noticed, which ends the others.
int cli_ranks_run(const cli_common *common, int64_t ranks, double deadline, cli_rank_body *body, void *user);

// Ranks above 0 are silent, for rank 0 tells what all fail at. What such a rank alone failed at, an option or a folder
// of its machine, it tells here, after a moment in which the end of rank 0 would have ended it.
void cli_ranks_tell_alone(void);

// All ranks call it: the first failure, if any, is everybody's.
dpcr_status cli_ranks_agree(cli_ranks *rank, cli_doing doing, dpcr_status status, dpcr_error *error);

// All ranks call it too: refuses a number of steps of `what` that is not rank 0's.
dpcr_status cli_ranks_agree_on_length(cli_ranks *rank, const char *what, int64_t length, dpcr_error *error);
// The same of options as text, less than CLI_RANKS_OPTIONS bytes of it.
enum { CLI_RANKS_OPTIONS = 96 };
dpcr_status cli_ranks_agree_on_options(cli_ranks *rank, const char *options, dpcr_error *error);

// The same of up to CLI_RANKS_FACTS of them one by one: the first that is not rank 0's is named. All give the same
// list.
typedef enum cli_fact_kind { CLI_FACT_WHOLE, CLI_FACT_REAL, CLI_FACT_OTHER } cli_fact_kind;  // other: not to be shown
typedef struct cli_fact {
    const char *what;
    cli_fact_kind kind;
    uint64_t bits;  // a number that is not negative, a double's bits, or a hash
} cli_fact;
enum { CLI_RANKS_FACTS = 64 };
dpcr_status cli_ranks_agree_on_facts(cli_ranks *rank, const cli_fact *facts, int count, dpcr_error *error);

// The steps of rank r of an even cut: first, and one past the last.
int64_t cli_rank_first(int64_t length, int64_t ranks, int64_t rank);

// A pipe or "-", of which the second rank to read would get nothing; not NULL.
bool cli_ranks_flows(const char *path);
// Whether ranks can each read or write their part of it, as of NULL: none such, no member of an archive.
bool cli_ranks_share(const char *path);

// One file of all ranks' rows: `part` from row `first` on, of an array like `whole`. Whole in its place, or not there.
dpcr_status cli_ranks_write(cli_ranks *rank, const char *path, const dpcr_array *whole, int64_t first,
                            const dpcr_array *part, dpcr_error *error);

// Text that cli_fail tells is kept for the library's kind of error instead, with its status in words.
dpcr_status cli_ranks_held(int status, dpcr_error *error);

#endif
