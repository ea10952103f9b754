// SPDX-License-Identifier: MIT
// solve selective: the selective scan of state-space models over the arrays of an npz file, and back.
#include "scan.h"

enum { KEY_SOFTPLUS = CLI_SCAN_OWN };

typedef struct selective {
    cli_scan scan;
    bool softplus;
} selective;

static const struct argp_option selective_options[] = {
    {"input", CLI_SCAN_INPUT, "FILE.npz", 0,
     "Members u, delta [B][D][L], A [D][N], B, C [B][N][L], [B][G][N][L] or [D][N], and where they are there D, "
     "delta_bias [D], z [B][D][L], h0 [B][D][N]",
     0},
    {"softplus", KEY_SOFTPLUS, NULL, 0, "The steps are softplus(delta + delta_bias)", 0},
    {"output", CLI_SCAN_OUTPUT, "FILE", 0, "y [B][D][L]: .npy, .npz, or '-' for npy on standard output", 0},
    {"final", CLI_SCAN_FINAL, "FILE", 0, "Last states [B][D][N], the next piece's h0", 0},
    {"grad-output", CLI_SCAN_GRAD_OUTPUT, "FILE", 0, "A loss's gradient by y, in its shape: go back", 0},
    {"grad-final", CLI_SCAN_GRAD_FINAL, "FILE", 0, "Gradient of the loss by the last states", 0},
    {"grads", CLI_SCAN_GRADS, "FILE", 0, "The gradients by the members' names: .npz, else safetensors", 0},
    {0},
};

static error_t parse_selective(int key, char *arg, struct argp_state *state) {
    selective *s = state->input;
    if (key != KEY_SOFTPLUS) return cli_scan_parse(key, arg, &s->scan);
    s->softplus = true;
    return 0;
}

static const struct argp selective_argp = {selective_options, parse_selective, NULL, NULL, NULL, NULL, NULL};

// ---- what it works on ----

enum { U, DELTA, A, B, C, D, Z, DELTA_BIAS, H0, MEMBERS, NEEDED = D };
static const char *const names[MEMBERS] = {"u", "delta", "A", "B", "C", "D", "z", "delta_bias", "h0"};

typedef struct work {
    cli_scan *scan;
    const dpcr_array **given;  // the scan's
    dpcr_array *gradients;     // the scan's
    bool softplus;
    int64_t batch, channels, length, states, groups;
    dpcr_array views[MEMBERS];  // as the library takes them
} work;

// B or C, or their gradient, as [B][G][N][L]: of what is constant in time by strides of 0, which sum gradients.
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

static int take_groups(work *w) {
    char wanted[192];
    snprintf(wanted, sizeof wanted, "[%lld][%lld][%lld], [%lld][G][%lld][%lld] where G divides %lld, or [%lld][%lld]",
             (long long)w->batch, (long long)w->states, (long long)w->length, (long long)w->batch, (long long)w->states,
             (long long)w->length, (long long)w->channels, (long long)w->channels, (long long)w->states);
    for (int i = B; i <= C; i++)
        if (!view_groups(w, w->given[i], &w->views[i])) return cli_scan_wrong(names[i], w->given[i], wanted);
    const int64_t b = w->views[B].shape[1], c = w->views[C].shape[1];
    w->groups = b > c ? b : c;
    return CLI_DONE;
}

static int take_shapes(work *w) {
    const dpcr_array *u = w->given[U], *a = w->given[A];
    if (u->ndim != 3 || u->shape[1] < 1) return cli_scan_wrong("u", u, "[B][D][L], D at least 1");
    w->batch = u->shape[0], w->channels = u->shape[1], w->length = u->shape[2];
    if (a->ndim != 2 || a->shape[0] != w->channels || a->shape[1] < 1)
        return cli_scan_wrong("A", a, "[D][N], D as u has, N at least 1");
    w->states = a->shape[1];
    const int64_t states[] = {w->batch, w->channels, w->states};
    for (int i = 0; i < MEMBERS; i++) {
        if (w->given[i]) w->views[i] = *w->given[i];
        const int64_t *shape = i == H0 ? states : i == D || i == DELTA_BIAS ? u->shape + 1 : u->shape;
        if (i != A && i != B && i != C &&
            cli_scan_check(names[i], w->given[i], i == D || i == DELTA_BIAS ? 1 : 3, shape))
            return CLI_INPUT;
    }
    return take_groups(w);
}

// ---- running ----

static dpcr_selective structure_of(const work *w) {
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
                            .softplus = w->softplus};
}

static int run_back(work *w, const dpcr_selective *in) {
    cli_scan *scan = w->scan;
    dpcr_array views[MEMBERS];
    const dpcr_array *at[MEMBERS];
    dpcr_error error = {0};
    for (int i = 0; i < MEMBERS; i++) {
        views[i] = w->gradients[i];
        if (i == B || i == C) view_groups(w, &w->gradients[i], &views[i]);
        at[i] = w->given[i] ? &views[i] : NULL;
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
    if (dpcr_selective_adjoint(scan->context, in, scan->by_output, scan->by_last, scan->kept, &out, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    scan->back_seconds = cli_now() - start;
    return CLI_DONE;
}

static int run_passes(work *w) {
    cli_scan *scan = w->scan;
    const dpcr_selective in = structure_of(w);
    dpcr_error error = {0};
    const int status = cli_scan_keep(scan, dpcr_selective_kept_bytes(&in));
    if (status) return status;
    const double start = cli_now();
    if (dpcr_selective_scan(scan->context, &in, &scan->y, &scan->last, scan->kept, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    scan->seconds = cli_now() - start;
    return cli_scan_goes_back(scan) ? run_back(w, &in) : CLI_DONE;
}

static int tell(const work *w) {
    char line[160];
    cli_result r = cli_result_create();
    cli_set_text(&r, "dtype", dpcr_dtype_name(w->given[U]->dtype));
    cli_set_int(&r, "batch", w->batch);
    cli_set_int(&r, "channels", w->channels);
    cli_set_int(&r, "length", w->length);
    cli_set_int(&r, "states", w->states);
    cli_set_int(&r, "groups", w->groups);
    cli_set_bool(&r, "softplus", w->softplus);
    snprintf(line, sizeof line, "%lld step%s of %lld channel%s of %lld state%s, batch %lld", (long long)w->length,
             cli_s(w->length), (long long)w->channels, cli_s(w->channels), (long long)w->states, cli_s(w->states),
             (long long)w->batch);
    return cli_scan_tell(w->scan, &r, line);
}

static int run(selective *s) {
    cli_scan *scan = &s->scan;
    work w = {.scan = scan, .given = scan->given, .gradients = scan->gradients, .softplus = s->softplus};
    int status = cli_scan_read(scan);
    if (!status) status = take_shapes(&w);
    if (!status) status = cli_scan_create(scan, 3, w.given[U]->shape, (const int64_t[]){w.batch, w.channels, w.states});
    if (!status) status = run_passes(&w);
    if (!status) status = cli_scan_write(scan, "y", "h0");
    return status ? status : tell(&w);
}

int cli_solve_selective(int argc, char **argv) {
    selective s = {.scan = {.names = names, .count = MEMBERS, .needed = NEEDED, .common = CLI_COMMON_DEFAULTS}};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Runs the selective scan of state-space models (Mamba) over arrays of a file: h = exp(t A) h + t B u, y = "
            "(C h + D u) silu(z), t = delta + delta_bias; with a gradient by what comes out, back as well.\vAll arrays "
            "are float32 or all float64. Channels fill the lanes of vectors and go over the threads; the length is "
            "walked.",
        .groups = {{&selective_argp, &s, "Scan:"}, {&cli_common_argp, &s.scan.common, "Output and resources:"}},
        .most = 0};
    int status;
    if (!cli_scan_begin(&s.scan, &syntax, argc, argv, &status)) return status;
    status = run(&s);
    cli_scan_release(&s.scan);
    return status;
}
