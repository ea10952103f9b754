// SPDX-License-Identifier: MIT
// SWAP (Gupta, Serrano, DeCoste; ICLR 2020, arXiv 2001.02312): together with large minibatches, then apart with small
// ones and orders of rows of their own, then the mean of the weights. While they are apart workers tell worker 0, and
// it tells them, now and then that they live: how long an epoch takes bounds nobody's patience. Processes meet about
// once a second beside, after a step that worker 0 names: it has to hear who was asked to stop.
#include <stdatomic.h>
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor_ranks.h"
#include "rt/rt.h"
#include "workers/crew.h"

enum { TAG_PARTED, TAG_ALIVE, TAG_WEIGHTS, TAG_NEVER };  // beside the first phase's
enum { RUNNING, ASKED_TO_STOP, FAILED };
// What TAG_ALIVE says. Who has come to a meeting, or to the end, says MET, and more than that by what asked him to
// stop; worker 0 after how many steps the next meeting is.
enum { ALIVE, MET };
static const double MEETING_SECONDS = 1;

typedef struct swapping {
    dpcri_crew crew;  // first: a crew's body gets it
    dpcr_swap_options options;
    atomic_int fate;
    // Worker 0's.
    int (*progress)(void *user, const dpcr_train_state *state);  // the caller's
    void *progress_user;
    double told;   // seconds in it since a phase's mark
    bool refused;  // the caller stops when it is shown what a worker made
    double *sum;   // [count]
    double seconds[3];
    int64_t epochs, steps;  // of the first phase
} swapping;

typedef struct alone {
    swapping *swap;
    dpcri_member *member;
    dpcr_model *model;
    double beat, mark;
    double met;              // processes: when they met last
    int64_t meeting, apart;  // step after which they meet, and steps between the last meeting and that
    int64_t together;        // steps of the first phase
    dpcr_error error;        // of a message from within a step
    dpcr_train_options options;
} alone;

static int64_t tag(const alone *a, int kind) { return dpcri_crew_tag(&a->swap->crew, kind); }

// ---- time ----

// What the caller does meanwhile is no part of a phase.
static int timed_progress(void *user, const dpcr_train_state *state) {
    swapping *s = user;
    const double began = dpcri_seconds();
    const int answer = s->progress(s->progress_user, state);
    s->told += dpcri_seconds() - began;
    return answer;
}

static void take_over_progress(swapping *s) {
    dpcr_train_options *o = &s->crew.ledger.options;
    s->progress = o->progress;
    s->progress_user = o->progress_user;
    if (!o->progress) return;
    o->progress = timed_progress;
    o->progress_user = s;
}

static void end_phase(swapping *s, int phase, double *mark) {
    dpcri_phase_end(&s->seconds[phase], mark);
    s->seconds[phase] -= s->told;
    s->told = 0;
}

// ---- signs of life ----

static dpcr_status say(alone *a, int64_t word, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_comm *comm = a->member->comm;
    a->beat = dpcri_seconds();
    if (comm->rank) return dpcri_send(comm, 0, tag(a, TAG_ALIVE), &word, sizeof word, error);
    for (int64_t worker = 1; worker < comm->ranks; worker++)
        DPCR_TRY(dpcri_send(comm, worker, tag(a, TAG_ALIVE), &word, sizeof word, error));
done:
    return status;
}

static dpcr_status beat(alone *a, dpcr_error *error) {
    if (dpcri_seconds() - a->beat < a->member->comm->deadline / 4) return DPCR_OK;
    return say(a, ALIVE, error);
}

static dpcr_status wait_for(alone *a, int64_t worker, int64_t *said, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (*said = ALIVE; *said == ALIVE;) {
        if (a->member->comm->rank) {
            DPCR_TRY(dpcri_receive_decision(a->member->comm, tag(a, TAG_ALIVE), said, sizeof *said, error));
            continue;
        }
        DPCR_TRY(dpcri_receive(a->member->comm, worker, tag(a, TAG_ALIVE), said, sizeof *said, error));
        DPCR_TRY(beat(a, error));
    }
done:
    return status;
}

// ---- meetings ----

static dpcr_status say_met(alone *a, dpcr_error *error) {
    const dpcri_crew *c = &a->swap->crew;
    return say(a, MET + dpcri_ranks_asked(c->options.transport, c->ledger.context), error);
}

static dpcr_status name_next(alone *a, dpcr_error *error) {
    const double now = dpcri_seconds(), took = now - a->met, most = 16 * (double)a->apart;
    const double steps = (double)a->apart * MEETING_SECONDS / (took > 1e-9 ? took : 1e-9);
    a->met = now;
    a->apart = steps < 1 ? 1 : (int64_t)(steps < most ? steps : most);
    a->meeting += a->apart;
    return say(a, a->apart, error);
}

// All have as many steps. Whoever was asked waits for worker 0, which ends the run.
static dpcr_status meet(alone *a, int64_t step, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_comm *comm = a->member->comm;
    int64_t said;
    if (!a->swap->crew.options.transport || comm->ranks == 1 || step != a->meeting) return DPCR_OK;
    if (comm->rank) {
        DPCR_TRY(say_met(a, error));
        DPCR_TRY(wait_for(a, 0, &said, error));
        a->meeting += said;
        return DPCR_OK;
    }
    for (int64_t worker = 1; worker < comm->ranks; worker++) {
        DPCR_TRY(wait_for(a, worker, &said, error));
        if (said > MET && !a->swap->crew.stopped_by) a->swap->crew.stopped_by = (int)(said - MET);
    }
    if (a->swap->crew.stopped_by)
        atomic_store(&a->swap->fate, ASKED_TO_STOP);
    else
        DPCR_TRY(name_next(a, error));
done:
    return status;
}

// ---- apart ----

// Worker 0 changes the books' model from here on: all have their own.
static dpcr_status part(alone *a, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_comm *comm = a->member->comm;
    if (comm->rank) return dpcri_send(comm, 0, tag(a, TAG_PARTED), NULL, 0, error);
    for (int64_t worker = 1; worker < comm->ranks; worker++)
        DPCR_TRY(dpcri_receive(comm, worker, tag(a, TAG_PARTED), NULL, 0, error));
done:
    return status;
}

// Worker 0 tells its own progress, after the first phase's.
static bool tell(alone *a, const dpcr_train_state *state) {
    swapping *s = a->swap;
    dpcri_ledger *l = &s->crew.ledger;
    dpcr_train_state *told = &l->state;
    const dpcr_train_phases phases = told->phases;
    *told = *state;
    told->phases = phases;
    told->epoch += s->epochs;
    told->epochs += s->epochs;
    told->step += s->steps;
    told->steps += s->steps;
    told->seconds = dpcri_seconds() - l->began;
    const double images = (double)l->images + state->images_per_second * state->seconds;
    told->images_per_second = told->seconds > 0 ? images / told->seconds : 0;
    told->sentence = "workers apart, each by the loop";
    if (state->epoch_ended) memcpy(l->model->parameters, a->model->parameters, dpcri_model_bytes(l->model));
    const bool asked = l->options.progress && l->options.progress(l->options.progress_user, told) != 0;
    return asked || dpcri_cancelled(l->context);
}

static int on_step(void *user, const dpcr_train_state *state) {
    alone *a = user;
    int running = RUNNING;
    if (a->member->comm->rank == 0 && tell(a, state))
        atomic_compare_exchange_strong(&a->swap->fate, &running, ASKED_TO_STOP);
    if (atomic_load(&a->swap->fate) != RUNNING) return 1;
    return beat(a, &a->error) != DPCR_OK || meet(a, state->step, &a->error) != DPCR_OK ||
           atomic_load(&a->swap->fate) != RUNNING;
}

static dpcr_status make_alone(alone *a, dpcr_error *error) {
    dpcr_status status;
    const swapping *s = a->swap;
    const dpcri_member *m = a->member;
    const dpcri_crew *c = &s->crew;
    dpcr_model_options same = c->ledger.model->options;
    same.blank = 1;
    DPCR_TRY(dpcr_model_create(m->context, &same, &a->model, error));
    for (int64_t g = 0; g < c->groups; g++)
        dpcri_units_put(a->model, c->first[g], c->first[g + 1], dpcri_network_parameters(&m->network, g),
                        a->model->parameters);
    a->options = (dpcr_train_options){.size = sizeof a->options,
                                      .epochs = s->options.epochs,
                                      .batch = s->options.batch,
                                      .clip = c->ledger.options.clip,
                                      .optimiser = s->options.optimiser,
                                      .solve = {.size = sizeof a->options.solve,
                                                .method = DPCR_METHOD_SEQUENTIAL,
                                                .backward = DPCR_SCHEME_SEQUENTIAL},
                                      .seed = c->ledger.options.seed + 1 + (uint64_t)m->comm->rank,
                                      .progress = on_step,
                                      .progress_user = a};
    a->beat = a->met = dpcri_seconds();
    a->meeting = a->apart = 1;
done:
    return status;
}

static dpcr_status stopped_apart(const swapping *s, dpcr_error *error) {
    const char *save = s->crew.ledger.options.save;
    return dpcri_fail_code(error, DPCR_ERROR_CANCELLED, s->crew.stopped_by,
                           "train: stopped as asked while the workers were apart%s%s",
                           save ? "; to go on from where they parted, resume from " : "", save ? save : "");
}

// Its own training counts from where they parted.
static dpcr_status failed_apart(const alone *a, const dpcr_error *own, dpcr_error *error) {
    static const char call[] = "train: ";
    const char *text = own->text + (strncmp(own->text, call, strlen(call)) == 0 ? strlen(call) : 0);
    return dpcri_fail_code(error, own->status, own->code, "%sworker %lld apart, after %lld step%s together: %s", call,
                           (long long)a->member->comm->rank, (long long)a->together, a->together == 1 ? "" : "s", text);
}

static dpcr_status work_alone(alone *a, dpcr_error *error) {
    dpcr_status status;
    swapping *s = a->swap;
    dpcri_comm *comm = a->member->comm;
    int fate = RUNNING;
    dpcr_error own = {0};
    DPCR_TRY(make_alone(a, error));
    status = dpcr_train(a->member->context, a->model, s->crew.ledger.data, &a->options, NULL, &own);
    if (a->error.status != DPCR_OK) {
        status = a->error.status;
        if (error) *error = a->error;
    } else if (status != DPCR_OK) {
        failed_apart(a, &own, error);
    }
    if (status != DPCR_OK) atomic_compare_exchange_strong(&s->fate, &fate, FAILED);
    if (comm->rank == 0 && atomic_load(&s->fate) == ASKED_TO_STOP) return stopped_apart(s, error);
    if (status == DPCR_OK || fate == RUNNING) return status;
    int64_t nothing;  // another one failed, or stops all: it tells why
    return dpcri_receive(comm, comm->rank ? 0 : comm->ranks - 1, tag(a, TAG_NEVER), &nothing, 0, error);
done:
    return status;
}

// ---- averaged ----

static void add_in(swapping *s, const dpcr_model *model) {
    for (int64_t i = 0; i < model->count; i++)
        s->sum[i] += model->program.kernels->element == 8 ? ((const double *)model->parameters)[i]
                                                          : (double)((const float *)model->parameters)[i];
}

static void take_mean(const swapping *s, dpcr_model *model, int64_t workers) {
    for (int64_t i = 0; i < model->count; i++) {
        const double mean = s->sum[i] / (double)workers;
        if (model->program.kernels->element == 8)
            ((double *)model->parameters)[i] = mean;
        else
            ((float *)model->parameters)[i] = (float)mean;
    }
}

// Whether the caller goes on.
static bool show(swapping *s, dpcr_swap_moment moment, int64_t worker) {
    const dpcr_swap_options *o = &s->options;
    return !o->moment || o->moment(o->moment_user, moment, worker, s->crew.ledger.model) == 0;
}

static dpcr_status stopped_averaged(const swapping *s, dpcr_error *error) {
    const char *save = s->crew.ledger.options.save;
    return dpcri_fail(error, DPCR_ERROR_CANCELLED, "train: stopped as asked after the workers' mean was made%s%s",
                      save ? "; the network is trained, in " : "", save ? save : "");
}

static dpcr_status save_mean(const swapping *s, dpcr_error *error) {
    const dpcr_model *model = s->crew.ledger.model;
    const char *save = s->crew.ledger.options.save;
    const dpcri_position last = {.step = s->crew.ledger.state.step};  // told of worker 0
    const int64_t bad = dpcri_first_not_finite(model->options.dtype, model->parameters, model->count);
    if (bad >= 0) return dpcri_refuse_not_finite(&last, bad, error);
    return save ? dpcr_model_save(model, save, error) : DPCR_OK;
}

// The mean is kept before the caller is shown it, and as it left it. Who stopped at a worker's network is shown no
// more: all that was left to do is this mean.
static dpcr_status keep_mean(swapping *s, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    DPCR_TRY(save_mean(s, error));
    const double began = dpcri_seconds();
    if (s->refused || !show(s, DPCR_SWAP_AVERAGED, 0)) return stopped_averaged(s, error);
    s->told += dpcri_seconds() - began;
    if (s->options.moment) DPCR_TRY(save_mean(s, error));
done:
    return status;
}

// Every worker's network in the books' model in turn, then their mean.
static dpcr_status average(alone *a, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    swapping *s = a->swap;
    dpcr_model *model = s->crew.ledger.model;
    dpcri_comm *comm = a->member->comm;
    const size_t bytes = dpcri_model_bytes(model);
    int64_t said = MET;
    if (comm->rank) {
        DPCR_TRY(say_met(a, error));
        DPCR_TRY(dpcri_send(comm, 0, tag(a, TAG_WEIGHTS), a->model->parameters, bytes, error));
        return wait_for(a, 0, &said, error);
    }
    for (int64_t worker = 0; worker < comm->ranks; worker++) {
        if (worker) DPCR_TRY(wait_for(a, worker, &said, error));
        if (said > MET) s->crew.stopped_by = (int)(said - MET);
        if (said > MET) DPCR_TRY(stopped_apart(s, error));
        if (worker) DPCR_TRY(dpcri_receive(comm, worker, tag(a, TAG_WEIGHTS), a->model->parameters, bytes, error));
        add_in(s, a->model);
        memcpy(model->parameters, a->model->parameters, bytes);
        DPCR_TRY(worker + 1 == comm->ranks ? say(a, MET, error) : beat(a, error));
        end_phase(s, 1, &a->mark);
        s->refused = s->refused || !show(s, DPCR_SWAP_APART, worker);
        a->mark = dpcri_seconds();
    }
    take_mean(s, model, comm->ranks);
    DPCR_TRY(keep_mean(s, error));
    end_phase(s, 2, &a->mark);
done:
    return status;
}

// ---- a worker ----

static dpcr_status run_worker(void *argument, dpcri_comm *comm, dpcr_error *error) {
    swapping *s = argument;
    dpcri_member m;
    dpcri_position position;
    alone a = {.swap = s, .member = &m, .mark = dpcri_seconds()};
    dpcr_status status;
    DPCR_TRY(dpcri_member_create(&m, &s->crew, comm, error));
    DPCR_TRY(dpcri_member_train(&m, &position, error));
    if (m.stopped) {  // also after the first phase's last step: there is a second one
        if (comm->rank == 0)
            DPCR_TRY(dpcri_ranks_stopped(dpcri_ledger_stopped(&s->crew.ledger, error), s->crew.stopped_by, error));
        goto done;
    }
    a.together = position.step;
    DPCR_TRY(part(&a, error));
    if (comm->rank == 0) {
        s->epochs = position.epoch + 1;
        s->steps = position.step;
        end_phase(s, 0, &a.mark);
        if (!show(s, DPCR_SWAP_TOGETHER, 0)) DPCR_TRY(dpcri_ledger_stopped(&s->crew.ledger, error));
        a.mark = dpcri_seconds();  // what the caller does is no part of it
    }
    DPCR_TRY(work_alone(&a, error));
    DPCR_TRY(average(&a, error));
done:
    if (status != DPCR_OK) {  // whoever is at work alone hears no message for long
        int running = RUNNING;
        atomic_compare_exchange_strong(&s->fate, &running, FAILED);
    }
    dpcr_model_destroy(a.model);
    dpcri_member_destroy(&m);
    return status;
}

// ---- the call ----

static dpcr_status check_swap(const dpcr_swap_options *o, dpcr_error *error) {
    if (o->size < sizeof *o)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train_swap: options or figures of another size");
    if (o->epochs < 1 || o->epochs > UINT32_MAX || o->batch < 1 || !(o->accuracy >= 0 && o->accuracy <= 1))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train_swap: apart for %lld epochs of batches of %lld, accuracy %g; wanted 1 or more, and 0 "
                          "to 1",
                          (long long)o->epochs, (long long)o->batch, o->accuracy);
    return DPCR_OK;
}

// What dpcr_train would refuse of the second phase, before the first.
static dpcr_status check_optimiser(const dpcr_swap_options *o, dpcr_error *error) {
    dpcr_optimiser_options given = o->optimiser, filled;
    given.size = sizeof given;
    if (given.total == -1) given.total = 0;
    return dpcri_optimiser_options_fill(&given, &filled, error);
}

static void fill_figures(const swapping *s, dpcr_workers_figures *figures) {
    dpcr_workers_figures own = {.updates = s->crew.updates,
                                .groups = s->crew.groups,
                                .waited = s->crew.updates ? s->crew.waited / (double)s->crew.updates : 0,
                                .together = s->epochs};
    memcpy(own.seconds, s->seconds, sizeof own.seconds);
    dpcri_copy_out(figures, &own, sizeof own);
}

dpcr_status dpcr_train_swap(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                            const dpcr_train_options *train, const dpcr_workers_options *workers,
                            const dpcr_swap_options *swap, dpcr_train_state *last, dpcr_workers_figures *figures,
                            dpcr_error *error) {
    static const char call[] = "train_swap";
    dpcr_status status;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !train || !workers || !swap || !dpcri_figures_fit(figures))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: context, model, data, train, workers or swap is NULL, or figures of another size", call);
    DPCR_TRY(check_swap(swap, error));
    DPCR_TRY(check_optimiser(swap, error));
    swapping *s = dpcri_alloc_zero(context, sizeof *s);
    if (!s) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *s);
    s->options = *swap;
    s->crew.enough = swap->accuracy;
    s->crew.sentence = "rows over the workers, sums in the rows' order";
    status = dpcri_crew_open(&s->crew, call, context, model, data, train, workers, error);
    if (status == DPCR_OK) {
        take_over_progress(s);
        s->sum = dpcri_alloc_zero(context, (size_t)model->count * sizeof *s->sum);
        if (!s->sum) status = dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the mean of the weights");
    }
    if (status == DPCR_OK) status = dpcri_crew_run(&s->crew, call, run_worker, error);
    s->crew.ledger.state.sentence = NULL;
    if (last) *last = s->crew.ledger.state;
    if (figures) fill_figures(s, figures);
    dpcri_crew_close(&s->crew);
    dpcri_free(context, s->sum);
    dpcri_free(context, s);
done:
    return status;
}
