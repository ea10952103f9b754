// SPDX-License-Identifier: MIT
// Sequence models over data that they are not trained on: loss and accuracy of labelled sequences, and the likelihood
// of a text as one sequence.
#include <string.h>

#include "rt/rt.h"
#include "train/sequence.h"

static dpcr_solve_options solve_of(const dpcr_solve_options *given) {
    dpcr_solve_options made = {.size = sizeof made};
    if (given) memcpy(&made, given, given->size < sizeof made ? given->size : sizeof made);
    made.size = sizeof made;
    return made;
}

static dpcr_status refuse_unconverged(const char *call, const dpcri_sequence_pass *p, dpcr_error *error) {
    for (int64_t c = 0; c < p->model->chains; c++)
        if (p->reports[c].reason == DPCR_REASON_NOT_CONVERGED)
            return dpcri_fail(
                error, DPCR_ERROR_UNSUPPORTED,
                "%s: %s did not converge in %d sweeps, and no_fallback is set; allow the fallback or more "
                "sweeps",
                call, dpcr_method_name(p->reports[c].method), p->reports[c].sweeps);
    return DPCR_OK;
}

dpcr_status dpcr_sequence_evaluate(dpcr_context *context, dpcr_sequence *model, const dpcr_sequence_data *data,
                                   int64_t batch, const dpcr_solve_options *solve, double *loss, double *accuracy,
                                   dpcr_error *error) {
    static const char call[] = "sequence_evaluate";
    dpcr_status status;
    dpcri_sequence_pass pass = {0};
    double sum = 0;
    int64_t right = 0;
    if (!context || !model || !data || batch < 1 || data->text)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: wanted a context, a model, labelled sequences and a batch of 1 or more", call);
    const dpcr_solve_options options = solve_of(solve);
    DPCR_TRY(dpcri_sequence_check_data(call, model, data, error));
    const dpcri_sequence_shape shape = {
        .length = data->longest, .batch = batch < data->count ? batch : data->count, .packed = !data->same_length};
    DPCR_TRY(dpcri_sequence_pass_create(&pass, model, &shape, error));
    for (int64_t first = 0; first < data->count; first += shape.batch) {
        const int64_t left = data->count - first, rows = left < shape.batch ? left : shape.batch;
        double mean = 0;
        int64_t correct = 0;
        DPCR_TRY(dpcri_sequence_gather(call, &pass, data, NULL, first, error));
        if (first == 0) DPCR_TRY(dpcri_sequence_pass_plan(&pass, &options, error));
        DPCR_TRY(dpcri_sequence_forward(&pass, rows, false, &mean, &correct, error));
        DPCR_TRY(refuse_unconverged(call, &pass, error));
        sum += mean * (double)rows;
        right += correct;
    }
    if (loss) *loss = sum / (double)data->count;
    if (accuracy) *accuracy = (double)right / (double)data->count;
done:
    dpcri_sequence_pass_destroy(&pass);
    return status;
}

static void describe_likelihood(const dpcri_sequence_pass *p, dpcr_sequence_likelihood_report *r) {
    const dpcr_solve_plan *plan = dpcr_recurrent_plan_chain(p->plan, 0);
    const dpcr_solve_report *first = &p->reports[0];
    const size_t name = sizeof r->memory, sentence = sizeof r->sentence;
    r->method = first->method;
    r->reason = first->reason;
    r->residual = first->residual;
    for (int64_t c = 1; c < p->model->chains; c++) {
        if (p->reports[c].reason < r->reason) r->reason = p->reports[c].reason;
        if (p->reports[c].residual > r->residual) r->residual = p->reports[c].residual;
    }
    const char *memory = dpcr_solve_plan_memory(plan, &r->memory_rate, &r->memory_steps);
    const char *texts[2] = {memory ? memory : "unknown", dpcr_solve_plan_sentence(plan)};
    memcpy(r->memory, texts[0], strnlen(texts[0], name - 1));
    r->memory[strnlen(texts[0], name - 1)] = 0;
    memcpy(r->sentence, texts[1], strnlen(texts[1], sentence - 1));
    r->sentence[strnlen(texts[1], sentence - 1)] = 0;
}

dpcr_status dpcr_sequence_likelihood(dpcr_context *context, dpcr_sequence *model, const uint8_t *text, int64_t count,
                                     const dpcr_solve_options *solve, dpcr_sequence_likelihood_report *report,
                                     dpcr_error *error) {
    static const char call[] = "sequence_likelihood";
    dpcr_status status;
    dpcri_sequence_pass pass = {0};
    int64_t correct = 0;
    if (!context || !model || !text || !report || report->size < sizeof *report)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "%s: wanted a context, a model, a text and a report with its size", call);
    if (count < 2)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: the text has %lld symbols, wanted 2 or more", call,
                          (long long)count);
    const dpcr_sequence_data data = {.size = sizeof data, .text = text, .count = count};
    const dpcr_solve_options options = solve_of(solve);
    DPCR_TRY(dpcri_sequence_check_data(call, model, &data, error));
    const dpcri_sequence_shape shape = {.length = count - 1, .batch = 1, .states_only = true};
    DPCR_TRY(dpcri_sequence_pass_create(&pass, model, &shape, error));
    for (int64_t t = 0; t + 1 < count; t++) pass.symbols[t] = text[t];
    memcpy(pass.labels, text + 1, (size_t)(count - 1));
    const double start = dpcri_seconds();
    DPCR_TRY(dpcri_sequence_pass_plan(&pass, &options, error));
    report->plan_seconds = dpcri_seconds() - start;
    DPCR_TRY(dpcri_sequence_forward(&pass, 0, false, &report->loss, &correct, error));
    DPCR_TRY(refuse_unconverged(call, &pass, error));
    report->seconds = dpcri_seconds() - start - report->plan_seconds;
    report->network_seconds = pass.phases.forward;
    report->accuracy = (double)correct / (double)(count - 1);
    describe_likelihood(&pass, report);
done:
    dpcri_sequence_pass_destroy(&pass);
    return status;
}
