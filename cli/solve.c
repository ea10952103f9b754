// SPDX-License-Identifier: MIT
// solve linear: z_l = A_l z_{l-1} + b_l, or its transpose, from npy and npz files.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "solve.h"
#include "world.h"

enum {
    KEY_A = 0x3000,
    KEY_B,
    KEY_Z0,
    KEY_INPUT,
    KEY_OUTPUT,
    KEY_SCHEME,
    KEY_TRANSPOSED,
    KEY_CHUNK,
    KEY_RUN_UP,
    KEY_LEVELS,
    KEY_TOLERANCE,
    KEY_SWEEPS,
    KEY_LIMIT,
    KEY_RANKS,
    KEY_SCAN,
    KEY_DEADLINE,
    KEY_INDPTR,
    KEY_INDICES
};

typedef cli_linear solve;

static const struct argp_option solve_options[] = {
    {"A", KEY_A, "FILE", 0,
     "Transitions, by their number of dimensions: [L][B][w][w] dense, [L][B][m][k][k] blocks (w = m k), [L][B][w] "
     "diagonal, [L][B] scalar; its B may be 1: shared",
     0},
    {"indptr", KEY_INDPTR, "FILE", 0,
     "With --indices: sparse transitions, all of one pattern; A is [L][B][e], the values of its e entries. Where each "
     "row's begin [w + 1], as SciPy's csr has it",
     0},
    {"indices", KEY_INDICES, "FILE", 0, "The entries' columns [e], ascending in each row", 0},
    {"b", KEY_B, "FILE", 0, "Inputs [L][B][w]", 0},
    {"z0", KEY_Z0, "FILE", 0, "Initial states [B][w], or [w] for one sequence (default 0)", 0},
    {"input", KEY_INPUT, "FILE.npz", 0, "Take A, b and, if there, z0, indptr and indices from one npz file", 0},
    {"output", KEY_OUTPUT, "FILE", 0,
     "The states z [L][B][w]: .npy, .npz (member z), or '-' for npy on standard output", 0},
    {"scheme", KEY_SCHEME, "NAME", 0,
     "auto (default), sequential, pcr, blelloch, chunked, overlap; over ranks: distributed", 0},
    {"transposed", KEY_TRANSPOSED, NULL, 0, "z_l = A_{l+1}^T z_{l+1} + b_l from the last step on; takes no z0", 0},
    {"chunk", KEY_CHUNK, "N", 0, "Steps a chunk of chunked and overlap (default: from the shape)", 0},
    {"run-up", KEY_RUN_UP, "N", 0, "Steps that a chunk of overlap runs before its first (default 64)", 0},
    {"levels", KEY_LEVELS, "N", 0, "Tree levels of blelloch (default: all; 0 is the loop)", 0},
    {"tolerance", KEY_TOLERANCE, "T", 0,
     "Allowed defect at the boundaries of overlap's chunks (default 0: the loop's bits)", 0},
    {"max-sweeps", KEY_SWEEPS, "N", 0, "Sweeps of overlap before it finishes in order (default 3)", 0},
    {"memory-limit", KEY_LIMIT, "BYTES", 0, "Workspace at most (suffixes K, M, G)", 0},
    {"ranks", KEY_RANKS, "P", 0,
     "distributed: ranks, a thread each, that hold a part of the steps (default 2); under mpirun -np P, a process each",
     0},
    {"scan", KEY_SCAN, "messages|mpi", 0,
     "distributed: the summaries by messages in an order that ranks alone fix (default), or by MPI_Exscan", 0},
    {"deadline", KEY_DEADLINE, "S", 0, "distributed: seconds that a rank waits for another (default 60)", 0},
    {0},
};

// "distributed" is no scheme of a single process.
static error_t read_scheme(const char *arg, solve *s) {
    s->distributed = !strcmp(arg, "distributed");
    s->scheme_given = true;
    return s->distributed || cli_read_scheme("--scheme", arg, &s->options.scheme) ? 0 : EINVAL;
}

static error_t read_scan(const char *arg, solve *s) {
    static const char *const words[] = {"messages", "mpi"};
    int index = 0;
    if (!cli_read_word("--scan", arg, words, 2, &index)) return EINVAL;
    s->scan = index ? DPCR_SCAN_TRANSPORT : DPCR_SCAN_MESSAGES;
    s->scan_given = true;
    return 0;
}

static error_t read_levels(const char *arg, int *levels) {
    int tree;
    if (!cli_read_int("--levels", arg, 0, 62, &tree)) return EINVAL;
    *levels = tree + 1;
    return 0;
}

static error_t parse_solve(int key, char *arg, struct argp_state *state) {
    solve *s = state->input;
    dpcr_chain_options *o = &s->options;
    switch (key) {
        case KEY_A: s->a = arg; return 0;
        case KEY_B: s->b = arg; return 0;
        case KEY_Z0: s->z0 = arg; return 0;
        case KEY_INDPTR: s->indptr = arg; return 0;
        case KEY_INDICES: s->indices = arg; return 0;
        case KEY_INPUT: s->input = arg; return 0;
        case KEY_OUTPUT: s->output = arg; return 0;
        case KEY_TRANSPOSED: s->transposed = true; return 0;
        case KEY_SCHEME: return read_scheme(arg, s);
        case KEY_RANKS: return cli_read_int64("--ranks", arg, 1, 1024, &s->ranks) ? 0 : EINVAL;
        case KEY_SCAN: return read_scan(arg, s);
        case KEY_DEADLINE: return cli_read_double("--deadline", arg, 1e-3, 1e9, &s->deadline) ? 0 : EINVAL;
        case KEY_CHUNK: return cli_read_int64("--chunk", arg, 1, INT64_MAX, &o->chunk) ? 0 : EINVAL;
        case KEY_RUN_UP: return cli_read_int64("--run-up", arg, 1, INT64_MAX, &o->warm_up) ? 0 : EINVAL;
        case KEY_LEVELS: return read_levels(arg, &o->levels);
        case KEY_TOLERANCE: return cli_read_double("--tolerance", arg, 0, HUGE_VAL, &o->tolerance) ? 0 : EINVAL;
        case KEY_SWEEPS: return cli_read_int("--max-sweeps", arg, 1, INT32_MAX, &o->max_sweeps) ? 0 : EINVAL;
        case KEY_LIMIT: return cli_read_bytes("--memory-limit", arg, &s->memory_limit) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp solve_argp = {solve_options, parse_solve, NULL, NULL, NULL, NULL, NULL};

// ---- reading ----

// Files in memory, and the arrays in them that were asked for.
typedef struct inputs {
    dpcr_tensors files[5];
    const dpcr_array *a, *b, *z0, *indptr, *indices;
} inputs;

static const dpcr_array *member(const inputs *in, const char *name) {
    const dpcr_tensor *found = dpcr_tensors_find(&in->files[0], name);
    return found ? &found->array : NULL;
}

static int read_npz(dpcr_context *context, const solve *s, inputs *in) {
    dpcr_error error = {0};
    if (!cli_readable("the input", s->input)) return CLI_INPUT;
    static const char *const names[] = {"A", "b", "indptr", "indices", "z0"};
    const int64_t count = s->transposed ? 4 : 5;  // whose z0, the last, is nobody's
    if (dpcr_npy_read_named(context, s->input, names, count, &in->files[0], &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    in->a = member(in, "A");
    in->b = member(in, "b");
    in->z0 = member(in, "z0");
    in->indptr = member(in, "indptr");
    in->indices = member(in, "indices");
    if (!in->a || !in->b)
        return cli_fail(CLI_INPUT, "'%s' has no array '%s': wanted A, b and perhaps z0", s->input, in->a ? "b" : "A");
    if (!in->indptr != !in->indices)
        return cli_fail(CLI_INPUT, "'%s' has no array '%s': a pattern is both indptr and indices", s->input,
                        in->indptr ? "indices" : "indptr");
    return CLI_DONE;
}

static int read_inputs(dpcr_context *context, const solve *s, inputs *in) {
    if (s->input) return read_npz(context, s, in);
    int status = cli_array_read(context, "A", s->a, &in->files[0], &in->a);
    if (!status) status = cli_array_read(context, "b", s->b, &in->files[1], &in->b);
    if (!status && s->z0) status = cli_array_read(context, "z0", s->z0, &in->files[2], &in->z0);
    if (!status && s->indptr) status = cli_array_read(context, "indptr", s->indptr, &in->files[3], &in->indptr);
    if (!status && s->indices) status = cli_array_read(context, "indices", s->indices, &in->files[4], &in->indices);
    return status;
}

// ---- shapes ----

static const char *shape_text(const dpcr_array *array, char *text, size_t bytes) {
    size_t at = 0;
    snprintf(text, bytes, "[]");
    for (int i = 0; i < array->ndim && at < bytes; i++) {
        const int n = snprintf(text + at, bytes - at, "[%lld]", (long long)array->shape[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return text;
}

static int wrong_shape(const char *what, const dpcr_array *array, const char *wanted) {
    char text[160];
    return cli_fail(CLI_INPUT, "%s has shape %s: wanted %s", what, shape_text(array, text, sizeof text), wanted);
}

static int wrong_a(const dpcr_array *a, const dpcr_array *b) {
    char wanted[256];
    const long long length = (long long)b->shape[0], batch = (long long)b->shape[1], w = (long long)b->shape[2];
    snprintf(wanted, sizeof wanted,
             "[%lld][%lld%s] and then nothing, [%lld], [%lld][%lld] or [m][k][k] with m k = %lld, as b has "
             "[%lld][%lld][%lld]",
             length, batch, batch > 1 ? " or 1" : "", w, w, w, w, length, batch, w);
    return wrong_shape("A", a, wanted);
}

static int wrong_values(const dpcr_array *a, const dpcr_array *b, const dpcr_pattern *pattern) {
    char wanted[160];
    snprintf(wanted, sizeof wanted, "[%lld][%lld%s][%lld], as b has steps and the pattern entries",
             (long long)b->shape[0], (long long)b->shape[1], b->shape[1] > 1 ? " or 1" : "",
             (long long)pattern->offsets[pattern->rows]);
    return wrong_shape("A", a, wanted);
}

// The structure is decided by the number of dimensions. `a` becomes a view [L][B or 1][values].
int cli_linear_shape(const dpcr_array *from, const dpcr_array *b, const dpcr_pattern *pattern, bool transposed,
                     dpcr_chain_shape *shape, dpcr_array *a) {
    if (b->ndim != 3) return wrong_shape("b", b, "[L][B][w]");
    const int64_t w = b->shape[2], *n = from->shape;
    if (w < 1) return wrong_shape("b", b, "a width of at least 1");
    bool ok = from->ndim >= 2 && from->ndim <= 5 && n[0] == b->shape[0] && (n[1] == b->shape[1] || n[1] == 1);
    dpcr_structure structure = DPCR_SCALAR;
    int64_t block = 0;
    if (pattern) ok = ok && from->ndim == 3 && n[2] == pattern->offsets[w];
    if (!ok && pattern) return wrong_values(from, b, pattern);
    if (ok && from->ndim == 3 && !pattern) structure = DPCR_DIAGONAL, ok = n[2] == w;
    if (ok && from->ndim == 4) structure = DPCR_DENSE, ok = n[2] == w && n[3] == w;
    if (ok && from->ndim == 5)
        structure = DPCR_BLOCK, block = n[3], ok = n[4] == block && block > 0 && w % block == 0 && n[2] == w / block;
    if (!ok) return wrong_a(from, b);
    if (from->dtype != b->dtype || (b->dtype != DPCR_F32 && b->dtype != DPCR_F64))
        return cli_fail(CLI_INPUT,
                        "A is %s and b is %s (whole numbers are read as float64): wanted both float32 or both float64",
                        dpcr_dtype_name(from->dtype), dpcr_dtype_name(b->dtype));
    *shape = (dpcr_chain_shape){
        .size = sizeof *shape,
        .length = b->shape[0],
        .batch = b->shape[1],
        .transition = pattern ? dpcr_transition_csr(pattern) : dpcr_transition_square(structure, w, block),
        .dtype = b->dtype,
        .transposed = transposed};
    *a = dpcr_array_make(from->data, from->dtype, 3,
                         (const int64_t[]){n[0], n[1], dpcr_transition_values(&shape->transition)});
    return CLI_DONE;
}

int cli_linear_start(const dpcr_array *from, const dpcr_chain_shape *shape, dpcr_array *z0) {
    const int64_t wanted[] = {shape->batch, shape->transition.rows};
    const bool pair = from->ndim == 2 && from->shape[0] == wanted[0] && from->shape[1] == wanted[1];
    const bool single = from->ndim == 1 && wanted[0] == 1 && from->shape[0] == wanted[1];
    char text[96];
    snprintf(text, sizeof text, "[%lld][%lld], as b has", (long long)wanted[0], (long long)wanted[1]);
    if (!pair && !single) return wrong_shape("z0", from, text);
    if (from->dtype != shape->dtype)
        return cli_fail(CLI_INPUT, "z0 is %s and b is %s (whole numbers are read as float64): wanted the same",
                        dpcr_dtype_name(from->dtype), dpcr_dtype_name(shape->dtype));
    *z0 = dpcr_array_make(from->data, from->dtype, 2, wanted);
    return CLI_DONE;
}

// ---- solving and writing ----

const char *cli_linear_in_order(int64_t finished_from, int64_t length, char text[64]) {
    text[0] = 0;
    if (finished_from < length) snprintf(text, 64, ", finished in order from step %lld", (long long)finished_from);
    return text;
}

static int tell(const solve *s, const dpcr_chain_shape *shape, const dpcr_chain_plan *plan,
                const dpcr_chain_report *report, const cli_device_times *times) {
    char in_order[64];
    cli_result r = cli_result_create();
    cli_set_int(&r, "length", shape->length);
    cli_set_int(&r, "batch", shape->batch);
    cli_set_int(&r, "width", shape->transition.rows);
    cli_set_text(&r, "structure", dpcr_structure_name(shape->transition.structure));
    if (shape->transition.structure == DPCR_CSR) cli_set_int(&r, "entries", dpcr_transition_values(&shape->transition));
    cli_set_text(&r, "dtype", dpcr_dtype_name(shape->dtype));
    cli_set_bool(&r, "transposed", shape->transposed != 0);
    cli_set_text(&r, "scheme", dpcr_scheme_name(report->scheme));
    cli_set_int(&r, "sweeps", report->sweeps);
    cli_set_int(&r, "finished_from", report->finished_from);
    cli_set_int(&r, "compositions", report->compositions);
    cli_set_int(&r, "applications", report->applications);
    cli_set_int(&r, "depth", report->depth);
    cli_set_real(&r, "seconds", report->seconds);
    cli_set_int(&r, "workspace_bytes", (json_int_t)dpcr_chain_plan_workspace(plan));
    if (times) {
        cli_set_real(&r, "seconds_to_device", times->to_device);
        cli_set_real(&r, "seconds_solve", times->solve);
        cli_set_real(&r, "seconds_to_host", times->to_host);
    }
    cli_set_text(&r, "sentence", s->why);
    cli_set_text(&r, "output", s->output);
    cli_say(&s->common, "%lld step%s, batch %lld, width %lld, %s: %s%s, depth %lld, %.3g s, in '%s'\n",
            (long long)shape->length, cli_s(shape->length), (long long)shape->batch, (long long)shape->transition.rows,
            dpcr_structure_name(shape->transition.structure), dpcr_scheme_name(report->scheme),
            cli_linear_in_order(report->finished_from, shape->length, in_order), (long long)report->depth,
            report->seconds, s->output);
    const int status = cli_finish(&s->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

// Chunks whose products lost what the states keep are done again from b, so the states may not take its place.
static bool needs_b(const dpcr_chain_plan *plan) { return dpcr_chain_plan_scheme(plan) == DPCR_SCHEME_CHUNKED; }

static size_t array_bytes(const dpcr_array *x) { return (size_t)cli_array_count(x) * dpcr_dtype_size(x->dtype); }

static int execute(const solve *s, const dpcr_chain_shape *shape, const dpcr_chain_plan *plan, const dpcr_array *a,
                   const dpcr_array *b, const dpcr_array *z0) {
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    const bool apart = needs_b(plan);
    void *workspace = cli_allocate(bytes);
    if (!workspace) return cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", bytes);
    dpcr_chain_report report = {.size = sizeof report};
    dpcr_error error = {0};
    dpcr_array z = *b;  // the states take the place of b, so nothing else of that size is needed
    if (apart && !(z.data = cli_allocate(array_bytes(b)))) {
        cli_release(workspace);
        return cli_fail(CLI_RESOURCES, "not enough memory for %zu bytes of states", array_bytes(b));
    }
    int status = dpcr_chain_execute(plan, a, b, z0, &z, workspace, bytes, &report, &error) == DPCR_OK
                     ? CLI_DONE
                     : cli_fail_error(&error, CLI_COMPUTING);
    cli_release(workspace);
    if (!status) status = cli_array_write(s->output, "z", &z);
    if (apart) cli_release(z.data);
    return status ? status : tell(s, shape, plan, &report, NULL);
}

static int execute_on_device(const solve *s, const dpcr_chain_shape *shape, const dpcr_chain_plan *plan,
                             const dpcr_array *a, const dpcr_array *b, const dpcr_array *z0) {
    cli_device_times times = {0};
    int status = cli_linear_on_device(s, plan, a, b, z0, &times);
    if (!status) status = cli_array_write(s->output, "z", b);
    const dpcr_chain_report report = {.size = sizeof report,
                                      .scheme = dpcr_chain_plan_scheme(plan),
                                      .sweeps = 1,
                                      .finished_from = shape->length,
                                      .seconds = times.to_device + times.solve + times.to_host};
    return status ? status : tell(s, shape, plan, &report, &times);
}

// Over the device's workspace: a refusal, or with --device auto a reason to stay.
static dpcr_status check_limit(const solve *s, const dpcr_chain_plan *plan, dpcr_error *error) {
    const size_t bytes = dpcr_chain_plan_workspace(plan);
    if (!s->memory_limit || bytes <= s->memory_limit) return DPCR_OK;
    error->status = DPCR_ERROR_MEMORY;
    snprintf(error->text, sizeof error->text, "a workspace of %zu bytes on the device, the limit is %zu", bytes,
             s->memory_limit);
    return DPCR_ERROR_MEMORY;
}

static dpcr_status plan_there(dpcr_context *context, const solve *s, const dpcr_chain_shape *shape, const dpcr_array *a,
                              const dpcr_array *b, const dpcr_array *z0, dpcr_chain_plan **plan, dpcr_error *error) {
    dpcr_chain_options there = s->options;
    there.device = s->common.device;
    dpcr_status status = dpcr_chain_plan_create(context, shape, &there, plan, error);
    if (status == DPCR_OK) status = check_limit(s, *plan, error);
    if (status == DPCR_OK && s->common.device_auto) status = cli_linear_fits(*plan, a, b, z0, there.device, error);
    return status;
}

int cli_linear_plan(dpcr_context *context, const dpcr_chain_shape *shape, const dpcr_chain_options *options,
                    size_t limit, dpcr_chain_plan **plan, char why[CLI_WHY]) {
    dpcr_chain_options loop = *options;
    dpcr_error error = {0};
    const bool any = options->scheme == DPCR_SCHEME_AUTO;
    if (dpcr_chain_plan_create(context, shape, options, plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    snprintf(why, CLI_WHY, "%s", dpcr_chain_plan_sentence(*plan));
    // The loop that auto takes may still keep room for another way that it looks at first.
    const char *scheme = any ? "auto" : dpcr_scheme_name(options->scheme);
    size_t bytes = dpcr_chain_plan_workspace(*plan);
    if (!limit || bytes <= limit) return CLI_DONE;
    dpcr_chain_plan_destroy(*plan);
    *plan = NULL;
    loop.scheme = DPCR_SCHEME_SEQUENTIAL;
    if (any) {
        if (dpcr_chain_plan_create(context, shape, &loop, plan, &error) != DPCR_OK)
            return cli_fail_error(&error, CLI_COMPUTING);
        snprintf(why, CLI_WHY, "sequential: %s needs a workspace of %zu bytes, the limit is %zu", scheme, bytes, limit);
        bytes = dpcr_chain_plan_workspace(*plan), scheme = "sequential, the least of all,";
        if (bytes <= limit) return CLI_DONE;
    }
    return cli_fail(CLI_RESOURCES, "%s needs a workspace of %zu bytes, the limit is %zu", scheme, bytes, limit);
}

// An option that counts on processors alone, for such a chain; NULL: none is given.
static const char *of_processors(const solve *s, const dpcr_transition *t) {
    if (s->options.tolerance > 0) return "--tolerance, which is of overlap,";
    return s->options.chunk && cli_linear_in_one_pass(t) ? "--chunk, but of csr and of what is wider than 16," : NULL;
}

// A chain is solved once here: what memory costs that nobody has touched yet counts. The loop needs none, unless it may
// go in chunks where the chain forgets, for which nobody says what that gains: at most all that it takes.
static int weigh_memory(dpcr_context *context, solve *s, const dpcr_chain_shape *shape, const dpcr_array *b,
                        dpcr_chain_plan **plan) {
    const double touch = 0.25e-9;  // seconds a byte: a page takes a microsecond
    const dpcr_scheme taken = dpcr_chain_plan_scheme(*plan);
    const bool looped = taken == DPCR_SCHEME_SEQUENTIAL;
    if (s->options.scheme != DPCR_SCHEME_AUTO || (looped && dpcr_chain_plan_workspace(*plan) == 0)) return CLI_DONE;
    dpcr_chain_options options = s->options;
    dpcr_chain_plan *loop = NULL;
    dpcr_error error = {0};
    options.scheme = DPCR_SCHEME_SEQUENTIAL;
    if (dpcr_chain_plan_create(context, shape, &options, &loop, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const double gain = dpcr_chain_plan_seconds(loop) - (looped ? 0 : dpcr_chain_plan_seconds(*plan));
    const double room = touch * (double)((needs_b(*plan) ? array_bytes(b) : 0) + dpcr_chain_plan_workspace(*plan));
    if (gain > room) {
        dpcr_chain_plan_destroy(loop);
        return CLI_DONE;
    }
    dpcr_chain_plan_destroy(*plan);
    *plan = loop;
    snprintf(s->why, sizeof s->why, "sequential: in b's place; %s would gain %s %.3g us, and its memory take %.3g us",
             dpcr_scheme_name(looped ? DPCR_SCHEME_OVERLAP : taken), looped ? "at most" : "about",
             gain > 0 ? 1e6 * gain : 0, 1e6 * room);
    return CLI_DONE;
}

// --device auto stays where the device would not pay, its kernels do not serve the chain, or it needs too much there.
static int make_plan(dpcr_context *context, solve *s, const dpcr_chain_shape *shape, const dpcr_array *a,
                     const dpcr_array *b, const dpcr_array *z0, dpcr_chain_plan **plan) {
    dpcr_error error = {0};
    cli_common *c = &s->common;
    bool on_device = c->device.type == DPCR_CUDA;
    const char *const here = on_device ? of_processors(s, &shape->transition) : NULL;
    if (here && !c->device_auto)
        return cli_fail(CLI_USAGE, "--device %.20s: %s counts on processors alone", c->device_given, here);
    if (here) cli_device_decide("cpu: %s counts on processors alone", here);
    if (here) on_device = false;
    const bool serves = on_device && plan_there(context, s, shape, a, b, z0, plan, &error) == DPCR_OK;
    if (serves && (!c->device_auto || cli_linear_pays(s, context, shape, a, b))) {
        snprintf(s->why, sizeof s->why, "%s", dpcr_chain_plan_sentence(*plan));
        return CLI_DONE;
    }
    dpcr_chain_plan_destroy(*plan);
    *plan = NULL;
    if (on_device && !serves && !c->device_auto) return cli_fail_error(&error, CLI_COMPUTING);
    if (on_device && !serves) cli_device_decide("cpu: %.380s", error.text);
    c->device = (dpcr_device){0};
    const int status = cli_linear_plan(context, shape, &s->options, s->memory_limit, plan, s->why);
    return status ? status : weigh_memory(context, s, shape, b, plan);
}

// Chunks are products, which csr does not form, or auto's own.
static int refuse_pattern(const solve *s, bool csr) {
    if (!csr || !s->options.chunk || s->options.scheme != DPCR_SCHEME_AUTO || s->common.device.type == DPCR_CUDA)
        return CLI_DONE;
    return cli_fail(CLI_USAGE,
                    "--chunk beside scheme auto of csr transitions, which has none; wanted --scheme overlap");
}

static int run(dpcr_context *context, solve *s) {
    inputs in = {0};
    dpcr_chain_shape shape = {0};
    dpcr_array a = {0}, z0 = {0};
    dpcr_chain_plan *plan = NULL;
    dpcr_pattern *pattern = NULL;
    int status = read_inputs(context, s, &in);
    if (!status && in.indptr)
        status = cli_pattern_create(in.indptr, in.indices, in.b->ndim == 3 ? in.b->shape[2] : 0, &pattern);
    if (!status) status = refuse_pattern(s, pattern != NULL);
    if (!status) status = cli_linear_shape(in.a, in.b, pattern, s->transposed, &shape, &a);
    if (!status && in.z0) status = cli_linear_start(in.z0, &shape, &z0);
    if (!status) status = make_plan(context, s, &shape, &a, in.b, in.z0 ? &z0 : NULL, &plan);
    if (!status && s->common.device.type == DPCR_CUDA)
        status = execute_on_device(s, &shape, plan, &a, in.b, in.z0 ? &z0 : NULL);
    else if (!status)
        status = execute(s, &shape, plan, &a, in.b, in.z0 ? &z0 : NULL);
    dpcr_chain_plan_destroy(plan);
    cli_pattern_destroy(pattern);
    for (int i = 0; i < 5; i++) dpcr_tensors_free(context, &in.files[i]);
    return status;
}

static int count_stdin(const solve *s) {
    const char *paths[] = {s->a, s->b, s->z0, s->indptr, s->indices};
    int n = 0;
    for (int i = 0; i < 5; i++) n += paths[i] && !strcmp(paths[i], "-");
    return n;
}

// The ranks: those of mpirun, or threads.
static int refuse_ranks(solve *s) {
    const int64_t world = cli_world_size();
    if (world > 1 && s->scheme_given && !s->distributed)
        return cli_fail(CLI_USAGE, "--scheme %s, but started as %lld processes; wanted --scheme distributed",
                        dpcr_scheme_name(s->options.scheme), (long long)world);
    if (world > 1 && s->ranks && s->ranks != world)
        return cli_fail(CLI_USAGE, "--ranks %lld, but started as %lld processes", (long long)s->ranks,
                        (long long)world);
    if (world > 1) s->distributed = true;
    if (!s->distributed) {
        if (s->ranks || s->scan_given || s->deadline > 0)
            return cli_fail(CLI_USAGE, "--ranks, --scan and --deadline are for --scheme distributed");
        return CLI_DONE;
    }
    if (!s->ranks) s->ranks = cli_world_launched() ? world : 2;
    if (s->scan == DPCR_SCAN_TRANSPORT && world == 1)
        return cli_fail(CLI_USAGE, "--scan mpi, but not started by mpirun; wanted --scan messages");
    if (s->common.device.type == DPCR_CUDA && !s->common.device_auto)
        return cli_fail(CLI_USAGE, "--device %.20s over ranks, which compute on processors", s->common.device_given);
    if (s->common.device_auto) cli_device_decide("cpu: ranks compute on processors");
    if (s->options.levels || s->options.warm_up || s->options.tolerance > 0 || s->options.max_sweeps || s->memory_limit)
        return cli_fail(CLI_USAGE,
                        "--levels, --run-up, --tolerance, --max-sweeps and --memory-limit are of other schemes");
    if (s->indptr || s->indices)
        return cli_fail(CLI_USAGE, "--indptr over ranks, whose summaries are products, which csr does not form");
    const char *paths[] = {s->a, s->b, s->z0, s->output};
    for (int i = 0; i < 4; i++)
        if (!cli_ranks_share(paths[i]))
            return cli_fail(CLI_USAGE, "'%s' over ranks, who each read and write their part: wanted a .npy file",
                            paths[i]);
    if (s->input)
        return cli_fail(CLI_USAGE, "--input over ranks, who each read their part: wanted .npy by --A and --b");
    return CLI_DONE;
}

// An option that the named scheme has not would be believed to count. auto may take chunks, or overlap by what it sees.
static int refuse_options(const solve *s) {
    const dpcr_scheme scheme = s->options.scheme;
    const bool any = scheme == DPCR_SCHEME_AUTO, overlaps = any || scheme == DPCR_SCHEME_OVERLAP;
    const struct {
        const char *option, *wanted;
        bool wrong;
    } all[] = {
        {"--chunk", "chunked, overlap or auto", s->options.chunk && !overlaps && scheme != DPCR_SCHEME_CHUNKED},
        {"--run-up", "overlap", s->options.warm_up && scheme != DPCR_SCHEME_OVERLAP},
        {"--tolerance", "overlap or auto", s->options.tolerance > 0 && !overlaps},
        {"--max-sweeps", "overlap", s->options.max_sweeps && scheme != DPCR_SCHEME_OVERLAP},
        {"--levels", "blelloch", s->options.levels && scheme != DPCR_SCHEME_BLELLOCH},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].wrong)
            return cli_fail(CLI_USAGE, "%s beside scheme %s, which has none; wanted --scheme %s", all[i].option,
                            dpcr_scheme_name(scheme), all[i].wanted);
    return CLI_DONE;
}

#define KINDS "linear, rnn, rnn-relu, gru, lstm, paragru, paralstm, mingru, biquads, selective and attention"
static int refuse(solve *s, const char *kind) {
    if (!kind || strcmp(kind, "linear") != 0)
        return cli_fail(CLI_USAGE, "%s%.60s%s", kind ? "no kind of chain '" : "which kind of chain? there are " KINDS,
                        kind ? kind : "", kind ? "'; there are " KINDS : "");
    if (s->input && (s->a || s->b || s->z0 || s->indptr || s->indices))
        return cli_fail(CLI_USAGE, "--input holds A, b, z0 and a pattern: wanted it or --A, --b and the others");
    if (!s->indptr != !s->indices)
        return cli_fail(CLI_USAGE, "%s: a pattern is both --indptr and --indices",
                        s->indptr ? "--indptr without --indices" : "--indices without --indptr");
    if (!s->input && !s->a) return cli_fail(CLI_USAGE, "no --A: wanted --A FILE and --b FILE, or --input FILE.npz");
    if (!s->input && !s->b) return cli_fail(CLI_USAGE, "no --b: wanted --A FILE and --b FILE, or --input FILE.npz");
    if (!s->output) return cli_fail(CLI_USAGE, "no --output: wanted a file, or '-' for standard output");
    if (s->z0 && s->transposed)
        return cli_fail(CLI_USAGE, "--z0 beside --transposed: that chain starts with the last b alone");
    if (count_stdin(s) > 1) return cli_fail(CLI_USAGE, "standard input ('-') holds one array only");
    if (!cli_array_place(s->output)) return CLI_USAGE;
    const cli_file written[] = {{"--output", s->output}, {"--csv", s->common.csv}};
    const cli_file read[] = {{"--input", s->input}, {"--A", s->a},           {"--b", s->b},
                             {"--z0", s->z0},       {"--indptr", s->indptr}, {"--indices", s->indices}};
    if (!cli_outputs_settle(&s->common, written, 2, read, 6)) return CLI_USAGE;
    int status = refuse_ranks(s);
    if (status || s->distributed) return status;
    status = refuse_options(s);
    if (status) return status;
    if (!cli_is_stdout(s->output) && !cli_writable("the output", s->output)) return CLI_RESOURCES;
    return CLI_DONE;
}

static bool names_recurrent(const char *word) {
    dpcr_recurrent_kind kind;
    return dpcr_recurrent_kind_find(word, &kind, NULL) == DPCR_OK;
}

// Kinds with a program of their own, which one process runs.
static const struct single {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} singles[] = {{"biquads", "biquads", cli_solve_biquads},
               {"selective", "selective scans", cli_solve_selective},
               {"attention", "attention scans", cli_solve_attention}};

static const struct single *find_single(const char *word) {
    for (size_t i = 0; i < sizeof singles / sizeof singles[0]; i++)
        if (strcmp(word, singles[i].name) == 0) return &singles[i];
    return NULL;
}

static bool names_single(const char *word) { return find_single(word) != NULL; }

static bool names_linear(const char *word) { return strcmp(word, "linear") == 0; }

static bool names_another(const char *word) { return names_recurrent(word) || names_linear(word); }

int cli_verb_solve(int argc, char **argv) {
    cli_silence(cli_world_rank() > 0);  // until the ranks do different things, one line is enough
    if (cli_name_first(argc, argv, names_single, names_another)) {
        const struct single *kind = find_single(argv[1]);
        if (cli_world_size() > 1)
            return cli_fail(CLI_USAGE, "%s run in one process, but started as %lld", kind->text,
                            (long long)cli_world_size());
        return kind->run(argc - 1, argv + 1);
    }
    if (cli_name_first(argc, argv, names_recurrent, names_linear)) return cli_solve_recurrent(argc - 1, argv + 1);
    solve s = {.common = CLI_COMMON_DEFAULTS, .options = {.size = sizeof(dpcr_chain_options)}};
    s.common.serves_devices = true;
    const cli_syntax syntax = {
        .arguments = "linear|rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru|biquads|selective|attention",
        .doc =
            "Solves the linear chain z_l = A_l z_{l-1} + b_l, l = 0..L-1, from an initial state z0, all steps at once "
            "or by "
            "the loop, with the same result; or runs a recurrent network ('deeppcr solve gru --help') or a filter "
            "('deeppcr solve biquads --help').\vFiles are npy "
            "or npz arrays of float32 or float64, all of one type; "
            "'FILE.npz:NAME' is a member, '-' standard input. A NaN stays in its own sequence.",
        .groups = {{&solve_argp, &s, "Chain:"}, {&cli_common_argp, &s.common, "Output and resources:"}},
        .most = 1};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if ((status = refuse(&s, positional[0]))) return status;
    if (s.distributed) return cli_solve_linear_ranks(&s);
    dpcr_context *context = cli_context_create(&s.common, &status);
    if (!context) return status;
    status = run(context, &s);
    dpcr_context_destroy(context);
    return status;
}
