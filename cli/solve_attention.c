// SPDX-License-Identifier: MIT
// solve attention: linear attention, with the delta rule and gates or without, over the arrays of an npz file, and
// back.
#include <errno.h>
#include <math.h>

#include "scan.h"

enum { KEY_SCALE = CLI_SCAN_OWN };

typedef struct attention {
    cli_scan scan;
    bool scale_given;
    double scale;
} attention;

static const struct argp_option attention_options[] = {
    {"input", CLI_SCAN_INPUT, "FILE.npz", 0,
     "Members q, k [B][L][G][K], v [B][L][H][V], H a multiple of G, and where they are there g [B][L][H] or "
     "[B][L][H][K] (logarithms of decays), beta [B][L][H], s0 [B][H][K][V]",
     0},
    {"scale", KEY_SCALE, "X", 0, "What is read is X S^T q (default 1/sqrt(K))", 0},
    {"output", CLI_SCAN_OUTPUT, "FILE", 0, "o [B][L][H][V]: .npy, .npz, or '-' for npy on standard output", 0},
    {"final", CLI_SCAN_FINAL, "FILE", 0, "Last states [B][H][K][V], the next piece's s0", 0},
    {"grad-output", CLI_SCAN_GRAD_OUTPUT, "FILE", 0, "A loss's gradient by o, in its shape: go back", 0},
    {"grad-final", CLI_SCAN_GRAD_FINAL, "FILE", 0, "Gradient of the loss by the last states", 0},
    {"grads", CLI_SCAN_GRADS, "FILE", 0, "The gradients by the members' names: .npz, else safetensors", 0},
    {0},
};

static error_t parse_attention(int key, char *arg, struct argp_state *state) {
    attention *a = state->input;
    if (key != KEY_SCALE) return cli_scan_parse(key, arg, &a->scan);
    a->scale_given = true;
    return cli_read_double("--scale", arg, -HUGE_VAL, HUGE_VAL, &a->scale) ? 0 : EINVAL;
}

static const struct argp attention_argp = {attention_options, parse_attention, NULL, NULL, NULL, NULL, NULL};

// ---- what it works on ----

enum { Q, K, V, G, BETA, S0, MEMBERS, NEEDED = G };
static const char *const names[MEMBERS] = {"q", "k", "v", "g", "beta", "s0"};

typedef struct work {
    cli_scan *scan;
    int64_t batch, length, groups, heads, keys, values;
    double scale;
} work;

static int take_values(work *w, const dpcr_array *v) {
    char wanted[128];
    w->heads = v->ndim == 4 ? v->shape[2] : 0, w->values = v->ndim == 4 ? v->shape[3] : 0;
    if (w->heads > 0 && w->values > 0 && v->shape[0] == w->batch && v->shape[1] == w->length &&
        w->heads % w->groups == 0)
        return CLI_DONE;
    snprintf(wanted, sizeof wanted, "[%lld][%lld][H][V], H a multiple of %lld, V at least 1", (long long)w->batch,
             (long long)w->length, (long long)w->groups);
    return cli_scan_wrong("v", v, wanted);
}

static int take_decays(const work *w, const dpcr_array *g) {
    const int64_t *n = g ? g->shape : NULL;
    char wanted[192];
    if (!g || ((g->ndim == 3 || (g->ndim == 4 && n[3] == w->keys)) && n[0] == w->batch && n[1] == w->length &&
               n[2] == w->heads))
        return CLI_DONE;
    snprintf(wanted, sizeof wanted, "[%lld][%lld][%lld], or [%lld][%lld][%lld][%lld]", (long long)w->batch,
             (long long)w->length, (long long)w->heads, (long long)w->batch, (long long)w->length, (long long)w->heads,
             (long long)w->keys);
    return cli_scan_wrong("g", g, wanted);
}

static int take_shapes(const attention *a, work *w) {
    const dpcr_array *const *given = w->scan->given, *q = given[Q];
    if (q->ndim != 4 || q->shape[2] < 1 || q->shape[3] < 1)
        return cli_scan_wrong("q", q, "[B][L][G][K], G and K at least 1");
    w->batch = q->shape[0], w->length = q->shape[1], w->groups = q->shape[2], w->keys = q->shape[3];
    w->scale = a->scale_given ? a->scale : 1 / sqrt((double)w->keys);
    int status = cli_scan_check("k", given[K], 4, q->shape);
    if (!status) status = take_values(w, given[V]);
    if (!status) status = take_decays(w, given[G]);
    if (!status) status = cli_scan_check("beta", given[BETA], 3, given[V]->shape);
    if (!status) status = cli_scan_check("s0", given[S0], 4, (const int64_t[]){w->batch, w->heads, w->keys, w->values});
    return status;
}

// ---- running ----

static int run_back(const work *w, const dpcr_attention *in) {
    cli_scan *scan = w->scan;
    const dpcr_array *at[MEMBERS];
    dpcr_error error = {0};
    for (int i = 0; i < MEMBERS; i++) at[i] = scan->given[i] ? &scan->gradients[i] : NULL;
    const dpcr_attention_gradients out = {
        .size = sizeof out, .q = at[Q], .k = at[K], .v = at[V], .g = at[G], .beta = at[BETA], .s0 = at[S0]};
    const double start = cli_now();
    if (dpcr_attention_adjoint(scan->context, in, scan->by_output, scan->by_last, scan->kept, &out, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    scan->back_seconds = cli_now() - start;
    return CLI_DONE;
}

static int run_passes(const work *w) {
    cli_scan *scan = w->scan;
    const dpcr_array *const *at = scan->given;
    const dpcr_attention in = {.size = sizeof in,
                               .q = at[Q],
                               .k = at[K],
                               .v = at[V],
                               .g = at[G],
                               .beta = at[BETA],
                               .s0 = at[S0],
                               .scale = w->scale};
    dpcr_error error = {0};
    const int status = cli_scan_keep(scan, dpcr_attention_kept_bytes(&in));
    if (status) return status;
    const double start = cli_now();
    if (dpcr_attention_scan(scan->context, &in, &scan->y, &scan->last, scan->kept, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);  // what it does not take is the file's
    scan->seconds = cli_now() - start;
    return cli_scan_goes_back(scan) ? run_back(w, &in) : CLI_DONE;
}

static const char *decays_of(const work *w) {
    const dpcr_array *g = w->scan->given[G];
    return !g ? "none" : g->ndim == 3 ? "heads" : "rows";
}

static int tell(const work *w) {
    char line[160];
    cli_result r = cli_result_create();
    cli_set_text(&r, "dtype", dpcr_dtype_name(w->scan->given[Q]->dtype));
    cli_set_int(&r, "batch", w->batch);
    cli_set_int(&r, "length", w->length);
    cli_set_int(&r, "groups", w->groups);
    cli_set_int(&r, "heads", w->heads);
    cli_set_int(&r, "keys", w->keys);
    cli_set_int(&r, "values", w->values);
    cli_set_text(&r, "decays", decays_of(w));
    cli_set_bool(&r, "delta_rule", w->scan->given[BETA] != NULL);
    cli_set_real(&r, "scale", w->scale);
    snprintf(line, sizeof line, "%lld step%s of %lld head%s of %lld x %lld states, batch %lld", (long long)w->length,
             cli_s(w->length), (long long)w->heads, cli_s(w->heads), (long long)w->keys, (long long)w->values,
             (long long)w->batch);
    return cli_scan_tell(w->scan, &r, line);
}

static int run(attention *a) {
    cli_scan *scan = &a->scan;
    work w = {.scan = scan};
    int status = cli_scan_read(scan);
    if (!status) status = take_shapes(a, &w);
    if (!status)
        status = cli_scan_create(scan, 4, scan->given[V]->shape, (const int64_t[]){w.batch, w.heads, w.keys, w.values});
    if (!status) status = run_passes(&w);
    if (!status) status = cli_scan_write(scan, "o", "s0");
    return status ? status : tell(&w);
}

int cli_solve_attention(int argc, char **argv) {
    attention a = {.scan = {.names = names, .count = MEMBERS, .needed = NEEDED, .common = CLI_COMMON_DEFAULTS}};
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Runs linear attention over arrays of a file: S = diag(e^g) S, u = beta (v - S^T k), or v without beta, S "
            "= "
            "S + k u^T, o = scale S^T q, which is the delta rule (DeltaNet), gated or not, gated linear attention or "
            "retention; with a gradient by what comes out, back as well.\vAll arrays are float32 or all float64. Heads "
            "go over the threads; the length is walked by chunks.",
        .groups = {{&attention_argp, &a, "Scan:"}, {&cli_common_argp, &a.scan.common, "Output and resources:"}},
        .most = 0};
    int status;
    if (!cli_scan_begin(&a.scan, &syntax, argc, argv, &status)) return status;
    status = run(&a);
    cli_scan_release(&a.scan);
    return status;
}
