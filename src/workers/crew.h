// SPDX-License-Identifier: MIT
// Workers that share a training run's books and each hold the whole network.
#ifndef DPCRI_WORKERS_CREW_H
#define DPCRI_WORKERS_CREW_H

#include "deeppcr/workers.h"
#include "pipe/executor_context.h"
#include "rt/comm/comm.h"
#include "train/ledger.h"
#include "workers/network.h"

typedef struct dpcri_crew {
    dpcri_ledger ledger;
    dpcr_workers_options options;  // every default filled in
    int64_t *first, groups;        // where groups of units begin
    dpcri_lender lender;
    const char *sentence;
    double enough;  // an epoch of this accuracy is the last (SWAP's first phase); 0: none is
    // Worker 0's.
    bool reached;
    int stopped_by;  // what another worker's caller said
    double waited;
    int64_t updates;
} dpcri_crew;

// Checks and copies all options, opens the books, cuts the network into groups.
dpcr_status dpcri_crew_open(dpcri_crew *crew, const char *call, dpcr_context *context, dpcr_model *model,
                            const dpcr_dataset *data, const dpcr_train_options *train,
                            const dpcr_workers_options *workers, dpcr_error *error);
dpcr_status dpcri_crew_run(dpcri_crew *crew, const char *call, dpcri_rank_body *body, dpcr_error *error);
void dpcri_crew_close(dpcri_crew *crew);
// Names of messages beside data-parallel training's: kind 0 .. DPCRI_CREW_TAGS - 1.
enum { DPCRI_CREW_TAGS = 4 };
int64_t dpcri_crew_tag(const dpcri_crew *crew, int kind);

// Whether there is room for a figure, or none are wanted.
static inline bool dpcri_figures_fit(const dpcr_workers_figures *figures) {
    return !figures || figures->size >= offsetof(dpcr_workers_figures, groups);
}

typedef struct dpcri_member {
    dpcri_crew *crew;
    dpcri_comm *comm;
    dpcr_context *context;
    dpcri_network network;
    dpcri_minibatch batch;
    dpcr_optimiser **optimisers;  // [groups]
    int64_t *order;               // [count]
    double *losses;               // [batch + 2] of my rows, then what is told beside
    double *squares;              // [units]
    bool stepped;                 // the books' model is not mine any more
    bool stopped;                 // as asked, before the end or after the last step
} dpcri_member;

dpcr_status dpcri_member_create(dpcri_member *member, dpcri_crew *crew, dpcri_comm *comm, dpcr_error *error);
void dpcri_member_destroy(dpcri_member *member);
// Parameters and optimiser of all groups into the books'.
void dpcri_member_hand_in(const dpcri_member *member);
// Data-parallel training from the books' start to the end, or to an epoch that is enough; `position` is where it stands
// then. Of a run that is stopped before its end worker 0 alone gives DPCR_ERROR_CANCELLED; all find `stopped` set.
dpcr_status dpcri_member_train(dpcri_member *member, dpcri_position *position, dpcr_error *error);

#endif
