// SPDX-License-Identifier: MIT
// Which of several ways of doing the same work is the fastest: timed in interleaved rounds, so that what disturbs the
// machine disturbs all of them.
#ifndef DPCRI_RACE_H
#define DPCRI_RACE_H

#include "base/base.h"

enum { DPCRI_RACE_ENTRANTS = 24, DPCRI_RACE_ROUNDS = 25 };

// Runs entrant i = 0 .. count - 1 once; false: it cannot run, and is out.
typedef bool (*dpcri_race_run)(void *argument, int64_t i);

// Seconds since whenever, of the race's argument: the host's, a device's, or what a test says.
typedef double (*dpcri_race_clock)(void *argument);
double dpcri_race_seconds(void *argument);  // the host's, whatever the argument

// Runs all of them in rounds, drops those that are clearly behind, and ends when one is left, when those left are
// alike to half a per cent, or after about `seconds`. median[i] gets what entrant i took, HUGE_VAL where it could not
// run; entrants that were dropped keep the median of their rounds. Returns the winner, the first of those within a per
// cent of the least median; -1 where nobody could run.
int64_t dpcri_race(int64_t count, dpcri_race_run run, void *argument, double seconds, dpcri_race_clock clock,
                   double *median);

#endif
