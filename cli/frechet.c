// SPDX-License-Identifier: MIT
// Frechet distance, precision and recall of pictures. Features are the state that a classifier's head sees. Sources:
// Heusel et al., arXiv 1706.08500 (the distance); Kynkaanniemi et al., arXiv 1904.06991 (precision and recall, k = 3).
// The root's trace is that of the symmetric C1^(1/2) C2 C1^(1/2); eigenvalues by Jacobi's rotations.
#include "frechet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 256, NEIGHBOURS = 3, MOST_POINTS = 2000, MOST_WIDTH = 256 };

typedef struct features {
    dpcr_context *context;
    dpcr_model *model;
    int64_t width, pixels;
    float mean, deviation;
    dpcr_solve_plan *plan;
    void *workspace;
    dpcr_array x, z0, z;
} features;

// NAN where it is none.
static float metadata_number(const dpcr_model *model, const char *key, float otherwise) {
    const char *text = dpcr_model_metadata(model, key);
    char *end = NULL;
    const float value = text ? (float)strtod(text, &end) : otherwise;
    return !text || (end != text && !*end) ? value : NAN;
}

// How pixels were scaled for the classifier.
static int read_scale(features *f, const char *path) {
    f->mean = metadata_number(f->model, "pixel_mean", 0);
    f->deviation = metadata_number(f->model, "pixel_deviation", 1);
    if (isfinite(f->mean) && isfinite(f->deviation) && f->deviation > 0) return CLI_DONE;
    return cli_fail(CLI_INPUT,
                    "'%s': wanted finite numbers as metadata 'pixel_mean' and 'pixel_deviation', the second above 0",
                    path);
}

static void close_features(features *f) {
    cli_array_destroy(&f->x);
    cli_array_destroy(&f->z0);
    cli_array_destroy(&f->z);
    cli_release(f->workspace);
    dpcr_solve_plan_destroy(f->plan);
    dpcr_model_destroy(f->model);
}

static int open_features(features *f, dpcr_context *context, const char *path, int64_t pixels) {
    dpcr_error error = {0};
    dpcr_steps steps = {.size = sizeof steps};
    *f = (features){.context = context, .pixels = pixels};
    if (!cli_readable("the classifier", path)) return CLI_INPUT;
    if (dpcr_model_load(context, path, &f->model, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    const dpcr_model_options *o = dpcr_model_get_options(f->model);
    if (o->inputs != pixels || o->dtype != DPCR_F32 || o->layers < 1 || o->width > MOST_WIDTH)
        return cli_fail(
            CLI_INPUT,
            "'%s' has %lld inputs, %lld layers of width %lld in %s; wanted a float32 classifier of %lld pixels "
            "with layers, at most %d wide",
            path, (long long)o->inputs, (long long)o->layers, (long long)o->width, dpcr_dtype_name(o->dtype),
            (long long)pixels, MOST_WIDTH);
    f->width = o->width;
    if (read_scale(f, path)) return CLI_INPUT;
    const dpcr_solve_options options = {
        .size = sizeof options, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    if (dpcr_model_steps(f->model, BATCH, &steps, &error) != DPCR_OK ||
        dpcr_solve_plan_create(context, &steps, &options, &f->plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const size_t bytes = dpcr_solve_plan_workspace(f->plan);
    const int64_t shape[3] = {o->layers, BATCH, o->width}, rows[2] = {BATCH, pixels};
    if (bytes && !(f->workspace = cli_allocate(bytes))) return cli_fail_memory("the classifier");
    const bool made = cli_array_create(DPCR_F32, 2, rows, &f->x) && cli_array_create(DPCR_F32, 2, shape + 1, &f->z0) &&
                      cli_array_create(DPCR_F32, 3, shape, &f->z);
    return made ? CLI_DONE : CLI_RESOURCES;
}

// The features of the rows in x: the last states.
static int run_features(features *f, int64_t rows, double *to) {
    dpcr_error error = {0};
    const size_t bytes = dpcr_solve_plan_workspace(f->plan);
    if (dpcr_model_encode(f->model, &f->x, &f->z0, &error) != DPCR_OK ||
        dpcr_solve_execute(f->plan, &f->z0, &f->z, NULL, f->workspace, bytes, NULL, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const float *last = (const float *)f->z.data + (f->z.shape[0] - 1) * BATCH * f->width;
    for (int64_t i = 0; i < rows * f->width; i++) to[i] = last[i];
    return CLI_DONE;
}

// [n][width] of pictures, or of the data's images where `pictures` is NULL. NULL: told.
static double *features_of(features *f, int64_t n, const float *pictures, const dpcr_dataset *data) {
    double *all = cli_allocate((size_t)(n * f->width) * sizeof *all);
    int status = all ? CLI_DONE : cli_fail_memory("the features");
    for (int64_t i = 0; i < n && !status; i += BATCH) {
        const int64_t rows = n - i < BATCH ? n - i : BATCH;
        float *x = f->x.data;
        for (int64_t p = 0; p < rows * f->pixels; p++) {
            const int64_t at = i * f->pixels + p;
            x[p] = ((pictures ? pictures[at] : (float)data->images[at] / 255) - f->mean) / f->deviation;
        }
        status = run_features(f, rows, all + i * f->width);
    }
    if (!status) return all;
    cli_release(all);
    return NULL;
}

// ---- the distance ----

static void moments(int64_t n, int64_t w, const double *x, double *mean, double *covariance) {
    memset(mean, 0, (size_t)w * sizeof *mean);
    memset(covariance, 0, (size_t)(w * w) * sizeof *covariance);
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < w; a++) mean[a] += x[i * w + a] / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < w; a++)
            for (int64_t b = 0; b < w; b++)
                covariance[a * w + b] +=
                    (x[i * w + a] - mean[a]) * (x[i * w + b] - mean[b]) / (double)(n > 1 ? n - 1 : 1);
}

// Symmetric a [w][w] to its eigenvalues on the diagonal; v's columns the vectors.
static void eigen(int64_t w, double *a, double *v) {
    for (int64_t i = 0; i < w * w; i++) v[i] = i / w == i % w;
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0, all = 0;
        for (int64_t i = 0; i < w * w; i++) {
            all += a[i] * a[i];
            if (i / w != i % w) off += a[i] * a[i];
        }
        if (off <= 1e-26 * all) return;
        for (int64_t p = 0; p < w; p++)
            for (int64_t q = p + 1; q < w; q++) {
                if (a[p * w + q] == 0) continue;
                const double turn = (a[q * w + q] - a[p * w + p]) / (2 * a[p * w + q]);
                const double t = (turn >= 0 ? 1 : -1) / (fabs(turn) + sqrt(1 + turn * turn));
                const double c = 1 / sqrt(1 + t * t), s = t * c;
                for (int64_t k = 0; k < w; k++) {
                    const double x = a[k * w + p], y = a[k * w + q];
                    a[k * w + p] = c * x - s * y;
                    a[k * w + q] = s * x + c * y;
                }
                for (int64_t k = 0; k < w; k++) {
                    const double x = a[p * w + k], y = a[q * w + k], u = v[k * w + p], z = v[k * w + q];
                    a[p * w + k] = c * x - s * y;
                    a[q * w + k] = s * x + c * y;
                    v[k * w + p] = c * u - s * z;
                    v[k * w + q] = s * u + c * z;
                }
            }
    }
}

// c = a b, all [w][w]
static void multiply(int64_t w, const double *a, const double *b, double *c) {
    for (int64_t i = 0; i < w; i++)
        for (int64_t j = 0; j < w; j++) {
            double sum = 0;
            for (int64_t k = 0; k < w; k++) sum += a[i * w + k] * b[k * w + j];
            c[i * w + j] = sum;
        }
}

// tr (C1 C2)^(1/2); c1 is used up. work [3][w][w]
static double root_trace(int64_t w, double *c1, const double *c2, double *work) {
    double *v = work, *half = work + w * w, *product = work + 2 * w * w, trace = 0;
    eigen(w, c1, v);
    for (int64_t i = 0; i < w; i++)
        for (int64_t j = 0; j < w; j++) {
            double sum = 0;
            for (int64_t k = 0; k < w; k++) sum += v[i * w + k] * sqrt(fmax(c1[k * w + k], 0)) * v[j * w + k];
            half[i * w + j] = sum;
        }
    multiply(w, half, c2, product);
    multiply(w, product, half, c1);
    eigen(w, c1, v);
    for (int64_t i = 0; i < w; i++) trace += sqrt(fmax(c1[i * w + i], 0));
    return trace;
}

static int distance(int64_t w, int64_t n, const double *x, int64_t m, const double *y, double *result) {
    double *memory = cli_allocate((size_t)(2 * w + 5 * w * w) * sizeof *memory), sum = 0;
    if (!memory) return cli_fail_memory("the covariances");
    double *mean1 = memory, *mean2 = memory + w, *c1 = memory + 2 * w, *c2 = c1 + w * w, *work = c2 + w * w;
    moments(n, w, x, mean1, c1);
    moments(m, w, y, mean2, c2);
    for (int64_t i = 0; i < w; i++)
        sum += (mean1[i] - mean2[i]) * (mean1[i] - mean2[i]) + c1[i * w + i] + c2[i * w + i];
    *result = sum - 2 * root_trace(w, c1, c2, work);
    cli_release(memory);
    return CLI_DONE;
}

// ---- precision and recall ----

static double square_distance(int64_t w, const double *x, const double *y) {
    double sum = 0;
    for (int64_t i = 0; i < w; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sum;
}

// The squared distance to the k-th nearest other point.
static double radius(int64_t w, int64_t n, const double *x, int64_t of) {
    double nearest[NEIGHBOURS];
    for (int k = 0; k < NEIGHBOURS; k++) nearest[k] = HUGE_VAL;
    for (int64_t i = 0; i < n; i++) {
        double d = i == of ? HUGE_VAL : square_distance(w, x + of * w, x + i * w);
        for (int k = 0; k < NEIGHBOURS; k++)
            if (d < nearest[k]) {
                const double kept = nearest[k];
                nearest[k] = d;
                d = kept;
            }
    }
    return nearest[NEIGHBOURS - 1];
}

// The share of y's points within a ball of x's.
static double share_within(int64_t w, int64_t n, const double *x, const double *radii, int64_t m, const double *y) {
    int64_t within = 0;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < n; i++)
            if (square_distance(w, x + i * w, y + j * w) <= radii[i]) {
                within++;
                break;
            }
    return m ? (double)within / (double)m : 0;
}

static int neighbours(int64_t w, int64_t n, const double *fake, int64_t m, const double *real, cli_quality *quality) {
    n = n < MOST_POINTS ? n : MOST_POINTS;
    m = m < MOST_POINTS ? m : MOST_POINTS;
    double *radii = cli_allocate((size_t)(n + m) * sizeof *radii);
    if (!radii) return cli_fail_memory("the neighbours");
    for (int64_t i = 0; i < n; i++) radii[i] = radius(w, n, fake, i);
    for (int64_t i = 0; i < m; i++) radii[n + i] = radius(w, m, real, i);
    quality->precision = share_within(w, m, real, radii + n, n, fake);
    quality->recall = share_within(w, n, fake, radii, m, real);
    cli_release(radii);
    return CLI_DONE;
}

// With fewer a point's ball, up to its third neighbour, holds everything.
static int check_count(int64_t n, const dpcr_dataset *data) {
    if (n > NEIGHBOURS && data->count > NEIGHBOURS) return CLI_DONE;
    return cli_fail(CLI_USAGE, "--evaluate wants %d pictures or more, held-out ones too; got %lld and %lld",
                    NEIGHBOURS + 1, (long long)n, (long long)data->count);
}

int cli_quality_check(dpcr_context *context, const char *classifier, const dpcr_dataset *data, int64_t n) {
    features f;
    int status = check_count(n, data);
    if (status) return status;
    status = open_features(&f, context, classifier, dpcr_dataset_pixels(data));
    close_features(&f);
    return status;
}

int cli_quality_measure(dpcr_context *context, const char *classifier, const dpcr_dataset *data, int64_t n,
                        const float *pictures, cli_quality *quality) {
    features f;
    double *fake = NULL, *real = NULL;
    int status = open_features(&f, context, classifier, dpcr_dataset_pixels(data));
    if (!status) status = check_count(n, data);
    if (!status && !(fake = features_of(&f, n, pictures, NULL))) status = cli_failed();
    if (!status && !(real = features_of(&f, data->count, NULL, data))) status = cli_failed();
    if (!status) status = distance(f.width, n, fake, data->count, real, &quality->frechet_distance);
    if (!status) status = neighbours(f.width, n, fake, data->count, real, quality);
    cli_release(fake);
    cli_release(real);
    close_features(&f);
    return status;
}
