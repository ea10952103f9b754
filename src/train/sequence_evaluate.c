// SPDX-License-Identifier: MIT
// Sequence models over data that they are not trained on: loss and accuracy of labelled sequences, and the likelihood
// of a text as one sequence.
#include <string.h>

#include "rt/rt.h"
#include "model/recurrent_internal.h"
#include "solve/solve_internal.h"
#include "train/loss.h"
#include "train/sequence_device.h"

static dpcr_status read_solve(const char *call, const dpcr_solve_options *given, dpcr_solve_options *made,
                              dpcr_error *error) {
    *made = (dpcr_solve_options){.size = sizeof *made};
    if (given) DPCRI_COPY_IN(*made, given);
    made->size = sizeof *made;
    if (made->guess != DPCR_GUESS_GIVEN) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                      "%s: guess is given, but there are no states to start from; wanted any other guess", call);
}

static dpcr_status refuse_unconverged(const char *call, const dpcri_sequence_pass *p, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int64_t c = 0; c < p->model->chains && status == DPCR_OK; c++)
        status = dpcri_refuse_unconverged(call, &p->reports[c], error);
    return status;
}

static dpcr_status refuse_stopped(const char *call, const dpcr_sequence *model, dpcr_error *error) {
    if (!dpcri_cancelled(model->context)) return DPCR_OK;
    return dpcri_fail_stopped(error, call);
}

// Nothing is kept for a way back, so a long batch need not be there whole: its last states lead from segment to
// segment.
static int64_t segment_of(const dpcr_sequence *model, int64_t batch) {
    enum { ROWS = 1 << 16 };
    const dpcr_recurrent_options *n = &model->options.network;
    if (model->options.readout != DPCR_READOUT_LAST || n->bidirectional || n->reverse) return 0;
    return (ROWS - 1) / batch + 1;
}

static dpcr_status evaluate_here(const char *call, dpcr_sequence *model, const dpcr_sequence_data *data,
                                 const dpcri_sequence_shape *shape, const dpcr_solve_options *options, dpcri_score *s,
                                 dpcr_error *error) {
    dpcr_status status;
    dpcri_sequence_pass pass = {0};
    DPCR_TRY(dpcri_sequence_pass_create(&pass, model, shape, error));
    for (int64_t first = 0; first < data->count; first += shape->batch) {
        const int64_t left = data->count - first, rows = left < shape->batch ? left : shape->batch;
        double mean = 0;
        int64_t correct = 0;
        DPCR_TRY(refuse_stopped(call, model, error));
        DPCR_TRY(dpcri_sequence_gather(call, &pass, data, NULL, first, error));
        if (first == 0) DPCR_TRY(dpcri_sequence_pass_plan(&pass, options, error));
        DPCR_TRY(dpcri_sequence_forward(&pass, rows, false, &mean, &correct, error));
        DPCR_TRY(refuse_unconverged(call, &pass, error));
        dpcr_reason reason;
        dpcri_recurrent_worst(pass.reports, model->chains, &reason, NULL);
        dpcri_score_add(s, mean, rows, correct, reason);
    }
done:
    dpcri_sequence_pass_destroy(&pass);
    return status;
}

// The same with data and parameters sent to the device of the options.
static dpcr_status evaluate_there(const char *call, dpcr_sequence *model, const dpcr_sequence_data *data,
                                  const dpcri_sequence_shape *shape, const dpcr_solve_options *options, dpcri_score *s,
                                  dpcr_error *error) {
    dpcr_status status;
    dpcri_sequence_device there = {0};
    DPCR_TRY(dpcri_sequence_device_create(&there, call, model, data, shape, 0, options, error));
    DPCR_TRY(dpcri_sequence_device_send(&there, error));
    for (int64_t first = 0; first < data->count; first += shape->batch) {
        const int64_t left = data->count - first, rows = left < shape->batch ? left : shape->batch;
        double mean = 0;
        int64_t correct = 0;
        DPCR_TRY(refuse_stopped(call, model, error));
        DPCR_TRY(dpcri_sequence_device_run(&there, first, rows, false, error));
        DPCR_TRY(dpcri_refuse_unconverged(call, &there.report, error));
        DPCR_TRY(dpcri_sequence_device_read(&there, &mean, &correct, error));
        dpcri_score_add(s, mean, rows, correct, there.report.reason);
    }
done:
    dpcri_sequence_device_destroy(&there);
    return status;
}

dpcr_status dpcr_sequence_evaluate(dpcr_context *context, dpcr_sequence *model, const dpcr_sequence_data *data,
                                   int64_t batch, const dpcr_solve_options *solve, double *loss, double *accuracy,
                                   dpcr_reason *reason, dpcr_error *error) {
    static const char call[] = "sequence_evaluate";
    dpcr_status status;
    dpcri_score s = {0};
    if (!context || !model || !data || batch < 1 || data->text)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: wanted a context, a model, labelled sequences and a batch of 1 or more", call);
    dpcr_solve_options options;
    DPCR_TRY(read_solve(call, solve, &options, error));
    DPCR_TRY(dpcri_sequence_check_data(call, model, data, error));
    dpcri_sequence_shape shape = {
        .length = data->longest, .batch = batch < data->count ? batch : data->count, .packed = !data->same_length};
    if (!dpcri_solve_on_device(&options)) shape.segment = segment_of(model, shape.batch);
    status = (dpcri_solve_on_device(&options) ? evaluate_there : evaluate_here)(call, model, data, &shape, &options, &s,
                                                                                error);
    if (status != DPCR_OK) goto done;
    if (loss) *loss = s.loss / (double)data->count;
    if (accuracy) *accuracy = (double)s.correct / (double)data->count;
    if (reason) *reason = s.reason;
done:
    return status;
}

static void set_text(char *to, size_t bytes, const char *text) {
    const size_t length = strnlen(text, bytes - 1);
    memcpy(to, text, length);
    to[length] = 0;
}

// Of a text's first stretch, but for what is the worst of all.
static void describe_likelihood(const dpcri_sequence_pass *p, bool first, dpcr_sequence_likelihood_report *r) {
    dpcr_reason reason;
    double residual;
    dpcri_recurrent_worst(p->reports, p->model->chains, &reason, &residual);
    r->reason = first ? reason : dpcr_reason_worse(r->reason, reason);
    if (first || residual > r->residual) r->residual = residual;
    if (!first) return;
    const dpcr_solve_plan *plan = dpcr_recurrent_plan_chain(p->plan, 0);
    r->method = p->reports[0].method;
    const char *memory = dpcr_solve_plan_memory(plan, &r->memory_rate, &r->memory_steps);
    set_text(r->memory, sizeof r->memory, memory ? memory : "unknown");
    set_text(r->sentence, sizeof r->sentence, dpcr_solve_plan_sentence(plan));
}

// One more stretch, from the states that the one before it left; `pass` serves it, or one of its length is made.
static dpcr_status stretch(dpcri_sequence_pass *pass, dpcr_sequence *model, const uint8_t *text, int64_t length,
                           const dpcr_solve_options *options, dpcr_sequence_likelihood_report *report, double *loss,
                           int64_t *correct, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const bool first = !pass->model;
    dpcri_sequence_pass next = {0};
    if (pass->shape.length != length) {
        const dpcri_sequence_shape shape = {.length = length, .batch = 1, .states_only = true};
        DPCR_TRY(dpcri_sequence_pass_create(&next, model, &shape, error));
    }
    dpcri_sequence_pass *to = next.model ? &next : pass;
    if (!first) memcpy(to->h0, pass->ht, pass->h_bytes);
    if (!first && to->c0) memcpy(to->c0, pass->ct, pass->c_bytes);
    for (int64_t t = 0; t < length; t++) to->symbols[t] = text[t];
    memcpy(to->labels, text + 1, (size_t)length);
    const double start = dpcri_seconds(), before = to->phases.forward;
    if (to == &next) DPCR_TRY(dpcri_sequence_pass_plan(to, options, error));
    const double planned = dpcri_seconds();
    DPCR_TRY(dpcri_sequence_forward(to, 0, false, loss, correct, error));
    report->plan_seconds += planned - start;
    report->seconds += dpcri_seconds() - planned;
    report->network_seconds += to->phases.forward - before;
    describe_likelihood(to, first, report);
    if (to == &next) {
        dpcri_sequence_pass_destroy(pass);
        *pass = next;
        next = (dpcri_sequence_pass){0};
    }
done:
    dpcri_sequence_pass_destroy(&next);
    return status;
}

// A long text goes by in stretches: its states need not be there at once.
static dpcr_status likelihood_here(const char *call, dpcr_sequence *model, const dpcr_sequence_data *data,
                                   const dpcr_solve_options *options, dpcr_sequence_likelihood_report *report,
                                   int64_t *correct, dpcr_error *error) {
    enum { STRETCH = 1 << 17 };
    dpcr_status status = DPCR_OK;
    dpcri_sequence_pass pass = {0};
    dpcri_score s = {0};
    const int64_t length = data->count - 1;
    for (int64_t first = 0, n; first < length; first += n) {
        double mean = 0;
        int64_t right = 0;
        n = length - first < STRETCH ? length - first : STRETCH;
        DPCR_TRY(refuse_stopped(call, model, error));
        DPCR_TRY(stretch(&pass, model, data->text + first, n, options, report, &mean, &right, error));
        DPCR_TRY(refuse_unconverged(call, &pass, error));
        dpcri_score_add(&s, mean, n, right, report->reason);
    }
    report->loss = s.loss / (double)length;
    *correct = s.correct;
done:
    dpcri_sequence_pass_destroy(&pass);
    return status;
}

// What it takes to send text and parameters counts as planning, and the whole pass as the network's.
static dpcr_status likelihood_there(const char *call, dpcr_sequence *model, const dpcr_sequence_data *data,
                                    const dpcr_solve_options *options, dpcr_sequence_likelihood_report *report,
                                    int64_t *correct, dpcr_error *error) {
    dpcr_status status;
    dpcri_sequence_device there = {0};
    const dpcri_sequence_shape shape = {.length = data->count - 1, .batch = 1, .states_only = true};
    const double start = dpcri_seconds();
    DPCR_TRY(dpcri_sequence_device_create(&there, call, model, data, &shape, shape.length, options, error));
    DPCR_TRY(dpcri_sequence_device_send(&there, error));
    report->plan_seconds = dpcri_seconds() - start;
    DPCR_TRY(dpcri_sequence_device_run(&there, 0, 0, false, error));
    DPCR_TRY(dpcri_refuse_unconverged(call, &there.report, error));
    DPCR_TRY(dpcri_sequence_device_read(&there, &report->loss, correct, error));
    report->seconds = report->network_seconds = dpcri_seconds() - start - report->plan_seconds;
    report->method = there.report.method;
    report->reason = there.report.reason;
    report->residual = there.report.residual;
    report->memory_steps = 0;
    report->memory_rate = 0;
    set_text(report->memory, sizeof report->memory, "unknown");
    set_text(report->sentence, sizeof report->sentence, there.plan->sentence);
done:
    dpcri_sequence_device_destroy(&there);
    return status;
}

dpcr_status dpcr_sequence_likelihood(dpcr_context *context, dpcr_sequence *model, const uint8_t *text, int64_t count,
                                     const dpcr_solve_options *solve, dpcr_sequence_likelihood_report *report,
                                     dpcr_error *error) {
    static const char call[] = "sequence_likelihood";
    dpcr_status status;
    int64_t correct = 0;
    if (!context || !model || !text || !report || report->size < sizeof *report)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: wanted a context, a model, a text and a report with its size", call);
    if (count < 2)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the text has %lld symbols, wanted 2 or more", call,
                          (long long)count);
    const dpcr_sequence_data data = {.size = sizeof data, .text = text, .count = count};
    dpcr_solve_options options;
    DPCR_TRY(read_solve(call, solve, &options, error));
    DPCR_TRY(dpcri_sequence_check_data(call, model, &data, error));
    report->seconds = report->network_seconds = report->plan_seconds = 0;
    DPCR_TRY((dpcri_solve_on_device(&options) ? likelihood_there : likelihood_here)(call, model, &data, &options,
                                                                                    report, &correct, error));
    report->accuracy = (double)correct / (double)(count - 1);
done:
    return status;
}
