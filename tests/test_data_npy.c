// SPDX-License-Identifier: MIT
// npy and npz: files of numpy, round trips, every refusal, streams, full disk, out of memory.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include "data/tensors.h"
#include <math.h>

#include "data_testing.h"

static void assert_single(scratch *s, const char *path, dpcr_dtype dtype, int ndim, const int64_t *shape) {
    dpcr_tensors t;
    if (dpcr_npy_read(s->context, path, &t, &s->error) != DPCR_OK) fail_msg("%s", s->error.text);
    assert_int_equal(t.count, 1);
    assert_string_equal(t.items[0].name, "");
    assert_numbers(&t.items[0].array, dtype, ndim, shape);
    dpcr_tensors_free(s->context, &t);
}

static void reads_numpy(void **state) {
    scratch *s = *state;
    assert_single(s, FIXTURES "/numpy_f4.npy", DPCR_F32, SHAPE(3, 4));
    assert_single(s, FIXTURES "/numpy_f8_big.npy", DPCR_F64, SHAPE(5));
    assert_single(s, FIXTURES "/numpy_u4_big.npy", DPCR_U32, SHAPE(2, 3));
    assert_single(s, FIXTURES "/numpy_f4_fortran.npy", DPCR_F32, SHAPE(2, 3, 4));
    assert_single(s, FIXTURES "/numpy_f8_fortran_big.npy", DPCR_F64, SHAPE(4, 3));
    assert_single(s, FIXTURES "/numpy_scalar_v2.npy", DPCR_F64, 0, NULL);
    assert_single(s, FIXTURES "/numpy_empty_v3.npy", DPCR_F32, SHAPE(0, 3));
    assert_single(s, FIXTURES "/numpy_six_dims.npy", DPCR_U32, SHAPE(1, 2, 1, 3, 1, 2));
}

static void assert_members(scratch *s, const char *path) {
    dpcr_tensors t;
    if (dpcr_npy_read(s->context, path, &t, &s->error) != DPCR_OK) fail_msg("%s", s->error.text);
    assert_int_equal(t.count, 3);
    assert_string_equal(t.items[0].name, "a");
    assert_numbers(&t.items[0].array, DPCR_F32, SHAPE(3, 4));
    assert_numbers(&dpcr_tensors_find(&t, "b.c")->array, DPCR_F64, SHAPE(2, 3));
    assert_numbers(&dpcr_tensors_find(&t, "größe")->array, DPCR_U32, SHAPE(700));
    dpcr_tensors_free(s->context, &t);
}

static void reads_numpys_npz(void **state) {
    assert_members(*state, FIXTURES "/numpy_stored.npz");
    assert_members(*state, FIXTURES "/numpy_deflated.npz");
}

static void round_trip_npy(void **state) {
    scratch *s = *state;
    uint64_t memory[64];
    static const dpcr_dtype dtypes[] = {DPCR_F32, DPCR_F64, DPCR_U32};
    static const int64_t shapes[][6] = {{1}, {7}, {3, 5}, {2, 0, 3}, {2, 1, 3, 2, 1, 2}};
    static const int ndims[] = {0, 1, 2, 3, 6};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 5; i++) {
            const dpcr_array array = numbers(memory, dtypes[d], ndims[i], shapes[i]);
            assert_int_equal(dpcr_npy_write(scratch_path(s, "a.npy"), &array, &s->error), DPCR_OK);
            assert_single(s, s->path, dtypes[d], ndims[i], shapes[i]);
        }
    // Our bytes are numpy's.
    size_t ours_count = 0, count = 0;
    const dpcr_array array = numbers(memory, DPCR_F32, SHAPE(3, 4));
    assert_int_equal(dpcr_npy_write(s->path, &array, &s->error), DPCR_OK);
    unsigned char *ours = load_file(s->path, &ours_count), *numpys = load_file(FIXTURES "/numpy_f4.npy", &count);
    assert_int_equal(ours_count, count);
    assert_memory_equal(ours, numpys, count);
    free(ours);
    free(numpys);
}

static void writes_strided_views(void **state) {
    scratch *s = *state;
    double memory[24];
    dpcr_array array = numbers(memory, DPCR_F64, SHAPE(2, 3, 4));
    array.strides[0] = 0;
    array.strides[1] = -4;
    array.data = memory + 8;
    dpcr_tensors t;
    assert_int_equal(dpcr_npy_write(scratch_path(s, "a.npy"), &array, &s->error), DPCR_OK);
    assert_int_equal(dpcr_npy_read(s->context, s->path, &t, &s->error), DPCR_OK);
    for (int i = 0; i < 24; i++) assert_true(element(&t.items[0].array, i) == (2 - i / 4 % 3) * 4 + i % 4 + 0.5);
    dpcr_tensors_free(s->context, &t);
}

typedef struct sample {
    float a[12];
    double b[4];
    uint32_t c[1];
    dpcr_tensor items[4];
    dpcr_tensors tensors;
} sample;

static void make_sample(sample *m) {
    m->items[0] = (dpcr_tensor){"a", numbers(m->a, DPCR_F32, SHAPE(3, 4))};
    m->items[1] = (dpcr_tensor){"b/c", numbers(m->b, DPCR_F64, SHAPE(4))};
    m->items[2] = (dpcr_tensor){"\xc3\xb6", numbers(m->c, DPCR_U32, 0, NULL)};
    m->items[3] = (dpcr_tensor){"", numbers(NULL, DPCR_F32, SHAPE(0))};
    m->tensors = (dpcr_tensors){.count = 4, .items = m->items};
}

static void assert_sample(scratch *s, const char *path) {
    dpcr_tensors t;
    if (dpcr_npy_read(s->context, path, &t, &s->error) != DPCR_OK) fail_msg("%s", s->error.text);
    assert_int_equal(t.count, 4);
    assert_numbers(&t.items[0].array, DPCR_F32, SHAPE(3, 4));
    assert_string_equal(t.items[1].name, "b/c");
    assert_numbers(&t.items[1].array, DPCR_F64, SHAPE(4));
    assert_string_equal(t.items[2].name, "\xc3\xb6");
    assert_numbers(&t.items[2].array, DPCR_U32, 0, NULL);
    assert_numbers(&t.items[3].array, DPCR_F32, SHAPE(0));
    dpcr_tensors_free(s->context, &t);
}

static void round_trip_npz(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    assert_int_equal(dpcr_npz_write(scratch_path(s, "a.npz"), &m.tensors, &s->error), DPCR_OK);
    assert_sample(s, s->path);
    assert_int_equal(dpcri_npz_write(scratch_path(s, "a64.npz"), &m.tensors, true, &s->error), DPCR_OK);
    assert_sample(s, s->path);
    const char *keep = getenv("DEEPPCR_KEEP");  // by hand: a folder, for numpy to load
    if (keep) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/a.npz", keep);
        assert_int_equal(dpcr_npz_write(path, &m.tensors, &s->error), DPCR_OK);
        snprintf(path, sizeof path, "%s/a64.npz", keep);
        assert_int_equal(dpcri_npz_write(path, &m.tensors, true, &s->error), DPCR_OK);
    }
    const dpcr_tensors none = {0};
    dpcr_tensors t;
    assert_int_equal(dpcr_npz_write(scratch_path(s, "none.npz"), &none, &s->error), DPCR_OK);
    assert_int_equal(dpcr_npy_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 0);
    dpcr_tensors_free(s->context, &t);
}

// More members than 16 bits count.
static void many_members(void **state) {
    scratch *s = *state;
    enum { MANY = 65540 };
    float one = 0.5f;
    char(*names)[12] = malloc(MANY * sizeof *names);
    dpcr_tensors t = {.count = MANY, .items = calloc(MANY, sizeof *t.items)};
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        t.items[i] = (dpcr_tensor){names[i], dpcr_array_make(&one, DPCR_F32, 0, NULL)};
    }
    assert_int_equal(dpcr_npz_write(scratch_path(s, "many.npz"), &t, &s->error), DPCR_OK);
    free(t.items);
    free(names);
    assert_int_equal(dpcr_npy_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, MANY);
    assert_string_equal(t.items[MANY - 1].name, "65539");
    dpcr_tensors_free(s->context, &t);
}

// An npy file of version 1.0 with this dictionary and so many bytes of data.
static const char *write_npy(scratch *s, const char *text, size_t data_bytes) {
    unsigned char bytes[1024] = "\x93NUMPY\1";
    const size_t length = strlen(text);
    assert_true(10 + length + data_bytes <= sizeof bytes);
    bytes[8] = (unsigned char)length;
    bytes[9] = (unsigned char)(length >> 8);
    memcpy(bytes + 10, text, length);
    return scratch_write(s, "x.npy", bytes, 10 + length + data_bytes);
}

static void reads_other_spellings(void **state) {
    scratch *s = *state;
    static const char *const good[] = {
        "{'descr':'<f4','fortran_order':False,'shape':(2,)}",
        "{\"shape\" : ( 2 , ) , \"fortran_order\":False,\"descr\":\"<f4\" , }  \n",
        "\n{ 'fortran_order': True, 'shape': (2,), 'descr': '>f4'}\t",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,), }",
    };
    dpcr_tensors t;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(dpcr_npy_read(s->context, write_npy(s, good[i], 8), &t, &s->error), DPCR_OK);
        assert_int_equal(t.items[0].array.shape[0], 2);
        dpcr_tensors_free(s->context, &t);
    }
}

static void refuses_bad_npy_headers(void **state) {
    scratch *s = *state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *text;
    } bad[] = {
        {"", 0, "got its end, wanted '{'"},
        {"[]", 0, "got '[', wanted '{'"},
        {"\x80", 0, "got byte 0x80, wanted '{'"},
        {"{", 0, "wanted a key in quotes"},
        {"{'descr", 0, "wanted the end of a string"},
        {"{'de\\x73cr'", 0, "wanted a string without escapes"},
        {"{'descr' '<f4'}", 0, "wanted ':'"},
        {"{}", 0, "a key is missing"},
        {"{'descr': '<f4', 'shape': (2,)}", 8, "a key is missing"},
        {"{,}", 0, "wanted a key in quotes"},
        {"{'descr': '<f4' 'shape': (2,)}", 8, "wanted ',' or '}'"},
        {"{'descr': '<f4', 'descr': '<f4'}", 8, "key 'descr' stands twice"},
        {"{'more': 1}", 8, "got key 'more', wanted descr"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, "wanted nothing after the dictionary"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, "wanted True or False"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 2}", 8, "wanted '('"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", 8, "wanted ',' after the only extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 2)}", 8, "wanted ',' or ')'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, "got '-', wanted an extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,)}", 8, "wanted ',' or ')'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2LL,)}", 8, "wanted ',' or ')'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", 8, "got ',', wanted an extent"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, "does not fit 63 bits"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 8, "does not fit 63 bits"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4294967296, 4294967296)}", 0, "does not fit 63 bits"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1)}", 4, "more than 6 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 7, "cut short: got at most 7 bytes, wanted 8"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 9, "more bytes than its header says"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", 8,
         "got at most 8 bytes, wanted 4000000000000"},
        {"{'descr': '|f4', 'fortran_order': False, 'shape': (2,)}", 8,
         "got dtype '|f4', wanted f2, f4, f8, i1 to i8, u1 to u8 or b1"},
        {"{'descr': '=f4', 'fortran_order': False, 'shape': (2,)}", 8, "got dtype '=f4'"},
        {"{'descr': 'f4', 'fortran_order': False, 'shape': (2,)}", 8, "got dtype 'f4'"},
        {"{'descr': '<f4 and a tail that is longer than the buffer', 'fortran_order': False, 'shape': (2,)}", 8,
         "got dtype '<f4 and"},
        {"{'descr': '<\x1b', 'fortran_order': False, 'shape': (2,)}", 8, "got dtype '<?'"},
    };
    dpcr_tensors t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = write_npy(s, bad[i].header, bad[i].data_bytes);
        assert_refused(s, dpcr_npy_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, bad[i].text);
        assert_int_equal(t.count, 0);
        assert_null(t.items);
    }
    for (size_t i = 0; i < 2; i++) {  // whole numbers, which rows are not read of
        const char *path = i ? FIXTURES "/numpy_bytes.npy" : FIXTURES "/numpy_int64.npy";
        dpcr_array array;
        assert_int_equal(dpcr_npy_read(s->context, path, &t, &s->error), DPCR_OK);
        assert_true(t.items[0].array.dtype == DPCR_F64 && t.items[0].array.shape[0] == 3);
        for (int k = 0; k < 3; k++) assert_true(((double *)t.items[0].array.data)[k] == k);
        dpcr_tensors_free(s->context, &t);
        assert_refused(s, dpcr_npy_look(s->context, path, &array, &s->error), DPCR_ERROR_FORMAT, "whole numbers");
    }
    assert_refused(s, dpcr_npy_read(s->context, FIXTURES "/numpy_structured.npy", &t, &s->error), DPCR_ERROR_FORMAT,
                   "no structured ones");
}

// Every kind of whole number at its ends, in both orders of bytes; what float64 does not hold is refused.
static void reads_whole_numbers(void **state) {
    scratch *s = *state;
    static const struct {
        const char *descr;
        unsigned char bytes[8];
        double value;
    } cases[] = {
        {"|b1", {1}, 1},
        {"|i1", {0x80}, -128},
        {"|u1", {0xff}, 255},
        {"<i2", {0xfe, 0xff}, -2},
        {">i2", {0x7f, 0xff}, 32767},
        {"<u2", {0xff, 0xff}, 65535},
        {"<i4", {0, 0, 0, 0x80}, -2147483648.0},
        {">i4", {0, 0, 1, 2}, 258},
        {"<i8", {0, 0, 0, 0, 0, 0, 0x20, 0}, 9007199254740992.0},
        {">i8", {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf9}, -7},
        {"<u8", {3, 1}, 259},
        {"<i8", {1, 0, 0, 0, 0, 0, 0x20, 0}, NAN},
        {"<i8", {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xdf, 0xff}, NAN},
        {"<u8", {0, 0, 0, 0, 0, 0, 0, 0x80}, NAN},
    };
    dpcr_tensors t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[80];
        const size_t size = (size_t)(cases[i].descr[2] - '0');
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,)}", cases[i].descr);
        const char *path = write_npy(s, header, 0);
        FILE *file = fopen(path, "ab");
        assert_non_null(file);
        for (int k = 0; k < 2; k++) assert_int_equal(fwrite(cases[i].bytes, 1, size, file), size);
        fclose(file);
        if (cases[i].value != cases[i].value) {
            assert_refused(s, dpcr_npy_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, "beyond 2^53");
            continue;
        }
        assert_int_equal(dpcr_npy_read(s->context, path, &t, &s->error), DPCR_OK);
        const double *got = t.items[0].array.data;
        if (got[0] != cases[i].value || got[1] != cases[i].value)
            fail_msg("%s: %g %g, wanted %g", cases[i].descr, got[0], got[1], cases[i].value);
        dpcr_tensors_free(s->context, &t);
    }
    const char *path = write_npy(s, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}", 7);
    assert_refused(s, dpcr_npy_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, "cut short");
}

// float16, in both orders of bytes and of dimensions, comes as float32.
static void reads_float16(void **state) {
    scratch *s = *state;
    static const float wanted[2][2] = {{1, -2}, {65504, 5.9604645e-8f}};
    static const unsigned bits[4] = {0x3c00, 0xc000, 0x7bff, 0x0001};
    dpcr_tensors t;
    for (int k = 0; k < 4; k++) {
        const bool big = k & 1, columns = k & 2;
        char header[80];
        dpcr_array array;
        snprintf(header, sizeof header, "{'descr': '%cf2', 'fortran_order': %s, 'shape': (2, 2)}", big ? '>' : '<',
                 columns ? "True" : "False");
        const char *path = write_npy(s, header, 0);
        FILE *file = fopen(path, "ab");
        assert_non_null(file);
        for (int i = 0; i < 4; i++) {
            const unsigned b = bits[columns ? i / 2 + i % 2 * 2 : i];
            const unsigned char bytes[2] = {(unsigned char)(big ? b >> 8 : b), (unsigned char)(big ? b : b >> 8)};
            assert_int_equal(fwrite(bytes, 1, 2, file), 2);
        }
        fclose(file);
        assert_int_equal(dpcr_npy_read(s->context, path, &t, &s->error), DPCR_OK);
        assert_int_equal(t.items[0].array.dtype, DPCR_F32);
        assert_memory_equal(t.items[0].array.data, wanted, sizeof wanted);
        dpcr_tensors_free(s->context, &t);
        assert_refused(s, dpcr_npy_look(s->context, path, &array, &s->error), DPCR_ERROR_FORMAT, "f2, wanted f4");
    }
    const char *path = write_npy(s, "{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}", 3);
    assert_refused(s, dpcr_npy_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, "cut short");
    path = write_npy(s, "{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}", 5);
    assert_refused(s, dpcr_npy_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, "npy data");
    path = write_npy(s, "{'descr': '<f2', 'fortran_order': False, 'shape': (0,)}", 0);
    assert_int_equal(dpcr_npy_read(s->context, path, &t, &s->error), DPCR_OK);
    dpcr_tensors_free(s->context, &t);
}

static void refuses_other_files(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", "", 0), &t, &s->error), DPCR_ERROR_FORMAT,
                   "npy header cut short: got 0 bytes");
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", "not numpy at all", 16), &t, &s->error),
                   DPCR_ERROR_FORMAT, "npy magic: got 0x6e6f7420");
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", "\x93NUMPY\4\0\2\0{}", 12), &t, &s->error),
                   DPCR_ERROR_FORMAT, "got 4.0, wanted 1.0, 2.0 or 3.0");
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", "\x93NUMPY\1\0\3\0{}", 12), &t, &s->error),
                   DPCR_ERROR_FORMAT, "npy header length: got 3");
    assert_refused(
        s, dpcr_npy_read(s->context, scratch_write(s, "x", "\x93NUMPY\2\0\377\377\377\377{}", 14), &t, &s->error),
        DPCR_ERROR_FORMAT, "npy header length: got 4294967295");
    assert_refused(s, dpcr_npy_read(s->context, scratch_path(s, "none"), &t, &s->error), DPCR_ERROR_IO, "No such file");
    assert_refused(s, dpcr_npy_read(s->context, s->folder, &t, &s->error), DPCR_ERROR_IO, "Is a directory");
    assert_refused(s, dpcr_npy_read(NULL, "x", &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_npy_read(s->context, "/dev/zero", &t, &s->error), DPCR_ERROR_FORMAT,
                   "npy magic: got 0x00000000");
}

static void refuses_every_truncation(void **state) {
    scratch *s = *state;
    static const char *const fixtures[] = {FIXTURES "/numpy_f4.npy", FIXTURES "/numpy_deflated.npz"};
    dpcr_tensors t;
    for (int i = 0; i < 2; i++) {
        size_t count = 0;
        unsigned char *bytes = load_file(fixtures[i], &count);
        for (size_t n = 0; n < count; n++)
            assert_int_equal(dpcr_npy_read(s->context, scratch_write(s, "cut", bytes, n), &t, &s->error),
                             DPCR_ERROR_FORMAT);
        free(bytes);
    }
}

// Where the last `magic` stands.
static unsigned char *find_record(unsigned char *bytes, size_t count, const char *magic) {
    for (size_t i = count - 4; i > 0; i--)
        if (memcmp(bytes + i, magic, 4) == 0) return bytes + i;
    return bytes;
}

static void refuses_bad_archives(void **state) {
    scratch *s = *state;
    static const char central[] = "PK\1\2", end[] = "PK\5\6", local[] = "PK\3\4", locator[] = "PK\6\7",
                      end64[] = "PK\6\6";
    static const struct {
        const char *magic;
        int at;
        unsigned char value;
        int zip64;
        const char *text;
    } bad[] = {
        {central, 8, 1, 0, "member '\xc3\xb6.npy' is encrypted"},
        {central, 10, 12, 0, "got compression method 12, wanted 0 (stored) or 8 (deflated)"},
        {central, 10, 8, 0, "npy header cut short: got 6 bytes"},
        {central, 16, 1, 0, "(damaged)"},
        {central, 20, 1, 0, "wanted the same"},
        {central, 0, 0, 0, "an entry of the directory is damaged"},
        {central, 28, 255, 0, "an entry of the directory is cut short"},
        {central, 30, 1, 0, "cut short"},
        {central, 42, 1, 0, "there is no local header"},
        {central, 45, 1, 0, "member cut short"},
        {central, 46, 0, 0, "holds a zero byte"},
        {central, 49, 'x', 0, "wanted a name that ends in .npy"},
        {end, 10, 4, 0, "several parts"},
        {end, 4, 1, 0, "several parts"},
        {end, 12, 0, 0, "got 2 members in a directory of 0 bytes"},
        {end, 15, 1, 0, "got a directory of"},
        {end, 19, 1, 0, "got a directory of"},
        {end, 20, 1, 0, "no zip directory"},
        {locator, 0, 0, 1, "zip64 locator is missing"},
        {locator, 4, 1, 1, "several parts"},
        {locator, 8, 1, 1, "zip64 directory record is damaged"},
        {locator, 15, 255, 1, "zip64 directory cut short"},
        {end64, 24, 9, 1, "several parts"},
        {end64, 47, 255, 1, "got a directory of"},
        {central, 30, 3, 1, "damaged"},
        {central, 30 + 16 + 6, 7, 1, "zip64 field is damaged"},
        {central, 30 + 16 + 8, 2, 1, "zip64 field is damaged"},
        {local, 26, 255, 0, "cut short"},
        {central, 47, 0xb7, 0, "bears another name itself"},
    };
    // The last member is the one whose records are damaged.
    uint32_t c[1];
    double b[4];
    dpcr_tensor items[] = {{"b", numbers(b, DPCR_F64, SHAPE(4))}, {"\xc3\xb6", numbers(c, DPCR_U32, 0, NULL)}};
    const dpcr_tensors tensors = {.count = 2, .items = items};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t count = 0;
        dpcr_tensors t;
        assert_int_equal(dpcri_npz_write(scratch_path(s, "bad"), &tensors, bad[i].zip64, &s->error), DPCR_OK);
        unsigned char *bytes = load_file(s->path, &count);
        find_record(bytes, count, bad[i].magic)[bad[i].at] = bad[i].value;
        const char *path = scratch_write(s, "bad", bytes, count);
        const dpcr_status status = dpcr_npy_read(s->context, path, &t, &s->error);
        if (status != DPCR_ERROR_FORMAT || !strstr(s->error.text, bad[i].text)) print_error("case %zu\n", i);
        assert_refused(s, status, DPCR_ERROR_FORMAT, bad[i].text);
        free(bytes);
    }
}

// Whatever byte is damaged: a refusal, or the numbers as they were (then it was a date, or in a name).
static void damage_never_changes_numbers(void **state) {
    scratch *s = *state;
    size_t count = 0;
    unsigned char *bytes = load_file(FIXTURES "/numpy_deflated.npz", &count);
    int refused = 0;
    for (size_t i = 0; i < count; i++) {
        dpcr_tensors t;
        bytes[i] ^= (unsigned char)(1u << i % 8);
        const dpcri_source source = dpcri_source_memory("damaged", bytes, count);
        const dpcr_status status = dpcri_npy_read_source(s->context, &source, NULL, &t, &s->error);
        bytes[i] ^= (unsigned char)(1u << i % 8);
        if (status != DPCR_OK) {
            assert_int_equal(status, DPCR_ERROR_FORMAT);
            refused++;
            continue;
        }
        assert_int_equal(t.count, 3);
        assert_numbers(&t.items[0].array, DPCR_F32, SHAPE(3, 4));
        assert_numbers(&t.items[1].array, DPCR_F64, SHAPE(2, 3));
        assert_numbers(&t.items[2].array, DPCR_U32, SHAPE(700));
        dpcr_tensors_free(s->context, &t);
    }
    assert_true(refused > (int)count / 2);
    free(bytes);
}

static void refuses_names_that_stand_twice(void **state) {
    scratch *s = *state;
    float x[1];
    dpcr_tensor items[] = {{"a", numbers(x, DPCR_F32, SHAPE(1))}, {"b", numbers(x, DPCR_F32, SHAPE(1))}};
    dpcr_tensors tensors = {.count = 2, .items = items}, t;
    assert_int_equal(dpcr_npz_write(scratch_path(s, "x"), &tensors, &s->error), DPCR_OK);
    size_t count = 0;
    unsigned char *bytes = load_file(s->path, &count);
    unsigned char *dtype = bytes;
    while (memcmp(dtype, "<f4", 3) != 0) dtype++;
    dtype[1] = 'U';
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", bytes, count), &t, &s->error), DPCR_ERROR_FORMAT,
                   "npz member 'a': npy header: got dtype '<U4'");
    dtype[1] = 'f';
    find_record(bytes, count, "PK\1\2")[46] = find_record(bytes, count, "PK\3\4")[30] = 'a';
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", bytes, count), &t, &s->error), DPCR_ERROR_FORMAT,
                   "member 'a' stands twice");
    // Two entries for the same bytes: what a bomb is made of.
    unsigned char *last = find_record(bytes, count, "PK\1\2");
    last[46] = find_record(bytes, count, "PK\3\4")[30] = 'b';
    for (int i = 0; i < 4; i++) last[20 + i] = last[24 + i] = i < 3 ? 0xff : 0;
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", bytes, count), &t, &s->error), DPCR_ERROR_FORMAT,
                   "the members' sizes exceed");
    find_record(bytes, count, "PK\5\6")[8] = find_record(bytes, count, "PK\5\6")[10] = 1;
    assert_refused(s, dpcr_npy_read(s->context, scratch_write(s, "x", bytes, count), &t, &s->error), DPCR_ERROR_FORMAT,
                   "bytes after the last directory entry");
    free(bytes);
    items[1].name = "a";
    assert_refused(s, dpcr_npz_write(scratch_path(s, "y"), &tensors, &s->error), DPCR_ERROR_ARGUMENT,
                   "name 'a' stands twice");
    char *name = malloc(70000);
    memset(name, 'n', 69999);
    name[69999] = 0;
    items[1].name = name;
    assert_refused(s, dpcr_npz_write(s->path, &tensors, &s->error), DPCR_ERROR_ARGUMENT, "wanted at most 65531");
    free(name);
    assert_refused(s, dpcr_npz_write(NULL, &tensors, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_npz_write(s->path, NULL, &s->error), DPCR_ERROR_ARGUMENT, "none");
    assert_refused(s, dpcr_npy_write(s->path, NULL, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    items[0].array.dtype = (dpcr_dtype)0;
    assert_refused(s, dpcr_npy_write(s->path, &items[0].array, &s->error), DPCR_ERROR_ARGUMENT, "got dtype 0");
    assert_int_equal(scratch_files(s, 0), 1);
}

// The members that are asked for, whatever the others are.
static void reads_members_by_name(void **state) {
    scratch *s = *state;
    float x[1], y[6];
    dpcr_tensor items[] = {{"a", numbers(x, DPCR_F32, SHAPE(1))}, {"b", numbers(y, DPCR_F32, SHAPE(2, 3))}};
    dpcr_tensors tensors = {.count = 2, .items = items}, t;
    assert_int_equal(dpcr_npz_write(scratch_path(s, "x"), &tensors, &s->error), DPCR_OK);
    size_t count = 0;
    unsigned char *bytes = load_file(s->path, &count), *dtype = bytes;
    while (memcmp(dtype, "<f4", 3) != 0) dtype++;
    dtype[1] = 'U';  // of a
    unsigned char *other = find_record(bytes, count, "PK\1\2");
    const char *path = scratch_write(s, "x", bytes, count);
    const int64_t before = s->memory.live;
    const char *const names[] = {"z0", "b"}, *const bad[] = {"b", "a"}, *const nothing[] = {"bb", "", "b.npy"};
    assert_int_equal(dpcr_npy_read_named(s->context, path, names, 2, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 1);
    assert_string_equal(t.items[0].name, "b");
    assert_numbers(&t.items[0].array, DPCR_F32, SHAPE(2, 3));
    dpcr_tensors_free(s->context, &t);
    for (int n = 0; n <= 3; n += 3) {
        assert_int_equal(dpcr_npy_read_named(s->context, path, n ? nothing : NULL, n, &t, &s->error), DPCR_OK);
        assert_int_equal(t.count, 0);
        dpcr_tensors_free(s->context, &t);
    }
    assert_refused(s, dpcr_npy_read_named(s->context, path, bad, 2, &t, &s->error), DPCR_ERROR_FORMAT,
                   "npz member 'a': npy header: got dtype '<U4'");
    other[46] = 'a';  // alone, and what is asked for is none
    assert_refused(s, dpcr_npy_read_named(s->context, scratch_write(s, "x", bytes, count), names, 2, &t, &s->error),
                   DPCR_ERROR_FORMAT, "npz member 'a.npy' bears another name itself");
    find_record(bytes, count, "PK\3\4")[30] = 'a';  // twice: nobody's matter who wants neither
    path = scratch_write(s, "x", bytes, count);
    assert_int_equal(dpcr_npy_read_named(s->context, path, names, 2, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 0);
    dpcr_tensors_free(s->context, &t);
    assert_refused(s, dpcr_npy_read_named(s->context, path, bad, 2, &t, &s->error), DPCR_ERROR_FORMAT,
                   "member 'a' stands twice");
    free(bytes);
    assert_int_equal(dpcr_npy_read_named(s->context, FIXTURES "/numpy_f4.npy", names, 2, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 1);
    assert_numbers(&t.items[0].array, DPCR_F32, SHAPE(3, 4));
    dpcr_tensors_free(s->context, &t);
    assert_int_equal(s->memory.live, before);
    const char *const gap[] = {"a", NULL};
    assert_refused(s, dpcr_npy_read_named(s->context, path, gap, 2, &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_npy_read_named(s->context, path, NULL, 1, &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_npy_read_named(s->context, path, gap, -1, &t, &s->error), DPCR_ERROR_ARGUMENT,
                   "got -1 names");
}

// "-" is standard output, then standard input, here both a file; read in order, as a pipe is.
static void standard_streams(void **state) {
    scratch *s = *state;
    double memory[10000];
    const dpcr_array array = numbers(memory, DPCR_F64, SHAPE(100, 100));
    fflush(stdout);
    const int out = dup(1), in = dup(0);
    int file = open(scratch_path(s, "stream"), O_CREAT | O_RDWR, 0600);
    dup2(file, 1);
    const dpcr_status written = dpcr_npy_write("-", &array, &s->error);
    dup2(out, 1);
    assert_int_equal(written, DPCR_OK);
    lseek(file, 0, SEEK_SET);
    dup2(file, 0);
    assert_single(s, "-", DPCR_F64, SHAPE(100, 100));
    dpcr_tensors t;
    assert_refused(s, dpcr_npy_read(s->context, "-", &t, &s->error), DPCR_ERROR_FORMAT, "file -");
    close(file);
    file = open("/dev/full", O_WRONLY);
    dup2(file, 1);
    const dpcr_status full = dpcr_npy_write("-", &array, &s->error);
    dup2(out, 1);
    assert_int_equal(s->error.code, ENOSPC);
    assert_refused(s, full, DPCR_ERROR_IO, "No space left on device; file - (standard stream)");
    dup2(in, 0);
    close(file);
    close(in);
    close(out);
}

static void full_disk_leaves_the_old_file(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    assert_int_equal(dpcr_npz_write(scratch_path(s, "a.npz"), &m.tensors, &s->error), DPCR_OK);
    struct rlimit old, small = {.rlim_cur = 500};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const dpcr_status status = dpcr_npz_write(s->path, &m.tensors, &s->error);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_refused(s, status, DPCR_ERROR_IO, "File too large");
    assert_int_equal(scratch_files(s, 0), 1);
    assert_sample(s, s->path);
}

static void out_of_memory(void **state) {
    scratch *s = *state;
    static const char *const fixtures[] = {FIXTURES "/numpy_f4_fortran.npy", FIXTURES "/numpy_deflated.npz"};
    dpcr_tensors t;
    static const char *const names[] = {"b.c", "other"};
    const int64_t before = s->memory.live;
    for (int i = 0; i < 3; i++) {
        for (int64_t n = 0;; n++) {
            s->memory.fail_at = s->memory.calls + n;
            const dpcr_status status = i < 2 ? dpcr_npy_read(s->context, fixtures[i], &t, &s->error)
                                             : dpcr_npy_read_named(s->context, fixtures[1], names, 2, &t, &s->error);
            if (status == DPCR_OK) break;
            assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
            assert_int_equal(s->memory.live, before);
            assert_true(n < 100);
        }
        dpcr_tensors_free(s->context, &t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        scratch_test(reads_numpy),
        scratch_test(reads_numpys_npz),
        scratch_test(round_trip_npy),
        scratch_test(writes_strided_views),
        scratch_test(round_trip_npz),
        scratch_test(many_members),
        scratch_test(reads_other_spellings),
        scratch_test(refuses_bad_npy_headers),
        scratch_test(reads_whole_numbers),
        scratch_test(reads_float16),
        scratch_test(refuses_other_files),
        scratch_test(refuses_every_truncation),
        scratch_test(refuses_bad_archives),
        scratch_test(damage_never_changes_numbers),
        scratch_test(refuses_names_that_stand_twice),
        scratch_test(reads_members_by_name),
        scratch_test(standard_streams),
        scratch_test(full_disk_leaves_the_old_file),
        scratch_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
