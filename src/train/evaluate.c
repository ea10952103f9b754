// SPDX-License-Identifier: MIT
// Mean loss and accuracy of a classifier over a data set, in the set's own order.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "rt/rt.h"
#include "solve/solve_internal.h"
#include "train/batches.h"
#include "train/device_pass.h"
#include "train/loss.h"
#include "train/pass.h"

static dpcr_status read_number(const dpcr_model *model, const char *key, double fallback, double *value,
                               dpcr_error *error) {
    const char *text = dpcr_model_metadata(model, key);
    *value = fallback;
    if (!text || (dpcri_number_parse(text, value) && isfinite(*value))) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT,
                      "evaluate: the model's metadata '%s' is '%.40s', wanted a finite number", key, text);
}

static dpcr_status make_normaliser(const dpcr_model *model, dpcri_normaliser *normaliser, dpcr_error *error) {
    dpcr_status status;
    double mean, deviation;
    DPCR_TRY(read_number(model, "pixel_mean", 0, &mean, error));
    DPCR_TRY(read_number(model, "pixel_deviation", 1, &deviation, error));
    if (!(deviation > 0))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT,
                            "evaluate: the model's metadata 'pixel_deviation' is %g, wanted more than 0", deviation));
    *normaliser = dpcri_normaliser_make(dpcr_model_get_options(model)->dtype, mean, deviation);
done:
    return status;
}

static dpcr_status refuse_open(const dpcr_solve_report *report, int64_t first, dpcr_error *error) {
    char rows[48];
    snprintf(rows, sizeof rows, "evaluate: rows from %lld", (long long)first);
    return dpcri_refuse_unconverged(rows, report, error);
}

static dpcr_status refuse_stopped(dpcr_context *context, dpcr_error *error) {
    if (!dpcri_cancelled(context)) return DPCR_OK;
    return dpcri_fail_stopped(error, "evaluate");
}

// Rows whose states take some 32 MB: nobody reads these but the last, and by the loop no row's bits depend on the
// others. Whole vectors of rows where there is one.
static int64_t rows_at_once(const dpcr_model *model) {
    enum { VECTOR = 16 };
    const double bytes = 1 << 25;
    const dpcr_model_options *o = dpcr_model_get_options(model);
    const double row = (double)o->layers * (double)o->width * (double)dpcr_dtype_size(o->dtype);
    const double rows = row > 0 ? bytes / row : bytes;
    return rows < 1 ? 1 : rows < VECTOR ? (int64_t)rows : (int64_t)rows / VECTOR * VECTOR;
}

// By the loop in pieces of fewer rows than `batch`, which says so.
static dpcr_status make_pass(dpcri_pass *pass, dpcr_context *context, dpcr_model *model, int64_t count, int64_t *batch,
                             const dpcr_solve_options *options, dpcr_error *error) {
    dpcr_status status;
    int64_t rows[DPCRI_SIZES];
    dpcr_solve_options both[DPCRI_SIZES] = {*options, *options};
    const int64_t few = rows_at_once(model), given = *batch < count ? *batch : count;
    dpcri_pass_rows(count, *batch, rows);
    DPCR_TRY(dpcri_pass_plan(pass, context, model, rows, both, false, error));
    if (few < given && dpcri_pass_is_loop(pass)) {
        *batch = few;
        both[0].method = both[1].method = DPCR_METHOD_SEQUENTIAL;
        dpcri_pass_destroy(pass);
        dpcri_pass_rows(count, few, rows);
        DPCR_TRY(dpcri_pass_plan(pass, context, model, rows, both, false, error));
    }
    DPCR_TRY(dpcri_pass_allocate(pass, false, error));
done:
    return status;
}

static dpcr_status run(dpcr_context *context, const dpcr_dataset *data, int64_t batch,
                       const dpcri_normaliser *normaliser, dpcri_pass *pass, dpcri_score *s, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int64_t first = 0; first < data->count; first += batch) {
        const int size = data->count - first >= batch ? 0 : 1;
        double mean = 0;
        int64_t right = 0;
        DPCR_TRY(refuse_stopped(context, error));
        dpcri_gather(context, data, NULL, first, pass->rows[size], normaliser, pass->x, pass->y);
        DPCR_TRY(dpcri_pass_forward(pass, size, false, &mean, &right, error));
        DPCR_TRY(refuse_open(&pass->report, first, error));
        dpcri_score_add(s, mean, pass->rows[size], right, pass->report.reason);
    }
done:
    return status;
}

// The same with data and parameters sent to the device of the options.
static dpcr_status run_there(dpcr_context *context, const dpcr_model *model, const dpcr_dataset *data, int64_t batch,
                             const dpcri_normaliser *normaliser, const int64_t rows[DPCRI_SIZES],
                             const dpcr_solve_options solve[DPCRI_SIZES], dpcri_score *s, dpcr_error *error) {
    dpcr_status status;
    dpcri_device_pass pass = {0};
    DPCR_TRY(dpcri_device_pass_create(&pass, "evaluate", context, model, data, normaliser, rows, solve, false, false,
                                      error));
    for (int64_t first = 0; first < data->count; first += batch) {
        const int size = data->count - first >= batch ? 0 : 1;
        double mean = 0;
        int64_t right = 0;
        DPCR_TRY(refuse_stopped(context, error));
        DPCR_TRY(dpcri_device_pass_run(&pass, size, first, false, false, error));
        DPCR_TRY(refuse_open(&pass.report, first, error));
        DPCR_TRY(dpcri_device_pass_read(&pass, &mean, &right, error));
        dpcri_score_add(s, mean, pass.rows[size], right, pass.report.reason);
    }
done:
    dpcri_device_pass_destroy(&pass);
    return status;
}

dpcr_status dpcr_evaluate(dpcr_context *context, dpcr_model *model, const dpcr_dataset *data, int64_t batch,
                          const dpcr_solve_options *solve, double *loss, double *accuracy, dpcr_reason *reason,
                          dpcr_error *error) {
    dpcr_status status;
    dpcri_pass pass = {0};
    dpcri_normaliser normaliser;
    dpcri_score s = {0};
    if (!context || !model || !data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "evaluate: context, model or data is NULL");
    if (batch < 1)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "evaluate: batch is %lld, wanted 1 or more", (long long)batch);
    dpcr_solve_options options = {.size = sizeof options};
    if (solve) DPCRI_COPY_IN(options, solve);
    options.size = sizeof options;
    if (options.guess == DPCR_GUESS_GIVEN)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED,
                          "evaluate: guess is given, but there are no states to start from; wanted any other guess");
    DPCR_TRY(dpcri_data_check("evaluate", model, data, error));
    DPCR_TRY(make_normaliser(model, &normaliser, error));
    if (dpcri_solve_on_device(&options)) {
        int64_t rows[DPCRI_SIZES];
        dpcri_pass_rows(data->count, batch, rows);
        const dpcr_solve_options both[DPCRI_SIZES] = {options, options};
        DPCR_TRY(run_there(context, model, data, batch, &normaliser, rows, both, &s, error));
    } else {
        DPCR_TRY(make_pass(&pass, context, model, data->count, &batch, &options, error));
        DPCR_TRY(run(context, data, batch, &normaliser, &pass, &s, error));
    }
    if (loss) *loss = s.loss / (double)data->count;
    if (accuracy) *accuracy = (double)s.correct / (double)data->count;
    if (reason) *reason = s.reason ? s.reason : DPCR_REASON_SEQUENTIAL;  // of no layers there is no solve
done:
    dpcri_pass_destroy(&pass);
    return status;
}
