// SPDX-License-Identifier: MIT
// bench diffusion: a denoiser's steps by several methods, at several tolerances, windows and numbers of samples, each
// beside the loop in interleaved rounds; and, with a classifier, the quality of many samples by each, over some seeds.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_diffusion.h"
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
    KEY_RESUME,
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
    const char *of_evaluate;  // an option that was given and is --evaluate's
    char *methods;            // its words, one after another, `method_count` of them
    const char *method[VALUES];
    int method_count;
    values tolerances, confirm, windows, counts;
    int64_t pictures, seeds;
    double seconds;
    bool resume;
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
    {"resume", KEY_RESUME, NULL, 0,
     "Keep the points of --csv's file, measure what it lacks, and write each when it is done", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static bool read_values(const char *option, const char *arg, double low, double high, values *to) {
    char *copy = strdup(arg), *rest = copy;
    bool ok = copy != NULL;
    if (!ok) cli_fail_memory("an option");
    to->count = 0;
    for (char *word; ok && (word = cli_next_item(&rest));) {
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
    for (char *word; (word = cli_next_item(&rest));) {
        generation g = b->base;
        if (b->method_count == VALUES) return cli_fail(CLI_USAGE, "--methods: wanted at most %d", VALUES), false;
        if (!cli_read_sampling_method("--methods", word, &g)) return false;
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
        case KEY_DATA: b->of_evaluate = "--data", b->data = arg; return 0;
        case KEY_PICTURES:
            b->of_evaluate = "--pictures";
            return taken(cli_read_int64("--pictures", arg, 2, 1 << 20, &b->pictures));
        case KEY_SEEDS: b->of_evaluate = "--seeds"; return taken(cli_read_int64("--seeds", arg, 1, 100, &b->seeds));
        case KEY_RESUME: b->resume = true; return 0;
        case KEY_SECONDS: return taken(cli_read_double("--seconds", arg, 0, 3600, &b->seconds));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp diffusion_bench_argp = {diffusion_bench_options, parse, NULL, NULL, NULL, NULL, NULL};

// ---- points ----

// tolerance: of a step, or of the pictures.
static generation way_of(const diffusion_bench *b, const char *method, double tolerance, bool confirm, int64_t window) {
    generation g = b->base;
    cli_read_sampling_method("--methods", method, &g);
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

static bool has_windows(const generation *g) { return (CLI_RUNS(g->solve.method) & cli_option_methods("window")) != 0; }

// What generate refuses is no point: a method without windows runs over the whole chain alone.
static int refuse_windows(const diffusion_bench *b) {
    bool whole = false, others = false;
    for (int w = 0; w < b->windows.count; w++) {
        whole = whole || b->windows.value[w] == 0;
        others = others || b->windows.value[w] != 0;
    }
    for (int m = 0; m < b->method_count && others; m++) {
        const generation g = way_of(b, b->method[m], 1e-3, false, 0);
        if (has_windows(&g)) continue;
        if (!whole)
            return cli_fail(CLI_USAGE, "--windows beside method %s, which has none; wanted 0 among them", b->method[m]);
        cli_warn("method %s has no windows: it runs over the whole chain alone", b->method[m]);
    }
    return CLI_DONE;
}

// What names a point, nothing measured yet.
static point point_of(const char *part, const char *method, const generation *way, int64_t count) {
    point p = {0};
    snprintf(p.part, sizeof p.part, "%s", part);
    snprintf(p.method, sizeof p.method, "%.23s", method);
    for (int i = 0; i < POINT_NUMBERS; i++) p.number[i] = NAN;
    p.number[POINT_TOLERANCE] = way->tolerance;
    p.number[POINT_WINDOW] = (double)way->solve.window;
    p.number[POINT_COUNT] = (double)count;
    if (way->confirm > 0) p.number[POINT_CONFIRM] = way->confirm;
    return p;
}

// What the loop calls and evaluates for so many samples, `batch` at a time (0: as fits), from one batch of each size.
typedef struct loop_counts {
    int64_t calls, evaluations;
} loop_counts;

static int count_loop(const diffusion_bench *b, int64_t count, int64_t batch, loop_counts *counts) {
    generation g = way_of(b, "sequential", 1e-3, false, 0);
    g.count = count, g.batch = batch;
    const int64_t each = cli_generate_batch(&g), sizes[2] = {each, count % each}, times[2] = {count / each, 1};
    *counts = (loop_counts){0};
    for (int i = 0; i < 2; i++) {
        generation some = g;
        some.count = some.batch = sizes[i];
        const int status = sizes[i] ? cli_generate_run(&some) : CLI_DONE;
        if (status) return status;
        counts->calls += times[i] * some.calls, counts->evaluations += times[i] * some.evaluations;
    }
    return CLI_DONE;
}

static void describe(point *p, const generation *g, const loop_counts *loop) {
    const bool chose = g->solve.method == DPCR_METHOD_AUTO && strcmp(p->method, "auto") == 0;
    snprintf(p->chosen, sizeof p->chosen, "%.23s", chose ? dpcr_method_name(g->method) : p->method);
    snprintf(p->reason, sizeof p->reason, "%.23s", dpcr_reason_name(g->reason));
    p->number[POINT_SECONDS] = g->seconds;
    p->number[POINT_SWEEPS] = g->sweeps;
    p->number[POINT_CALLS] = (double)g->calls / (double)loop->calls;
    p->number[POINT_EVALUATIONS] = (double)g->evaluations / (double)loop->evaluations;
    if (g->error_estimate > 0) p->number[POINT_ERROR_ESTIMATE] = g->error_estimate;
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
static int time_point(const diffusion_bench *b, const generation *way, point *p) {
    double seconds[ROUNDS], in_order[ROUNDS], ratio[ROUNDS];
    int rounds = 0;
    generation g;
    loop_counts loop;
    int status = count_loop(b, way->count, way->count, &loop);
    if (status) return status;
    for (const double began = cli_now(); rounds < ROUNDS && (rounds < LEAST_ROUNDS || cli_now() - began < b->seconds);
         rounds++) {
        if (cli_signal()) return cli_fail_stopped();
        g = *way;
        g.compare = true;
        g.batch = g.count;
        if ((status = cli_generate_run(&g))) return status;
        seconds[rounds] = g.seconds, in_order[rounds] = g.sequential_seconds;
        ratio[rounds] = in_order[rounds] / seconds[rounds];
    }
    describe(p, &g, &loop);
    p->number[POINT_SECONDS] = median(seconds, rounds);
    p->number[POINT_SEQUENTIAL_SECONDS] = median(in_order, rounds);
    p->number[POINT_RATIO] = median(ratio, rounds);
    p->number[POINT_MAX_ERROR] = g.max_error;
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

static int quality_point(const diffusion_bench *b, const generation *way, point *p) {
    double sum = 0, squares = 0, precision = 0, recall = 0;
    const double n = (double)b->seeds;
    generation g = *way;
    loop_counts loop;
    const int counted = count_loop(b, b->pictures, 0, &loop);
    if (counted) return counted;
    for (int64_t seed = 0; seed < b->seeds; seed++) {
        cli_quality q = {0};
        if (cli_signal()) return cli_fail_stopped();
        g = *way;
        g.count = b->pictures;
        g.sampler.seed = b->common.seed + (uint64_t)seed;
        const int status = sample_quality(b, &g, &q);
        if (status) return status;
        sum += q.frechet_distance, squares += q.frechet_distance * q.frechet_distance;
        precision += q.precision, recall += q.recall;
    }
    describe(p, &g, &loop);
    p->number[POINT_FRECHET_DISTANCE] = sum / n;
    if (b->seeds > 1) p->number[POINT_FRECHET_DEVIATION] = sqrt(fmax(0, (squares - sum * sum / n) / (n - 1)));
    p->number[POINT_PRECISION] = precision / n, p->number[POINT_RECALL] = recall / n;
    return CLI_DONE;
}

// ---- what is told ----

static void say(const diffusion_bench *b, const point *p) {
    const double *n = p->number;
    const bool timed = !strcmp(p->part, "time");
    cli_say(&b->common, "%-12s tolerance %-7g window %-5g samples %-4g: ", p->method, n[POINT_TOLERANCE],
            n[POINT_WINDOW], n[POINT_COUNT]);
    if (timed)
        cli_say(&b->common, "%9.4g s, the loop %9.4g s: %5.2f times", n[POINT_SECONDS], n[POINT_SEQUENTIAL_SECONDS],
                n[POINT_RATIO]);
    else
        cli_say(&b->common, "Frechet distance %.4f", n[POINT_FRECHET_DISTANCE]);
    if (!timed && isfinite(n[POINT_FRECHET_DEVIATION]))  // of one seed there is none
        cli_say(&b->common, " +- %.4f", n[POINT_FRECHET_DEVIATION]);
    if (!timed) cli_say(&b->common, ", precision %.3f, recall %.3f", n[POINT_PRECISION], n[POINT_RECALL]);
    cli_say(&b->common, "; sweeps %3g, calls %.3f, evaluations %6.2f of the loop's", n[POINT_SWEEPS], n[POINT_CALLS],
            n[POINT_EVALUATIONS]);
    if (timed) cli_say(&b->common, ", largest difference %.2g, %s", n[POINT_MAX_ERROR], p->reason);
    cli_say(&b->common, "\n");
}

static int tell(const diffusion_bench *b, const points *all) {
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
        for (int i = 0; i < POINT_NUMBERS; i++) cli_set_real(&one, cli_point_name((point_number)i), p->number[i]);
        cli_append(&list, cli_result_take(&one));
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

// One point, unless the file that is gone on with has it; told and kept at once.
static int take_point(const diffusion_bench *b, const char *part, const char *method, const generation *way,
                      points *all) {
    const bool timed = !strcmp(part, "time");
    point p = point_of(part, method, way, timed ? way->count : b->pictures);
    if (b->resume && cli_points_find(all, &p)) return CLI_DONE;
    const int status = timed ? time_point(b, way, &p) : quality_point(b, way, &p);
    if (status) return status;
    if (!timed) memcpy(p.judged, all->run + RUN_SEEDS, sizeof p.judged);
    if (!cli_points_add(all, &p)) return cli_fail_memory("the points");
    say(b, &p);
    return b->resume ? cli_points_write(all, b->common.csv) : CLI_DONE;
}

static int run_points(const diffusion_bench *b, points *all) {
    const int steps = b->tolerances.count;
    const generation loop = way_of(b, "sequential", 1e-3, false, 0);
    int status = CLI_DONE;
    if (b->classifier) status = take_point(b, "quality", "sequential", &loop, all);
    for (int m = 0; m < b->method_count; m++)
        for (int t = 0; t < steps + b->confirm.count; t++)
            for (int w = 0; w < b->windows.count; w++) {
                const double tolerance = t < steps ? b->tolerances.value[t] : b->confirm.value[t - steps];
                generation g = way_of(b, b->method[m], tolerance, t >= steps, (int64_t)b->windows.value[w]);
                if (g.solve.window && !has_windows(&g)) continue;
                if (!serves(&g))
                    return cli_fail(CLI_USAGE,
                                    "--methods '%s' needs the Jacobian of every step, which models of more than %d "
                                    "numbers have not",
                                    b->method[m], DPCR_DIFFUSION_JACOBIAN);
                for (int c = 0; c < b->counts.count && !status; c++) {
                    g.count = (int64_t)b->counts.value[c];
                    status = take_point(b, "time", b->method[m], &g, all);
                }
                if (b->classifier && !status) status = take_point(b, "quality", b->method[m], &g, all);
                if (status) return status;
            }
    return status;
}

static void name_number(points *all, run_field i, int64_t value) {
    snprintf(all->run[i], RUN_BYTES, "%lld", (long long)value);
}

static void name_hash(points *all, run_field i, uint64_t hash) {
    snprintf(all->run[i], RUN_BYTES, "%016llx", (unsigned long long)hash);
}

static void name_run(const diffusion_bench *b, points *all) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(b->base.model);
    snprintf(all->run[RUN_SAMPLER], RUN_BYTES, "%s", dpcr_sampler_name(b->base.sampler.kind));
    name_number(all, RUN_STEPS, b->base.sampler.steps);
    name_number(all, RUN_WIDTH, o->width);
    name_number(all, RUN_HIDDEN, o->hidden);
    name_number(all, RUN_DEPTH, o->depth);
    name_number(all, RUN_THREADS, dpcr_context_threads(b->base.context));
    snprintf(all->run[RUN_ETA], RUN_BYTES, "%.6g", b->base.sampler.eta);
    name_number(all, RUN_SEED, (int64_t)b->common.seed);
    if (b->classifier) name_number(all, RUN_SEEDS, b->seeds);
}

// By what the file holds: a name may have got another model since. It has been read, so it is no pipe.
static int name_file(const char *what, const char *path, run_field field, points *all) {
    uint64_t hash = 0;
    const int status = cli_hash_file(what, path, &hash);
    if (!status) name_hash(all, field, hash);
    return status;
}

static int name_files(const diffusion_bench *b, points *all) {
    const int status = name_file("the model", b->file, RUN_MODEL, all);
    if (status || !b->classifier) return status;
    name_hash(all, RUN_DATA, cli_data_hash(&b->held_out));
    return name_file("the classifier", b->classifier, RUN_CLASSIFIER, all);
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
    if (!status) {
        name_run(b, &all);
        if (b->common.csv) status = name_files(b, &all);
    }
    if (!status && b->resume) status = cli_points_read(&all, b->common.csv);
    if (!status) status = run_points(b, &all);
    if (!status && b->common.csv) status = cli_points_write(&all, b->common.csv);
    if (!status) status = tell(b, &all);
    cli_points_free(&all);
    cli_release(b->base.samples);
    dpcr_dataset_free(b->base.context, &b->held_out);
    dpcr_diffusion_destroy(b->base.model);
    dpcr_context_destroy(b->base.context);
    return status;
}

static bool spares_inputs(const diffusion_bench *b) {
    const cli_file csv = {"--csv", b->common.csv},
                   read[] = {{"MODEL", b->file}, {"--evaluate", b->classifier}, {"--data", cli_data_place(b->data)}};
    return cli_spares(&csv, 1, read, 3);
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
            "the loop in interleaved rounds: times, sweeps, calls of the network (of at most 256 rows, or the "
            "samples') and "
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
    else if (b.of_evaluate && !b.classifier)
        status = cli_fail(CLI_USAGE, "%s is of --evaluate: wanted that too", b.of_evaluate);
    else if (b.resume && (!b.common.csv || cli_is_stdout(b.common.csv)))
        status = cli_fail(CLI_USAGE, "--resume: wanted the file of --csv, whose points are kept");
    else if (!cli_readable("the model", b.file))
        status = CLI_INPUT;
    else if (!spares_inputs(&b))
        status = CLI_USAGE;
    else if (!(status = refuse_windows(&b)))
        status = run(&b);
    free(b.methods);
    return status;
}
