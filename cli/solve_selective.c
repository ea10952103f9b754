// SPDX-License-Identifier: MIT
// solve selective: the selective scan of state-space models over the arrays of an npz file, and back.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { KEY_INPUT = 0x7000, KEY_OUTPUT, KEY_FINAL, KEY_GRAD_OUTPUT, KEY_GRAD_FINAL, KEY_GRADS, KEY_SOFTPLUS };

typedef struct selective {
    cli_common common;
    const char *input, *output, *final, *grad_output, *grad_final, *grads;
    bool softplus;
} selective;

static const struct argp_option selective_options[] = {
    {"input", KEY_INPUT, "FILE.npz", 0,
     "Members u, delta [B][D][L], A [D][N], B, C [B][N][L], [B][G][N][L] or [D][N], and where they are there D, "
     "delta_bias [D], z [B][D][L], h0 [B][D][N]",
     0},
    {"softplus", KEY_SOFTPLUS, NULL, 0, "The steps are softplus(delta + delta_bias)", 0},
    {"output", KEY_OUTPUT, "FILE", 0, "y [B][D][L]: .npy, .npz, or '-' for npy on standard output", 0},
    {"final", KEY_FINAL, "FILE", 0, "Last states [B][D][N], the next piece's h0", 0},
    {"grad-output", KEY_GRAD_OUTPUT, "FILE", 0, "A loss's gradient by y, in its shape: go back", 0},
    {"grad-final", KEY_GRAD_FINAL, "FILE", 0, "The same by the last states", 0},
    {"grads", KEY_GRADS, "FILE", 0, "The gradients by the members' names: .npz, else safetensors", 0},
    {0},
};

static error_t parse_selective(int key, char *arg, struct argp_state *state) {
    selective *s = state->input;
    switch (key) {
        case KEY_INPUT: s->input = arg; return 0;
        case KEY_SOFTPLUS: s->softplus = true; return 0;
        case KEY_OUTPUT: s->output = arg; return 0;
        case KEY_FINAL: s->final = arg; return 0;
        case KEY_GRAD_OUTPUT: s->grad_output = arg; return 0;
        case KEY_GRAD_FINAL: s->grad_final = arg; return 0;
        case KEY_GRADS: s->grads = arg; return 0;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp selective_argp = {selective_options, parse_selective, NULL, NULL, NULL, NULL, NULL};

// ---- what it works on ----

enum { U, DELTA, A, B, C, D, Z, DELTA_BIAS, H0, MEMBERS, NEEDED = D };
static const char *const names[MEMBERS] = {"u", "delta", "A", "B", "C", "D", "z", "delta_bias", "h0"};

typedef struct work {
    dpcr_context *context;
    dpcr_tensors file, gradient_files[2];
    const dpcr_array *given[MEMBERS], *gy, *glast;
    int64_t batch, channels, length, states, groups;
    dpcr_array views[MEMBERS];      // as the library takes them
    dpcr_array y, last, no_gy;      // no_gy: zeros in the place of a gradient by y
    dpcr_array gradients[MEMBERS];  // in the members' shapes
    dpcr_array parts[MEMBERS];      // B's and C's where one number serves several: each one's own
    void *kept;
    double seconds, back_seconds;
} work;

static bool goes_back(const selective *s) { return s->grads != NULL; }

static int wrong(const char *what, const dpcr_array *array, const char *wanted) {
    char text[128] = "[]";
    size_t at = 0;
    for (int i = 0; i < array->ndim && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "[%lld]", (long long)array->shape[i]);
    return cli_fail(CLI_INPUT, "%s has shape %s: wanted %s", what, text, wanted);
}

static int check(const char *what, const dpcr_array *array, int32_t ndim, const int64_t *shape) {
    char wanted[128] = "[]";
    size_t at = 0;
    if (!array) return CLI_DONE;
    bool fits = array->ndim == ndim;
    for (int i = 0; i < ndim && at < sizeof wanted; i++) {
        fits = fits && array->shape[i] == shape[i];
        at += (size_t)snprintf(wanted + at, sizeof wanted - at, "[%lld]", (long long)shape[i]);
    }
    return fits ? CLI_DONE : wrong(what, array, wanted);
}

static int check_dtype(const char *what, const dpcr_array *array, const dpcr_array *u) {
    if (array->dtype == u->dtype && (u->dtype == DPCR_F32 || u->dtype == DPCR_F64)) return CLI_DONE;
    return cli_fail(CLI_INPUT,
                    "%s is %s and u is %s (whole numbers are read as float64): wanted all float32 or all float64", what,
                    dpcr_dtype_name(array->dtype), dpcr_dtype_name(u->dtype));
}

static int read_members(const selective *s, work *w) {
    dpcr_error error = {0};
    if (!cli_readable("the input", s->input)) return CLI_INPUT;
    if (dpcr_npy_read_named(w->context, s->input, names, MEMBERS, &w->file, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    for (int i = 0; i < MEMBERS; i++) {
        const dpcr_tensor *found = dpcr_tensors_find(&w->file, names[i]);
        if (found) w->given[i] = &found->array;
        if (!found && i < NEEDED)
            return cli_fail(CLI_INPUT, "'%s' has no array '%s': wanted u, delta, A, B, C and perhaps others", s->input,
                            names[i]);
    }
    for (int i = 0; i < MEMBERS; i++)
        if (w->given[i] && check_dtype(names[i], w->given[i], w->given[U])) return CLI_INPUT;
    return CLI_DONE;
}

// B or C, or their gradient, as [B][G][N][L].
static bool view_groups(const work *w, const dpcr_array *array, dpcr_array *view) {
    const int64_t *n = array->shape, own = array->ndim == 4 ? n[1] : array->ndim == 3 ? 1 : w->channels;
    *view = dpcr_array_make(array->data, array->dtype, 4, (const int64_t[]){w->batch, own, w->states, w->length});
    if (array->ndim == 2) {
        view->strides[0] = view->strides[3] = 0, view->strides[1] = w->states, view->strides[2] = 1;
        return n[0] == w->channels && n[1] == w->states;
    }
    return (array->ndim == 3 || array->ndim == 4) && n[0] == w->batch && n[array->ndim - 2] == w->states &&
           n[array->ndim - 1] == w->length && own > 0 && w->channels % own == 0;
}

// One group serves as many as there are.
static void share_groups(const work *w, dpcr_array *view) {
    if (view->shape[1] == 1 && w->groups > 1) view->shape[1] = w->groups, view->strides[1] = 0;
}

static int take_groups(work *w) {
    char wanted[192];
    snprintf(wanted, sizeof wanted, "[%lld][%lld][%lld], [%lld][G][%lld][%lld] where G divides %lld, or [%lld][%lld]",
             (long long)w->batch, (long long)w->states, (long long)w->length, (long long)w->batch, (long long)w->states,
             (long long)w->length, (long long)w->channels, (long long)w->channels, (long long)w->states);
    for (int i = B; i <= C; i++)
        if (!view_groups(w, w->given[i], &w->views[i])) return wrong(names[i], w->given[i], wanted);
    const int64_t b = w->views[B].shape[1], c = w->views[C].shape[1];
    if (b != c && b != 1 && c != 1)
        return cli_fail(CLI_INPUT, "B has %lld groups of channels and C %lld: wanted as many, or one", (long long)b,
                        (long long)c);
    w->groups = b > c ? b : c;
    for (int i = B; i <= C; i++) share_groups(w, &w->views[i]);
    return CLI_DONE;
}

static int take_shapes(work *w) {
    const dpcr_array *u = w->given[U], *a = w->given[A];
    if (u->ndim != 3 || u->shape[1] < 1) return wrong("u", u, "[B][D][L], D at least 1");
    w->batch = u->shape[0], w->channels = u->shape[1], w->length = u->shape[2];
    if (a->ndim != 2 || a->shape[0] != w->channels || a->shape[1] < 1)
        return wrong("A", a, "[D][N], D as u has, N at least 1");
    w->states = a->shape[1];
    const int64_t states[] = {w->batch, w->channels, w->states};
    for (int i = 0; i < MEMBERS; i++) {
        if (w->given[i]) w->views[i] = *w->given[i];
        const int64_t *shape = i == H0 ? states : i == D || i == DELTA_BIAS ? u->shape + 1 : u->shape;
        if (i != A && i != B && i != C && check(names[i], w->given[i], i == D || i == DELTA_BIAS ? 1 : 3, shape))
            return CLI_INPUT;
    }
    return take_groups(w);
}

static int read_gradients(const selective *s, work *w) {
    const char *const paths[] = {s->grad_output, s->grad_final};
    const char *const options[] = {"grad-output", "grad-final"}, *const whats[] = {"--grad-output", "--grad-final"};
    const dpcr_array **const to[] = {&w->gy, &w->glast};
    const int64_t states[] = {w->batch, w->channels, w->states};
    for (int i = 0; i < 2; i++) {
        if (!paths[i]) continue;
        int status = cli_array_read(w->context, options[i], paths[i], &w->gradient_files[i], to[i]);
        if (!status) status = check_dtype(whats[i], *to[i], w->given[U]);
        if (!status) status = check(whats[i], *to[i], 3, i ? states : w->given[U]->shape);
        if (status) return status;
    }
    return CLI_DONE;
}

// ---- running ----

static int make_gradients(work *w) {
    const dpcr_dtype dtype = w->given[U]->dtype;
    for (int i = 0; i < MEMBERS; i++)
        if (w->given[i] && !cli_array_create(dtype, w->given[i]->ndim, w->given[i]->shape, &w->gradients[i]))
            return CLI_RESOURCES;
    for (int i = B; i <= C; i++) {
        const dpcr_array *v = &w->views[i];
        const bool shared = w->given[i]->ndim == 2 || (v->shape[1] > 1 && v->strides[1] == 0);
        if (shared && !cli_array_create(dtype, 4, v->shape, &w->parts[i])) return CLI_RESOURCES;
    }
    if (w->gy) return CLI_DONE;
    if (!cli_array_create(dtype, 1, (const int64_t[]){1}, &w->no_gy)) return CLI_RESOURCES;
    w->no_gy = dpcr_array_make(w->no_gy.data, dtype, 3, w->given[U]->shape);
    memset(w->no_gy.strides, 0, sizeof w->no_gy.strides);
    w->gy = &w->no_gy;
    return CLI_DONE;
}

static int make_arrays(const selective *s, work *w) {
    const int64_t states[] = {w->batch, w->channels, w->states};
    if (!cli_array_create(w->given[U]->dtype, 3, w->given[U]->shape, &w->y) ||
        !cli_array_create(w->given[U]->dtype, 3, states, &w->last))
        return CLI_RESOURCES;
    return goes_back(s) ? make_gradients(w) : CLI_DONE;
}

static dpcr_selective structure_of(const selective *s, const work *w) {
    const dpcr_array *at[MEMBERS];
    for (int i = 0; i < MEMBERS; i++) at[i] = w->given[i] ? &w->views[i] : NULL;
    return (dpcr_selective){.size = sizeof(dpcr_selective),
                            .u = at[U],
                            .delta = at[DELTA],
                            .a = at[A],
                            .b = at[B],
                            .c = at[C],
                            .skip = at[D],
                            .z = at[Z],
                            .delta_bias = at[DELTA_BIAS],
                            .h0 = at[H0],
                            .softplus = s->softplus};
}

// The parts' sums, into the gradient of B or C.
static int sum_parts(const work *w, int i) {
    const dpcr_array *parts = &w->parts[i], *to = &w->gradients[i];
    dpcr_array sums, view;
    int64_t at = 0;
    if (!cli_array_create(DPCR_F64, to->ndim, to->shape, &sums)) return CLI_RESOURCES;
    view_groups(w, &sums, &view);
    share_groups(w, &view);
    for (int64_t b = 0; b < w->batch; b++)
        for (int64_t g = 0; g < w->groups; g++)
            for (int64_t n = 0; n < w->states; n++)
                for (int64_t l = 0; l < w->length; l++, at++)
                    ((double *)sums.data)[b * view.strides[0] + g * view.strides[1] + n * view.strides[2] +
                                          l * view.strides[3]] += cli_array_get(parts, at);
    for (int64_t k = 0; k < cli_array_count(to); k++) cli_array_set(to, k, ((const double *)sums.data)[k]);
    cli_array_destroy(&sums);
    return CLI_DONE;
}

static int run_back(work *w, const dpcr_selective *in) {
    dpcr_array views[MEMBERS];
    const dpcr_array *at[MEMBERS];
    dpcr_error error = {0};
    for (int i = 0; i < MEMBERS; i++) {
        views[i] = w->gradients[i];
        if (i == B || i == C) view_groups(w, &w->gradients[i], &views[i]);
        at[i] = !w->given[i] ? NULL : w->parts[i].data ? &w->parts[i] : &views[i];
    }
    const dpcr_selective_gradients out = {.size = sizeof out,
                                          .u = at[U],
                                          .delta = at[DELTA],
                                          .a = at[A],
                                          .b = at[B],
                                          .c = at[C],
                                          .skip = at[D],
                                          .z = at[Z],
                                          .delta_bias = at[DELTA_BIAS],
                                          .h0 = at[H0]};
    const double start = cli_now();
    if (dpcr_selective_adjoint(w->context, in, w->gy, w->glast, w->kept, &out, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    int status = CLI_DONE;
    for (int i = B; !status && i <= C; i++)
        if (w->parts[i].data) status = sum_parts(w, i);
    w->back_seconds = cli_now() - start;
    return status;
}

static int run_passes(const selective *s, work *w) {
    const dpcr_selective in = structure_of(s, w);
    const size_t bytes = goes_back(s) ? dpcr_selective_kept_bytes(&in) : 0;
    dpcr_error error = {0};
    if (bytes && !(w->kept = cli_allocate(bytes)))
        return cli_fail(CLI_RESOURCES, "not enough memory for %zu bytes of states", bytes);
    const double start = cli_now();
    if (dpcr_selective_scan(w->context, &in, &w->y, &w->last, w->kept, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    w->seconds = cli_now() - start;
    return goes_back(s) ? run_back(w, &in) : CLI_DONE;
}

// ---- results ----

static int write_gradients(const selective *s, const work *w) {
    enum { NAME = 16 };
    char text[MEMBERS][NAME];
    dpcr_tensor items[MEMBERS];
    dpcr_tensors all = {.items = items};
    dpcr_error error = {0};
    const char *end = strrchr(s->grads, '.');
    for (int i = 0; i < MEMBERS; i++) {
        if (!w->given[i]) continue;
        snprintf(text[i], NAME, "%s", names[i]);
        items[all.count++] = (dpcr_tensor){.name = text[i], .array = w->gradients[i]};
    }
    const dpcr_status status = end && !strcmp(end, ".npz") ? dpcr_npz_write(s->grads, &all, &error)
                                                           : dpcr_safetensors_write(s->grads, &all, &error);
    return status == DPCR_OK ? CLI_DONE : cli_fail_error(&error, CLI_WRITING);
}

static int tell(const selective *s, const work *w) {
    cli_result r = cli_result_create();
    const int threads = dpcr_context_threads(w->context);
    cli_set_text(&r, "dtype", dpcr_dtype_name(w->given[U]->dtype));
    cli_set_int(&r, "batch", w->batch);
    cli_set_int(&r, "channels", w->channels);
    cli_set_int(&r, "length", w->length);
    cli_set_int(&r, "states", w->states);
    cli_set_int(&r, "groups", w->groups);
    cli_set_bool(&r, "softplus", s->softplus);
    cli_set_int(&r, "threads", threads);
    cli_set_real(&r, "seconds", w->seconds);
    if (goes_back(s)) cli_set_real(&r, "backward_seconds", w->back_seconds);
    if (s->output) cli_set_text(&r, "output", s->output);
    if (!cli_is_stdout(s->output) && !cli_is_stdout(s->final))
        cli_say(&s->common, "%lld steps of %lld channels of %lld states, batch %lld, %d thread%s: %.3g s%s%s%s\n",
                (long long)w->length, (long long)w->channels, (long long)w->states, (long long)w->batch, threads,
                threads == 1 ? "" : "s", w->seconds, goes_back(s) ? ", and back" : "", s->output ? ", in " : "",
                s->output ? s->output : "");
    const int status = cli_finish(&s->common, &r, CLI_DONE);
    cli_result_destroy(&r);
    return status;
}

static void release(work *w) {
    for (int i = 0; i < MEMBERS; i++) {
        if (w->gradients[i].data) cli_array_destroy(&w->gradients[i]);
        if (w->parts[i].data) cli_array_destroy(&w->parts[i]);
    }
    dpcr_array *const made[] = {&w->y, &w->last, &w->no_gy};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (made[i]->data) cli_array_destroy(made[i]);
    if (w->kept) cli_release(w->kept);
    dpcr_tensors_free(w->context, &w->file);
    for (int i = 0; i < 2; i++) dpcr_tensors_free(w->context, &w->gradient_files[i]);
}

static int run(dpcr_context *context, const selective *s) {
    work w = {.context = context};
    int status = read_members(s, &w);
    if (!status) status = take_shapes(&w);
    if (!status) status = read_gradients(s, &w);
    if (!status) status = make_arrays(s, &w);
    if (!status) status = run_passes(s, &w);
    if (!status) status = cli_array_write(s->output, "y", &w.y);
    if (!status) status = cli_array_write(s->final, "h0", &w.last);
    if (!status && goes_back(s)) status = write_gradients(s, &w);
    if (!status) status = tell(s, &w);
    release(&w);
    return status;
}

static int refuse(const selective *s) {
    const char *const outputs[] = {s->output, s->final, s->grads};
    const bool back = s->grad_output || s->grad_final;
    int to_stdout = s->common.json + cli_is_stdout(s->common.csv);
    if (!s->input) return cli_fail(CLI_USAGE, "no --input: wanted an npz file with u, delta, A, B and C");
    if (!strcmp(s->input, "-"))
        return cli_fail(CLI_USAGE, "--input '-': wanted a file, for standard input holds one array only");
    if (!s->output && !s->final && !s->grads)
        return cli_fail(CLI_USAGE, "no --output, --final or --grads: nothing would be kept");
    if (back != goes_back(s))
        return cli_fail(CLI_USAGE, back ? "--grad-output and --grad-final want --grads FILE, where the gradients go"
                                        : "--grads wants --grad-output or --grad-final, where the gradients come from");
    if (s->grad_output && s->grad_final && !strcmp(s->grad_output, "-") && !strcmp(s->grad_final, "-"))
        return cli_fail(CLI_USAGE, "standard input ('-') holds one array only");
    for (size_t i = 0; i < 3; i++) to_stdout += cli_is_stdout(outputs[i]);
    if (cli_is_stdout(s->grads)) return cli_fail(CLI_USAGE, "--grads wants a file");
    if (to_stdout > 1) return cli_fail(CLI_USAGE, "standard output is wanted twice (--json, --csv - or '-')");
    for (size_t i = 0; i < 3; i++)
        if (!cli_array_place(outputs[i])) return CLI_USAGE;
    const cli_file written[] = {
        {"--output", s->output}, {"--final", s->final}, {"--grads", s->grads}, {"--csv", s->common.csv}};
    const cli_file read[] = {{"--input", s->input}, {"--grad-output", s->grad_output}, {"--grad-final", s->grad_final}};
    if (!cli_distinct(written, 4) || !cli_spares(written, 4, read, 3)) return CLI_USAGE;
    for (size_t i = 0; i < 3; i++)
        if (outputs[i] && !cli_is_stdout(outputs[i]) && !cli_writable("the output", outputs[i])) return CLI_RESOURCES;
    return CLI_DONE;
}

int cli_solve_selective(int argc, char **argv) {
    selective s = {.common = CLI_COMMON_DEFAULTS};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Runs the selective scan of state-space models (Mamba) over arrays of a file: h = exp(t A) h + t B u, y = "
            "(C h + D u) silu(z), t = delta + delta_bias; with a gradient by what comes out, back as well.\vAll arrays "
            "are float32 or all float64. Channels fill the lanes of vectors and go over the threads; the length is "
            "walked.",
        .groups = {{&selective_argp, &s, "Scan:"}, {&cli_common_argp, &s.common, "Output and resources:"}},
        .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if ((status = refuse(&s))) return status;
    dpcr_context *context = cli_context_create(&s.common, &status);
    if (!context) return status;
    status = run(context, &s);
    dpcr_context_destroy(context);
    return status;
}
