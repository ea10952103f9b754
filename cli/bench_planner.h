// SPDX-License-Identifier: MIT
// bench planner: how much slower than the best choice the planner's is, over a grid of chains.
#ifndef DEEPPCR_CLI_BENCH_PLANNER_H
#define DEEPPCR_CLI_BENCH_PLANNER_H

#include "deeppcr/recurrent.h"
#include "problem.h"

// ---- the grid: bench_grid.c ----

typedef enum planner_kind { PLANNER_NETWORK, PLANNER_MAP, PLANNER_LINEAR, PLANNER_RECURRENT } planner_kind;

// One chain of the grid; each is run forward and backward: a linear one transposed; a recurrent network, whose input is
// as wide as its state, at inference, and in training with both passes together.
typedef struct planner_case {
    planner_kind kind;
    const char *name;  // of the architecture, the map, the structure, or the kind of network
    int64_t length, width, batch;
    cli_init init;
    dpcr_activation activation;
    double gain;    // a network's
    double radius;  // a linear chain's: a step multiplies the mean square by its square
    bool quick;     // in the short grid too
} planner_case;

extern const planner_case planner_grid[];
extern const int planner_grid_count;

// ---- subjects: bench_subjects.c ----

enum { PLANNER_WAYS = 20 };

// One way to run the case in one direction: a plan, and what it is called.
typedef struct planner_way {
    char name[64];
    void *plan;
    size_t workspace;
    bool loop;
    double seconds;  // median
} planner_way;

// A case being run; `ways[0]` is what auto chose.
typedef struct planner_subject {
    dpcr_context *context;
    const planner_case *what;
    bool backward;
    planner_way ways[PLANNER_WAYS];
    int count;
    double planning_seconds;
    char sentence[512];
    // what is run on
    dpcr_model *model;
    cli_problem problem;
    dpcr_chain_shape shape;
    dpcr_array z, tape, a, b;
    dpcr_recurrent *network;
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    void *taped;
    size_t taped_bytes;
    void *workspace;
    size_t workspace_bytes;
} planner_subject;

// Makes the case's data; returns the exit code.
int planner_subject_create(dpcr_context *context, const planner_case *what, uint64_t seed, planner_subject *subject);
void planner_subject_destroy(planner_subject *subject);
// Plans auto in `planning` and every alternative for one direction, and a workspace for them all.
int planner_subject_plan(planner_subject *subject, bool backward, dpcr_planning planning, double budget);
void planner_subject_unplan(planner_subject *subject);
dpcr_status planner_subject_run(planner_subject *subject, int way, dpcr_error *error);

// ---- subjects that are recurrent networks: bench_recurrent.c ----

int planner_recurrent_create(planner_subject *subject, uint64_t seed);
void planner_recurrent_destroy(planner_subject *subject);
int planner_recurrent_plan(planner_subject *subject, dpcr_planning planning, double budget);
void planner_recurrent_unplan(planner_subject *subject);
dpcr_status planner_recurrent_run(planner_subject *subject, int way, dpcr_error *error);

#endif
