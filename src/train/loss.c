// SPDX-License-Identifier: MIT
// Losses and their gradients. All sums in double and in a fixed order (rows ascending, then columns), whatever the type
// of the arrays, so that a loss neither depends on threads nor loses the digits that a sum over many rows would cost in
// float.
//
//   cross-entropy   l = 1/B sum_b (log sum_j exp(y_bj) - y_b,label),   dl/dy_bj = (softmax(y_b)_j - [j = label_b]) / B
//                   with the row's maximum taken out: log sum exp(y) = max + log sum exp(y - max), which cannot
//                   overflow
//   mean square     l = 1/n sum (y - t)^2,   dl/dy = 2 (y - t) / n
#include <math.h>

#include "train/loss.h"

static double get(const dpcr_array *array, int64_t at) {
    return array->dtype == DPCR_F64 ? ((const double *)array->data)[at] : (double)((const float *)array->data)[at];
}

static void put(const dpcr_array *array, int64_t at, double value) {
    if (array->dtype == DPCR_F64)
        ((double *)array->data)[at] = value;
    else
        ((float *)array->data)[at] = (float)value;
}

// What an invalid operation gives has a sign on some processors, which printf shows as -nan.
static double nan_has_no_sign(double x) { return isnan(x) ? (double)NAN : x; }

static dpcr_status check_values(const char *call, const char *name, const dpcr_array *array, dpcr_error *error) {
    char text[96];
    const bool known = array->dtype == DPCR_F32 || array->dtype == DPCR_F64;
    const bool host = array->device.type == DPCR_HOST;
    bool filled = array->ndim >= 0 && array->ndim <= DPCR_MAX_DIMS && array->data;
    for (int32_t d = 0; filled && d < array->ndim; d++) filled = array->shape[d] > 0;
    if (known && host && filled) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted float32 or float64 on the host, no extent 0",
                      call, name, dpcri_array_text(array, text, sizeof text));
}

static dpcr_status check_alike(const char *call, const char *name, const dpcr_array *array, const dpcr_array *like,
                               dpcr_error *error) {
    char got[96], wanted[96];
    const dpcr_status status = check_values(call, name, array, error);
    if (status != DPCR_OK) return status;
    bool alike = array->dtype == like->dtype && array->ndim == like->ndim;
    for (int32_t d = 0; alike && d < like->ndim; d++) alike = array->shape[d] == like->shape[d];
    if (alike) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is %s, wanted %s", call, name,
                      dpcri_array_text(array, got, sizeof got), dpcri_array_text(like, wanted, sizeof wanted));
}

static dpcr_status check_cross_entropy(const dpcr_array *logits, const uint8_t *labels, const dpcr_array *dlogits,
                                       dpcr_error *error) {
    static const char call[] = "loss_cross_entropy";
    dpcr_status status;
    DPCR_TRY(check_values(call, "logits", logits, error));
    if (logits->ndim != 2)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: logits have %d dimensions, wanted 2: [rows][classes]",
                            call, (int)logits->ndim));
    if (dlogits) DPCR_TRY(check_alike(call, "dlogits", dlogits, logits, error));
    DPCR_TRY(dpcri_check_written(call, "dlogits", dlogits, error));
    for (int64_t b = 0; b < logits->shape[0]; b++)
        if (labels[b] >= logits->shape[1])
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: label of row %lld is %d, wanted less than %lld", call,
                                (long long)b, (int)labels[b], (long long)logits->shape[1]));
done:
    return status;
}

// First column of the largest value; NaN is never the largest.
static int64_t largest(const dpcr_array *logits, int64_t row) {
    int64_t best = 0;
    for (int64_t j = 1; j < logits->shape[1]; j++) {
        const double champion = get(logits, row + best * logits->strides[1]);
        if (get(logits, row + j * logits->strides[1]) > champion || isnan(champion)) best = j;
    }
    return best;
}

// sum_j exp(y_j - max) of a row: in 1..columns, or NaN with a NaN or +infinity in the row.
static double sum_exp(const dpcr_array *logits, int64_t row, double max) {
    double sum = 0;
    for (int64_t j = 0; j < logits->shape[1]; j++) sum += exp(get(logits, row + j * logits->strides[1]) - max);
    return sum;
}

dpcr_status dpcr_loss_cross_entropy(const dpcr_array *logits, const uint8_t *labels, double *loss,
                                    const dpcr_array *dlogits, int64_t *correct, dpcr_error *error) {
    if (!logits || !labels || !loss)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "loss_cross_entropy: logits, labels or loss is NULL");
    double total = 0;
    int64_t right = 0;
    const dpcr_status status =
        dpcri_loss_cross_entropy_part(logits, labels, logits->shape[0], &total, dlogits, &right, error);
    if (status != DPCR_OK) return status;
    *loss = total / (double)logits->shape[0];
    if (correct) *correct = right;
    return DPCR_OK;
}

dpcr_status dpcri_loss_cross_entropy_part(const dpcr_array *logits, const uint8_t *labels, int64_t batch, double *total,
                                          const dpcr_array *dlogits, int64_t *correct, dpcr_error *error) {
    const dpcr_status status = check_cross_entropy(logits, labels, dlogits, error);
    if (status != DPCR_OK) return status;
    const int64_t rows = logits->shape[0], classes = logits->shape[1], stride = logits->strides[1];
    for (int64_t b = 0; b < rows; b++) {
        const int64_t row = b * logits->strides[0], best = largest(logits, row);
        const double max = get(logits, row + best * stride), own = get(logits, row + labels[b] * stride);
        const double sum = sum_exp(logits, row, max);
        *total += nan_has_no_sign((max - own) + log(sum));
        *correct += best == labels[b] && !isnan(sum);
        for (int64_t j = 0; dlogits && j < classes; j++) {
            const double probability = exp(get(logits, row + j * stride) - max) / sum;
            put(dlogits, b * dlogits->strides[0] + j * dlogits->strides[1],
                (probability - (j == labels[b])) / (double)batch);
        }
    }
    return DPCR_OK;
}

void dpcri_score_add(dpcri_score *score, double loss, int64_t rows, int64_t correct, dpcr_reason reason) {
    score->loss += loss * (double)rows;
    score->correct += correct;
    score->reason = score->reason ? dpcr_reason_worse(score->reason, reason) : reason;
}

// Offset of element `i`, counted in row-major order, of a strided view.
static int64_t offset_of(const dpcr_array *array, int64_t i) {
    int64_t offset = 0;
    for (int32_t d = array->ndim - 1; d >= 0; d--) {
        offset += i % array->shape[d] * array->strides[d];
        i /= array->shape[d];
    }
    return offset;
}

dpcr_status dpcr_loss_mean_square(const dpcr_array *y, const dpcr_array *target, double *loss, const dpcr_array *dy,
                                  dpcr_error *error) {
    static const char call[] = "loss_mean_square";
    dpcr_status status;
    if (!y || !target || !loss) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: y, target or loss is NULL", call);
    DPCR_TRY(check_values(call, "y", y, error));
    DPCR_TRY(check_alike(call, "target", target, y, error));
    if (dy) DPCR_TRY(check_alike(call, "dy", dy, y, error));
    DPCR_TRY(dpcri_check_written(call, "dy", dy, error));
    int64_t count = 1;
    for (int32_t d = 0; d < y->ndim; d++) count *= y->shape[d];
    double total = 0;
    for (int64_t i = 0; i < count; i++) {
        const double difference = get(y, offset_of(y, i)) - get(target, offset_of(target, i));
        total += difference * difference;
        if (dy) put(dy, offset_of(dy, i), 2 * difference / (double)count);
    }
    *loss = nan_has_no_sign(total / (double)count);
done:
    return status;
}
