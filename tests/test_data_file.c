// SPDX-License-Identifier: MIT
// Atomic writing and whole-file reading.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "data/file.h"
#include "data_testing.h"

// In place of libc's: a file system may have files without a name and give them none.
static bool links_are_refused;

int linkat(int from, const char *old, int to, const char *new, int flags) {
    if (!links_are_refused) return (int)syscall(SYS_linkat, from, old, to, new, flags);
    errno = EPERM;
    return -1;
}

static void assert_content(const char *path, const char *text) {
    size_t count = 0;
    unsigned char *bytes = load_file(path, &count);
    assert_int_equal(count, strlen(text));
    assert_memory_equal(bytes, text, count);
    free(bytes);
}

static void writes_and_replaces(void **state) {
    scratch *s = *state;
    const char *path = scratch_path(s, "a");
    assert_int_equal(dpcri_file_write(path, "one", 3, &s->error), DPCR_OK);
    assert_content(path, "one");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(dpcri_file_write(path, "three", 5, &s->error), DPCR_OK);
    assert_content(path, "three");
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
    assert_int_equal(dpcri_file_write(path, "", 0, &s->error), DPCR_OK);
    assert_content(path, "");
    assert_int_equal(scratch_files(s, 0), 1);
}

static bool has_unnamed_files(const scratch *s) {
    const int fd = open(s->folder, O_TMPFILE | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

// A process that writes without end, told to a pipe where it is, and is killed there.
static void a_kill_leaves_nothing(void **state) {
    scratch *s = *state;
    const char *path = scratch_write(s, "a", "old", 3);
    static const unsigned char piece[1 << 16];
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dpcri_writer writer;
        if (dpcri_writer_open(&writer, path, NULL) != DPCR_OK) _exit(1);
        for (int i = 0; i < 64; i++)
            if (dpcri_writer_put(&writer, piece, sizeof piece, NULL) != DPCR_OK || write(ends[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    for (int i = 0; i < 4; i++) assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    assert_content(path, "old");
    assert_int_equal(scratch_files(s, 0), has_unnamed_files(s) ? 1 : 2);
}

// What others write to by its name has one, and it goes with the writer.
static void room_for_others_has_a_name(void **state) {
    scratch *s = *state;
    dpcri_writer writer;
    assert_int_equal(dpcri_writer_open(&writer, scratch_path(s, "a"), &s->error), DPCR_OK);
    assert_int_equal(dpcri_writer_put(&writer, "ab", 2, &s->error), DPCR_OK);
    assert_int_equal(dpcri_writer_reserve(&writer, 2, &s->error), DPCR_OK);
    assert_int_equal(scratch_files(s, 0), 1);
    assert_int_equal(dpcri_file_put(dpcri_writer_name(&writer), 2, "cd", 2, &s->error), DPCR_OK);
    assert_int_equal(dpcri_writer_commit(&writer, &s->error), DPCR_OK);
    assert_content(scratch_path(s, "a"), "abcd");
    assert_int_equal(scratch_files(s, 0), 1);
}

static void files_that_get_no_name_are_copied(void **state) {
    scratch *s = *state;
    enum { COUNT = 100001 };
    unsigned char *bytes = malloc(COUNT);
    for (int i = 0; i < COUNT; i++) bytes[i] = (unsigned char)(i * 7);
    const char *path = scratch_write(s, "a", "old", 3);
    assert_int_equal(chmod(path, 0640), 0);
    links_are_refused = true;
    const dpcr_status status = dpcri_file_write(path, bytes, COUNT, &s->error);
    links_are_refused = false;
    assert_int_equal(status, DPCR_OK);
    assert_int_equal(s->error.status, DPCR_OK);
    size_t count = 0;
    unsigned char *back = load_file(path, &count);
    assert_int_equal(count, COUNT);
    assert_memory_equal(back, bytes, COUNT);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
    assert_int_equal(scratch_files(s, 1), 1);
    links_are_refused = true;
    room_for_others_has_a_name(state);
    links_are_refused = false;
    free(back);
    free(bytes);
}

static void new_files_go_by_the_umask(void **state) {
    scratch *s = *state;
    struct stat about;
    const mode_t old = umask(027);
    const dpcr_status status = dpcri_file_write(scratch_path(s, "a"), "x", 1, &s->error);
    umask(old);
    assert_int_equal(status, DPCR_OK);
    assert_int_equal(stat(s->path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
}

// What standard output or error was redirected to holds more than what is written now.
static void streams_are_not_replaced(void **state) {
    scratch *s = *state;
    float numbers[2] = {1, 2};
    for (int stream = STDOUT_FILENO; stream <= STDERR_FILENO; stream++) {
        const char *path = scratch_write(s, "all", "before ", 7);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            const dpcr_array array = dpcr_array_make(numbers, DPCR_F32, 1, (const int64_t[]){2});
            dpcr_npy_rows *rows = NULL;
            const int fd = open(path, O_WRONLY | O_APPEND);
            if (fd < 0 || dup2(fd, stream) < 0) _exit(1);
            const char *name = stream == STDOUT_FILENO ? "/dev/stdout" : "/dev/stderr";
            if (dpcri_file_write(name, "one ", 4, NULL) != DPCR_OK) _exit(2);
            if (dpcri_file_write(path, "two", 3, NULL) != DPCR_OK) _exit(3);
            _exit(dpcr_npy_rows_create(s->context, path, &array, &rows, NULL) == DPCR_ERROR_ARGUMENT ? 0 : 4);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_content(path, "before one two");
        assert_int_equal(scratch_files(s, 0), 1);
    }
}

static void keeps_the_old_file_until_commit(void **state) {
    scratch *s = *state;
    const char *path = scratch_write(s, "a", "old", 3);
    dpcri_writer writer;
    assert_int_equal(dpcri_writer_open(&writer, path, &s->error), DPCR_OK);
    assert_int_equal(dpcri_writer_put(&writer, "new", 3, &s->error), DPCR_OK);
    assert_int_equal(scratch_files(s, 0), has_unnamed_files(s) ? 1 : 2);
    assert_content(path, "old");
    dpcri_writer_close(&writer);
    dpcri_writer_close(&writer);
    assert_content(path, "old");
    assert_int_equal(scratch_files(s, 0), 1);
}

static void files_without_a_name_are_written_as_they_are(void **state) {
    scratch *s = *state;
    const int files[] = {memfd_create("a", 0), open(scratch_path(s, "a"), O_RDWR | O_CREAT, 0600)};
    assert_int_equal(unlink(scratch_path(s, "a")), 0);
    for (int i = 0; i < 2; i++) {
        char path[32], content[8];
        assert_int_equal(write(files[i], "before", 6), 6);
        snprintf(path, sizeof path, "/dev/fd/%d", files[i]);
        assert_int_equal(dpcri_file_write(path, "new", 3, &s->error), DPCR_OK);
        assert_int_equal(pread(files[i], content, sizeof content, 0), 3);
        assert_memory_equal(content, "new", 3);
        close(files[i]);
    }
    assert_int_equal(scratch_files(s, 0), 0);
}

static void passes_over_stale_temporaries(void **state) {
    scratch *s = *state;
    char name[64];
    snprintf(name, sizeof name, ".deeppcr-%ld-0.tmp", (long)getpid());
    scratch_write(s, name, "stale", 5);
    assert_int_equal(dpcri_file_write(scratch_path(s, "a"), "x", 1, &s->error), DPCR_OK);
    assert_content(s->path, "x");
    assert_content(scratch_path(s, name), "stale");
}

static void follows_links(void **state) {
    scratch *s = *state;
    char link[256];
    strcpy(link, scratch_path(s, "link"));
    const char *path = scratch_write(s, "a", "old", 3);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(dpcri_file_write(link, "new", 3, &s->error), DPCR_OK);
    assert_content(path, "new");
    struct stat about;
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
}

static void long_writes_cross_the_buffer(void **state) {
    scratch *s = *state;
    enum { COUNT = 200001 };
    unsigned char *bytes = malloc(COUNT);
    for (int i = 0; i < COUNT; i++) bytes[i] = (unsigned char)(i * 7);
    dpcri_writer writer;
    assert_int_equal(dpcri_writer_open(&writer, scratch_path(s, "a"), &s->error), DPCR_OK);
    size_t done = 0;
    for (size_t piece = 1; done < COUNT; piece = piece * 3 + 1) {
        const size_t n = piece < COUNT - done ? piece : COUNT - done;
        assert_int_equal(dpcri_writer_put(&writer, bytes + done, n, &s->error), DPCR_OK);
        done += n;
    }
    assert_int_equal(dpcri_writer_commit(&writer, &s->error), DPCR_OK);
    size_t count = 0;
    unsigned char *back = load_file(s->path, &count);
    assert_int_equal(count, COUNT);
    assert_memory_equal(back, bytes, COUNT);
    free(back);
    free(bytes);
}

static void refuses_what_cannot_be_written(void **state) {
    scratch *s = *state;
    assert_refused(s, dpcri_file_write(scratch_path(s, "none/a"), "x", 1, &s->error), DPCR_ERROR_IO, "No such file");
    assert_refused(s, dpcri_file_write(s->folder, "x", 1, &s->error), DPCR_ERROR_IO, "Is a directory");
    assert_refused(s, dpcri_file_write("", "x", 1, &s->error), DPCR_ERROR_IO, "No such file");
    char *path = malloc(PATH_MAX + 10);
    memset(path, 'a', PATH_MAX + 9);
    path[PATH_MAX + 9] = 0;
    assert_refused(s, dpcri_file_write(path, "x", 1, &s->error), DPCR_ERROR_IO, "name too long");
    free(path);
    dpcri_file_write(scratch_path(s, "none/a"), "x", 1, &s->error);
    assert_int_equal(s->error.code, ENOENT);
    if (geteuid() != 0) {
        assert_int_equal(chmod(s->folder, 0500), 0);
        assert_refused(s, dpcri_file_write(scratch_path(s, "a"), "x", 1, &s->error), DPCR_ERROR_IO,
                       "Permission denied");
        assert_int_equal(chmod(s->folder, 0700), 0);
    }
    assert_int_equal(scratch_files(s, 0), 0);
}

static void full_device(void **state) {
    scratch *s = *state;
    s->error.code = 0;
    const dpcr_status status = dpcri_file_write("/dev/full", "x", 1, &s->error);
    assert_int_equal(s->error.code, ENOSPC);
    assert_refused(s, status, DPCR_ERROR_IO, "No space left on device; file /dev/full");
}

// A limit on file sizes stands in for a full disk: write gives a part and then EFBIG.
static void full_disk_leaves_the_old_file(void **state) {
    scratch *s = *state;
    const char *path = scratch_write(s, "a", "old", 3);
    unsigned char *bytes = calloc(1, 100000);
    struct rlimit old, small = {.rlim_cur = 50000};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const dpcr_status large = dpcri_file_write(path, bytes, 100000, &s->error);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    assert_int_equal(s->error.code, EFBIG);
    assert_refused(s, large, DPCR_ERROR_IO, "File too large");
    assert_content(path, "old");
    assert_int_equal(scratch_files(s, 0), 1);
    free(bytes);
}

static void reads_whole_files(void **state) {
    scratch *s = *state;
    char *bytes = NULL, *large = malloc(10000);
    int64_t count = 0;
    memset(large, 'x', 10000);
    const char *path = scratch_write(s, "a", large, 10000);
    assert_int_equal(dpcri_file_read(s->context, path, 10000, &bytes, &count, &s->error), DPCR_OK);
    assert_int_equal(count, 10000);
    assert_int_equal(bytes[10000], 0);
    assert_memory_equal(bytes, large, 10000);
    dpcri_free(s->context, bytes);
    assert_refused(s, dpcri_file_read(s->context, path, 9999, &bytes, &count, &s->error), DPCR_ERROR_FORMAT,
                   "got 10000 bytes, wanted at most 9999; file ");
    assert_null(bytes);
    assert_refused(s, dpcri_file_read(s->context, "/dev/zero", 9999, &bytes, &count, &s->error), DPCR_ERROR_FORMAT,
                   "more than 9999");
    assert_refused(s, dpcri_file_read(s->context, scratch_path(s, "none"), 9, &bytes, &count, &s->error), DPCR_ERROR_IO,
                   "No such file");
    assert_refused(s, dpcri_file_read(s->context, s->folder, 9, &bytes, &count, &s->error), DPCR_ERROR_IO,
                   "Is a directory");
    assert_int_equal(dpcri_file_read(s->context, scratch_write(s, "b", "", 0), 0, &bytes, &count, &s->error), DPCR_OK);
    assert_int_equal(count, 0);
    dpcri_free(s->context, bytes);
    path = scratch_path(s, "a");
    s->memory.fail_at = s->memory.calls;
    assert_refused(s, dpcri_file_read(s->context, path, 99999, &bytes, &count, &s->error), DPCR_ERROR_MEMORY,
                   "no memory");
    free(large);
}

static void reads_pipes(void **state) {
    scratch *s = *state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        char piece[1000];
        memset(piece, 'y', sizeof piece);
        for (int i = 0; i < 100; i++)
            if (write(ends[1], piece, sizeof piece) < 0) break;
        _exit(0);
    }
    close(ends[1]);
    char path[64], *bytes = NULL;
    int64_t count = 0;
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(dpcri_file_read(s->context, path, 1 << 20, &bytes, &count, &s->error), DPCR_OK);
    assert_int_equal(count, 100000);
    assert_int_equal(bytes[99999], 'y');
    dpcri_free(s->context, bytes);
    close(ends[0]);
    waitpid(child, NULL, 0);
}

static void quotes_names(void **state) {
    (void)state;
    dpcri_quoted quoted;
    char name[300] = "a\nb\x1b";
    assert_string_equal(dpcri_quote(name, &quoted), "a?b?");
    memset(name, 'a', 91);
    strcpy(name + 91, "\xc3\xb6\xc3\xb6\xc3\xb6");
    dpcri_quote(name, &quoted);
    assert_true(strlen(quoted.text) < sizeof quoted.text);
    assert_string_equal(quoted.text + 91, "...");
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static bool is_utf8(const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        int more = *c < 0x80 ? 0 : *c < 0xc0 ? -1 : *c < 0xe0 ? 1 : *c < 0xf0 ? 2 : 3;
        if (more < 0) return false;
        for (; more > 0; more--)
            if ((*++c & 0xc0) != 0x80) return false;
    }
    return true;
}

static void errors_are_one_line(void **state) {
    scratch *s = *state;
    char path[3000] = "", *bytes = NULL;
    int64_t count = 0;
    dpcri_fail(&s->error, DPCR_ERROR_ARGUMENT, "got %s, wanted none", "a\nb\x1b\x7f");
    assert_string_equal(s->error.text, "got a?b??, wanted none");
    // What is long is a path: what was wrong stands before it, or at the end.
    for (int i = 0; i < 14; i++) snprintf(path + 201 * i, sizeof path - 201 * (size_t)i, "/%0200d", i);
    assert_int_equal(dpcri_file_read(s->context, path, 9, &bytes, &count, &s->error), DPCR_ERROR_IO);
    assert_true(!strncmp(s->error.text, "cannot open: No such file or directory; file /", 46));
    assert_true(strstr(s->error.text, " [...] ") && ends_with(s->error.text, path + strlen(path) - 90));
    assert_int_equal(strlen(s->error.text), sizeof s->error.text - 1);
    const dpcri_source source = dpcri_source_memory(path, "", 0);
    dpcri_source_bad(&source, &s->error, "%0250d, got 1 and wanted 2", 3);
    assert_non_null(strstr(s->error.text, ", got 1 and wanted 2; file /"));
    assert_true(ends_with(s->error.text, path + strlen(path) - 90));
    dpcri_fail(&s->error, DPCR_ERROR_ARGUMENT, "resume from %s: got 1, wanted 2", path);
    assert_true(ends_with(s->error.text, ": got 1, wanted 2"));
    // Longer than any path; and texts of two bytes a letter, cut anywhere.
    char letters[9001];
    static const char *const each[] = {"a", "\xc3\xb6", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"};
    for (size_t width = 1; width <= 4; width++)
        for (size_t n = 0; n < 4; n++) {  // the last letter ends at 8191, or 1 to 3 bytes beyond
            for (size_t at = n; at + width < sizeof letters; at += width) memcpy(letters + at, each[width - 1], width);
            memset(letters, 'a', n);
            letters[n + (9000 - n) / width * width] = 0;
            dpcri_fail(&s->error, DPCR_ERROR_ARGUMENT, "%s", letters);
            assert_true(is_utf8(s->error.text) && strlen(s->error.text) >= sizeof s->error.text - 7);
            assert_true(ends_with(s->error.text, each[width - 1]));
        }
    for (size_t n = 0; n < 8; n++) {
        for (size_t k = 0; k < 600; k++) memcpy(path + n + 2 * k, "\xc3\xb6", 3);
        memset(path, 'a', n);
        dpcri_fail(&s->error, DPCR_ERROR_ARGUMENT, "%s", path);
        assert_true(is_utf8(s->error.text) && strlen(s->error.text) >= sizeof s->error.text - 3);
    }
    dpcri_fail(&s->error, DPCR_ERROR_ARGUMENT, "before: %.20s", s->error.text);
    assert_true(!strncmp(s->error.text, "before: aaaaaaa\xc3\xb6", 17));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        scratch_test(writes_and_replaces),
        scratch_test(keeps_the_old_file_until_commit),
        scratch_test(a_kill_leaves_nothing),
        scratch_test(room_for_others_has_a_name),
        scratch_test(files_that_get_no_name_are_copied),
        scratch_test(new_files_go_by_the_umask),
        scratch_test(streams_are_not_replaced),
        scratch_test(files_without_a_name_are_written_as_they_are),
        scratch_test(passes_over_stale_temporaries),
        scratch_test(follows_links),
        scratch_test(long_writes_cross_the_buffer),
        scratch_test(refuses_what_cannot_be_written),
        scratch_test(full_device),
        scratch_test(full_disk_leaves_the_old_file),
        scratch_test(reads_whole_files),
        scratch_test(reads_pipes),
        cmocka_unit_test(quotes_names),
        scratch_test(errors_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
