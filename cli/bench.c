// SPDX-License-Identifier: MIT
// bench: how long chains of a kind take by the loop, by the best parallel method and by what auto chooses, forward and
// backward; one point, or a grid of lengths, widths and batches.
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_LENGTH = 0x5000,
    KEY_STRUCTURE,
    KEY_RADIUS,
    KEY_CELL,
    KEY_INPUT_SD,
    KEY_LOSS,
    KEY_LENGTHS,
    KEY_WIDTHS,
    KEY_BATCHES,
    KEY_SECONDS,
    KEY_LIMITS,
    KEY_COMMIT
};

static const struct argp_option bench_options[] = {
    {"length", KEY_LENGTH, "N", 0, "The same as --layers, and not beside it", 0},
    {"structure", KEY_STRUCTURE, "NAME", 0,
     "Transitions of a linear chain: scalar, diagonal, block (with --block), dense (default); a cell's W: dense or "
     "diagonal",
     0},
    {"radius", KEY_RADIUS, "R", 0,
     "A step of a linear chain multiplies the mean square by R^2; a cell's W has this spectral radius (default 0.9)",
     0},
    {"cell", KEY_CELL, "NAME", 0, "Activation of a recurrent cell act(W z + x) (default tanh)", 0},
    {"input-sd", KEY_INPUT_SD, "S", 0, "Standard deviation of a cell's inputs (default 1)", 0},
    {"loss", KEY_LOSS, "every|end", 0, "Gradients come in at every step (default) or at the last one only", 0},
    {"lengths", KEY_LENGTHS, "N,N,...", 0, "A grid: these lengths with these widths and batches", 0},
    {"widths", KEY_WIDTHS, "N,N,...", 0, "See --lengths", 0},
    {"batches", KEY_BATCHES, "N,N,...", 0, "See --lengths", 0},
    {"seconds", KEY_SECONDS, "T", 0,
     "Length of a race at most, of which a point has two: 15 rounds end it (default 1.5)", 0},
    {"limits", KEY_LIMITS, NULL, 0,
     "Measure the machine too: bandwidth of a triad, latency of an fma, a line of cache from thread to thread (always "
     "with a linear chain)",
     0},
    {"commit", KEY_COMMIT, "TEXT", 0, "What the results name as the program's source", 0},
    {0},
};

// ---- arguments ----

// "64,256,1024"
static error_t read_values(const char *option, const char *arg, int64_t low, bench_values *values) {
    char *copy = strdup(arg), *rest = copy;
    if (!copy) return cli_fail_memory("an option"), EINVAL;
    bool ok = true;
    values->count = 0;
    for (char *word; ok && (word = cli_next_item(&rest));) {
        if (values->count == BENCH_VALUES) {
            cli_fail(CLI_USAGE, "%s: wanted at most %d numbers", option, BENCH_VALUES);
            ok = false;
        } else {
            ok = cli_read_int64(option, word, low, INT64_MAX, &values->value[values->count++]);
        }
    }
    free(copy);
    return ok ? 0 : EINVAL;
}

static error_t read_loss(const char *arg, bool *at_end) {
    static const char *const words[] = {"every", "end"};
    int index = 0;
    if (!cli_read_word("--loss", arg, words, 2, &index)) return EINVAL;
    *at_end = index == 1;
    return 0;
}

static error_t read_structure(const char *arg, bench *b) {
    b->structure_given = true;
    return cli_read_structure("--structure", arg, &b->structure) ? 0 : EINVAL;
}

static error_t read_radius(const char *arg, bench *b) {
    b->radius_given = true;
    return cli_read_double("--radius", arg, 0, HUGE_VAL, &b->radius) ? 0 : EINVAL;
}

static error_t read_cell(const char *arg, bench *b) {
    b->cell_given = true;
    return cli_read_activation("--cell", arg, &b->cell) ? 0 : EINVAL;
}

static error_t read_input_sd(const char *arg, bench *b) {
    b->input_given = true;
    return cli_read_double("--input-sd", arg, 0, HUGE_VAL, &b->input_sd) ? 0 : EINVAL;
}

// The text goes into a CSV file as it is.
static error_t read_commit(const char *arg, const char **commit) {
    if (!strpbrk(arg, ",\"\n\r") && *arg) {
        *commit = arg;
        return 0;
    }
    cli_fail(CLI_USAGE, "--commit '%.100s': wanted a text without commas, quotes and line ends", arg);
    return EINVAL;
}

static error_t parse_bench(int key, char *arg, struct argp_state *state) {
    bench *b = state->input;
    switch (key) {
        case KEY_LENGTH:
            b->length_given = true;
            return cli_read_int64("--length", arg, 0, INT64_MAX, &b->network.options.layers) ? 0 : EINVAL;
        case KEY_STRUCTURE: return read_structure(arg, b);
        case KEY_RADIUS: return read_radius(arg, b);
        case KEY_CELL: return read_cell(arg, b);
        case KEY_INPUT_SD: return read_input_sd(arg, b);
        case KEY_LOSS: return read_loss(arg, &b->loss_at_end);
        case KEY_LENGTHS: return read_values("--lengths", arg, 0, &b->lengths);
        case KEY_WIDTHS: return read_values("--widths", arg, 1, &b->widths);
        case KEY_BATCHES: return read_values("--batches", arg, 1, &b->batches);
        case KEY_SECONDS: return cli_read_double("--seconds", arg, 0, 3600, &b->seconds) ? 0 : EINVAL;
        case KEY_LIMITS: b->limits = true; return 0;
        case KEY_COMMIT: return read_commit(arg, &b->commit);
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp bench_argp = {bench_options, parse_bench, NULL, NULL, NULL, NULL, NULL};

// ---- the kinds ----

typedef struct kind {
    const char *name;
    int (*point)(dpcr_context *context, const bench *b, bench_point *point);
    int (*refuse)(const bench *b);
} kind;

static int refuse_chain(const bench *b);
static int refuse_network(const bench *b);
static int refuse_cell(const bench *b);

static const kind kinds[] = {{"mlp", bench_network_point, refuse_network},
                             {"resnet", bench_network_point, refuse_network},
                             {"chain", bench_chain_point, refuse_chain},
                             {"cell", bench_cell_point, refuse_cell}};
enum { KINDS = sizeof kinds / sizeof *kinds };

// Kinds with options of their own.
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} own_kinds[] = {
    {"planner", cli_bench_planner},
    {"bppsa", cli_bench_bppsa},
    {"diffusion", cli_bench_diffusion},
};
enum { OWN_KINDS = sizeof own_kinds / sizeof *own_kinds };

static int own_kind(const char *word) {
    for (int i = 0; i < OWN_KINDS; i++)
        if (!strcmp(word, own_kinds[i].name)) return i;
    return OWN_KINDS;
}
static bool names_own_kind(const char *word) { return own_kind(word) < OWN_KINDS; }
static bool names_kind(const char *word) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(word, kinds[i].name)) return true;
    return false;
}

static const kind *find_kind(const char *name) {
    const char *names[KINDS + OWN_KINDS];
    char list[128];
    for (int i = 0; i < KINDS; i++) {
        names[i] = kinds[i].name;
        if (name && !strcmp(name, kinds[i].name)) return &kinds[i];
    }
    for (int i = 0; i < OWN_KINDS; i++) names[KINDS + i] = own_kinds[i].name;
    cli_join_words(names, KINDS + OWN_KINDS, list, sizeof list);
    if (name)
        cli_fail(CLI_USAGE, "no kind of chain '%.60s'; there are %s", name, list);
    else
        cli_fail(CLI_USAGE, "which kind of chain? there are %s", list);
    return NULL;
}

// What belongs to another kind of chain.
static int refuse_others(const bench *b, bool structure, bool radius, bool cell) {
    if (b->structure_given && !structure)
        return cli_fail(CLI_USAGE, "--structure: that is of a linear chain or a cell");
    if (b->radius_given && !radius)
        return cli_fail(CLI_USAGE, "--radius: that is of a linear chain or a cell; a network has --gain");
    if (b->cell_given && !cell) return cli_fail(CLI_USAGE, "--cell: that is of a cell");
    if (b->input_given && !cell) return cli_fail(CLI_USAGE, "--input-sd: that is of a cell");
    return CLI_DONE;
}

// A list and a single value of one size.
static int refuse_doubled(const bench *b) {
    const struct {
        const bench_values *list;
        bool given;
        const char *plural, *single;
    } sizes[] = {{&b->lengths, b->length_given, "lengths", "length"},
                 {&b->lengths, cli_network_gives(&b->network, "layers"), "lengths", "layers"},
                 {&b->widths, cli_network_gives(&b->network, "width"), "widths", "width"},
                 {&b->batches, cli_network_gives(&b->network, "batch"), "batches", "batch"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].list->count && sizes[i].given)
            return cli_fail(CLI_USAGE, "--%s beside --%s: wanted one of them", sizes[i].plural, sizes[i].single);
    if (b->length_given && cli_network_gives(&b->network, "layers"))
        return cli_fail(CLI_USAGE, "--length beside --layers, which is the same: wanted one of them");
    return CLI_DONE;
}

// auto runs in any case, forward and back.
static int refuse_solver(const bench *b) {
    const dpcr_method method = b->solver.options.method;
    cli_solver asked = b->solver;
    asked.options.backward = DPCR_SCHEME_AUTO;
    if (method == DPCR_METHOD_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "--method 'sequential': the loop runs anyway; wanted a parallel one");
    if (b->solver.options.backward == DPCR_SCHEME_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "--backward 'sequential': the loop runs anyway; wanted a parallel one");
    return cli_solver_fits(&asked, CLI_RUNS(DPCR_METHOD_AUTO) | CLI_RUNS(method), NULL, NULL) ? CLI_DONE : CLI_USAGE;
}

static const char *const of_sizes[] = {"layers", "width", "batch", "dtype", NULL};

static int refuse_chain(const bench *b) {
    static const char *const of_solver[] = {"scheme", "tolerance", "chunk", "run-up", "max-sweeps", "block", NULL};
    const dpcr_solve_options *o = &b->solver.options;
    if (b->network.options.activation) return cli_fail(CLI_USAGE, "--activation: a linear chain has none");
    if (!cli_network_only(&b->network, "a linear chain", of_sizes)) return CLI_USAGE;
    if (b->structure == DPCR_ZERO || b->structure == DPCR_IDENTITY)
        return cli_fail(CLI_USAGE, "--structure '%s': wanted scalar, diagonal, block or dense",
                        dpcr_structure_name(b->structure));
    if (b->solver.method_given) return cli_fail(CLI_USAGE, "--method: a linear chain wants --scheme");
    if (b->solver.backward_given)
        return cli_fail(CLI_USAGE, "--backward: a linear chain's backward pass takes --scheme too");
    if (b->solver.options.scheme == DPCR_SCHEME_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "--scheme 'sequential': the loop runs anyway; wanted a parallel one");
    if (!cli_solver_only(&b->solver, "a linear chain", of_solver)) return CLI_USAGE;
    if (o->block && b->structure != DPCR_BLOCK)
        return cli_fail(CLI_USAGE, "--block beside structure %s, which has none; wanted --structure block",
                        dpcr_structure_name(b->structure));
    if ((o->warm_up || o->max_sweeps) && o->scheme != DPCR_SCHEME_AUTO && o->scheme != DPCR_SCHEME_OVERLAP)
        return cli_fail(CLI_USAGE, "--%s beside scheme %s, which has none; wanted --scheme auto, overlap",
                        o->warm_up ? "run-up" : "max-sweeps", dpcr_scheme_name(o->scheme));
    if (b->loss_at_end) return cli_fail(CLI_USAGE, "--loss: a linear chain's backward pass has inputs at every step");
    return refuse_others(b, true, true, false);
}

static int refuse_network(const bench *b) {
    const int status = refuse_others(b, false, false, false);
    return status ? status : refuse_solver(b);
}

static int refuse_cell(const bench *b) {
    if (b->network.options.activation) return cli_fail(CLI_USAGE, "--activation: a cell has --cell");
    if (!cli_network_only(&b->network, "a cell", of_sizes)) return CLI_USAGE;
    if (b->structure != DPCR_DENSE && b->structure != DPCR_DIAGONAL)
        return cli_fail(CLI_USAGE, "--structure '%s': wanted dense or diagonal", dpcr_structure_name(b->structure));
    const int status = refuse_others(b, true, true, true);
    return status ? status : refuse_solver(b);
}

// ---- points ----

static bench_values axis(const bench_values *given, int64_t single) {
    return given->count ? *given : (bench_values){.value = {single}, .count = 1};
}

static int measure(dpcr_context *context, bench *b, const kind *k, bench_point *points, int count) {
    const int threads = dpcr_context_threads(context);
    for (int i = 0; i < count; i++) {
        bench_point *p = &points[i];
        b->network.options.layers = p->length;
        b->network.options.width = p->width;
        b->network.batch = p->batch;
        p->dtype = b->network.options.dtype;
        const int status = k->point(context, b, p);
        if (status) {
            bench_keep(b, points, i, threads);
            return status;
        }
        bench_say_point(b, p, threads);
    }
    bench_limits limits;
    const bool limited = b->limits || !strcmp(k->name, "chain");
    if (limited) {
        limits = bench_limits_measure(threads);
        bench_say_limits(b, &limits);
    }
    return bench_finish(b, points, count, limited ? &limits : NULL, threads);
}

static int run(bench *b, const kind *k) {
    const bench_values lengths = axis(&b->lengths, b->network.options.layers),
                       widths = axis(&b->widths, b->network.options.width),
                       batches = axis(&b->batches, b->network.batch);
    const int count = lengths.count * widths.count * batches.count;
    bench_point *points = calloc((size_t)count, sizeof *points);
    if (!points) return cli_fail_memory("the points");
    int status = CLI_DONE, at = 0;
    for (int i = 0; i < batches.count; i++)
        for (int j = 0; j < widths.count; j++)
            for (int l = 0; l < lengths.count; l++)
                points[at++] =
                    (bench_point){.length = lengths.value[l], .width = widths.value[j], .batch = batches.value[i]};
    dpcr_context *context = cli_context_create(&b->common, &status);
    if (context) status = measure(context, b, k, points, count);
    dpcr_context_destroy(context);
    free(points);
    return status;
}

int cli_verb_bench(int argc, char **argv) {
    if (cli_name_first(argc, argv, names_own_kind, names_kind))
        return own_kinds[own_kind(argv[1])].run(argc - 1, argv + 1);
    bench b = {.common = CLI_COMMON_DEFAULTS,
               .solver = CLI_SOLVER_DEFAULTS,
               .network = {.options = {.layers = 1024, .width = 4, .dtype = DPCR_F32}, .gain = 1, .batch = 1},
               .structure = DPCR_DENSE,
               .cell = DPCR_ACT_TANH,
               .radius = 0.9,
               .input_sd = 1,
               .seconds = 1.5};
    const cli_syntax syntax = {
        .arguments = "mlp|resnet|chain|cell|planner|bppsa|diffusion",
        .doc =
            "Times a chain by the loop, by every parallel method that may pay and by what auto chooses, forward and "
            "backward, in interleaved rounds. Tells medians, the largest difference from the loop's result relative to "
            "max(1, |value|), and the spread: third quartile minus first, by the median, the largest of the three. "
            "Defaults: length 1024, width 4, batch 1, float32.\vFor a linear chain backward is the transposed solve, "
            "and --scheme names the only one to run; for networks --method and --backward do. With --lengths, "
            "--widths or --batches the JSON object has a list of points. 'deeppcr bench planner --help' tells of that "
            "one, 'deeppcr bench bppsa --help' of backward passes as scans over sparse Jacobians, 'deeppcr bench "
            "diffusion --help' of denoising steps.",
        .groups = {{&bench_argp, &b, "Chain:"},
                   {&cli_network_argp, &b.network, "Network:"},
                   {&cli_solver_argp, &b.solver, "Solver:"},
                   {&cli_common_argp, &b.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    const kind *k = find_kind(positional[0]);
    if (!k) return CLI_USAGE;
    b.kind = k->name;
    b.network.options.architecture = strcmp(k->name, "resnet") ? DPCR_MLP : DPCR_RESNET;
    status = refuse_doubled(&b);
    if (!status) status = k->refuse(&b);
    return status ? status : run(&b, k);
}
