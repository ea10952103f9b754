// SPDX-License-Identifier: MIT
// ONNX: protobuf's fields, models of torch.onnx.export as PyTorch's tensors, every cut of a file, out of memory. What
// the weights compute is compared in cli_convert.sh.
#include "data/protobuf.h"
#include "data/tensors.h"
#include "data_testing.h"

static dpcri_span span_of(const unsigned char *at, size_t count) { return (dpcri_span){at, at + count}; }

static void varints(void **state) {
    (void)state;
    static const struct {
        unsigned char bytes[12];
        size_t count, used;  // used 0: refused
        uint64_t value;
    } cases[] = {
        {{0}, 1, 1, 0},
        {{0x7f, 0xff}, 2, 1, 127},
        {{0x80, 0x01}, 2, 2, 128},
        {{0x80, 0x80, 0x00}, 3, 3, 0},  // longer than needed is allowed
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 10, 10, UINT64_MAX},
        {{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 10, 10, (uint64_t)1 << 63},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}, 10, 0, 0},
        {{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00}, 11, 0, 0},
        {{0x80}, 1, 0, 0},
        {{0}, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dpcri_span rest = span_of(cases[i].bytes, cases[i].count);
        uint64_t value;
        const bool read = dpcri_varint_next(&rest, &value);
        assert_int_equal(read, cases[i].used != 0);
        if (!read) continue;
        assert_true(value == cases[i].value);
        assert_ptr_equal(rest.at, cases[i].bytes + cases[i].used);
    }
}

static void fields(void **state) {
    (void)state;
    static const unsigned char message[] = {0x08, 0x96, 0x01,                         // 1: varint 150
                                            0x12, 0x02, 'h',  'i',                    // 2: bytes
                                            0x1d, 1,    2,    3,   4,                 // 3: fixed32
                                            0xf9, 0x01, 1,    2,   3, 4, 5, 6, 7, 8,  // 31: fixed64
                                            0x2a, 0x00};                              // 5: no bytes
    const unsigned char *fault = NULL;
    dpcri_span rest = span_of(message, sizeof message);
    dpcri_field f;
    assert_true(dpcri_field_next(&rest, &f, &fault));
    assert_true(f.number == 1 && f.wire == DPCRI_VARINT && f.value == 150);
    assert_true(dpcri_field_next(&rest, &f, &fault));
    assert_true(f.number == 2 && f.wire == DPCRI_BYTES && dpcri_span_is(f.bytes, "hi") && !dpcri_span_is(f.bytes, "h"));
    assert_true(dpcri_field_next(&rest, &f, &fault));
    assert_true(f.number == 3 && f.wire == DPCRI_FIXED32 && dpcri_span_bytes(f.bytes) == 4 && f.bytes.at[3] == 4);
    assert_true(dpcri_field_next(&rest, &f, &fault));
    assert_true(f.number == 31 && f.wire == DPCRI_FIXED64 && dpcri_span_bytes(f.bytes) == 8 && f.bytes.at[7] == 8);
    assert_true(dpcri_field_next(&rest, &f, &fault));
    assert_true(f.number == 5 && dpcri_span_is(f.bytes, ""));
    assert_false(dpcri_field_next(&rest, &f, &fault));
    assert_null(fault);
}

static void refuses_what_is_no_field(void **state) {
    (void)state;
    static const struct {
        unsigned char bytes[12];
        size_t count;
    } bad[] = {
        {{0x00, 0x00}, 2},  // number 0
        {{0x0b, 0x0c}, 2},  // a group
        {{0x0e, 0x00}, 2},  // wire types 6 and 7
        {{0x0f, 0x00}, 2},
        {{0x80, 0x80, 0x80, 0x80, 0x10, 0x00}, 6},  // number 2^29
        {{0x0a, 0x01}, 2},                          // cut short, each kind
        {{0x0a}, 1},
        {{0x08}, 1},
        {{0x08, 0x80}, 2},
        {{0x0d, 1, 2, 3}, 4},
        {{0x09, 1, 2, 3, 4, 5, 6, 7}, 8},
        {{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 11},  // 2^64 - 1 bytes
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        unsigned char *exact = malloc(bad[i].count);
        assert_non_null(exact);
        memcpy(exact, bad[i].bytes, bad[i].count);
        const unsigned char *fault = NULL;
        dpcri_span rest = span_of(exact, bad[i].count);
        dpcri_field f;
        assert_false(dpcri_field_next(&rest, &f, &fault));
        assert_ptr_equal(fault, exact);
        assert_false(dpcri_field_next(&rest, &f, &fault));  // and stays so
        free(exact);
    }
}

static void compares_as_strcmp(void **state) {
    (void)state;
    static const char *const words[] = {"", "a", "a\x80", "ab", "b"};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            const dpcri_span a = span_of((const unsigned char *)words[i], strlen(words[i])),
                             b = span_of((const unsigned char *)words[j], strlen(words[j]));
            const int got = dpcri_span_compare(a, b), wanted = strcmp(words[i], words[j]);
            assert_int_equal((got > 0) - (got < 0), (wanted > 0) - (wanted < 0));
        }
}

static void assert_shape(const dpcr_tensors *t, const char *name, int64_t rows, int64_t columns) {
    const dpcr_tensor *tensor = dpcr_tensors_find(t, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->array.dtype, DPCR_F32);
    assert_int_equal(tensor->array.ndim, columns ? 2 : 1);
    assert_int_equal(tensor->array.shape[0], rows);
    if (columns) assert_int_equal(tensor->array.shape[1], columns);
}

static void reads_torchs_export(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    assert_int_equal(dpcr_onnx_read_recurrent(s->context, FIXTURES "/onnx_lstm_both.onnx", NULL, &t, &s->error),
                     DPCR_OK);
    assert_int_equal(t.count, 16);
    assert_shape(&t, "weight_ih_l0", 16, 3);
    assert_shape(&t, "weight_hh_l0_reverse", 16, 4);
    assert_shape(&t, "weight_ih_l1_reverse", 16, 8);
    assert_shape(&t, "bias_hh_l1", 16, 0);
    assert_int_equal(t.metadata_count, 2);
    assert_string_equal(dpcr_tensors_metadata(&t, "deeppcr.recurrent"), "lstm");
    assert_string_equal(dpcr_tensors_metadata(&t, "onnx.layout"), "0");
    dpcr_tensors_free(s->context, &t);
    assert_int_equal(dpcr_onnx_read_recurrent(s->context, FIXTURES "/onnx_gru_both.onnx", "/GRU_1", &t, &s->error),
                     DPCR_OK);
    assert_int_equal(t.count, 8);
    assert_shape(&t, "weight_ih_l0", 12, 8);
    dpcr_tensors_free(s->context, &t);
}

static void count_external(void *state, const char *file) {
    assert_string_equal(file, FIXTURES "/onnx_lstm_both.onnx.data");
    ++*(int *)state;
}

static void tells_external_files(void **state) {
    scratch *s = *state;
    int count = 0;
    const char *const path = FIXTURES "/onnx_lstm_both.onnx";
    assert_int_equal(dpcr_onnx_external_files(s->context, path, count_external, &count, &s->error), DPCR_OK);
    assert_true(count > 0);
    const int told = count;
    const char *const inside[] = {FIXTURES "/onnx_lstm.onnx", "-"};
    for (int i = 0; i < 2; i++)
        assert_int_equal(dpcr_onnx_external_files(s->context, inside[i], count_external, &count, NULL), DPCR_OK);
    assert_int_equal(count, told);
    assert_refused(s, dpcr_onnx_external_files(NULL, path, count_external, NULL, &s->error), DPCR_ERROR_ARGUMENT,
                   "NULL");
    assert_refused(s, dpcr_onnx_external_files(s->context, NULL, count_external, NULL, &s->error), DPCR_ERROR_ARGUMENT,
                   "NULL");
    assert_refused(s, dpcr_onnx_external_files(s->context, path, NULL, NULL, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_onnx_external_files(s->context, scratch_path(s, "none"), count_external, NULL, &s->error),
                   DPCR_ERROR_IO, "No such file");
    assert_refused(
        s, dpcr_onnx_external_files(s->context, FIXTURES "/package.safetensors", count_external, NULL, &s->error),
        DPCR_ERROR_FORMAT, "package.safetensors");
}

static void refuses_bad_arguments(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    assert_refused(s, dpcr_onnx_read_recurrent(NULL, "x", NULL, &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_onnx_read_recurrent(s->context, NULL, NULL, &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_onnx_read_recurrent(s->context, "x", NULL, NULL, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_onnx_read_recurrent(s->context, scratch_path(s, "none"), NULL, &t, &s->error), DPCR_ERROR_IO,
                   "No such file");
    assert_refused(s, dpcr_onnx_read_recurrent(s->context, FIXTURES "/package.safetensors", NULL, &t, &s->error),
                   DPCR_ERROR_FORMAT, "package.safetensors");
    assert_refused(s, dpcr_onnx_read_recurrent(s->context, FIXTURES "/onnx_lstm.onnx", "no", &t, &s->error),
                   DPCR_ERROR_FORMAT, "no recurrent node 'no', there are '/LSTM', '/LSTM_1'");
    assert_int_equal(dpcr_onnx_read_recurrent(s->context, FIXTURES "/onnx_lstm.onnx", "no", &t, NULL),
                     DPCR_ERROR_FORMAT);
}

// Every prefix is refused, or, cut after the last field that is read, is the whole; nothing beyond the cut is touched.
static void refuses_every_truncation(void **state) {
    scratch *s = *state;
    size_t count = 0, good = 0;
    unsigned char *bytes = load_file(FIXTURES "/onnx_gru_both.onnx", &count);
    for (size_t n = 0; n <= count; n++) {
        unsigned char *cut = malloc(n ? n : 1);
        assert_non_null(cut);
        memcpy(cut, bytes, n);
        const dpcri_source source = dpcri_source_memory("cut", cut, n);
        dpcr_tensors t;
        const dpcr_status status = dpcri_onnx_read_bytes(s->context, NULL, &source, cut, n, NULL, &t, &s->error);
        if (status == DPCR_OK) {
            assert_int_equal(t.count, 16);
            good++;
        } else {
            assert_int_equal(status, DPCR_ERROR_FORMAT);
            assert_null(t.items);
        }
        dpcr_tensors_free(s->context, &t);
        free(cut);
    }
    assert_int_equal(good, 1);
    free(bytes);
}

static void out_of_memory(void **state) {
    scratch *s = *state;
    static const struct {
        const char *path;
        int64_t fewest, most;  // allocations
    } cases[] = {{FIXTURES "/onnx_lstm_both.onnx", 40, 200}, {FIXTURES "/onnx_gru_parts.onnx", 100, 400}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dpcr_tensors t;
        dpcr_status status = DPCR_ERROR_MEMORY;
        const int64_t before = s->memory.live;
        int64_t n = 0;
        for (; status != DPCR_OK; n++) {
            s->memory.fail_at = s->memory.calls + n;
            status = dpcr_onnx_read_recurrent(s->context, cases[i].path, NULL, &t, &s->error);
            if (status == DPCR_OK) break;
            assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
            assert_int_equal(s->memory.live, before);
            assert_true(n < cases[i].most);
        }
        assert_true(n > cases[i].fewest);
        assert_int_equal(t.count, 16);
        dpcr_tensors_free(s->context, &t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(varints),
        cmocka_unit_test(fields),
        cmocka_unit_test(refuses_what_is_no_field),
        cmocka_unit_test(compares_as_strcmp),
        scratch_test(reads_torchs_export),
        scratch_test(tells_external_files),
        scratch_test(refuses_bad_arguments),
        scratch_test(refuses_every_truncation),
        scratch_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
