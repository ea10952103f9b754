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
#include "rt/rt.h"
#include "train/checkpoint.h"

enum { TABLES = 3, KEPT_TIMES = 512, DEFAULT_SEGMENT = 256 };

typedef struct timed_table {
    dpcr_schedule schedule;
    dpcri_table table;
    int64_t updates;  // 0: unused
} timed_table;

// What all ranks share and none changes, and below what is rank 0's alone.
typedef struct training {
    dpcr_context *context;
    dpcr_model *model;
    const dpcr_dataset *data;
    dpcr_train_options options;
    dpcr_pipeline_options pipeline;
    dpcr_schedule_options schedule;
    timed_table tables[TABLES];
    bool synchronous;
    int64_t *first;   // units of the stages
    int64_t segment;  // updates of a run
    int64_t batches;  // an epoch's
    dpcri_normaliser normaliser;
    dpcri_position start;
    dpcri_lender lender;
    // Rank 0's.
    dpcr_optimiser *optimiser;  // of the whole network: what checkpoints hold
    dpcri_strings fixed;
    dpcri_position position;
    dpcr_train_state state;
    double began, saved;
    int64_t images, runs;
    double makespans[KEPT_TIMES], busy[KEPT_TIMES];
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
} worker;

typedef struct told {
    double loss[2], began, ended, busy;
    int64_t correct;
} told;

typedef enum decision { GO_ON = 0, SAVE = 1, STOP = 2 } decision;

// ---- the rows of a run ----

static void get_rows(void *user, int64_t first, int64_t rows, void *x, uint8_t *y) {
    const worker *w = user;
    const dpcr_dataset *data = w->t->data;
    first += w->from;
    if (x)
        dpcri_gather(w->context, data, w->order, first, rows, &w->t->normaliser, x, y ? y : w->spare);
    else
        for (int64_t r = 0; y && r < rows; r++) y[r] = data->labels[w->order[first + r]];
}

// ---- the weights of all stages, at rank 0 ----

static dpcr_status gather_vector(worker *w, const dpcri_share *share, int64_t stage, int64_t number, const void *here,
                                 void *whole, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    const int64_t first = t->first[stage], end = t->first[stage + 1];
    const size_t bytes = (size_t)dpcri_units_count(t->model, first, end) * t->model->program.kernels->element;
    const int64_t tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, stage, number, 1);
    void *there = NULL;
    if (share && w->comm->rank) return dpcri_send(w->comm, 0, tag, here, bytes, error);
    if (share) {
        dpcri_units_put(t->model, first, end, here, whole);
        return DPCR_OK;
    }
    there = dpcri_alloc(w->context, bytes);
    if (!there)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory to gather stage %lld", (long long)stage));
    const dpcri_table *table = w->rank.table;
    const int64_t owner = table->where[DPCRI_AT_W][dpcri_cell(table->schedule, stage, 0)];
    DPCR_TRY(dpcri_receive(w->comm, owner, tag, there, bytes, error));
    dpcri_units_put(t->model, first, end, there, whole);
done:
    dpcri_free(w->context, there);
    return status;
}

static dpcr_status gather(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    const dpcr_optimiser *whole = t->optimiser;
    for (int64_t stage = 0; stage < dpcri_chain_stages(w->rank.table->schedule); stage++) {
        dpcri_share *share = dpcri_rank_share(&w->rank, stage);
        if (share && !share->owner) share = NULL;
        if (!share && w->comm->rank) continue;
        const dpcr_optimiser *own = share ? share->optimiser : NULL;
        DPCR_TRY(
            gather_vector(w, share, stage, 0, share ? dpcri_share_newest(share) : NULL, t->model->parameters, error));
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
    double mark = dpcri_seconds();
    t->optimiser->step = t->position.step;
    if (t->options.save)
        DPCR_TRY(dpcri_checkpoint_write(t->options.save, t->model, t->optimiser, &t->fixed, &t->position, error));
    dpcri_phase_end(&t->state.phases.checkpoint, &mark);
    t->saved = mark;
done:
    return status;
}

// ---- rank 0 after a run ----

static void describe(training *t) {
    dpcr_train_state *s = &t->state;
    const dpcri_position *p = &t->position;
    s->epoch = p->epoch + 1;
    s->epochs = t->options.epochs;
    s->step = p->step;
    s->epoch_ended = p->batch == t->batches;
    s->loss = p->rows ? p->loss / (double)p->rows : 0;
    s->accuracy = p->rows ? (double)p->correct / (double)p->rows : 0;
    s->seconds = dpcri_seconds() - t->began;
    s->images_per_second = s->seconds > 0 ? (double)t->images / s->seconds : 0;
    const double whole = (double)t->data->count * (double)t->options.epochs;
    const double done = (double)t->data->count * (double)p->epoch + (double)p->rows;
    s->seconds_left = s->images_per_second > 0 ? (whole - done) / s->images_per_second : 0;
    s->method = DPCR_METHOD_SEQUENTIAL;
    s->backward = DPCR_SCHEME_SEQUENTIAL;
    s->reason = DPCR_REASON_SEQUENTIAL;
    s->sentence = "stages in order, microbatches side by side";
}

static dpcr_status hear_all(worker *w, const told *own, told *sum, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    *sum = *own;
    for (int64_t r = 1; r < w->comm->ranks; r++) {
        told theirs;
        DPCR_TRY(dpcri_receive(w->comm, r, dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 1), &theirs, sizeof theirs,
                               error));
        for (int chain = 0; chain < 2; chain++) sum->loss[chain] += theirs.loss[chain];
        sum->correct += theirs.correct;
        if (theirs.began < sum->began) sum->began = theirs.began;
        if (theirs.ended > sum->ended) sum->ended = theirs.ended;
        if (theirs.busy > sum->busy) sum->busy = theirs.busy;
    }
done:
    return status;
}

// A run as long as they come, which the figures are of.
static bool is_whole(const training *t, int64_t updates, int64_t rows) {
    return updates == t->segment && (!t->synchronous || rows == t->options.batch);
}

static dpcr_status note_run(training *t, const told *sum, int64_t updates, int64_t rows, dpcr_error *error) {
    const double loss = sum->loss[0] + sum->loss[1];
    dpcri_position *p = &t->position;
    if (!isfinite(loss))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "train: step %lld (epoch %lld): the loss is %g, wanted a finite number; the rate is %g, a "
                          "lower one or a longer warm-up may help",
                          (long long)p->step + updates, (long long)p->epoch + 1, loss / (double)rows,
                          dpcri_schedule_rate(&t->options.optimiser, p->step + 1));
    if (is_whole(t, updates, rows)) {
        t->makespans[t->runs % KEPT_TIMES] = sum->ended - sum->began;
        t->busy[t->runs++ % KEPT_TIMES] = sum->busy;
    }
    p->batch += updates;
    p->step += updates;
    p->rows += rows;
    p->correct += sum->correct;
    p->loss += loss;
    t->images += rows;
    return DPCR_OK;
}

static int64_t decide(training *t) {
    describe(t);
    const bool asked = t->options.progress && t->options.progress(t->options.progress_user, &t->state) != 0;
    const bool stop = dpcri_cancelled(t->context) || asked, ended = t->position.batch == t->batches;
    const bool due = dpcri_seconds() - t->saved >= t->options.checkpoint_seconds;
    return (stop ? STOP | SAVE : GO_ON) | (t->options.save && (due || ended) ? SAVE : GO_ON);
}

// Tells, hears, and does what rank 0 has decided. At an epoch's end the caller of rank 0 finds the network gathered.
static dpcr_status agree(worker *w, int64_t updates, int64_t rows, bool ends, int64_t *decided, dpcr_error *error) {
    dpcr_status status;
    const int64_t tag = dpcri_tag(&w->rank, DPCRI_MESSAGE_OTHER, 0, 0, 1);
    const dpcri_rank *k = &w->rank;
    const told own = {.loss = {k->loss[0], k->loss[1]},
                      .correct = k->correct[0] + k->correct[1],
                      .began = k->began,
                      .ended = k->ended,
                      .busy = k->busy};
    if (w->comm->rank) {
        DPCR_TRY(dpcri_send(w->comm, 0, tag, &own, sizeof own, error));
        if (ends) DPCR_TRY(gather(w, error));
        DPCR_TRY(dpcri_receive(w->comm, 0, tag, decided, sizeof *decided, error));
    } else {
        told sum;
        DPCR_TRY(hear_all(w, &own, &sum, error));
        DPCR_TRY(note_run(w->t, &sum, updates, rows, error));
        if (ends) DPCR_TRY(gather(w, error));
        *decided = decide(w->t);
        for (int64_t r = 1; r < w->comm->ranks; r++)
            DPCR_TRY(dpcri_send(w->comm, r, tag, decided, sizeof *decided, error));
    }
    if (*decided & SAVE) DPCR_TRY(save(w, ends, error));
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
    const int64_t grid = t->segment - batch % t->segment, left = t->batches - batch;
    return grid < left ? grid : left;
}

static dpcr_status run_epoch(worker *w, dpcri_position *p, bool *stopped, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    while (p->batch < t->batches && !*stopped) {
        const int64_t updates = updates_from(t, p->batch), batch = t->options.batch;
        w->from = p->batch * batch;
        const int64_t left = t->data->count - w->from, rows = updates * batch < left ? updates * batch : left;
        const dpcri_rows_source source = {.get = get_rows, .user = w, .rows = rows, .batch = batch};
        const dpcri_table *table = table_of(t, updates);
        int64_t decided = GO_ON;
        if (table != w->rank.table) DPCR_TRY(dpcri_rank_use(&w->rank, table, error));
        w->rank.times = is_whole(t, updates, rows) ? w->times : NULL;
        DPCR_TRY(dpcri_rank_run(&w->rank, &source, error));
        DPCR_TRY(agree(w, updates, rows, p->batch + updates == t->batches, &decided, error));
        p->batch += updates;
        p->step += updates;
        *stopped = (decided & STOP) != 0 && !(p->batch == t->batches && p->epoch + 1 == t->options.epochs);
    }
done:
    return status;
}

static dpcr_status run_epochs(worker *w, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const training *t = w->t;
    dpcri_position p = t->start;
    bool stopped = false;
    while (!stopped && !(p.epoch + 1 == t->options.epochs && p.batch == t->batches)) {
        if (p.batch == t->batches) {
            p = (dpcri_position){.epoch = p.epoch + 1, .step = p.step};
            if (w->comm->rank == 0) w->t->position = p;
        }
        dpcri_shuffle(t->options.seed, p.epoch, t->data->count, w->order);
        DPCR_TRY(run_epoch(w, &p, &stopped, error));
    }
    DPCR_TRY(gather(w, error));
    if (stopped && w->comm->rank == 0)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_CANCELLED, "train: stopped as asked after step %lld of %lld%s%s",
                            (long long)p.step, (long long)t->state.steps,
                            t->options.save ? "; to go on, resume from " : "", t->options.save ? t->options.save : ""));
done:
    return status;
}

// ---- figures: what a run should take, and what the last one took ----

static void next_rows(void *user) {
    worker *w = user;
    const training *t = w->t;
    const int64_t rows = t->segment * t->options.batch;
    w->from = w->from + 2 * rows <= t->data->count ? w->from + rows : 0;
}

// B is I, whose result goes on, then W.
static dpcr_status simulate(worker *w, const dpcri_costs *c, dpcr_pipeline_figures *figures, dpcr_error *error) {
    dpcr_status status;
    const training *t = w->t;
    const dpcr_schedule *s = &t->tables[0].schedule;
    const int64_t element = (int64_t)t->model->program.kernels->element;
    dpcr_schedule split = {0};
    dpcr_simulation x = {0};
    double *bytes = dpcri_alloc_zero(w->context, 2 * (size_t)s->stages * sizeof *bytes), *parameters = bytes;
    if (!bytes) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory to simulate a run"));
    parameters += s->stages;
    const double rows = (double)dpcri_table_extent(
                            &t->tables[0].table,
                            &(dpcri_rows_source){.rows = t->segment * t->options.batch, .batch = t->options.batch}, 0)
                            .rows;
    for (int64_t k = 0; k < s->stages; k++) {
        const int64_t position = k % dpcri_chain_stages(s);
        bytes[k] = rows * (double)(t->model->options.width * element);
        parameters[k] = (double)(dpcri_units_count(t->model, t->first[position], t->first[position + 1]) * element);
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
    const int64_t all = t->segment * t->options.batch;
    const dpcri_rows_source source = {
        .get = get_rows, .user = w, .rows = all < t->data->count ? all : t->data->count, .batch = t->options.batch};
    dpcri_costs costs = {.forward = dpcri_alloc_zero(w->context, 4 * (size_t)table->schedule->stages * sizeof(double))};
    if (!costs.forward) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the tasks' times"));
    costs.input = costs.forward + table->schedule->stages;
    costs.weight = costs.input + table->schedule->stages;
    costs.update = costs.weight + table->schedule->stages;
    DPCR_TRY(
        dpcri_rank_create(&w->rank, w->context, w->comm->rank, t->model, table, t->first, &t->pipeline, NULL, error));
    w->rank.comm = w->comm;
    dpcri_shuffle(t->options.seed, t->start.epoch, t->data->count, w->order);
    DPCR_TRY(dpcri_rank_rehearse(&w->rank, &source, next_rows, &costs, error));
    if (w->comm->rank == 0) {
        DPCR_TRY(simulate(w, &costs, t->figures, error));
        t->began = t->saved = dpcri_seconds();  // training begins here
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
    w.order = dpcri_alloc(w.context, (size_t)t->data->count * sizeof *w.order);
    w.spare = dpcri_alloc(w.context, (size_t)t->options.batch);
    if (!w.order || !w.spare)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)t->data->count));
    if (t->figures) DPCR_TRY(rehearse(&w, error));
    DPCR_TRY(dpcri_rank_create(&w.rank, w.context, comm->rank, t->model, &t->tables[0].table, t->first, &t->pipeline,
                               t->optimiser, error));
    w.rank.comm = comm;
    // A run that goes on in the same file finds its checkpoint there already.
    if (t->options.save && !(t->options.resume && strcmp(t->options.save, t->options.resume) == 0))
        DPCR_TRY(save(&w, false, error));
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

static dpcr_status check_options(const dpcr_train_options *given, const dpcr_schedule_options *schedule,
                                 const dpcr_pipeline_options *pipeline, const dpcr_pipeline_figures *figures,
                                 dpcr_error *error) {
    if (given->size < offsetof(dpcr_train_options, progress_user) + sizeof given->progress_user ||
        schedule->size != sizeof *schedule || (pipeline && pipeline->size != sizeof *pipeline) ||
        (figures && figures->size != sizeof *figures))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train_pipeline: options or figures of another size");
    if (given->epochs < 1 || given->epochs > UINT32_MAX || given->batch < 1 || !(given->checkpoint_seconds >= 0) ||
        (pipeline && pipeline->segment < 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_pipeline: epochs %lld, batch %lld, checkpoint_seconds %g; wanted 1 to 2^32 - 1, 1 or "
                          "more, 0 or more, and a segment of 0 or more",
                          (long long)given->epochs, (long long)given->batch, given->checkpoint_seconds);
    return DPCR_OK;
}

static dpcr_status fill_options(training *t, const dpcr_train_options *given, const dpcr_pipeline_options *pipeline,
                                dpcr_error *error) {
    dpcr_status status;
    dpcr_train_options *o = &t->options;
    memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    o->solve.size = sizeof o->solve;
    o->optimiser.size = sizeof o->optimiser;
    if (o->checkpoint_seconds == 0) o->checkpoint_seconds = 10;
    t->batches = (t->data->count - 1) / o->batch + 1;
    if (!dpcri_mul(t->batches, o->epochs, &t->state.steps))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "train: %lld epochs of %lld batches do not fit",
                            (long long)o->epochs, (long long)t->batches));
    if (o->optimiser.total == -1) o->optimiser.total = t->state.steps;
    const dpcr_optimiser_options as_given = o->optimiser;
    DPCR_TRY(dpcri_optimiser_options_fill(&as_given, &o->optimiser, error));
    const dpcr_semantics semantics =
        t->schedule.kind == DPCR_SCHEDULE_BEST ? t->schedule.semantics : dpcr_schedule_semantics(t->schedule.kind);
    t->synchronous = semantics == DPCR_SYNCHRONOUS;
    const int64_t asked = pipeline && pipeline->segment ? pipeline->segment : DEFAULT_SEGMENT;
    t->segment = t->synchronous ? 1 : asked < t->batches ? asked : t->batches;
    t->pipeline = pipeline ? *pipeline : (dpcr_pipeline_options){.size = sizeof t->pipeline};
    t->pipeline.optimiser = &o->optimiser;
done:
    return status;
}

// A table of `updates` updates (synchronous: of one).
static dpcr_status make_table(training *t, int64_t updates, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    timed_table *to = t->tables;
    while (to->updates && to->updates != updates) to++;
    if (to->updates) return DPCR_OK;
    dpcr_schedule_options o = t->schedule;
    if (!t->synchronous) {
        const bool accumulates = o.kind == DPCR_SCHEDULE_PIPEDREAM_2BW || o.semantics == DPCR_DOUBLE_BUFFERED;
        if (accumulates && !o.accumulate) o.accumulate = o.microbatches;
        if (!dpcri_mul(updates, accumulates ? o.accumulate : 1, &o.microbatches))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "train: too many microbatches in a segment"));
    }
    DPCR_TRY(dpcr_schedule_make(t->context, &o, &to->schedule, error));
    to->updates = updates;
    DPCR_TRY(dpcri_table_create(t->context, &to->schedule, &to->table, error));
done:
    return status;
}

static dpcr_status make_tables(training *t, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(make_table(t, t->segment, error));
    if (t->batches % t->segment) DPCR_TRY(make_table(t, t->batches % t->segment, error));
    if (t->start.batch < t->batches) DPCR_TRY(make_table(t, updates_from(t, t->start.batch), error));
    const dpcr_pipeline_options given = t->pipeline;
    DPCR_TRY(dpcri_pipeline_options_fill(&given, &t->tables[0].schedule, &t->pipeline, error));
    DPCR_TRY(dpcri_stages_cut(t->context, t->model, &t->tables[0].schedule, t->pipeline.first, &t->first, error));
done:
    return status;
}

// A plain training run could go on from our checkpoints: it would find a plan's choices.
static void add_choices(dpcri_strings *fixed) {
    static const char *const keys[] = {"plan0.method", "plan0.scheme", "plan0.backward",
                                       "plan1.method", "plan1.scheme", "plan1.backward"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) dpcri_strings_add(fixed, keys[i], "sequential");
}

static dpcr_status resume(training *t, dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    const dpcri_position *p = &saved->position;
    int64_t before = 0;
    DPCR_TRY(dpcri_saved_read(saved, t->context, t->options.resume, error));
    DPCR_TRY(dpcri_saved_agrees(saved, t->model, &t->fixed, error));
    if (p->epoch >= t->options.epochs || p->batch > t->batches || !dpcri_mul(p->epoch, t->batches, &before) ||
        p->step != before + p->batch)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "train: resume from %s: it stands at epoch %lld, batch %lld, wanted at most %lld epochs of "
                            "%lld batches",
                            saved->path, (long long)p->epoch + 1, (long long)p->batch, (long long)t->options.epochs,
                            (long long)t->batches));
    t->start = *p;
done:
    return status;
}

// Everything that can be refused comes before the model's parameters change.
static dpcr_status set_up(training *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_saved saved = {0};
    const dpcri_data_figures figures = dpcri_data_measure(t->context, t->data);
    dpcri_agreement_add(&t->fixed, &figures, t->data, &t->options);
    if (t->options.resume) DPCR_TRY(resume(t, &saved, error));
    add_choices(&t->fixed);
    DPCR_TRY(make_tables(t, error));
    DPCR_TRY(dpcr_optimiser_create(t->context, &t->options.optimiser, t->model->options.dtype, t->model->count,
                                   &t->optimiser, error));
    if (t->options.resume)
        DPCR_TRY(dpcri_saved_optimiser(&saved, t->optimiser, "optimiser.first", "optimiser.second", error));
    t->normaliser = dpcri_normaliser_make(t->model->options.dtype, figures.mean, figures.deviation);
    DPCR_TRY(dpcr_model_set_metadata(t->model, "pixel_mean", dpcri_number_text(figures.mean).text, error));
    DPCR_TRY(dpcr_model_set_metadata(t->model, "pixel_deviation", dpcri_number_text(figures.deviation).text, error));
    dpcr_model_zero_gradients(t->model);
    if (t->options.resume) dpcri_saved_parameters(&saved, t->model);
    t->position = t->start;
done:
    dpcri_saved_free(&saved);
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
    *figures = (dpcr_pipeline_figures){.size = sizeof *figures, .trace = trace};
    if (!trace) return DPCR_OK;
    const size_t bytes = (size_t)t->tables[0].schedule.first[t->schedule.ranks] * sizeof(double);
    figures->start = dpcri_alloc_zero(t->context, bytes);
    figures->end = dpcri_alloc_zero(t->context, bytes);
    if (figures->start && figures->end) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for a run's times");
}

// ---- ranks that are processes ----

typedef struct carried {
    dpcri_comm comm;  // first: a comm is its carrier
    const dpcr_transport *by;
} carried;

static dpcr_status carry(dpcri_comm *comm, int64_t to, int64_t tag, const void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((carried *)comm)->by;
    return by->send(by->user, to, tag, data, bytes, error);
}

static dpcr_status await(dpcri_comm *comm, int64_t from, int64_t tag, void *data, size_t bytes, dpcr_error *error) {
    const dpcr_transport *by = ((carried *)comm)->by;
    return by->receive(by->user, from, tag, data, bytes, comm->deadline, error);
}

static void nobody_to_tell(dpcri_comm *comm, const dpcr_error *error) { (void)comm, (void)error; }

static dpcr_status run_ranks(training *t, dpcr_context *messages, dpcr_error *error) {
    static const dpcri_comm_table table = {.send = carry, .receive = await, .failed = nobody_to_tell};
    const dpcr_transport *by = t->pipeline.transport;
    if (!by) return dpcri_threads_run(messages, t->schedule.ranks, t->pipeline.deadline, run_worker, t, error);
    if (by->size != sizeof *by || by->ranks != t->schedule.ranks || by->rank < 0 || by->rank >= by->ranks)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_pipeline: a schedule of %lld ranks, and a transport of rank %lld among %lld",
                          (long long)t->schedule.ranks, (long long)by->rank, (long long)by->ranks);
    carried c = {.comm = {.table = &table,
                          .rank = by->rank,
                          .ranks = by->ranks,
                          .largest_tag = by->largest_tag,
                          .deadline = t->pipeline.deadline},
                 .by = by};
    return run_worker(t, &c.comm, error);
}

static void tear_down(training *t) {
    dpcr_optimiser_destroy(t->optimiser);
    for (int k = 0; k < TABLES; k++) {
        dpcri_table_destroy(t->context, &t->tables[k].table);
        dpcr_schedule_free(t->context, &t->tables[k].schedule);
    }
    dpcri_free(t->context, t->first);
    dpcri_lender_close(&t->lender);
    dpcri_free(t->context, t);
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
    DPCR_TRY(check_options(train, schedule, pipeline, figures, error));
    training *t = dpcri_alloc_zero(context, sizeof *t);
    if (!t) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *t);
    t->context = context;
    t->model = model;
    t->data = data;
    t->schedule = *schedule;
    t->began = t->saved = dpcri_seconds();
    status = dpcri_data_check("train", model, data, error);
    if (status == DPCR_OK) status = fill_options(t, train, pipeline, error);
    if (status == DPCR_OK) status = set_up(t, error);
    if (status == DPCR_OK) status = make_figures(t, figures, error);
    if (status == DPCR_OK) status = dpcri_lender_open(&t->lender, context, error);
    dpcr_context *messages = NULL;
    if (status == DPCR_OK) status = dpcri_lender_context(&t->lender, &messages, error);
    if (status == DPCR_OK) status = run_ranks(t, messages, error);
    dpcr_context_destroy(messages);
    if (t->options.epochs) describe(t);
    t->state.sentence = NULL;
    if (last) *last = t->state;
    if (figures) fill_figures(t, figures);
    tear_down(t);
done:
    return status;
}
