// SPDX-License-Identifier: MIT
// Runs the rows of a schedule in order:
//     start(a) = max(end of the action before a on its rank, over what a needs: its end, + transfer if from another
//     rank)
// A rank goes on until what it needs has not ended, then waits in a list at that task; whoever ends the task wakes the
// list. Each action is looked at once, and once more for each time its rank had to wait for it: O(actions), whatever
// the number of ranks. When no rank can go on and rows are left, the rows wait for each other.
#include "pipe/pipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_send_or_receive(const dpcr_action *a) { return a->task >= DPCR_TASK_SEND_F; }

static const double unit_costs[3] = {1, 1, 1};

dpcr_status dpcri_costs_check(const dpcr_schedule_costs *given, int64_t stages, dpcr_schedule_costs *costs,
                              dpcr_error *error) {
    *costs = (dpcr_schedule_costs){0};
    if (given && given->size < offsetof(dpcr_schedule_costs, stage_forward))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule costs: size %zu, wanted sizeof(dpcr_schedule_costs)",
                          given->size);
    if (given) DPCRI_COPY_IN(*costs, given);
    costs->size = sizeof *costs;
    const double singles[] = {costs->forward,   costs->input,  costs->weight,  costs->hop,
                              costs->bandwidth, costs->update, costs->replicas};
    for (size_t i = 0; i < sizeof singles / sizeof singles[0]; i++)
        if (!(singles[i] >= 0 && singles[i] <= DPCRI_MOST_COST))
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule costs: got %g, wanted 0 to %g", singles[i],
                              DPCRI_MOST_COST);
    if (costs->bandwidth > 0 && costs->bandwidth < 1 / DPCRI_MOST_COST)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule costs: bandwidth %g, wanted 0 or at least %g",
                          costs->bandwidth, 1 / DPCRI_MOST_COST);
    const double *arrays[] = {costs->stage_forward,    costs->stage_input,     costs->stage_weight,
                              costs->activation_bytes, costs->parameter_bytes, costs->stage_update};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        for (int64_t s = 0; arrays[i] && s < stages; s++)
            if (!(arrays[i][s] >= 0 && arrays[i][s] <= DPCRI_MOST_COST))
                return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "schedule costs: got %g at stage %lld, wanted 0 to %g",
                                  arrays[i][s], (long long)s, DPCRI_MOST_COST);
    if (costs->forward == 0 && costs->input == 0 && costs->weight == 0) {
        costs->forward = unit_costs[0];
        costs->input = unit_costs[1];
        costs->weight = unit_costs[2];
    }
    if (costs->replicas < 1) costs->replicas = 1;
    return DPCR_OK;
}

// The task before it in its row is its own F.
static bool follows_forward(const dpcri_run *run, int64_t rank, const dpcr_action *a) {
    const dpcr_action *row = run->schedule->actions + run->schedule->first[rank];
    const int32_t stage = a->stage, microbatch = a->microbatch;
    while (a > row && a[-1].task >= DPCR_TASK_SEND_F) a--;
    return a > row && a[-1].task == DPCR_TASK_F && a[-1].stage == stage && a[-1].microbatch == microbatch;
}

double dpcri_duration(const dpcri_run *run, int64_t rank, const dpcr_action *a) {
    const dpcr_schedule_costs *c = &run->costs;
    const double input = dpcri_cost_of(c->stage_input, c->input, a->stage);
    const double weight = dpcri_cost_of(c->stage_weight, c->weight, a->stage);
    const double forward = dpcri_cost_of(c->stage_forward, c->forward, a->stage);
    const double again = c->recompute && a->part != 2 && !follows_forward(run, rank, a) ? forward : 0;
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: return forward;
        case DPCR_TASK_I: return again + (a->part ? 0.5 * input : input);
        case DPCR_TASK_W: return weight;
        case DPCR_TASK_B: return again + input + weight;
        default: return 0;
    }
}

// ---- memory ----

static void mark_forms(dpcri_run *run) {
    const dpcr_schedule *s = run->schedule;
    for (int64_t n = 0; n < s->first[s->ranks]; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->part) run->halved[a->stage] = 1;
        if (is_send_or_receive(a)) run->slots = DPCRI_SLOTS;
    }
}

dpcr_status dpcri_run_create(dpcr_context *context, const dpcr_schedule *schedule, const dpcr_schedule_costs *costs,
                             dpcri_run *run, dpcr_error *error) {
    *run = (dpcri_run){.schedule = schedule, .slots = DPCRI_SEND_F, .spread = schedule->semantics == DPCR_DELAYED};
    const dpcr_status status = dpcri_costs_check(costs, schedule->stages, &run->costs, error);
    if (status != DPCR_OK) return status;
    run->cells = schedule->stages * schedule->microbatches;
    run->halved = dpcri_alloc_zero(context, (size_t)schedule->stages);
    if (run->halved) mark_forms(run);
    bool overflow = false;
    const size_t bytes = dpcri_bytes(run->cells, run->slots, sizeof(double), &overflow);
    const size_t ranks = (size_t)schedule->ranks;
    if (!overflow) {
        run->ended = dpcri_alloc(context, bytes);
        run->where = dpcri_alloc(context, bytes / 2);
        run->waiting = dpcri_alloc(context, bytes / 2);
    }
    run->next = dpcri_alloc(context, ranks * sizeof *run->next);
    run->position = dpcri_alloc_zero(context, ranks * sizeof *run->position);
    run->rank_free = dpcri_alloc_zero(context, ranks * sizeof *run->rank_free);
    run->stage_done = dpcri_alloc_zero(context, (size_t)schedule->stages * sizeof *run->stage_done);
    if (run->halved && run->ended && run->where && run->waiting && run->next && run->position && run->rank_free &&
        run->stage_done)
        return DPCR_OK;
    dpcri_run_destroy(context, run);
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "schedule: no memory to run %lld actions",
                      (long long)schedule->first[schedule->ranks]);
}

void dpcri_run_destroy(dpcr_context *context, dpcri_run *run) {
    dpcri_free(context, run->halved);
    dpcri_free(context, run->ended);
    dpcri_free(context, run->where);
    dpcri_free(context, run->waiting);
    dpcri_free(context, run->next);
    dpcri_free(context, run->position);
    dpcri_free(context, run->rank_free);
    dpcri_free(context, run->stage_done);
    *run = (dpcri_run){0};
}

// ---- what an action needs ----

typedef struct needs {
    const dpcri_run *run;
    int32_t rank;
    double ready;     // when all that has ended is here
    int64_t missing;  // a task that has not ended, as slot * cells + cell; -1: none
} needs;

static double transfer(const dpcri_run *run, double bytes) {
    const dpcr_schedule_costs *c = &run->costs;
    return c->hop + (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
}

static void need(needs *n, dpcri_slot slot, int64_t stage, int64_t microbatch, double bytes) {
    const dpcri_run *run = n->run;
    const int64_t task = slot * run->cells + dpcri_cell(run->schedule, stage, microbatch);
    if (run->ended[task] < 0) {
        n->missing = task;
        return;
    }
    const double there = run->ended[task] + (run->where[task] != n->rank ? transfer(run, bytes) : 0);
    if (there > n->ready) n->ready = there;
}

static double activation_bytes(const dpcri_run *run, int64_t stage) {
    return dpcri_cost_of(run->costs.activation_bytes, 1, stage);
}

static void need_forward(needs *n, int64_t stage, int64_t i) {
    need(n, DPCRI_F, stage, i, activation_bytes(n->run, stage));
}

static void need_input(needs *n, int64_t stage, int64_t i, double bytes) {
    need(n, DPCRI_I, stage, i, bytes);
    if (n->run->halved[stage]) need(n, DPCRI_I2, stage, i, bytes / 2);
}

// The error at a stage: what the next stage's I sends back.
static void need_error(needs *n, int64_t stage, int64_t i) {
    if (dpcri_ends_chain(n->run->schedule, stage))
        need_forward(n, stage, i);
    else
        need_input(n, stage + 1, i, activation_bytes(n->run, stage));
}

// The weights that microbatch i reads. A stage's W run in the order of microbatches, so the last one of an update is
// the end of it.
static void need_weights(needs *n, int64_t stage, int64_t i) {
    const dpcr_schedule *s = n->run->schedule;
    const int64_t updates = i / s->accumulate - s->delay[stage];
    if (updates > 0)
        need(n, DPCRI_W, stage, updates * s->accumulate - 1, dpcri_cost_of(n->run->costs.parameter_bytes, 0, stage));
}

static void need_for_weight_gradient(needs *n, int64_t stage, int64_t i) {
    const dpcr_schedule *s = n->run->schedule;
    if (!n->run->spread) {
        need_input(n, stage, i, 0);
        return;
    }
    if (!dpcri_begins_chain(s, stage)) need_forward(n, stage - 1, i);
    need_error(n, stage, i);
}

static void need_all(needs *n, const dpcr_action *a) {
    const dpcr_schedule *s = n->run->schedule;
    const int64_t stage = a->stage, i = a->microbatch;
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F:
            need_weights(n, stage, i);
            if (!dpcri_begins_chain(s, stage)) need_forward(n, stage - 1, i);
            break;
        case DPCR_TASK_I:
        case DPCR_TASK_B:
            need(n, DPCRI_F, stage, i, 0);
            need_error(n, stage, i);
            break;
        case DPCR_TASK_W: need_for_weight_gradient(n, stage, i); break;
        case DPCR_TASK_SEND_F: need(n, DPCRI_F, stage, i, 0); break;
        case DPCR_TASK_SEND_B: need_input(n, stage, i, 0); break;
        case DPCR_TASK_RECV_F:
            if (!dpcri_begins_chain(s, stage)) need(n, DPCRI_SEND_F, stage - 1, i, activation_bytes(n->run, stage - 1));
            break;
        case DPCR_TASK_RECV_B:
            if (!dpcri_ends_chain(s, stage)) need(n, DPCRI_SEND_B, stage + 1, i, activation_bytes(n->run, stage));
            break;
        default: break;
    }
}

// ---- the run ----

static void finish_task(dpcri_run *run, int32_t rank, dpcri_slot slot, const dpcr_action *a, double end,
                        int32_t *wake) {
    const int64_t task = slot * run->cells + dpcri_cell(run->schedule, a->stage, a->microbatch);
    run->ended[task] = end;
    run->where[task] = rank;
    for (int32_t r = run->waiting[task]; r >= 0;) {
        const int32_t after = run->next[r];
        run->next[r] = *wake;
        *wake = r;
        r = after;
    }
    run->waiting[task] = -1;
}

// Asynchronous schedules update as soon as the last gradient of an update is there; the rank does it.
static double update_after(const dpcri_run *run, const dpcr_action *a) {
    const dpcr_schedule *s = run->schedule;
    const bool has_gradient = a->task == DPCR_TASK_W || a->task == DPCR_TASK_B;
    if (!has_gradient || s->semantics == DPCR_SYNCHRONOUS || (a->microbatch + 1) % s->accumulate != 0) return 0;
    const dpcr_schedule_costs *c = &run->costs;
    const double bytes = 2 * (c->replicas - 1) / c->replicas * dpcri_cost_of(c->parameter_bytes, 0, a->stage);
    return dpcri_cost_of(c->stage_update, c->update, a->stage) + (c->replicas > 1 ? transfer(run, bytes) : 0);
}

// The whole of a stage's I where others of it come in two halves is both of them.
static void finish_input(dpcri_run *run, int32_t rank, const dpcr_action *a, double end, int32_t *wake) {
    if (a->part != 2) finish_task(run, rank, DPCRI_I, a, end, wake);
    if (a->part == 2 || (!a->part && run->halved[a->stage])) finish_task(run, rank, DPCRI_I2, a, end, wake);
}

// The error goes on at the task's end, the weights after the update that follows it.
static void finish(dpcri_run *run, int32_t rank, const dpcr_action *a, double end, double updated, int32_t *wake) {
    switch ((dpcr_task)a->task) {
        case DPCR_TASK_F: finish_task(run, rank, DPCRI_F, a, end, wake); break;
        case DPCR_TASK_I: finish_input(run, rank, a, end, wake); break;
        case DPCR_TASK_B:
        case DPCR_TASK_W:
            if (a->task == DPCR_TASK_B) finish_input(run, rank, a, end, wake);
            finish_task(run, rank, DPCRI_W, a, updated, wake);
            if (run->stage_done[a->stage] < updated) run->stage_done[a->stage] = updated;
            break;
        case DPCR_TASK_SEND_F: finish_task(run, rank, DPCRI_SEND_F, a, end, wake); break;
        case DPCR_TASK_SEND_B: finish_task(run, rank, DPCRI_SEND_B, a, end, wake); break;
        default: break;
    }
}

// The pair at n as one block: both parts' needs at its start, both results at its end.
static bool step_atomic_pair(dpcri_run *run, int32_t rank, int64_t n, needs *needed, int32_t *wake, double *start,
                             double *end) {
    const dpcr_action *a = &run->schedule->actions[n];
    need_all(needed, a + 1);
    if (needed->missing >= 0) return false;
    const double ended = needed->ready + dpcri_duration(run, rank, a) + dpcri_duration(run, rank, a + 1),
                 updated = ended + update_after(run, a + 1);
    for (int k = 0; k < 2; k++) {
        if (start) start[n + k] = needed->ready;
        if (end) end[n + k] = ended;
        finish(run, rank, a + k, ended, updated, wake);
    }
    run->rank_free[rank] = updated;
    run->position[rank] += 2;
    return true;
}

// Runs rank's next action, or queues the rank where it has to wait.
static bool step(dpcri_run *run, int32_t rank, int32_t *wake, double *start, double *end) {
    const int64_t n = run->position[rank];
    const dpcr_action *a = &run->schedule->actions[n];
    run->looks++;
    needs needed = {.run = run, .rank = rank, .ready = run->rank_free[rank], .missing = -1};
    need_all(&needed, a);
    bool done = false;
    if (needed.missing < 0 && a->paired && run->costs.atomic_pairs) {
        done = step_atomic_pair(run, rank, n, &needed, wake, start, end);
    } else if (needed.missing < 0) {
        const double ended = needed.ready + dpcri_duration(run, rank, a), updated = ended + update_after(run, a);
        if (start) start[n] = needed.ready;
        if (end) end[n] = ended;
        finish(run, rank, a, ended, updated, wake);
        run->rank_free[rank] = updated;
        run->position[rank]++;
        done = true;
    }
    if (!done) {
        run->next[rank] = run->waiting[needed.missing];
        run->waiting[needed.missing] = rank;
    }
    return done;
}

// A synchronous iteration ends with the update of each of the rank's stages, when its gradient is summed over replicas.
static void update_row(dpcri_run *run, int64_t rank) {
    const dpcr_schedule *s = run->schedule;
    const dpcr_schedule_costs *c = &run->costs;
    if (s->semantics != DPCR_SYNCHRONOUS || (c->update == 0 && !c->stage_update && c->replicas <= 1)) return;
    double *now = &run->rank_free[rank];
    for (int64_t n = s->first[rank]; n < s->first[rank + 1]; n++) {
        const dpcr_action *a = &s->actions[n];
        if (a->task != DPCR_TASK_F || a->microbatch != 0) continue;
        const double bytes = 2 * (c->replicas - 1) / c->replicas * dpcri_cost_of(c->parameter_bytes, 0, a->stage);
        const double summed = run->stage_done[a->stage] + (c->replicas > 1 ? transfer(run, bytes) : 0);
        *now = (summed > *now ? summed : *now) + dpcri_cost_of(c->stage_update, c->update, a->stage);
    }
}

bool dpcri_run_once(dpcri_run *run, double *start, double *end) {
    const dpcr_schedule *s = run->schedule;
    const int64_t tasks = run->cells * run->slots;
    for (int64_t t = 0; t < tasks; t++) run->ended[t] = -1, run->waiting[t] = -1;
    for (int64_t k = 0; k < s->stages; k++) run->stage_done[k] = 0;
    int32_t wake = -1;
    for (int64_t r = s->ranks - 1; r >= 0; r--) {
        run->position[r] = s->first[r];
        run->next[r] = wake;
        wake = (int32_t)r;
    }
    while (wake >= 0) {
        const int32_t rank = wake;
        wake = run->next[rank];
        while (run->position[rank] < s->first[rank + 1] && step(run, rank, &wake, start, end)) continue;
        if (run->position[rank] == s->first[rank + 1]) update_row(run, rank);
    }
    for (int64_t r = 0; r < s->ranks; r++)
        if (run->position[r] < s->first[r + 1]) return false;
    return true;
}

dpcr_status dpcri_run_stuck(const dpcri_run *run, dpcr_error *error) {
    static const char *const slots[DPCRI_SLOTS] = {"F", "I", "W", "I (second half)", "SEND_F", "SEND_B"};
    const dpcr_schedule *s = run->schedule;
    for (int64_t r = 0; r < s->ranks; r++) {
        const int64_t n = run->position[r];
        if (n == s->first[r + 1]) continue;
        needs needed = {.run = run, .rank = (int32_t)r, .missing = -1};
        char text[64];
        need_all(&needed, &s->actions[n]);
        if (needed.missing < 0 && s->actions[n].paired) need_all(&needed, &s->actions[n + 1]);
        if (needed.missing < 0) continue;
        const int64_t cell = needed.missing % run->cells;
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "the rows wait for each other: rank %lld at %s (cell %lld) waits for %s of stage %lld, "
                          "microbatch %lld",
                          (long long)r, dpcr_action_text(&s->actions[n], text, sizeof text),
                          (long long)(n - s->first[r] + 1), slots[needed.missing / run->cells],
                          (long long)(cell / s->microbatches), (long long)(cell % s->microbatches));
    }
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "the rows wait for each other");
}
