// SPDX-License-Identifier: MIT
// The suite for a device: recurrent networks, forward and back, against the host's, by every way there is.
#include <stdlib.h>
#include <string.h>

#include "on_device.h"

// A network on the host and on the device, with lengths of sequences or NULL, forward and, training, back.
typedef struct network_job {
    dpcr_recurrent_options options;
    int64_t length, batch;
    dpcr_method method;
    const int64_t *lengths;
    bool training, parted;  // parted: with some steps new sequences begin
    double dropout;
} network_job;

enum { THETA, X, H0, Y, HT, C0, CT, D_THETA, D_Y, D_HT, D_X, D_H0, D_CT, D_C0, NUMBERS };

// [T][B]: with every seventh number, and the first step of the second sequence.
static unsigned char *make_resets(const network_job *job) {
    const int64_t count = job->length * job->batch;
    unsigned char *marks = calloc((size_t)count + 1, 1);
    for (int64_t i = 0; i < count; i++) marks[i] = i % 7 == 1 || i % 53 == 40;
    return marks;
}

// Of what runs on one of both.
static void point_to(const moved *at, bool device, bool lstm, dpcr_recurrent_pass *pass, dpcr_recurrent_gradients *g) {
    *pass = (dpcr_recurrent_pass){.size = sizeof *pass, .dropout_seed = 31, .dropout_call = 7};
    *g = (dpcr_recurrent_gradients){.size = sizeof *g};
    dpcr_array *const to[NUMBERS] = {NULL, &pass->x, &pass->h0, &pass->y, &pass->ht, &pass->c0, &pass->ct,
                                     NULL, &g->y,    &g->ht,    &g->x,    &g->h0,    &g->ct,    &g->c0};
    for (int i = 0; i < NUMBERS; i++) {
        const bool cell = i == C0 || i == CT || i == D_C0 || i == D_CT;
        if (to[i] && (!cell || lstm)) *to[i] = device ? at[i].device : at[i].host;
    }
}

static void run_host(dpcr_recurrent *network, const network_job *job, moved *at) {
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    dpcr_recurrent_plan *plan = NULL;
    dpcr_error error = {0};
    point_to(at, false, dpcr_recurrent_kind_has_cell(job->options.kind), &pass, &gradients);
    pass.lengths = job->lengths;
    unsigned char *const resets = make_resets(job);
    if (job->parted) pass.resets = resets;
    const dpcr_recurrent_plan_options options = {.size = sizeof options,
                                                 .length = job->length,
                                                 .batch = job->batch,
                                                 .training = job->training,
                                                 .packed = job->lengths != NULL,
                                                 .resets = job->parted,
                                                 .dropout = job->dropout};
    ok(dpcr_recurrent_plan_create(network, &options, &plan, &error), &error);
    const size_t bytes = dpcr_recurrent_plan_workspace(plan), taped = dpcr_recurrent_plan_tape(plan);
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64), *tape = aligned_alloc(64, (taped + 127) / 64 * 64);
    ok(dpcr_recurrent_execute(plan, &pass, job->training ? tape : NULL, workspace, bytes, NULL, &error), &error);
    if (job->training) {
        dpcr_recurrent_zero_gradients(network);
        ok(dpcr_recurrent_backward(plan, &pass, &gradients, tape, workspace, bytes, NULL, &error), &error);
        memcpy(at[D_THETA].host.data, dpcr_recurrent_gradient_vector(network), at[D_THETA].bytes);
    }
    free(workspace), free(tape), free(resets);
    dpcr_recurrent_plan_destroy(plan);
}

static void run_device(dpcr_recurrent *network, const network_job *job, moved *at) {
    enum { MOST_CHAINS = 8 };
    dpcr_recurrent_pass pass;
    dpcr_recurrent_gradients gradients;
    dpcr_recurrent_plan *plan = NULL;
    dpcr_solve_report reports[2][MOST_CHAINS];
    dpcr_error error = {0};
    point_to(at, true, dpcr_recurrent_kind_has_cell(job->options.kind), &pass, &gradients);
    void *lengths = job->lengths ? to_device(job->lengths, (size_t)job->batch * sizeof *job->lengths) : NULL;
    pass.lengths = lengths;
    unsigned char *const marks = make_resets(job);
    void *resets = job->parted ? to_device(marks, (size_t)(job->length * job->batch)) : NULL;
    pass.resets = resets;
    const dpcr_recurrent_plan_options options = {
        .size = sizeof options,
        .length = job->length,
        .batch = job->batch,
        .training = job->training,
        .packed = job->lengths != NULL,
        .resets = job->parted,
        .dropout = job->dropout,
        .solve = {.size = sizeof options.solve, .method = job->method, .device = there}};
    ok(dpcr_recurrent_plan_create(network, &options, &plan, &error), &error);
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    void *workspace = to_device(NULL, bytes), *zeros = calloc(1, at[D_THETA].bytes);
    ok(dpcr_device_copy(there, at[D_THETA].device.data, here, zeros, at[D_THETA].bytes, NULL, &error), &error);
    ok(dpcr_recurrent_enqueue(plan, &at[THETA].device, &pass, workspace, bytes, NULL, &error), &error);
    pass.ht.ndim = pass.ct.ndim = -1;  // not looked at
    if (job->training)
        ok(dpcr_recurrent_enqueue_backward(plan, &at[THETA].device, &pass, &gradients, &at[D_THETA].device, workspace,
                                           bytes, NULL, &error),
           &error);
    const int64_t chains = job->options.layers * (job->options.bidirectional ? 2 : 1);
    const bool mixed = job->options.kind <= DPCR_LSTM && !job->options.reset_before && job->options.hidden > 4;
    const bool kept = mixed && job->method == DPCR_METHOD_SEQUENTIAL && job->batch <= 16 && job->length > 0;
    for (int way = 0; way < (job->training ? 2 : 1); way++) {
        for (int64_t c = 0; c < chains; c++) reports[way][c] = (dpcr_solve_report){.size = sizeof **reports};
        ok((way ? dpcr_recurrent_collect_backward : dpcr_recurrent_collect)(plan, workspace, bytes, NULL, reports[way],
                                                                            &error),
           &error);
        for (int64_t c = 0; c < chains; c++)
            assert_true(reports[way][c].reason > 0 && reports[way][c].sentence[0] && reports[way][c].residual < 1e-3);
        if (kept && !strstr(reports[way][0].sentence, "weights stay on chip, in"))
            fail_msg("%s", reports[way][0].sentence);
    }
    dpcr_device_release(there, workspace);
    dpcr_device_release(there, lengths);
    dpcr_device_release(there, resets);
    free(zeros), free(marks);
    dpcr_recurrent_plan_destroy(plan);
}

static void run_network(const network_job *job) {
    static const char *const names[NUMBERS] = {"theta",
                                               "x",
                                               "h0",
                                               "y",
                                               "ht",
                                               "c0",
                                               "ct",
                                               "gradient of theta",
                                               "y's",
                                               "ht's",
                                               "gradient of x",
                                               "gradient of h0",
                                               "ct's",
                                               "gradient of c0"};
    if (left_out()) return;
    dpcr_recurrent_options o = job->options;
    const int64_t D = o.bidirectional ? 2 : 1, N = o.layers * D, H = o.hidden, T = job->length, rows = job->batch;
    const int64_t P = o.projection ? o.projection : H;
    const int64_t in[3] = {T, rows, o.inputs}, out[3] = {T, rows, D * P}, heard[3] = {N, rows, P},
                  ends[3] = {N, rows, H};
    dpcr_recurrent *network = NULL;
    dpcr_error error = {0};
    int64_t count = 0;
    o.size = sizeof o;
    ok(dpcr_recurrent_create(context, &o, &network, &error), &error);
    const void *vector = dpcr_recurrent_vector(network, &count);
    const bool lstm = dpcr_recurrent_kind_has_cell(o.kind) != 0;
    const int64_t *const shapes[NUMBERS] = {&count, in,  heard, out, heard, ends, ends,
                                            &count, out, heard, in,  heard, ends, ends};
    moved at[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        at[i] = make_moved(o.dtype, shapes[i] == &count ? 1 : 3, shapes[i], 1 + (uint64_t)i, i >= D_THETA ? 0.1 : 1);
    memcpy(at[THETA].host.data, vector, at[THETA].bytes);
    ok(dpcr_device_copy(there, at[THETA].device.data, here, vector, at[THETA].bytes, NULL, &error), &error);
    run_host(network, job, at);
    run_device(network, job, at);
    const double allowed = o.dtype == DPCR_F64 ? 1e-8 : 1e-4;
    static const int forward[] = {Y, HT, CT}, back[] = {D_X, D_H0, D_C0, D_THETA};
    for (int i = 0; i < (lstm ? 3 : 2); i++) assert_near(&at[forward[i]], allowed, names[forward[i]]);
    for (int i = 0; job->training && i < 4; i++)
        if (lstm || back[i] != D_C0) assert_near(&at[back[i]], 10 * allowed, names[back[i]]);
    for (int i = 0; i < NUMBERS; i++) free_moved(&at[i]);
    dpcr_recurrent_destroy(network);
}

// Number n of what the suites go through: 150 steps of three sequences, trained, both ways by turns.
static network_job usual_job(dpcr_recurrent_kind kind, int n) {
    return (network_job){.options = {.kind = kind,
                                     .dtype = n % 2 ? DPCR_F64 : DPCR_F32,
                                     .inputs = 3,
                                     .hidden = n % 3 ? 5 : 34,
                                     .layers = 1 + n % 2,
                                     .bidirectional = n % 3 == 1,
                                     .seed = 9},
                         .length = 150,
                         .batch = 3,
                         .training = true,
                         .method = n % 2 ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL};
}

static const int64_t ragged[] = {37, 150, 0};
static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_NEWTON};

// Each suite takes the number of its first job and gives that of the next one's.
static int widths_and_lengths(int n) {
    static const int64_t hidden[] = {2, 5, 40}, lengths[] = {1, 150, 520};
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_LSTM; kind++)
        for (int h = 0; h < 3; h++)
            for (int l = 0; l < 3; l++, n++) {
                network_job job = usual_job((dpcr_recurrent_kind)kind, n);
                job.options.hidden = hidden[h];
                job.options.layers = 1 + n % 3;
                job.options.bidirectional = n % 4 == 3;
                job.options.no_bias = n % 5 == 4;
                job.options.reverse = n % 4 == 1 && n % 3 == 0;
                job.length = l == 2 && h == 2 ? 100 : lengths[l];
                job.batch = 1 + n % 2;
                job.training = n % 3 != 2;
                job.method = n % 3 == 0 ? DPCR_METHOD_SEQUENTIAL : n % 3 == 1 ? DPCR_METHOD_OVERLAP : DPCR_METHOD_AUTO;
                run_network(&job);
            }
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_LSTM; kind++, n++) {
        network_job job = usual_job((dpcr_recurrent_kind)kind, n);
        job.options.hidden = 2 + n % 3;
        job.options.layers = 2;
        job.options.bidirectional = n % 2;
        job.lengths = ragged;
        job.method = n % 3 ? DPCR_METHOD_OVERLAP : DPCR_METHOD_SEQUENTIAL;
        run_network(&job);
    }
    return n;
}

// In four settings: full length by both methods, lengths of their own, and sequences that begin within.
static void in_setting(network_job *job, int m) {
    job->lengths = m < 2 ? NULL : ragged;
    job->parted = m == 3;
    job->method = methods[m % 2];
}

static int variants_of_lstm_and_gru(int n) {
    for (int variant = 1; variant < 5; variant++)
        for (int m = 0; m < 4; m++, n++) {
            network_job job = usual_job(variant < 4 ? DPCR_LSTM : DPCR_GRU, n);
            job.options.peepholes = variant & 1;
            job.options.input_forget = variant >> 1 & 1;
            job.options.reset_before = variant == 4;
            in_setting(&job, m);
            run_network(&job);
        }
    return n;
}

// Layers whose W_hh blocks share as tiles, of many chunks, and of one unit's tile beside the next; back too. A
// simulator takes minutes for them.
static int wide_layers_of_many_chunks(int n) {
    static const int64_t hidden[] = {132, 260};
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_LSTM && !getenv("DEEPPCR_DEVICE_SHARE"); kind++)
        for (int h = 0; h < 2; h++, n++) {
            network_job job = usual_job((dpcr_recurrent_kind)kind, n);
            job.options.dtype = DPCR_F32;
            job.options.hidden = hidden[h];
            job.options.layers = 1;
            job.length = 1300;
            job.batch = 1 + n % 2;
            job.method = DPCR_METHOD_OVERLAP;
            run_network(&job);
        }
    return n;
}

static int clipped(int n) {
    for (int variant = 0; variant < 7; variant++)
        for (int m = 0; m < 4; m++, n++) {
            const int kind = variant < 3 ? DPCR_RNN_TANH + variant : variant < 4 ? DPCR_GRU : DPCR_LSTM;
            network_job job = usual_job((dpcr_recurrent_kind)kind, n);
            job.options.hidden = n % 3 ? 2 + n % 4 : 34;
            job.options.projection = variant == 6 && m % 2 ? 1 : 0;
            job.options.peepholes = variant == 5;
            job.options.input_forget = variant == 6;
            job.options.reset_before = variant == 3;
            job.options.clip = 0.1 + 0.15 * (n % 5);
            in_setting(&job, m);
            run_network(&job);
        }
    return n;
}

static int projections(int n) {
    for (int variant = 0; variant < 4; variant++)
        for (int m = 0; m < 4; m++, n++) {
            network_job job = usual_job(DPCR_LSTM, n);
            job.options.hidden = n % 3 ? 5 : 36;
            job.options.projection = n % 3 ? 1 + n % 4 : 33;
            job.options.reverse = n % 3 == 2;
            job.options.no_bias = n % 5 == 2;
            job.options.peepholes = variant & 1;
            job.options.input_forget = variant >> 1 & 1;
            job.length = m == 2 ? 1 : 150;
            job.lengths = m == 1 ? ragged : NULL;
            job.parted = m == 3;
            job.training = n % 7 != 6;
            job.dropout = variant == 2 ? 0.3 : 0;
            run_network(&job);
        }
    return n;
}

static int sequences_that_begin_within(int n) {
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++)
        for (int m = 0; m < (kind < DPCR_PARAGRU ? 2 : 3); m++, n++) {
            network_job job = usual_job((dpcr_recurrent_kind)kind, n);
            job.options.hidden = n % 3 ? 2 : 35;
            job.options.layers = 1 + (n + m) % 2;
            job.options.reverse = n % 3 == 2;
            job.lengths = n % 4 ? ragged : NULL;
            job.parted = true;
            job.method = methods[m];
            run_network(&job);
        }
    return n;
}

static int units_that_do_not_mix(int n) {
    for (int kind = DPCR_PARAGRU; kind <= DPCR_MINGRU; kind++)
        for (int m = 0; m < 6; m++, n++) {
            network_job job = usual_job((dpcr_recurrent_kind)kind, n);
            job.options.hidden = n % 3 ? 5 : 40;
            job.options.bidirectional = n % 4 == 1;
            job.length = m < 3 ? 500 : 150;
            job.batch = m < 3 ? 1 : 3;
            job.lengths = m < 3 ? NULL : ragged;
            job.method = methods[m % 3];
            run_network(&job);
        }
    return n;
}

static void rnn_by_newton(dpcr_recurrent_kind kind, int64_t hidden, int64_t batch) {
    network_job job = usual_job(kind, 3);
    job.options.inputs = job.options.layers = 2;
    job.options.hidden = hidden;
    job.options.seed = 0;
    job.length = hidden > 4 ? 150 : 600;
    job.batch = batch;
    job.method = DPCR_METHOD_NEWTON;
    run_network(&job);
}

static int dropped_out(int n) {
    for (int kind = DPCR_RNN_TANH; kind <= DPCR_MINGRU; kind++, n++) {
        network_job job = usual_job((dpcr_recurrent_kind)kind, n);
        job.options.layers = 2 + n % 2;
        job.lengths = n % 2 ? ragged : NULL;
        job.training = n % 5 != 4;
        job.dropout = n % 4 == 3 ? 1 : 0.4;
        job.method = n % 3 ? DPCR_METHOD_SEQUENTIAL : DPCR_METHOD_OVERLAP;
        run_network(&job);
    }
    return n;
}

void networks_as_on_the_host(void **state) {
    (void)state;
    int n = widths_and_lengths(0);
    n = variants_of_lstm_and_gru(n);
    n = wide_layers_of_many_chunks(n);
    n = clipped(n);
    n = projections(n);
    n = sequences_that_begin_within(n);
    n = units_that_do_not_mix(n);
    rnn_by_newton(DPCR_RNN_TANH, 2, 1);
    rnn_by_newton(DPCR_RNN_TANH, 9, 1);
    rnn_by_newton(DPCR_RNN_RELU, 17, 3);
    dropped_out(n);
}

// The way back after newton of one unit that never forgets: by overlapped chunks of an RNN, with as many sweeps as
// those take, or as were asked for; by a scan where units do not mix.
static void way_back_after_newton(dpcr_recurrent_kind kind, int asked, dpcr_solve_report *report) {
    static const int64_t out[3] = {600, 1, 1}, ends[3] = {1, 1, 1};
    const dpcr_recurrent_options o = {.size = sizeof o, .kind = kind, .inputs = 1, .hidden = 1};
    const dpcr_recurrent_plan_options options = {
        .size = sizeof options,
        .length = 600,
        .batch = 1,
        .training = 1,
        .solve = {.size = sizeof options.solve, .method = DPCR_METHOD_NEWTON, .max_sweeps = asked, .device = there}};
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_plan *plan = NULL;
    dpcr_error error = {0};
    int64_t count = 0;
    ok(dpcr_recurrent_create(context, &o, &network, &error), &error);
    ok(dpcr_recurrent_plan_create(network, &options, &plan, &error), &error);
    (void)dpcr_recurrent_vector(network, &count);
    moved theta = make_moved(DPCR_F32, 1, &count, 1, 0), x = make_moved(DPCR_F32, 3, out, 2, 1);
    moved y = make_moved(DPCR_F32, 3, out, 3, 1), dht = make_moved(DPCR_F32, 3, ends, 4, 1);
    for (int64_t i = 0; i < count; i++) ((float *)theta.host.data)[i] = kind == DPCR_RNN_TANH ? (float)(i == 1) : -8;
    memset(x.host.data, 0, x.bytes);
    ok(dpcr_device_copy(there, theta.device.data, here, theta.host.data, theta.bytes, NULL, &error), &error);
    ok(dpcr_device_copy(there, x.device.data, here, x.host.data, x.bytes, NULL, &error), &error);
    const dpcr_recurrent_pass pass = {.size = sizeof pass, .x = x.device, .y = y.device};
    const dpcr_recurrent_gradients g = {.size = sizeof g, .ht = dht.device};
    const size_t bytes = dpcr_recurrent_plan_workspace(plan);
    void *workspace = to_device(NULL, bytes);
    ok(dpcr_recurrent_enqueue(plan, &theta.device, &pass, workspace, bytes, NULL, &error), &error);
    ok(dpcr_recurrent_enqueue_backward(plan, &theta.device, &pass, &g, NULL, workspace, bytes, NULL, &error), &error);
    ok(dpcr_recurrent_collect_backward(plan, workspace, bytes, NULL, report, &error), &error);
    dpcr_device_release(there, workspace);
    free_moved(&theta), free_moved(&x), free_moved(&y), free_moved(&dht);
    dpcr_recurrent_plan_destroy(plan);
    dpcr_recurrent_destroy(network);
}

void newtons_way_back_is_a_scan_or_chunks(void **state) {
    (void)state;
    for (int asked = 0; asked < 6; asked += 5) {
        const int most = asked ? asked : 3;
        dpcr_solve_report chunks = {.size = sizeof chunks}, scan = {.size = sizeof scan};
        way_back_after_newton(DPCR_RNN_TANH, asked, &chunks);
        assert_int_equal(chunks.scheme, DPCR_SCHEME_OVERLAP);
        if (chunks.sweeps != most && chunks.sweeps != 1)  // 1: the stand-in's
            fail_msg("%d sweeps, wanted %d", chunks.sweeps, most);
        way_back_after_newton(DPCR_MINGRU, asked, &scan);
        assert_int_equal(scan.scheme, DPCR_SCHEME_CHUNKED);
        assert_int_equal(scan.sweeps, 1);
        assert_int_equal(scan.reason, DPCR_REASON_EXACT);
    }
}
