// SPDX-License-Identifier: MIT
// What bench diffusion measured, point by point: the CSV file and its reading back.
#ifndef CLI_BENCH_DIFFUSION_H
#define CLI_BENCH_DIFFUSION_H

#include "cli.h"

typedef enum point_number {
    POINT_TOLERANCE,
    POINT_WINDOW,
    POINT_COUNT,
    POINT_SECONDS,
    POINT_SEQUENTIAL_SECONDS,
    POINT_RATIO,
    POINT_SWEEPS,
    POINT_CALLS,
    POINT_EVALUATIONS,
    POINT_MAX_ERROR,
    POINT_FRECHET_DISTANCE,
    POINT_FRECHET_DEVIATION,
    POINT_PRECISION,
    POINT_RECALL,
    POINT_CONFIRM,
    POINT_ERROR_ESTIMATE,
    POINT_NUMBERS
} point_number;

// What makes a run: of all points, and of the quality's alone. Model, classifier and data by what they hold.
typedef enum run_field {
    RUN_SAMPLER,
    RUN_STEPS,
    RUN_WIDTH,
    RUN_HIDDEN,
    RUN_DEPTH,
    RUN_THREADS,
    RUN_ETA,
    RUN_SEED,
    RUN_MODEL,
    RUN_SEEDS,
    RUN_CLASSIFIER,
    RUN_DATA,
    RUN_FIELDS
} run_field;
enum { RUN_BYTES = 24, RUN_JUDGED = RUN_FIELDS - RUN_SEEDS };

typedef struct point {
    char part[8], method[24], chosen[24], reason[24];  // part: "time" or "quality"
    char judged[RUN_JUDGED][RUN_BYTES];                // of a quality's: the run's, from RUN_SEEDS on
    double number[POINT_NUMBERS];                      // NAN: none. calls, evaluations: over those of the loop
} point;

typedef struct points {
    char run[RUN_FIELDS][RUN_BYTES];  // as files have them; a run that judges nothing has none from RUN_SEEDS on
    point *at;
    int count, capacity;
} points;

const char *cli_point_name(point_number i);
// A copy of p at the end; false: no memory.
bool cli_points_add(points *all, const point *p);
// The point of the same part, method, tolerance, window, count and confirm; NULL: none.
const point *cli_points_find(const points *all, const point *wanted);
int cli_points_write(const points *all, const char *path);
// Rows of a file that cli_points_write wrote, of the same run; no file is no rows.
int cli_points_read(points *all, const char *path);
void cli_points_free(points *all);

#endif
