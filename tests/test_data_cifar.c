// SPDX-License-Identifier: MIT
// CIFAR-10's binary files: order of files and planes, every refusal, every truncation.
#include "data_testing.h"

enum { RECORD = 3073, PIXELS = 3072, FILES = 5 };

static unsigned char pixel(int file, int record, int at) { return (unsigned char)(file * 31 + record * 7 + at / 5); }

// File k holds k + 1 records with labels (3 k + record) % 10.
static void write_part(scratch *s, const char *name, int k, int records, size_t bytes) {
    unsigned char *file = malloc((size_t)records * RECORD);
    assert_non_null(file);
    for (int r = 0; r < records; r++) {
        file[r * RECORD] = (unsigned char)((3 * k + r) % 10);
        for (int i = 0; i < PIXELS; i++) file[r * RECORD + 1 + i] = pixel(k, r, i);
    }
    scratch_write(s, name, file, bytes);
    free(file);
}

static void write_all(scratch *s) {
    char name[32];
    for (int k = 0; k < FILES; k++) {
        snprintf(name, sizeof name, "data_batch_%d.bin", k + 1);
        write_part(s, name, k, k + 1, (size_t)(k + 1) * RECORD);
    }
    write_part(s, "test_batch.bin", 9, 2, 2 * RECORD);
}

static dpcr_status read_split(scratch *s, const char *split, dpcr_dataset *d) {
    const dpcr_status status = dpcr_dataset_read_cifar10(s->context, s->folder, split, d, &s->error);
    if (status != DPCR_OK) assert_true(!d->images && !d->labels && d->count == 0);
    return status;
}

static void reads_files_in_order(void **state) {
    scratch *s = *state;
    dpcr_dataset d;
    write_all(s);
    assert_int_equal(read_split(s, "train", &d), DPCR_OK);
    assert_true(d.count == 15 && d.rows == 32 && d.cols == 32 && d.channels == 3 && d.classes == 10);
    assert_int_equal(dpcr_dataset_pixels(&d), PIXELS);
    for (int k = 0, at = 0; k < FILES; k++)
        for (int r = 0; r <= k; r++, at++) {
            assert_int_equal(d.labels[at], (3 * k + r) % 10);
            for (int i = 0; i < PIXELS; i++) assert_int_equal(d.images[at * PIXELS + i], pixel(k, r, i));
        }
    dpcr_dataset_free(s->context, &d);
    assert_int_equal(read_split(s, "test", &d), DPCR_OK);
    assert_true(d.count == 2 && d.labels[1] == 8);
    dpcr_dataset_free(s->context, &d);
}

static void refuses(void **state) {
    scratch *s = *state;
    dpcr_dataset d;
    unsigned char record[RECORD] = {10};
    assert_refused(s, read_split(s, "train", &d), DPCR_ERROR_IO, "data_batch_1.bin");
    write_all(s);
    assert_refused(s, read_split(s, "t10k", &d), DPCR_ERROR_ARGUMENT, "wanted 'train' or 'test'");
    scratch_write(s, "test_batch.bin", record, sizeof record);
    assert_refused(s, read_split(s, "test", &d), DPCR_ERROR_FORMAT, "got label 10 at record 0, wanted 0..9");
    scratch_write(s, "test_batch.bin", record, 0);
    assert_refused(s, read_split(s, "test", &d), DPCR_ERROR_FORMAT, "got 0 bytes, wanted records of 3073");
    for (size_t bytes = 5 * RECORD - 1; bytes > 4 * RECORD; bytes -= bytes > 4 * RECORD + 2 ? 769 : 1) {
        write_part(s, "data_batch_5.bin", 4, 5, bytes);
        assert_refused(s, read_split(s, "train", &d), DPCR_ERROR_FORMAT, "wanted records of 3073");
    }
    unlink(scratch_path(s, "data_batch_3.bin"));
    assert_refused(s, read_split(s, "train", &d), DPCR_ERROR_IO, "data_batch_3.bin");
    assert_refused(s, dpcr_dataset_read_cifar10(s->context, NULL, "train", &d, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
}

static void out_of_memory(void **state) {
    scratch *s = *state;
    dpcr_dataset d;
    write_all(s);
    const int64_t before = s->memory.live;
    for (int64_t n = 0;; n++) {
        s->memory.fail_at = s->memory.calls + n;
        const dpcr_status status = read_split(s, "train", &d);
        if (status == DPCR_OK) break;
        assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
        assert_int_equal(s->memory.live, before);
        assert_true(n < 10);
    }
    dpcr_dataset_free(s->context, &d);
    assert_int_equal(s->memory.live, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        scratch_test(reads_files_in_order),
        scratch_test(refuses),
        scratch_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
