// SPDX-License-Identifier: MIT
// Figures of a schedule: times from in-order runs (run.c), memory from the order of the rows, bytes from where tasks
// lie.
//   idle          makespan of one isolated iteration minus the busiest rank's work
//   idle_in_span  longest last end - first start of a rank, updates and all-reduce included, minus the same
//   steady_state  synchronous: iterations follow each other without a barrier, each rank going on as soon as its own
//                 weights are updated; the time of one more, once it repeats. Asynchronous: the rate of the
//                 third quarter of the microbatches, between filling and draining, drawn out to whole updates, times
//                 their number: an estimate, taken within the busiest rank's work and (of whole updates) the makespan,
//                 as few microbatches have no even middle
// Where the tasks of a stage lie on several ranks (LayerPipe), each of these holds a copy of what F keeps, from F's end
// to its own last task of the microbatch, and the versions of the weights that it has yet to read and newer ones. What
// is on its way counts as the receiver's: nobody else has it.
// docs/math/schedules.md derives what to expect.
#include "pipe/pipe.h"

#include <math.h>

static double max_of(const double *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

// ---- steady state ----

enum { MOST_ITERATIONS = 64, MOST_CYCLE = 4 };

// By how much all ranks that have something to do moved on since `then`; -1: not all by the same.
static double step_of(const dpcri_run *run, const double *then, double tolerance) {
    const dpcr_schedule *s = run->schedule;
    double step = -1;
    for (int64_t r = 0; r < s->ranks; r++) {
        const double moved = run->rank_free[r] - then[r];
        if (s->first[r] == s->first[r + 1]) continue;
        if (step < 0) step = moved;
        if (fabs(moved - step) > tolerance) return -1;
    }
    return step;
}

// In-order rows are a max-plus linear map from the ranks' free times to the next ones', so the steps become periodic;
// a period of one iteration is the rule. `free` keeps the times of the last MOST_CYCLE iterations, [MOST_CYCLE][ranks].
static double repeat(dpcri_run *run, double *free) {
    const int64_t p = run->schedule->ranks;
    double before = 0;
    for (int k = 0; k < MOST_ITERATIONS; k++) {
        if (!dpcri_run_once(run, NULL, NULL)) return NAN;
        const double now = max_of(run->rank_free, p);
        for (int cycle = 1; cycle <= MOST_CYCLE && cycle <= k; cycle++) {
            const double step = step_of(run, free + (k - cycle) % MOST_CYCLE * p, 1e-12 * now);
            if (step >= 0) return step / cycle;
        }
        for (int64_t r = 0; r < p; r++) free[k % MOST_CYCLE * p + r] = run->rank_free[r];
        if (k == MOST_ITERATIONS / 2 - 1) before = now;
    }
    return (max_of(run->rank_free, p) - before) / (MOST_ITERATIONS / 2);
}

// `ended` as the first run left it. Too few microbatches have no middle: NaN.
static double rate_of_third_quarter(const dpcri_run *run) {
    const dpcr_schedule *s = run->schedule;
    const int64_t m = s->microbatches, a = s->accumulate < m ? s->accumulate : m;
    int64_t from = m / 2 - 1, to = m - 1 - m / 4;
    if (m < 4) return NAN;
    const int64_t whole = (to - from + a - 1) / a * a;  // microbatches of a whole number of updates
    if (whole < m) {
        if (to < whole) to = whole;
        from = to - whole;
    }
    double first = 0, last = 0;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        const double *ended = run->ended + DPCRI_W * run->cells + stage * m;
        first = ended[from] > first ? ended[from] : first;
        last = ended[to] > last ? ended[to] : last;
    }
    return (last - first) / (double)(to - from) * (double)m;
}

// ---- memory ----

// Rows tell what a rank holds, unless a stage's tasks are spread; then the times do, in hold_by_time. `half` [cells],
// zero: a half of I was there.
static void hold_by_row(const dpcr_schedule *s, const dpcr_schedule_costs *c, uint8_t *half, dpcr_simulation *x) {
    for (int64_t r = 0; r < s->ranks; r++) {
        int64_t activations = 0, operands = 0;
        double memory = 0, bytes = 0;
        for (int64_t n = s->first[r]; n < s->first[r + 1]; n++) {
            const dpcr_action *a = &s->actions[n];
            const double size = dpcri_cost_of(c->activation_bytes, 1, a->stage);
            switch ((dpcr_task)a->task) {
                case DPCR_TASK_F: activations++, operands++, memory += 1, bytes += size; break;
                case DPCR_TASK_I:
                    if (a->part && !half[dpcri_cell(s, a->stage, a->microbatch)])
                        half[dpcri_cell(s, a->stage, a->microbatch)] = 1;
                    else
                        activations--;
                    memory -= a->part ? 0.25 : 0.5;
                    break;
                case DPCR_TASK_W: operands--, memory -= 0.5, bytes -= size; break;
                case DPCR_TASK_B: activations--, operands--, memory -= 1, bytes -= size; break;
                default: break;
            }
            if (activations > x->peak_activations[r]) x->peak_activations[r] = activations;
            if (operands > x->peak_operands[r]) x->peak_operands[r] = operands;
            if (memory > x->peak_memory[r]) x->peak_memory[r] = memory;
            if (bytes > x->peak_bytes[r]) x->peak_bytes[r] = bytes;
        }
    }
}

// Most microbatches of a stage between their `begin` and their `end`; both go up with the microbatch.
static int64_t most_in_flight(const double *begin, const double *end, int64_t m) {
    int64_t most = 0, done = 0;
    for (int64_t i = 0; i < m; i++) {
        while (done < i && end[done] <= begin[i]) done++;
        if (i + 1 - done > most) most = i + 1 - done;
    }
    return most;
}

enum { PLACES = 4 };
static const dpcri_slot places[PLACES] = {DPCRI_F, DPCRI_I, DPCRI_I2, DPCRI_W};

static int32_t rank_of(const dpcri_run *run, dpcri_slot slot, int64_t stage) {
    return run->where[slot * run->cells + stage * run->schedule->microbatches];
}

static bool has_place(const dpcri_run *run, int place, int64_t stage) {
    return places[place] != DPCRI_I2 || run->halved[stage];
}

// The ranks that run a stage, each once, its F's first. Returns how many.
static int ranks_of(const dpcri_run *run, int64_t stage, int32_t ranks[PLACES]) {
    int count = 0;
    for (int k = 0; k < PLACES; k++) {
        if (!has_place(run, k, stage)) continue;
        const int32_t r = rank_of(run, places[k], stage);
        bool known = false;
        for (int j = 0; j < count; j++) known = known || ranks[j] == r;
        if (!known) ranks[count++] = r;
    }
    return count;
}

// When a rank is done with a microbatch of a stage, all its tasks of it or all but W; -1: it has none of them.
static double end_on(const dpcri_run *run, int32_t rank, int64_t stage, int64_t i, bool with_w) {
    const int64_t cell = dpcri_cell(run->schedule, stage, i);
    double end = -1;
    for (int k = 0; k < PLACES - !with_w; k++) {
        const int64_t task = places[k] * run->cells + cell;
        if (has_place(run, k, stage) && run->where[task] == rank && run->ended[task] > end) end = run->ended[task];
    }
    return end;
}

// `end` [microbatches] is scratch.
static int64_t most_held(const dpcri_run *run, const double *begin, int32_t rank, int64_t stage, bool with_w,
                         double *end) {
    const int64_t m = run->schedule->microbatches;
    for (int64_t i = 0; i < m; i++) end[i] = end_on(run, rank, stage, i, with_w);
    return end[0] < 0 ? 0 : most_in_flight(begin, end, m);
}

static void hold_by_time(const dpcri_run *run, const double *f_start, double *end, dpcr_simulation *x) {
    const dpcr_schedule *s = run->schedule;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        int32_t ranks[PLACES];
        const int count = ranks_of(run, stage, ranks);
        const int64_t first = stage * s->microbatches;
        for (int k = 0; k < count; k++) {
            const int32_t r = ranks[k];
            const double *begin = k == 0 ? f_start + first : run->ended + DPCRI_F * run->cells + first;
            const int64_t operands = most_held(run, begin, r, stage, true, end);
            x->peak_activations[r] += most_held(run, begin, r, stage, false, end);
            x->peak_operands[r] += operands;
            x->peak_memory[r] += (double)operands;
            x->peak_bytes[r] += (double)operands * dpcri_cost_of(run->costs.activation_bytes, 1, stage);
        }
    }
}

// Versions of a stage that are alive on a rank as it ends a microbatch, which then may free one: from the one that the
// microbatch reads to the newest. A synchronous stage has one.
static int64_t most_versions(const dpcri_run *run, int32_t rank, int64_t stage) {
    const dpcr_schedule *s = run->schedule;
    const int64_t m = s->microbatches;
    const double *updated = run->ended + DPCRI_W * run->cells + stage * m;
    int64_t most = 1, done = 0;
    for (int64_t i = 0; i < m; i++) {
        const double end = end_on(run, rank, stage, i, true);
        while (done < m && updated[done] < end) done++;
        const int64_t newest = done / s->accumulate, read = i / s->accumulate - s->delay[stage];
        const int64_t alive = newest - (read > 0 ? read : 0) + 1;
        if (alive > most) most = alive;
    }
    return most;
}

static void fill_versions(const dpcri_run *run, dpcr_simulation *x) {
    const dpcr_schedule *s = run->schedule;
    const bool late = s->semantics != DPCR_SYNCHRONOUS;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        int32_t ranks[PLACES];
        const int count = ranks_of(run, stage, ranks);
        x->staleness[stage] = late ? s->delay[stage] : 0;
        for (int k = 0; k < count; k++) {
            const int32_t r = ranks[k];
            const int64_t versions = late ? most_versions(run, r, stage) : 1;
            if (versions > x->weight_versions[r]) x->weight_versions[r] = versions;
            x->peak_bytes[r] += (double)versions * dpcri_cost_of(run->costs.parameter_bytes, 0, stage);
        }
    }
}

// ---- what moves ----

// One result to as many other ranks as want it, each once.
static void move(dpcr_simulation *x, int32_t from, const int32_t *to, int count, double bytes, int64_t times,
                 double *sum) {
    for (int k = 0; k < count; k++) {
        bool sent = to[k] == from;
        for (int j = 0; j < k; j++) sent = sent || to[j] == to[k];
        if (sent) continue;
        x->messages += times;
        *sum += bytes * (double)times;
    }
}

static void fill_messages(const dpcri_run *run, dpcr_simulation *x) {
    const dpcr_schedule *s = run->schedule;
    const dpcr_schedule_costs *c = &run->costs;
    const int64_t updates = s->semantics == DPCR_SYNCHRONOUS ? 1 : s->microbatches / s->accumulate;
    for (int64_t stage = 0; stage < s->stages; stage++) {
        const double size = dpcri_cost_of(c->activation_bytes, 1, stage);
        const double weights = dpcri_cost_of(c->parameter_bytes, 0, stage);
        const int32_t f = rank_of(run, DPCRI_F, stage), i = rank_of(run, DPCRI_I, stage);
        const int32_t i2 = run->halved[stage] ? rank_of(run, DPCRI_I2, stage) : i, w = rank_of(run, DPCRI_W, stage);
        if (!dpcri_ends_chain(s, stage)) {
            const int64_t after = stage + 1;
            const int32_t to[] = {rank_of(run, DPCRI_F, after), rank_of(run, DPCRI_W, after)}, back[] = {i, i2, w};
            const bool halved = run->halved[after];
            move(x, f, to, 2, size, s->microbatches, &x->bytes);
            move(x, rank_of(run, DPCRI_I, after), back, 3, halved ? size / 2 : size, s->microbatches, &x->bytes);
            if (halved) move(x, rank_of(run, DPCRI_I2, after), back, 3, size / 2, s->microbatches, &x->bytes);
        }
        const int32_t readers[] = {f, i, i2};
        if (weights > 0) move(x, w, readers, 3, weights, updates, &x->weight_bytes);
        x->weight_bytes += 2 * (c->replicas - 1) / c->replicas * weights * (double)updates;
    }
}

// ---- all ----

static bool updates_after(const dpcr_schedule *s, const dpcr_action *a) {
    if (s->semantics == DPCR_SYNCHRONOUS) return a->task == DPCR_TASK_F && a->microbatch == 0;  // once a stage
    return (a->task == DPCR_TASK_W || a->task == DPCR_TASK_B) && (a->microbatch + 1) % s->accumulate == 0;
}

static void fill_times(const dpcri_run *run, dpcr_simulation *x) {
    const dpcr_schedule *s = run->schedule;
    x->makespan = max_of(run->rank_free, s->ranks);
    for (int64_t r = 0; r < s->ranks; r++) {
        const int64_t begin = s->first[r], end = s->first[r + 1];
        if (begin == end) continue;
        for (int64_t n = begin; n < end; n++) {
            x->rank_work[r] += dpcri_duration(run, r, &s->actions[n]);
            if (updates_after(s, &s->actions[n]))
                x->rank_work[r] += dpcri_cost_of(run->costs.stage_update, run->costs.update, s->actions[n].stage);
        }
        const double span = run->rank_free[r] - x->start[begin];
        if (span > x->span) x->span = span;
    }
    x->work = max_of(x->rank_work, s->ranks);
    x->idle = x->makespan - x->work;
    x->idle_in_span = x->span - x->work;
}

static dpcr_status allocate(dpcr_context *context, dpcr_simulation *x, dpcr_error *error) {
    const size_t p = (size_t)x->ranks, n = (size_t)x->actions;
    x->rank_work = dpcri_alloc_zero(context, p * sizeof(double));
    x->peak_activations = dpcri_alloc_zero(context, p * sizeof(int64_t));
    x->peak_operands = dpcri_alloc_zero(context, p * sizeof(int64_t));
    x->peak_memory = dpcri_alloc_zero(context, p * sizeof(double));
    x->peak_bytes = dpcri_alloc_zero(context, p * sizeof(double));
    x->weight_versions = dpcri_alloc_zero(context, p * sizeof(int64_t));
    x->staleness = dpcri_alloc_zero(context, (size_t)x->stages * sizeof(int64_t));
    x->start = dpcri_alloc_zero(context, n * sizeof(double));
    x->end = dpcri_alloc_zero(context, n * sizeof(double));
    if (x->rank_work && x->peak_activations && x->peak_operands && x->peak_memory && x->peak_bytes &&
        x->weight_versions && x->staleness && x->start && x->end)
        return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory to simulate %zu actions", n);
}

void dpcr_simulation_free(dpcr_context *context, dpcr_simulation *x) {
    if (!x) return;
    dpcri_free(context, x->rank_work);
    dpcri_free(context, x->peak_activations);
    dpcri_free(context, x->peak_operands);
    dpcri_free(context, x->peak_memory);
    dpcri_free(context, x->peak_bytes);
    dpcri_free(context, x->weight_versions);
    dpcri_free(context, x->staleness);
    dpcri_free(context, x->start);
    dpcri_free(context, x->end);
    *x = (dpcr_simulation){0};
}

// The figures below take each kind of a stage's tasks for one rank's; and who recomputes has run F.
static dpcr_status check_places(const dpcri_run *run, dpcr_error *error) {
    static const char *const names[PLACES] = {"F", "I", "I", "W"};
    const dpcr_schedule *s = run->schedule;
    for (int64_t stage = 0; run->spread && stage < s->stages; stage++) {
        const int32_t *where = run->where + stage * s->microbatches;
        int32_t ranks[PLACES];
        for (int k = 0; k < PLACES; k++)
            for (int64_t i = 1; has_place(run, k, stage) && i < s->microbatches; i++)
                if (where[places[k] * run->cells + i] != where[places[k] * run->cells])
                    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                                      "simulate: stage %lld has the %s of its microbatches on several ranks",
                                      (long long)stage, names[k]);
        if (run->costs.recompute && ranks_of(run, stage, ranks) > 1)
            return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                              "simulate: the tasks of stage %lld lie on several ranks; recomputing wants them on one",
                              (long long)stage);
    }
    return DPCR_OK;
}

// `f_start`: [stages][microbatches], and room for a stage more; `half`: [stages][microbatches], zero.
static void fill(dpcri_run *run, double *f_start, uint8_t *half, double *free, dpcr_simulation *x) {
    const dpcr_schedule *s = run->schedule;
    for (int64_t n = 0; n < x->actions; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->task == DPCR_TASK_F) f_start[dpcri_cell(s, a->stage, a->microbatch)] = x->start[n];
    }
    fill_times(run, x);
    run->spread ? hold_by_time(run, f_start, f_start + run->cells, x) : hold_by_row(s, &run->costs, half, x);
    fill_versions(run, x);
    fill_messages(run, x);
    if (s->semantics == DPCR_SYNCHRONOUS) {
        for (int64_t r = 0; r < s->ranks; r++) free[r] = run->rank_free[r];
        x->steady_state = repeat(run, free);
    } else {
        x->steady_state = rate_of_third_quarter(run);
        // NaN stays. What is left of an update is a share of one in the rate, and none in the makespan.
        if (x->steady_state > x->makespan && s->microbatches % s->accumulate == 0) x->steady_state = x->makespan;
        if (x->steady_state < x->work) x->steady_state = x->work;
    }
    double work = 0;
    for (int64_t r = 0; r < s->ranks; r++) work += x->rank_work[r];
    x->utilisation = work / (double)s->ranks / x->steady_state;
}

dpcr_status dpcr_schedule_simulate(dpcr_context *context, const dpcr_schedule *schedule,
                                   const dpcr_schedule_costs *costs, dpcr_simulation *simulation, dpcr_error *error) {
    if (simulation) *simulation = (dpcr_simulation){0};
    if (!context || !schedule || !simulation)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "simulate: context, schedule or simulation is NULL");
    dpcr_simulation *x = simulation;
    dpcri_run run = {0};
    double *f_start = NULL, *free = NULL;
    uint8_t *half = NULL;
    dpcr_status status;
    DPCR_TRY(dpcr_schedule_validate(context, schedule, 0, error));
    *x = (dpcr_simulation){
        .ranks = schedule->ranks, .stages = schedule->stages, .actions = schedule->first[schedule->ranks]};
    DPCR_TRY(allocate(context, x, error));
    DPCR_TRY(dpcri_run_create(context, schedule, costs, &run, error));
    f_start = dpcri_alloc(context, (size_t)(run.cells + schedule->microbatches) * sizeof *f_start);
    half = dpcri_alloc_zero(context, (size_t)run.cells);
    free = dpcri_alloc_zero(context, (size_t)schedule->ranks * MOST_CYCLE * sizeof *free);
    if (!f_start || !half || !free)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory to simulate it"));
    if (!dpcri_run_once(&run, x->start, x->end)) DPCR_TRY(dpcri_run_stuck(&run, error));
    DPCR_TRY(check_places(&run, error));
    fill(&run, f_start, half, free, x);
done:
    dpcri_run_destroy(context, &run);
    dpcri_free(context, f_start);
    dpcri_free(context, half);
    dpcri_free(context, free);
    if (status != DPCR_OK) dpcr_simulation_free(context, x);
    return status;
}
