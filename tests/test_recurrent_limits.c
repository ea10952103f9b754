// SPDX-License-Identifier: MIT
// Recurrent networks at their limits: what is refused and how; files that lie; memory refused at every request; numbers
// in the padding; more sequences than go together; plans that leave something open; a tape that overlap repairs.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the four above
#include <cmocka.h>

#include "budget.h"
#include "recurrent_job.h"
#include "sampled.h"

// ---- refusals ----

#define REFUSED(call, wanted, part)                                                                                 \
    do {                                                                                                            \
        dpcr_error error = {0};                                                                                     \
        const dpcr_status got = (call);                                                                             \
        if (got != (wanted) || !strstr(error.text, part)) fail_msg("%d: '%s', wanted '%s'", got, error.text, part); \
    } while (0)

static void test_refusals(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_recurrent *network = NULL;
    dpcr_recurrent_options o = {.size = sizeof o, .kind = DPCR_GRU, .inputs = 3, .hidden = 4};
    REFUSED(dpcr_recurrent_create(NULL, &o, &network, &error), DPCR_ERROR_ARGUMENT, "context");
    o.hidden = 0;
    REFUSED(dpcr_recurrent_create(context, &o, &network, &error), DPCR_ERROR_ARGUMENT, "hidden 0");
    o.hidden = 4, o.kind = 9;
    REFUSED(dpcr_recurrent_create(context, &o, &network, &error), DPCR_ERROR_ARGUMENT, "kind is 9");
    o.kind = DPCR_GRU, o.dtype = DPCR_U32;
    REFUSED(dpcr_recurrent_create(context, &o, &network, &error), DPCR_ERROR_UNSUPPORTED, "uint32");
    o.dtype = DPCR_F32;
    dpcr_recurrent_options v = o;
    v.projection = 2;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "are of an LSTM; this is gru");
    v.kind = DPCR_LSTM, v.projection = 4;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "projection is 4, wanted 1..3");
    v.projection = 0, v.reset_before = 1;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "is of a GRU; this is lstm");
    v.reset_before = 0, v.reverse = v.bidirectional = 1;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "not both");
    v.reverse = 0, v.clip = NAN;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "clip is nan");
    v.clip = 1e-50;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "clip is 1e-50, which is 0 in");
    v.kind = DPCR_MINGRU, v.clip = 0.5;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "clip is of rnn");
    v.kind = DPCR_PARALSTM, v.clip = 0, v.peepholes = 1;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "this is paralstm");
    v.peepholes = 0, v.projection = 2;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "this is paralstm");
    v.kind = DPCR_PARAGRU, v.projection = 0, v.reset_before = 1;
    REFUSED(dpcr_recurrent_create(context, &v, &network, &error), DPCR_ERROR_ARGUMENT, "is of a GRU; this is paragru");
    job j = random_job(context, o, 5, 2);
    dpcr_recurrent_plan_options p = {.size = sizeof p, .length = -1, .batch = 2};
    REFUSED(dpcr_recurrent_plan_create(j.network, &p, &j.plan, &error), DPCR_ERROR_ARGUMENT, "length -1");
    p.length = 5;
    for (int way = 0; way < 3; way++) {  // 2 x 65 numbers: one more than a Jacobian is offered for
        dpcr_recurrent_options wide = {.size = sizeof wide, .kind = DPCR_LSTM, .inputs = 1, .hidden = 64 + (way < 2)};
        p.training = 1;
        p.solve = (dpcr_solve_options){.size = sizeof p.solve,
                                       .method = way ? DPCR_METHOD_OVERLAP : DPCR_METHOD_NEWTON,
                                       .backward = way ? DPCR_SCHEME_CHUNKED : DPCR_SCHEME_SEQUENTIAL};
        dpcr_recurrent *lstm = NULL;
        assert_int_equal(dpcr_recurrent_create(context, &wide, &lstm, NULL), DPCR_OK);
        if (way < 2) {
            REFUSED(
                dpcr_recurrent_plan_create(lstm, &p, &j.plan, &error), DPCR_ERROR_UNSUPPORTED,
                way ? "backward chunked wants Jacobians, which states of at most 128 numbers have; this lstm has 130"
                    : "method newton wants Jacobians");
        } else {
            assert_int_equal(dpcr_recurrent_plan_create(lstm, &p, &j.plan, NULL), DPCR_OK);
            dpcr_recurrent_plan_destroy(j.plan);
        }
        dpcr_recurrent_destroy(lstm);
    }
    p = (dpcr_recurrent_plan_options){.size = sizeof p, .batch = 2};
    p.length = INT64_MAX / 4;
    REFUSED(dpcr_recurrent_plan_create(j.network, &p, &j.plan, &error), DPCR_ERROR_OVERFLOW, "more than memory");
    open_plan(&j, the_loop, true);
    REFUSED(dpcr_recurrent_execute(j.plan, &j.pass, NULL, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "a tape is wanted");
    REFUSED(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, 1, NULL, &error), DPCR_ERROR_MEMORY,
            "workspace of 1 bytes");
    REFUSED(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, NULL, 0, NULL, &error), DPCR_ERROR_MEMORY,
            "workspace of 0 bytes");
    dpcr_recurrent_pass bad = j.pass;
    bad.lengths = j.lengths;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "option packed");
    bad = j.pass, bad.x.shape[2] = 4;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "wanted [5][2][3] float32");
    bad = j.pass, bad.y.data = NULL;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "y is [5][2][4] float32 at NULL, wanted");
    bad = j.pass, bad.y = (dpcr_array){0};
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "y is absent, wanted");
    bad = j.pass, bad.x.device.type = DPCR_CUDA;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "x is [5][2][3] float32 on a device, wanted");
    bad = j.pass, bad.x.strides[0]++;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "contiguous, on the host");
    bad = j.pass, bad.c0 = j.pass.h0;
    REFUSED(dpcr_recurrent_execute(j.plan, &bad, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
            "of an LSTM");
    close_plan(&j);
    open_plan(&j, the_loop, false);
    REFUSED(dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace, j.bytes, NULL, &error),
            DPCR_ERROR_ARGUMENT, "not for training");
    close_plan(&j);
    REFUSED(
        dpcr_recurrent_load(context, FIXTURES "/recurrent_gru_plain.safetensors", NULL, DPCR_LSTM, &network, &error),
        DPCR_ERROR_FORMAT, "those of gru, wanted lstm");
    REFUSED(dpcr_recurrent_load(context, FIXTURES "/recurrent_gru_plain.safetensors", "rnn.", 0, &network, &error),
            DPCR_ERROR_FORMAT, "'rnn.weight_ih_l0' is absent");
    REFUSED(dpcr_recurrent_load(context, FIXTURES "/torch_mlp_tanh.safetensors", NULL, 0, &network, &error),
            DPCR_ERROR_FORMAT, "weight_ih_l0");
    free_pass(&j);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
}

// What says which steps there are lies apart too: read between what is written, it made addresses of it.
static void where_steps_are_said(job *j) {
    const int64_t lengths[2] = {0, 0};
    memcpy(j->pass.y.data, lengths, sizeof lengths);
    memcpy(j->gradients.x.data, lengths, sizeof lengths);
    for (int by_resets = 0; by_resets < 2; by_resets++) {
        const dpcr_recurrent_plan_options o = {.size = sizeof o,
                                               .length = 5,
                                               .batch = 2,
                                               .training = 1,
                                               .packed = !by_resets,
                                               .resets = by_resets,
                                               .solve = the_loop};
        const char *const words = by_resets ? "shares memory with resets" : "shares memory with lengths";
        assert_int_equal(dpcr_recurrent_plan_create(j->network, &o, &j->plan, NULL), DPCR_OK);
        const size_t bytes = dpcr_recurrent_plan_workspace(j->plan);
        void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
        void *tape = aligned_alloc(64, (dpcr_recurrent_plan_tape(j->plan) + 127) / 64 * 64);
        dpcr_recurrent_pass pass = j->pass;
        if (by_resets)
            pass.resets = pass.y.data;
        else
            pass.lengths = pass.y.data;
        REFUSED(dpcr_recurrent_execute(j->plan, &pass, tape, workspace, bytes, NULL, &error), DPCR_ERROR_ARGUMENT,
                words);
        if (by_resets)
            pass.resets = j->gradients.x.data;
        else
            pass.lengths = j->gradients.x.data;
        REFUSED(dpcr_recurrent_backward(j->plan, &pass, &j->gradients, tape, workspace, bytes, NULL, &error),
                DPCR_ERROR_ARGUMENT, words);
        dpcr_recurrent_plan_destroy(j->plan);
        free(workspace), free(tape);
    }
}

// What a call writes lies apart from what it reads; without a way back to come, the last state may take the first one's
// place, all of it.
static void test_memory_shared(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    job j = random_job(context, (dpcr_recurrent_options){.kind = DPCR_LSTM, .inputs = 4, .hidden = 4}, 5, 2);
    enum { N = 5 * 2 * 4 };  // of x and of y, with room around them: what reaches over an end meets no third array
    float *const room = calloc(6 * N, sizeof *room), *const x = j.pass.x.data, *const y = j.pass.y.data;
    j.pass.x.data = memcpy(room + N, x, N * sizeof *x), j.pass.y.data = room + 4 * N;
    const dpcr_recurrent_pass pass = j.pass;
    const dpcr_recurrent_gradients gradients = j.gradients;
    for (int training = 0; training < 2; training++) {
        open_plan(&j, the_loop, training);
#define EXECUTE(to, from, words)                                                                                      \
    j.pass = pass, j.pass.to.data = from;                                                                             \
    REFUSED(dpcr_recurrent_execute(j.plan, &j.pass, j.tape, j.workspace, j.bytes, NULL, &error), DPCR_ERROR_ARGUMENT, \
            words)
        if (training) {
            EXECUTE(ht, pass.h0.data, "ht is written and shares memory with h0, wanted it elsewhere");
            EXECUTE(ct, pass.c0.data, "ct is written and shares memory with c0, wanted it elsewhere");
        } else {
            j.pass.ht.data = pass.h0.data, j.pass.ct.data = pass.c0.data;
            assert_int_equal(dpcr_recurrent_execute(j.plan, &j.pass, NULL, j.workspace, j.bytes, NULL, NULL), DPCR_OK);
            EXECUTE(ht, (float *)pass.h0.data + 1, "with h0, wanted it elsewhere, or wholly there");
        }
        EXECUTE(y, pass.x.data, "y is written and shares memory with x, wanted it elsewhere");
        EXECUTE(y, (float *)pass.x.data - N + 1, "y is written and shares memory with x");
        EXECUTE(ct, pass.h0.data, "ct is written and shares memory with h0, wanted it elsewhere");
        EXECUTE(ct, pass.ht.data, "ct is written and shares memory with ht");
        EXECUTE(ht, (float *)pass.y.data + N - 1, "y is written and shares memory with ht");
        j.pass = pass;
        if (!training) close_plan(&j);
    }
    forward(&j);
#define BACKWARD(to, from, words)                                                                               \
    j.gradients = gradients, j.gradients.to.data = from;                                                        \
    REFUSED(dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace, j.bytes, NULL, &error), \
            DPCR_ERROR_ARGUMENT, words)
    BACKWARD(x, pass.x.data, "gradients.x is written and shares memory with x");
    BACKWARD(x, gradients.y.data, "gradients.x is written and shares memory with gradients.y");
    BACKWARD(h0, pass.h0.data, "gradients.h0 is written and shares memory with h0");
    BACKWARD(h0, pass.y.data, "gradients.h0 is written and shares memory with y");
    BACKWARD(h0, gradients.x.data, "gradients.h0 is written and shares memory with gradients.x");
    BACKWARD(h0, dpcr_recurrent_vector(j.network, NULL),
             "gradients.h0 is written and shares memory with the parameters");
    BACKWARD(x, dpcr_recurrent_gradient_vector(j.network), "shares memory with the parameters' gradients");
#undef EXECUTE
#undef BACKWARD
    j.gradients = gradients;
    j.pass.ht.data = j.pass.ct.data = pass.x.data;  // gone, and something else lies there
    j.pass.ht.ndim = -1;
    assert_int_equal(dpcr_recurrent_backward(j.plan, &j.pass, &j.gradients, j.tape, j.workspace, j.bytes, NULL, NULL),
                     DPCR_OK);
    close_plan(&j);
    j.pass = pass, j.gradients = gradients;
    where_steps_are_said(&j);
    j.pass.x.data = x, j.pass.y.data = y;
    free_pass(&j), free(room);
    dpcr_recurrent_destroy(j.network);
    dpcr_context_destroy(context);
}

// What save writes, load reads: the same parameters, the RNN's function and variants.
static void test_files(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < CELLS; k++) {
        dpcr_recurrent_options options = cell_of(k, 3, 7);
        options.size = sizeof options;
        options.layers = 2;
        options.bidirectional = k % 3 != 0;
        options.reverse = k % 3 == 0 && k > 0;
        options.no_bias = k % 2;
        options.seed = 7;
        char path[] = "dpcr_test_recurrent_XXXXXX";
        const int file = mkstemp(path);
        assert_true(file >= 0);
        dpcr_recurrent *made, *read;
        dpcr_error error = {0};
        assert_int_equal(dpcr_recurrent_create(context, &options, &made, NULL), DPCR_OK);
        if (dpcr_recurrent_save(made, path, &error) != DPCR_OK) fail_msg("%s", error.text);
        if (dpcr_recurrent_load(context, path, "", 0, &read, &error) != DPCR_OK) fail_msg("%s", error.text);
        const dpcr_recurrent_options *o = dpcr_recurrent_get_options(read);
        options.dtype = DPCR_F32;
        options.seed = 0;
        assert_memory_equal(o, &options, sizeof options);
        int64_t count, other;
        const void *a = dpcr_recurrent_vector(made, &count), *b = dpcr_recurrent_vector(read, &other);
        assert_int_equal(count, other);
        assert_memory_equal(a, b, (size_t)count * sizeof(float));
        dpcr_recurrent_destroy(made), dpcr_recurrent_destroy(read);
        remove(path);
        close(file);
    }
    dpcr_context_destroy(context);
}

// A GRU's file whose metadata tell of what no GRU has, or of nothing that is a number.
static void test_metadata_that_lie(void **state) {
    (void)state;
    static const char *const pairs[][3] = {{"onnx.input_forget", "1", "a variant that gru of both directions has not"},
                                           {"onnx.direction", "reverse", "a variant that gru of both directions"},
                                           {"onnx.direction", "backward", "onnx.direction is 'backward'"},
                                           {"onnx.linear_before_reset", "2", "wanted 1 or 0"},
                                           {"onnx.input_forget", "", "onnx.input_forget is '', wanted 0 or 1"},
                                           {"onnx.clip", "x", "onnx.clip is 'x'"},
                                           {"onnx.clip", "-1", "onnx.clip is '-1'"},
                                           {"onnx.clip", "inf", "onnx.clip is 'inf'"}};
    dpcr_context *context = make_context(1);
    dpcr_tensors t = {0};
    assert_int_equal(dpcr_safetensors_read(context, FIXTURES "/recurrent_gru_deep.safetensors", &t, NULL), DPCR_OK);
    for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        char path[] = "dpcr_test_recurrent_XXXXXX", key[64], value[64], *keys[] = {key}, *values[] = {value};
        const int file = mkstemp(path);
        assert_true(file >= 0);
        snprintf(key, sizeof key, "%s", pairs[k][0]);
        snprintf(value, sizeof value, "%s", pairs[k][1]);
        const dpcr_tensors told = {
            .count = t.count, .items = t.items, .metadata_count = 1, .metadata_keys = keys, .metadata_values = values};
        dpcr_recurrent *network;
        assert_int_equal(dpcr_safetensors_write(path, &told, NULL), DPCR_OK);
        REFUSED(dpcr_recurrent_load(context, path, NULL, 0, &network, &error), DPCR_ERROR_FORMAT, pairs[k][2]);
        remove(path);
        close(file);
    }
    dpcr_tensors_free(context, &t);
    dpcr_context_destroy(context);
}

// What create refuses of a file is the file's fault, which is named, and the tensor where it is one.
static void test_files_that_create_refuses(void **state) {
    (void)state;
    enum { WIDE = 20000 };
    static float zeros[2 * WIDE];
    static const struct {
        dpcr_recurrent_kind kind;
        dpcr_dtype dtype;
        const char *clip, *words;
    } cases[] = {{DPCR_RNN_TANH, DPCR_U32, "1", "tensor 'weight_ih_l0' is [1][1] uint32, wanted F32 or F64"},
                 {DPCR_RNN_TANH, DPCR_F32, "1e-300", ": recurrent_create: clip is 1e-300"},
                 {DPCR_MINGRU, DPCR_F32, NULL, ": recurrent_create: "}};
    dpcr_context *context = make_context(1);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const int64_t shape[2] = {cases[k].kind == DPCR_MINGRU ? 2 * WIDE : 1, 1};
        const dpcr_array array = dpcr_array_make(zeros, cases[k].dtype, 2, shape);
        char path[] = "dpcr_test_recurrent_XXXXXX", ih[] = "weight_ih_l0", hh[] = "weight_hh_l0", key[] = "onnx.clip";
        char clip[16], *keys[] = {key}, *values[] = {clip};
        dpcr_tensor items[] = {{.name = ih, .array = array}, {.name = hh, .array = array}};
        const dpcr_tensors tensors = {.count = cases[k].kind == DPCR_MINGRU ? 1 : 2,
                                      .items = items,
                                      .metadata_count = cases[k].clip ? 1 : 0,
                                      .metadata_keys = keys,
                                      .metadata_values = values};
        dpcr_recurrent *network;
        snprintf(clip, sizeof clip, "%s", cases[k].clip ? cases[k].clip : "");
        close(mkstemp(path));
        assert_int_equal(dpcr_safetensors_write(path, &tensors, NULL), DPCR_OK);
        REFUSED(dpcr_recurrent_load(context, path, NULL, cases[k].kind, &network, &error), DPCR_ERROR_FORMAT,
                cases[k].words);
        REFUSED(dpcr_recurrent_load(context, path, NULL, cases[k].kind, &network, &error), DPCR_ERROR_FORMAT, path);
        assert_null(network);
        remove(path);
    }
    dpcr_context_destroy(context);
}

// Of several layers or directions, each tensor in turn is left out, or stands some layers further on.
static void test_files_with_a_gap(void **state) {
    (void)state;
    static const char *const names[] = {"rnn", "gru", "lstm", "lstm_projected", "paragru", "paralstm", "mingru"};
    dpcr_context *context = make_context(1);
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        const dpcr_recurrent_kind kind = strcmp(names[f], "mingru") == 0 ? DPCR_MINGRU : 0;
        dpcr_recurrent *network = NULL;
        dpcr_tensors t = {0};
        char whole[512];
        int64_t tried = 0;
        snprintf(whole, sizeof whole, FIXTURES "/recurrent_%s_deep.safetensors", names[f]);
        assert_int_equal(dpcr_safetensors_read(context, whole, &t, NULL), DPCR_OK);
        assert_int_equal(dpcr_recurrent_load(context, whole, NULL, kind, &network, NULL), DPCR_OK);
        const int64_t parameters = dpcr_recurrent_parameter_count(network);
        dpcr_recurrent_destroy(network);
        for (int64_t i = 0; i < t.count; i++) {
            char *const name = t.items[i].name;
            if (!strstr(name, "_l") || strncmp(name, "grad.", 5) == 0) continue;
            tried++;
            for (int moved = 0; moved < 2; moved++) {
                char path[] = "dpcr_test_recurrent_XXXXXX", other[64] = "another";
                close(mkstemp(path));
                if (moved)
                    snprintf(other, sizeof other, "%.*s_l9%s", (int)(strstr(name, "_l") - name), name,
                             strstr(name, "_reverse") ? "_reverse" : "");
                t.items[i].name = other;
                assert_int_equal(dpcr_safetensors_write(path, &t, NULL), DPCR_OK);
                t.items[i].name = name;
                REFUSED(dpcr_recurrent_load(context, path, NULL, kind, &network, &error), DPCR_ERROR_FORMAT,
                        "tensor '");
                assert_null(network);
                remove(path);
            }
        }
        assert_int_equal(tried, parameters);
        dpcr_tensors_free(context, &t);
    }
    dpcr_context_destroy(context);
}

// A file that announces widths which its later tensors do not have is refused before memory of that size is asked for.
static void test_files_that_lie(void **state) {
    (void)state;
    static const char *const broken[] = {"weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse", "weight_ih_l1",
                                         "weight_hh_l1"};
    enum { I = 3000, H = 50, GATES = 4 * H };
    for (size_t k = 0; k < sizeof broken / sizeof broken[0]; k++) {
        const char *const names[] = {"weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse",
                                     "weight_ih_l1", "weight_hh_l1", "weight_ih_l1_reverse", "weight_hh_l1_reverse"};
        char copies[8][64], path[] = "dpcr_test_recurrent_XXXXXX";
        dpcr_tensor items[8];
        float *zeros = calloc(GATES * I, sizeof *zeros);
        for (int i = 0; i < 8; i++) {
            const bool bad = strcmp(names[i], broken[k]) == 0;
            const int64_t columns = i % 2 ? H : i < 4 ? I : 2 * H;
            const int64_t shape[2] = {bad && i != 1 ? 1 : GATES, bad && i == 1 ? 7 : columns};
            snprintf(copies[i], sizeof copies[i], "%s", names[i]);
            items[i] = (dpcr_tensor){.name = copies[i], .array = dpcr_array_make(zeros, DPCR_F32, 2, shape)};
        }
        const dpcr_tensors tensors = {.count = 8, .items = items};
        close(mkstemp(path));
        assert_int_equal(dpcr_safetensors_write(path, &tensors, NULL), DPCR_OK);
        free(zeros);
        budget b = {.left = INT64_MAX};
        const dpcr_context_options options = budget_options(&b);
        dpcr_context *context;
        assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
        dpcr_recurrent *network = NULL;
        const int64_t before = b.left;
        dpcr_tensors read = {0};
        assert_int_equal(dpcr_safetensors_read(context, path, &read, NULL), DPCR_OK);
        const int64_t reading = before - b.left;
        dpcr_tensors_free(context, &read);
        REFUSED(dpcr_recurrent_load(context, path, NULL, 0, &network, &error), DPCR_ERROR_FORMAT,
                k ? broken[k] : "weight_hh_l0");
        assert_int_equal(before - b.left, 2 * reading);  // the reader's requests and no others
        assert_null(network);
        dpcr_context_destroy(context);
        assert_int_equal(b.live, 0);
        remove(path);
    }
}

// Every request for memory refused in turn, through create, plan (with and without a sample), a pass whose blocks do
// not fit the stack, and back: DPCR_ERROR_MEMORY each time, nothing leaks, and with one request more it goes on.
static void test_memory_refused(void **state) {
    (void)state;
    enum { T = 3, B = 40, I = 5, H = 200 };
    const dpcr_solve_options overlapped = {.size = sizeof overlapped,
                                           .method = DPCR_METHOD_SEQUENTIAL,
                                           .backward = DPCR_SCHEME_OVERLAP,
                                           .chunk = 2,
                                           .warm_up = 1};
    for (int sampled = 0; sampled < 2; sampled++) {
        bool done = false;
        for (int64_t granted = 0; !done; granted += TESTS_ONE_OF) {
            assert_true(granted < 500);
            budget b = {.left = INT64_MAX};
            const dpcr_context_options with = budget_options(&b);
            dpcr_context *context;
            assert_int_equal(dpcr_context_create(&with, &context, NULL), DPCR_OK);
            const int64_t own = b.live;
            const dpcr_recurrent_options options = {
                .size = sizeof options, .kind = DPCR_LSTM, .inputs = I, .hidden = H, .bidirectional = 1, .layers = 2};
            dpcr_recurrent *network = NULL;
            dpcr_recurrent_plan *plan = NULL;
            dpcr_error error = {0};
            dpcr_recurrent_pass pass = {
                .size = sizeof pass, .x = make(DPCR_F32, T, B, I), .y = make(DPCR_F32, T, B, 2 * H)};
            dpcr_recurrent_gradients gradients = {.size = sizeof gradients, .y = make(DPCR_F32, T, B, 2 * H)};
            const dpcr_recurrent_plan_options wanted = {
                .size = sizeof wanted,
                .length = T,
                .batch = B,
                .training = 1,
                .solve = sampled ? (dpcr_solve_options){.size = sizeof wanted.solve} : overlapped,
                .sample = sampled ? &pass : NULL};
            void *tape = NULL, *workspace = NULL;
            b.left = granted;
            dpcr_status status = dpcr_recurrent_create(context, &options, &network, &error);
            if (status == DPCR_OK) status = dpcr_recurrent_plan_create(network, &wanted, &plan, &error);
            if (status == DPCR_OK) {
                const size_t bytes = dpcr_recurrent_plan_workspace(plan);
                workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
                tape = aligned_alloc(64, (dpcr_recurrent_plan_tape(plan) + 127) / 64 * 64);
                status = dpcr_recurrent_execute(plan, &pass, tape, workspace, bytes, NULL, &error);
                if (status == DPCR_OK)
                    status = dpcr_recurrent_backward(plan, &pass, &gradients, tape, workspace, bytes, NULL, &error);
            }
            done = status == DPCR_OK;
            if (!done && status != DPCR_ERROR_MEMORY) fail_msg("%d granted: %s", (int)granted, error.text);
            dpcr_recurrent_plan_destroy(plan);
            dpcr_recurrent_destroy(network);
            assert_int_equal(b.live, own);
            b.left = INT64_MAX;
            dpcr_context_destroy(context);
            free(tape), free(workspace), free(pass.x.data), free(pass.y.data), free(gradients.y.data);
        }
    }
}

// NaN and infinity past the ends of a packed batch change nothing: outputs, states, and every gradient.
static void test_padding_may_hold_anything(void **state) {
    (void)state;
    enum { T = 7, B = 4, I = 3, H = 9 };
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int both = 0; both < 2; both++) {
            const dpcr_recurrent_options options = {
                .kind = kinds[k], .inputs = I, .hidden = H, .layers = 2, .bidirectional = both};
            float *kept = NULL;
            for (int dirty = 0; dirty < 2; dirty++) {
                job j = random_job(context, options, T, B);
                static const int64_t lengths[B] = {7, 2, 0, 5};
                memcpy(j.lengths, lengths, sizeof lengths);
                j.pass.lengths = j.lengths;
                for (int64_t b = 0; b < B; b++)
                    for (int64_t t = lengths[b]; dirty && t < T; t++) {
                        for (int64_t i = 0; i < I; i++) put(&j.pass.x, (t * B + b) * I + i, i ? INFINITY : NAN);
                        const int64_t D = both + 1;
                        for (int64_t i = 0; i < D * H; i++) put(&j.gradients.y, (t * B + b) * D * H + i, NAN);
                    }
                open_plan(&j, the_loop, true);
                forward(&j);
                backward(&j);
                int64_t count;
                dpcr_recurrent_vector(j.network, &count);
                const float *g = dpcr_recurrent_gradient_vector(j.network);
                for (int64_t i = 0; i < count; i++) assert_true(isfinite(g[i]));
                if (!dirty) {
                    kept = malloc((size_t)count * sizeof *kept);
                    memcpy(kept, g, (size_t)count * sizeof *kept);
                } else {
                    assert_memory_equal(g, kept, (size_t)count * sizeof *kept);
                    free(kept);
                }
                close_plan(&j);
                free_pass(&j);
                dpcr_recurrent_destroy(j.network);
            }
        }
    dpcr_context_destroy(context);
}

// 150 sequences, more than the kernels take together: each has the bits that it has alone, forward and back.
static void test_many_sequences(void **state) {
    (void)state;
    enum { T = 5, B = 150, I = 2, H = 11 };
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const dpcr_recurrent_options options = {.kind = kinds[k], .inputs = I, .hidden = H};
        const dpcr_solve_options ways[] = {the_loop,
                                           {.size = sizeof(dpcr_solve_options),
                                            .method = DPCR_METHOD_OVERLAP,
                                            .backward = DPCR_SCHEME_OVERLAP,
                                            .chunk = 2,
                                            .warm_up = 1,
                                            .atol = -1,
                                            .rtol = -1}};
        for (int way = 0; way < 2; way++) {
            job all = random_job(context, options, T, B);
            open_plan(&all, ways[way], true);
            forward(&all);
            backward(&all);
            for (int64_t b = 0; b < B; b += 37) {
                job one = random_job(context, options, T, 1);
                for (int64_t t = 0; t < T; t++) {
                    for (int64_t i = 0; i < I; i++) put(&one.pass.x, t * I + i, get(&all.pass.x, (t * B + b) * I + i));
                    for (int64_t i = 0; i < H; i++)
                        put(&one.gradients.y, t * H + i, get(&all.gradients.y, (t * B + b) * H + i));
                }
                for (int64_t i = 0; i < H; i++) put(&one.pass.h0, i, get(&all.pass.h0, b * H + i));
                for (int64_t i = 0; one.pass.c0.data && i < H; i++) put(&one.pass.c0, i, get(&all.pass.c0, b * H + i));
                open_plan(&one, the_loop, true);
                forward(&one);
                backward(&one);
                for (int64_t t = 0; t < T; t++) {
                    for (int64_t i = 0; i < H; i++)
                        assert_true(get(&one.pass.y, t * H + i) == get(&all.pass.y, (t * B + b) * H + i));
                    for (int64_t i = 0; i < I; i++)
                        assert_true(get(&one.gradients.x, t * I + i) == get(&all.gradients.x, (t * B + b) * I + i));
                }
                close_plan(&one);
                free_pass(&one);
                dpcr_recurrent_destroy(one.network);
            }
            close_plan(&all);
            free_pass(&all);
            dpcr_recurrent_destroy(all.network);
        }
    }
    dpcr_context_destroy(context);
}

// A named method whose backward scheme is left open is planned over the sample, or goes back by the loop where there is
// none; and overlap's tape is that of its states, also where too short a run-up made it run chunks again: the loop's
// gradients, bit for bit.
static void test_open_schemes_and_repaired_tapes(void **state) {
    (void)state;
    enum { T = 400, B = 2 };
    dpcr_context *context = make_context(2);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const dpcr_recurrent_options options = {.kind = kinds[k], .inputs = 3, .hidden = 12};
        float *kept = NULL;
        for (int way = 0; way < 4; way++) {
            dpcr_solve_options solve = the_loop;
            if (way > 0)
                solve = (dpcr_solve_options){.size = sizeof solve,
                                             .method = DPCR_METHOD_OVERLAP,
                                             .chunk = way == 1 ? 100 : 13,
                                             .warm_up = way == 1 ? 90 : 1,
                                             .max_sweeps = way == 3 ? 1 : 40,
                                             .atol = -1,
                                             .rtol = -1};
            job j = random_job(context, options, T, B);
            if (way == 2) solve.backward = DPCR_SCHEME_SEQUENTIAL;
            if (way == 1) {  // without a sample
                const dpcr_recurrent_plan_options open = {
                    .size = sizeof open, .length = T, .batch = B, .training = 1, .solve = solve};
                assert_int_equal(dpcr_recurrent_plan_create(j.network, &open, &j.plan, NULL), DPCR_OK);
                assert_int_equal(dpcr_solve_plan_backward(dpcr_recurrent_plan_chain(j.plan, 0)),
                                 DPCR_SCHEME_SEQUENTIAL);
                dpcr_recurrent_plan_destroy(j.plan);
                open_plan(&j, solve, false);  // and not for training, with one
                forward(&j);
                close_plan(&j);
                solve.backward = DPCR_SCHEME_SEQUENTIAL;
            }
            open_plan(&j, solve, true);
            forward(&j);
            backward(&j);
            int64_t count;
            dpcr_recurrent_vector(j.network, &count);
            const float *g = dpcr_recurrent_gradient_vector(j.network);
            if (way == 0) {
                kept = malloc((size_t)count * sizeof *kept);
                memcpy(kept, g, (size_t)count * sizeof *kept);
            } else if (dpcr_solve_plan_backward(dpcr_recurrent_plan_chain(j.plan, 0)) == DPCR_SCHEME_SEQUENTIAL) {
                assert_memory_equal(g, kept, (size_t)count * sizeof *kept);
            }
            close_plan(&j);
            free_pass(&j);
            dpcr_recurrent_destroy(j.network);
        }
        free(kept);
    }
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory_shared),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_metadata_that_lie),
        cmocka_unit_test(test_files_with_a_gap),
        cmocka_unit_test(test_files_that_create_refuses),
        cmocka_unit_test(test_files_that_lie),
        cmocka_unit_test(test_memory_refused),
        cmocka_unit_test(test_padding_may_hold_anything),
        cmocka_unit_test(test_many_sequences),
        cmocka_unit_test(test_open_schemes_and_repaired_tapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
