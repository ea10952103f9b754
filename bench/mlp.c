// SPDX-License-Identifier: MIT
// bench_mlp: a whole network forward, and backward with every parameter's gradient, by the loop, by overlapped chunks
// and by what `auto` takes, through the public interface, in interleaved rounds; the peers' programs
// (bench/peers/mlp_*.py) run the same network:   z_l = relu(W_l z_{l-1} + b_l), default initialisation, loss
// sum(z_{L-1}), float32 Backward has the tape of an earlier forward pass, as a training step has.
#include <deeppcr/deeppcr.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOP, OVERLAP, AUTO, WAYS, DIRECTIONS = 2, LEAST_ROUNDS = 9, MOST_ROUNDS = 1 << 16 };

static const char *const way_names[WAYS] = {"loop", "overlap", "auto"};
static const char *const direction_names[DIRECTIONS] = {"forward", "backward"};

typedef struct arguments {
    int64_t layers, width, batch, warm_up;
    int threads;
    double seconds;
    bool tanh, residual, json;
} arguments;

typedef struct bench {
    arguments given;
    dpcr_context *context;
    dpcr_model *model;
    dpcr_solve_plan *plans[WAYS];
    dpcr_array z0, z, tape, last, dz0;  // [B][w], [L][B][w], [L][B][tape], [B][w] twice
    float *wanted[DIRECTIONS], *gradients;
    int64_t parameters;
    void *workspace;
    size_t workspace_bytes;
    double *times[DIRECTIONS][WAYS];  // seconds a call, [rounds]
    double error[DIRECTIONS][WAYS];   // largest difference from the loop, over the largest number
    int sweeps[WAYS];
    int64_t rounds;
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- the problem ----

static void *zeros(size_t bytes) {
    void *data = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (data) memset(data, 0, (bytes + 64) / 64 * 64);
    return data;
}

static bool make_array(dpcr_array *array, int32_t ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t shape[] = {a, b, c};
    void *data = zeros((size_t)(a * b * (ndim == 3 ? c : 1)) * sizeof(float));
    *array = dpcr_array_make(data, DPCR_F32, ndim, shape);
    return data != NULL;
}

static bool make_buffers(bench *b, int64_t tape_values) {
    const int64_t L = b->given.layers, B = b->given.batch, w = b->given.width;
    dpcr_model_vector(b->model, &b->parameters);
    b->gradients = dpcr_model_gradient_vector(b->model);
    for (int i = 0; i < WAYS; i++)
        if (dpcr_solve_plan_workspace(b->plans[i]) > b->workspace_bytes)
            b->workspace_bytes = dpcr_solve_plan_workspace(b->plans[i]);
    bool made = make_array(&b->z0, 2, B, w, 0) && make_array(&b->z, 3, L, B, w) &&
                make_array(&b->tape, 3, L, B, tape_values) && make_array(&b->last, 2, B, w, 0) &&
                make_array(&b->dz0, 2, B, w, 0) && (b->workspace = zeros(b->workspace_bytes)) &&
                (b->wanted[0] = zeros((size_t)(L * B * w) * sizeof(float))) &&
                (b->wanted[1] = zeros((size_t)b->parameters * sizeof(float)));
    for (int d = 0; d < DIRECTIONS; d++)
        for (int i = 0; i < WAYS; i++) made = made && (b->times[d][i] = zeros(MOST_ROUNDS * sizeof(double)));
    if (!made) return false;
    uint64_t state = 1;
    for (int64_t i = 0; i < B * w; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ((float *)b->z0.data)[i] = (float)((double)(state >> 11) * 0x1p-52 - 1);
        ((float *)b->last.data)[i] = 1;
    }
    return true;
}

static dpcr_status create(bench *b, dpcr_error *error) {
    const dpcr_context_options context = {.size = sizeof context, .threads = b->given.threads};
    const dpcr_model_options model = {.size = sizeof model,
                                      .architecture = b->given.residual ? DPCR_RESNET : DPCR_MLP,
                                      .dtype = DPCR_F32,
                                      .layers = b->given.layers,
                                      .width = b->given.width,
                                      .activation = b->given.tanh ? DPCR_ACT_TANH : DPCR_ACT_RELU,
                                      .seed = 1};
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_status status = dpcr_context_create(&context, &b->context, error);
    if (status == DPCR_OK) status = dpcr_model_create(b->context, &model, &b->model, error);
    if (status == DPCR_OK) status = dpcr_model_steps(b->model, b->given.batch, &steps, error);
    for (int i = 0; i < WAYS && status == DPCR_OK; i++) {
        dpcr_solve_options options = {.size = sizeof options};
        if (i == LOOP) options.method = DPCR_METHOD_SEQUENTIAL, options.backward = DPCR_SCHEME_SEQUENTIAL;
        if (i == OVERLAP) {
            options.method = DPCR_METHOD_OVERLAP, options.backward = DPCR_SCHEME_OVERLAP;
            options.warm_up = b->given.warm_up;
        }
        status = dpcr_solve_plan_create(b->context, &steps, &options, &b->plans[i], error);
    }
    if (status == DPCR_OK && !make_buffers(b, steps.tape_values)) {
        snprintf(error->text, sizeof error->text, "no memory for the states");
        return DPCR_ERROR_MEMORY;
    }
    return status;
}

static void destroy(bench *b) {
    void *const owned[] = {b->z0.data,  b->z.data,    b->tape.data, b->last.data,
                           b->dz0.data, b->workspace, b->wanted[0], b->wanted[1]};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    for (int i = 0; i < WAYS; i++) {
        for (int d = 0; d < DIRECTIONS; d++) free(b->times[d][i]);
        dpcr_solve_plan_destroy(b->plans[i]);
    }
    dpcr_model_destroy(b->model);
    dpcr_context_destroy(b->context);
}

// ---- calls ----

static dpcr_status call(bench *b, int direction, int way, bool taped, dpcr_solve_report *report, dpcr_error *error) {
    if (direction == 0)
        return dpcr_solve_execute(b->plans[way], &b->z0, &b->z, taped ? &b->tape : NULL, b->workspace,
                                  b->workspace_bytes, report, error);
    return dpcr_solve_backward(b->plans[way], &b->z0, &b->z, &b->tape, NULL, &b->last, NULL, &b->dz0, b->workspace,
                               b->workspace_bytes, report, error);
}

static double difference(const float *x, const float *y, int64_t n) {
    double most = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)y[i]));
    }
    return size > 0 ? most / size : most;
}

// Every way once, against the loop. The last forward pass leaves the loop's states and tape.
static dpcr_status compare(bench *b, dpcr_error *error) {
    const int64_t states = b->given.layers * b->given.batch * b->given.width;
    for (int k = WAYS; k >= 0; k--) {  // the loop first and last
        const int way = k == WAYS ? LOOP : k;
        dpcr_solve_report report = {.size = sizeof report};
        dpcr_status status = call(b, 0, way, way == LOOP, &report, error);
        if (status != DPCR_OK) return status;
        b->sweeps[way] = report.sweeps;
        if (k == WAYS) memcpy(b->wanted[0], b->z.data, (size_t)states * sizeof(float));
        b->error[0][way] = difference(b->z.data, b->wanted[0], states);
    }
    for (int k = WAYS; k >= 0; k--) {
        const int way = k == WAYS ? LOOP : k;
        dpcr_model_zero_gradients(b->model);
        const dpcr_status status = call(b, 1, way, true, NULL, error);
        if (status != DPCR_OK) return status;
        if (k == WAYS) memcpy(b->wanted[1], b->gradients, (size_t)b->parameters * sizeof(float));
        b->error[1][way] = difference(b->gradients, b->wanted[1], b->parameters);
    }
    return DPCR_OK;
}

// Short calls are repeated within a round until the clock can tell them.
static dpcr_status measure(bench *b, dpcr_error *error) {
    int64_t calls = 1;
    const double begin = now();
    for (double start = now(); now() - start < 2e-5; calls++) {
        const dpcr_status status = call(b, 0, LOOP, false, NULL, error);
        if (status != DPCR_OK) return status;
    }
    while (b->rounds < MOST_ROUNDS && (b->rounds < LEAST_ROUNDS || now() - begin < b->given.seconds)) {
        dpcr_model_zero_gradients(b->model);
        for (int d = 0; d < DIRECTIONS; d++)
            for (int k = 0; k < WAYS; k++) {
                const int way = b->rounds % 2 ? WAYS - 1 - k : k;  // there and back
                dpcr_status status = call(b, d, way, true, NULL, error);
                const double start = now();
                for (int64_t i = 0; i < calls && status == DPCR_OK; i++) status = call(b, d, way, d == 1, NULL, error);
                b->times[d][way][b->rounds] = (now() - start) / (double)calls;
                if (status != DPCR_OK) return status;
            }
        b->rounds++;
    }
    return DPCR_OK;
}

// ---- output ----

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const bench *b, int d, int way, double q) {
    return b->times[d][way][(int64_t)(q * (double)(b->rounds - 1))];
}

static const char *taken(const bench *b, int d, int way) {
    return d ? dpcr_scheme_name(dpcr_solve_plan_backward(b->plans[way]))
             : dpcr_method_name(dpcr_solve_plan_method(b->plans[way]));
}

// One JSON object a direction and way, as the peers' programs print theirs.
static int print_one(const bench *b, int d, int way) {
    const double each = 1e9 / (double)b->given.layers, median = quantile(b, d, way, 0.5);
    const double spread = (quantile(b, d, way, 0.9) - quantile(b, d, way, 0.1)) / median;
    if (!b->given.json) {
        printf("%-8s %-8s %-10s %10.2f ns a layer (least %.2f, spread %.0f %%)  difference %.1e\n", direction_names[d],
               way_names[way], taken(b, d, way), each * median, each * quantile(b, d, way, 0), 100 * spread,
               b->error[d][way]);
        return 0;
    }
    json_t *one = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:f}", "library", "deeppcr", "variant",
        way_names[way], "method", taken(b, d, way), "isa", dpcr_isa_name(), "direction", direction_names[d], "threads",
        dpcr_context_threads(b->context), "layers", (json_int_t)b->given.layers, "width", (json_int_t)b->given.width,
        "batch", (json_int_t)b->given.batch, "ns_a_layer", each * median, "ns_a_layer_min",
        each * quantile(b, d, way, 0), "spread", spread, "rounds", (json_int_t)b->rounds, "error", b->error[d][way]);
    const int failed = !one || json_dumpf(one, stdout, JSON_REAL_PRECISION(6)) || puts("") < 0;
    json_decref(one);
    return failed;
}

static int report(bench *b) {
    int failed = 0;
    for (int d = 0; d < DIRECTIONS; d++)
        for (int i = 0; i < WAYS; i++) {
            qsort(b->times[d][i], (size_t)b->rounds, sizeof(double), by_size);
            failed |= print_one(b, d, i);
            if (b->error[d][i] <= 1e-4) continue;
            fprintf(stderr, "bench_mlp: %s by %s differs from the loop by %g\n", direction_names[d], way_names[i],
                    b->error[d][i]);
            failed = 1;
        }
    if (!b->given.json) puts(dpcr_solve_plan_sentence(b->plans[AUTO]));
    return failed;
}

// ---- arguments ----

static int usage(void) {
    fputs(
        "bench_mlp [--layers 1024] [--width 8] [--batch 1] [--threads 2] [--warm-up 32] [--seconds 1] [--tanh] "
        "[--residual] [--json]\n",
        stderr);
    return 2;
}

// A whole number from 1 to `most`, else 0.
static int64_t number(const char *text, int64_t most) {
    char *end = NULL;
    const long long value = strtoll(text, &end, 10);
    return *text && !*end && value >= 1 && value <= most ? value : 0;
}

static bool read_arguments(int count, char **text, arguments *given) {
    static const struct option options[] = {
        {"layers", required_argument, NULL, 'l'},  {"width", required_argument, NULL, 'w'},
        {"batch", required_argument, NULL, 'b'},   {"threads", required_argument, NULL, 't'},
        {"warm-up", required_argument, NULL, 'm'}, {"seconds", required_argument, NULL, 's'},
        {"tanh", no_argument, NULL, 'a'},          {"residual", no_argument, NULL, 'r'},
        {"json", no_argument, NULL, 'j'},          {NULL, 0, NULL, 0}};
    *given = (arguments){.layers = 1024, .width = 8, .batch = 1, .warm_up = 32, .threads = 2, .seconds = 1};
    int option;
    while ((option = getopt_long(count, text, "", options, NULL)) != -1) switch (option) {
            case 'l': given->layers = number(optarg, 1 << 20); break;
            case 'w': given->width = number(optarg, 1 << 12); break;
            case 'b': given->batch = number(optarg, 1 << 16); break;
            case 't': given->threads = (int)number(optarg, 1 << 10); break;
            case 'm': given->warm_up = number(optarg, 1 << 20); break;
            case 's': given->seconds = strtod(optarg, NULL); break;
            case 'a': given->tanh = true; break;
            case 'r': given->residual = true; break;
            case 'j': given->json = true; break;
            default: return false;
        }
    return optind == count && given->layers && given->width && given->batch && given->threads && given->warm_up &&
           given->seconds > 0;
}

int main(int count, char **text) {
    bench b = {0};
    dpcr_error error = {0};
    if (!read_arguments(count, text, &b.given)) return usage();
    dpcr_status status = create(&b, &error);
    if (status == DPCR_OK) status = compare(&b, &error);
    if (status == DPCR_OK) status = measure(&b, &error);
    int result = 1;
    if (status == DPCR_OK)
        result = report(&b);
    else
        fprintf(stderr, "bench_mlp: %s\n", error.text);
    destroy(&b);
    return result;
}
