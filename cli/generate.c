// SPDX-License-Identifier: MIT
// generate MODEL: pictures by a diffusion model, all denoising steps at once or in order.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frechet.h"
#include "generate.h"
#include "picture.h"

enum {
    KEY_SAMPLER = 0xa000,
    KEY_STEPS,
    KEY_ETA,
    KEY_SPACING,
    KEY_CLIP,
    KEY_COUNT,
    KEY_BATCH,
    KEY_METHOD,
    KEY_WINDOW,
    KEY_TOLERANCE,
    KEY_GUESS,
    KEY_SWEEPS,
    KEY_CLASS,
    KEY_GUIDANCE,
    KEY_OUT,
    KEY_PATH,
    KEY_SAMPLES,
    KEY_COMPARE,
    KEY_SCALED,
    KEY_EVALUATE,
    KEY_DATA,
    KEY_ORDER,
    KEY_BLOCK,
    KEY_STEP_TOLERANCE,
    KEY_PARADIGMS,
    KEY_PATH_OUT,
    KEY_MASK,
    KEY_KNOWN,
    KEY_WISDOM,
    KEY_TIMES,
};

typedef struct generate {
    cli_common common;
    generation run;
    const char *file, *out, *path, *samples, *classifier, *data, *guess, *path_out, *mask, *known, *wisdom;
    bool clip_given, data_given, guess_given, paradigms;
    double tolerance, step_tolerance;  // as asked for; the latter < 0: not
    float *owned[3];                   // guess, mask, known
    double *times;                     // of the steps, as asked for, or NULL
    int64_t time_count;
    float *pictures;  // [C][pixels] where any are wanted, taken before hours of sampling
    cli_quality quality;
    dpcr_dataset held_out;
} generate;

static const struct argp_option generate_options[] = {
    {"sampler", KEY_SAMPLER, "NAME", 0, "ddpm, ddim (default), dpm-solver++, euler, heun", 0},
    {"steps", KEY_STEPS, "N", 0, "Denoising steps (default: ddpm all that were trained, else 50)", 0},
    {"eta", KEY_ETA, "E", 0, "ddim: noise, 0 (default) to 1", 0},
    {"spacing", KEY_SPACING, "NAME", 0,
     "Which times: leading (default), trailing, linspace, karras (default of euler and heun)", 0},
    {"times", KEY_TIMES, "T,T,...", 0,
     "The times themselves, falling, between the trained ones too, in place of --steps and --spacing", 0},
    {"clip", KEY_CLIP, "X", 0, "Cut the predicted picture to -X..X (default: 1 for pixels, 0, not at all, for codes)",
     0},
    {"count", KEY_COUNT, "C", 0, "Pictures (default 16)", 0},
    {"batch", KEY_BATCH, "B", 0, "At a time (default: as fits); changes no bit", 0},
    {"method", KEY_METHOD, "NAME", 0,
     "auto (default), sequential, newton, quasi-newton, picard, parataa, parareal, or any other of the solver's", 0},
    {"window", KEY_WINDOW, "W", 0, "Steps solved at once (default: all)", 0},
    {"order", KEY_ORDER, "K", 0, "parataa: steps substituted into each other (default: the window)", 0},
    {"block", KEY_BLOCK, "N", 0, "parareal: steps a block (default: the root of all)", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0,
     "Of the pictures and all states before them: largest difference from the loop's, of numbers beyond 1 relative to "
     "them, confirmed by an error estimate (default 0.01); 0: until the bits repeat",
     0},
    {"step-tolerance", KEY_STEP_TOLERANCE, "T", 0,
     "Of each step's residual (default a tenth of --tolerance; newton, shooting and overlap, which estimate their own "
     "error, take one of both); alone, nothing is said of the pictures, as ParaDiGMS "
     "and ParaTAA have it",
     0},
    {"scaled", KEY_SCALED, NULL, 0,
     "The tolerance is of each step's residual in units of its noise; the reason is then 'scaled'", 0},
    {"paradigms", KEY_PARADIGMS, NULL, 0,
     "picard: as --scaled, but steps are locked as ParaDiGMS has it, by the mean square of their corrections (its "
     "authors take a --tolerance of 0.1)",
     0},
    {"guess", KEY_GUESS, "NAME|FILE", 0,
     "Where the steps start: state (default), zero, step, or the paths that --path-out wrote, of one sample for all or "
     "of as many",
     0},
    {"path-out", KEY_PATH_OUT, "FILE", 0, "All states of all paths, .npy or .npz, [steps][C][numbers of a state]", 0},
    {"mask", KEY_MASK, "FILE", 0, "Inpainting: npy or PNG of a picture's size; where it is not 0, --known stays", 0},
    {"known", KEY_KNOWN, "N|FILE", 0, "Held-out image N of --data, or a picture as npy (0 to 1; or [C][pixels]) or PNG",
     0},
    {"max-sweeps", KEY_SWEEPS, "N", 0, "Then the rest is done in order (default 100)", 0},
    {"class", KEY_CLASS, "K", 0, "Of a model trained --conditional (default: none)", 0},
    {"guidance", KEY_GUIDANCE, "G", 0, "Strength of the class (default 1)", 0},
    {"out", KEY_OUT, "FILE", 0, "The pictures in a grid, PNG", 0},
    {"path", KEY_PATH, "FILE", 0, "The first picture on its way, PNG", 0},
    {"samples", KEY_SAMPLES, "FILE", 0, "The pictures, .npy or .npz, [C][pixels], 0 to 1", 0},
    {"evaluate", KEY_EVALUATE, "CLASSIFIER", 0,
     "Frechet distance, precision and recall (of the first 2000 each) against held-out images, on the features of this "
     "network of 'train mlp|resnet'",
     0},
    {"data", KEY_DATA, "NAME|DIR", 0, "Held-out images of --evaluate and --known N (default fashion-mnist)", 0},
    {"wisdom", KEY_WISDOM, "FILE", 0,
     "auto: what planning and solves found out, read where it is there and kept for the next run; that of another "
     "machine or version is refused",
     0},
    {"compare", KEY_COMPARE, NULL, 0, "Run the steps in order too: time and largest difference", 0},
    {0},
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

static error_t found(dpcr_status status, const char *option, const dpcr_error *error) {
    if (status != DPCR_OK) cli_fail(CLI_USAGE, "%s: %s", option, error->text);
    return status == DPCR_OK ? 0 : EINVAL;
}

static bool read_times(generate *t, const char *arg) {
    char *copy = strdup(arg), *rest = copy;
    int64_t commas = 0;
    for (const char *at = arg; *at; at++) commas += *at == ',';
    cli_release(t->times);
    t->times = cli_allocate((size_t)(commas + 1) * sizeof *t->times);
    t->time_count = 0;
    bool ok = copy && t->times;
    if (!ok) cli_fail_memory("--times");
    for (char *word; ok && (word = cli_next_item(&rest));)
        ok = cli_read_double("--times", word, 0, HUGE_VAL, &t->times[t->time_count++]);
    free(copy);
    return ok;
}

// What is given has a file's name.
static void read_guess(generate *t, const char *arg) {
    dpcr_guess guess = DPCR_GUESS_GIVEN;
    const bool named = dpcr_guess_find(arg, &guess, NULL) == DPCR_OK && guess != DPCR_GUESS_GIVEN;
    t->guess_given = true;
    t->guess = named ? NULL : arg;
    if (named) t->run.solve.guess = guess;
}

static error_t parse_generate(int key, char *arg, struct argp_state *state) {
    generate *t = state->input;
    generation *g = &t->run;
    dpcr_error error = {0};
    switch (key) {
        case KEY_OUT: t->out = arg; return 0;
        case KEY_PATH: t->path = arg; return 0;
        case KEY_SAMPLES: t->samples = arg; return 0;
        case KEY_COMPARE: g->compare = true; return 0;
        case KEY_EVALUATE: t->classifier = arg; return 0;
        case KEY_DATA: t->data_given = true, t->data = arg; return 0;
        case KEY_SCALED: g->scaled = true; return 0;
        case KEY_CLIP:
            t->clip_given = true;
            return taken(cli_read_double("--clip", arg, 0, HUGE_VAL, &g->sampler.clip));
        case KEY_SAMPLER: return found(dpcr_sampler_find(arg, &g->sampler.kind, &error), "--sampler", &error);
        case KEY_SPACING: return found(dpcr_spacing_find(arg, &g->sampler.spacing, &error), "--spacing", &error);
        case KEY_GUESS: read_guess(t, arg); return 0;
        case KEY_PATH_OUT: t->path_out = arg; return 0;
        case KEY_MASK: t->mask = arg; return 0;
        case KEY_WISDOM: t->wisdom = arg; return 0;
        case KEY_KNOWN: t->known = arg; return 0;
        case KEY_PARADIGMS: t->paradigms = g->scaled = true; return 0;
        case KEY_STEP_TOLERANCE: return taken(cli_read_double("--step-tolerance", arg, 1e-12, 1, &t->step_tolerance));
        case KEY_METHOD: return taken(cli_read_sampling_method("--method", arg, g));
        case KEY_TIMES: return taken(read_times(t, arg));
        case KEY_STEPS: return taken(cli_read_int64("--steps", arg, 1, 1 << 14, &g->sampler.steps));
        case KEY_ETA: return taken(cli_read_double("--eta", arg, 0, 1, &g->sampler.eta));
        case KEY_COUNT: return taken(cli_read_int64("--count", arg, 1, 1 << 24, &g->count));
        case KEY_BATCH: return taken(cli_read_int64("--batch", arg, 1, 256, &g->batch));
        case KEY_WINDOW: return taken(cli_read_int64("--window", arg, 1, INT64_MAX, &g->solve.window));
        case KEY_TOLERANCE: return taken(cli_read_double("--tolerance", arg, 0, 1, &t->tolerance));
        case KEY_ORDER: return taken(cli_read_int64("--order", arg, 1, INT64_MAX, &g->solve.order));
        case KEY_BLOCK: return taken(cli_read_int64("--block", arg, 1, INT64_MAX, &g->solve.chunk));
        case KEY_SWEEPS: return taken(cli_read_int("--max-sweeps", arg, 1, INT32_MAX, &g->solve.max_sweeps));
        case KEY_CLASS: return taken(cli_read_int("--class", arg, 0, 255, &g->label));
        case KEY_GUIDANCE: return taken(cli_read_double("--guidance", arg, -100, 100, &g->guidance));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp generate_argp = {generate_options, parse_generate, NULL, NULL, NULL, NULL, NULL};

enum { SPACING_UNSET = -1 };

// The pictures have no tolerance then.
static bool only_of_steps(const generate *t) { return t->step_tolerance >= 0 && t->tolerance < 0; }

static int settle_tolerance(generate *t) {
    generation *g = &t->run;
    const double T = t->tolerance < 0 ? 0.01 : t->tolerance;
    if (t->tolerance == 0 && t->step_tolerance >= 0)
        return cli_fail(CLI_USAGE, "--tolerance 0 goes on until the bits repeat: wanted it without --step-tolerance");
    if (g->scaled && t->step_tolerance >= 0)
        return cli_fail(CLI_USAGE, "--step-tolerance and %s: one of both; --tolerance is in units of the noise then",
                        t->paradigms ? "--paradigms" : "--scaled");
    if (t->tolerance >= 0 && t->step_tolerance >= 0 && cli_sampling_estimates(g->solve.method))
        return cli_fail(CLI_USAGE, "--step-tolerance beside --tolerance: %s has one, of its own error estimate",
                        cli_sampling_method_name(g->solve.method));
    if (t->paradigms) g->solve.lock = DPCR_LOCK_MEAN_SQUARE;
    cli_confirm_pictures(g, T);
    if (t->step_tolerance >= 0) g->tolerance = t->step_tolerance;
    if (g->scaled) g->tolerance = T;
    if (g->scaled || only_of_steps(t)) g->confirm = g->solve.join_tolerance = 0;
    if (t->tolerance == 0) g->tolerance = g->confirm = 0;
    return CLI_DONE;
}

// Options that only some methods look at. A file of guesses is parareal's too.
static int refuse_options(const generate *t) {
    const dpcr_solve_options *o = &t->run.solve;
    const unsigned automatic = CLI_RUNS(DPCR_METHOD_AUTO), parareal = CLI_RUNS(DPCR_METHOD_PARAREAL),
                   tolerance = cli_option_methods("tolerance"), window = cli_option_methods("window"),
                   blocks = automatic | parareal | CLI_RUNS(DPCR_METHOD_OVERLAP) | CLI_RUNS(DPCR_METHOD_SHOOTING);
    const char *const guess = t->guess ? "guess" : "guess zero|step|state";
    const struct {
        const char *option;
        bool given;
        unsigned methods;
    } all[] = {{"window", o->window > 0, window},
               {guess, t->guess_given, cli_option_methods("guess") | (t->guess ? parareal : 0)},
               {"max-sweeps", o->max_sweeps > 0, cli_option_methods("max-sweeps")},
               {"tolerance", t->tolerance >= 0, tolerance},
               {"step-tolerance", t->step_tolerance >= 0, tolerance},
               {"paradigms", t->paradigms, CLI_RUNS(DPCR_METHOD_PICARD)},
               {"scaled", t->run.scaled, window & ~CLI_RUNS(DPCR_METHOD_SHOOTING)},
               {"order", o->order > 0, automatic | CLI_RUNS(DPCR_METHOD_PARATAA)},
               {"block", o->chunk > 0, blocks},
               {"wisdom", t->wisdom != NULL, automatic}};
    char what[64];
    snprintf(what, sizeof what, "method %s", cli_sampling_method_name(o->method));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].given && !cli_runs_look(CLI_RUNS(o->method), all[i].methods, all[i].option, what)) return CLI_USAGE;
    return CLI_DONE;
}

static int settle(generate *t) {
    generation *g = &t->run;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(g->model);
    const bool pixels = !dpcr_diffusion_autoencoder(g->model);
    const bool continuous = g->sampler.kind == DPCR_SAMPLER_EULER || g->sampler.kind == DPCR_SAMPLER_HEUN;
    g->sampler.noise = o->noise;
    g->sampler.times = t->times;
    if (t->times) g->sampler.steps = t->time_count;
    if ((int)g->sampler.spacing == SPACING_UNSET)
        g->sampler.spacing = continuous ? DPCR_SPACING_KARRAS : DPCR_SPACING_LEADING;
    if (!g->sampler.steps)
        g->sampler.steps = g->sampler.kind == DPCR_SAMPLER_DDPM || o->noise.steps < 50 ? o->noise.steps : 50;
    if (!t->clip_given) g->sampler.clip = pixels ? 1 : 0;
    g->sampler.seed = t->common.seed;
    if (g->label >= o->classes && g->label >= 0)
        return cli_fail(CLI_USAGE, "--class %d, but '%s' knows %lld%s", g->label, t->file, (long long)o->classes,
                        o->classes ? ", from 0" : " classes; train with --conditional");
    if (g->guidance != 1 && g->label < 0)
        return cli_fail(CLI_USAGE, "--guidance %g is the strength of a class: wanted --class too", g->guidance);
    if (t->mask && !pixels)
        return cli_fail(CLI_USAGE,
                        "--mask: '%s' denoises codes of a vae, whose numbers are no places of a picture; wanted a "
                        "denoiser of pixels",
                        t->file);
    const int status = settle_tolerance(t);
    if (status) return status;
    if (cli_sampling_needs_jacobians(g) && o->width > DPCR_DIFFUSION_JACOBIAN)
        return cli_fail(
            CLI_USAGE,
            "--method %s needs the Jacobian of every step, %lld x %lld numbers of this model; wanted at most "
            "%d wide, the codes of a vae; picard, parataa, parareal, jacobi and sequential serve any width",
            cli_sampling_method_name(g->solve.method), (long long)o->width, (long long)o->width,
            DPCR_DIFFUSION_JACOBIAN);
    return CLI_DONE;
}

// ---- input ----

static int64_t channels_of(const dpcr_diffusion_options *o) { return o->channels > 0 ? o->channels : 1; }

// Whether an array is of pictures: [pixels], [rows][cols] or [channels][rows][cols], any of them of many.
static bool is_of_pictures(const generate *t, const dpcr_array *a) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    const int64_t shape[3] = {channels_of(o), o->rows, o->cols};
    if (a->ndim >= 1 && a->shape[a->ndim - 1] == dpcr_diffusion_pixels(o)) return true;
    for (int from = channels_of(o) > 1 ? 0 : 1; from < 2; from++) {
        bool same = a->ndim >= 3 - from;
        for (int i = from; same && i < 3; i++) same = a->shape[a->ndim - 3 + i] == shape[i];
        if (same) return true;
    }
    return false;
}

// [steps][C][numbers of a state] or [steps][numbers of a state].
static bool is_of_paths(const generate *t, const dpcr_array *a) {
    return a->ndim >= 2 && a->shape[0] == cli_generate_length(&t->run) &&
           a->shape[a->ndim - 1] == cli_generate_state(&t->run);
}

// The only array of an npy file, as floats, the caller's to release; its shape must fit and its product be one of two
// counts.
static int read_numbers(generate *t, const char *what, const char *path, int64_t one, int64_t many,
                        bool fits(const generate *, const dpcr_array *), float **numbers, bool *is_many) {
    dpcr_error error = {0};
    dpcr_tensors tensors = {0};
    if (!cli_readable(what, path)) return CLI_INPUT;
    if (dpcr_npy_read(t->run.context, path, &tensors, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    const dpcr_array *array = &tensors.items[0].array;
    const int64_t count = tensors.count == 1 ? cli_array_count(array) : 0;
    int status = CLI_DONE;
    if (tensors.count != 1)
        status = cli_fail(CLI_INPUT, "%s '%s' has %lld arrays, wanted one", what, path, (long long)tensors.count);
    else if (count != one && count != many)
        status = cli_fail(CLI_INPUT, "%s '%s' has %lld numbers, wanted %lld%s", what, path, (long long)count,
                          (long long)one, many != one ? ", or as many for every picture" : "");
    if (!status && !fits(t, array)) {
        const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
        char planes[24] = "";
        if (channels_of(o) > 1) snprintf(planes, sizeof planes, "[%lld]", (long long)channels_of(o));
        status =
            fits == is_of_pictures
                ? cli_fail(CLI_INPUT, "%s '%s' has the shape of no picture, wanted %s[%lld][%lld] or [%lld]", what,
                           path, planes, (long long)o->rows, (long long)o->cols, (long long)dpcr_diffusion_pixels(o))
                : cli_fail(CLI_INPUT, "%s '%s' has the shape of no path, wanted [%lld][C][%lld]", what, path,
                           (long long)cli_generate_length(&t->run), (long long)cli_generate_state(&t->run));
    }
    if (!status && !(*numbers = cli_allocate((size_t)count * sizeof **numbers))) status = cli_fail_memory(what);
    for (int64_t i = 0; !status && i < count; i++) {
        const float x = (float)cli_array_get(array, i);
        (*numbers)[i] = x;
        if (!isfinite(x)) status = cli_fail(CLI_INPUT, "%s '%s' has a number that is not finite", what, path);
    }
    *is_many = count == many;
    dpcr_tensors_free(t->run.context, &tensors);
    return status;
}

static bool is_png(const char *path) {
    const size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, ".png");
}

// A picture of 0..1, or `most`: *many says so, also of one where that is most.
static int read_picture(generate *t, const char *what, const char *path, int64_t most, float **pixels, bool *many) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    *many = false;
    if (!is_png(path)) return read_numbers(t, what, path, o->width, o->width * most, is_of_pictures, pixels, many);
    if (!cli_readable(what, path)) return CLI_INPUT;
    if (!(*pixels = cli_allocate((size_t)o->width * sizeof **pixels))) return cli_fail_memory(what);
    return cli_png_read(path, o->rows, o->cols, channels_of(o), *pixels);
}

// A number of a held-out image, not a file.
static bool is_index(const char *known) { return !known[strspn(known, "0123456789")]; }

static int read_known(generate *t) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    dpcr_dataset data = {0};
    int64_t index = 0;
    bool many = false;
    int status = CLI_DONE;
    t->run.knowns = 1;
    if (!is_index(t->known)) {
        status = read_picture(t, "--known", t->known, t->run.count, &t->owned[2], &many);
        if (many) t->run.knowns = t->run.count;
        return status;
    }
    if (!cli_read_int64("--known", t->known, 0, INT64_MAX, &index)) return CLI_USAGE;
    status = cli_data_read(t->run.context, t->data, "t10k", 0, 0, &data);
    if (!status && (dpcr_dataset_pixels(&data) != o->width || data.rows != o->rows || data.cols != o->cols))
        status = cli_fail(CLI_INPUT,
                          "--known %lld: the held-out images of '%s' are %lld of %lld x %lld, the model's %lld of "
                          "%lld x %lld",
                          (long long)index, t->data, (long long)(data.channels > 0 ? data.channels : 1),
                          (long long)data.rows, (long long)data.cols, (long long)channels_of(o), (long long)o->rows,
                          (long long)o->cols);
    if (!status && index >= data.count)
        status = cli_fail(CLI_INPUT, "--known %lld: '%s' has %lld held-out images, the first is 0", (long long)index,
                          t->data, (long long)data.count);
    if (!status && !(t->owned[2] = cli_allocate((size_t)o->width * sizeof(float)))) status = cli_fail_memory("--known");
    for (int64_t i = 0; !status && i < o->width; i++)
        t->owned[2][i] = (float)data.images[index * o->width + i] / 255.0F;
    dpcr_dataset_free(t->run.context, &data);
    return status;
}

static int read_inputs(generate *t) {
    generation *g = &t->run;
    const int64_t w = dpcr_diffusion_get_options(g->model)->width;
    bool many = false;
    int status = CLI_DONE;
    if (t->guess) {
        const int64_t one = cli_generate_length(g) * cli_generate_state(g);
        g->solve.guess = DPCR_GUESS_GIVEN;
        status = read_numbers(t, "--guess", t->guess, one, one * g->count, is_of_paths, &t->owned[0], &many);
        g->guess = t->owned[0];
        g->guesses = many ? g->count : 1;
    }
    if (status || !t->mask) return status;
    status = read_picture(t, "--mask", t->mask, 1, &t->owned[1], &many);
    if (!status) status = read_known(t);
    for (int64_t i = 0; !status && i < w * g->knowns; i++) {
        const float x = t->owned[2][i];
        if (!(x >= 0 && x <= 1))
            status = cli_fail(CLI_INPUT, "--known '%s' has %g, wanted 0 to 1", t->known, (double)x);
        t->owned[2][i] = 2 * x - 1;
    }
    g->mask = t->owned[1];
    g->known = t->owned[2];
    return status;
}

// ---- output ----

// Pictures x [n][rows cols] of samples.
static int make_pictures(const generate *t, int64_t n, const float *z, float *x) {
    dpcr_error error = {0};
    if (dpcr_diffusion_pictures(t->run.model, n, z, x, &error) == DPCR_OK) return CLI_DONE;
    return cli_fail_error(&error, CLI_COMPUTING);
}

static int write_path(const generate *t) {
    enum { PLACES = 16 };
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    const int64_t length = t->run.sampler.steps, places = length < PLACES ? length : PLACES;
    float *z = cli_allocate((size_t)(places * o->width) * sizeof *z);
    float *x = cli_allocate((size_t)(places * dpcr_diffusion_pixels(o)) * sizeof *x);
    int status = z && x ? CLI_DONE : cli_fail_memory("the path");
    for (int64_t i = 0; !status && i < places; i++) {
        const int64_t l = places > 1 ? i * (length - 1) / (places - 1) : length - 1;
        memcpy(z + i * o->width, t->run.path + l * o->width, (size_t)o->width * sizeof *z);
    }
    if (!status) status = make_pictures(t, places, z, x);
    if (!status) status = cli_png_grid(t->path, places, places, o->rows, o->cols, channels_of(o), x);
    cli_release(x);
    cli_release(z);
    return status;
}

// What --evaluate wants is read before any picture is made.
static int read_held_out(generate *t) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    const dpcr_dataset *data = &t->held_out;
    const int status = cli_data_read(t->run.context, t->data, "t10k", 0, 0, &t->held_out);
    if (status) return status;
    if (data->rows != o->rows || data->cols != o->cols || dpcr_dataset_pixels(data) != dpcr_diffusion_pixels(o))
        return cli_fail(CLI_INPUT, "'%s' has images of %lld x %lld, the model makes %lld x %lld", t->data,
                        (long long)data->rows, (long long)data->cols, (long long)o->rows, (long long)o->cols);
    return cli_quality_check(t->run.context, t->classifier, data, t->run.count);
}

static int evaluate(generate *t, const float *pictures) {
    cli_signals_at_once(true);  // eigenvalues and neighbours of many pictures take a while
    const int status =
        cli_quality_measure(t->run.context, t->classifier, &t->held_out, t->run.count, pictures, &t->quality);
    cli_signals_at_once(false);
    return status;
}

static int64_t grid_columns(int64_t count) {
    const int64_t columns = (int64_t)ceil(sqrt((double)count));
    return columns <= 10 ? columns : count % 10 ? columns : 10;
}

static int write_pictures(generate *t) {
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(t->run.model);
    const int64_t count = t->run.count, shape[2] = {count, dpcr_diffusion_pixels(o)};
    float *x = t->pictures;
    if (!x) return CLI_DONE;
    int status = make_pictures(t, count, t->run.samples, x);
    if (!status && t->out)
        status = cli_png_grid(t->out, grid_columns(count), count, o->rows, o->cols, channels_of(o), x);
    const dpcr_array all = dpcr_array_make(x, DPCR_F32, 2, shape);
    if (!status) status = cli_array_write(t->samples, "samples", &all);
    if (!status && t->classifier) status = evaluate(t, x);
    return status;
}

static int tell(const generate *t) {
    const generation *g = &t->run;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(g->model);
    cli_result r = cli_result_create();
    cli_set_text(&r, "sampler", dpcr_sampler_name(g->sampler.kind));
    cli_set_text(&r, "spacing", t->times ? "times" : dpcr_spacing_name(g->sampler.spacing));
    cli_set_int(&r, "steps", g->sampler.steps);
    cli_set_real(&r, "eta", g->sampler.eta);
    cli_set_int(&r, "count", g->count);
    cli_set_int(&r, "batch", cli_generate_batch(g));
    cli_set_int(&r, "width", o->width);
    cli_set_text(&r, "method", cli_sampling_method_name(g->method));
    cli_set_text(&r, "reason", dpcr_reason_name(g->reason));
    cli_set_real(&r, "tolerance",
                 only_of_steps(t)                      ? NAN
                 : t->tolerance == 0 || g->confirm > 0 ? g->confirm
                                                       : g->tolerance);
    cli_set_real(&r, "step_tolerance", g->tolerance);
    cli_set_bool(&r, "scaled", g->scaled);
    cli_set_int(&r, "window",
                g->solve.window && g->solve.window < g->sampler.steps ? g->solve.window : g->sampler.steps);
    cli_set_real(&r, "seconds", g->seconds);
    cli_set_real(&r, "planning_seconds", g->planning_seconds);
    cli_set_int(&r, "planning_evaluations", g->planning_evaluations);
    cli_set_int(&r, "planning_calls", g->planning_calls);
    cli_set_real(&r, "noise_seconds", g->noise_seconds);
    cli_set(&r, "sequential_seconds", g->compare ? cli_json_real(g->sequential_seconds) : json_null());
    cli_set_int(&r, "sweeps", g->sweeps);
    cli_set_int(&r, "calls", g->calls);
    cli_set_int(&r, "network_evaluations", g->evaluations);
    cli_set_int(&r, "sequential_evaluations", g->sequential_evaluations);
    cli_set(&r, "max_error", g->compare ? cli_json_real(g->max_error) : json_null());
    cli_set(&r, "error_estimate", g->error_estimate >= 0 ? cli_json_real(g->error_estimate) : json_null());
    cli_set(&r, "frechet_distance", t->classifier ? cli_json_real(t->quality.frechet_distance) : json_null());
    if (t->classifier) cli_set_real(&r, "precision", t->quality.precision);
    if (t->classifier) cli_set_real(&r, "recall", t->quality.recall);
    cli_set_int(&r, "seed", (int64_t)t->common.seed);
    cli_set_int(&r, "threads", dpcr_context_threads(g->context));
    cli_set_text(&r, "sentence", g->sentence);
    if (t->out) cli_set_text(&r, "out", t->out);
    if (t->samples) cli_set_text(&r, "samples", t->samples);
    if (t->path) cli_set_text(&r, "path", t->path);
    if (t->path_out) cli_set_text(&r, "path_out", t->path_out);
    cli_say(&t->common,
            "%lld picture%s by %s, %lld step%s, %s: %.3f s, %d sweep%s, %lld network evaluation%s (%lld in order), %s; "
            "planned in %.4f s by %lld evaluation%s\n",
            (long long)g->count, cli_s(g->count), dpcr_sampler_name(g->sampler.kind), (long long)g->sampler.steps,
            cli_s(g->sampler.steps), cli_sampling_method_name(g->method), g->seconds, g->sweeps, cli_s(g->sweeps),
            (long long)g->evaluations, cli_s(g->evaluations), (long long)g->sequential_evaluations,
            dpcr_reason_name(g->reason), g->planning_seconds, (long long)g->planning_evaluations,
            cli_s(g->planning_evaluations));
    if (g->compare)
        cli_say(&t->common, "in order: %.3f s, largest difference of a state %.3g\n", g->sequential_seconds,
                g->max_error);
    if (t->classifier)
        cli_say(&t->common, "Frechet distance %.4f, precision %.3f, recall %.3f\n", t->quality.frechet_distance,
                t->quality.precision, t->quality.recall);
    const int status = cli_finish(&t->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

// Numbers that left float's range are what the loop computes too, but no pictures.
static int check_finite(const generate *t) {
    const int64_t w = dpcr_diffusion_get_options(t->run.model)->width;
    int64_t lost = 0;
    for (int64_t n = 0; n < t->run.count; n++) {
        bool finite = true;
        for (int64_t i = 0; i < w; i++) finite = finite && isfinite(t->run.samples[n * w + i]);
        lost += !finite;
    }
    if (lost == 0) return CLI_DONE;
    return cli_fail(CLI_INPUT, "%lld of %lld pictures are not finite: '%s' leaves the range of its numbers",
                    (long long)lost, (long long)t->run.count, t->file);
}

// On a device there is the loop, and picard and parataa by tolerances that nobody has to confirm.
static int settle_device(generate *t) {
    const dpcr_method m = t->run.solve.method;
    const char *given = t->common.device_given;
    const bool sweeps = m == DPCR_METHOD_PICARD || m == DPCR_METHOD_PARATAA;
    cli_device_leave_auto(&t->common, "samplers");
    if (t->common.device.type != DPCR_CUDA) return CLI_DONE;
    if (m != DPCR_METHOD_AUTO && m != DPCR_METHOD_SEQUENTIAL && !sweeps)
        return cli_fail(CLI_USAGE,
                        "--device %.20s: --method %s runs on processors; sequential, picard and parataa work there",
                        given, cli_sampling_method_name(m));
    const char *const of_sweeps = t->guess || t->run.solve.guess != DPCR_GUESS_STATE ? "--guess"
                                  : t->run.scaled                                    ? "--scaled"
                                  : t->run.solve.window                              ? "--window"
                                  : t->run.solve.order                               ? "--order"
                                  : t->run.solve.max_sweeps                          ? "--max-sweeps"
                                  : t->run.solve.chunk                               ? "--block"
                                                                                     : NULL;
    if (!sweeps && of_sweeps)
        return cli_fail(CLI_USAGE, "--device %.20s: the steps go in order there; %s is for sweeps", given, of_sweeps);
    if (sweeps && !t->run.scaled && t->tolerance != 0 && (t->tolerance > 0 || t->step_tolerance < 0))
        return cli_fail(CLI_USAGE,
                        "--device %.20s: --tolerance of the pictures is confirmed on processors; wanted --tolerance 0, "
                        "--step-tolerance alone, --scaled or --paradigms for %s",
                        given, cli_sampling_method_name(m));
    t->run.device = t->common.device;
    return CLI_DONE;
}

static int refuse(const generate *t) {
    const char *const outputs[] = {t->out, t->path, t->samples, t->path_out};
    if (t->times && (t->run.sampler.steps || (int)t->run.sampler.spacing != SPACING_UNSET))
        return cli_fail(CLI_USAGE, "--times says which steps there are: wanted it without --steps and --spacing");
    if (t->data_given && !t->classifier && !(t->known && is_index(t->known)))
        return cli_fail(CLI_USAGE, "--data has held-out images: wanted it with --evaluate or --known N");
    if (!t->mask != !t->known) return cli_fail(CLI_USAGE, "--mask says where --known stays: wanted both or none");
    if (!t->file) return cli_fail(CLI_USAGE, "which model? wanted the file that 'train denoiser --save' writes");
    if (!cli_readable("the model", t->file)) return CLI_INPUT;
    if ((t->out || t->path) && !cli_png_served()) return cli_png_write(t->out ? t->out : t->path, 0, 0, 1, NULL);
    for (int i = 0; i < 4; i++) {
        if (!outputs[i]) continue;
        if (cli_is_stdout(outputs[i])) return cli_fail(CLI_USAGE, "pictures go to files, not to standard output");
        if (i < 2 && !cli_png_name(i ? "--path" : "--out", outputs[i])) return CLI_USAGE;
        if (i >= 2 && !cli_array_place(outputs[i])) return CLI_USAGE;
        if (!cli_writable("the output", outputs[i])) return CLI_RESOURCES;
    }
    if (cli_is_stdout(t->wisdom)) return cli_fail(CLI_USAGE, "--wisdom %s: wanted a file", t->wisdom);
    if (t->wisdom && !cli_writable("the wisdom", t->wisdom)) return CLI_RESOURCES;
    const cli_file written[] = {{"--out", t->out},           {"--path", t->path},      {"--samples", t->samples},
                                {"--path-out", t->path_out}, {"--csv", t->common.csv}, {"--wisdom", t->wisdom}};
    const cli_file read[] = {{"MODEL", t->file},  {"--evaluate", t->classifier}, {"--guess", t->guess},
                             {"--mask", t->mask}, {"--known", t->known},         {"--data", cli_data_place(t->data)}};
    return cli_distinct(written, 6) && cli_spares(written, 6, read, 6) ? CLI_DONE : CLI_USAGE;
}

// The same seed gives the same pictures again.
static void warn_not_kept(const generate *t) {
    const bool kept = t->out || t->path || t->samples || t->path_out;
    const bool told = t->classifier || t->run.compare || t->wisdom || t->common.json || t->common.csv;
    if (!kept && !told) cli_warn("no picture was kept, for want of --out, --samples, --path or --path-out");
}

// What would only be found too large after all has been computed.
static int take_memory(generate *t) {
    generation *g = &t->run;
    const dpcr_diffusion_options *o = dpcr_diffusion_get_options(g->model);
    const int fits = t->out ? cli_png_grid_fits(t->out, grid_columns(g->count), g->count, o->rows, o->cols) : CLI_DONE;
    if (fits) return fits;
    const size_t width = (size_t)o->width * sizeof(float), count = (size_t)g->count;
    const int64_t states = cli_generate_length(g) * g->count * cli_generate_state(g);
    const bool wanted = t->out || t->samples || t->classifier;
    g->samples = cli_allocate(count * width);
    g->path = t->path ? cli_allocate((size_t)g->sampler.steps * width) : NULL;
    g->paths = t->path_out ? cli_allocate((size_t)states * sizeof *g->paths) : NULL;
    t->pictures = wanted ? cli_allocate(count * (size_t)dpcr_diffusion_pixels(o) * sizeof(float)) : NULL;
    const bool taken_all =
        g->samples && (!t->path || g->path) && (!t->path_out || g->paths) && (!wanted || t->pictures);
    return taken_all ? CLI_DONE : cli_fail_memory("the samples");
}

static int run(generate *t) {
    generation *g = &t->run;
    dpcr_error error = {0};
    int status = CLI_DONE;
    g->context = cli_context_create(&t->common, &status);
    if (!g->context) return status;
    status = cli_wisdom_load(g->context, t->wisdom);
    if (!status && dpcr_diffusion_load(g->context, t->file, &g->model, &error) != DPCR_OK)
        status = cli_fail_error(&error, CLI_READING);
    if (!status) status = settle(t);
    if (!status) status = take_memory(t);
    if (!status) status = read_inputs(t);
    if (!status && t->classifier) status = read_held_out(t);
    if (!status) {
        cli_signals_at_once(true);  // a sweep may take minutes, and nothing is kept of a run that is stopped
        status = cli_generate_run(g);
        cli_signals_at_once(false);
    }
    if (!status) status = write_pictures(t);
    if (!status && t->path) status = write_path(t);
    if (!status && t->path_out) {
        const int64_t shape[3] = {cli_generate_length(g), g->count, cli_generate_state(g)};
        const dpcr_array all = dpcr_array_make(g->paths, DPCR_F32, 3, shape);
        status = cli_array_write(t->path_out, "paths", &all);
    }
    if (!status && t->wisdom) status = cli_wisdom_save(g->context, t->wisdom);
    if (!status && cli_signal()) status = cli_fail_stopped();
    if (!status) status = tell(t);
    if (!status) warn_not_kept(t);
    if (!status) status = check_finite(t);
    cli_release(g->samples);
    cli_release(g->path);
    cli_release(g->paths);
    cli_release(t->pictures);
    for (int i = 0; i < 3; i++) cli_release(t->owned[i]);
    dpcr_dataset_free(g->context, &t->held_out);
    dpcr_diffusion_destroy(g->model);
    dpcr_context_destroy(g->context);
    return status;
}

int cli_verb_generate(int argc, char **argv) {
    generate t = {.common = CLI_COMMON_DEFAULTS,
                  .data = CLI_FASHION_MNIST,
                  .tolerance = -1,
                  .step_tolerance = -1,
                  .run = {.sampler = {.size = sizeof(dpcr_sampler_options),
                                      .kind = DPCR_SAMPLER_DDIM,
                                      .spacing = (dpcr_spacing)SPACING_UNSET},
                          .solve = {.size = sizeof(dpcr_solve_options), .guess = DPCR_GUESS_STATE},
                          .count = 16,
                          .label = -1,
                          .guidance = 1}};
    const cli_syntax syntax = {
        .arguments = "MODEL",
        .doc =
            "Makes pictures by a denoiser that 'deeppcr train denoiser' has trained, its steps solved all at once or "
            "in "
            "order: the same seed gives the same pictures by every method, to the tolerance; with --tolerance 0 to the "
            "bit.\vA method that cannot serve a model is refused: newton and quasi-newton need Jacobians, which models "
            "of at most 64 numbers (codes of a vae) have.",
        .groups = {{&generate_argp, &t, "Sampling:"}, {&cli_common_argp, &t.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL] = {0};
    int status;
    t.common.serves_devices = true;
    if (cli_parse(&syntax, argc, argv, positional, &status)) {
        t.file = positional[0];
        status = settle_device(&t);
        if (!status) status = refuse_options(&t);
        if (!status) status = refuse(&t);
        if (!status) status = run(&t);
    }
    cli_release(t.times);
    return status;
}
