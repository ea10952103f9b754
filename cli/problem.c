// SPDX-License-Identifier: MIT
// Chains to compare methods on: making them, and comparing what two solves left.
#include "problem.h"

#include <math.h>
#include <string.h>

// ---- the model ----

static bool is_layer_weight(const char *name, const dpcr_array *parameter) {
    const size_t n = strlen(name);
    return !strncmp(name, "layers.", 7) && parameter->ndim == 2 && n > 6 && !strcmp(name + n - 6, "weight");
}

static bool is_layer_bias(const char *name) {
    const size_t n = strlen(name);
    return !strncmp(name, "layers.", 7) && !strstr(name, ".norm.") && n > 4 && !strcmp(name + n - 4, "bias");
}

static void set_weight(const cli_network *network, const dpcr_array *p, uint64_t seed, uint64_t stream) {
    const double fan_in = (double)p->shape[1];
    const double deviation = sqrt((network->init == CLI_INIT_HE ? 2 : 1) / fan_in);
    for (int64_t i = 0; i < p->shape[0]; i++)
        for (int64_t j = 0; j < p->shape[1]; j++) {
            const int64_t at = i * p->strides[0] + j * p->strides[1];
            const double value = network->init == CLI_INIT_DEFAULT
                                     ? cli_array_get(p, at)
                                     : deviation * cli_normal(seed, stream, (uint64_t)(i * p->shape[1] + j));
            cli_array_set(p, at, network->gain * value);
        }
}

static int change_weights(dpcr_model *model, const cli_network *network, uint64_t seed) {
    if (network->init == CLI_INIT_DEFAULT && network->gain == 1) return CLI_DONE;
    const int64_t count = dpcr_model_parameter_count(model);
    for (int64_t k = 0; k < count; k++) {
        char name[128];
        dpcr_array p;
        dpcr_error error = {0};
        if (dpcr_model_parameter(model, k, name, sizeof name, &p, NULL, &error))
            return cli_fail_error(&error, CLI_COMPUTING);
        if (is_layer_weight(name, &p)) set_weight(network, &p, seed, CLI_STREAM_WEIGHTS + (uint64_t)k);
        if (!is_layer_bias(name) || network->init == CLI_INIT_DEFAULT) continue;
        for (int64_t i = 0; i < p.shape[0]; i++) cli_array_set(&p, i * p.strides[0], 0);
    }
    return CLI_DONE;
}

dpcr_model *cli_model_create(dpcr_context *context, const cli_network *network, uint64_t seed, int *status) {
    dpcr_model_options options = network->options;
    dpcr_model *model = NULL;
    dpcr_error error = {0};
    if (!cli_network_fits(network)) {
        *status = CLI_USAGE;
        return NULL;
    }
    options.size = sizeof options;
    options.seed = seed;
    if (dpcr_model_create(context, &options, &model, &error) != DPCR_OK) {
        *status = cli_fail_error(&error, CLI_COMPUTING);
        return NULL;
    }
    *status = change_weights(model, network, seed);
    dpcr_model_tie_parameters(model);
    if (!*status) return model;
    dpcr_model_destroy(model);
    return NULL;
}

// ---- the problem ----

static int encode_images(dpcr_context *context, const cli_problem *problem, const char *data) {
    const dpcr_model_options *o = dpcr_model_get_options(problem->model);
    const int64_t batch = problem->z0.shape[0];
    if (o->inputs == 0) return cli_fail(CLI_USAGE, "--data: the network has no encoder for images");
    dpcr_dataset images = {0};
    int status = cli_data_read(context, data, "t10k", o->outputs, 0, &images);
    if (status) return status;
    dpcr_array x = {0};
    dpcr_error error = {0};
    if (dpcr_dataset_pixels(&images) != o->inputs)
        status = cli_fail(CLI_INPUT, "'%s' has images of %lld numbers, the network takes %lld", data,
                          (long long)dpcr_dataset_pixels(&images), (long long)o->inputs);
    else if (batch > images.count)
        status = cli_fail(CLI_USAGE, "--batch %lld: '%s' has %lld test images", (long long)batch, data,
                          (long long)images.count);
    else if (!cli_array_create(o->dtype, 2, (const int64_t[]){batch, o->inputs}, &x))
        status = CLI_RESOURCES;
    else {
        cli_data_rows(&images, &x);
        if (dpcr_model_encode(problem->model, &x, &problem->z0, &error) != DPCR_OK)
            status = cli_fail_error(&error, CLI_COMPUTING);
    }
    cli_array_destroy(&x);
    dpcr_dataset_free(context, &images);
    return status;
}

static int fill_start(dpcr_context *context, const cli_problem *problem, const char *map, const char *data,
                      uint64_t seed) {
    if (map)
        cli_map_start(map, &problem->z0, seed);
    else if (data)
        return encode_images(context, problem, data);
    else
        cli_array_normal(&problem->z0, seed, CLI_STREAM_STATES);
    return CLI_DONE;
}

// Gradients from outside, and room for the initial state.
static int make_arrays(cli_problem *problem, uint64_t seed) {
    const dpcr_steps *s = &problem->steps;
    const int64_t row[] = {s->batch, s->width}, all[] = {s->length, s->batch, s->width};
    if (!cli_array_create(s->dtype, 2, row, &problem->z0) || !cli_array_create(s->dtype, 2, row, &problem->last) ||
        !cli_array_create(s->dtype, 3, all, &problem->direct))
        return CLI_RESOURCES;
    cli_array_normal(&problem->direct, seed, CLI_STREAM_DIRECT);
    cli_array_normal(&problem->last, seed, CLI_STREAM_LAST);
    return CLI_DONE;
}

int cli_problem_create(dpcr_context *context, dpcr_model *model, const char *map, const cli_network *network,
                       const char *data, uint64_t seed, cli_problem *problem) {
    dpcr_error error = {0};
    memset(problem, 0, sizeof *problem);
    problem->model = model;
    problem->steps.size = sizeof problem->steps;
    if (map)
        problem->steps = cli_map_steps(map, network->options.layers, network->batch);
    else if (dpcr_model_steps(model, network->batch, &problem->steps, &error))
        return cli_fail_error(&error, CLI_COMPUTING);
    int status = make_arrays(problem, seed);
    if (!status) status = fill_start(context, problem, map, data, seed);
    if (status) cli_problem_destroy(problem);
    return status;
}

int cli_problem_of_steps(const dpcr_steps *steps, uint64_t seed, cli_problem *problem) {
    *problem = (cli_problem){.steps = *steps};
    const int status = make_arrays(problem, seed);
    if (status)
        cli_problem_destroy(problem);
    else
        cli_array_normal(&problem->z0, seed, CLI_STREAM_STATES);
    return status;
}

void cli_problem_destroy(cli_problem *problem) {
    cli_array_destroy(&problem->direct);
    cli_array_destroy(&problem->last);
    cli_array_destroy(&problem->z0);
}

// ---- comparisons ----

static double difference(double x, double y) {
    if (x == y || (isnan(x) && isnan(y))) return 0;
    return isfinite(x) && isfinite(y) ? fabs(x - y) : HUGE_VAL;
}

double cli_states_error(const dpcr_array *x, const dpcr_array *y) {
    const int64_t n = cli_array_count(x);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double value = cli_array_get(y, i);
        worst = fmax(worst, difference(cli_array_get(x, i), value) / fmax(1, isfinite(value) ? fabs(value) : 1));
    }
    return worst;
}

typedef struct extent {
    double difference, largest;
} extent;

// Beyond the finite numbers one order of operations gives an infinity and another a NaN, and neither is a gradient.
static void widen(extent *e, double x, double y) {
    if (!isfinite(x) && !isfinite(y)) return;
    e->difference = fmax(e->difference, difference(x, y));
    if (isfinite(y)) e->largest = fmax(e->largest, fabs(y));
}

static double ratio(extent e) { return e.difference == 0 ? 0 : e.largest > 0 ? e.difference / e.largest : HUGE_VAL; }

// The gradient of one parameter lies at `view` in the model's gradient vector; x and y are copies of the whole vector.
static extent compare_tensor(const dpcr_array *view, const char *base, const cli_solution *x, const cli_solution *y) {
    const int64_t start = (int64_t)(((const char *)view->data - base) / (ptrdiff_t)dpcr_dtype_size(view->dtype));
    const int64_t rows = view->shape[0], cols = view->ndim > 1 ? view->shape[1] : 1;
    const int64_t step = view->ndim > 1 ? view->strides[1] : 0;
    const dpcr_array a = {.data = x->gradients, .dtype = view->dtype}, b = {.data = y->gradients, .dtype = view->dtype};
    extent e = {0, 0};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            const int64_t at = start + i * view->strides[0] + j * step;
            widen(&e, cli_array_get(&a, at), cli_array_get(&b, at));
        }
    return e;
}

// The layer that a tensor belongs to: "layers.12." of "layers.12.weight"; the whole name where there is no number.
static size_t layer_length(const char *name) {
    const char *first = strchr(name, '.'), *second = first ? strchr(first + 1, '.') : NULL;
    return second ? (size_t)(second - name) + 1 : strlen(name);
}

// The tensors of one layer, which share a scale, and the worst of what came before.
typedef struct layer_errors {
    char layer[128], tensor[128];  // being gathered, and its tensor with the largest difference
    extent all;
    double worst;
    char *name;
    size_t bytes;
} layer_errors;

static void end_layer(layer_errors *e) {
    const double error = ratio(e->all);
    if (error > e->worst) {
        e->worst = error;
        snprintf(e->name, e->bytes, "%s", e->tensor);
    }
    e->all = (extent){0, 0};
}

static void add_tensor(layer_errors *e, const char *name, extent tensor) {
    const size_t n = layer_length(name);
    if (strlen(e->layer) != n || strncmp(e->layer, name, n) != 0) {
        end_layer(e);
        snprintf(e->layer, sizeof e->layer, "%.*s", (int)n, name);
        snprintf(e->tensor, sizeof e->tensor, "%s", name);
    }
    if (tensor.difference > e->all.difference) snprintf(e->tensor, sizeof e->tensor, "%s", name);
    e->all.difference = fmax(e->all.difference, tensor.difference);
    e->all.largest = fmax(e->all.largest, tensor.largest);
}

double cli_gradients_error(const cli_problem *problem, const cli_solution *x, const cli_solution *y, char *name,
                           size_t bytes) {
    layer_errors e = {.tensor = "dz0", .name = name, .bytes = bytes};
    for (int64_t i = 0, n = cli_array_count(&x->dz0); i < n; i++)
        widen(&e.all, cli_array_get(&x->dz0, i), cli_array_get(&y->dz0, i));
    snprintf(name, bytes, "dz0");
    const int64_t count = problem->model ? dpcr_model_parameter_count(problem->model) : 0;
    const char *base = problem->model ? dpcr_model_gradient_vector(problem->model) : NULL;
    for (int64_t k = 0; k < count; k++) {
        char tensor[128];
        dpcr_array gradient;
        if (dpcr_model_parameter(problem->model, k, tensor, sizeof tensor, NULL, &gradient, NULL)) return HUGE_VAL;
        add_tensor(&e, tensor, compare_tensor(&gradient, base, x, y));
    }
    end_layer(&e);
    return e.worst;
}
