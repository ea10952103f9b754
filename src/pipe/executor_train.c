// SPDX-License-Identifier: MIT
// Training by a pipeline. Every rank runs the same loop over epochs and runs of the table; after each run the ranks
// tell rank 0 their losses and times, and rank 0 tells them whether to go on, and whether to hand their weights over
// for a checkpoint. What a rank knows of the position follows from (data, options) alone, so nothing else need be told.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"
#include "pipe/executor_context.h"
#include "pipe/executor_ranks.h"
#include "rt/rt.h"
#include "train/ledger.h"

enum { TABLES = 3, KEPT_TIMES = 512, DEFAULT_SEGMENT = 256 };

typedef struct timed_table {
    dpcr_schedule schedule;
    dpcri_table table;
    int64_t updates;  // 0: unused
} timed_table;

// What all ranks share and none changes, and below what is rank 0's alone.
typedef struct training {
    dpcri_ledger ledger;
    dpcr_pipeline_options pipeline;
    dpcr_schedule_options schedule;
    timed_table tables[TABLES];
    bool synchronous;
    int64_t *first;   // units of the stages
    int64_t segment;  // updates of a run
    int64_t batch;    // rows of an update: as asked for, or all that there are
    dpcri_lender lender;
    // Rank 0's.
    int64_t runs;
    double makespans[KEPT_TIMES], busy[KEPT_TIMES], bytes;
    int stopped_by;                  // what another rank's caller said
    dpcr_pipeline_figures *figures;  // NULL: not wanted, on any rank
} training;

typedef struct worker {
    training *t;
    dpcri_comm *comm;
    dpcr_context *context;
    dpcri_rank rank;
    int64_t *order;  // [count]
    uint8_t *spare;  // [batch] labels that nobody asked for
    int64_t from;    // row of the epoch's order where the run begins
    double *times;   // [actions of the row][2] of the last whole run, where they are wanted
    double ahead;    // seconds that this clock is before rank 0's
} worker;

typedef struct told {
    double loss[2], began, ended, busy, bytes;
    int64_t correct, asked;  // asked: to stop
} told;

static const char SENTENCE[] = "stages in order, microbatches side by side";

// ---- the rows of a run ----

static void get_rows(void *user, int64_t first, int64_t rows, void *x, uint8_t *y) {
    const worker *w = user;
    const dpcr_dataset *data = w->t->ledger.data;
    first += w->from;
    if (x)
        dpcri_gather(w->context, data, w->order, first, rows, &w->t->ledger.normaliser, x, y ? y : w->spare);
    else
        for (int64_t r = 0; y && r < rows; r++) y[r] = data->labels[w->order[first + r]];
}

// ---- the weights of all stages, at rank 0 ----

static dpcr_status gather_vector(worker *w, const dpcri_share *share, int64_t stage, int64_t number, const void *here,
                                 void *whole, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    const int64_t first = t->first[stage], end = t->first[stage + 1];
    const size_t bytes =
        (size_t)dpcri_units_count(t->ledger.model, first, end) * t->ledger.model->program.kernels->element;
    const int64_t tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, stage, number, 1);
    void *there = NULL;
    if (share && w->comm->rank) return dpcri_send(w->comm, 0, tag, here, bytes, error);
    if (share) {
        dpcri_units_put(t->ledger.model, first, end, here, whole);
        return DPCR_OK;
    }
    there = dpcri_alloc(w->context, bytes);
    if (!there)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory to gather stage %lld", (long long)stage));
    const dpcri_table *table = w->rank.table;
    const int64_t owner = table->where[DPCRI_AT_W][dpcri_cell(table->schedule, stage, 0)];
    DPCR_TRY(dpcri_receive(w->comm, owner, tag, there, bytes, error));
    dpcri_units_put(t->ledger.model, first, end, there, whole);
done:
    dpcri_free(w->context, there);
    return status;
}

static dpcr_status gather(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    const dpcr_optimiser *whole = t->ledger.optimiser;
    for (int64_t stage = 0; stage < dpcri_chain_stages(w->rank.table->schedule); stage++) {
        dpcri_share *share = dpcri_rank_share(&w->rank, stage);
        if (share && !share->owner) share = NULL;
        if (!share && w->comm->rank) continue;
        const dpcr_optimiser *own = share ? share->optimiser : NULL;
        DPCR_TRY(gather_vector(w, share, stage, 0, share ? dpcri_share_newest(share) : NULL,
                               t->ledger.model->parameters, error));
        if (whole->first) DPCR_TRY(gather_vector(w, share, stage, 1, own ? own->first : NULL, whole->first, error));
        if (whole->second) DPCR_TRY(gather_vector(w, share, stage, 1, own ? own->second : NULL, whole->second, error));
    }
done:
    return status;
}

static dpcr_status save(worker *w, bool gathered, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    training *t = w->t;
    if (!gathered) DPCR_TRY(gather(w, error));
    if (w->comm->rank) return DPCR_OK;
    DPCR_TRY(dpcri_ledger_write(&t->ledger, error));
done:
    return status;
}

// ---- rank 0 after a run ----

static dpcr_status hear_all(worker *w, const told *own, told *sum, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *sum = *own;
    for (int64_t r = 1; r < w->comm->ranks; r++) {
        told theirs;
        DPCR_TRY(dpcri_receive(w->comm, r, dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 1), &theirs, sizeof theirs,
                               error));
        for (int chain = 0; chain < 2; chain++) sum->loss[chain] += theirs.loss[chain];
        sum->correct += theirs.correct;
        if (!sum->asked) sum->asked = theirs.asked;
        if (theirs.began < sum->began) sum->began = theirs.began;
        if (theirs.ended > sum->ended) sum->ended = theirs.ended;
        if (theirs.busy > sum->busy) sum->busy = theirs.busy;
        if (theirs.bytes > sum->bytes) sum->bytes = theirs.bytes;
    }
done:
    return status;
}

// A run as long as they come, which the figures are of.
static bool is_whole(const training *t, int64_t updates, int64_t rows) {
    return updates == t->segment && (!t->synchronous || rows == t->batch);
}

static dpcr_status note_run(training *t, const told *sum, int64_t updates, int64_t rows, dpcr_error *error) {
    if (is_whole(t, updates, rows)) {
        t->makespans[t->runs % KEPT_TIMES] = sum->ended - sum->began;
        t->busy[t->runs++ % KEPT_TIMES] = sum->busy;
        if (sum->bytes > t->bytes) t->bytes = sum->bytes;
    }
    return dpcri_ledger_note(&t->ledger, (sum->loss[0] + sum->loss[1]) / (double)rows, sum->correct, updates, rows,
                             error);
}

// Tells, hears, and does what rank 0 has decided. At an epoch's end the caller of rank 0 finds the network gathered.
static dpcr_status agree(worker *w, int64_t updates, int64_t rows, bool ends, int64_t *decided, dpcr_error *error) {
    dpcr_status status;
    const int64_t tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 1);
    const dpcri_rank *k = &w->rank;
    const told own = {.loss = {k->loss[0], k->loss[1]},
                      .correct = k->correct[0] + k->correct[1],
                      .asked = dpcri_ranks_asked(w->t->pipeline.transport, w->t->ledger.context),
                      .began = k->began - w->ahead,
                      .ended = k->ended - w->ahead,
                      .busy = k->busy,
                      .bytes = dpcri_rank_activation_bytes(k)};
    if (w->comm->rank) {
        DPCR_TRY(dpcri_send(w->comm, 0, tag, &own, sizeof own, error));
        if (ends) DPCR_TRY(gather(w, error));
        DPCR_TRY(dpcri_receive_decision(w->comm, tag, decided, sizeof *decided, error));
    } else {
        told sum;
        DPCR_TRY(hear_all(w, &own, &sum, error));
        DPCR_TRY(note_run(w->t, &sum, updates, rows, error));
        if (ends) DPCR_TRY(gather(w, error));
        *decided = dpcri_ranks_heed(dpcri_ledger_decide(&w->t->ledger, SENTENCE), (int)sum.asked, &w->t->stopped_by);
        for (int64_t r = 1; r < w->comm->ranks; r++)
            DPCR_TRY(dpcri_send(w->comm, r, tag, decided, sizeof *decided, error));
    }
    if (*decided & DPCRI_SAVE) DPCR_TRY(save(w, ends, error));
done:
    return status;
}

// ---- one clock: processes may run on machines that count seconds from different moments ----

enum { QUESTIONS = 8 };

// By the answer that came soonest. Clocks that differ by less than it took are taken for one, as those of one machine.
static dpcr_status compare_with(worker *w, int64_t rank, int64_t tag, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    double ahead = 0, soonest = INFINITY, theirs;
    for (int k = 0; k < QUESTIONS; k++) {
        const double asked = dpcri_seconds();
        DPCR_TRY(dpcri_send(w->comm, rank, tag, NULL, 0, error));
        DPCR_TRY(dpcri_receive(w->comm, rank, tag, &theirs, sizeof theirs, error));
        const double took = dpcri_seconds() - asked;
        if (took >= soonest) continue;
        soonest = took;
        ahead = theirs - (asked + 0.5 * took);
    }
    if (fabs(ahead) <= soonest) ahead = 0;
    DPCR_TRY(dpcri_send(w->comm, rank, tag, &ahead, sizeof ahead, error));
done:
    return status;
}

// Once an epoch, as clocks of different machines do not keep step.
static dpcr_status compare_clocks(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const int64_t tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 1);
    for (int64_t r = 1; w->comm->rank == 0 && r < w->comm->ranks; r++) DPCR_TRY(compare_with(w, r, tag, error));
    if (w->comm->rank == 0) return DPCR_OK;
    for (int k = 0; k < QUESTIONS; k++) {
        DPCR_TRY(dpcri_receive(w->comm, 0, tag, NULL, 0, error));
        const double now = dpcri_seconds();
        DPCR_TRY(dpcri_send(w->comm, 0, tag, &now, sizeof now, error));
    }
    DPCR_TRY(dpcri_receive(w->comm, 0, tag, &w->ahead, sizeof w->ahead, error));
done:
    return status;
}

// ---- the loop of a rank ----

static const dpcri_table *table_of(const training *t, int64_t updates) {
    for (int k = 0; k < TABLES; k++)
        if (t->tables[k].updates == updates) return &t->tables[k].table;
    return NULL;
}

static int64_t updates_from(const training *t, int64_t batch) {
    const int64_t grid = t->segment - batch % t->segment, left = t->ledger.batches - batch;
    return grid < left ? grid : left;
}

static dpcr_status run_epoch(worker *w, dpcri_position *p, bool *stopped, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    while (p->batch < t->ledger.batches && !*stopped) {
        const int64_t updates = updates_from(t, p->batch), batch = t->batch;
        w->from = p->batch * batch;
        const int64_t left = t->ledger.data->count - w->from, rows = updates * batch < left ? updates * batch : left;
        const dpcri_rows_source source = {.get = get_rows, .user = w, .rows = rows, .batch = batch};
        const dpcri_table *table = table_of(t, updates);
        int64_t decided = DPCRI_GO_ON;
        if (table != w->rank.table) DPCR_TRY(dpcri_rank_use(&w->rank, table, error));
        w->rank.times = is_whole(t, updates, rows) ? w->times : NULL;
        DPCR_TRY(dpcri_rank_run(&w->rank, &source, error));
        DPCR_TRY(agree(w, updates, rows, p->batch + updates == t->ledger.batches, &decided, error));
        p->batch += updates;
        p->step += updates;
        *stopped = (decided & DPCRI_STOP) != 0 && !dpcri_ledger_ended(&t->ledger, p);
    }
done:
    return status;
}

static dpcr_status run_epochs(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    dpcri_position p = t->ledger.start;
    bool stopped = false;
    while (!stopped && !dpcri_ledger_ended(&t->ledger, &p)) {
        if (p.batch == t->ledger.batches) {
            p = (dpcri_position){.epoch = p.epoch + 1, .step = p.step};
            if (w->comm->rank == 0) w->t->ledger.position = p;
        }
        dpcri_shuffle(t->ledger.options.seed, p.epoch, t->ledger.data->count, w->order);
        if (t->figures && t->pipeline.transport) DPCR_TRY(compare_clocks(w, error));
        DPCR_TRY(run_epoch(w, &p, &stopped, error));
    }
    DPCR_TRY(gather(w, error));
    if (w->comm->rank == 0) DPCR_TRY(dpcri_ranks_stopped(dpcri_ledger_end(&t->ledger, error), t->stopped_by, error));
done:
    return status;
}

// ---- figures: what a run should take, and what the last one took ----

static void next_rows(void *user) {
    worker *w = user;
    const training *t = w->t;
    const int64_t rows = t->segment * t->batch;
    w->from = w->from + 2 * rows <= t->ledger.data->count ? w->from + rows : 0;
}

// B is I, whose result goes on, then W.
static dpcr_status simulate(worker *w, const dpcri_costs *c, dpcr_pipeline_figures *figures, dpcr_error *error) {
    dpcr_status status;
    const training *t = w->t;
    const dpcr_schedule *s = &t->tables[0].schedule;
    const int64_t element = (int64_t)t->ledger.model->program.kernels->element;
    dpcr_schedule split = {0};
    dpcr_simulation x = {0};
    double *bytes = dpcri_alloc_zero(w->context, 2 * (size_t)s->stages * sizeof *bytes), *parameters = bytes;
    if (!bytes) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory to simulate a run"));
    parameters += s->stages;
    const double rows =
        (double)dpcri_table_extent(&t->tables[0].table,
                                   &(dpcri_rows_source){.rows = t->segment * t->batch, .batch = t->batch}, 0)
            .rows;
    for (int64_t k = 0; k < s->stages; k++) {
        const int64_t position = k % dpcri_chain_stages(s);
        bytes[k] = rows * (double)(t->ledger.model->options.width * element);
        parameters[k] =
            (double)(dpcri_units_count(t->ledger.model, t->first[position], t->first[position + 1]) * element);
    }
    const dpcr_schedule_costs costs = {.size = sizeof costs,
                                       .forward = 1,
                                       .stage_forward = c->forward,
                                       .stage_input = c->input,
                                       .stage_weight = c->weight,
                                       .stage_update = c->update,
                                       .hop = c->hop,
                                       .bandwidth = c->bandwidth,
                                       .activation_bytes = bytes,
                                       .parameter_bytes = parameters};
    DPCR_TRY(dpcri_schedule_split(w->context, s, &split, error));
    DPCR_TRY(dpcr_schedule_simulate(w->context, &split, &costs, &x, error));
    figures->simulated = x.makespan;
    figures->work = x.work;
done:
    dpcr_simulation_free(w->context, &x);
    dpcr_schedule_free(w->context, &split);
    dpcri_free(w->context, bytes);
    return status;
}

static dpcr_status rehearse(worker *w, dpcr_error *error) {
    dpcr_status status;
    training *t = w->t;
    const dpcri_table *table = &t->tables[0].table;
    const int64_t all = t->segment * t->batch;
    const dpcri_rows_source source = {.get = get_rows,
                                      .user = w,
                                      .rows = all < t->ledger.data->count ? all : t->ledger.data->count,
                                      .batch = t->batch};
    dpcri_costs costs = {.forward = dpcri_alloc_zero(w->context, 4 * (size_t)table->schedule->stages * sizeof(double))};
    if (!costs.forward) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the tasks' times"));
    costs.input = costs.forward + table->schedule->stages;
    costs.weight = costs.input + table->schedule->stages;
    costs.update = costs.weight + table->schedule->stages;
    DPCR_TRY(dpcri_rank_create(&w->rank, w->context, w->comm->rank, t->ledger.model, table, t->first, &t->pipeline,
                               NULL, error));
    w->rank.comm = w->comm;
    dpcri_shuffle(t->ledger.options.seed, t->ledger.start.epoch, t->ledger.data->count, w->order);
    DPCR_TRY(dpcri_rank_rehearse(&w->rank, &source, next_rows, &costs, error));
    if (w->comm->rank == 0) {
        DPCR_TRY(simulate(w, &costs, t->figures, error));
        t->ledger.began = t->ledger.saved = dpcri_seconds();  // training begins here
    }
done:
    dpcri_rank_destroy(&w->rank);
    dpcri_free(w->context, costs.forward);
    return status;
}

// Every rank's times at rank 0, from the first start on.
static dpcr_status gather_times(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    training *t = w->t;
    const dpcr_schedule *s = &t->tables[0].schedule;
    const int64_t all = s->first[s->ranks], row = s->first[w->comm->rank],
                  tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 0);
    double *times = NULL, began = INFINITY;
    for (int64_t n = 0; n < 2 * (s->first[w->comm->rank + 1] - row); n++) w->times[n] -= w->ahead;
    if (w->comm->rank)
        return dpcri_send(w->comm, 0, tag, w->times, 2 * (size_t)(s->first[w->comm->rank + 1] - row) * sizeof *times,
                          error);
    times = dpcri_alloc(w->context, 2 * (size_t)all * sizeof *times);
    if (!times) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a run's times"));
    memcpy(times, w->times, 2 * (size_t)s->first[1] * sizeof *times);
    for (int64_t r = 1; r < s->ranks; r++)
        DPCR_TRY(dpcri_receive(w->comm, r, tag, times + 2 * s->first[r],
                               2 * (size_t)(s->first[r + 1] - s->first[r]) * sizeof *times, error));
    if (!t->runs) goto done;
    for (int64_t n = 0; n < all; n++) began = times[2 * n] < began ? times[2 * n] : began;
    for (int64_t n = 0; n < all; n++) {
        t->figures->start[n] = times[2 * n] - began;
        t->figures->end[n] = times[2 * n + 1] - began;
    }
    t->figures->actions = all;
done:
    dpcri_free(w->context, times);
    return status;
}

static dpcr_status run_worker(void *argument, dpcri_comm *comm, dpcr_error *error) {
    training *t = argument;
    dpcr_status status;
    worker w = {.t = t, .comm = comm};
    DPCR_TRY(dpcri_lender_context(&t->lender, &w.context, error));
    w.order = dpcri_alloc(w.context, (size_t)t->ledger.data->count * sizeof *w.order);
    w.spare = dpcri_alloc(w.context, (size_t)t->batch);
    if (!w.order || !w.spare)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)t->ledger.data->count));
    if (t->figures) DPCR_TRY(rehearse(&w, error));
    DPCR_TRY(dpcri_rank_create(&w.rank, w.context, comm->rank, t->ledger.model, &t->tables[0].table, t->first,
                               &t->pipeline, t->ledger.optimiser, error));
    w.rank.comm = comm;
    // A run that goes on in the same file finds its checkpoint there already.
    if (t->ledger.options.save && !dpcri_goes_on_in_place(&t->ledger.options)) DPCR_TRY(save(&w, false, error));
    if (t->figures && t->figures->trace) {
        const dpcr_schedule *s = &t->tables[0].schedule;
        w.times = dpcri_alloc_zero(w.context,
                                   2 * (size_t)(s->first[comm->rank + 1] - s->first[comm->rank] + 1) * sizeof *w.times);
        if (!w.times) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a run's times"));
    }
    DPCR_TRY(run_epochs(&w, error));
    if (w.times) DPCR_TRY(gather_times(&w, error));
done:
    dpcri_rank_destroy(&w.rank);
    if (w.context) {
        dpcri_free(w.context, w.times);
        dpcri_free(w.context, w.order);
        dpcri_free(w.context, w.spare);
        dpcr_context_destroy(w.context);
    }
    return status;
}

// ---- setting up ----

static dpcr_status check_options(const dpcr_schedule_options *schedule, const dpcr_pipeline_options *pipeline,
                                 const dpcr_pipeline_figures *figures, dpcr_error *error) {
    if (schedule->size < sizeof *schedule || (pipeline && pipeline->size < sizeof *pipeline) ||
        (figures && figures->size < sizeof *figures))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train_pipeline: options or figures of another size");
    if (pipeline && pipeline->clip != 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_pipeline: the pipeline's clip is %g, wanted 0: the training's is taken",
                          pipeline->clip);
    if (pipeline && pipeline->segment < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train_pipeline: segment is %lld, wanted 0 or more",
                          (long long)pipeline->segment);
    return DPCR_OK;
}

static void fill_options(training *t, const dpcr_pipeline_options *pipeline) {
    const dpcr_semantics semantics =
        t->schedule.kind == DPCR_SCHEDULE_BEST ? t->schedule.semantics : dpcr_schedule_semantics(t->schedule.kind);
    t->synchronous = semantics == DPCR_SYNCHRONOUS;
    const int64_t count = t->ledger.data->count;
    t->batch = t->ledger.options.batch < count ? t->ledger.options.batch : count;
    const int64_t asked = pipeline && pipeline->segment ? pipeline->segment : DEFAULT_SEGMENT;
    t->segment = t->synchronous ? 1 : asked < t->ledger.batches ? asked : t->ledger.batches;
    t->pipeline = pipeline ? *pipeline : (dpcr_pipeline_options){.size = sizeof t->pipeline};
    t->pipeline.optimiser = &t->ledger.options.optimiser;
    t->pipeline.clip = t->ledger.options.clip;
}

// A table of `updates` updates (synchronous: of one).
static dpcr_status make_table(training *t, int64_t updates, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    timed_table *to = t->tables;
    while (to->updates && to->updates != updates) to++;
    if (to->updates) return DPCR_OK;
    dpcr_schedule_options o = t->schedule;
    if (!t->synchronous) {
        const bool accumulates = o.kind == DPCR_SCHEDULE_PIPEDREAM_2BW ||
                                 (o.kind == DPCR_SCHEDULE_BEST && o.semantics == DPCR_DOUBLE_BUFFERED);
        if (accumulates && !o.accumulate) o.accumulate = o.microbatches;
        if (!dpcri_mul(updates, accumulates ? o.accumulate : 1, &o.microbatches))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "train: too many microbatches in a segment"));
    }
    DPCR_TRY(dpcr_schedule_make(t->ledger.context, &o, &to->schedule, error));
    to->updates = updates;
    DPCR_TRY(dpcri_table_create(t->ledger.context, &to->schedule, &to->table, error));
    if (to > t->tables) to[-1].table.after = &to->table;
done:
    return status;
}

static dpcr_status make_tables(training *t, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(make_table(t, t->segment, error));
    if (t->ledger.batches % t->segment) DPCR_TRY(make_table(t, t->ledger.batches % t->segment, error));
    if (t->ledger.start.batch < t->ledger.batches)
        DPCR_TRY(make_table(t, updates_from(t, t->ledger.start.batch), error));
    const dpcr_pipeline_options given = t->pipeline;
    DPCR_TRY(dpcri_pipeline_options_fill(&given, &t->tables[0].schedule, &t->pipeline, error));
    DPCR_TRY(dpcri_stages_cut(t->ledger.context, t->ledger.model, &t->tables[0].schedule, t->pipeline.first, &t->first,
                              error));
done:
    return status;
}

// Everything that can be refused comes before the model's parameters change.
static dpcr_status set_up(training *t, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(dpcri_ledger_read(&t->ledger, error));
    DPCR_TRY(make_tables(t, error));
    DPCR_TRY(dpcri_ledger_take(&t->ledger, error));
done:
    return status;
}

// ---- the call ----

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int64_t count) {
    const int64_t n = count < KEPT_TIMES ? count : KEPT_TIMES;
    if (n == 0) return 0;
    qsort(times, (size_t)n, sizeof *times, ascending);
    return times[n / 2];
}

static void fill_figures(training *t, dpcr_pipeline_figures *figures) {
    figures->runs = t->runs;
    figures->updates = t->segment;
    figures->stages = t->tables[0].schedule.stages;
    figures->makespan = median(t->makespans, t->runs);
    figures->busy = median(t->busy, t->runs);
    figures->activation_bytes = t->bytes;
}

void dpcr_pipeline_figures_free(dpcr_context *context, dpcr_pipeline_figures *figures) {
    if (!figures) return;
    dpcri_free(context, figures->start);
    dpcri_free(context, figures->end);
    figures->start = figures->end = NULL;
    figures->actions = 0;
}

static dpcr_status make_figures(training *t, dpcr_pipeline_figures *figures, dpcr_error *error) {
    const bool trace = figures && figures->trace;
    t->figures = figures;
    if (!figures) return DPCR_OK;
    *figures = (dpcr_pipeline_figures){.size = figures->size, .trace = trace};
    if (!trace) return DPCR_OK;
    const size_t bytes = (size_t)t->tables[0].schedule.first[t->schedule.ranks] * sizeof(double);
    figures->start = dpcri_alloc_zero(t->ledger.context, bytes);
    figures->end = dpcri_alloc_zero(t->ledger.context, bytes);
    if (figures->start && figures->end) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a run's times");
}

static void tear_down(training *t) {
    dpcr_context *context = t->ledger.context;
    dpcri_ledger_close(&t->ledger);
    for (int k = 0; k < TABLES; k++) {
        dpcri_table_destroy(context, &t->tables[k].table);
        dpcr_schedule_free(context, &t->tables[k].schedule);
    }
    dpcri_free(context, t->first);
    dpcri_lender_close(&t->lender);
    dpcri_free(context, t);
}

dpcr_status dpcr_train_pipeline(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                                const dpcr_train_options *train, const dpcr_schedule_options *schedule,
                                const dpcr_pipeline_options *pipeline, dpcr_train_state *last,
                                dpcr_pipeline_figures *figures, dpcr_error *error) {
    dpcr_status status;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !train || !schedule)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_pipeline: context, model, data, train or schedule is NULL");
    DPCR_TRY(check_options(schedule, pipeline, figures, error));
    training *t = dpcri_alloc_zero(context, sizeof *t);
    if (!t) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *t);
    t->schedule = *schedule;
    status = dpcri_ledger_open(&t->ledger, "train_pipeline", context, model, data, train, error);
    if (status == DPCR_OK) fill_options(t, pipeline);
    if (status == DPCR_OK) status = set_up(t, error);
    if (status == DPCR_OK) status = make_figures(t, figures, error);
    if (status == DPCR_OK) status = dpcri_lender_open(&t->lender, context, error);
    dpcr_context *messages = NULL;
    if (status == DPCR_OK) status = dpcri_lender_context(&t->lender, &messages, error);
    if (status == DPCR_OK)
        status = dpcri_ranks_run("train_pipeline", messages, t->schedule.ranks, t->pipeline.deadline,
                                 t->pipeline.transport, run_worker, t, error);
    dpcr_context_destroy(messages);
    if (t->ledger.options.epochs) dpcri_ledger_describe(&t->ledger, NULL);
    if (last) *last = t->ledger.state;
    if (figures) fill_figures(t, figures);
    if (figures && status != DPCR_OK) dpcr_pipeline_figures_free(context, figures);
    tear_down(t);
done:
    return status;
}
