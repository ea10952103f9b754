// SPDX-License-Identifier: MIT
// bench diffusion: a denoiser's steps by several methods, at several tolerances, windows and numbers of samples, each
// beside the loop in interleaved rounds; and, with a classifier, the quality of many samples by each, over some seeds.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frechet.h"
#include "generate.h"

enum {
    KEY_SAMPLER = 0xb000,
    KEY_STEPS,
    KEY_ETA,
    KEY_METHODS,
    KEY_TOLERANCES,
    KEY_WINDOWS,
    KEY_COUNTS,
    KEY_EVALUATE,
    KEY_DATA,
    KEY_PICTURES,
    KEY_SEEDS,
    KEY_SECONDS,
    KEY_CONFIRM,
};
enum { VALUES = 16, ROUNDS = 25, LEAST_ROUNDS = 3 };

typedef struct values {
    double value[VALUES];
    int count;
} values;

typedef struct diffusion_bench {
    cli_common common;
    generation base;
    const char *file, *classifier, *data;
    char *methods;  // its words, one after another, `method_count` of them
    const char *method[VALUES];
    int method_count;
    values tolerances, confirm, windows, counts;
    int64_t pictures, seeds;
    double seconds;
    dpcr_dataset held_out;
} diffusion_bench;

static const struct argp_option diffusion_bench_options[] = {
    {"sampler", KEY_SAMPLER, "NAME", 0, "ddim (default), ddpm, dpm-solver++, euler, heun", 0},
    {"steps", KEY_STEPS, "N", 0, "Denoising steps (default 100)", 0},
    {"eta", KEY_ETA, "E", 0, "ddim: noise, 0 (default) to 1", 0},
    {"methods", KEY_METHODS, "A,B,...", 0, "Of generate's (default picard,parataa,parareal)", 0},
    {"tolerances", KEY_TOLERANCES, "T,T,...", 0, "Of a step (default 1e-3; with --confirm none)", 0},
    {"confirm", KEY_CONFIRM, "T,T,...", 0, "Of the pictures, confirmed by an error estimate, as generate's --tolerance",
     0},
    {"windows", KEY_WINDOWS, "W,W,...", 0, "Steps solved at once; 0: all (default 0)", 0},
    {"counts", KEY_COUNTS, "C,C,...", 0, "Samples at once, for the times (default 1)", 0},
    {"evaluate", KEY_EVALUATE, "CLASSIFIER", 0,
     "Quality too: Frechet distance, precision and recall on this network's features", 0},
    {"data", KEY_DATA, "NAME|DIR", 0, "Held-out images of --evaluate (default fashion-mnist)", 0},
    {"pictures", KEY_PICTURES, "N", 0, "Samples of --evaluate (default 2000)", 0},
    {"seeds", KEY_SEEDS, "N", 0, "Times that --evaluate samples them, with other noise (default 3)", 0},
    {"seconds", KEY_SECONDS, "T", 0, "Length of a point's race (default 1)", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static bool read_values(const char *option, const char *arg, double low, double high, values *to) {
    char *copy = strdup(arg), *rest = copy;
    bool ok = copy != NULL;
    if (!ok) cli_fail_memory("an option");
    to->count = 0;
    for (char *word; ok && (word = strsep(&rest, ","));) {
        ok = to->count < VALUES || (cli_fail(CLI_USAGE, "%s: wanted at most %d numbers", option, VALUES), false);
        if (ok) ok = cli_read_double(option, word, low, high, &to->value[to->count++]);
    }
    free(copy);
    return ok;
}

static bool read_whole(const char *option, const char *arg, double low, double high, values *to) {
    if (!read_values(option, arg, low, high, to)) return false;
    for (int i = 0; i < to->count; i++)
        if (to->value[i] != floor(to->value[i])) {
            cli_fail(CLI_USAGE, "%s: %g is no whole number", option, to->value[i]);
            return false;
        }
    return true;
}

static bool read_methods(const char *arg, diffusion_bench *b) {
    free(b->methods);
    b->methods = strdup(arg);
    b->method_count = 0;
    if (!b->methods) return cli_fail_memory("an option"), false;
    char *rest = b->methods;
    for (char *word; (word = strsep(&rest, ","));) {
        generation g = b->base;
        if (b->method_count == VALUES) return cli_fail(CLI_USAGE, "--methods: wanted at most %d", VALUES), false;
        if (!cli_read_sampling_method(word, &g)) return false;
        b->method[b->method_count++] = word;
    }
    return true;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    diffusion_bench *b = state->input;
    dpcr_error error = {0};
    switch (key) {
        case KEY_SAMPLER:
            if (dpcr_sampler_find(arg, &b->base.sampler.kind, &error) == DPCR_OK) return 0;
            cli_fail(CLI_USAGE, "--sampler: %s", error.text);
            return EINVAL;
        case KEY_STEPS: return taken(cli_read_int64("--steps", arg, 1, 1 << 14, &b->base.sampler.steps));
        case KEY_ETA: return taken(cli_read_double("--eta", arg, 0, 1, &b->base.sampler.eta));
        case KEY_METHODS: return taken(read_methods(arg, b));
        case KEY_TOLERANCES: return taken(read_values("--tolerances", arg, 0, 1, &b->tolerances));
        case KEY_CONFIRM: return taken(read_values("--confirm", arg, 1e-12, 1, &b->confirm));
        case KEY_WINDOWS: return taken(read_whole("--windows", arg, 0, 1 << 14, &b->windows));
        case KEY_COUNTS: return taken(read_whole("--counts", arg, 1, 256, &b->counts));
        case KEY_EVALUATE: b->classifier = arg; return 0;
        case KEY_DATA: b->data = arg; return 0;
        case KEY_PICTURES: return taken(cli_read_int64("--pictures", arg, 2, 1 << 20, &b->pictures));
        case KEY_SEEDS: return taken(cli_read_int64("--seeds", arg, 1, 100, &b->seeds));
        case KEY_SECONDS: return taken(cli_read_double("--seconds", arg, 0, 3600, &b->seconds));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp diffusion_bench_argp = {diffusion_bench_options, parse, NULL, NULL, NULL, NULL, NULL};

// ---- points ----

typedef struct point {
    const char *part;  // "time" or "quality"
    char method[24], chosen[24];
    const char *reason;
    double tolerance, confirm, error_estimate;
    int64_t window, count;
    int sweeps;
    double calls, evaluations;  // of one run over those of the loop
    double seconds, sequential_seconds, ratio, max_error;
    double frechet, frechet_deviation, precision, recall;  // means over the seeds
} point;

typedef struct points {
    point *at;
    int count, capacity;
} points;

static point *add_point(points *p) {
    if (p->count == p->capacity) {
        const int capacity = p->capacity ? 2 * p->capacity : 64;
        point *more = realloc(p->at, (size_t)capacity * sizeof *more);
        if (!more) return NULL;
        p->at = more, p->capacity = capacity;
    }
    return memset(&p->at[p->count++], 0, sizeof *p->at);
}

// tolerance: of a step, or of the pictures.
static generation way_of(const diffusion_bench *b, const char *method, double tolerance, bool confirm, int64_t window) {
    generation g = b->base;
    cli_read_sampling_method(method, &g);
    if (confirm)
        cli_confirm_pictures(&g, tolerance);
    else
        g.tolerance = tolerance;
    g.solve.window = window;
    return g;
}

static bool serves(const generation *g) {
    return !cli_sampling_needs_jacobians(g) || dpcr_diffusion_get_options(g->model)->width <= DPCR_DIFFUSION_JACOBIAN;
}

static void describe(point *p, const char *part, const char *method, const generation *g, const generation *loop) {
    const bool chose = g->solve.method == DPCR_METHOD_AUTO && strcmp(method, "auto") == 0;
    p->part = part;
    snprintf(p->method, sizeof p->method, "%.23s", method);
    snprintf(p->chosen, sizeof p->chosen, "%.23s", chose ? dpcr_method_name(g->method) : method);
    p->reason = dpcr_reason_name(g->reason);
    p->tolerance = g->tolerance;
    p->confirm = g->confirm > 0 ? g->confirm : NAN;
    p->error_estimate = g->error_estimate > 0 ? g->error_estimate : NAN;
    p->window = g->solve.window;
    p->count = g->count;
    p->sweeps = g->sweeps;
    p->calls = (double)g->calls / (double)loop->calls;
    p->evaluations = (double)g->evaluations / (double)loop->evaluations;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

// One method beside the loop, run in turn.
static int time_point(const diffusion_bench *b, const generation *way, const char *method, points *all) {
    double seconds[ROUNDS], loop[ROUNDS], ratio[ROUNDS];
    int rounds = 0;
    generation g, in_order = way_of(b, "sequential", 1e-3, false, 0);  // for its counts
    in_order.count = in_order.batch = way->count;
    int status = cli_generate_run(&in_order);
    const double began = cli_now();
    for (; !status && rounds < ROUNDS && (rounds < LEAST_ROUNDS || cli_now() - began < b->seconds); rounds++) {
        if (cli_signal()) return 128 + cli_signal();
        g = *way;
        g.compare = true;
        g.batch = g.count;
        if ((status = cli_generate_run(&g))) break;
        seconds[rounds] = g.seconds, loop[rounds] = g.sequential_seconds;
        ratio[rounds] = loop[rounds] / seconds[rounds];
    }
    if (status) return status;
    point *p = add_point(all);
    if (!p) return cli_fail_memory("the points");
    describe(p, "time", method, &g, &in_order);
    p->seconds = median(seconds, rounds);
    p->sequential_seconds = median(loop, rounds);
    p->ratio = median(ratio, rounds);
    p->max_error = g.max_error;
    cli_say(
        &b->common,
        "%-12s tolerance %-7g window %-5lld %4lld samples: %9.4g s, the loop %9.4g s: %5.2f times; %3d sweeps, calls "
        "%.3f, evaluations %6.2f of the loop's, largest difference %.2g, %s\n",
        method, p->tolerance, (long long)p->window, (long long)p->count, p->seconds, p->sequential_seconds, p->ratio,
        p->sweeps, p->calls, p->evaluations, p->max_error, p->reason);
    return CLI_DONE;
}

// ---- quality ----

static int sample_quality(const diffusion_bench *b, generation *g, cli_quality *quality) {
    dpcr_error error = {0};
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(g->model);
    const int status = cli_generate_run(g);
    if (status) return status;
    float *x = cli_allocate((size_t)(g->count * dpcr_diffusion_pixels(o)) * sizeof *x);
    if (!x) return cli_fail_memory("the pictures");
    int told = dpcr_diffusion_pictures(g->model, g->count, g->samples, x, &error) == DPCR_OK
                   ? CLI_DONE
                   : cli_fail_error(&error, CLI_COMPUTING);
    if (!told) told = cli_quality_measure(g->context, b->classifier, &b->held_out, g->count, x, quality);
    cli_release(x);
    return told;
}

// `loop`: what the loop's own point ran; its first call fills it in.
static int quality_point(const diffusion_bench *b, const generation *way, const char *method, generation *loop,
                         points *all) {
    double sum = 0, squares = 0, precision = 0, recall = 0;
    const double n = (double)b->seeds;
    generation g = *way;
    for (int64_t seed = 0; seed < b->seeds; seed++) {
        cli_quality q = {0};
        if (cli_signal()) return 128 + cli_signal();
        g = *way;
        g.count = b->pictures;
        g.sampler.seed = b->common.seed + (uint64_t)seed;
        const int status = sample_quality(b, &g, &q);
        if (status) return status;
        sum += q.frechet_distance, squares += q.frechet_distance * q.frechet_distance;
        precision += q.precision, recall += q.recall;
    }
    point *p = add_point(all);
    if (!p) return cli_fail_memory("the points");
    if (!loop->calls) *loop = g;
    describe(p, "quality", method, &g, loop);
    p->seconds = g.seconds;
    p->frechet = sum / n;
    p->frechet_deviation = b->seeds > 1 ? sqrt(fmax(0, (squares - sum * sum / n) / (n - 1))) : NAN;
    p->precision = precision / n, p->recall = recall / n;
    cli_say(&b->common,
            "%-12s tolerance %-7g window %-5lld %lld samples: Frechet distance %.4f +- %.4f, precision %.3f, recall "
            "%.3f; %d sweeps, calls %.3f, evaluations %.2f of the loop's\n",
            method, p->tolerance, (long long)p->window, (long long)p->count, p->frechet, p->frechet_deviation,
            p->precision, p->recall, p->sweeps, p->calls, p->evaluations);
    return CLI_DONE;
}

// ---- what is told ----

static const char *const numbers[] = {
    "tolerance", "window", "count",       "seconds",       "sequential_seconds", "ratio",
    "sweeps",    "calls",  "evaluations", "max_error",     "frechet_distance",   "frechet_deviation",
    "precision", "recall", "confirm",     "error_estimate"};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double number_of(const point *p, int i) {
    const bool timed = !strcmp(p->part, "time");
    const double all[NUMBERS] = {p->tolerance,
                                 (double)p->window,
                                 (double)p->count,
                                 p->seconds,
                                 timed ? p->sequential_seconds : NAN,
                                 timed ? p->ratio : NAN,
                                 p->sweeps,
                                 p->calls,
                                 p->evaluations,
                                 timed ? p->max_error : NAN,
                                 timed ? NAN : p->frechet,
                                 timed ? NAN : p->frechet_deviation,
                                 timed ? NAN : p->precision,
                                 timed ? NAN : p->recall,
                                 p->confirm,
                                 p->error_estimate};
    return all[i];
}

static int write_csv(const diffusion_bench *b, const points *all) {
    char *text = NULL;
    size_t bytes = 0;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(b->base.model);
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return cli_fail_memory("the CSV file");
    fprintf(out, "part,sampler,steps,width,hidden,depth,threads,method,chosen,reason");
    for (int i = 0; i < NUMBERS; i++) fprintf(out, ",%s", numbers[i]);
    fputc('\n', out);
    for (const point *p = all->at; p < all->at + all->count; p++) {
        fprintf(out, "%s,%s,%lld,%lld,%lld,%lld,%d,%s,%s,%s", p->part, dpcr_sampler_name(b->base.sampler.kind),
                (long long)b->base.sampler.steps, (long long)o->width, (long long)o->hidden, (long long)o->depth,
                dpcr_context_threads(b->base.context), p->method, p->chosen, p->reason);
        for (int i = 0; i < NUMBERS; i++)
            if (isfinite(number_of(p, i)))
                fprintf(out, ",%.6g", number_of(p, i));
            else
                fputc(',', out);
        fputc('\n', out);
    }
    int status = fclose(out) ? cli_fail_memory("the CSV file") : cli_write_file(b->common.csv, text, bytes);
    free(text);
    return status;
}

static int tell(const diffusion_bench *b, const points *all) {
    if (b->common.csv) {
        const int status = write_csv(b, all);
        if (status) return status;
    }
    if (!b->common.json) return CLI_DONE;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(b->base.model);
    cli_result r = cli_result_create();
    cli_set_text(&r, "sampler", dpcr_sampler_name(b->base.sampler.kind));
    cli_set_int(&r, "steps", b->base.sampler.steps);
    cli_set_real(&r, "eta", b->base.sampler.eta);
    cli_set_int(&r, "width", o->width);
    cli_set_int(&r, "hidden", o->hidden);
    cli_set_int(&r, "depth", o->depth);
    cli_set_int(&r, "threads", dpcr_context_threads(b->base.context));
    cli_set_text(&r, "isa", dpcr_isa_name());
    cli_set_int(&r, "seed", (int64_t)b->common.seed);
    if (b->classifier) cli_set_int(&r, "seeds", b->seeds);
    json_t *list = json_array();
    for (const point *p = all->at; p < all->at + all->count; p++) {
        cli_result one = cli_result_create();
        cli_set_text(&one, "part", p->part);
        cli_set_text(&one, "method", p->method);
        cli_set_text(&one, "chosen", p->chosen);
        cli_set_text(&one, "reason", p->reason);
        for (int i = 0; i < NUMBERS; i++) cli_set_real(&one, numbers[i], number_of(p, i));
        json_array_append_new(list, one.failed ? NULL : json_incref(one.object));
        cli_result_destroy(&one);
    }
    cli_set(&r, "points", list);
    const int status = cli_print_json(&r);
    cli_result_destroy(&r);
    return status;
}

// ---- the run ----

// What generate's defaults are, but for the number of steps.
static int settle(diffusion_bench *b) {
    generation *g = &b->base;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(g->model);
    const bool continuous = g->sampler.kind == DPCR_SAMPLER_EULER || g->sampler.kind == DPCR_SAMPLER_HEUN;
    g->sampler.noise = o->noise;
    g->sampler.spacing = continuous ? DPCR_SPACING_KARRAS : DPCR_SPACING_LEADING;
    g->sampler.clip = dpcr_diffusion_autoencoder(g->model) ? 0 : 1;
    g->sampler.seed = b->common.seed;
    if (!b->tolerances.count && !b->confirm.count) b->tolerances = (values){{1e-3}, 1};
    if (!g->sampler.steps) g->sampler.steps = o->noise.steps < 100 ? o->noise.steps : 100;
    int64_t most = b->classifier ? b->pictures : 1;
    for (int i = 0; i < b->counts.count; i++)
        if ((int64_t)b->counts.value[i] > most) most = (int64_t)b->counts.value[i];
    g->samples = cli_allocate((size_t)(most * o->width) * sizeof *g->samples);
    if (!g->samples) return cli_fail_memory("the samples");
    if (!b->classifier) return CLI_DONE;
    const int status = cli_data_read(g->context, b->data, "t10k", 0, 0, &b->held_out);
    if (status) return status;
    const int64_t held = dpcr_dataset_pixels(&b->held_out), made = dpcr_diffusion_pixels(o);
    if (b->held_out.rows == o->rows && b->held_out.cols == o->cols && held == made) return CLI_DONE;
    return cli_fail(CLI_INPUT, "'%s' has images of %lld x %lld, %lld numbers, the model makes %lld x %lld, %lld",
                    b->data, (long long)b->held_out.rows, (long long)b->held_out.cols, (long long)held,
                    (long long)o->rows, (long long)o->cols, (long long)made);
}

static int run_points(const diffusion_bench *b, points *all) {
    int status = CLI_DONE;
    generation in_order = {0};
    const generation loop = way_of(b, "sequential", 1e-3, false, 0);
    if (b->classifier) status = quality_point(b, &loop, "sequential", &in_order, all);
    const int steps = b->tolerances.count;
    for (int m = 0; m < b->method_count; m++)
        for (int t = 0; t < steps + b->confirm.count; t++)
            for (int w = 0; w < b->windows.count; w++) {
                const double tolerance = t < steps ? b->tolerances.value[t] : b->confirm.value[t - steps];
                generation g = way_of(b, b->method[m], tolerance, t >= steps, (int64_t)b->windows.value[w]);
                if (!serves(&g))
                    return cli_fail(CLI_USAGE,
                                    "--methods '%s' needs the Jacobian of every step, which models of more than %d "
                                    "numbers have not",
                                    b->method[m], DPCR_DIFFUSION_JACOBIAN);
                for (int c = 0; c < b->counts.count && !status; c++) {
                    g.count = (int64_t)b->counts.value[c];
                    status = time_point(b, &g, b->method[m], all);
                }
                if (b->classifier && !status) status = quality_point(b, &g, b->method[m], &in_order, all);
                if (status) return status;
            }
    return status;
}

static int run(diffusion_bench *b) {
    points all = {0};
    dpcr_error error = {0};
    int status = CLI_DONE;
    b->base.context = cli_context_create(&b->common, &status);
    if (!b->base.context) return status;
    if (dpcr_diffusion_load(b->base.context, b->file, &b->base.model, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_READING);
    if (!status) status = settle(b);
    if (!status) status = run_points(b, &all);
    if (!status) status = tell(b, &all);
    free(all.at);
    cli_release(b->base.samples);
    dpcr_dataset_free(b->base.context, &b->held_out);
    dpcr_diffusion_destroy(b->base.model);
    dpcr_context_destroy(b->base.context);
    return status;
}

int cli_bench_diffusion(int argc, char **argv) {
    diffusion_bench b = {.common = CLI_COMMON_DEFAULTS,
                         .data = CLI_FASHION_MNIST,
                         .base = {.sampler = {.size = sizeof(dpcr_sampler_options), .kind = DPCR_SAMPLER_DDIM},
                                  .solve = {.size = sizeof(dpcr_solve_options), .guess = DPCR_GUESS_STATE},
                                  .label = -1,
                                  .guidance = 1},
                         .windows = {{0}, 1},
                         .counts = {{1}, 1},
                         .pictures = 2000,
                         .seeds = 3,
                         .seconds = 1};
    const cli_syntax syntax = {
        .arguments = "MODEL",
        .doc =
            "Runs a denoiser's steps by every method, tolerance, window and number of samples asked for, each beside "
            "the loop in interleaved rounds: times, sweeps, calls of the network that wait for each other and "
            "evaluations (a Jacobian counts as many as the state is wide) as parts of the loop's, and the largest "
            "difference of a state. With --evaluate the quality of many samples, by the loop and by each: means "
            "over the seeds and the Frechet distance's deviation.\vscripts/plots/diffusion.gp draws the CSV file.",
        .groups = {{&diffusion_bench_argp, &b, "Sampling:"}, {&cli_common_argp, &b.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL] = {0};
    int status;
    if (!read_methods("picard,parataa,parareal", &b)) return CLI_RESOURCES;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) {
        free(b.methods);
        return status;
    }
    b.file = positional[0];
    if (!b.file)
        status = cli_fail(CLI_USAGE, "which model? wanted the file that 'train denoiser --save' writes");
    else if (!cli_readable("the model", b.file))
        status = CLI_INPUT;
    else
        status = run(&b);
    free(b.methods);
    return status;
}
