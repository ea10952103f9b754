// SPDX-License-Identifier: MIT
// solve rnn|rnn-relu|gru|lstm|paragru|paralstm|mingru: recurrent networks saved from PyTorch, run over arrays of files,
// and back.
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "solve.h"
#include "world.h"

enum {
    KEY_WEIGHTS = 0x5000,
    KEY_PREFIX,
    KEY_INPUT,
    KEY_H0,
    KEY_C0,
    KEY_LENGTHS,
    KEY_RESETS,
    KEY_RECOMPUTE,
    KEY_OUTPUT,
    KEY_FINAL,
    KEY_FINAL_C,
    KEY_GRAD_OUTPUT,
    KEY_GRAD_FINAL,
    KEY_GRAD_FINAL_C,
    KEY_GRADS,
    KEY_RANKS,
    KEY_DEADLINE
};

typedef struct recurrent {
    cli_common common;
    cli_solver solver;
    dpcr_recurrent_kind kind;
    bool recompute;
    int64_t ranks;  // 0: one process for all steps
    double deadline;
    const char *weights, *prefix, *lengths, *resets, *output, *final, *final_c, *grads;
    const char *input, *h0, *c0, *grad_output, *grad_final, *grad_final_c;
} recurrent;

static const struct argp_option recurrent_options[] = {
    {"weights", KEY_WEIGHTS, "FILE", 0, "safetensors of the network's state_dict(): weight_ih_l0, weight_hh_l0, ...",
     0},
    {"prefix", KEY_PREFIX, "TEXT", 0, "What stands before these names in the file, such as 'rnn.'", 0},
    {"input", KEY_INPUT, "FILE", 0, "x [T][B][I]: npy, 'FILE.npz:NAME', or '-'", 0},
    {"h0", KEY_H0, "FILE", 0,
     "Initial states [layers directions][B][H] (default 0); H is an LSTM's proj_size where it has one", 0},
    {"c0", KEY_C0, "FILE", 0, "Initial cells of an LSTM [layers directions][B][hidden] (default 0)", 0},
    {"lengths", KEY_LENGTHS, "FILE|N,N,...", 0, "Steps of each sequence; beyond them outputs are 0 (default: all T)",
     0},
    {"resets", KEY_RESETS, "FILE", 0, "[T][B], not 0 where a new sequence begins: the state before it is zero", 0},
    {"recompute", KEY_RECOMPUTE, NULL, 0, "Going back, make again what the gates were instead of storing it", 0},
    {"output", KEY_OUTPUT, "FILE", 0, "y [T][B][directions H]: .npy, .npz, or '-' for npy on standard output", 0},
    {"final", KEY_FINAL, "FILE", 0, "Last states [layers directions][B][H]", 0},
    {"final-c", KEY_FINAL_C, "FILE", 0, "Last cells of an LSTM [layers directions][B][hidden]", 0},
    {"grad-output", KEY_GRAD_OUTPUT, "FILE", 0, "A loss's gradient by y, in its shape: go back", 0},
    {"grad-final", KEY_GRAD_FINAL, "FILE", 0, "Gradient of the loss by the last states", 0},
    {"grad-final-c", KEY_GRAD_FINAL_C, "FILE", 0, "Gradient of the loss by the last cells of an LSTM", 0},
    {"grads", KEY_GRADS, "FILE", 0, "safetensors of the gradients: by the parameters' names, input, h0 and c0", 0},
    {"ranks", KEY_RANKS, "P", 0,
     "Overlap over ranks, a thread each, that hold a part of the steps; under mpirun -np P, a process each", 0},
    {"deadline", KEY_DEADLINE, "S", 0, "Seconds that a rank waits for another (default 60)", 0},
    {0},
};

static error_t parse_recurrent(int key, char *arg, struct argp_state *state) {
    recurrent *r = state->input;
    switch (key) {
        case KEY_WEIGHTS: r->weights = arg; return 0;
        case KEY_PREFIX: return cli_read_prefix("--prefix", arg, &r->prefix) ? 0 : EINVAL;
        case KEY_INPUT: r->input = arg; return 0;
        case KEY_H0: r->h0 = arg; return 0;
        case KEY_C0: r->c0 = arg; return 0;
        case KEY_LENGTHS: r->lengths = arg; return 0;
        case KEY_RESETS: r->resets = arg; return 0;
        case KEY_RECOMPUTE: r->recompute = true; return 0;
        case KEY_OUTPUT: r->output = arg; return 0;
        case KEY_FINAL: r->final = arg; return 0;
        case KEY_FINAL_C: r->final_c = arg; return 0;
        case KEY_GRAD_OUTPUT: r->grad_output = arg; return 0;
        case KEY_GRAD_FINAL: r->grad_final = arg; return 0;
        case KEY_GRAD_FINAL_C: r->grad_final_c = arg; return 0;
        case KEY_GRADS: r->grads = arg; return 0;
        case KEY_RANKS: return cli_read_int64("--ranks", arg, 1, 1024, &r->ranks) ? 0 : EINVAL;
        case KEY_DEADLINE: return cli_read_double("--deadline", arg, 1e-3, 1e9, &r->deadline) ? 0 : EINVAL;
        default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp recurrent_argp = {recurrent_options, parse_recurrent, NULL, NULL, NULL, NULL, NULL};

// ---- what it works on ----

enum { X, H0, C0, GRAD_Y, GRAD_H, GRAD_C, FILES };

typedef struct work {
    dpcr_context *context;
    dpcr_recurrent *network;
    dpcr_recurrent_plan *plan;
    dpcr_tensors files[FILES], length_file, reset_file;
    const dpcr_array *given[FILES];
    int64_t *lengths;
    unsigned char *resets;
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    void *workspace, *tape;
    dpcr_solve_report *reports, *back_reports;
    double seconds, back_seconds;
    cli_device_times times;  // on a device
    // Over ranks: this one's steps among all.
    const cli_ranks *rank;
    int64_t first, total;
} work;

static bool goes_back(const recurrent *r) { return r->grads != NULL; }
static bool on_device(const recurrent *r) { return r->common.device.type == DPCR_CUDA; }

// An array of steps: all of them, or the rank's own.
static int read_steps(work *w, const char *name, const char *path, dpcr_tensors *file, const dpcr_array **array) {
    dpcr_array whole;
    dpcr_error error = {0};
    if (!w->rank) return cli_array_read(w->context, name, path, file, array);
    const dpcr_transport *t = w->rank->transport;
    if (!cli_readable(name, path)) return CLI_INPUT;
    if (dpcr_npy_look(w->context, path, &whole, &error) != DPCR_OK) return cli_fail_error(&error, CLI_READING);
    if (!strcmp(name, "input")) {
        w->total = whole.shape[0];
        w->first = cli_rank_first(w->total, t->ranks, t->rank);
    }
    if (whole.shape[0] != w->total)
        return cli_fail(CLI_INPUT, "--%s has %lld step%s, the input %lld: wanted as many", name,
                        (long long)whole.shape[0], cli_s(whole.shape[0]), (long long)w->total);
    const int64_t count = cli_rank_first(w->total, t->ranks, t->rank + 1) - w->first;
    if (dpcr_npy_read_rows(w->context, path, w->first, count, file, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_READING);
    *array = &file->items[0].array;
    return CLI_DONE;
}

static int read_files(const recurrent *r, work *w) {
    static const char *const names[FILES] = {"input", "h0", "c0", "grad-output", "grad-final", "grad-final-c"};
    const char *const paths[FILES] = {r->input, r->h0, r->c0, r->grad_output, r->grad_final, r->grad_final_c};
    dpcr_error error = {0};
    if (!cli_readable("the weights", r->weights)) return CLI_INPUT;
    if (dpcr_recurrent_load(w->context, r->weights, r->prefix, r->kind, &w->network, &error) != DPCR_OK)
        return cli_fail_weights(&error);
    const dpcr_dtype dtype = dpcr_recurrent_get_options(w->network)->dtype;
    int status = CLI_DONE;
    for (int i = 0; !status && i < FILES; i++) {
        if (!paths[i]) continue;
        status = i == X || i == GRAD_Y ? read_steps(w, names[i], paths[i], &w->files[i], &w->given[i])
                                       : cli_array_read(w->context, names[i], paths[i], &w->files[i], &w->given[i]);
        if (!status && w->given[i]->dtype != dtype)
            status = cli_fail(CLI_INPUT, "--%s is %s and the weights are %s: wanted the same", names[i],
                              dpcr_dtype_name(w->given[i]->dtype), dpcr_dtype_name(dtype));
    }
    return status;
}

static int check_shape(const char *name, const dpcr_array *array, int64_t a, int64_t b, int64_t c) {
    if (!array || (array->ndim == 3 && array->shape[0] == a && array->shape[1] == b && array->shape[2] == c))
        return CLI_DONE;
    char text[128] = "no dimensions";
    size_t at = 0;
    for (int i = 0; i < array->ndim && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "[%lld]", (long long)array->shape[i]);
    return cli_fail(CLI_INPUT, "--%s has shape %s: wanted [%lld][%lld][%lld]", name, text, (long long)a, (long long)b,
                    (long long)c);
}

// "8, 5,2", wrong ones too, and not the name of a file.
static bool is_list(const char *text) {
    return strcmp(text, "-") != 0 && strspn(text, "0123456789,.+- \t") == strlen(text);
}

// The numbers of a list, the first `most` of them stored. Negative: one of them is no whole number.
static int64_t parse_lengths(const char *text, int64_t most, int64_t *lengths) {
    for (int64_t count = 0;; text++) {
        text += strspn(text, " \t");
        if (*text < '0' || *text > '9') return -1;
        char *end;
        const long long value = strtoll(text, &end, 10);
        if (count < most) lengths[count] = value;
        count++;
        end += strspn(end, " \t");
        if (*end != ',') return *end ? -1 : count;
        text = end;
    }
}

// Of the command line, or of a file.
static int read_lengths(const recurrent *r, work *w) {
    const int64_t T = w->rank ? w->total : w->pass.x.shape[0], B = w->pass.x.shape[1];
    if (!r->lengths) return CLI_DONE;
    const bool list = is_list(r->lengths);
    const int wrong = list ? CLI_USAGE : CLI_INPUT;
    const dpcr_array *array = NULL;
    w->lengths = calloc((size_t)B + 1, sizeof *w->lengths);
    if (!w->lengths) return cli_fail_memory("the lengths");
    int64_t count = 0;
    if (list) {
        count = parse_lengths(r->lengths, B, w->lengths);
        if (count < 0)
            return cli_fail(CLI_USAGE, "--lengths '%.60s': wanted whole numbers 0..%lld, N,N,...", r->lengths,
                            (long long)T);
    } else {
        const int status = cli_array_read(w->context, "lengths", r->lengths, &w->length_file, &array);
        if (status) return status;
        count = cli_array_count(array);
        for (int64_t b = 0; b < B && b < count; b++) {
            const double value = cli_array_get(array, b);
            if (value != floor(value) || fabs(value) > 1e15)
                return cli_fail(CLI_INPUT, "--lengths: number %lld is %g: wanted whole numbers", (long long)b, value);
            w->lengths[b] = (int64_t)value;
        }
    }
    if (count != B)
        return cli_fail(wrong, "--lengths has %lld number%s: wanted %lld, as the input has sequences", (long long)count,
                        cli_s(count), (long long)B);
    for (int64_t b = 0; b < B; b++)
        if (w->lengths[b] < 0 || w->lengths[b] > T)
            return cli_fail(wrong, "--lengths: number %lld is %lld: wanted 0..%lld", (long long)b,
                            (long long)w->lengths[b], (long long)T);
    w->pass.lengths = w->lengths;
    return CLI_DONE;
}

// All of it on each rank, for as long as this takes: files of whole numbers are not read by rows.
static int read_resets(const recurrent *r, work *w) {
    const int64_t T = w->pass.x.shape[0], B = w->pass.x.shape[1], all = w->rank ? w->total : T;
    const dpcr_array *array = NULL;
    if (!r->resets) return CLI_DONE;
    const int status = cli_array_read(w->context, "resets", r->resets, &w->reset_file, &array);
    if (status) return status;
    if (array->ndim != 2 || array->shape[0] != all || array->shape[1] != B)
        return cli_fail(CLI_INPUT, "--resets has another shape than the input's steps: wanted [%lld][%lld]",
                        (long long)all, (long long)B);
    w->resets = calloc((size_t)(T * B) + 1, 1);
    if (!w->resets) return cli_fail_memory("the resets");
    const int64_t first = w->rank ? w->first * B : 0;
    for (int64_t i = 0; i < T * B; i++) w->resets[i] = cli_array_get(array, first + i) != 0;
    dpcr_tensors_free(w->context, &w->reset_file);
    w->pass.resets = w->resets;
    return CLI_DONE;
}

static bool make_array(dpcr_dtype dtype, int64_t a, int64_t b, int64_t c, bool wanted, dpcr_array *array) {
    return !wanted || cli_array_create(dtype, 3, (const int64_t[]){a, b, c}, array);
}

static int make_arrays(const recurrent *r, work *w) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(w->network);
    const int64_t D = o->bidirectional ? 2 : 1, N = o->layers * D, C = o->hidden;
    const int64_t H = o->projection ? o->projection : o->hidden;  // of h
    const dpcr_array *x = w->given[X];
    if (x->ndim != 3)
        return cli_fail(CLI_INPUT, "--input has %d dimensions: wanted [T][B][%lld]", (int)x->ndim,
                        (long long)o->inputs);
    const int64_t T = x->shape[0], B = x->shape[1];
    int status = check_shape("input", x, T, B, o->inputs);
    if (!status) status = check_shape("h0", w->given[H0], N, B, H);
    if (!status) status = check_shape("c0", w->given[C0], N, B, C);
    if (!status) status = check_shape("grad-output", w->given[GRAD_Y], T, B, D * H);
    if (!status) status = check_shape("grad-final", w->given[GRAD_H], N, B, H);
    if (!status) status = check_shape("grad-final-c", w->given[GRAD_C], N, B, C);
    if (status) return status;
    const bool lstm = dpcr_recurrent_kind_has_cell(o->kind), back = goes_back(r);
    w->pass = (dpcr_recurrent_pass){.size = sizeof w->pass, .x = *x};
    w->gradients = (dpcr_recurrent_gradients){.size = sizeof w->gradients};
    if (w->given[H0]) w->pass.h0 = *w->given[H0];
    if (w->given[C0]) w->pass.c0 = *w->given[C0];
    if (w->given[GRAD_Y]) w->gradients.y = *w->given[GRAD_Y];
    if (w->given[GRAD_H]) w->gradients.ht = *w->given[GRAD_H];
    if (w->given[GRAD_C]) w->gradients.ct = *w->given[GRAD_C];
    const bool made = make_array(o->dtype, T, B, D * H, true, &w->pass.y) &&
                      make_array(o->dtype, N, B, H, true, &w->pass.ht) &&
                      make_array(o->dtype, N, B, C, lstm, &w->pass.ct) &&
                      make_array(o->dtype, T, B, o->inputs, back, &w->gradients.x) &&
                      make_array(o->dtype, N, B, H, back, &w->gradients.h0) &&
                      make_array(o->dtype, N, B, C, back && lstm, &w->gradients.c0);
    if (!made) return cli_failed();
    status = read_lengths(r, w);
    return status ? status : read_resets(r, w);
}

// ---- running ----

static int make_plan(const recurrent *r, work *w) {
    dpcr_recurrent_plan_options options = {.size = sizeof options,
                                           .length = w->pass.x.shape[0],
                                           .batch = w->pass.x.shape[1],
                                           .training = goes_back(r),
                                           .packed = w->pass.lengths != NULL,
                                           .resets = w->pass.resets != NULL,
                                           .recompute = r->recompute,
                                           .solve = r->solver.options,
                                           .sample = &w->pass};
    dpcr_error error = {0};
    if (on_device(r)) options.solve.device = r->common.device;
    if (r->solver.options.method == DPCR_METHOD_AUTO && !on_device(r)) cli_machine_load(w->context, false);
    if (dpcr_recurrent_plan_create(w->network, &options, &w->plan, &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    const size_t bytes = dpcr_recurrent_plan_workspace(w->plan), tape = dpcr_recurrent_plan_tape(w->plan);
    if (bytes == SIZE_MAX || tape == SIZE_MAX) return cli_fail(CLI_RESOURCES, "the network does not fit into memory");
    if (r->solver.options.memory_limit &&
        (bytes > r->solver.options.memory_limit || tape > r->solver.options.memory_limit))
        return cli_fail(CLI_RESOURCES, "a workspace of %zu and a tape of %zu bytes are needed, the limit is %zu", bytes,
                        tape, r->solver.options.memory_limit);
    if (on_device(r)) return CLI_DONE;
    w->workspace = cli_allocate(bytes);
    if (!w->workspace) return cli_fail(CLI_RESOURCES, "not enough memory for a workspace of %zu bytes", bytes);
    if (tape && !(w->tape = cli_allocate(tape)))
        return cli_fail(CLI_RESOURCES, "not enough memory for a tape of %zu bytes", tape);
    return CLI_DONE;
}

static int run_passes(const recurrent *r, work *w) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(w->network);
    const size_t chains = (size_t)(o->layers * (o->bidirectional ? 2 : 1)),
                 bytes = dpcr_recurrent_plan_workspace(w->plan);
    dpcr_error error = {0};
    w->reports = calloc(chains, sizeof *w->reports);
    w->back_reports = calloc(chains, sizeof *w->back_reports);
    if (!w->reports || !w->back_reports) return cli_fail_memory("the reports");
    for (size_t i = 0; i < chains; i++) w->reports[i].size = w->back_reports[i].size = sizeof *w->reports;
    double start = cli_now();
    if (on_device(r)) {
        const int status =
            cli_recurrent_on_device(r->common.device, w->network, w->plan, &w->pass,
                                    goes_back(r) ? &w->gradients : NULL, w->reports, w->back_reports, &w->times);
        if (status) return status;
    } else if (dpcr_recurrent_execute(w->plan, &w->pass, w->tape, w->workspace, bytes, w->reports, &error) != DPCR_OK) {
        return cli_fail_error(&error, CLI_COMPUTING);
    }
    w->seconds = cli_now() - start - w->times.back;
    for (size_t i = 0; i < chains; i++)
        if (w->reports[i].reason < 0 && w->reports[i].reason != DPCR_REASON_NONFINITE) {
            char text[128];
            cli_unconverged_text(w->reports[i].sweeps, text, sizeof text);
            return cli_fail(CLI_UNCONVERGED, "layer %zu: %s", i / (o->bidirectional ? 2 : 1), text);
        }
    w->back_seconds = w->times.back;
    if (!goes_back(r) || on_device(r)) return CLI_DONE;
    start = cli_now();
    if (dpcr_recurrent_backward(w->plan, &w->pass, &w->gradients, w->tape, w->workspace, bytes, w->back_reports,
                                &error) != DPCR_OK)
        return cli_fail_error(&error, CLI_COMPUTING);
    w->back_seconds = cli_now() - start;
    return CLI_DONE;
}

// ---- results ----

static int write_gradients(const recurrent *r, const work *w) {
    enum { NAME = 64 };
    const int64_t count = dpcr_recurrent_parameter_count(w->network);
    dpcr_tensor *items = calloc((size_t)count + 3, sizeof *items);
    char *names = calloc((size_t)count + 1, NAME);
    dpcr_error error = {0};
    int status = items && names ? CLI_DONE : cli_fail_memory("the gradients' names");
    dpcr_tensors all = {.items = items};
    for (; !status && all.count < count; all.count++) {
        dpcr_tensor *item = &items[all.count];
        item->name = names + all.count * NAME;
        if (dpcr_recurrent_parameter(w->network, all.count, item->name, NAME, NULL, &item->array, &error) != DPCR_OK)
            status = cli_fail_error(&error, CLI_COMPUTING);
    }
    char input[] = "input", h0[] = "h0", c0[] = "c0";
    if (!status) {
        items[all.count++] = (dpcr_tensor){.name = input, .array = w->gradients.x};
        items[all.count++] = (dpcr_tensor){.name = h0, .array = w->gradients.h0};
        if (w->gradients.c0.data) items[all.count++] = (dpcr_tensor){.name = c0, .array = w->gradients.c0};
        if (dpcr_safetensors_write(r->grads, &all, &error) != DPCR_OK) status = cli_fail_error(&error, CLI_WRITING);
    }
    free(names);
    free(items);
    return status;
}

static const char *sentence_of(const work *w, int64_t c) {
    const dpcr_solve_plan *chain = dpcr_recurrent_plan_chain(w->plan, c);
    return chain ? dpcr_solve_plan_sentence(chain) : w->reports[c].sentence;
}

static json_t *chains_json(const work *w) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(w->network);
    const int64_t D = o->bidirectional ? 2 : 1;
    json_t *list = json_array();
    for (int64_t c = 0; c < o->layers * D; c++) {
        json_t *item = json_pack("{s:I, s:s, s:s, s:s, s:i, s:s}", "layer", (json_int_t)(c / D), "direction",
                                 c % D ? "reverse" : "forward", "method", dpcr_method_name(w->reports[c].method),
                                 "reason", dpcr_reason_name(w->reports[c].reason), "sweeps", w->reports[c].sweeps,
                                 "sentence", sentence_of(w, c));
        if (!w->plan || w->times.solve > 0) {  // over ranks, on a device
            cli_put(&item, "residual", cli_json_real(w->reports[c].residual));
            cli_put(&item, "error_estimate", cli_json_real(w->reports[c].error_estimate));
            if (w->back_reports[c].sweeps || w->times.back > 0) {
                cli_put(&item, "backward_reason", json_string(dpcr_reason_name(w->back_reports[c].reason)));
                cli_put(&item, "backward_sweeps", json_integer(w->back_reports[c].sweeps));
            }
        }
        cli_append(&list, item);
    }
    return list;
}

static int tell(const recurrent *r, work *w) {
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(w->network);
    cli_result result = cli_result_create();
    cli_set_text(&result, "kind", dpcr_recurrent_kind_name(o->kind));
    cli_set_text(&result, "dtype", dpcr_dtype_name(o->dtype));
    cli_set_int(&result, "length", w->total ? w->total : w->pass.x.shape[0]);
    if (r->ranks) cli_set_int(&result, "ranks", r->ranks);
    cli_set_int(&result, "batch", w->pass.x.shape[1]);
    cli_set_int(&result, "inputs", o->inputs);
    cli_set_int(&result, "hidden", o->hidden);
    if (o->projection) cli_set_int(&result, "projection", o->projection);
    cli_set_int(&result, "layers", o->layers);
    cli_set_bool(&result, "bidirectional", o->bidirectional != 0);
    cli_set_bool(&result, "bias", !o->no_bias);
    cli_set_text(&result, "method", dpcr_method_name(w->reports[0].method));
    cli_set_real(&result, "seconds", w->seconds);
    if (on_device(r)) {
        cli_set_real(&result, "seconds_to_device", w->times.to_device);
        cli_set_real(&result, "seconds_solve", w->times.solve);
        cli_set_real(&result, "seconds_to_host", w->times.to_host);
    }
    if (goes_back(r)) cli_set_real(&result, "backward_seconds", w->back_seconds);
    if (w->plan) cli_set_int(&result, "workspace_bytes", (json_int_t)dpcr_recurrent_plan_workspace(w->plan));
    if (w->plan) cli_set_int(&result, "tape_bytes", (json_int_t)dpcr_recurrent_plan_tape(w->plan));
    cli_set(&result, "chains", chains_json(w));
    if (r->output) cli_set_text(&result, "output", r->output);
    const int64_t steps = w->total ? w->total : w->pass.x.shape[0];
    cli_say(&r->common, "%s, %lld layer%s%s, hidden %lld, %lld step%s, batch %lld: %s, %.3g s%s%s%s\n",
            dpcr_recurrent_kind_name(o->kind), (long long)o->layers, cli_s(o->layers),
            o->bidirectional ? ", both directions" : "", (long long)o->hidden, (long long)steps, cli_s(steps),
            (long long)w->pass.x.shape[1], dpcr_method_name(w->reports[0].method), w->seconds,
            goes_back(r) ? ", and back" : "", r->output ? ", in " : "", r->output ? r->output : "");
    const int status = cli_finish(&r->common, &result, CLI_DONE);
    cli_result_destroy(&result);
    return status;
}

static void release(work *w) {
    dpcr_array *const made[] = {&w->pass.y,      &w->pass.ht,      &w->pass.ct,
                                &w->gradients.x, &w->gradients.h0, &w->gradients.c0};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (made[i]->data) cli_array_destroy(made[i]);
    dpcr_recurrent_plan_destroy(w->plan);
    dpcr_recurrent_destroy(w->network);
    for (int i = 0; i < FILES; i++) dpcr_tensors_free(w->context, &w->files[i]);
    dpcr_tensors_free(w->context, &w->length_file);
    if (w->workspace) cli_release(w->workspace);
    if (w->tape) cli_release(w->tape);
    free(w->reports);
    free(w->back_reports);
    dpcr_tensors_free(w->context, &w->reset_file);
    free(w->lengths);
    free(w->resets);
}

static int run(dpcr_context *context, const recurrent *r) {
    work w = {.context = context};
    int status = read_files(r, &w);
    if (!status) status = make_arrays(r, &w);
    if (!status) status = make_plan(r, &w);
    if (!status) status = run_passes(r, &w);
    if (!status) status = cli_array_write(r->output, "y", &w.pass.y);
    if (!status) status = cli_array_write(r->final, "h", &w.pass.ht);
    if (!status) status = cli_array_write(r->final_c, "c", &w.pass.ct);
    if (!status && goes_back(r)) status = write_gradients(r, &w);
    if (!status) status = tell(r, &w);
    release(&w);
    return status;
}

// ---- over ranks ----

typedef struct among {
    const recurrent *r;
    pthread_mutex_t turn;  // of what tells errors
} among;

// All ranks' rows of the inputs' gradient, on rank 0, in the place of its own.
static dpcr_status gather_inputs(cli_ranks *rank, work *w, dpcr_error *error) {
    enum { TAG = DPCR_TAGS + 8 };
    const dpcr_transport *t = rank->transport;
    dpcr_array *own = &w->gradients.x, whole = *own;
    const size_t row = (size_t)(own->shape[1] * own->shape[2]) * dpcr_dtype_size(own->dtype);
    const int64_t shape[3] = {w->total, own->shape[1], own->shape[2]};
    dpcr_status status = DPCR_OK;
    if (t->rank == 0 && !cli_array_create(own->dtype, 3, shape, &whole)) status = cli_ranks_held(CLI_RESOURCES, error);
    status = cli_ranks_agree(rank, CLI_COMPUTING, status, error);
    if (status != DPCR_OK) return status;
    if (t->rank > 0) return t->send(t->user, 0, TAG, own->data, (size_t)own->shape[0] * row, error);
    memcpy(whole.data, own->data, (size_t)own->shape[0] * row);
    for (int64_t r = 1; r < t->ranks && status == DPCR_OK; r++) {
        const int64_t first = cli_rank_first(w->total, t->ranks, r), end = cli_rank_first(w->total, t->ranks, r + 1);
        status = t->receive(t->user, r, TAG, (char *)whole.data + (size_t)first * row, (size_t)(end - first) * row,
                            rank->deadline, error);
    }
    cli_array_destroy(own);
    *own = whole;
    return status;
}

static int write_states_and_gradients(const recurrent *r, work *w) {
    int status = cli_array_write(r->final, "h", &w->pass.ht);
    if (!status) status = cli_array_write(r->final_c, "c", &w->pass.ct);
    return !status && goes_back(r) ? write_gradients(r, w) : status;
}

static dpcr_status solve_rank(cli_ranks *rank, among *a, work *w, dpcr_error *error) {
    const recurrent *r = a->r;
    dpcr_status status;
    const dpcr_recurrent_ranks options = {.size = sizeof options,
                                          .transport = rank->transport,
                                          .deadline = rank->deadline,
                                          .solve = r->solver.options,
                                          .recompute = r->recompute};
    const double start = cli_now();
    rank->doing = r->solver.options.no_fallback ? CLI_STRICTLY : CLI_COMPUTING;
    status = dpcr_recurrent_distributed(w->network, &options, &w->pass, goes_back(r) ? &w->gradients : NULL, w->reports,
                                        w->back_reports, error);
    if (status == DPCR_OK) status = cli_ranks_agree(rank, CLI_COMPUTING, DPCR_OK, error);
    w->seconds = cli_now() - start;
    if (status == DPCR_OK && goes_back(r)) status = gather_inputs(rank, w, error);
    if (status != DPCR_OK || !r->output) return status;
    dpcr_array whole = w->pass.y;
    whole.shape[0] = w->total;
    return cli_ranks_write(rank, r->output, &whole, w->first, &w->pass.y, error);
}

// What tells its errors itself, one rank at a time, and then all together.
static dpcr_status together(cli_ranks *rank, among *a, int (*work_of)(const recurrent *r, work *w), work *w,
                            cli_doing doing, dpcr_error *error) {
    pthread_mutex_lock(&a->turn);
    cli_hold(true);
    const dpcr_status status = cli_ranks_held(work_of ? work_of(a->r, w) : CLI_DONE, error);
    cli_hold(false);
    pthread_mutex_unlock(&a->turn);
    return cli_ranks_agree(rank, doing, status, error);
}

static int read_all(const recurrent *r, work *w) {
    int status = read_files(r, w);
    if (!status) status = make_arrays(r, w);
    if (status) return status;
    const dpcr_recurrent_options *o = dpcr_recurrent_get_options(w->network);
    const size_t chains = (size_t)(o->layers * (o->bidirectional ? 2 : 1));
    w->reports = calloc(chains, sizeof *w->reports);
    w->back_reports = calloc(chains, sizeof *w->back_reports);
    if (!w->reports || !w->back_reports) return cli_fail_memory("the reports");
    for (size_t i = 0; i < chains; i++) w->reports[i].size = w->back_reports[i].size = sizeof *w->reports;
    return CLI_DONE;
}

// Launchers may give processes options of their own: who is not to write --output would leave its steps out of it.
static dpcr_status agree_on_options(cli_ranks *rank, const recurrent *r, dpcr_error *error) {
    char options[CLI_RANKS_OPTIONS];
    snprintf(options, sizeof options, "%s%s%s%s%s", r->output ? " --output" : "", r->final ? " --final" : "",
             r->final_c ? " --final-c" : "", r->grads ? " --grads" : "",
             cli_flushes_denormals() ? "" : " --denormals keep");
    return cli_ranks_agree_on_options(rank, options + 1, error);  // one there is
}

static dpcr_status run_rank(cli_ranks *rank, dpcr_error *error) {
    among *a = rank->user;
    work w = {.context = rank->context, .rank = rank};
    const bool first = rank->transport->rank == 0;
    dpcr_status status = together(rank, a, read_all, &w, CLI_READING, error);
    if (status == DPCR_OK) status = cli_ranks_agree_on_length(rank, "--input", w.total, error);
    if (status == DPCR_OK) status = agree_on_options(rank, a->r, error);
    if (status == DPCR_OK) status = solve_rank(rank, a, &w, error);
    if (status == DPCR_OK)
        status = together(rank, a, first ? write_states_and_gradients : NULL, &w, CLI_WRITING, error);
    if (status == DPCR_OK) status = together(rank, a, first ? tell : NULL, &w, CLI_WRITING, error);
    release(&w);
    return status;
}

static int run_among(const recurrent *r) {
    among a = {.r = r, .turn = PTHREAD_MUTEX_INITIALIZER};
    const int status = cli_ranks_run(&r->common, r->ranks, r->deadline, run_rank, &a);
    pthread_mutex_destroy(&a.turn);
    return status;
}

static int refuse_ranks(recurrent *r) {
    const int64_t world = cli_world_size();
    const char *const stepwise[] = {r->input, r->grad_output, r->resets, r->output};
    const char *const by_all[] = {r->weights, r->h0, r->c0, r->grad_final, r->grad_final_c, r->lengths};
    const dpcr_method method = r->solver.options.method;
    if (world > 1 && r->ranks && r->ranks != world)
        return cli_fail(CLI_USAGE, "--ranks %lld, but started as %lld processes", (long long)r->ranks,
                        (long long)world);
    if (world > 1) r->ranks = world;
    if (!r->ranks) return r->deadline > 0 ? cli_fail(CLI_USAGE, "--deadline is for --ranks or mpirun") : CLI_DONE;
    if (method != DPCR_METHOD_AUTO && method != DPCR_METHOD_OVERLAP && method != DPCR_METHOD_SEQUENTIAL)
        return cli_fail(CLI_USAGE, "--method %s over ranks, which overlap; wanted overlap, or sequential within a rank",
                        dpcr_method_name(method));
    for (int i = 0; i < 4; i++)
        if (!cli_ranks_share(stepwise[i]))
            return cli_fail(CLI_USAGE, "'%s' over ranks, who each read and write their steps: wanted a .npy file",
                            stepwise[i]);
    for (size_t i = 0; i < sizeof by_all / sizeof by_all[0]; i++)
        if (cli_ranks_flows(by_all[i]))
            return cli_fail(CLI_USAGE, "'%s' over ranks, who each read all of it: wanted a file, no stream", by_all[i]);
    return CLI_DONE;
}

// In one process.
static int refuse_device(recurrent *r) {
    cli_device_leave_auto(&r->common, "recurrent networks");
    if (!on_device(r)) return CLI_DONE;
    if (r->ranks || cli_world_size() > 1)
        return cli_fail(CLI_USAGE, "--device %.20s over ranks, which compute on processors", r->common.device_given);
    return CLI_DONE;
}

// A rank's own steps go in order where nothing is named.
static int refuse_options(const recurrent *r) {
    const dpcr_method method = r->solver.options.method;
    const dpcr_method own = r->ranks && method == DPCR_METHOD_AUTO ? DPCR_METHOD_SEQUENTIAL : method;
    const unsigned ranks = r->ranks ? CLI_RUNS(CLI_OVER_RANKS) : 0;
    cli_solver asked = cli_solver_of_layers(&r->solver);
    asked.options.device = r->common.device;
    char what[64];
    snprintf(what, sizeof what, "method %s%s", dpcr_method_name(own), ranks ? " over ranks" : "");
    return cli_solver_fits(&asked, CLI_RUNS(own) | ranks, what, goes_back(r) ? NULL : "it wants --grads") ? CLI_DONE
                                                                                                          : CLI_USAGE;
}

static bool settle_outputs(recurrent *r) {
    const cli_file written[] = {{"--output", r->output},
                                {"--final", r->final},
                                {"--final-c", r->final_c},
                                {"--grads", r->grads},
                                {"--csv", r->common.csv}};
    const cli_file read[] = {{"--weights", r->weights},
                             {"--input", r->input},
                             {"--h0", r->h0},
                             {"--c0", r->c0},
                             {"--grad-output", r->grad_output},
                             {"--grad-final", r->grad_final},
                             {"--grad-final-c", r->grad_final_c},
                             {"--lengths", r->lengths},
                             {"--resets", r->resets}};
    return cli_outputs_settle(&r->common, written, sizeof written / sizeof written[0], read,
                              sizeof read / sizeof read[0]);
}

static int refuse(recurrent *r) {
    const char *const kind = dpcr_recurrent_kind_name(r->kind);
    const char *const outputs[] = {r->output, r->final, r->final_c, r->grads};
    const char *const inputs[] = {r->input,      r->h0,           r->c0,      r->grad_output,
                                  r->grad_final, r->grad_final_c, r->lengths, r->resets};
    const bool lstm = dpcr_recurrent_kind_has_cell(r->kind), back = r->grad_output || r->grad_final || r->grad_final_c;
    int from_stdin = 0;
    if (!r->weights) return cli_fail(CLI_USAGE, "no --weights: wanted a safetensors file of %s", kind);
    if (!r->input) return cli_fail(CLI_USAGE, "no --input: wanted x [T][B][I]");
    if (!r->output && !r->final && !r->final_c && !r->grads)
        return cli_fail(CLI_USAGE, "no --output, --final or --grads: nothing would be kept");
    if (!lstm && (r->c0 || r->final_c || r->grad_final_c))
        return cli_fail(CLI_USAGE, "--c0, --final-c and --grad-final-c are of an LSTM; this is %s", kind);
    if (back != (r->grads != NULL))
        return cli_fail(CLI_USAGE, back ? "--grad-output and --grad-final want --grads FILE, where the gradients go"
                                        : "--grads wants --grad-output or --grad-final, where the gradients come from");
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) from_stdin += inputs[i] && !strcmp(inputs[i], "-");
    if (r->recompute && !r->grads) return cli_fail(CLI_USAGE, "--recompute is of going back: it wants --grads");
    if (from_stdin > 1) return cli_fail(CLI_USAGE, "standard input ('-') holds one array only");
    if (cli_is_stdout(r->grads)) return cli_fail(CLI_USAGE, "--grads wants a file");
    if (!cli_safetensors_name("--grads", r->grads)) return CLI_USAGE;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        if (outputs[i] && !cli_is_stdout(outputs[i]) && !cli_writable("the output", outputs[i])) return CLI_RESOURCES;
    if (!settle_outputs(r)) return CLI_USAGE;
    if (!cli_array_place(r->output) || !cli_array_place(r->final) || !cli_array_place(r->final_c)) return CLI_USAGE;
    int status = refuse_device(r);
    if (!status) status = refuse_ranks(r);
    return status ? status : refuse_options(r);
}

int cli_solve_recurrent(int argc, char **argv) {
    recurrent r = {.common = CLI_COMMON_DEFAULTS, .solver = CLI_SOLVER_DEFAULTS};
    r.common.serves_devices = true;
    const cli_syntax syntax = {.arguments = "",
                               .doc =
                                   "Runs a recurrent network saved from PyTorch over a batch of sequences, layer by "
                                   "layer, each one a chain over "
                                   "time; with a gradient by its outputs, back as well.\vLayers, directions, widths "
                                   "and type are read from the "
                                   "weights; all arrays are of that type.",
                               .groups = {{&recurrent_argp, &r, "Network:"},
                                          {&cli_solver_argp, &r.solver, "Solver:"},
                                          {&cli_common_argp, &r.common, "Output and resources:"}},
                               .most = 0};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (dpcr_recurrent_kind_find(argv[0], &r.kind, NULL) != DPCR_OK)
        return cli_fail(CLI_USAGE, "no network '%.40s'", argv[0]);
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    if ((status = refuse(&r))) return status;
    if (r.ranks) return run_among(&r);
    dpcr_context *context = cli_context_create(&r.common, &status);
    if (!context) return status;
    status = run(context, &r);
    dpcr_context_destroy(context);
    return status;
}
