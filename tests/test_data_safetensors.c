// SPDX-License-Identifier: MIT
// safetensors: round trips, a file of the Python package, every refusal, full disk, out of memory.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "data/tensors.h"
#include "data_testing.h"

static void reads_the_python_package(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_read(s->context, FIXTURES "/package.safetensors", &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 4);
    assert_numbers(&dpcr_tensors_find(&t, "layer.weight")->array, DPCR_F32, SHAPE(3, 4));
    assert_numbers(&dpcr_tensors_find(&t, "layer.bias")->array, DPCR_F64, SHAPE(3));
    assert_numbers(&dpcr_tensors_find(&t, "count")->array, DPCR_U32, 0, NULL);
    assert_numbers(&dpcr_tensors_find(&t, "nothing")->array, DPCR_F32, SHAPE(0, 7));
    assert_null(dpcr_tensors_find(&t, "layer"));
    assert_null(dpcr_tensors_find(NULL, "layer"));
    assert_int_equal(t.metadata_count, 2);
    assert_string_equal(dpcr_tensors_metadata(&t, "format"), "pt");
    assert_string_equal(dpcr_tensors_metadata(&t, "note"), "größe \"x\"\n");
    assert_null(dpcr_tensors_metadata(&t, "none"));
    dpcr_tensors_free(s->context, &t);
    dpcr_tensors_free(s->context, &t);
    dpcr_tensors_free(s->context, NULL);
}

// A model as the trainer has it: mixed types, strided views, an empty and a scalar tensor, metadata.
typedef struct sample {
    float weight[12], reversed[4], shared[1];
    double bias[5];
    uint32_t step[1];
    dpcr_tensor items[7];
    char *keys[2], *values[2];
    dpcr_tensors tensors;
} sample;

static void make_sample(sample *m) {
    m->items[0] = (dpcr_tensor){"step", numbers(m->step, DPCR_U32, 0, NULL)};
    m->items[1] = (dpcr_tensor){"w", numbers(m->weight, DPCR_F32, SHAPE(3, 4))};
    m->items[2] = (dpcr_tensor){"w transposed", m->items[1].array};
    m->items[2].array.shape[0] = 4;
    m->items[2].array.shape[1] = 3;
    m->items[2].array.strides[0] = 1;
    m->items[2].array.strides[1] = 4;
    m->items[3] = (dpcr_tensor){"b", numbers(m->bias, DPCR_F64, SHAPE(5))};
    m->items[4] = (dpcr_tensor){"reversed", numbers(m->reversed, DPCR_F32, SHAPE(4))};
    m->items[4].array.data = m->reversed + 3;
    m->items[4].array.strides[0] = -1;
    m->items[5] = (dpcr_tensor){"shared", numbers(m->shared, DPCR_F32, SHAPE(1))};
    m->items[5].array.shape[0] = 6000;
    m->items[5].array.strides[0] = 0;
    m->items[6] = (dpcr_tensor){"empty \"\xc3\xb6\"", numbers(NULL, DPCR_F64, SHAPE(2, 0))};
    m->keys[0] = "format", m->values[0] = "pt";
    m->keys[1] = "options", m->values[1] = "{\"depth\": 3}\n\t\xc3\xb6";
    m->tensors = (dpcr_tensors){
        .count = 7, .items = m->items, .metadata_count = 2, .metadata_keys = m->keys, .metadata_values = m->values};
}

static void assert_sample(const dpcr_tensors *t) {
    assert_int_equal(t->count, 7);
    assert_numbers(&dpcr_tensors_find(t, "step")->array, DPCR_U32, 0, NULL);
    assert_numbers(&dpcr_tensors_find(t, "w")->array, DPCR_F32, SHAPE(3, 4));
    assert_numbers(&dpcr_tensors_find(t, "b")->array, DPCR_F64, SHAPE(5));
    assert_numbers(&dpcr_tensors_find(t, "empty \"\xc3\xb6\"")->array, DPCR_F64, SHAPE(2, 0));
    const dpcr_array *transposed = &dpcr_tensors_find(t, "w transposed")->array;
    assert_int_equal(transposed->shape[0], 4);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++) assert_true(element(transposed, i * 3 + j) == j * 4 + i + 0.5);
    for (int i = 0; i < 4; i++) assert_true(element(&dpcr_tensors_find(t, "reversed")->array, i) == 3.5 - i);
    for (int i = 0; i < 6000; i++) assert_true(element(&dpcr_tensors_find(t, "shared")->array, i) == 0.5);
    assert_int_equal(t->metadata_count, 2);
    assert_string_equal(t->metadata_keys[0], "format");
    assert_string_equal(dpcr_tensors_metadata(t, "options"), "{\"depth\": 3}\n\t\xc3\xb6");
}

static void round_trip(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "m"), &m.tensors, &s->error), DPCR_OK);
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_sample(&t);
    // What was read, written again, is the same file; every tensor's bytes lie aligned in it.
    char first[256];
    size_t first_count = 0, second_count = 0;
    strcpy(first, s->path);
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "n"), &t, &s->error), DPCR_OK);
    unsigned char *a = load_file(first, &first_count), *b = load_file(s->path, &second_count);
    assert_int_equal(first_count, second_count);
    assert_memory_equal(a, b, first_count);
    assert_int_equal(a[0] % 8, 0);
    free(a);
    free(b);
    dpcr_tensors_free(s->context, &t);
    const char *keep = getenv("DEEPPCR_KEEP");  // by hand: for the Python package to load
    if (keep) assert_int_equal(dpcr_safetensors_write(keep, &m.tensors, &s->error), DPCR_OK);
}

static void special_values_keep_their_bits(void **state) {
    scratch *s = *state;
    uint32_t bits[6] = {0x7fc12345, 0xffc00001, 0x7f800000, 0x80000000, 1, 0x7f7fffff}, back[6];
    float values[6];
    memcpy(values, bits, sizeof bits);
    dpcr_tensor item = {"x", dpcr_array_make(values, DPCR_F32, SHAPE(6))};
    const dpcr_tensors tensors = {.count = 1, .items = &item};
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "m"), &tensors, &s->error), DPCR_OK);
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    memcpy(back, t.items[0].array.data, sizeof back);
    assert_memory_equal(back, bits, sizeof bits);
    dpcr_tensors_free(s->context, &t);
}

static void nothing_at_all(void **state) {
    scratch *s = *state;
    const dpcr_tensors none = {0};
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "m"), &none, &s->error), DPCR_OK);
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 0);
    assert_int_equal(t.metadata_count, 0);
    dpcr_tensors_free(s->context, &t);
}

// A file of this header and so many bytes of data.
static const char *write_header(scratch *s, const char *header, size_t data_bytes) {
    unsigned char bytes[2048] = {0};
    const size_t length = strlen(header);
    assert_true(8 + length + data_bytes <= sizeof bytes);
    bytes[0] = (unsigned char)length;
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    return scratch_write(s, "bad", bytes, 8 + length + data_bytes);
}

static void refuses_bad_headers(void **state) {
    scratch *s = *state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *text;
    } bad[] = {
        {"", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"[]", 0, "does not start with '{'"},
        {"{", 0, "safetensors header:"},
        {"{} x", 0, "safetensors header:"},
        {"{\"\xff\":1}", 0, "safetensors header:"},
        {"{\"a\\u0000\":1}", 0, "safetensors header:"},
        {"{}", 4, "got 4 bytes in the file, wanted 0"},
        {"{\"a\":1}", 0, "tensor 'a': wanted an object"},
        {"{\"a\":{}}", 0, "tensor 'a': wanted an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "wanted an object of dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "and nothing else"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "wanted an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, "wanted an object"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
         "got dtype 'F4', wanted F32, F64, F16, BF16, U32 or one to leave out; file "},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "got 2 bytes of data, wanted 4 for"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 12, "got 12 bytes in the file, wanted 8"},
        {"{\"a\\u001b\":{\"dtype\":\"x\\n\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor 'a?': got dtype 'x?'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "got 7 dimensions, wanted at most 6"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "extent 0 of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "extent 0 of its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4, "too big integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
         "does not fit 63 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "does not fit 63 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets are not two integers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "data_offsets are not two integers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "wanted 0 <= begin <= end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "wanted 0 <= begin <= end"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
         "got data up to byte 8, wanted at most 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "got 4 bytes of data, wanted 8 for its shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "got data at byte 4, wanted 0 (a gap)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "got 8 bytes in the file, wanted 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],"
         "\"data_offsets\":[4,12]}}",
         12, "(tensors overlap)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         8, "duplicate object key"},
        {"{\"__metadata__\":[]}", 0, "wanted an object of strings"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "the value of 'k' is no string"},
        {"{\"__metadata__\":{\"a\":\"\",\"b\":{}}}", 0, "the value of 'b' is no string"},
    };
    dpcr_tensors t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *path = write_header(s, bad[i].header, bad[i].data_bytes);
        assert_refused(s, dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_ERROR_FORMAT, bad[i].text);
        assert_int_equal(t.count, 0);
        assert_null(t.items);
        assert_int_equal(dpcr_safetensors_read(s->context, path, &t, NULL), DPCR_ERROR_FORMAT);
    }
}

// As a state_dict() with a BatchNorm has them: checked and named, and never lost by who writes what was read.
static void names_what_it_does_not_load(void **state) {
    scratch *s = *state;
    static const char header[] =
        "{\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
        "\"h\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[16,20]},"
        "\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[20,23]}}";
    const char *path = write_header(s, header, 23);
    dpcr_tensors t;
    dpcr_status status = DPCR_ERROR_MEMORY;
    const int64_t before = s->memory.live;
    for (int64_t n = 0; status != DPCR_OK && n < 100; n++) {
        assert_int_equal(s->memory.live, before);
        s->memory.fail_at = s->memory.calls + n;
        status = dpcr_safetensors_read(s->context, path, &t, &s->error);
    }
    s->memory.fail_at = -1;
    assert_int_equal(status, DPCR_OK);
    assert_int_equal(t.count, 1);
    assert_string_equal(t.items[0].name, "w");
    assert_int_equal(t.other_count, 3);
    assert_string_equal(dpcr_tensors_other(&t, "n"), "I64");
    assert_string_equal(dpcr_tensors_other(&t, "h"), "U16");
    assert_string_equal(dpcr_tensors_other(&t, "q"), "F8_E4M3");
    assert_null(dpcr_tensors_other(&t, "w"));
    assert_null(dpcr_tensors_other(NULL, "w"));
    assert_refused(s, dpcr_safetensors_write(scratch_path(s, "m"), &t, &s->error), DPCR_ERROR_UNSUPPORTED,
                   "'n' of dtype I64 was not read");
    assert_refused(s, dpcr_npz_write(s->path, &t, &s->error), DPCR_ERROR_UNSUPPORTED, "would be lost");
    assert_int_equal(scratch_files(s, 0), 1);
    dpcr_tensors_free(s->context, &t);
}

// Whatever the order of tensors and strings; every byte of the file after its header counts, names and strings too.
static void a_sum_goes_with_the_file(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    dpcr_tensors t;
    size_t count = 0, again = 0;
    assert_int_equal(dpcr_tensors_sum_agrees(&m.tensors, "none", &s->error), DPCR_OK);  // carries none
    assert_int_equal(dpcr_safetensors_write_summed(scratch_path(s, "m"), &m.tensors, &s->error), DPCR_OK);
    unsigned char *file = load_file(s->path, &count);
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.metadata_count, 3);
    assert_int_equal(strlen(dpcr_tensors_metadata(&t, "deeppcr.checksum")), 16);
    assert_int_equal(dpcr_tensors_sum_agrees(&t, s->path, &s->error), DPCR_OK);
    assert_int_equal(dpcr_safetensors_write_summed(scratch_path(s, "m"), &t, &s->error), DPCR_OK);
    unsigned char *second = load_file(s->path, &again);
    assert_int_equal(count, again);
    assert_memory_equal(file, second, count);
    free(second);
    const dpcr_tensor item = t.items[0];
    t.items[0] = t.items[4], t.items[4] = item;
    char *const key = t.metadata_keys[0], *const value = t.metadata_values[0];
    t.metadata_keys[0] = t.metadata_keys[1], t.metadata_values[0] = t.metadata_values[1];
    t.metadata_keys[1] = key, t.metadata_values[1] = value;
    assert_int_equal(dpcr_tensors_sum_agrees(&t, s->path, &s->error), DPCR_OK);
    value[0] ^= 1;
    assert_refused(s, dpcr_tensors_sum_agrees(&t, "this", &s->error), DPCR_ERROR_FORMAT, "this: damaged");
    assert_int_equal(dpcr_safetensors_write_summed(scratch_path(s, "m"), &t, &s->error), DPCR_OK);  // a new sum
    dpcr_tensors_free(s->context, &t);
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.metadata_count, 3);
    assert_int_equal(dpcr_tensors_sum_agrees(&t, s->path, &s->error), DPCR_OK);
    dpcr_tensors_free(s->context, &t);
    const size_t data = 8 + file[0] + ((size_t)file[1] << 8);
    for (size_t at = data; at < count; at += at < data + 400 ? 1 : 97) {
        file[at] ^= 0x10;
        const char *path = scratch_write(s, "damaged", file, count);
        assert_int_equal(dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_OK);
        assert_refused(s, dpcr_tensors_sum_agrees(&t, path, &s->error), DPCR_ERROR_FORMAT, "damaged");
        dpcr_tensors_free(s->context, &t);
        file[at] ^= 0x10;
    }
    static const char *const changed[][2] = {{"\"reversed\"", "\"reverzed\""},
                                             {"\"format\"", "\"farmat\""},
                                             {"\"shape\":[3,4]", "\"shape\":[4,3]"},
                                             {"checksum\":\"", "checksum\":\"?"}};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        unsigned char *copy = malloc(count);
        memcpy(copy, file, count);
        unsigned char *at = memmem(copy, count, changed[i][0], strlen(changed[i][0]));
        assert_non_null(at);
        memcpy(at, changed[i][1], strlen(changed[i][1]));
        const char *path = scratch_write(s, "damaged", copy, count);
        assert_int_equal(dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_OK);
        assert_refused(s, dpcr_tensors_sum_agrees(&t, path, &s->error), DPCR_ERROR_FORMAT, "damaged");
        dpcr_tensors_free(s->context, &t);
        free(copy);
    }
    free(file);
    static const char other[] =
        "{\"__metadata__\":{\"deeppcr.checksum\":\"0\"},\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}";
    const char *path = write_header(s, other, 8);
    assert_int_equal(dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_OK);
    assert_refused(s, dpcr_tensors_sum_agrees(&t, path, &s->error), DPCR_ERROR_FORMAT, "damaged");
    dpcr_tensors_free(s->context, &t);
    assert_refused(s, dpcr_tensors_sum_agrees(NULL, path, &s->error), DPCR_ERROR_ARGUMENT, "wanted");
    m.items[1].array.data = NULL;
    assert_refused(s, dpcr_safetensors_write_summed(path, &m.tensors, &s->error), DPCR_ERROR_ARGUMENT, "got no data");
}

// The format lets a tensor begin at any byte; only some writers sort their tensors by size.
static void reads_tensors_at_any_byte(void **state) {
    scratch *s = *state;
    static const char header[] =
        "{\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[3,19]},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[19,23]},"
        "\"h\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[23,27]}}";
    // Little-endian: three booleans; 1.5, -2; 0.5; 1, -2.
    static const unsigned char data[27] = {1, 0, 1, 0, 0,    0, 0, 0, 0,    0xf8, 0x3f, 0,    0,   0,
                                           0, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f, 0x80, 0x3f, 0x00, 0xc0};
    unsigned char bytes[512] = {(unsigned char)(sizeof header - 1), (unsigned char)((sizeof header - 1) >> 8)};
    memcpy(bytes + 8, header, sizeof header - 1);
    memcpy(bytes + 8 + sizeof header - 1, data, sizeof data);
    const char *path = scratch_write(s, "odd", bytes, 8 + sizeof header - 1 + sizeof data);
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_OK);
    assert_int_equal(t.count, 3);
    const double *const d = dpcr_tensors_find(&t, "d")->array.data;
    const float *const f = dpcr_tensors_find(&t, "f")->array.data, *const h = dpcr_tensors_find(&t, "h")->array.data;
    assert_true(d[0] == 1.5 && d[1] == -2 && f[0] == 0.5f && h[0] == 1 && h[1] == -2);
    assert_string_equal(dpcr_tensors_other(&t, "b"), "BOOL");
    dpcr_tensors_free(s->context, &t);
}

// What sign, exponent and fraction say, for all bits that there are.
static double value_of(unsigned bits, int exponent_bits, int fraction_bits) {
    const int most = (1 << exponent_bits) - 1, bias = most / 2, exponent = (int)(bits >> fraction_bits) & most;
    const int fraction = (int)bits & ((1 << fraction_bits) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == most) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static void widens_numbers_of_two_bytes(void **state) {
    scratch *s = *state;
    enum { ALL = 1 << 16 };
    static const char header[] =
        "{\"f\":{\"dtype\":\"F16\",\"shape\":[256,256],\"data_offsets\":[0,131072]},"
        "\"g\":{\"dtype\":\"BF16\",\"shape\":[65536],\"data_offsets\":[131072,262144]},"
        "\"none\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[262144,262144]}}";
    const char *path = write_header(s, header, 0);
    dpcr_tensors t;
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    for (int i = 0; i < 2 * ALL; i++) {
        const unsigned char bytes[2] = {(unsigned char)(i & 255), (unsigned char)(i >> 8 & 255)};
        assert_int_equal(fwrite(bytes, 1, 2, file), 2);
    }
    fclose(file);
    assert_int_equal(dpcr_safetensors_read(s->context, path, &t, &s->error), DPCR_OK);
    assert_true(t.count == 3 && t.other_count == 0);
    for (int k = 0; k < 2; k++) {
        const dpcr_tensor *found = dpcr_tensors_find(&t, k ? "g" : "f");
        assert_true(found && found->array.dtype == DPCR_F32 && found->array.ndim == 2 - k);
        const float *got = found->array.data;
        for (unsigned i = 0; i < ALL; i++) {
            const double want = value_of(i, k ? 8 : 5, k ? 7 : 10);
            if (isnan(want) ? !isnan(got[i]) : got[i] != want || !signbit(got[i]) != !(i >> 15))
                fail_msg("%s 0x%04x: %g, wanted %g", k ? "BF16" : "F16", i, got[i], want);
        }
    }
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "m"), &t, &s->error), DPCR_OK);
    dpcr_tensors_free(s->context, &t);
}

static void refuses_bad_lengths(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    assert_refused(s, dpcr_safetensors_read(s->context, scratch_write(s, "x", "", 0), &t, &s->error), DPCR_ERROR_FORMAT,
                   "header length cut short: got 0 bytes, wanted 8");
    assert_refused(s, dpcr_safetensors_read(s->context, scratch_write(s, "x", "\3\0\0\0\0\0\0\0{}", 10), &t, &s->error),
                   DPCR_ERROR_FORMAT, "got 3, wanted at most 2");
    assert_refused(s,
                   dpcr_safetensors_read(s->context, scratch_write(s, "x", "\377\377\377\377\377\377\377\377{}", 10),
                                         &t, &s->error),
                   DPCR_ERROR_FORMAT, "wanted at most 100000000");
    assert_refused(s, dpcr_safetensors_read(s->context, scratch_path(s, "none"), &t, &s->error), DPCR_ERROR_IO,
                   "No such file");
    assert_refused(s, dpcr_safetensors_read(s->context, s->folder, &t, &s->error), DPCR_ERROR_IO, "Is a directory");
    assert_refused(s, dpcr_safetensors_read(s->context, "/dev/zero", &t, &s->error), DPCR_ERROR_IO,
                   "not a regular file");
    assert_refused(s, dpcr_safetensors_read(NULL, "x", &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
}

// Every prefix of a good file is refused, never read as something else.
static void refuses_every_truncation(void **state) {
    scratch *s = *state;
    size_t count = 0;
    unsigned char *bytes = load_file(FIXTURES "/package.safetensors", &count);
    dpcr_tensors t;
    for (size_t n = 0; n < count; n++)
        assert_int_equal(dpcr_safetensors_read(s->context, scratch_write(s, "cut", bytes, n), &t, &s->error),
                         DPCR_ERROR_FORMAT);
    free(bytes);
}

static void refuses_what_cannot_be_written(void **state) {
    scratch *s = *state;
    float x[4] = {0};
    const dpcr_array good = dpcr_array_make(x, DPCR_F32, SHAPE(4));
    dpcr_tensor items[2] = {{"a", good}, {"a", good}};
    dpcr_tensors t = {.count = 2, .items = items};
    const char *path = scratch_path(s, "x");
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "name 'a' stands twice");
    items[0].name = "__metadata__";
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "reserved");
    items[0].name = "\xff";
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "not UTF-8");
    items[0].name = NULL;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "no name");
    items[0].name = "b";
    items[0].array.dtype = (dpcr_dtype)9;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "got dtype 9");
    items[0].array = good;
    items[0].array.ndim = 7;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "got 7 dimensions");
    items[0].array = good;
    items[0].array.shape[0] = -1;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "got extent -1");
    items[0].array.shape[0] = INT64_MAX / 2;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_OVERFLOW, "does not fit 63 bits");
    items[0].array = good;
    items[0].array.data = NULL;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "got no data");
    items[0].array = good;
    items[0].array.device.type = DPCR_CUDA;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_UNSUPPORTED, "wanted host memory");
    items[0].array = good;
    char *keys[2] = {"k", "k"}, *values[2] = {"v", "\xff"};
    t.metadata_count = 2;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "no keys or values");
    t.metadata_keys = keys;
    t.metadata_values = values;
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "stands twice");
    keys[1] = "l";
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT,
                   "the value of 'l' is not UTF-8");
    keys[1] = "\xc3";
    assert_refused(s, dpcr_safetensors_write(path, &t, &s->error), DPCR_ERROR_ARGUMENT, "the key '\xc3' is not UTF-8");
    assert_refused(s, dpcr_safetensors_write(NULL, &t, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    assert_refused(s, dpcr_safetensors_write(path, NULL, &s->error), DPCR_ERROR_ARGUMENT, "none");
    assert_int_equal(scratch_files(s, 0), 0);
}

static void full_disk_leaves_the_old_file(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    assert_int_equal(dpcr_safetensors_write(scratch_path(s, "m"), &m.tensors, &s->error), DPCR_OK);
    struct rlimit old, small = {0};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 20000; limit += 5000) {
        small.rlim_cur = limit;
        setrlimit(RLIMIT_FSIZE, &small);
        m.weight[0] = 99;
        const dpcr_status status = dpcr_safetensors_write(s->path, &m.tensors, &s->error);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(s->error.code, EFBIG);
        assert_refused(s, status, DPCR_ERROR_IO, "File too large");
        assert_int_equal(scratch_files(s, 0), 1);
    }
    signal(SIGXFSZ, handler);
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
    assert_sample(&t);
    dpcr_tensors_free(s->context, &t);
    const dpcr_status status = dpcr_safetensors_write("/dev/full", &m.tensors, &s->error);
    assert_int_equal(s->error.code, ENOSPC);
    assert_refused(s, status, DPCR_ERROR_IO, "No space left");
}

static void out_of_memory(void **state) {
    scratch *s = *state;
    dpcr_tensors t;
    dpcr_status status = DPCR_ERROR_MEMORY;
    const int64_t before = s->memory.live;
    for (int64_t n = 0; status != DPCR_OK; n++) {
        s->memory.fail_at = s->memory.calls + n;
        status = dpcr_safetensors_read(s->context, FIXTURES "/package.safetensors", &t, &s->error);
        if (status == DPCR_OK) break;
        assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
        assert_int_equal(s->memory.live, before);
        assert_true(n < 100);
    }
    assert_int_equal(t.count, 4);
    dpcr_tensors_free(s->context, &t);
}

static int parser_calls;

// Its allocation number parser_calls fails, or all from that on, or it leaves behind that others failed.
static enum { FAILS, ALL_FAIL, IS_SECOND } parser_way;

static void *parser_allocate(size_t bytes) {
    const bool turn = parser_way == ALL_FAIL ? parser_calls <= 0 : parser_calls == 0;
    void *const memory = turn && parser_way != IS_SECOND ? NULL : malloc(bytes);
    parser_calls--;
    if (turn) errno = ENOMEM;
    return memory;
}

static dpcr_status read_with(scratch *s, int way, int calls, dpcr_tensors *t) {
    parser_way = way, parser_calls = calls;
    json_set_alloc_funcs(parser_allocate, free);
    const dpcr_status status = dpcr_safetensors_read(s->context, s->path, t, &s->error);
    json_set_alloc_funcs(malloc, free);
    parser_way = FAILS;
    return status;
}

// No token is called a wrong one, and no name lacks a letter. What fails once has memory when it is asked for again.
static void the_parsers_memory_runs_out(void **state) {
    scratch *s = *state;
    static const char name[] = "a name for which the parser's buffer grows, and does so twice";
    static const char header[] =
        "{\"a name for which the parser's buffer grows, and does so twice\":{\"dtype\":\"F32\",\"shape\":[1],"
        "\"data_offsets\":[0,4]}}";
    dpcr_tensors t;
    dpcr_status status;
    int n = 0;
    write_header(s, header, 4);
    for (; (status = read_with(s, ALL_FAIL, n, &t)) != DPCR_OK; n++) {
        assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
        for (int way = FAILS; way <= IS_SECOND; way += IS_SECOND - FAILS) {
            assert_int_equal(read_with(s, way, n, &t), DPCR_OK);
            assert_string_equal(t.items[0].name, name);
            dpcr_tensors_free(s->context, &t);
        }
        assert_true(n < 100);
    }
    assert_true(n > 10);
    assert_string_equal(t.items[0].name, name);
    dpcr_tensors_free(s->context, &t);
}

// A text that is cut, or lacks a piece, is refused: the old file stays.
static void the_headers_memory_runs_out(void **state) {
    scratch *s = *state;
    sample m;
    make_sample(&m);
    m.values[1] = "a text that is longer than the others are, so that it makes a dump's buffer grow once more or twice";
    dpcr_tensors t;
    assert_int_equal(dpcr_safetensors_write_summed(scratch_path(s, "m"), &m.tensors, &s->error), DPCR_OK);
    m.weight[0] = 99;
    dpcr_status status = DPCR_ERROR_MEMORY;
    int n = 0;
    for (; status != DPCR_OK; n++) {
        parser_calls = n;
        json_set_alloc_funcs(parser_allocate, free);
        status = dpcr_safetensors_write_summed(s->path, &m.tensors, &s->error);
        json_set_alloc_funcs(malloc, free);
        if (status != DPCR_OK) assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
        assert_int_equal(dpcr_safetensors_read(s->context, s->path, &t, &s->error), DPCR_OK);
        assert_int_equal(dpcr_tensors_sum_agrees(&t, s->path, &s->error), DPCR_OK);
        assert_string_equal(dpcr_tensors_metadata(&t, "options"), m.values[1]);
        assert_true(element(&dpcr_tensors_find(&t, "w")->array, 0) == (status == DPCR_OK ? 99 : 0.5));
        dpcr_tensors_free(s->context, &t);
        assert_int_equal(scratch_files(s, 0), 1);
        assert_true(n < 1000);
    }
    assert_true(n > 20);
}

// Every text of up to four bytes that lie at the edges of their classes.
static void keys_are_utf8_as_the_parser_has_it(void **state) {
    (void)state;
    static const unsigned char bytes[] = {0,    0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                          0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
    enum { N = sizeof bytes };
    for (int i = 0; i < N * N * N * N; i++) {
        const char text[] = {(char)bytes[i / (N * N * N)], (char)bytes[i / (N * N) % N], (char)bytes[i / N % N],
                             (char)bytes[i % N], 0};
        json_t *const made = json_string(text);
        assert_int_equal(dpcri_metadata_check("", text, text, NULL) == DPCR_OK, made != NULL);
        json_decref(made);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        scratch_test(reads_the_python_package),
        scratch_test(round_trip),
        scratch_test(a_sum_goes_with_the_file),
        scratch_test(special_values_keep_their_bits),
        scratch_test(nothing_at_all),
        scratch_test(refuses_bad_headers),
        scratch_test(reads_tensors_at_any_byte),
        scratch_test(names_what_it_does_not_load),
        scratch_test(widens_numbers_of_two_bytes),
        scratch_test(refuses_bad_lengths),
        scratch_test(refuses_every_truncation),
        scratch_test(refuses_what_cannot_be_written),
        scratch_test(full_disk_leaves_the_old_file),
        scratch_test(out_of_memory),
        scratch_test(the_parsers_memory_runs_out),
        scratch_test(the_headers_memory_runs_out),
        scratch_test(keys_are_utf8_as_the_parser_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
