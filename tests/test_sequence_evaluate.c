// SPDX-License-Identifier: MIT
// Evaluation of sequence models, and of deep layers: what is long goes by in pieces, with the loop's bits and without
// memory for all of its states; the worst of all solves is told.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "deeppcr/sequence.h"
#include "model/recurrent_internal.h"
#include "sampled.h"
#include "swapping.h"
#include "train/sequence.h"
#include "training.h"

enum { CLASSES = 3, FEATURES = 2, SYMBOLS = 7, HIDDEN = 5, LONGEST = 20000, SEQUENCES = 11, STEPS = 131072 + 60077 };

static dpcr_sequence_options model_options(dpcr_recurrent_kind kind, dpcr_readout readout) {
    const bool each = readout == DPCR_READOUT_EACH;
    return (dpcr_sequence_options){
        .size = sizeof(dpcr_sequence_options),
        .network = {.kind = kind, .inputs = each ? 3 : FEATURES, .hidden = HIDDEN, .layers = 2, .seed = 9},
        .symbols = each ? SYMBOLS : 0,
        .outputs = each ? SYMBOLS : CLASSES,
        .readout = readout};
}

// ---- memory ----

static size_t largest;  // request of memory

static void *note_allocation(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (bytes > largest) largest = bytes;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void note_release(void *user, void *memory) {
    (void)user;
    free(memory);
}

static dpcr_context *noting_context(int threads) {
    const dpcr_context_options options = {
        .size = sizeof options, .threads = threads, .allocate = note_allocation, .release = note_release};
    dpcr_context *context = NULL;
    assert_int_equal(dpcr_context_create(&options, &context, NULL), DPCR_OK);
    return context;
}

static void read_far(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    *label = (uint8_t)(index % CLASSES);
    *length = user ? LONGEST : index == 2 ? 1 : LONGEST - 1501 * index;
    for (int64_t i = 0; i < *length * FEATURES; i++)
        x[i] =
            (float)((double)dpcri_random_below(5, DPCRI_STREAM_DATA, (uint64_t)(index * LONGEST + i), 2001) / 500 - 2);
}

// A batch in pieces: the loop's bits, and no request as large as that of all its states.
static void long_batches_in_pieces(void **state) {
    (void)state;
    static int same;
    static const dpcr_recurrent_kind kinds[] = {DPCR_GRU, DPCR_LSTM};
    for (int k = TESTS_SANITIZED; k < 2; k++) {
        dpcr_context *context = noting_context(1 + k);
        dpcr_sequence *model = make_sequence(context, model_options(kinds[k], DPCR_READOUT_LAST));
        const dpcr_sequence_data data = {.size = sizeof data,
                                         .count = SEQUENCES,
                                         .longest = LONGEST,
                                         .same_length = k == 1,
                                         .features = FEATURES,
                                         .read = read_far,
                                         .user = k == 1 ? &same : NULL};
        const dpcr_solve_options loop = {.size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL};
        const dpcri_sequence_shape whole = {.length = LONGEST, .batch = 8, .packed = k != 1};
        dpcri_sequence_pass pass;
        largest = 0;
        assert_int_equal(dpcri_sequence_pass_create(&pass, model, &whole, NULL), DPCR_OK);
        double sum = 0, loss, other;
        dpcr_reason reason = 0;
        for (int64_t first = 0; first < SEQUENCES; first += 8) {
            const int64_t rows = SEQUENCES - first < 8 ? SEQUENCES - first : 8;
            int64_t correct;
            assert_int_equal(dpcri_sequence_gather("here", &pass, &data, NULL, first, NULL), DPCR_OK);
            if (first == 0) assert_int_equal(dpcri_sequence_pass_plan(&pass, &loop, NULL), DPCR_OK);
            assert_int_equal(dpcri_sequence_forward(&pass, rows, false, &loss, &correct, NULL), DPCR_OK);
            sum += loss * (double)rows;
        }
        const size_t whole_largest = largest;
        dpcri_sequence_pass_destroy(&pass);
        largest = 0;
        assert_int_equal(dpcr_sequence_evaluate(context, model, &data, 8, &loop, &loss, NULL, &reason, NULL), DPCR_OK);
        assert_true(loss == sum / SEQUENCES && reason == DPCR_REASON_SEQUENTIAL && 5 * largest < 4 * whole_largest);
        assert_int_equal(dpcr_sequence_evaluate(context, model, &data, 8, NULL, &other, NULL, NULL, NULL), DPCR_OK);
        assert_true(fabs(other - loss) < 1e-5);
        dpcr_sequence_destroy(model);
        dpcr_context_destroy(context);
    }
}

// The same of a text, whose states go from stretch to stretch.
static void long_texts_in_stretches(void **state) {
    (void)state;
    static uint8_t far[STEPS + 1];
    for (int64_t i = 0; i <= STEPS; i++)
        far[i] = (uint8_t)dpcri_random_below(6, DPCRI_STREAM_DATA, (uint64_t)i / 2, SYMBOLS);
    static const dpcr_recurrent_kind kinds[] = {DPCR_GRU, DPCR_LSTM};
    for (int k = TESTS_SANITIZED; k < 2; k++) {
        dpcr_context *context = noting_context(2);
        dpcr_sequence *model = make_sequence(context, model_options(kinds[k], DPCR_READOUT_EACH));
        const dpcri_sequence_shape whole = {.length = STEPS, .batch = 1, .states_only = true};
        dpcri_sequence_pass pass;
        dpcr_solve_options solve = {.size = sizeof solve, .method = DPCR_METHOD_SEQUENTIAL};
        largest = 0;
        assert_int_equal(dpcri_sequence_pass_create(&pass, model, &whole, NULL), DPCR_OK);
        for (int64_t t = 0; t < STEPS; t++) pass.symbols[t] = far[t];
        memcpy(pass.labels, far + 1, STEPS);
        assert_int_equal(dpcri_sequence_pass_plan(&pass, &solve, NULL), DPCR_OK);
        const size_t whole_largest = largest;
        double wanted = 0;
        int64_t correct = 0;
        assert_int_equal(dpcri_sequence_forward(&pass, 0, false, &wanted, &correct, NULL), DPCR_OK);
        dpcri_sequence_pass_destroy(&pass);
        static const dpcr_method methods[] = {DPCR_METHOD_SEQUENTIAL, DPCR_METHOD_OVERLAP, DPCR_METHOD_AUTO};
        for (int i = 0; i < (TESTS_SANITIZED ? 1 : 3); i++) {
            dpcr_sequence_likelihood_report report = {.size = sizeof report, .seconds = -1e9};
            solve.method = methods[i];
            largest = 0;
            assert_int_equal(dpcr_sequence_likelihood(context, model, far, STEPS + 1, &solve, &report, NULL), DPCR_OK);
            assert_true(fabs(report.loss - wanted) < (i ? 1e-6 : 1e-12) && report.seconds > 0);
            if (!i) assert_true(report.accuracy == (double)correct / STEPS);
            // AUTO measures the machine, which takes more.
            assert_true((i == 2 || 5 * largest < 4 * whole_largest) && report.network_seconds <= report.seconds);
        }
        dpcr_sequence_destroy(model);
        dpcr_context_destroy(context);
    }
}

// ---- reasons ----

// What had to be finished in order is told, of whichever batch, piece or stretch that was.
static void read_one(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    *length = index == *(const int64_t *)user ? 400 : 1;
    *label = 0;
    for (int64_t i = 0; i < *length * FEATURES; i++) x[i] = 1;
}

static void the_worst_is_told(void **state) {
    (void)state;
    dpcr_context *context = make_context(1);
    dpcr_sequence *last = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_LAST)),
                  *each = make_sequence(context, model_options(DPCR_GRU, DPCR_READOUT_EACH));
    dpcr_solve_options solve = {.size = sizeof solve, .method = DPCR_METHOD_NEWTON, .max_sweeps = 1};
    // One step a sequence is solved by one sweep, and more are not: in the first batch, or in the last.
    for (int64_t long_one = 0; long_one < 12; long_one += 11) {
        const dpcr_sequence_data data = {.size = sizeof data,
                                         .count = 12,
                                         .longest = 400,
                                         .features = FEATURES,
                                         .read = read_one,
                                         .user = &long_one};
        dpcr_reason reason = 0;
        double loss, wanted;
        assert_int_equal(dpcr_sequence_evaluate(context, last, &data, 3, &solve, &loss, NULL, &reason, NULL), DPCR_OK);
        assert_int_equal(reason, DPCR_REASON_FALLBACK);
        assert_int_equal(dpcr_sequence_evaluate(context, last, &data, 3, NULL, &wanted, NULL, &reason, NULL), DPCR_OK);
        assert_true(fabs(loss - wanted) < 1e-6 && reason != DPCR_REASON_FALLBACK);
    }
    dpcr_sequence_destroy(last);
    dpcr_sequence_destroy(each);
    dpcr_context_destroy(context);
}

// A batch through many layers goes in pieces of rows, whole vectors of them: 38 MB of states are 31.
static void deep_layers_in_pieces(void **state) {
    (void)state;
    static small_data images;
    enum { ROWS = 200, DEPTH = 12000 };
    dpcr_context *context = noting_context(2);
    const dpcr_model_options o = resnet_options(DEPTH, 4, DPCR_F32);
    dpcr_model *model = make_model(context, &o);
    const dpcr_dataset *set = make_data(&images, ROWS, 3);
    const dpcr_solve_options loop = {
        .size = sizeof loop, .method = DPCR_METHOD_SEQUENTIAL, .backward = DPCR_SCHEME_SEQUENTIAL};
    const int64_t batches[] = {16, 97, 200, 10000};
    double wanted = 0, correct = 0, loss, accuracy;
    dpcr_reason reason;
    for (int i = 0; i < 4; i++) {
        largest = 0;
        assert_int_equal(dpcr_evaluate(context, model, set, batches[i], &loop, &loss, &accuracy, &reason, NULL),
                         DPCR_OK);
        if (i == 0) wanted = loss, correct = accuracy;
        assert_true(isfinite(loss) && fabs(loss - wanted) < 1e-12 && accuracy == correct);
        assert_int_equal(reason, DPCR_REASON_SEQUENTIAL);
        if (largest > 1 << 25) fail_msg("batch %d: %zu bytes", (int)batches[i], largest);
    }
    dpcr_model_destroy(model);
    dpcr_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_batches_in_pieces),
        cmocka_unit_test(long_texts_in_stretches),
        cmocka_unit_test(the_worst_is_told),
        cmocka_unit_test(deep_layers_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
