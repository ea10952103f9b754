// SPDX-License-Identifier: MIT
// LayerPipe: F, I and W of every stage (a layer) as tasks of their own on any ranks, I in two halves where asked.
// Delays on the loops through the weights make any placement legal; a period is then the largest load of a rank.
//   placement  longest task first, each to the least loaded rank (of equals, to one that has the same stage already),
//   then
//              moves and swaps while the largest load shrinks; or contiguous stages where those are no slower
//   order      modulo schedule: task T of microbatch i starts at s(T) + i period; tasks are placed in the order of the
//              chain, on each rank one behind the other round the period, so they always fit
//   delay      of stage s: the updates missing when its F starts, ceil((s(W) + w - s(F)) / period) - 1
// The paper counts a delay of twice the stages after a layer, its clock being the period of one task a processor. First
// stages need no I: give it time 0. Source: LayerPipe (arXiv 2108.06629), LayerPipe2 (arXiv 2512.08160), both without
// code; the model is ours (docs/math/schedules.md).
#include "pipe/pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 1 << 13, MOST_PAIRS = 200000000 };

typedef struct job {
    int64_t stage;
    dpcr_task task;
    int part;
    double cost;
    int64_t rank;
    double slot;   // where it begins in the period, at least its rank's base
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
    double *base;    // [p] start of the rank's period; negative: none yet
    double *filled;  // [p]
    double period;
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

static double begins(const packing *k, const job *j) { return j->slot + (double)j->turn * k->period; }

static double arrives(const packing *k, const job *from, const job *to, double bytes) {
    const dpcr_schedule_costs *c = &k->costs;
    const double way = from->rank == to->rank ? 0 : c->hop + (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
    return begins(k, from) + from->cost + way;
}

static double bytes_of(const packing *k, int64_t stage) { return dpcri_cost_of(k->costs.activation_bytes, 1, stage); }

// What a job needs stands before it in jobs.
static double ready(const packing *k, int64_t n) {
    const job *j = &k->jobs[n];
    double when = 0;
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
        const double there = arrives(k, from, j, bytes_of(k, error ? j->stage : from->stage));
        if (there > when) when = there;
    }
    return when;
}

static void order_jobs(packing *k) {
    for (int64_t r = 0; r < k->maker->p; r++) k->base[r] = -1, k->filled[r] = 0;
    for (int64_t n = 0; n < k->count; n++) {
        job *j = &k->jobs[n];
        const double when = ready(k, n);
        if (k->base[j->rank] < 0) k->base[j->rank] = fmod(when, k->period);
        j->slot = k->base[j->rank] + k->filled[j->rank];
        j->turn = (int64_t)ceil((when - j->slot) / k->period - 1e-9);
        k->filled[j->rank] += j->cost;
    }
}

static void fill_delays(packing *k) {
    for (int64_t s = 0; s < k->stages; s++) {
        const job *f = &k->jobs[s], *w = NULL;
        for (int64_t n = k->stages; n < k->count; n++)
            if (k->jobs[n].stage == s && k->jobs[n].task == DPCR_TASK_W) w = &k->jobs[n];
        const double late =
            arrives(k, w, f, dpcri_cost_of(k->costs.parameter_bytes, 0, s)) + k->costs.update - begins(k, f);
        const int64_t delay = (int64_t)ceil(late / k->period - 1e-9) - 1;
        k->maker->schedule->delay[s] = delay > 0 ? delay : 0;
    }
}

// Slots of a rank go up in the order of jobs, so a turn of the period is one pass over its own.
static void write_rows(packing *k) {
    dpcri_maker *maker = k->maker;
    int64_t turns = 0;
    for (int64_t n = 0; n < k->count; n++) turns = k->jobs[n].turn > turns ? k->jobs[n].turn : turns;
    for (int64_t r = 0; r < maker->p; r++) {
        int64_t own = 0;
        for (int64_t n = 0; n < k->count; n++)
            if (k->jobs[n].rank == r) k->order[own++] = n;
        for (int64_t turn = 0; turn < turns + maker->m; turn++)
            for (int64_t n = 0; n < own; n++) {
                const job *j = &k->jobs[k->order[n]];
                const int64_t i = turn - j->turn;
                if (i < 0 || i >= maker->m) continue;
                dpcri_put(maker, j->task, j->stage, i);
                maker->schedule->actions[maker->used - 1].part = (uint8_t)j->part;
            }
        dpcri_end_row(maker);
    }
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
    k.jobs = dpcri_alloc(maker->context, (size_t)(4 * stages) * sizeof *k.jobs);
    k.order = dpcri_alloc(maker->context, (size_t)(4 * stages) * sizeof *k.order);
    k.load = dpcri_alloc_zero(maker->context, (size_t)(3 * maker->p) * sizeof *k.load);
    if (!k.jobs || !k.order || !k.load)
        DPCR_TRY(
            dpcri_fail(maker->error, DPCR_ERROR_MEMORY, "layerpipe: no memory to pack %lld stages", (long long)stages));
    k.base = k.load + maker->p;
    k.filled = k.load + 2 * maker->p;
    list_jobs(&k);
    place(&k);
    if (!(k.period > 0))
        DPCR_TRY(dpcri_fail(maker->error, DPCR_ERROR_UNSUPPORTED, "layerpipe: all times are 0: there is no period"));
    order_jobs(&k);
    fill_delays(&k);
    write_rows(&k);
done:
    dpcri_free(maker->context, k.jobs);
    dpcri_free(maker->context, k.order);
    dpcri_free(maker->context, k.load);
    return status;
}
