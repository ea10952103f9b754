// SPDX-License-Identifier: MIT
// The groups of options that verbs share: output and resources, the solver, the network.
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "cli.h"

enum {
    KEY_JSON = 0x1000,
    KEY_QUIET,
    KEY_SEED,
    KEY_THREADS,
    KEY_CSV,
    KEY_DEVICE,
    KEY_DENORMALS,
    KEY_METHOD,
    KEY_SCHEME,
    KEY_BACKWARD,
    KEY_TOLERANCE,
    KEY_WINDOW,
    KEY_SWEEPS,
    KEY_NO_FALLBACK,
    KEY_LIMIT,
    KEY_CHUNK,
    KEY_BACKWARD_CHUNK,
    KEY_BACKWARD_RUN_UP,
    KEY_JOIN_TOLERANCE,
    KEY_BLOCK,
    KEY_DAMPING,
    KEY_RUN_UP,
    KEY_GUESS,
    KEY_LAYERS,
    KEY_WIDTH,
    KEY_HIDDEN,
    KEY_BATCH,
    KEY_DTYPE,
    KEY_ACTIVATION,
    KEY_BRANCH,
    KEY_NORM,
    KEY_SCALE,
    KEY_TIE,
    KEY_INIT,
    KEY_GAIN
};

static error_t taken(bool ok) { return ok ? 0 : EINVAL; }

// ---- output and resources ----

static const struct argp_option common_options[] = {
    {"json", KEY_JSON, NULL, 0, "Print one JSON object on standard output and nothing else there", 0},
    {"csv", KEY_CSV, "FILE", 0, "Also write the main table as CSV ('-': standard output)", 0},
    {"quiet", KEY_QUIET, NULL, 0, "Print neither text nor progress", 0},
    {"seed", KEY_SEED, "N", 0, "Seed of all random numbers (default 1)", 0},
    {"threads", KEY_THREADS, "N", 0, "Worker threads (default 0: as many as this process may run on)", 0},
    {"device", KEY_DEVICE, "cpu|cuda|cuda:N|auto", 0,
     "Where to compute (default cpu); auto: on a CUDA device where there is one and it would be faster; "
     "train and eval take no scheme, guess or window there",
     0},
    {"denormals", KEY_DENORMALS, "flush|keep", 0,
     "Numbers below 1.2e-38 (float32; 2.2e-308 in float64) become 0 (default), for many processors are up to ten "
     "times slower with them; or are kept, as C has it",
     0},
    {0},
};

// JSON's integers are signed, so a seed is told as it was given only below 2^63.
static error_t read_seed(const char *arg, uint64_t *seed) {
    int64_t number;
    if (!cli_read_int64("--seed", arg, 0, INT64_MAX, &number)) return EINVAL;
    *seed = (uint64_t)number;
    return 0;
}

static error_t read_denormals(const char *arg) {
    static const char *const words[] = {"keep", "flush"};
    int index = 0;
    if (!cli_read_word("--denormals", arg, words, 2, &index)) return EINVAL;
    dpcr_flush_denormals(index);
    return 0;
}

bool cli_flushes_denormals(void) {
    const int flushed = dpcr_flush_denormals(1);
    dpcr_flush_denormals(flushed);
    return flushed;
}

static error_t parse_common(int key, char *arg, struct argp_state *state) {
    cli_common *c = state->input;
    switch (key) {
        case KEY_JSON: c->json = true; return 0;
        case KEY_QUIET: c->quiet = true; return 0;
        case KEY_CSV: c->csv = arg; return 0;
        case KEY_SEED: return read_seed(arg, &c->seed);
        case KEY_THREADS: return taken(cli_read_int("--threads", arg, 0, 1024, &c->threads));
        case KEY_DEVICE: c->device_given = arg; return 0;
        case KEY_DENORMALS: return read_denormals(arg);
        case ARGP_KEY_END:
            if (!cli_device_settle(c)) return EINVAL;
            if (!c->csv) return 0;
            if (!cli_is_stdout(c->csv)) return taken(cli_writable("the CSV table", c->csv));
            if (c->json) cli_fail(CLI_USAGE, "--json and --csv - both want standard output");
            return taken(!c->json);
        default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_common_argp = {common_options, parse_common, NULL, NULL, NULL, NULL, NULL};

// ---- the solver ----

static const struct argp_option solver_options[] = {
    {"method", KEY_METHOD, "NAME", 0,
     "auto, sequential, newton, diagonal, block, picard, jacobi, damped, overlap, shooting, parareal, parataa", 0},
    {"scheme", KEY_SCHEME, "NAME", 0,
     "Scheme of the linear chains in a sweep: auto, sequential, pcr, blelloch, chunked, overlap", 0},
    {"backward", KEY_BACKWARD, "NAME", 0,
     "Scheme of the backward pass, one of --scheme's; sequential is the adjoint loop", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0,
     "A step is converged where |z - f| <= T + T |z| (default 1e-5 in float32, 1e-10 in float64; 0: the loop's bits)",
     0},
    {"guess", KEY_GUESS, "zero|step|state", 0,
     "Initial guess: every step applied to zero (default), or to the initial state, or that state itself", 0},
    {"window", KEY_WINDOW, "N", 0, "Steps solved at once (default: all; 1 is Gauss-Seidel)", 0},
    {"chunk", KEY_CHUNK, "N", 0, "Steps a chunk of overlap, shooting, parareal and chunked (default: from the shape)",
     0},
    {"backward-chunk", KEY_BACKWARD_CHUNK, "N", 0, "Steps a chunk of the backward pass by overlap (default: --chunk)",
     0},
    {"run-up", KEY_RUN_UP, "N", 0, "Steps that a chunk of overlap runs before its first (default 64)", 0},
    {"backward-run-up", KEY_BACKWARD_RUN_UP, "N", 0,
     "Steps that a chunk of the backward pass by overlap runs before its first (default: --run-up)", 0},
    {"join-tolerance", KEY_JOIN_TOLERANCE, "T", 0,
     "Chunks of overlap join within T times a state's largest number going forward, whatever --tolerance is (0: bit "
     "for bit)",
     0},
    {"block", KEY_BLOCK, "K", 0, "Block size of the method block (default 2)", 0},
    {"damping", KEY_DAMPING, "S", 0, "Factor of the Jacobian in the method damped, up to 1 (default 0.7)", 0},
    {"max-sweeps", KEY_SWEEPS, "N", 0, "Budget in evaluations of the whole chain (default 100; overlap 3)", 0},
    {"no-fallback", KEY_NO_FALLBACK, NULL, 0,
     "Stop with exit status 3 instead of finishing in order when the budget is spent; the way back is finished all the "
     "same",
     0},
    {"memory-limit", KEY_LIMIT, "BYTES", 0, "Workspace at most (suffixes K, M, G)", 0},
    {0},
};

static error_t read_guess(const char *arg, dpcr_guess *guess) {
    static const char *const words[] = {"zero", "step", "state"};
    int index = 0;
    if (!cli_read_word("--guess", arg, words, 3, &index)) return EINVAL;
    return dpcr_guess_find(words[index], guess, NULL) == DPCR_OK ? 0 : EINVAL;
}

static error_t read_tolerance(const char *arg, dpcr_solve_options *o) {
    if (!cli_read_double("--tolerance", arg, 0, HUGE_VAL, &o->atol)) return EINVAL;
    if (o->atol == 0) o->atol = -1;  // in the library 0 asks for the default and a negative number for none
    o->rtol = o->atol;
    return 0;
}

static error_t read_join_tolerance(const char *arg, dpcr_solve_options *o) {
    if (!cli_read_double("--join-tolerance", arg, 0, HUGE_VAL, &o->join_tolerance)) return EINVAL;
    if (o->join_tolerance == 0) o->join_tolerance = -1;
    return 0;
}

static error_t read_damping(const char *arg, dpcr_solve_options *o) {
    if (!cli_read_double("--damping", arg, 0, 1, &o->damping)) return EINVAL;
    if (o->damping > 0) return 0;
    cli_fail(CLI_USAGE, "--damping '%s': wanted more than 0; with 0 it is --method jacobi", arg);
    return EINVAL;
}

static error_t parse_solver_option(int key, char *arg, cli_solver *s) {
    dpcr_solve_options *o = &s->options;
    switch (key) {
        case KEY_METHOD: s->method_given = true; return taken(cli_read_method("--method", arg, &o->method));
        case KEY_SCHEME: s->scheme_given = true; return taken(cli_read_scheme("--scheme", arg, &o->scheme));
        case KEY_BACKWARD: s->backward_given = true; return taken(cli_read_scheme("--backward", arg, &o->backward));
        case KEY_TOLERANCE: return read_tolerance(arg, o);
        case KEY_GUESS: return read_guess(arg, &o->guess);
        case KEY_WINDOW: return taken(cli_read_int64("--window", arg, 1, INT64_MAX, &o->window));
        case KEY_CHUNK: return taken(cli_read_int64("--chunk", arg, 1, INT64_MAX, &o->chunk));
        case KEY_BACKWARD_CHUNK:
            return taken(cli_read_int64("--backward-chunk", arg, 1, INT64_MAX, &o->backward_chunk));
        case KEY_RUN_UP: return taken(cli_read_int64("--run-up", arg, 1, INT64_MAX, &o->warm_up));
        case KEY_BACKWARD_RUN_UP:
            return taken(cli_read_int64("--backward-run-up", arg, 1, INT64_MAX, &o->backward_warm_up));
        case KEY_JOIN_TOLERANCE: return read_join_tolerance(arg, o);
        case KEY_BLOCK: return taken(cli_read_int64("--block", arg, 1, INT64_MAX, &o->block));
        case KEY_DAMPING: return read_damping(arg, o);
        case KEY_SWEEPS: return taken(cli_read_int("--max-sweeps", arg, 1, INT32_MAX, &o->max_sweeps));
        case KEY_NO_FALLBACK: o->no_fallback = 1; return 0;
        case KEY_LIMIT: return taken(cli_read_bytes("--memory-limit", arg, &o->memory_limit));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_solver(int key, char *arg, struct argp_state *state) {
    cli_solver *s = state->input;
    const error_t code = parse_solver_option(key, arg, s);
    if (!code && key >= KEY_METHOD && key <= KEY_GUESS) s->given |= 1u << (key - KEY_METHOD);
    return code;
}

// Whether all of a table's options that are given are `taken`; bit 0 of `given` is of the key `first`.
static bool only(const struct argp_option *table, unsigned given, int first, const char *what,
                 const char *const *taken) {
    for (const struct argp_option *o = table; o->name; o++) {
        bool takes = !(given >> (o->key - first) & 1);
        for (int i = 0; taken[i]; i++) takes = takes || !strcmp(o->name, taken[i]);
        if (!takes) return cli_fail(CLI_USAGE, "%s takes no --%s", what, o->name), false;
    }
    return true;
}

bool cli_solver_only(const cli_solver *solver, const char *what, const char *const *taken) {
    return only(solver_options, solver->given, KEY_METHOD, what, taken);
}

// Which methods look at an option, and whether going back does too: by overlap, or in any way.
#define BIT CLI_RUNS
enum { BY_OVERLAP = 1, IN_ANY_WAY };
enum {
    CHAINS = BIT(DPCR_METHOD_NEWTON) | BIT(DPCR_METHOD_DIAGONAL) | BIT(DPCR_METHOD_BLOCK) | BIT(DPCR_METHOD_PICARD) |
             BIT(DPCR_METHOD_DAMPED),  // sweeps with a linear chain each
    AUTO = BIT(DPCR_METHOD_AUTO),
    SHOOTING = BIT(DPCR_METHOD_SHOOTING),
    LINEAR = AUTO | CHAINS | SHOOTING,
    WINDOWS = LINEAR | BIT(DPCR_METHOD_JACOBI) | BIT(DPCR_METHOD_PARATAA),  // from a guess
    OVERLAPS = AUTO | BIT(DPCR_METHOD_OVERLAP),
    CHUNKS = LINEAR | OVERLAPS | BIT(DPCR_METHOD_PARAREAL),
    PARALLEL = WINDOWS | CHUNKS,
    RANKS = BIT(CLI_OVER_RANKS)
};
static const struct {
    int key;
    unsigned methods;
    int back;
} looked_at[] = {{KEY_SCHEME, LINEAR, 0},
                 {KEY_BACKWARD, 0, IN_ANY_WAY},
                 {KEY_TOLERANCE, PARALLEL | RANKS, BY_OVERLAP},
                 {KEY_GUESS, WINDOWS, 0},
                 {KEY_WINDOW, WINDOWS, 0},
                 {KEY_CHUNK, CHUNKS, BY_OVERLAP},
                 {KEY_BACKWARD_CHUNK, 0, BY_OVERLAP},
                 {KEY_RUN_UP, OVERLAPS | RANKS, BY_OVERLAP},
                 {KEY_BACKWARD_RUN_UP, 0, BY_OVERLAP},
                 {KEY_JOIN_TOLERANCE, OVERLAPS, 0},
                 {KEY_BLOCK, BIT(DPCR_METHOD_BLOCK), 0},
                 {KEY_DAMPING, BIT(DPCR_METHOD_DAMPED), 0},
                 {KEY_SWEEPS, PARALLEL | RANKS, 0},
                 {KEY_NO_FALLBACK, PARALLEL | RANKS, 0}};

static const char *solver_option_name(int key) {
    const struct argp_option *o = solver_options;
    while (o->key != key) o++;
    return o->name;
}

static bool is_given(const cli_solver *s, int key) { return s->given >> (key - KEY_METHOD) & 1; }

bool cli_runs_look(unsigned runs, unsigned methods, const char *option, const char *what) {
    const char *names[DPCR_METHOD_COUNT];
    char wanted[160];
    int count = 0;
    if (runs & methods) return true;
    if (runs & RANKS) methods &= BIT(DPCR_METHOD_OVERLAP);  // there are no others
    for (int m = 0; m < DPCR_METHOD_COUNT; m++)
        if (methods >> m & 1) names[count++] = dpcr_method_name((dpcr_method)m);
    cli_join_words(names, count, wanted, sizeof wanted);
    cli_fail(CLI_USAGE, "--%s beside %s, which has none%s%s", option, what, count ? "; wanted --method " : "", wanted);
    return false;
}
#undef BIT

// Does the scheme of a sweep's chain cut it?
static bool cuts(dpcr_scheme scheme) {
    return scheme == DPCR_SCHEME_AUTO || scheme == DPCR_SCHEME_CHUNKED || scheme == DPCR_SCHEME_OVERLAP;
}

// Chunks are a method's own, or of the scheme that solves its sweeps' chains.
static bool looks_forward(const cli_solver *s, unsigned runs, size_t i) {
    const unsigned found = runs & looked_at[i].methods;
    const bool of_schemes = looked_at[i].key == KEY_CHUNK && !(found & ~(unsigned)CHAINS);
    return found && (!of_schemes || cuts(s->options.scheme));
}

// A device goes back as it came, but behind newton by overlap.
static bool looks_back(const cli_solver *s, unsigned runs, size_t i) {
    const dpcr_scheme backward = s->options.backward;
    const bool device = s->options.device.type == DPCR_CUDA;
    const bool chosen = backward == DPCR_SCHEME_AUTO && !(runs & RANKS) && !device;
    if (looked_at[i].key == KEY_SCHEME) return s->backward_by_scheme;
    if (looked_at[i].key == KEY_RUN_UP && device) return runs & CLI_RUNS(DPCR_METHOD_NEWTON);
    if (looked_at[i].back != BY_OVERLAP) return looked_at[i].back == IN_ANY_WAY;
    return chosen || backward == DPCR_SCHEME_OVERLAP;
}

static size_t index_of(const char *option) {
    size_t i = 0;
    while (strcmp(option, solver_option_name(looked_at[i].key)) != 0) {
        i++;
        assert(i < sizeof looked_at / sizeof *looked_at);
    }
    return i;
}

unsigned cli_option_methods(const char *option) { return looked_at[index_of(option)].methods; }

bool cli_option_counts(const dpcr_solve_options *options, const char *option, bool back) {
    const cli_solver s = {.options = *options};
    const unsigned runs = CLI_RUNS(options->method);
    const size_t i = index_of(option);
    return looks_forward(&s, runs, i) || (back && looks_back(&s, runs, i));
}

static bool fits(const cli_solver *s, unsigned runs, size_t i, const char *what, const char *alone) {
    const unsigned methods = looked_at[i].methods;
    const char *const name = solver_option_name(looked_at[i].key);
    if (looks_forward(s, runs, i) || (!alone && looks_back(s, runs, i))) return true;
    if (!methods && alone) return cli_fail(CLI_USAGE, "--%s is of going back: %s", name, alone), false;
    if (!methods)
        return cli_fail(CLI_USAGE, "--%s beside backward %s, which has none; wanted --backward %soverlap", name,
                        dpcr_scheme_name(s->options.backward), runs & RANKS ? "" : "auto, "),
               false;
    if (!cli_runs_look(runs, methods, name, what)) return false;
    cli_fail(CLI_USAGE, "--%s beside scheme %s, which has none; wanted --scheme auto, chunked, overlap", name,
             dpcr_scheme_name(s->options.scheme));
    return false;
}

bool cli_solver_fits(const cli_solver *solver, unsigned runs, const char *what, const char *alone) {
    const bool device = solver->options.device.type == DPCR_CUDA;
    char method[64];
    snprintf(method, sizeof method, "method %s", dpcr_method_name(solver->options.method));
    for (size_t i = 0; i < sizeof looked_at / sizeof *looked_at; i++) {
        const bool told_there = device && !looked_at[i].methods && !alone;  // a device's refusals are the library's
        if (is_given(solver, looked_at[i].key) && !told_there && !fits(solver, runs, i, what ? what : method, alone))
            return false;
    }
    return true;
}

cli_solver cli_solver_of_layers(const cli_solver *solver) {
    cli_solver s = *solver;
    const bool loop = s.options.method == DPCR_METHOD_SEQUENTIAL && s.options.backward == DPCR_SCHEME_AUTO;
    if (loop) s.options.backward = DPCR_SCHEME_SEQUENTIAL;
    return s;
}

void cli_solver_settle_check(cli_solver *s) {
    if (!s->method_given) s->options.method = DPCR_METHOD_NEWTON;
    if (!s->scheme_given) s->options.scheme = DPCR_SCHEME_PCR;
    if (!s->backward_given) s->options.backward = s->options.scheme;
    s->backward_by_scheme = !s->backward_given;
}

const struct argp cli_solver_argp = {solver_options, parse_solver, NULL, NULL, NULL, NULL, NULL};

// ---- the network ----

static const struct argp_option network_options[] = {
    {"layers", KEY_LAYERS, "N", 0, "Length of the chain", 0},
    {"width", KEY_WIDTH, "W", 0, "Width of a state", 0},
    {"hidden", KEY_HIDDEN, "H", 0, "Width inside a two-layer branch (default: the width)", 0},
    {"batch", KEY_BATCH, "B", 0, "Sequences (of a classifier: images) at once", 0},
    {"dtype", KEY_DTYPE, "TYPE", 0, "float32 or float64", 0},
    {"activation", KEY_ACTIVATION, "NAME", 0,
     "identity, relu, tanh, sigmoid, gelu, silu (default: relu; in a resnet's linear branch tanh)", 0},
    {"branch", KEY_BRANCH, "linear|two-layer", 0, "A resnet's branch (default linear)", 0},
    {"layer-norm", KEY_NORM, NULL, 0, "Normalise before the activation", 0},
    {"tie", KEY_TIE, "T", 0, "Layers l and l mod T share their weights (1: all layers one; default: none do)", 0},
    {"scale", KEY_SCALE, "S", 0, "A resnet's s in z + s f(z) (default 1/sqrt(layers))", 0},
    {"init", KEY_INIT, "default|he|normal", 0,
     "Initial weights of the layers: PyTorch's default, N(0, 2/fan-in) or N(0, 1/fan-in), these two with zero biases",
     0},
    {"gain", KEY_GAIN, "G", 0, "Factor on the layers' initial weights (default 1)", 0},
    {0},
};

static const char *const architectures[] = {"mlp", "resnet"};
static const char *const branches[] = {"linear", "two-layer"};
static const char *const inits[] = {"default", "he", "normal"};

const char *cli_architecture_name(dpcr_architecture architecture) { return architectures[architecture == DPCR_RESNET]; }
const char *cli_branch_name(dpcr_branch branch) { return branches[branch == DPCR_BRANCH_TWO_LAYER]; }

bool cli_read_architecture(const char *text, const char *others, dpcr_architecture *architecture) {
    for (int i = 0; text && i < 2; i++) {
        if (strcmp(text, architectures[i]) != 0) continue;
        *architecture = i ? DPCR_RESNET : DPCR_MLP;
        return true;
    }
    if (text)
        cli_fail(CLI_USAGE, "no network '%.60s'; there are mlp, resnet%s", text, others);
    else
        cli_fail(CLI_USAGE, "which network? there are mlp, resnet%s", others);
    return false;
}

static error_t read_branch(const char *arg, dpcr_branch *branch) {
    int index = 0;
    if (!cli_read_word("--branch", arg, branches, 2, &index)) return EINVAL;
    *branch = index ? DPCR_BRANCH_TWO_LAYER : DPCR_BRANCH_LINEAR;
    return 0;
}

static error_t read_scale(const char *arg, double *scale) {
    if (!cli_read_double("--scale", arg, -HUGE_VAL, HUGE_VAL, scale)) return EINVAL;
    if (*scale != 0) return 0;
    cli_fail(CLI_USAGE, "--scale '%s': wanted a number other than 0", arg);
    return EINVAL;
}

static error_t read_init(const char *arg, cli_init *init) {
    int index = 0;
    if (!cli_read_word("--init", arg, inits, 3, &index)) return EINVAL;
    *init = (cli_init)index;
    return 0;
}

static error_t parse_network_option(int key, char *arg, cli_network *n) {
    dpcr_model_options *o = &n->options;
    switch (key) {
        case KEY_LAYERS: return taken(cli_read_int64("--layers", arg, 0, INT64_MAX, &o->layers));
        case KEY_WIDTH: return taken(cli_read_int64("--width", arg, 1, INT64_MAX, &o->width));
        case KEY_HIDDEN: return taken(cli_read_int64("--hidden", arg, 1, INT64_MAX, &o->hidden));
        case KEY_BATCH: return taken(cli_read_int64("--batch", arg, 1, INT64_MAX, &n->batch));
        case KEY_DTYPE: return taken(cli_read_dtype("--dtype", arg, &o->dtype));
        case KEY_ACTIVATION: return taken(cli_read_activation("--activation", arg, &o->activation));
        case KEY_BRANCH: return read_branch(arg, &o->branch);
        case KEY_NORM: o->layer_norm = 1; return 0;
        case KEY_TIE: return taken(cli_read_int64("--tie", arg, 1, INT64_MAX, &o->tie));
        case KEY_SCALE: return read_scale(arg, &o->scale);
        case KEY_INIT: return read_init(arg, &n->init);
        case KEY_GAIN: return taken(cli_read_double("--gain", arg, -HUGE_VAL, HUGE_VAL, &n->gain));
        default: return ARGP_ERR_UNKNOWN;
    }
}

static bool describes(const cli_network *n, int key) { return n->given >> (key - KEY_LAYERS) & 1; }

bool cli_network_only(const cli_network *network, const char *what, const char *const *taken) {
    return only(network_options, network->given, KEY_LAYERS, what, taken);
}

bool cli_network_gives(const cli_network *network, const char *name) {
    for (const struct argp_option *o = network_options; o->name; o++)
        if (!strcmp(o->name, name)) return describes(network, o->key);
    return false;
}

bool cli_network_fits(const cli_network *network) {
    const dpcr_model_options *o = &network->options;
    static const int of_resnets[] = {KEY_BRANCH, KEY_HIDDEN, KEY_SCALE};
    static const char *const names[] = {"branch", "hidden", "scale"};
    for (int i = 0; i < 3; i++)
        if (o->architecture == DPCR_MLP && describes(network, of_resnets[i]))
            return cli_fail(CLI_USAGE, "--%s: that is of a resnet, not of an mlp", names[i]), false;
    if (describes(network, KEY_HIDDEN) && o->branch != DPCR_BRANCH_TWO_LAYER)
        return cli_fail(CLI_USAGE, "--hidden: that is of --branch two-layer"), false;
    return true;
}

static error_t parse_network(int key, char *arg, struct argp_state *state) {
    cli_network *n = state->input;
    const error_t code = parse_network_option(key, arg, n);
    if (!code && key >= KEY_LAYERS && key <= KEY_GAIN) n->given |= 1u << (key - KEY_LAYERS);
    if (code || key == KEY_BATCH || n->first_given) return code;
    for (const struct argp_option *o = network_options; o->name; o++)
        if (o->key == key) n->first_given = o->name;
    return 0;
}

const struct argp cli_network_argp = {network_options, parse_network, NULL, NULL, NULL, NULL, NULL};
