// SPDX-License-Identifier: MIT
// The training loop. A run is a function of (model, data, options, plan): the order of the rows follows from (seed,
// epoch), every sum has a fixed order, and the planner's choices are kept with the checkpoint. So a position (epoch,
// batch) with the parameters and the optimiser's state is all that a resumed run needs to end with the same bits.
#include <math.h>
#include <string.h>

#include "rt/rt.h"
#include "train/ledger.h"

typedef struct training {
    dpcr_context *context;
    dpcr_model *model;
    const dpcr_dataset *data;
    dpcr_train_options options;  // every default filled in
    dpcri_normaliser normaliser;
    dpcri_pass pass;
    dpcr_optimiser *optimiser;
    dpcri_strings fixed;  // of the checkpoints
    dpcri_position position;
    int64_t batches;      // an epoch's
    int64_t *order;       // [count]: the epoch's permutation
    double began, saved;  // when the call, and when the last checkpoint was
    int64_t images;       // of this call
    dpcr_train_state state;
    bool ended;  // all steps were done before
} training;

// ---- options ----

static dpcr_status check_options(const dpcr_train_options *o, dpcr_error *error) {
    if (o->epochs < 1 || o->epochs > UINT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train: epochs is %lld, wanted 1 to 2^32 - 1",
                          (long long)o->epochs);
    if (o->batch < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train: batch is %lld, wanted 1 or more", (long long)o->batch);
    if (!(o->checkpoint_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train: checkpoint_seconds is %g, wanted 0 or more",
                          o->checkpoint_seconds);
    if (o->solve.guess == DPCR_GUESS_GIVEN)
        return dpcri_fail(
            error, DPCR_ERROR_UNSUPPORTED,
            "train: guess is given, but one batch's states are no guess for the next one's; wanted any other guess");
    return DPCR_OK;
}

static dpcr_status fill_options(training *t, const dpcr_train_options *given, dpcr_error *error) {
    dpcr_status status;
    dpcr_train_options *o = &t->options;
    if (given->size < offsetof(dpcr_train_options, progress_user) + sizeof given->progress_user)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "train: options.size is %zu, wanted sizeof(dpcr_train_options), %zu", given->size,
                          sizeof *given);
    memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    o->solve.size = sizeof o->solve;
    o->optimiser.size = sizeof o->optimiser;
    DPCR_TRY(check_options(o, error));
    if (o->checkpoint_seconds == 0) o->checkpoint_seconds = 10;
    t->batches = (t->data->count - 1) / o->batch + 1;
    if (!dpcri_mul(t->batches, o->epochs, &t->state.steps))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_OVERFLOW, "train: %lld epochs of %lld batches do not fit",
                            (long long)o->epochs, (long long)t->batches));
    if (o->optimiser.total == -1) o->optimiser.total = t->state.steps;
    const dpcr_optimiser_options as_given = o->optimiser;
    DPCR_TRY(dpcri_optimiser_options_fill(&as_given, &o->optimiser, error));
done:
    return status;
}

// ---- setting up ----

static dpcr_status make_pass(training *t, const dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    const int64_t count = t->data->count, batch = t->options.batch;
    const int64_t rows[DPCRI_SIZES] = {count >= batch ? batch : 0, count % batch};
    dpcr_solve_options solve[DPCRI_SIZES] = {t->options.solve, t->options.solve};
    const bool layers = dpcr_model_get_options(t->model)->layers > 0;
    for (int size = 0; saved && layers && size < DPCRI_SIZES; size++)
        if (rows[size]) DPCR_TRY(dpcri_saved_choices(saved, size, &solve[size], error));
    DPCR_TRY(dpcri_pass_create(&t->pass, t->context, t->model, rows, solve, true, error));
    for (int size = 0; size < DPCRI_SIZES; size++) dpcri_choices_add(&t->fixed, size, t->pass.plans[size]);
done:
    return status;
}

static dpcr_status set_normalisation(training *t, const dpcri_data_figures *figures, dpcr_error *error) {
    dpcr_status status;
    t->normaliser = dpcri_normaliser_make(dpcr_model_get_options(t->model)->dtype, figures->mean, figures->deviation);
    DPCR_TRY(dpcr_model_set_metadata(t->model, "pixel_mean", dpcri_number_text(figures->mean).text, error));
    DPCR_TRY(dpcr_model_set_metadata(t->model, "pixel_deviation", dpcri_number_text(figures->deviation).text, error));
done:
    return status;
}

// Everything that can be refused comes before the model's parameters change.
static dpcr_status set_up(training *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_saved read = {0}, *saved = NULL;
    int64_t parameters = 0;
    const dpcri_data_figures figures = dpcri_data_measure(t->context, t->data);
    dpcri_agreement_add(&t->fixed, &figures, t->data, &t->options);
    if (t->options.resume) {
        DPCR_TRY(dpcri_saved_read(&read, t->context, t->options.resume, error));
        DPCR_TRY(dpcri_saved_agrees(&read, t->model, &t->fixed, error));
        DPCR_TRY(dpcri_position_check("train", &read, t->options.epochs, t->batches, error));
        saved = &read;
    }
    DPCR_TRY(make_pass(t, saved, error));
    dpcr_model_vector(t->model, &parameters);
    DPCR_TRY(dpcr_optimiser_create(t->context, &t->options.optimiser, dpcr_model_get_options(t->model)->dtype,
                                   parameters, &t->optimiser, error));
    if (saved) DPCR_TRY(dpcri_saved_optimiser(saved, t->optimiser, "optimiser.first", "optimiser.second", error));
    t->order = dpcri_alloc(t->context, (size_t)t->data->count * sizeof *t->order);
    if (!t->order)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the order of %lld rows",
                            (long long)t->data->count));
    DPCR_TRY(set_normalisation(t, &figures, error));
    dpcr_model_zero_gradients(t->model);
    if (!saved) goto done;
    dpcri_saved_parameters(saved, t->model);
    t->position = saved->position;
    t->ended = t->position.step == t->state.steps;
done:
    dpcri_saved_free(&read);
    return status;
}

// ---- the state that the caller sees ----

static void describe_solve(training *t, int size) {
    dpcr_train_state *s = &t->state;
    const dpcr_solve_plan *plan = t->pass.plans[size];
    s->sweeps = t->pass.report.sweeps;
    s->method = t->pass.report.method;
    s->reason = t->pass.report.reason;
    s->backward = plan ? dpcr_solve_plan_backward(plan) : DPCR_SCHEME_SEQUENTIAL;
    s->sentence = plan ? dpcr_solve_plan_sentence(plan) : "the model has no layers";
}

static void describe_position(training *t) {
    dpcri_position_describe(&t->position, t->options.epochs, t->batches, t->data->count, t->images, t->began,
                            &t->state);
    t->state.phases = t->pass.phases;
}

// ---- steps ----

static dpcr_status save(training *t, dpcr_error *error) {
    double mark = dpcri_seconds();
    if (!t->options.save) return DPCR_OK;
    const dpcr_status status =
        dpcri_checkpoint_write(t->options.save, t->model, t->optimiser, &t->fixed, &t->position, error);
    dpcri_phase_end(&t->pass.phases.checkpoint, &mark);
    t->saved = mark;
    return status;
}

static dpcr_status check_result(const training *t, double loss, dpcr_error *error) {
    const long long step = (long long)t->position.step + 1;
    const dpcr_solve_report *report = &t->pass.report;
    if (report->reason == DPCR_REASON_NOT_CONVERGED)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "train: step %lld: %s did not converge in %d sweeps, and no_fallback is set; allow the "
                          "fallback or more sweeps",
                          step, dpcr_method_name(report->method), report->sweeps);
    if (isfinite(loss)) return DPCR_OK;
    return dpcri_position_refuse_loss("train", &t->position, step, loss, &t->options.optimiser, error);
}

static dpcr_status one_step(training *t, dpcr_error *error) {
    dpcr_status status;
    dpcri_position *p = &t->position;
    const int size = p->batch < t->data->count / t->options.batch ? 0 : 1;
    const int64_t rows = t->pass.rows[size];
    double loss = 0, mark = dpcri_seconds();
    int64_t correct = 0;
    dpcri_gather(t->context, t->data, t->order, p->batch * t->options.batch, rows, &t->normaliser, t->pass.x,
                 t->pass.y);
    dpcri_phase_end(&t->pass.phases.gather, &mark);
    DPCR_TRY(dpcri_pass_forward(&t->pass, size, true, &loss, &correct, error));
    describe_solve(t, size);
    DPCR_TRY(check_result(t, loss, error));
    DPCR_TRY(dpcri_pass_backward(&t->pass, size, error));
    mark = dpcri_seconds();
    dpcr_model_tie_gradients(t->model);
    dpcri_optimiser_update(t->optimiser, dpcr_model_vector(t->model, NULL), dpcr_model_gradient_vector(t->model), true);
    dpcri_phase_end(&t->pass.phases.update, &mark);
    p->batch++;
    p->step++;
    p->rows += rows;
    p->correct += correct;
    p->loss += loss * (double)rows;
    t->images += rows;
done:
    return status;
}

// True when somebody asks to stop.
static bool report_step(training *t) {
    describe_position(t);
    const bool stop = t->options.progress && t->options.progress(t->options.progress_user, &t->state) != 0;
    return dpcri_cancelled(t->context) || stop;
}

static dpcr_status stopped(const training *t, dpcr_error *error) {
    return dpcri_position_stopped(&t->position, t->state.steps, t->options.save, error);
}

// One epoch from where the position stands.
static dpcr_status run_epoch(training *t, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    while (t->position.batch < t->batches) {
        status = one_step(t, error);
        if (status == DPCR_ERROR_CANCELLED) {  // inside a solve: the position is the last step's still
            DPCR_TRY(save(t, error));
            DPCR_TRY(stopped(t, error));
        }
        if (status != DPCR_OK) goto done;
        const bool stop = report_step(t), last = t->position.step == t->state.steps;
        const bool due = dpcri_seconds() - t->saved >= t->options.checkpoint_seconds;
        if (stop || due || t->position.batch == t->batches) DPCR_TRY(save(t, error));
        if (stop && !last) DPCR_TRY(stopped(t, error));
    }
done:
    return status;
}

static dpcr_status run(training *t, dpcr_error *error) {
    dpcr_status status;
    // A run that goes on in the same file finds its checkpoint there already.
    const bool there = t->options.save && t->options.resume && strcmp(t->options.save, t->options.resume) == 0;
    if (!there) DPCR_TRY(save(t, error));
    t->saved = dpcri_seconds();
    for (status = DPCR_OK; !t->ended;) {
        if (t->position.batch == t->batches)
            t->position = (dpcri_position){.epoch = t->position.epoch + 1, .step = t->position.step};
        dpcri_shuffle(t->options.seed, t->position.epoch, t->data->count, t->order);
        DPCR_TRY(run_epoch(t, error));
        t->ended = t->position.step == t->state.steps;
    }
done:
    return status;
}

dpcr_status dpcr_train(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data,
                       const dpcr_train_options *options, dpcr_train_state *last, dpcr_error *error) {
    dpcr_status status;
    if (last) *last = (dpcr_train_state){0};
    if (!context || !model || !data || !options)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "train: context, model, data or options is NULL");
    training *t = dpcri_alloc_zero(context, sizeof *t);
    if (!t) return dpcri_fail(error, DPCR_ERROR_MEMORY, "train: no memory for the run's state (%zu bytes)", sizeof *t);
    t->context = context;
    t->model = model;
    t->data = data;
    t->began = dpcri_seconds();
    DPCR_TRY(dpcri_data_check("train", model, data, error));
    DPCR_TRY(fill_options(t, options, error));
    DPCR_TRY(set_up(t, error));
    status = run(t, error);
    if (status != DPCR_OK) dpcr_model_zero_gradients(model);  // a step may have ended half way
    describe_position(t);
    t->state.sentence = NULL;  // its plan goes now
    if (last) *last = t->state;
done:
    dpcri_free(context, t->order);
    dpcr_optimiser_destroy(t->optimiser);
    dpcri_pass_destroy(&t->pass);
    dpcri_free(context, t);
    return status;
}
