// SPDX-License-Identifier: MIT
// A pipeline on threads: the ranks live from run to run, the threads for one run.
#include <string.h>

#include "model/model_internal.h"
#include "pipe/executor.h"
#include "pipe/executor_context.h"

struct dpcr_pipeline {
    dpcr_context *context;
    dpcri_lender lender;
    dpcr_context *messages;  // whose memory messages are
    dpcr_schedule schedule;
    dpcri_table table;
    dpcr_model *model;  // a copy: what the stages were cut from
    dpcr_pipeline_options options;
    dpcr_optimiser_options optimiser;
    int64_t *first;
    dpcri_rank *ranks;
    dpcr_context **contexts;  // [ranks]
    bool failed;
};

// ---- making ----

static dpcr_status copy_schedule(dpcr_context *context, const dpcr_schedule *from, dpcr_schedule *to,
                                 dpcr_error *error) {
    const int64_t actions = from->first[from->ranks];
    const dpcr_status status =
        dpcri_schedule_alloc(context, from->ranks, from->stages, from->microbatches, actions, to, error);
    if (status != DPCR_OK) return status;
    to->chains = from->chains;
    to->semantics = from->semantics;
    to->accumulate = from->accumulate;
    memcpy(to->first, from->first, (size_t)(from->ranks + 1) * sizeof *to->first);
    memcpy(to->delay, from->delay, (size_t)from->stages * sizeof *to->delay);
    memcpy(to->actions, from->actions, (size_t)actions * sizeof *to->actions);
    return DPCR_OK;
}

static dpcr_status make_ranks(dpcr_pipeline *p, dpcr_error *error) {
    dpcr_status status;
    const size_t ranks = (size_t)p->schedule.ranks;
    DPCR_TRY(dpcri_lender_open(&p->lender, p->context, error));
    DPCR_TRY(dpcri_lender_context(&p->lender, &p->messages, error));
    p->ranks = dpcri_alloc_zero(p->context, ranks * sizeof *p->ranks);
    p->contexts = dpcri_alloc_zero(p->context, ranks * sizeof *p->contexts);
    if (!p->ranks || !p->contexts)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline: no memory for %zu ranks", ranks));
    for (size_t r = 0; r < ranks; r++) {
        DPCR_TRY(dpcri_lender_context(&p->lender, &p->contexts[r], error));
        DPCR_TRY(dpcri_rank_create(&p->ranks[r], p->contexts[r], (int64_t)r, p->model, &p->table, p->first, &p->options,
                                   NULL, error));
    }
done:
    return status;
}

dpcr_status dpcr_pipeline_create(dpcr_context *context, dpcr_model *model, const dpcr_schedule *schedule,
                                 const dpcr_pipeline_options *options, dpcr_pipeline **pipeline, dpcr_error *error) {
    dpcr_status status;
    dpcr_pipeline *p = NULL;
    if (pipeline) *pipeline = NULL;
    if (!context || !model || !schedule || !pipeline)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pipeline_create: context, model, schedule or pipeline is NULL");
    DPCR_TRY(dpcr_schedule_validate(context, schedule, 0, error));
    p = dpcri_alloc_zero(context, sizeof *p);
    if (!p) return dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline_create: no memory for the pipeline");
    p->context = context;
    DPCR_TRY(dpcri_pipeline_options_fill(options, schedule, &p->options, error));
    if (p->options.optimiser) {
        p->optimiser = *p->options.optimiser;
        p->options.optimiser = &p->optimiser;
    }
    DPCR_TRY(dpcri_stages_cut(context, model, schedule, p->options.first, &p->first, error));
    p->options.first = p->first;
    DPCR_TRY(copy_schedule(context, schedule, &p->schedule, error));
    DPCR_TRY(dpcri_table_create(context, &p->schedule, &p->table, error));
    dpcr_model_options same = model->options;
    same.blank = 1;
    DPCR_TRY(dpcr_model_create(context, &same, &p->model, error));
    memcpy(p->model->parameters, model->parameters, (size_t)model->count * model->program.kernels->element);
    DPCR_TRY(make_ranks(p, error));
    *pipeline = p;
    p = NULL;
done:
    dpcr_pipeline_destroy(p);
    return status;
}

void dpcr_pipeline_destroy(dpcr_pipeline *p) {
    if (!p) return;
    for (int64_t r = 0; r < p->schedule.ranks; r++) {
        if (p->ranks) dpcri_rank_destroy(&p->ranks[r]);
        if (p->contexts) dpcr_context_destroy(p->contexts[r]);
    }
    dpcri_free(p->context, p->contexts);
    dpcri_free(p->context, p->ranks);
    dpcr_context_destroy(p->messages);
    dpcri_lender_close(&p->lender);
    dpcr_model_destroy(p->model);
    dpcri_table_destroy(p->context, &p->table);
    dpcr_schedule_free(p->context, &p->schedule);
    dpcri_free(p->context, p->first);
    dpcri_free(p->context, p);
}

// ---- runs ----

typedef struct given_rows {
    const dpcr_array *x;
    const uint8_t *labels;
} given_rows;

static void get_rows(void *user, int64_t first, int64_t rows, void *x, uint8_t *y) {
    const given_rows *g = user;
    const size_t e = dpcr_dtype_size(g->x->dtype);
    for (int64_t r = 0; x && r < rows; r++)
        memcpy((char *)x + (size_t)(r * g->x->shape[1]) * e,
               (const char *)g->x->data + (first + r) * g->x->strides[0] * (int64_t)e, (size_t)g->x->shape[1] * e);
    if (y) memcpy(y, g->labels + first, (size_t)rows);
}

typedef struct run {
    dpcr_pipeline *pipeline;
    dpcri_rows_source source;
    double *times;  // [actions][2] or NULL
} run;

static dpcr_status run_rank(void *argument, dpcri_comm *comm, dpcr_error *error) {
    const run *r = argument;
    dpcri_rank *rank = &r->pipeline->ranks[comm->rank];
    rank->comm = comm;
    rank->times = r->times ? r->times + 2 * r->pipeline->schedule.first[comm->rank] : NULL;
    return dpcri_rank_run(rank, &r->source, error);
}

static void fill_report(const run *r, dpcr_pipeline_report *report) {
    const dpcr_pipeline *p = r->pipeline;
    double began = 0, ended = 0, loss = 0;
    report->correct = 0;
    report->busy = report->activation_bytes = 0;
    for (int64_t k = 0; k < p->schedule.ranks; k++) {
        const dpcri_rank *rank = &p->ranks[k];
        if (k == 0 || rank->began < began) began = rank->began;
        if (k == 0 || rank->ended > ended) ended = rank->ended;
        if (rank->busy > report->busy) report->busy = rank->busy;
        const double bytes = dpcri_rank_activation_bytes(rank);
        if (bytes > report->activation_bytes) report->activation_bytes = bytes;
        report->correct += rank->correct[0] + rank->correct[1];
    }
    for (int chain = 0; chain < 2; chain++)
        for (int64_t k = 0; k < p->schedule.ranks; k++) loss += p->ranks[k].loss[chain];
    report->loss = loss / (double)r->source.rows;
    report->norm = p->ranks[0].norm;
    report->makespan = ended - began;
    for (int64_t n = 0; r->times && n < p->schedule.first[p->schedule.ranks]; n++) {
        if (report->start) report->start[n] = r->times[2 * n] - began;
        if (report->end) report->end[n] = r->times[2 * n + 1] - began;
    }
}

static dpcr_status check_rows(const dpcr_pipeline *p, const dpcr_array *x, const uint8_t *labels, int64_t batch,
                              dpcr_error *error) {
    const dpcr_model_options *o = &p->model->options;
    const int64_t inputs = o->inputs ? o->inputs : o->width;
    int64_t rows = 0;
    dpcr_status status;
    DPCR_TRY(dpcri_model_check_rows(p->model, "pipeline_run", "x", x, -1, inputs, &rows, error));
    if (rows < 1) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pipeline_run: x has no rows");
    for (int64_t r = 0; r < rows; r++)
        if (labels[r] >= o->outputs)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "pipeline_run: label of row %lld is %d, wanted less than %lld", (long long)r,
                              (int)labels[r], (long long)o->outputs);
    const int64_t updates = p->table.updates;
    if (p->schedule.semantics == DPCR_SYNCHRONOUS || (batch >= 1 && (rows - 1) / batch == updates - 1)) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                      "pipeline_run: %lld rows in batches of %lld are not the schedule's %lld updates", (long long)rows,
                      (long long)batch, (long long)updates);
done:
    return status;
}

dpcr_status dpcr_pipeline_run(dpcr_pipeline *p, const dpcr_array *x, const uint8_t *labels, int64_t batch,
                              dpcr_pipeline_report *report, dpcr_error *error) {
    dpcr_status status;
    run r = {.pipeline = p};
    if (!p || !x || !labels || (report && report->size < sizeof *report))
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "pipeline_run: pipeline, x or labels is NULL, or the report has another size");
    if (p->failed) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pipeline_run: an earlier run failed");
    DPCR_TRY(check_rows(p, x, labels, batch, error));
    given_rows rows = {x, labels};
    r.source = (dpcri_rows_source){.get = get_rows, .user = &rows, .rows = x->shape[0], .batch = batch};
    if (report && (report->start || report->end)) {
        r.times = dpcri_alloc(p->context, 2 * (size_t)p->schedule.first[p->schedule.ranks] * sizeof *r.times);
        if (!r.times) DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "pipeline_run: no memory for times"));
    }
    p->failed = true;
    DPCR_TRY(dpcri_threads_run(p->messages, p->schedule.ranks, p->options.deadline, run_rank, &r, error));
    p->failed = false;
    if (report) fill_report(&r, report);
done:
    dpcri_free(p->context, r.times);
    return status;
}

dpcr_status dpcr_pipeline_gather(dpcr_pipeline *p, dpcr_model *model, dpcr_error *error) {
    if (!p || !model || p->failed)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "pipeline_gather: wanted a model and a pipeline of which no run failed");
    if (model->count != p->model->count || model->options.dtype != p->model->options.dtype ||
        model->program.parameters != p->model->program.parameters || model->head != p->model->head)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "pipeline_gather: the model is not one like the pipeline's");
    for (int64_t r = 0; r < p->schedule.ranks; r++)
        for (int64_t k = 0; k < p->ranks[r].share_count; k++) {
            const dpcri_share *share = &p->ranks[r].shares[k];
            if (!share->owner || share->stage >= dpcri_chain_stages(&p->schedule)) continue;
            dpcri_units_put(model, share->first_unit, share->end_unit, dpcri_share_newest(share), model->parameters);
            dpcri_units_put(model, share->first_unit, share->end_unit, dpcr_model_gradient_vector(share->layers.model),
                            model->gradients);
        }
    return DPCR_OK;
}
