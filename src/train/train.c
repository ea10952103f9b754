// SPDX-License-Identifier: MIT
// The training loop. A run is a function of (model, data, options, plan): the order of the rows follows from (seed,
// epoch), every sum has a fixed order, and the planner's choices are kept with the checkpoint. So a position (epoch,
// batch) with the parameters and the optimiser's state is all that a resumed run needs to end with the same bits.
#include <assert.h>
#include <string.h>

#include "model/model_internal.h"
#include "rt/rt.h"
#include "solve/solve_internal.h"
#include "train/device_train.h"
#include "train/ledger.h"

typedef struct training {
    dpcri_ledger ledger;
    dpcri_pass pass;
    int64_t *order;  // [count]: the epoch's permutation
    int size;        // of the batch that ran last: an index of the pass's plans
} training;

// Programs of old headers give `last` no more room.
static_assert(sizeof(dpcr_train_state) < offsetof(dpcr_train_state, threads) + 2 * sizeof(double),
              "backward_reason lies where the state ended");

// ---- setting up ----

static dpcr_status make_pass(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    dpcri_ledger *l = &t->ledger;
    int64_t rows[DPCRI_SIZES];
    dpcri_pass_rows(l->data->count, l->options.batch, rows);
    dpcr_solve_options solve[DPCRI_SIZES] = {l->options.solve, l->options.solve};
    const bool layers = dpcr_model_get_options(l->model)->layers > 0;
    for (int size = 0; saved && layers && size < DPCRI_SIZES; size++)
        if (rows[size]) DPCR_TRY(dpcri_saved_choices(saved, size, &solve[size], error));
    DPCR_TRY(dpcri_pass_create(&t->pass, l->context, l->model, rows, solve, true, l->options.recompute != 0, error));
    for (int size = 0; size < DPCRI_SIZES; size++) {
        dpcr_solve_plan *plan = t->pass.plans[size];
        dpcri_choices_add(&l->fixed, size, plan);
        if (saved && plan) dpcri_saved_tell(&l->options.solve, false, plan->sentence, sizeof plan->sentence);
    }
done:
    return status;
}

// Everything that can be refused comes before the model's parameters change.
static dpcr_status set_up(training *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_ledger *l = &t->ledger;
    DPCR_TRY(dpcri_ledger_read(l, error));
    DPCR_TRY(make_pass(t, l->options.resume ? &l->from : NULL, error));
    t->order = dpcri_alloc(l->context, (size_t)l->data->count * sizeof *t->order);
    if (!t->order)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)l->data->count));
    DPCR_TRY(dpcri_ledger_take(l, error));
done:
    return status;
}

// ---- steps ----

// The norm counts tied steps once.
static dpcr_status clip(const dpcri_ledger *l, dpcr_error *error) {
    if (l->options.clip == 0) return DPCR_OK;
    dpcr_array own[2];
    dpcri_model_own(l->model, l->model->gradients, own);
    const dpcr_status status = dpcr_gradients_clip_norm(l->context, own, 2, l->options.clip, NULL, error);
    if (l->model->options.tie) dpcri_model_copy_tied(l->model);
    return status;
}

static dpcr_status one_step(void *run, dpcr_error *error) {
    dpcr_status status;
    training *t = run;
    dpcri_ledger *l = &t->ledger;
    dpcr_model *model = l->model;
    const int64_t batch = l->options.batch, from = l->position.batch * batch;
    double loss = 0, mark = dpcri_seconds();
    int64_t correct = 0;
    t->size = l->position.batch < l->data->count / batch ? 0 : 1;
    const int64_t rows = t->pass.rows[t->size];
    dpcri_gather(l->context, l->data, t->order, from, rows, &l->normaliser, t->pass.x, t->pass.y);
    dpcri_phase_end(&t->pass.phases.gather, &mark);
    DPCR_TRY(dpcri_pass_forward(&t->pass, t->size, true, &loss, &correct, error));
    DPCR_TRY(dpcri_ledger_judge(l, &t->pass.report, loss, error));
    DPCR_TRY(dpcri_pass_backward(&t->pass, t->size, error));
    mark = dpcri_seconds();
    dpcr_model_tie_gradients(model);
    DPCR_TRY(clip(l, error));
    dpcri_optimiser_update(l->optimiser, dpcr_model_vector(model, NULL), dpcr_model_gradient_vector(model), true);
    dpcri_phase_end(&t->pass.phases.update, &mark);
    DPCR_TRY(dpcri_ledger_note(l, loss, correct, 1, rows, error));
done:
    return status;
}

// ---- what the caller sees ----

static void describe(training *t) {
    dpcr_train_state *s = &t->ledger.state;
    const double checkpoint = s->phases.checkpoint;
    dpcri_ledger_describe_solve(&t->ledger, t->pass.plans[t->size], &t->pass.report);
    s->backward_reason = t->pass.back_reason;
    s->phases = t->pass.phases;
    s->phases.checkpoint = checkpoint;
}

static int64_t report_step(void *run) {
    training *t = run;
    describe(t);
    return dpcri_ledger_report(&t->ledger);
}

static dpcr_status save(void *run, dpcr_error *error) { return dpcri_ledger_write(&((training *)run)->ledger, error); }
static dpcr_status check(void *run, dpcr_error *error) { return dpcri_ledger_check(&((training *)run)->ledger, error); }

static void begin_epoch(void *run, bool first) {
    (void)first;
    training *t = run;
    dpcri_shuffle(t->ledger.options.seed, t->ledger.position.epoch, t->ledger.data->count, t->order);
}

dpcr_status dpcr_train(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                       const dpcr_train_options *options, dpcr_train_state *last, dpcr_error *error) {
    dpcr_status status;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train: context, model, data or options is NULL");
    training *t = dpcri_alloc_zero(context, sizeof *t);
    if (!t) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *t);
    dpcri_ledger *l = &t->ledger;
    l->planned = true;
    DPCR_TRY(dpcri_ledger_open(l, "train", context, model, data, options, error));
    if (l->options.solve.guess == DPCR_GUESS_GIVEN)
        DPCR_TRY(dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "train: guess is given, but one batch's states are no guess for the next one's; wanted any other guess"));
    if (dpcri_solve_on_device(&l->options.solve)) {
        status = dpcri_train_on_device(l, last, error);
        goto done;
    }
    DPCR_TRY(set_up(t, error));
    status = dpcri_loop_run(&(dpcri_loop){t, context, &l->options, &l->position, &l->state.threads, l->batches,
                                          l->state.steps, begin_epoch, one_step, report_step, save, check},
                            error);
    if (status != DPCR_OK) dpcr_model_zero_gradients(model);  // a step may have ended half way
    describe(t);
    l->state.sentence = NULL;  // its plan goes now
    if (last) *last = l->state;
done:
    dpcri_free(context, t->order);
    dpcri_ledger_close(l);
    dpcri_pass_destroy(&t->pass);
    dpcri_free(context, t);
    return status;
}
