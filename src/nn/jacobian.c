// SPDX-License-Identifier: MIT
// Transposed Jacobians of layers: pattern once, values often.
//
// Each entry of linear and conv2d remembers its weight, so filling is one gather. Work: entries, twice to plan
// (counted, then stored), once to fill. Memory: 8 bytes an entry and 8 a row. Source: BPPSA (arXiv 1907.10134), for any
// kernel, stride, padding and dilation, without entries that leave the image; docs/math/bppsa.md.
#include "nn/jacobian.h"

#include <inttypes.h>
#include <string.h>

#include "rt/rt.h"
#include "transition/transition_internal.h"

enum { TASKS = 64, TASK_ROWS = 64, TASK_ENTRIES = 65536 };

// Of items in tasks of at least `least`: as many as there are, TASKS at most.
static int64_t task_count(int64_t items, int64_t least) {
    const int64_t tasks = items / least;
    return tasks < 1 ? 1 : tasks < TASKS ? tasks : TASKS;
}

static dpcr_status refuse_memory(size_t bytes, dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_MEMORY, "jacobian: %zu bytes were refused", bytes);
}

static dpcr_status create(dpcr_context *context, dpcri_layer layer, dpcr_jacobian **made, dpcr_error *error) {
    *made = dpcri_alloc_zero(context, sizeof **made);
    if (!*made) return refuse_memory(sizeof **made, error);
    (*made)->context = context;
    (*made)->layer = layer;
    return DPCR_OK;
}

static dpcr_status check_given(const char *function, const dpcr_context *context, dpcr_jacobian **jacobian,
                               dpcr_error *error) {
    if (jacobian) *jacobian = NULL;
    if (!context || !jacobian)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is NULL", function, context ? "jacobian" : "context");
    return DPCR_OK;
}

void dpcr_jacobian_destroy(dpcr_jacobian *j) {
    if (!j) return;
    dpcri_free(j->context, j->sources);
    dpcri_free(j->context, j->columns);
    dpcri_free(j->context, j->offsets);
    dpcri_free(j->context, j);
}

const dpcr_transition *dpcr_jacobian_transition(const dpcr_jacobian *j) { return j ? &j->transition : NULL; }

int dpcr_jacobian_shared(const dpcr_jacobian *j) { return j && (j->layer == DPCRI_LINEAR || j->layer == DPCRI_CONV2D); }

void dpcr_jacobian_output(const dpcr_jacobian *j, int64_t size[2]) {
    if (!size) return;
    const bool image = j && (j->layer == DPCRI_CONV2D || j->layer == DPCRI_MAX_POOL2D);
    size[0] = image ? j->window.out[0] : j != NULL;
    size[1] = image ? j->window.out[1] : j ? j->transition.cols : 0;
}

// ---- weights ----

static bool contiguous(const dpcr_array *a, int64_t *count) {
    int64_t stride = 1;
    *count = 1;
    for (int32_t d = a->ndim - 1; d >= 0; d--) {
        if (a->shape[d] != 1 && a->strides[d] != stride) return false;
        if (a->shape[d] < 0 || !dpcri_mul(stride, a->shape[d], &stride)) return false;
    }
    *count = stride;
    return true;
}

static dpcr_status check_weights(const char *name, const dpcr_array *a, int64_t wanted, dpcr_error *error) {
    int64_t count = 0;
    char got[128];
    if (!a) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "jacobian: %s is NULL, wanted the weights", name);
    if (a->ndim < 1 || a->ndim > DPCR_MAX_DIMS || dpcr_dtype_size(a->dtype) == 0 || !contiguous(a, &count) ||
        count != wanted || !a->data)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "jacobian: %s is %s, wanted %" PRId64 " contiguous weights", name,
                          dpcri_array_text(a, got, sizeof got), wanted);
    if (a->device.type != DPCR_HOST)
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "jacobian: %s lies on device type %d, wanted host memory (%d)",
                          name, (int)a->device.type, (int)DPCR_HOST);
    return DPCR_OK;
}

static bool is_zero(const dpcr_array *a, int64_t i) {
    switch (a->dtype) {
        case DPCR_F32: return ((const float *)a->data)[i] == 0;
        case DPCR_F64: return ((const double *)a->data)[i] == 0;
        case DPCR_U32: return ((const uint32_t *)a->data)[i] == 0;
    }
    return false;
}

// kept[i] = weight i is not zero; NULL without weights.
static dpcr_status find_kept(dpcr_context *context, const dpcr_array *pruned, int64_t weights, unsigned char **kept,
                             dpcr_error *error) {
    *kept = NULL;
    if (!pruned) return DPCR_OK;
    const dpcr_status status = check_weights("pruned", pruned, weights, error);
    if (status != DPCR_OK) return status;
    *kept = dpcri_alloc(context, (size_t)weights);
    if (!*kept) return refuse_memory((size_t)weights, error);
    for (int64_t i = 0; i < weights; i++) (*kept)[i] = !is_zero(pruned, i);
    return DPCR_OK;
}

// ---- rows ----

static int64_t linear_row(const dpcr_jacobian *j, const unsigned char *kept, int64_t row, int32_t *columns,
                          int32_t *sources) {
    const int64_t inputs = j->transition.rows;
    int64_t count = 0;
    for (int64_t o = 0; o < j->transition.cols; o++) {
        const int64_t weight = o * inputs + row;
        if (kept && !kept[weight]) continue;
        if (columns) {
            columns[count] = (int32_t)o;
            sources[count] = (int32_t)weight;
        }
        count++;
    }
    return count;
}

typedef struct rows_job {
    dpcr_jacobian *jacobian;
    const unsigned char *kept;
    int64_t tasks;
    bool store;
} rows_job;

static void visit_rows(void *argument, int64_t task) {
    const rows_job *job = argument;
    dpcr_jacobian *j = job->jacobian;
    const int64_t rows = j->transition.rows;
    for (int64_t i = rows * task / job->tasks; i < rows * (task + 1) / job->tasks; i++) {
        int32_t *columns = job->store ? j->columns + j->offsets[i] : NULL,
                *sources = job->store ? j->sources + j->offsets[i] : NULL;
        const int64_t count = j->layer == DPCRI_LINEAR ? linear_row(j, job->kept, i, columns, sources)
                                                       : dpcri_window_row(&j->window, job->kept, i, columns, sources);
        if (!job->store) j->offsets[i + 1] = count;
    }
}

static dpcr_status plan_rows(dpcr_jacobian *j, int64_t rows, int64_t cols, const unsigned char *kept,
                             dpcr_error *error) {
    bool overflow = false;
    rows_job job = {.jacobian = j, .kept = kept, .tasks = task_count(rows, TASK_ROWS)};
    j->transition = (dpcr_transition){.structure = DPCR_CSR, .rows = rows, .cols = cols, .pattern = &j->pattern};
    const size_t row_bytes = dpcri_bytes(rows + 1, 1, sizeof *j->offsets, &overflow);
    j->offsets = dpcri_alloc(j->context, row_bytes);
    if (!j->offsets) return refuse_memory(row_bytes, error);
    dpcri_parallel(j->context, job.tasks, visit_rows, &job);
    j->offsets[0] = 0;
    for (int64_t i = 0; i < rows; i++)  // rows and columns are below 2^31, so the sum fits
        j->offsets[i + 1] += j->offsets[i];
    const size_t bytes = dpcri_bytes(j->offsets[rows], 1, sizeof *j->columns, &overflow);
    j->columns = overflow || bytes == 0 ? NULL : dpcri_alloc(j->context, bytes);
    j->sources = overflow || bytes == 0 ? NULL : dpcri_alloc(j->context, bytes);
    if (overflow || (bytes > 0 && (!j->columns || !j->sources))) return refuse_memory(bytes, error);
    job.store = true;
    dpcri_parallel(j->context, job.tasks, visit_rows, &job);
    j->pattern = (dpcr_pattern){rows, cols, j->offsets, j->columns};
    return DPCR_OK;
}

// ---- layers ----

dpcr_status dpcr_jacobian_linear(dpcr_context *context, int64_t inputs, int64_t outputs, const dpcr_array *pruned,
                                 dpcr_jacobian **jacobian, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_jacobian *j = NULL;
    unsigned char *kept = NULL;
    int64_t weights = 0;
    DPCR_TRY(check_given("jacobian_linear", context, jacobian, error));
    if (inputs <= 0 || outputs <= 0 || !dpcri_mul(inputs, outputs, &weights) || weights > INT32_MAX)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                          "jacobian_linear: %" PRId64 " inputs and %" PRId64
                          " outputs, wanted positive numbers and fewer than 2^31 weights",
                          inputs, outputs);
    DPCR_TRY(create(context, DPCRI_LINEAR, &j, error));
    j->weights = weights;
    DPCR_TRY(find_kept(context, pruned, weights, &kept, error));
    DPCR_TRY(plan_rows(j, inputs, outputs, kept, error));
    *jacobian = j;
    j = NULL;
done:
    dpcri_free(context, kept);
    dpcr_jacobian_destroy(j);
    return status;
}

// Takes j over.
static dpcr_status finish_window(dpcr_jacobian *j, const unsigned char *kept, dpcr_jacobian **jacobian,
                                 dpcr_error *error) {
    const dpcri_window2d *w = &j->window;
    const dpcr_status status =
        plan_rows(j, w->in_channels * w->in[0] * w->in[1], w->out_channels * w->out[0] * w->out[1], kept, error);
    if (status == DPCR_OK)
        *jacobian = j;
    else
        dpcr_jacobian_destroy(j);
    return status;
}

dpcr_status dpcr_jacobian_conv2d(dpcr_context *context, const dpcr_conv2d *layer, const dpcr_array *pruned,
                                 dpcr_jacobian **jacobian, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_jacobian *j = NULL;
    unsigned char *kept = NULL;
    DPCR_TRY(check_given("jacobian_conv2d", context, jacobian, error));
    if (!layer || layer->size < sizeof *layer)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "jacobian_conv2d: layer%s",
                          layer ? ".size is not sizeof(dpcr_conv2d)" : " is NULL");
    DPCR_TRY(create(context, DPCRI_CONV2D, &j, error));
    dpcri_window2d *w = &j->window;
    *w = (dpcri_window2d){.in_channels = layer->in_channels,
                          .out_channels = layer->out_channels,
                          .groups = layer->groups ? layer->groups : 1,
                          .in = {layer->height, layer->width}};
    for (int d = 0; d < 2; d++) {
        w->kernel[d] = layer->kernel[d];
        w->stride[d] = layer->stride[d] ? layer->stride[d] : 1;
        w->padding[d] = layer->padding[d];
        w->dilation[d] = layer->dilation[d] ? layer->dilation[d] : 1;
    }
    DPCR_TRY(dpcri_window_prepare("jacobian_conv2d", w, error));
    j->weights = w->in_channels / w->groups * w->out_channels * w->kernel[0] * w->kernel[1];
    DPCR_TRY(find_kept(context, pruned, j->weights, &kept, error));
    status = finish_window(j, kept, jacobian, error);
    j = NULL;
done:
    dpcri_free(context, kept);
    dpcr_jacobian_destroy(j);
    return status;
}

dpcr_status dpcr_jacobian_max_pool2d(dpcr_context *context, const dpcr_pool2d *layer, dpcr_jacobian **jacobian,
                                     dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_jacobian *j = NULL;
    DPCR_TRY(check_given("jacobian_max_pool2d", context, jacobian, error));
    if (!layer || layer->size < sizeof *layer)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "jacobian_max_pool2d: layer%s",
                          layer ? ".size is not sizeof(dpcr_pool2d)" : " is NULL");
    DPCR_TRY(create(context, DPCRI_MAX_POOL2D, &j, error));
    dpcri_window2d *w = &j->window;
    *w = (dpcri_window2d){.in_channels = layer->channels,
                          .out_channels = layer->channels,
                          .groups = layer->channels,
                          .in = {layer->height, layer->width},
                          .dilation = {1, 1}};
    for (int d = 0; d < 2; d++) {
        w->kernel[d] = layer->kernel[d];
        w->stride[d] = layer->stride[d] ? layer->stride[d] : layer->kernel[d];
        w->padding[d] = layer->padding[d];
        if (layer->padding[d] > layer->kernel[d] / 2) {
            status =
                dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                           "jacobian_max_pool2d: padding %" PRId64 " of a kernel of %" PRId64 ", wanted at most half",
                           layer->padding[d], layer->kernel[d]);
            goto done;
        }
    }
    DPCR_TRY(dpcri_window_prepare("jacobian_max_pool2d", w, error));
    status = finish_window(j, NULL, jacobian, error);
    j = NULL;
done:
    dpcr_jacobian_destroy(j);
    return status;
}

dpcr_status dpcr_jacobian_relu(dpcr_context *context, int64_t width, dpcr_jacobian **jacobian, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    dpcr_jacobian *j = NULL;
    DPCR_TRY(check_given("jacobian_relu", context, jacobian, error));
    const dpcr_transition t = dpcr_transition_square(DPCR_DIAGONAL, width, 0);
    DPCR_TRY(dpcr_transition_check(&t, error));
    DPCR_TRY(create(context, DPCRI_RELU, &j, error));
    j->transition = t;
    *jacobian = j;
done:
    return status;
}

// ---- values ----

typedef struct fill_job {
    const dpcr_jacobian *jacobian;
    dpcr_dtype dtype;
    int64_t tasks, rows;
    const char *source;
    char *values;
    int64_t source_row, values_row;  // strides in bytes
} fill_job;

#define GATHER(T)                     \
    for (int64_t e = lo; e < hi; e++) \
    ((T *)(void *)job->values)[e] = ((const T *)(const void *)job->source)[j->sources[e]]

static void gather(void *argument, int64_t task) {
    const fill_job *job = argument;
    const dpcr_jacobian *j = job->jacobian;
    const int64_t entries = j->offsets[j->transition.rows], each = entries / job->tasks, lo = each * task,
                  hi = task + 1 == job->tasks ? entries : lo + each;
    switch (job->dtype) {
        case DPCR_F32: GATHER(float); return;
        case DPCR_F64: GATHER(double); return;
        case DPCR_U32: GATHER(uint32_t); return;
    }
}
#undef GATHER

// NaN keeps its gradient, as in PyTorch.
#define SLOPES(T) \
    for (int64_t i = 0; i < n; i++) ((T *)(void *)values)[i] = ((const T *)(const void *)x)[i] <= (T)0 ? (T)0 : (T)1

static void fill_relu(const fill_job *job, const char *x, char *values) {
    const int64_t n = job->jacobian->transition.rows;
    if (job->dtype == DPCR_F32)
        SLOPES(float);
    else
        SLOPES(double);
}
#undef SLOPES

static double value_at(const fill_job *job, const char *x, int64_t i) {
    return job->dtype == DPCR_F32 ? (double)((const float *)(const void *)x)[i] : ((const double *)(const void *)x)[i];
}

// The input that output (channel, u, v) is the maximum of.
static int64_t find_largest(const fill_job *job, const char *x, int64_t channel, int64_t u, int64_t v) {
    const dpcri_window2d *w = &job->jacobian->window;
    const int64_t top = u * w->stride[0] - w->padding[0], left = v * w->stride[1] - w->padding[1];
    int64_t found = -1;
    double most = 0;
    for (int64_t y = top < 0 ? 0 : top; y < top + w->kernel[0] && y < w->in[0]; y++)
        for (int64_t q = left < 0 ? 0 : left; q < left + w->kernel[1] && q < w->in[1]; q++) {
            const int64_t i = (channel * w->in[0] + y) * w->in[1] + q;
            const double value = value_at(job, x, i);
            if (found >= 0 && value <= most) continue;
            if (found >= 0 && most != most && value == value) continue;
            most = value;
            found = i;
        }
    return found;
}

static void fill_max_pool(const fill_job *job, const char *x, char *values) {
    const dpcr_jacobian *j = job->jacobian;
    const dpcri_window2d *w = &j->window;
    memset(values, 0, (size_t)j->offsets[j->transition.rows] * dpcr_dtype_size(job->dtype));
    for (int64_t o = 0; o < j->transition.cols; o++) {
        const int64_t v = o % w->out[1], u = o / w->out[1] % w->out[0],
                      row = find_largest(job, x, o / w->out[1] / w->out[0], u, v);
        for (int64_t e = j->offsets[row]; e < j->offsets[row + 1]; e++) {
            if (j->columns[e] != o) continue;
            if (job->dtype == DPCR_F32)
                ((float *)(void *)values)[e] = 1;
            else
                ((double *)(void *)values)[e] = 1;
        }
    }
}

static void fill_rows(void *argument, int64_t task) {
    const fill_job *job = argument;
    for (int64_t b = job->rows * task / job->tasks; b < job->rows * (task + 1) / job->tasks; b++) {
        const char *x = job->source + b * job->source_row;
        char *values = job->values + b * job->values_row;
        if (job->jacobian->layer == DPCRI_RELU)
            fill_relu(job, x, values);
        else
            fill_max_pool(job, x, values);
    }
}

dpcr_status dpcr_jacobian_fill(const dpcr_jacobian *j, const dpcr_array *source, const dpcr_array *values,
                               dpcr_error *error) {
    static const char *const function = "jacobian_fill";
    dpcr_status status = DPCR_OK;
    dpcri_view from = {0}, to = {0};
    if (!j || !values)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: %s is NULL", function, j ? "values" : "jacobian");
    const bool shared = dpcr_jacobian_shared(j);
    if (dpcr_dtype_size(values->dtype) == 0 || (!shared && values->dtype == DPCR_U32))
        return dpcri_fail(error, DPCR_ERROR_UNSUPPORTED, "%s: values of %s, wanted float32 or float64", function,
                          dpcr_dtype_name(values->dtype));
    const int64_t rows = shared ? 1 : values->shape[0], size = (int64_t)dpcr_dtype_size(values->dtype);
    dpcri_wanted w = {.function = function,
                      .name = "values",
                      .dtype = values->dtype,
                      .steps = -1,
                      .rows = rows < 0 ? 0 : rows,
                      .values = dpcr_transition_values(&j->transition),
                      .written = true};
    DPCR_TRY(dpcri_view_of(values, &w, &to, error));
    fill_job job = {
        .jacobian = j, .dtype = values->dtype, .rows = rows, .values = to.data, .values_row = to.row * size};
    if (shared) {
        DPCR_TRY(check_weights("source", source, j->weights, error));
        if (source->dtype != values->dtype)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "%s: source is %s and values %s, wanted one dtype", function,
                              dpcr_dtype_name(source->dtype), dpcr_dtype_name(values->dtype));
        job.source = source->data;
        job.tasks = task_count(w.values, TASK_ENTRIES);
        dpcri_parallel(j->context, job.tasks, gather, &job);
        return DPCR_OK;
    }
    w.name = "source";
    w.values = j->transition.rows;
    w.written = false;
    DPCR_TRY(dpcri_view_of(source, &w, &from, error));
    job.source = from.data;
    job.source_row = from.row * size;
    job.tasks = task_count(rows * j->transition.rows, TASK_ENTRIES);
    if (job.tasks > rows) job.tasks = rows;
    dpcri_parallel(j->context, job.tasks, fill_rows, &job);
done:
    return status;
}
