// SPDX-License-Identifier: MIT
// bench_train_step: one training step of a residual network with encoder and head by the sequential method, through the
// public interface, by phase; the peers' programs (bench/peers) run the same step.
//   z0 = encoder(x);  z_l = z_{l-1} + tanh(W_l z_{l-1} + b_l) / sqrt(L);  cross entropy(head(z_{L-1}));  back;  AdamW
// The batch is random and stays the same: the loss must fall, and is printed.
#include <deeppcr/deeppcr.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { INPUTS = 784, CLASSES = 10, WARM_STEPS = 4, LEAST_STEPS = 5, MOST_STEPS = 1 << 20, LARGE_PAGE = 1 << 21 };

typedef enum phase { ENCODE, FORWARD, HEAD, BACKWARD, ENCODE_BACKWARD, UPDATE, WHOLE, PHASES } phase;

static const char *const phase_names[PHASES] = {"encode",          "forward", "head", "backward",
                                                "encode_backward", "update",  "step"};

typedef struct arguments {
    int64_t layers, width, batch;
    int threads;
    double seconds;
    bool json;
} arguments;

typedef struct bench {
    arguments given;
    dpcr_context *context;
    dpcr_model *model;
    dpcr_solve_plan *plan;
    dpcr_optimiser *optimiser;
    dpcr_array x, z0, z, last, tape, logits, dz,
        dz0;  // [B][784], [B][w], [L][B][w], its last [B][w], [L][B][tape], ...
    bool taped;
    uint8_t *labels;
    void *workspace;
    size_t workspace_bytes;
    double *times[PHASES];  // milliseconds, [steps]
    int64_t steps;
    double first_loss, loss;
    double processor_milliseconds;  // a step, all threads together
    double processors;              // in use, of the measured steps; well below 1 on a machine that others load
} bench;

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---- the problem ----

// In large pages, where the system has them, as dpcr_train's own buffers are.
static void *aligned(size_t bytes) {
    const size_t page = bytes < LARGE_PAGE ? 64 : LARGE_PAGE, rounded = (bytes + page) / page * page;
    void *memory = aligned_alloc(page, rounded);
    if (memory && page == LARGE_PAGE) (void)madvise(memory, rounded, MADV_HUGEPAGE);  // refused: small ones serve
    return memory;
}

static bool make_array(dpcr_array *array, int32_t ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t shape[] = {a, b, c};
    const int64_t values = a * b * (ndim == 3 ? c : 1);
    void *data = aligned((size_t)values * sizeof(float));
    if (data) memset(data, 0, (size_t)values * sizeof(float));
    *array = dpcr_array_make(data, DPCR_F32, ndim, shape);
    return data != NULL;
}

static bool make_buffers(bench *b, int64_t tape_values) {
    const int64_t L = b->given.layers, B = b->given.batch, w = b->given.width;
    b->taped = tape_values > 0;
    b->labels = malloc((size_t)B);
    b->workspace_bytes = dpcr_solve_plan_workspace(b->plan);
    b->workspace = aligned(b->workspace_bytes);
    bool made = b->labels && b->workspace && make_array(&b->x, 2, B, INPUTS, 0) && make_array(&b->z0, 2, B, w, 0) &&
                make_array(&b->z, 3, L, B, w) && make_array(&b->logits, 2, B, CLASSES, 0) &&
                make_array(&b->dz, 2, B, w, 0) && make_array(&b->dz0, 2, B, w, 0);
    if (b->taped) made = made && make_array(&b->tape, 3, L, B, tape_values);
    for (int p = 0; p < PHASES; p++) made = (b->times[p] = malloc(MOST_STEPS * sizeof(double))) && made;
    if (!made) return false;
    b->last = dpcr_array_make((float *)b->z.data + (L - 1) * B * w, DPCR_F32, 2, b->z.shape + 1);
    return true;
}

// Uniform in [0, 1): a 64-bit linear congruential generator's upper bits.
static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static void fill_batch(bench *b) {
    uint64_t state = 1;
    float *x = b->x.data;
    for (int64_t i = 0; i < b->given.batch * INPUTS; i++) x[i] = (float)(sqrt(12) * (uniform(&state) - 0.5));
    for (int64_t i = 0; i < b->given.batch; i++) b->labels[i] = (uint8_t)(CLASSES * uniform(&state));
}

static dpcr_status make_model(bench *b, dpcr_error *error) {
    const dpcr_context_options context = {.size = sizeof context, .threads = b->given.threads};
    const dpcr_model_options model = {.size = sizeof model,
                                      .architecture = DPCR_RESNET,
                                      .dtype = DPCR_F32,
                                      .inputs = INPUTS,
                                      .outputs = CLASSES,
                                      .layers = b->given.layers,
                                      .width = b->given.width,
                                      .seed = 1};
    const dpcr_status status = dpcr_context_create(&context, &b->context, error);
    return status == DPCR_OK ? dpcr_model_create(b->context, &model, &b->model, error) : status;
}

static dpcr_status make_optimiser(bench *b, dpcr_error *error) {
    const dpcr_optimiser_options adamw = {.size = sizeof adamw, .kind = DPCR_ADAMW, .rate = 1e-3, .weight_decay = 1e-2};
    int64_t count = 0;
    dpcr_model_vector(b->model, &count);
    return dpcr_optimiser_create(b->context, &adamw, DPCR_F32, count, &b->optimiser, error);
}

static dpcr_status create(bench *b, dpcr_error *error) {
    const dpcr_solve_options solve = {
        .size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL, .consume_tape = 1};
    dpcr_steps steps = {.size = sizeof steps};
    dpcr_status status = make_model(b, error);
    if (status == DPCR_OK) status = make_optimiser(b, error);
    if (status == DPCR_OK) status = dpcr_model_steps(b->model, b->given.batch, &steps, error);
    if (status == DPCR_OK) status = dpcr_solve_plan_create(b->context, &steps, &solve, &b->plan, error);
    if (status != DPCR_OK) return status;
    if (!make_buffers(b, steps.tape_values)) {
        snprintf(error->text, sizeof error->text, "no memory for the batch and its states");
        return DPCR_ERROR_MEMORY;
    }
    fill_batch(b);
    dpcr_model_zero_gradients(b->model);
    return DPCR_OK;
}

static void destroy(bench *b) {
    void *const owned[] = {b->x.data,  b->z0.data,  b->z.data, b->tape.data, b->logits.data,
                           b->dz.data, b->dz0.data, b->labels, b->workspace};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    for (int p = 0; p < PHASES; p++) free(b->times[p]);
    dpcr_optimiser_destroy(b->optimiser);
    dpcr_solve_plan_destroy(b->plan);
    dpcr_model_destroy(b->model);
    dpcr_context_destroy(b->context);
}

// ---- one step ----

static dpcr_status forward(bench *b, dpcr_error *error) {
    return dpcr_solve_execute(b->plan, &b->z0, &b->z, b->taped ? &b->tape : NULL, b->workspace, b->workspace_bytes,
                              NULL, error);
}

// Logits, loss and, back from there, dz; the logits' place gets their gradient.
static dpcr_status head(bench *b, dpcr_error *error) {
    dpcr_status status = dpcr_model_head(b->model, &b->last, &b->logits, error);
    if (status != DPCR_OK) return status;
    status = dpcr_loss_cross_entropy(&b->logits, b->labels, &b->loss, &b->logits, NULL, error);
    if (status != DPCR_OK) return status;
    return dpcr_model_head_backward(b->model, &b->last, &b->logits, &b->dz, error);
}

static dpcr_status backward(bench *b, dpcr_error *error) {
    return dpcr_solve_backward(b->plan, &b->z0, &b->z, b->taped ? &b->tape : NULL, NULL, &b->dz, NULL, &b->dz0,
                               b->workspace, b->workspace_bytes, NULL, error);
}

static dpcr_status update(bench *b, dpcr_error *error) {
    const dpcr_status status = dpcr_optimiser_step(b->optimiser, dpcr_model_vector(b->model, NULL),
                                                   dpcr_model_gradient_vector(b->model), error);
    dpcr_model_zero_gradients(b->model);
    return status;
}

static dpcr_status run_phase(bench *b, phase p, dpcr_error *error) {
    switch (p) {
        case ENCODE: return dpcr_model_encode(b->model, &b->x, &b->z0, error);
        case FORWARD: return forward(b, error);
        case HEAD: return head(b, error);
        case BACKWARD: return backward(b, error);
        case ENCODE_BACKWARD: return dpcr_model_encode_backward(b->model, &b->x, &b->dz0, error);
        default: return update(b, error);
    }
}

static dpcr_status step(bench *b, double milliseconds[PHASES], dpcr_error *error) {
    const double begin = seconds_of(CLOCK_MONOTONIC);
    double mark = begin;
    for (phase p = ENCODE; p < WHOLE; p++) {
        const dpcr_status status = run_phase(b, p, error);
        if (status != DPCR_OK) return status;
        const double now = seconds_of(CLOCK_MONOTONIC);
        milliseconds[p] = 1e3 * (now - mark);
        mark = now;
    }
    milliseconds[WHOLE] = 1e3 * (mark - begin);
    return DPCR_OK;
}

static dpcr_status measure(bench *b, dpcr_error *error) {
    double milliseconds[PHASES];
    for (int i = 0; i < WARM_STEPS; i++) {
        const dpcr_status status = step(b, milliseconds, error);
        if (status != DPCR_OK) return status;
        if (i == 0) b->first_loss = b->loss;
    }
    const double begin = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    double now = begin;
    while (b->steps < MOST_STEPS && (b->steps < LEAST_STEPS || now < begin + b->given.seconds)) {
        const dpcr_status status = step(b, milliseconds, error);
        if (status != DPCR_OK) return status;
        for (int p = 0; p < PHASES; p++) b->times[p][b->steps] = milliseconds[p];
        b->steps++;
        now = seconds_of(CLOCK_MONOTONIC);
    }
    const double spent = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used;
    b->processors = spent / (now - begin);
    b->processor_milliseconds = 1e3 * spent / (double)b->steps;
    return DPCR_OK;
}

// ---- output ----

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of sorted times; q in [0, 1].
static double quantile(const bench *b, phase p, double q) { return b->times[p][(int64_t)(q * (double)(b->steps - 1))]; }

static int print_json(const bench *b) {
    json_t *phases = json_object();
    for (int p = 0; p < WHOLE; p++) json_object_set_new(phases, phase_names[p], json_real(quantile(b, p, 0.5)));
    const double median = quantile(b, WHOLE, 0.5),
                 spread = (quantile(b, WHOLE, 0.9) - quantile(b, WHOLE, 0.1)) / median;
    json_t *all =
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I}", "library", "deeppcr", "variant", "sequential", "isa",
                  dpcr_isa_name(), "threads", dpcr_context_threads(b->context), "layers", (json_int_t)b->given.layers,
                  "width", (json_int_t)b->given.width, "batch", (json_int_t)b->given.batch);
    json_t *times =
        json_pack("{s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:o}", "milliseconds_median", median, "milliseconds_min",
                  quantile(b, WHOLE, 0), "spread", spread, "steps", (json_int_t)b->steps, "processors", b->processors,
                  "processor_milliseconds", b->processor_milliseconds, "loss_first", b->first_loss, "loss", b->loss,
                  "phases", phases);
    if (all && times) json_object_update(all, times);
    json_decref(times);
    const int failed = !all || !times || json_dumpf(all, stdout, JSON_REAL_PRECISION(6)) || puts("") < 0;
    json_decref(all);
    return failed;
}

static int print_text(const bench *b) {
    const double median = quantile(b, WHOLE, 0.5);
    printf("deeppcr, %s, %d threads: %.3f ms a step (least %.3f, spread %.0f %%, %.2f processors), %" PRId64
           " steps, loss %.4f to %.4f\n",
           dpcr_isa_name(), dpcr_context_threads(b->context), median, quantile(b, WHOLE, 0),
           100 * (quantile(b, WHOLE, 0.9) - quantile(b, WHOLE, 0.1)) / median, b->processors, b->steps, b->first_loss,
           b->loss);
    for (int p = 0; p < WHOLE; p++) printf("  %-16s %8.3f ms\n", phase_names[p], quantile(b, p, 0.5));
    return 0;
}

static int report(bench *b) {
    for (int p = 0; p < PHASES; p++) qsort(b->times[p], (size_t)b->steps, sizeof(double), by_size);
    const int failed = b->given.json ? print_json(b) : print_text(b);
    if (isfinite(b->loss) && b->loss < b->first_loss) return failed;
    fprintf(stderr, "bench_train_step: the loss went from %g to %g; training should lower it\n", b->first_loss,
            b->loss);
    return 1;
}

// ---- arguments ----

static int usage(void) {
    fputs("bench_train_step [--layers 1024] [--width 32] [--batch 128] [--threads 1] [--seconds 2] [--json]\n", stderr);
    return 2;
}

// A whole number from 1 to `most`, else 0.
static int64_t number(const char *text, int64_t most) {
    char *end = NULL;
    const long long value = strtoll(text, &end, 10);
    return *text && !*end && value >= 1 && value <= most ? value : 0;
}

static bool read_arguments(int count, char **text, arguments *given) {
    static const struct option options[] = {{"layers", required_argument, NULL, 'l'},
                                            {"width", required_argument, NULL, 'w'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {NULL, 0, NULL, 0}};
    *given = (arguments){.layers = 1024, .width = 32, .batch = 128, .threads = 1, .seconds = 2};
    int option;
    while ((option = getopt_long(count, text, "", options, NULL)) != -1) switch (option) {
            case 'l': given->layers = number(optarg, 1 << 20); break;
            case 'w': given->width = number(optarg, 1 << 12); break;
            case 'b': given->batch = number(optarg, 1 << 16); break;
            case 't': given->threads = (int)number(optarg, 1 << 10); break;
            case 's': given->seconds = strtod(optarg, NULL); break;
            case 'j': given->json = true; break;
            default: return false;
        }
    return optind == count && given->layers && given->width && given->batch && given->threads && given->seconds > 0;
}

int main(int count, char **text) {
    bench b = {0};
    dpcr_error error = {0};
    if (!read_arguments(count, text, &b.given)) return usage();
    dpcr_status status = create(&b, &error);
    if (status == DPCR_OK) status = measure(&b, &error);
    int result = 1;
    if (status == DPCR_OK)
        result = report(&b);
    else
        fprintf(stderr, "bench_train_step: %s\n", error.text);
    destroy(&b);
    return result;
}
