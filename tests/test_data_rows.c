// SPDX-License-Identifier: MIT
// npy files by rows: any part of any file as a whole reading gives it; files that several write together are whole in
// their place or not there; refusals.
// cmocka.h wants the first four before it.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "deeppcr/deeppcr.h"

static dpcr_context *context;
static char folder[512];

static int set_up(void **state) {
    (void)state;
    const char *place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/deeppcr-rows-XXXXXX", place && *place ? place : P_tmpdir);
    return mkdtemp(folder) && dpcr_context_create(NULL, &context, NULL) == DPCR_OK ? 0 : 1;
}
static int tear_down(void **state) {
    (void)state;
    dpcr_context_destroy(context);
    return rmdir(folder);
}

static const char *path_of(const char *name) {
    static char path[2][640];
    static int turn;
    turn = 1 - turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

// An npy file of bytes as they are, by hand.
static void write_raw(const char *path, const char *dictionary, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    const unsigned length = (unsigned)strlen(dictionary);
    const unsigned char head[] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(length & 255), (unsigned char)(length >> 8)};
    fwrite(head, 1, sizeof head, file);
    fwrite(dictionary, 1, length, file);
    fwrite(data, 1, bytes, file);
    assert_int_equal(fclose(file), 0);
}

static void swap(void *data, size_t count) {
    unsigned char *bytes = data;
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            const unsigned char kept = bytes[4 * i + (size_t)k];
            bytes[4 * i + (size_t)k] = bytes[4 * i + 3 - (size_t)k];
            bytes[4 * i + 3 - (size_t)k] = kept;
        }
}

// [5][2][3], element (i, j, k) is 100 i + 10 j + k, in either order of dimensions and bytes.
static void every_part_is_that_of_the_whole(void **state) {
    (void)state;
    enum { ROWS = 5, COLUMNS = 6 };
    for (int fortran = 0; fortran < 2; fortran++)
        for (int big = 0; big < 2; big++) {
            float numbers[ROWS * COLUMNS];
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < 2; j++)
                    for (int k = 0; k < 3; k++)
                        numbers[fortran ? i + ROWS * (j + 2 * k) : (i * 2 + j) * 3 + k] = (float)(100 * i + 10 * j + k);
            if (big) swap(numbers, ROWS * COLUMNS);
            char text[128];
            snprintf(text, sizeof text, "{'descr': '%cf4', 'fortran_order': %s, 'shape': (5, 2, 3), }\n",
                     big ? '>' : '<', fortran ? "True" : "False");
            const char *path = path_of("part.npy");
            write_raw(path, text, numbers, sizeof numbers);
            dpcr_error error = {0};
            dpcr_array shape = {0};
            if (dpcr_npy_look(context, path, &shape, &error) != DPCR_OK) fail_msg("%s", error.text);
            assert_true(shape.ndim == 3 && shape.shape[0] == 5 && shape.shape[2] == 3 && !shape.data);
            for (int64_t first = 0; first <= ROWS; first++)
                for (int64_t count = 0; first + count <= ROWS; count++) {
                    dpcr_tensors part;
                    if (dpcr_npy_read_rows(context, path, first, count, &part, &error) != DPCR_OK)
                        fail_msg("%s", error.text);
                    const dpcr_array *a = &part.items[0].array;
                    assert_true(a->shape[0] == count && a->shape[1] == 2 && a->shape[2] == 3);
                    for (int64_t i = 0; i < count * COLUMNS; i++)
                        assert_true(((float *)a->data)[i] == (float)(100 * (first + i / 6) + 10 * (i % 6 / 3) + i % 3));
                    dpcr_tensors_free(context, &part);
                }
            dpcr_tensors none;
            assert_int_equal(dpcr_npy_read_rows(context, path, 3, 3, &none, &error), DPCR_ERROR_ARGUMENT);
            assert_int_equal(dpcr_npy_read_rows(context, path, -1, 1, &none, &error), DPCR_ERROR_ARGUMENT);
            write_raw(path, text, numbers, sizeof numbers - 1);
            assert_int_equal(dpcr_npy_read_rows(context, path, 0, 1, &none, &error), DPCR_ERROR_FORMAT);
            assert_non_null(strstr(error.text, "cut short"));
            write_raw(path, text, "PK", 2);
            unlink(path);
            assert_int_equal(dpcr_npy_look(context, path, &shape, &error), DPCR_ERROR_IO);
        }
}

static int64_t size_of(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (int64_t)about.st_size : -1;
}

static void whole_or_not_there(void **state) {
    (void)state;
    double numbers[12];
    for (int i = 0; i < 12; i++) numbers[i] = i;
    const dpcr_array whole = dpcr_array_make(NULL, DPCR_F64, 2, (const int64_t[]){6, 2});
    const dpcr_array two = dpcr_array_make(numbers, DPCR_F64, 2, (const int64_t[]){2, 2}),
                     four = dpcr_array_make(numbers + 4, DPCR_F64, 2, (const int64_t[]){4, 2}),
                     other = dpcr_array_make(numbers, DPCR_F64, 2, (const int64_t[]){2, 3});
    char path[640];
    snprintf(path, sizeof path, "%s", path_of("rows.npy"));
    dpcr_error error = {0};
    for (int commit = 0; commit < 2; commit++) {
        dpcr_npy_rows *rows = NULL;
        if (dpcr_npy_rows_create(context, path, &whole, &rows, &error) != DPCR_OK) fail_msg("%s", error.text);
        char name[1024];
        snprintf(name, sizeof name, "%s", dpcr_npy_rows_name(rows));
        assert_true(size_of(name) >= 96);
        assert_int_equal(dpcr_npy_rows_write(name, &whole, 2, &four, &error), DPCR_OK);
        assert_int_equal(dpcr_npy_rows_write(name, &whole, 5, &two, &error), DPCR_ERROR_ARGUMENT);
        assert_int_equal(dpcr_npy_rows_write(name, &whole, 0, &other, &error), DPCR_ERROR_ARGUMENT);
        assert_int_equal(size_of(path), -1);
        if (commit) {
            assert_int_equal(dpcr_npy_rows_write(name, &whole, 0, &two, &error), DPCR_OK);
            assert_int_equal(dpcr_npy_rows_commit(rows, &error), DPCR_OK);
        }
        dpcr_npy_rows_destroy(context, rows);
        assert_int_equal(size_of(name), -1);
        assert_int_equal(size_of(path) >= 0, commit);
    }
    dpcr_tensors got;
    assert_int_equal(dpcr_npy_read(context, path, &got, &error), DPCR_OK);
    assert_memory_equal(got.items[0].array.data, numbers, sizeof numbers);
    dpcr_tensors_free(context, &got);
    unlink(path);
    dpcr_npy_rows *rows = NULL;
    assert_int_equal(dpcr_npy_rows_create(context, "/no/such/folder/x.npy", &whole, &rows, &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_npy_rows_create(context, "-", &whole, &rows, &error), DPCR_ERROR_ARGUMENT);
    if (access("/dev/full", W_OK) == 0)
        assert_int_equal(dpcr_npy_rows_create(context, "/dev/full", &whole, &rows, &error), DPCR_ERROR_IO);
    assert_int_equal(dpcr_npy_rows_write("/no/such/file", &whole, 0, &two, &error), DPCR_ERROR_IO);
    dpcr_npy_rows_destroy(context, NULL);
}

// A caller that is wrong about the file: its type, a shape of as many numbers, a longer one; a file that is none.
static void another_file_stays_as_it_is(void **state) {
    (void)state;
    double numbers[12] = {0}, wrong[12];
    for (int i = 0; i < 12; i++) wrong[i] = -1 - i;
    const dpcr_array whole = dpcr_array_make(numbers, DPCR_F64, 2, (const int64_t[]){6, 2});
    const struct {
        dpcr_array whole, part;
    } calls[] = {
        {dpcr_array_make(NULL, DPCR_F64, 2, (const int64_t[]){4, 3}),
         dpcr_array_make(wrong, DPCR_F64, 2, (const int64_t[]){2, 3})},
        {dpcr_array_make(NULL, DPCR_F64, 2, (const int64_t[]){7, 2}),
         dpcr_array_make(wrong, DPCR_F64, 2, (const int64_t[]){2, 2})},
        {dpcr_array_make(NULL, DPCR_F32, 2, (const int64_t[]){6, 2}),
         dpcr_array_make(wrong, DPCR_F32, 2, (const int64_t[]){2, 2})},
        {dpcr_array_make(NULL, DPCR_F64, 1, (const int64_t[]){12}),
         dpcr_array_make(wrong, DPCR_F64, 1, (const int64_t[]){3})},
    };
    char path[640];
    snprintf(path, sizeof path, "%s", path_of("other.npy"));
    dpcr_error error = {0};
    if (dpcr_npy_write(path, &whole, &error) != DPCR_OK) fail_msg("%s", error.text);
    const int64_t size = size_of(path);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int64_t last = calls[i].whole.shape[0] - calls[i].part.shape[0];
        assert_int_equal(dpcr_npy_rows_write(path, &calls[i].whole, last, &calls[i].part, &error), DPCR_ERROR_ARGUMENT);
        assert_non_null(strstr(error.text, "type and shape"));
    }
    assert_int_equal(size_of(path), size);
    dpcr_tensors got;
    assert_int_equal(dpcr_npy_read(context, path, &got, &error), DPCR_OK);
    assert_memory_equal(got.items[0].array.data, numbers, sizeof numbers);
    dpcr_tensors_free(context, &got);
    const dpcr_array two = dpcr_array_make(wrong, DPCR_F64, 2, (const int64_t[]){2, 2});
    for (int longer = 0; longer < 2; longer++) {  // the header is right, but data are missing, or something follows
        assert_int_equal(truncate(path, longer ? size + 1 : size - 1), 0);
        assert_int_equal(dpcr_npy_rows_write(path, &whole, 0, &two, &error), DPCR_ERROR_ARGUMENT);
        assert_int_equal(size_of(path), longer ? size + 1 : size - 1);
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(dpcr_npy_rows_write(path, &whole, 0, &two, &error), DPCR_ERROR_ARGUMENT);
    assert_int_equal(size_of(path), 0);
    unlink(path);
    assert_int_equal(dpcr_npy_rows_write("/dev/null", &whole, 0, &two, &error), DPCR_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_is_that_of_the_whole),
        cmocka_unit_test(whole_or_not_there),
        cmocka_unit_test(another_file_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
