// SPDX-License-Identifier: MIT
#include "train/ledger.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "rt/rt.h"
#include "rt/trial.h"
#include "solve/solve_internal.h"

// ---- positions ----

dpcr_status dpcri_position_check(const char *call, const dpcri_saved *saved, int64_t epochs, int64_t batches,
                                 dpcr_error *error) {
    const dpcri_position *p = &saved->position;
    int64_t before = 0;
    if (p->epoch < epochs && p->batch <= batches && dpcri_mul(p->epoch, batches, &before) &&
        p->step == before + p->batch)
        return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "%s: resume from %s: it stands at epoch %lld, batch %lld, wanted at most %lld epochs of %lld "
                      "batches",
                      call, saved->path, (long long)p->epoch + 1, (long long)p->batch, (long long)epochs,
                      (long long)batches);
}

void dpcri_position_describe(const dpcri_position *p, int64_t epochs, int64_t batches, int64_t count, int64_t rows,
                             double began, dpcr_train_state *s) {
    s->epoch = p->epoch + 1;
    s->epochs = epochs;
    s->step = p->step;
    s->epoch_ended = p->batch == batches;
    s->loss = p->rows ? p->loss / (double)p->rows : 0;
    s->accuracy = p->rows ? (double)p->correct / (double)p->rows : 0;
    s->seconds = dpcri_seconds() - began;
    s->images_per_second = s->seconds > 0 ? (double)rows / s->seconds : 0;
    const double whole = (double)count * (double)epochs, done = (double)count * (double)p->epoch + (double)p->rows;
    s->seconds_left = s->images_per_second > 0 ? (whole - done) / s->images_per_second : 0;
}

dpcr_status dpcri_position_refuse_loss(const char *call, const dpcri_position *p, int64_t step, double loss,
                                       const dpcr_optimiser_options *optimiser, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "%s: step %lld (epoch %lld): the loss is %g, wanted a finite number; the rate is %g, a lower "
                      "one, clipping or a longer warm-up may help",
                      call, (long long)step, (long long)p->epoch + 1, loss, dpcri_schedule_rate(optimiser, step));
}

dpcr_status dpcri_position_stopped(const dpcri_position *p, int64_t steps, const char *save, int64_t saved,
                                   dpcr_error *error) {
    char held[48] = "";
    if (save && saved != p->step) snprintf(held, sizeof held, ", which holds step %lld", (long long)saved);
    return dpcri_fail(error, DPCR_ERROR_CANCELLED, "train: stopped as asked after step %lld of %lld%s%s%s",
                      (long long)p->step, (long long)steps, save ? "; to go on, resume from " : "", save ? save : "",
                      held);
}

bool dpcri_goes_on_in_place(const dpcr_train_options *o) {
    return o->save && o->resume && strcmp(o->save, o->resume) == 0;
}

// ---- the loop ----

int64_t dpcri_heed(const dpcr_context *context, int answer) {
    if (answer < 0) return DPCRI_STOP;
    return dpcri_cancelled(context) || answer ? DPCRI_STOP | DPCRI_SAVE : DPCRI_GO_ON;
}

// The step, with as many threads as the trial says.
static dpcr_status timed_step(const dpcri_loop *l, dpcri_trial *trial, dpcr_error *error) {
    const int64_t before = l->position->rows;
    const double began = dpcri_seconds();
    *l->threads = trial->now;
    dpcri_threads_limit(trial->now);
    const dpcr_status status = l->step(l->run, error);
    dpcri_threads_limit(0);
    dpcri_trial_note(trial, dpcri_seconds() - began, l->position->rows - before, l->steps - l->position->step);
    return status;
}

// The last checkpoint: of which step, and when.
typedef struct kept {
    int64_t step;
    double at;
} kept;

static dpcr_status save(const dpcri_loop *l, kept *saved, dpcr_error *error) {
    const dpcr_status status = l->save(l->run, error);
    *saved = (kept){l->position->step, dpcri_seconds()};
    return status;
}

static dpcr_status stopped(const dpcri_loop *l, const kept *saved, dpcr_error *error) {
    return dpcri_position_stopped(l->position, l->steps, l->options->save, saved->step, error);
}

static dpcr_status run_epoch(const dpcri_loop *l, dpcri_trial *trial, kept *saved, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_position *p = l->position;
    while (p->batch < l->batches) {
        status = timed_step(l, trial, error);
        if (status == DPCR_ERROR_CANCELLED) {  // inside a solve: the position is the last step's still
            DPCR_TRY(save(l, saved, error));
            DPCR_TRY(stopped(l, saved, error));
        }
        if (status != DPCR_OK) goto done;
        const int64_t said = l->report(l->run);
        const bool last = p->step == l->steps, ended = p->batch == l->batches;
        if (said == DPCRI_STOP)
            DPCR_TRY(l->check(l->run, error));
        else if (said || ended || dpcri_seconds() - saved->at >= l->options->checkpoint_seconds)
            DPCR_TRY(save(l, saved, error));
        if (said && !last) DPCR_TRY(stopped(l, saved, error));
    }
done:
    return status;
}

dpcr_status dpcri_loop_run(const dpcri_loop *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcri_position *p = l->position;
    kept saved = {p->step, dpcri_seconds()};
    if (!dpcri_goes_on_in_place(l->options)) DPCR_TRY(save(l, &saved, error));
    const int threads = dpcr_context_threads(l->context);
    dpcri_trial trial = {.all = threads, .now = threads};
    while (p->step < l->steps) {
        const bool first = p->batch == l->batches;
        if (first) *p = (dpcri_position){.epoch = p->epoch + 1, .step = p->step};
        l->begin(l->run, first);
        DPCR_TRY(run_epoch(l, &trial, &saved, error));
    }
done:
    return status;
}

// ---- options ----

static dpcr_status check_options(const char *call, const dpcr_train_options *o, dpcr_error *error) {
    if (o->epochs < 1 || o->epochs > UINT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: epochs is %lld, wanted 1 to 2^32 - 1", call,
                          (long long)o->epochs);
    if (o->batch < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: batch is %lld, wanted 1 or more", call, (long long)o->batch);
    if (!(o->checkpoint_seconds >= 0))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: checkpoint_seconds is %g, wanted 0 or more", call,
                          o->checkpoint_seconds);
    if (!(o->clip >= 0) || isinf(o->clip))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: clip is %g, wanted 0 (any norm) or more", call, o->clip);
    return DPCR_OK;
}

static dpcr_status count_steps(dpcri_ledger *l, const char *call, dpcr_error *error) {
    const dpcr_train_options *o = &l->options;
    l->batches = (l->data->count - 1) / o->batch + 1;
    if (dpcri_mul(l->batches, o->epochs, &l->state.steps)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "%s: %lld epochs of %lld batches do not fit", call,
                      (long long)o->epochs, (long long)l->batches);
}

dpcr_status dpcri_ledger_open(dpcri_ledger *l, const char *call, dpcr_context *context, dpcr_model *model,
                              const dpcr_dataset *data, const dpcr_train_options *given, dpcr_error *error) {
    dpcr_status status;
    l->context = context;
    l->model = model;
    l->data = data;
    l->began = l->saved = dpcri_seconds();
    DPCR_TRY(dpcri_data_check("train", model, data, error));
    dpcr_train_options *o = &l->options;
    if (given->size < offsetof(dpcr_train_options, progress_user) + sizeof given->progress_user)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                            "%s: options.size is %zu, wanted sizeof(dpcr_train_options), %zu", call, given->size,
                            sizeof *given));
    DPCRI_COPY_IN(*o, given);
    o->solve.size = sizeof o->solve;
    o->optimiser.size = sizeof o->optimiser;
    DPCR_TRY(check_options(call, o, error));
    if (dpcri_solve_on_device(&o->solve) && !l->planned)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "%s: workers on a device, wanted a solve on the processor; train runs on one by itself",
                            call));
    if (o->recompute && !l->planned)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                            "%s: recompute among workers, wanted 0; pipelines have an option of their own", call));
    if (o->checkpoint_seconds == 0) o->checkpoint_seconds = 10;
    DPCR_TRY(count_steps(l, call, error));
    if (o->optimiser.total == -1) o->optimiser.total = l->state.steps;
    const dpcr_optimiser_options as_given = o->optimiser;
    DPCR_TRY(dpcri_optimiser_options_fill(&as_given, &o->optimiser, error));
done:
    return status;
}

// ---- beginning ----

// A plain training run could go on from our checkpoints: it would find a plan's choices, of each size of its batches.
static void add_choices(dpcri_ledger *l) {
    const dpcr_solve_options loop = {.method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    int64_t rows[DPCRI_SIZES];
    dpcri_pass_rows(l->data->count, l->options.batch, rows);
    for (int size = 0; size < DPCRI_SIZES && dpcr_model_get_options(l->model)->layers > 0; size++)
        if (rows[size]) dpcri_choices_add_options(&l->fixed, size, &loop);
}

static dpcr_status read_checkpoint(dpcri_ledger *l, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(dpcri_saved_read(&l->from, l->context, l->options.resume, error));
    // A device has one way back, of its own, in place of the loop's too.
    if (dpcri_solve_on_device(&l->options.solve))
        dpcri_saved_keep(&l->from, "solve.backward", dpcr_scheme_name(DPCR_SCHEME_SEQUENTIAL), &l->fixed);
    dpcri_saved_keep_loop(&l->from, "method", &l->fixed);
    dpcri_saved_keep_loop(&l->from, "backward", &l->fixed);
    DPCR_TRY(dpcri_saved_agrees(&l->from, l->model, &l->fixed, error));
    DPCR_TRY(dpcri_position_check("train", &l->from, l->options.epochs, l->batches, error));
    l->start = l->from.position;
done:
    return status;
}

dpcr_status dpcri_ledger_read(dpcri_ledger *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcri_data_figures figures = dpcri_data_measure(l->context, l->data);
    l->mean = figures.mean;
    l->deviation = figures.deviation;
    dpcri_agreement_add(&l->fixed, &figures, l->data, &l->options);
    if (l->options.resume) DPCR_TRY(read_checkpoint(l, error));
done:
    return status;
}

dpcr_status dpcri_ledger_take(dpcri_ledger *l, dpcr_error *error) {
    dpcr_status status;
    int64_t count = 0;
    const dpcr_dtype dtype = dpcr_model_get_options(l->model)->dtype;
    dpcr_model_vector(l->model, &count);
    DPCR_TRY(dpcri_optimiser_create(l->context, &l->options.optimiser, dtype, count, &l->optimiser, error));
    if (l->options.resume)
        DPCR_TRY(dpcri_saved_optimiser(&l->from, l->optimiser, "optimiser.first", "optimiser.second", error));
    l->normaliser = dpcri_normaliser_make(dtype, l->mean, l->deviation);
    DPCR_TRY(dpcr_model_set_metadata(l->model, "pixel_mean", dpcri_number_text(l->mean).text, error));
    DPCR_TRY(dpcr_model_set_metadata(l->model, "pixel_deviation", dpcri_number_text(l->deviation).text, error));
    dpcr_model_zero_gradients(l->model);
    if (l->options.resume) dpcri_saved_parameters(&l->from, l->model);
    dpcri_saved_free(&l->from);
    if (!l->planned) add_choices(l);
    l->position = l->start;
    l->held = l->start.step;
done:
    return status;
}

void dpcri_ledger_close(dpcri_ledger *l) {
    dpcri_saved_free(&l->from);
    dpcr_optimiser_destroy(l->optimiser);
    l->optimiser = NULL;
}

bool dpcri_ledger_ended(const dpcri_ledger *l, const dpcri_position *p) {
    return p->epoch + 1 == l->options.epochs && p->batch == l->batches;
}

// ---- during the run ----

dpcr_status dpcri_ledger_judge(const dpcri_ledger *l, const dpcr_solve_report *report, double loss, dpcr_error *error) {
    const dpcri_position *p = &l->position;
    char step[48];
    snprintf(step, sizeof step, "train: step %lld", (long long)p->step + 1);
    const dpcr_status status = dpcri_refuse_unconverged(step, report, error);
    if (status || isfinite(loss)) return status;
    return dpcri_position_refuse_loss("train", p, p->step + 1, loss, &l->options.optimiser, error);
}

dpcr_status dpcri_ledger_note(dpcri_ledger *l, double loss, int64_t correct, int64_t updates, int64_t rows,
                              dpcr_error *error) {
    dpcri_position *p = &l->position;
    if (!isfinite(loss))
        return dpcri_position_refuse_loss("train", p, p->step + updates, loss, &l->options.optimiser, error);
    p->batch += updates;
    p->step += updates;
    p->rows += rows;
    p->correct += correct;
    p->loss += loss * (double)rows;
    l->images += rows;
    return DPCR_OK;
}

void dpcri_ledger_describe(dpcri_ledger *l, const char *sentence) {
    dpcr_train_state *s = &l->state;
    dpcri_position_describe(&l->position, l->options.epochs, l->batches, l->data->count, l->images, l->began, s);
    s->method = DPCR_METHOD_SEQUENTIAL;
    s->backward = DPCR_SCHEME_SEQUENTIAL;
    s->reason = s->backward_reason = DPCR_REASON_SEQUENTIAL;
    s->sentence = sentence;
}

void dpcri_ledger_describe_solve(dpcri_ledger *l, const dpcr_solve_plan *plan, const dpcr_solve_report *report) {
    dpcr_train_state *s = &l->state;
    dpcri_ledger_describe(l, plan ? dpcr_solve_plan_sentence(plan) : "the model has no layers");
    s->sweeps = report->sweeps;
    s->method = report->method;
    s->reason = report->reason;
    s->backward = plan ? dpcr_solve_plan_backward(plan) : DPCR_SCHEME_SEQUENTIAL;
}

int64_t dpcri_ledger_report(const dpcri_ledger *l) {
    const int answer = l->options.progress ? l->options.progress(l->options.progress_user, &l->state) : 0;
    return dpcri_heed(l->context, answer);
}

int64_t dpcri_ledger_decide(dpcri_ledger *l, const char *sentence) {
    dpcri_ledger_describe(l, sentence);
    const int64_t said = dpcri_ledger_report(l);
    const bool ended = l->position.batch == l->batches;
    const bool due = dpcri_seconds() - l->saved >= l->options.checkpoint_seconds;
    if (said != DPCRI_GO_ON) return said;
    return ended || (l->options.save && due) ? DPCRI_SAVE : DPCRI_GO_ON;
}

dpcr_status dpcri_ledger_write(dpcri_ledger *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    double mark = dpcri_seconds();
    // Other workers may be reading it while the first checkpoint is written.
    if (l->optimiser->step != l->position.step) l->optimiser->step = l->position.step;
    if (l->options.save)
        DPCR_TRY(dpcri_checkpoint_write(l->options.save, l->model, l->optimiser, &l->fixed, &l->position, error));
    else
        DPCR_TRY(dpcri_ledger_check(l, error));
    dpcri_phase_end(&l->state.phases.checkpoint, &mark);
    l->saved = mark;
    l->held = l->position.step;
done:
    return status;
}

dpcr_status dpcri_ledger_check(const dpcri_ledger *l, dpcr_error *error) {
    return dpcri_parameters_check(l->model, &l->position, error);
}

dpcr_status dpcri_ledger_stopped(const dpcri_ledger *l, dpcr_error *error) {
    return dpcri_position_stopped(&l->position, l->state.steps, l->options.save, l->held, error);
}

dpcr_status dpcri_ledger_end(const dpcri_ledger *l, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    if (l->held != l->position.step) DPCR_TRY(dpcri_ledger_check(l, error));
    if (!dpcri_ledger_ended(l, &l->position)) DPCR_TRY(dpcri_ledger_stopped(l, error));
done:
    return status;
}
