// SPDX-License-Identifier: MIT
// IDX data sets: raw and gzipped, every refusal, the real Fashion-MNIST where it is installed.
#include <errno.h>
#include <zlib.h>

#include "data/tensors.h"
#include "data_testing.h"

#define FASHION "/usr/share/datasets/fashion-mnist"
#define IMAGES "train-images-idx3-ubyte"
#define LABELS "train-labels-idx1-ubyte"

enum { COUNT = 3, ROWS = 2, COLS = 4, IMAGE_BYTES = 16 + COUNT * ROWS * COLS, LABEL_BYTES = 8 + COUNT };

typedef struct files {
    unsigned char images[IMAGE_BYTES], labels[LABEL_BYTES];
} files;

static files good_files(void) {
    files f = {.images = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, ROWS, 0, 0, 0, COLS},
               .labels = {0, 0, 8, 1, 0, 0, 0, COUNT, 2, 0, 5}};
    for (int i = 16; i < IMAGE_BYTES; i++) f.images[i] = (unsigned char)(i * 9);
    return f;
}

static void write_files(scratch *s, const files *f) {
    scratch_write(s, IMAGES, f->images, IMAGE_BYTES);
    scratch_write(s, LABELS, f->labels, LABEL_BYTES);
}

static dpcr_status read_files(scratch *s, dpcr_dataset *d) {
    const dpcr_status status = dpcr_dataset_read_idx(s->context, s->folder, "train", 0, d, &s->error);
    if (status != DPCR_OK) {
        assert_null(d->images);
        assert_null(d->labels);
    }
    return status;
}

static void write_gzipped(scratch *s, const char *name, const void *bytes, unsigned count, const char *mode) {
    gzFile file = gzopen(scratch_path(s, name), mode);
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, count), count);
    assert_int_equal(gzclose(file), Z_OK);
}

static void assert_good(scratch *s, dpcr_dataset *d) {
    const files f = good_files();
    assert_int_equal(d->count, COUNT);
    assert_int_equal(d->rows, ROWS);
    assert_int_equal(d->cols, COLS);
    assert_int_equal(d->classes, 6);
    assert_memory_equal(d->images, f.images + 16, COUNT * ROWS * COLS);
    assert_memory_equal(d->labels, f.labels + 8, COUNT);
    dpcr_dataset_free(s->context, d);
    dpcr_dataset_free(s->context, d);
    dpcr_dataset_free(s->context, NULL);
}

static void reads_raw_and_gzipped(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    write_files(s, &f);
    assert_int_equal(read_files(s, &d), DPCR_OK);
    assert_good(s, &d);
    scratch_files(s, 1);
    write_gzipped(s, IMAGES ".gz", f.images, IMAGE_BYTES, "wb9");
    write_gzipped(s, LABELS ".gz", f.labels, LABEL_BYTES, "wb1");
    assert_int_equal(read_files(s, &d), DPCR_OK);
    assert_good(s, &d);
    // Two members in a row are one file, and the name does not decide.
    scratch_files(s, 1);
    write_gzipped(s, IMAGES, f.images, 20, "wb");
    write_gzipped(s, IMAGES, f.images + 20, IMAGE_BYTES - 20, "ab");
    scratch_write(s, LABELS ".gz", f.labels, LABEL_BYTES);
    assert_int_equal(read_files(s, &d), DPCR_OK);
    assert_good(s, &d);
}

static void classes_bound_the_labels(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    write_files(s, &f);
    assert_int_equal(dpcr_dataset_read_idx(s->context, s->folder, "train", 10, &d, &s->error), DPCR_OK);
    assert_int_equal(d.classes, 10);
    dpcr_dataset_free(s->context, &d);
    assert_refused(s, dpcr_dataset_read_idx(s->context, s->folder, "train", 5, &d, &s->error), DPCR_ERROR_FORMAT,
                   "got label 5 at 2, wanted 0..4; file ");
    assert_null(d.images);
}

static void refuses_bad_content(void **state) {
    scratch *s = *state;
    static const struct {
        int in_labels, at;
        unsigned char value;
        const char *text;
    } bad[] = {
        {0, 3, 1, "IDX images: got magic number 0x00000801, wanted 0x00000803"},
        {0, 2, 9, "got magic number 0x00000903"},
        {0, 0, 1, "got magic number 0x01000803"},
        {1, 3, 3, "IDX labels: got magic number 0x00000803, wanted 0x00000801"},
        {0, 7, 4, "IDX images cut short: got at most 24 bytes, wanted 32"},
        {0, 7, 2, "there are more bytes than its header says"},
        {0, 7, 0, "got extent 0 in dimension 0"},
        {0, 11, 0, "got extent 0 in dimension 1"},
        {0, 4, 0x80, "cut short"},
        {1, 7, 4, "IDX labels cut short"},
        {1, 7, 2, "there are more bytes"},
        {1, 7, 0, "got extent 0"},
    };
    dpcr_dataset d;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        files f = good_files();
        (bad[i].in_labels ? f.labels : f.images)[bad[i].at] = bad[i].value;
        write_files(s, &f);
        assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, bad[i].text);
        assert_int_equal(dpcr_dataset_read_idx(s->context, s->folder, "train", 0, &d, NULL), DPCR_ERROR_FORMAT);
    }
    files f = good_files();
    write_files(s, &f);
    f.labels[7] = 2;
    scratch_write(s, LABELS, f.labels, LABEL_BYTES - 1);
    assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, "IDX labels: got 2, wanted 3, one an image");
    memset(f.images + 4, 0xff, 12);
    scratch_write(s, IMAGES, f.images, IMAGE_BYTES);
    assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, "does not fit 63 bits");
}

static void refuses_every_truncation(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    for (int gzipped = 0; gzipped < 2; gzipped++) {
        write_files(s, &f);
        if (gzipped) write_gzipped(s, IMAGES, f.images, IMAGE_BYTES, "wb");
        size_t count = 0;
        unsigned char *bytes = load_file(scratch_path(s, IMAGES), &count);
        for (size_t n = 0; n < count; n++) {
            scratch_write(s, IMAGES, bytes, n);
            assert_int_equal(read_files(s, &d), DPCR_ERROR_FORMAT);
        }
        free(bytes);
    }
}

static void refuses_damaged_gzip(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    write_files(s, &f);
    write_gzipped(s, IMAGES, f.images, IMAGE_BYTES, "wb");
    size_t count = 0;
    unsigned char *bytes = load_file(scratch_path(s, IMAGES), &count);
    bytes[count - 8] ^= 1;
    scratch_write(s, IMAGES, bytes, count);
    assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, "gzip data are damaged: incorrect data check");
    bytes[count - 8] ^= 1;
    bytes[count] = 'x';
    scratch_write(s, IMAGES, bytes, count + 1);
    assert_int_equal(read_files(s, &d), DPCR_ERROR_FORMAT);
    free(bytes);
}

// A header that claims little before a stream that unpacks to much, and the reverse: neither is unpacked nor allocated.
static void refuses_bombs(void **state) {
    scratch *s = *state;
    enum { LARGE = 10000000 };
    files f = good_files();
    dpcr_dataset d;
    unsigned char *bomb = calloc(1, LARGE);
    write_files(s, &f);
    memcpy(bomb, f.images, 16);
    write_gzipped(s, IMAGES, bomb, LARGE, "wb9");
    assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, "there are more bytes than its header says");
    memset(f.images + 4, 0x10, 8);
    write_gzipped(s, IMAGES, f.images, IMAGE_BYTES, "wb9");
    const int64_t calls = s->memory.calls;
    assert_refused(s, read_files(s, &d), DPCR_ERROR_FORMAT, "IDX images cut short: got at most");
    assert_true(s->memory.calls - calls <= 3);  // zlib's own
    free(bomb);
}

static void refuses_what_is_not_there(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    dpcr_status status = dpcr_dataset_read_idx(s->context, scratch_path(s, "none"), "train", 0, &d, &s->error);
    assert_int_equal(s->error.code, ENOENT);
    assert_non_null(strstr(s->error.text, s->path));
    assert_null(strstr(s->error.text, "Debian"));
    assert_refused(s, status, DPCR_ERROR_IO, "cannot open the data set's folder: No such file");
    assert_refused(s, read_files(s, &d), DPCR_ERROR_IO, "cannot find train-images-idx3-ubyte[.gz]: No such file");
    write_files(s, &f);
    unlink(scratch_path(s, LABELS));
    assert_refused(s, read_files(s, &d), DPCR_ERROR_IO, "cannot find train-labels-idx1-ubyte[.gz]");
    assert_refused(s, dpcr_dataset_read_idx(s->context, s->folder, "t10k", 0, &d, &s->error), DPCR_ERROR_IO,
                   "cannot find t10k-images");
    assert_refused(s, dpcr_dataset_read_idx(s->context, s->folder, "test", 0, &d, &s->error), DPCR_ERROR_ARGUMENT,
                   "split is 'test', wanted 'train' or 't10k'");
    assert_refused(s, dpcr_dataset_read_idx(s->context, s->folder, "train", -1, &d, &s->error), DPCR_ERROR_ARGUMENT,
                   "classes is -1");
    assert_refused(s, dpcr_dataset_read_idx(NULL, s->folder, "train", 0, &d, &s->error), DPCR_ERROR_ARGUMENT, "NULL");
    if (access(FASHION, F_OK) != 0) {
        status = dpcr_dataset_read_idx(s->context, FASHION "/", "train", 0, &d, &s->error);
        assert_refused(s, status, DPCR_ERROR_IO, FASHION "/ (the Debian package dataset-fashion-mnist provides it)");
    }
}

static void out_of_memory(void **state) {
    scratch *s = *state;
    files f = good_files();
    dpcr_dataset d;
    write_files(s, &f);
    write_gzipped(s, IMAGES, f.images, IMAGE_BYTES, "wb");
    const int64_t before = s->memory.live;
    for (int64_t n = 0;; n++) {
        s->memory.fail_at = s->memory.calls + n;
        const dpcr_status status = read_files(s, &d);
        if (status == DPCR_OK) break;
        assert_refused(s, status, DPCR_ERROR_MEMORY, "no memory");
        assert_int_equal(s->memory.live, before);
        assert_true(n < 100);
    }
    assert_good(s, &d);
}

static void fashion_mnist(void **state) {
    scratch *s = *state;
    static const struct {
        const char *split;
        int64_t count;
        uint8_t labels[4];
    } splits[] = {{"train", 60000, {9, 0, 0, 3}}, {"t10k", 10000, {9, 2, 1, 1}}};
    if (access(FASHION, F_OK) != 0) skip();
    for (int i = 0; i < 2; i++) {
        dpcr_dataset d;
        assert_int_equal(dpcr_dataset_read_idx(s->context, FASHION, splits[i].split, 10, &d, &s->error), DPCR_OK);
        assert_int_equal(d.count, splits[i].count);
        assert_int_equal(d.rows, 28);
        assert_int_equal(d.cols, 28);
        assert_int_equal(d.classes, 10);
        assert_memory_equal(d.labels, splits[i].labels, 4);
        int64_t of_class[10] = {0};
        for (int64_t k = 0; k < d.count; k++) of_class[d.labels[k]]++;
        for (int k = 0; k < 10; k++) assert_int_equal(of_class[k], d.count / 10);
        dpcr_dataset_free(s->context, &d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        scratch_test(reads_raw_and_gzipped),
        scratch_test(classes_bound_the_labels),
        scratch_test(refuses_bad_content),
        scratch_test(refuses_every_truncation),
        scratch_test(refuses_damaged_gzip),
        scratch_test(refuses_bombs),
        scratch_test(refuses_what_is_not_there),
        scratch_test(out_of_memory),
        scratch_test(fashion_mnist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
