// SPDX-License-Identifier: MIT
// Rounds go forth and back over the entrants still in, so that a drift of the machine's speed favours nobody. Short
// work is repeated within a round until the clock's grain does not matter.
#include "rt/race.h"

#include <math.h>
#include <string.h>

static const double sample_seconds = 200e-6;  // of one entrant in one round, at least
static const double short_seconds = 2e-3;
static const double settling_seconds = 1e-3;  // until caches and threads are as one entrant alone would have them
static const double long_seconds = 5e-3;      // what takes longer has used every cache up anyhow
static const double alike_within = 1.01;
static const double hopeless = 3;  // times the best of the first round
enum {
    LOOKS = 3,
    MOST_WARM = 4,
    SOME_ROUNDS = 3,  // before one sample that something disturbed leaves the median alone
    FAIR_ROUNDS = 5,  // before 5 per cent count
    SURE_ROUNDS = 11  // before half a per cent does
};

typedef struct entrant {
    double times[DPCRI_RACE_ROUNDS], sorted[DPCRI_RACE_ROUNDS];
    double least, median;  // least: of the looks too
    int rounds;
    int64_t inner;
    bool in;
} entrant;

typedef struct race {
    entrant entrants[DPCRI_RACE_ENTRANTS];
    int64_t count;
    dpcri_race_run run;
    dpcri_race_clock clock;
    void *argument;
} race;

static void keep_sorted(entrant *e, double seconds) {
    int at = e->rounds++;
    while (at > 0 && e->sorted[at - 1] > seconds) e->sorted[at] = e->sorted[at - 1], at--;
    e->sorted[at] = seconds;
    e->least = fmin(e->least, e->sorted[0]);
    e->median = e->rounds < SOME_ROUNDS ? e->least
                : e->rounds % 2         ? e->sorted[e->rounds / 2]
                                        : (e->sorted[e->rounds / 2 - 1] + e->sorted[e->rounds / 2]) / 2;
}

// Before it counts it runs until it finds in the caches, each thread's, what it would find if it ran alone: a way of
// two threads after one of a single thread takes three runs and more for that (ParaGRU of 16 units, 4096 steps of a
// training pass on a Xeon: 330, 305, 300, 277 us).
static int warm_runs(const entrant *e) {
    if (!(e->least < long_seconds)) return 0;
    return (int)fmin(MOST_WARM, 1 + settling_seconds / fmax(e->least, 1e-9));
}

static bool sample(race *r, int64_t i, double *seconds) {
    entrant *e = &r->entrants[i];
    for (int k = warm_runs(e); k > 0; k--)
        if (!r->run(r->argument, i)) return false;
    const double start = r->clock(r->argument);
    for (int64_t k = 0; k < e->inner; k++)
        if (!r->run(r->argument, i)) return false;
    *seconds = (r->clock(r->argument) - start) / (double)e->inner;
    return true;
}

// Once to touch the memory, then to see how long it takes: short work some times, for threads that must wake first.
// What is far behind the others after that is out; after its very first run only where time is short.
static void first_look(race *r, double seconds) {
    const double affordable = seconds / (2 * (double)r->count);
    double best = HUGE_VAL;
    for (int64_t i = 0; i < r->count; i++) {
        entrant *e = &r->entrants[i];
        double cold = 0, warm = 0;
        *e = (entrant){.inner = 1, .least = HUGE_VAL, .median = HUGE_VAL};
        if (!sample(r, i, &cold)) continue;
        warm = cold;
        e->in = true;
        const bool again = cold < hopeless * 2 * best || cold < affordable;
        const int looks = cold < short_seconds ? LOOKS : again ? 1 : 0;
        for (int k = 0; k < looks && e->in; k++) {
            e->in = sample(r, i, &cold);
            warm = fmin(warm, cold);
        }
        if (!e->in) continue;
        e->least = e->median = warm;
        e->inner = warm < sample_seconds ? (int64_t)fmin(1000, ceil(sample_seconds / fmax(warm, 1e-9))) : 1;
        best = fmin(best, warm);
    }
    for (int64_t i = 0; i < r->count; i++)
        if (r->entrants[i].least > hopeless * best) r->entrants[i].in = false;
}

static int64_t leader(const race *r) {
    int64_t best = -1;
    for (int64_t i = 0; i < r->count; i++)
        if (r->entrants[i].median < HUGE_VAL && (best < 0 || r->entrants[i].median < r->entrants[best].median))
            best = i;
    return best;
}

// Drops who is behind the leader's median at its best; true: the race is decided.
static bool decide(race *r, int round) {
    const int64_t best = leader(r);
    const double mark = r->entrants[best].median;
    int64_t in = 0;
    bool alike = true;
    for (int64_t i = 0; i < r->count; i++) {
        entrant *e = &r->entrants[i];
        const double behind = round >= SURE_ROUNDS ? 1.005 : round >= FAIR_ROUNDS ? 1.05 : 1.5;
        if (e->in && i != best && e->least > behind * mark) e->in = false;
        in += e->in;
        alike = alike && (!e->in || e->median < 1.005 * mark);
    }
    return in <= 1 || (round > SURE_ROUNDS && alike);
}

static void run_round(race *r, int round) {
    for (int64_t k = 0; k < r->count; k++) {
        const int64_t i = round % 2 ? r->count - 1 - k : k;
        double seconds = 0;
        if (!r->entrants[i].in) continue;
        if (sample(r, i, &seconds))
            keep_sorted(&r->entrants[i], seconds);
        else
            r->entrants[i].in = false, r->entrants[i].median = HUGE_VAL;
    }
}

double dpcri_race_seconds(void *argument) {
    (void)argument;
    return dpcri_seconds();
}

int64_t dpcri_race(int64_t count, dpcri_race_run run, void *argument, double seconds, dpcri_race_clock clock,
                   double *median) {
    race r = {.count = count < DPCRI_RACE_ENTRANTS ? count : DPCRI_RACE_ENTRANTS,
              .run = run,
              .clock = clock,
              .argument = argument};
    const double start = clock(argument);
    first_look(&r, seconds);
    for (int round = 0; round < DPCRI_RACE_ROUNDS; round++) {
        const double before = clock(argument);
        if (leader(&r) < 0 || (round > 0 && decide(&r, round))) break;
        run_round(&r, round);
        const double now = clock(argument);
        if (now - start + (now - before) > seconds) break;  // the next one would not fit
    }
    for (int64_t i = 0; i < count; i++) median[i] = i < r.count ? r.entrants[i].median : HUGE_VAL;
    // What is alike is no reason to prefer a later entrant: they come the plainest first.
    int64_t winner = leader(&r);
    for (int64_t i = 0; i < winner; i++)
        if (r.entrants[i].in && r.entrants[i].median < alike_within * r.entrants[winner].median) winner = i;
    return winner;
}
