// SPDX-License-Identifier: MIT
// LayerPipe: F, I and W of every stage (a layer) as tasks of their own on any ranks, I in two halves where asked.
// Delays on the loops through the weights make any placement legal; a period is then the largest load of a rank.
//   placement  longest task first, each to the least loaded rank (of equals, to one that has the same stage already),
//   then
//              moves and swaps while the largest load shrinks; or contiguous stages where those are no slower
//   order      modulo schedule: task T of microbatch i starts at s(T) + i period; tasks are placed in the order of the
//              chain, on each rank one behind the other round the period, so they always fit
//   delay      of stage s: the updates missing when its F starts, ceil((s(W) + w - s(F)) / period) - 1
// Where tasks that take no time leave rows that wait for each other, each takes an instant: times are (time, instants),
// compared in this order, and a period has as many instants as there are such tasks, so that rows run to their end.
// The paper counts a delay of twice the stages after a layer, its clock being the period of one task a processor. First
// stages need no I: give it time 0. Source: LayerPipe (arXiv 2108.06629), LayerPipe2 (arXiv 2512.08160), both without
// code; the model is ours (docs/math/schedules.md).
#include "pipe/pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 1 << 13, MOST_PAIRS = 200000000, MOST_TURNS = 1 << 20 };

static const double SAME = 1e-9;  // times so little of a period apart are one time

typedef struct moment {
    double time;
    int64_t instants;
} moment;

typedef struct job {
    int64_t stage;
    dpcr_task task;
    int part;
    double cost;
    int64_t rank;
    moment slot;   // where it begins in the period, at least its rank's base
    int64_t turn;  // s(T) = slot + turn * period
    int64_t back;  // of an F: where its stage's I (or halves) and W stand in jobs
} job;

typedef struct packing {
    dpcri_maker *maker;
    dpcr_schedule_costs costs;
    int64_t stages, count;
    job *jobs;       // [count] in the order of the chain: F up, then I (its halves) and W down
    int64_t *order;  // [count] longest first
    double *load;    // [p]
    moment *next;    // [p] the rank's next slot; time negative: it has none yet
    double period;
    bool strict;       // tasks of no time take an instant
    int64_t instants;  // of a period
} packing;

static double cost_of(const packing *k, dpcr_task task, int64_t stage) {
    const dpcr_schedule_costs *c = &k->costs;
    if (task == DPCR_TASK_F) return dpcri_cost_of(c->stage_forward, c->forward, stage);
    if (task == DPCR_TASK_I) return dpcri_cost_of(c->stage_input, c->input, stage);
    return dpcri_cost_of(c->stage_weight, c->weight, stage);
}

static void add(packing *k, dpcr_task task, int64_t stage, int part) {
    k->jobs[k->count++] = (job){
        .stage = stage, .task = task, .part = part, .rank = -1, .cost = cost_of(k, task, stage) * (part ? 0.5 : 1)};
}

static void list_jobs(packing *k) {
    for (int64_t s = 0; s < k->stages; s++) add(k, DPCR_TASK_F, s, 0);
    for (int64_t s = k->stages - 1; s >= 0; s--) {
        k->jobs[s].back = k->count;
        if (k->maker->options->split_input && cost_of(k, DPCR_TASK_I, s) > 0) {
            add(k, DPCR_TASK_I, s, 1);
            add(k, DPCR_TASK_I, s, 2);
        } else {
            add(k, DPCR_TASK_I, s, 0);
        }
        add(k, DPCR_TASK_W, s, 0);
    }
}

// ---- placement ----

static double largest(const packing *k) {
    double most = 0;
    for (int64_t r = 0; r < k->maker->p; r++) most = k->load[r] > most ? k->load[r] : most;
    return most;
}

static void put(packing *k, job *j, int64_t rank) {
    if (j->rank >= 0) k->load[j->rank] -= j->cost;
    j->rank = rank;
    k->load[rank] += j->cost;
}

static bool holds_stage(const packing *k, int64_t rank, int64_t stage) {
    if (k->jobs[stage].rank == rank) return true;
    for (int64_t n = k->jobs[stage].back; n < k->count && k->jobs[n].stage == stage; n++)
        if (k->jobs[n].rank == rank) return true;
    return false;
}

// Joined halves go as one.
static double weight_of(const job *j, bool joined) { return joined && j->part ? 2 * j->cost : j->cost; }

static void sort_by_cost(packing *k, bool joined) {
    for (int64_t n = 0; n < k->count; n++) {
        const double cost = weight_of(&k->jobs[n], joined);
        int64_t at = n;
        while (at > 0 && weight_of(&k->jobs[k->order[at - 1]], joined) < cost) k->order[at] = k->order[at - 1], at--;
        k->order[at] = n;
    }
}

static int64_t least_loaded(const packing *k, int64_t stage) {
    int64_t to = 0;
    for (int64_t r = 1; r < k->maker->p; r++)
        if (k->load[r] < k->load[to] ||
            (k->load[r] == k->load[to] && !holds_stage(k, to, stage) && holds_stage(k, r, stage)))
            to = r;
    return to;
}

static void pack_longest_first(packing *k, bool joined) {
    for (int64_t r = 0; r < k->maker->p; r++) k->load[r] = 0;
    for (int64_t n = 0; n < k->count; n++) k->jobs[n].rank = -1;
    sort_by_cost(k, joined);
    for (int64_t n = 0; n < k->count; n++) {
        job *j = &k->jobs[k->order[n]];
        if (j->cost == 0) break;
        if (j->rank >= 0) continue;
        const int64_t to = least_loaded(k, j->stage);
        put(k, j, to);
        if (joined && j->part) put(k, j->part == 1 ? j + 1 : j - 1, to);
    }
    for (int64_t n = 0; n < k->count; n++) {  // what takes no time goes where its F is
        const int64_t f = k->jobs[k->jobs[n].stage].rank;
        if (k->jobs[n].rank < 0) put(k, &k->jobs[n], f < 0 ? 0 : f);
    }
}

// A move or swap that takes work off the fullest rank and leaves the other one below it.
static bool relieve(packing *k) {
    int64_t full = 0;
    for (int64_t r = 1; r < k->maker->p; r++)
        if (k->load[r] > k->load[full]) full = r;
    for (int64_t n = 0; n < k->count; n++) {
        job *j = &k->jobs[n];
        if (j->rank != full || j->cost == 0) continue;
        for (int64_t r = 0; r < k->maker->p; r++) {
            if (r == full || k->load[r] + j->cost >= k->load[full] * (1 - 1e-12)) continue;
            put(k, j, r);
            return true;
        }
        for (int64_t o = 0; o < k->count; o++) {
            job *other = &k->jobs[o];
            const double gain = j->cost - other->cost;
            if (other->rank == full || gain <= 1e-12 * j->cost ||
                k->load[other->rank] + gain >= k->load[full] * (1 - 1e-12))
                continue;
            const int64_t r = other->rank;
            put(k, other, full);
            put(k, j, r);
            return true;
        }
    }
    return false;
}

// Whole stages side by side, no load above `most`; false: they do not fit.
static bool pack_contiguous(packing *k, double most, bool assign) {
    int64_t rank = 0;
    double load = 0;
    for (int64_t s = 0; s < k->stages; s++) {
        const double c = cost_of(k, DPCR_TASK_F, s) + cost_of(k, DPCR_TASK_I, s) + cost_of(k, DPCR_TASK_W, s);
        if (load + c > most * (1 + 1e-12) && load > 0) {
            rank++;
            load = 0;
        }
        load += c;
        if (rank >= k->maker->p || load > most * (1 + 1e-12)) return false;
        for (int64_t n = 0; assign && n < k->count; n++)
            if (k->jobs[n].stage == s) put(k, &k->jobs[n], rank);
    }
    return true;
}

// A search for a move looks at every pair of a job of the fullest rank and another one.
static void pack(packing *k, bool joined) {
    const int64_t pairs = k->count * (k->count / k->maker->p + 1), affordable = 1 + MOST_PAIRS / pairs;
    const int64_t most = affordable < 64 * k->count ? affordable : 64 * k->count;
    pack_longest_first(k, joined);
    for (int64_t n = 0; n < most && relieve(k); n++) continue;
    k->period = largest(k);
}

// Of equal periods the one that moves least: contiguous stages, then whole I.
static void place(packing *k) {
    pack(k, false);
    if (k->maker->options->split_input) {
        const double apart = k->period;
        pack(k, true);
        if (apart < k->period * (1 - 1e-12)) pack(k, false);
    }
    if (pack_contiguous(k, k->period, false)) {
        pack_contiguous(k, k->period, true);
        k->period = largest(k);
    }
}

// ---- order ----

static bool takes_no_time(const packing *k, const job *j) { return j->cost < 10 * SAME * k->period; }

static bool is_instant(const packing *k, const job *j) { return k->strict && takes_no_time(k, j); }

static moment begins(const packing *k, const job *j) {
    return (moment){j->slot.time + (double)j->turn * k->period, j->slot.instants + j->turn * k->instants};
}

static bool is_before(const packing *k, moment a, moment b) {
    const double apart = a.time - b.time;
    return fabs(apart) > SAME * k->period ? apart < 0 : a.instants < b.instants;
}

// Least n with `from` + n periods not before `to`.
static int64_t periods(const packing *k, moment from, moment to) {
    const double exact = (to.time - from.time) / k->period, n = round(exact);
    if (fabs(exact - n) > SAME) return (int64_t)ceil(exact);
    return (int64_t)n + (from.instants + (int64_t)n * k->instants < to.instants);
}

static moment arrives(const packing *k, const job *from, const job *to, double bytes) {
    const dpcr_schedule_costs *c = &k->costs;
    const double way = from->rank == to->rank ? 0 : c->hop + (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
    const moment start = begins(k, from);
    return (moment){start.time + from->cost + way, start.instants + is_instant(k, from)};
}

static double bytes_of(const packing *k, int64_t stage) { return dpcri_cost_of(k->costs.activation_bytes, 1, stage); }

// What a job needs stands before it in jobs.
static moment ready(const packing *k, int64_t n) {
    const job *j = &k->jobs[n];
    moment when = {0, 0};
    for (int64_t o = 0; o < n; o++) {
        const job *from = &k->jobs[o];
        const bool error = from->task == DPCR_TASK_I && from->stage == j->stage + 1;
        const bool loss = from->task == DPCR_TASK_F && from->stage == j->stage && j->stage == k->stages - 1;
        const bool input = from->task == DPCR_TASK_F && from->stage == j->stage - 1;
        const bool own = from->task == DPCR_TASK_F && from->stage == j->stage && j->task == DPCR_TASK_I;
        const bool needed = j->task == DPCR_TASK_F   ? input
                            : j->task == DPCR_TASK_I ? error || loss || own
                                                     : error || loss || input;
        if (!needed) continue;
        const moment there = arrives(k, from, j, bytes_of(k, error ? j->stage : from->stage));
        if (is_before(k, when, there)) when = there;
    }
    return when;
}

static dpcr_status too_far(const packing *k, double time) {
    return dpcri_fail(k->maker->error, DPCR_ERROR_UNSUPPORTED,
                      "layerpipe: messages and updates of %g are too long for a period of %g; it plans %d periods",
                      time, k->period, (int)MOST_TURNS);
}

static dpcr_status order_jobs(packing *k) {
    for (int64_t r = 0; r < k->maker->p; r++) k->next[r] = (moment){-1, 0};
    k->instants = 0;
    for (int64_t n = 0; n < k->count; n++) k->instants += is_instant(k, &k->jobs[n]);
    for (int64_t n = 0; n < k->count; n++) {
        job *j = &k->jobs[n];
        const moment when = ready(k, n);
        moment *next = &k->next[j->rank];
        if (when.time > MOST_TURNS * k->period) return too_far(k, when.time);
        if (next->time < 0) {
            next->time = fmod(when.time, k->period);
            next->instants = when.instants - (int64_t)round((when.time - next->time) / k->period) * k->instants;
        }
        j->slot = *next;
        const int64_t turn = periods(k, j->slot, when);
        j->turn = turn > 0 ? turn : 0;
        next->time += j->cost;
        next->instants += is_instant(k, j);
    }
    return DPCR_OK;
}

static dpcr_status fill_delays(packing *k) {
    for (int64_t s = 0; s < k->stages; s++) {
        const job *f = &k->jobs[s], *w = NULL;
        for (int64_t n = k->stages; n < k->count; n++)
            if (k->jobs[n].stage == s && k->jobs[n].task == DPCR_TASK_W) w = &k->jobs[n];
        moment updated = arrives(k, w, f, dpcri_cost_of(k->costs.parameter_bytes, 0, s));
        updated.time += dpcri_cost_of(k->costs.stage_update, k->costs.update, s);
        if (updated.time > 2 * MOST_TURNS * k->period) return too_far(k, updated.time);
        const int64_t delay = periods(k, begins(k, f), updated) - 1;
        k->maker->schedule->delay[s] = delay > 0 ? delay : 0;
    }
    return DPCR_OK;
}

// Slots of a rank go up in the order of jobs, so a turn of the period is one pass over its own. Where messages take
// long, there are turns in which it has nothing to do.
static void write_rows(packing *k) {
    dpcri_maker *maker = k->maker;
    int64_t turns = 0;
    for (int64_t n = 0; n < k->count; n++) turns = k->jobs[n].turn > turns ? k->jobs[n].turn : turns;
    for (int64_t r = 0; r < maker->p; r++) {
        int64_t own = 0;
        for (int64_t n = 0; n < k->count; n++)
            if (k->jobs[n].rank == r) k->order[own++] = n;
        for (int64_t turn = 0, next; turn < turns + maker->m; turn = next) {
            next = turns + maker->m;
            for (int64_t n = 0; n < own; n++) {
                const job *j = &k->jobs[k->order[n]];
                const int64_t i = turn - j->turn;
                const int64_t again = i < 0 ? j->turn : turn + 1;  // when the job's next microbatch has its turn
                if (i < maker->m - 1 && again < next) next = again;
                if (i < 0 || i >= maker->m) continue;
                dpcri_put(maker, j->task, j->stage, i);
                maker->schedule->actions[maker->used - 1].part = (uint8_t)j->part;
            }
        }
        dpcri_end_row(maker);
    }
}

static dpcr_status fill(packing *k) {
    dpcr_status status;
    k->maker->used = k->maker->row = 0;
    DPCR_TRY(order_jobs(k));
    DPCR_TRY(fill_delays(k));
    write_rows(k);
done:
    return status;
}

// Tasks that take time are in its order, which no rank waits against.
static dpcr_status look_for_waits(const packing *k, bool *found) {
    const dpcri_maker *maker = k->maker;
    dpcri_run run;
    *found = false;
    for (int64_t n = 0; n < k->count; n++) *found = *found || takes_no_time(k, &k->jobs[n]);
    if (!*found) return DPCR_OK;
    const dpcr_status status = dpcri_run_create(maker->context, maker->schedule, NULL, &run, maker->error);
    if (status != DPCR_OK) return status;
    *found = !dpcri_run_once(&run, NULL, NULL);
    dpcri_run_destroy(maker->context, &run);
    return DPCR_OK;
}

dpcr_status dpcri_make_layerpipe(dpcri_maker *maker) {
    const int64_t stages = maker->options->stages ? maker->options->stages : maker->p * maker->v;
    packing k = {.maker = maker, .stages = stages};
    dpcr_status status;
    if (stages > MOST_STAGES)
        return dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED, "layerpipe: %lld stages; it packs at most %d",
                          (long long)stages, (int)MOST_STAGES);
    DPCR_TRY(dpcri_costs_check(maker->options->costs, stages, &k.costs, maker->error));
    DPCR_TRY(dpcri_maker_start(maker, stages, maker->m, 4));
    maker->schedule->accumulate = 1;
    maker->schedule->semantics = DPCR_DELAYED;
    k.jobs = dpcri_alloc(maker->context, (size_t)(4 * stages) * sizeof *k.jobs);
    k.order = dpcri_alloc(maker->context, (size_t)(4 * stages) * sizeof *k.order);
    k.load = dpcri_alloc_zero(maker->context, (size_t)maker->p * sizeof *k.load);
    k.next = dpcri_alloc(maker->context, (size_t)maker->p * sizeof *k.next);
    if (!k.jobs || !k.order || !k.load || !k.next)
        DPCR_TRY(
            dpcri_fail(maker->error, DPCR_ERROR_MEMORY, "layerpipe: no memory to pack %lld stages", (long long)stages));
    list_jobs(&k);
    place(&k);
    if (!(k.period > 0))
        DPCR_TRY(dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED, "layerpipe: all times are 0: there is no period"));
    DPCR_TRY(fill(&k));
    DPCR_TRY(look_for_waits(&k, &k.strict));
    if (k.strict) DPCR_TRY(fill(&k));
done:
    dpcri_free(maker->context, k.jobs);
    dpcri_free(maker->context, k.order);
    dpcri_free(maker->context, k.load);
    dpcri_free(maker->context, k.next);
    return status;
}
