// SPDX-License-Identifier: MIT
// A race: entrants run in turn, round after round, so that what disturbs the machine disturbs them all; medians of the
// rounds. Who is far behind after a first look does not take part.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const double round_seconds = 2e-3;     // a round of one entrant lasts at least this
static const double look_seconds = 5e-3;      // of a first look, unless one run takes longer
static const double patience_seconds = 0.02;  // what takes no longer is always worth a look
static const double contender = 1.3;          // up to this times the fastest, a look cannot tell who is first
enum { LOOKS = 5, LEAST_ROUNDS = 5, FAIR_ROUNDS = 7, FEW_ROUNDS = 3, CONTENDERS = 3 };

bench_entrant *bench_race_add(bench_race *race, const char *name) {
    bench_entrant *e = &race->entrants[race->count++];
    *e = (bench_entrant){.name = name,
                         .chosen = name,
                         .tolerance = -1,
                         .evaluations = -1,
                         .depth = -1,
                         .flops = -1,
                         .seconds = HUGE_VAL};
    return e;
}

static bool took_part(const bench_entrant *e) { return !e->skipped[0]; }

static dpcr_status run_many(const bench_race *race, bench_entrant *e, int runs, double *seconds, dpcr_error *error) {
    const double start = cli_now();
    for (int i = 0; i < runs; i++) {
        const dpcr_status status = race->run(race->subject, e, false, error);
        if (status != DPCR_OK) return status;
    }
    *seconds = (cli_now() - start) / runs;
    return DPCR_OK;
}

// The least of a few runs; one run where that alone is long.
static dpcr_status look(const bench_race *race, bench_entrant *e, dpcr_error *error) {
    double spent = 0;
    for (int i = 0; i < LOOKS && spent < look_seconds; i++) {
        double seconds = 0;
        const dpcr_status status = run_many(race, e, 1, &seconds, error);
        if (status != DPCR_OK) return status;
        e->seconds = fmin(e->seconds, seconds);
        spent += seconds;
    }
    return DPCR_OK;
}

// What cannot win is left out before it takes minutes.
static bool hopeless(const bench_race *race, const bench_entrant *e) {
    return e->least_seconds > patience_seconds && e->least_seconds > 2 * race->entrants[0].seconds;
}

static int first_look(bench_race *race) {
    for (int i = 0; i < race->count; i++) {
        bench_entrant *e = &race->entrants[i];
        dpcr_error error = {0};
        if (i > 0 && took_part(e) && hopeless(race, e))
            snprintf(e->skipped, sizeof e->skipped, "its arithmetic alone would take %.2g s", e->least_seconds);
        if (!took_part(e)) continue;
        dpcr_status status = race->run(race->subject, e, true, &error);
        if (status == DPCR_OK && i == 0) race->keep(race->subject);
        if (status == DPCR_OK) e->max_error = race->compare(race->subject);
        if (status == DPCR_OK && !e->unconverged) status = look(race, e, &error);
        const bool refused = status == DPCR_ERROR_UNSUPPORTED || status == DPCR_ERROR_MEMORY;
        if (status != DPCR_OK && !(i > 1 && refused)) return cli_fail_error(&error, CLI_COMPUTING);
        if (status != DPCR_OK) snprintf(e->skipped, sizeof e->skipped, "%.150s", error.text);
        if (status == DPCR_OK && e->unconverged) {
            cli_unconverged_text(e->sweeps, e->skipped, sizeof e->skipped);
            if (i == race->chosen || e->asked) return cli_fail(CLI_UNCONVERGED, "%s: %s", e->name, e->skipped);
        }
    }
    return CLI_DONE;
}

static bool parallel(const bench_race *race, int i) { return i > 0 && i != race->chosen; }

// Who has left its work to the loop comes after everybody who has not.
static bool ahead(const bench_entrant *e, const bench_entrant *other) {
    return e->fallback != other->fallback ? other->fallback : e->seconds < other->seconds;
}

// Of the parallel ones, with at least that many rounds.
static int fastest(const bench_race *race, int rounds) {
    int best = -1;
    for (int i = 1; i < race->count; i++) {
        const bench_entrant *e = &race->entrants[i];
        if (!parallel(race, i) || !took_part(e) || e->rounds < rounds) continue;
        if (best < 0 || ahead(e, &race->entrants[best])) best = i;
    }
    return best;
}

// The loop, auto, and the parallel entrants that may be the fastest: their indices.
static int choose_contenders(const bench_race *race, int chosen[]) {
    const int best = fastest(race, 0);
    int count = 0;
    chosen[count++] = 0;
    if (race->chosen > 0) chosen[count++] = race->chosen;
    if (best < 0) return count;
    chosen[count++] = best;
    int rivals = 1;
    for (int i = 1; i < race->count && rivals < CONTENDERS; i++) {
        const bench_entrant *e = &race->entrants[i];
        if (!parallel(race, i) || i == best || !took_part(e)) continue;
        if (e->fallback != race->entrants[best].fallback || e->seconds > contender * race->entrants[best].seconds)
            continue;
        chosen[count++] = i;
        rivals++;
    }
    return count;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Between the sorted times around it.
static double quantile(const double *sorted, int count, double q) {
    const double at = q * (count - 1);
    const int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static void sum_up(bench_entrant *e) {
    const int rounds = e->rounds;
    double sorted[BENCH_ROUNDS];
    memcpy(sorted, e->times, sizeof *sorted * (size_t)rounds);
    qsort(sorted, (size_t)rounds, sizeof *sorted, by_size);
    e->seconds = quantile(sorted, rounds, 0.5);
    e->spread = (quantile(sorted, rounds, 0.75) - quantile(sorted, rounds, 0.25)) / e->seconds;
}

static int runs_of(const bench_entrant *e) {
    const double runs = ceil(round_seconds / fmax(e->seconds, 1e-9));
    return runs < 1 ? 1 : runs > 1e5 ? 100000 : (int)runs;
}

// An odd number, at least seven unless they would take twice the time that is there.
static int count_rounds(double seconds, double round) {
    int rounds = (int)fmin(seconds / round, BENCH_ROUNDS);
    if (rounds < FAIR_ROUNDS) rounds = 2 * seconds > FAIR_ROUNDS * round ? FAIR_ROUNDS : rounds;
    if (rounds < LEAST_ROUNDS) rounds = LEAST_ROUNDS;
    return rounds - 1 + rounds % 2;
}

int bench_warm_runs(double seconds) {
    enum { MOST = 4 };
    static const double cached = 0.05;  // what takes longer has used every cache up anyhow
    static const double settling = 1e-3;
    return seconds > cached ? 0 : (int)fmin(MOST, 1 + settling / fmax(seconds, 1e-9));
}

// Where the loop is far ahead and time runs out, a few rounds tell by how much.
static bool beaten(const bench_race *race, const bench_entrant *e) {
    return bench_warm_runs(e->seconds) == 0 && e->seconds > 4 * race->entrants[0].seconds;
}

static int race_contenders(bench_race *race, const int chosen[], int count, double seconds) {
    double round = 0;
    for (int k = 0; k < count; k++) {
        bench_entrant *e = &race->entrants[chosen[k]];
        e->inner = runs_of(e);
        if (!beaten(race, e)) round += e->seconds * (e->inner + bench_warm_runs(e->seconds));
    }
    race->rounds = count_rounds(seconds, round);
    for (int r = 0; r < race->rounds; r++)
        for (int k = 0; k < count; k++) {
            bench_entrant *e = &race->entrants[chosen[r % 2 ? count - 1 - k : k]];
            dpcr_error error = {0};
            double unused;
            if (r >= FEW_ROUNDS && beaten(race, e)) continue;
            if (run_many(race, e, bench_warm_runs(e->seconds), &unused, &error))
                return cli_fail_error(&error, CLI_COMPUTING);
            if (run_many(race, e, e->inner, &e->times[r], &error)) return cli_fail_error(&error, CLI_COMPUTING);
            e->rounds++;
        }
    for (int k = 0; k < count; k++) sum_up(&race->entrants[chosen[k]]);
    return CLI_DONE;
}

int bench_race_run(bench_race *race, double seconds) {
    int chosen[CONTENDERS + 2] = {0};
    int status = first_look(race);
    if (status) return status;
    const int count = choose_contenders(race, chosen);
    status = race_contenders(race, chosen, count, seconds);
    if (status) return status;
    race->best = fastest(race, 1);
    return CLI_DONE;
}
