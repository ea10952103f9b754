// SPDX-License-Identifier: MIT
// Files: written as a whole or not at all; read at checked offsets, from a descriptor or from memory alike.
#ifndef DPCRI_DATA_FILE_H
#define DPCRI_DATA_FILE_H

#include <limits.h>

#include "base/base.h"

// ---- writing ----
//
//   dpcri_writer writer;
//   DPCR_TRY(dpcri_writer_open(&writer, path, error));
//   DPCR_TRY(dpcri_writer_put(&writer, bytes, count, error));      any number of times
//   DPCR_TRY(dpcri_writer_commit(&writer, error));
//   done: dpcri_writer_close(&writer);                             always; does nothing after a commit
//
// The bytes go to a file without a name in the folder of `path`; commit syncs it, names it, renames it onto `path` and
// syncs the folder. Whatever fails before the rename, a kill too, leaves nothing of it and an old file at `path` as it
// was; only a kill between the two calls that name and rename it leaves a temporary file (.deeppcr-PID-N.tmp) behind,
// or any kill where the file system knows no file without a name (NFS) or gives it none, or where others write to it by
// its name. A symbolic link is followed; the permissions of an old file are kept. What is no regular file (a device, a
// pipe), a file that has lost its name, "-", which is standard output, and the file that standard output or error goes
// to are written directly, the last where the stream is in it. Failures: DPCR_ERROR_IO with errno in error->code. No
// allocation.
typedef struct dpcri_writer {
    const char *path;  // the caller's, for error texts; lives as long as the writer
    int fd;            // -1: closed
    bool owned;        // close it: it is no standard stream
    bool atomic;       // there is a temporary file to rename
    size_t used;       // bytes waiting in buffer
    char target[PATH_MAX];
    char temporary[PATH_MAX];  // empty: the file has no name yet
    unsigned char buffer[1 << 15];
} dpcri_writer;

dpcr_status dpcri_writer_open(dpcri_writer *writer, const char *path, dpcr_error *error);
dpcr_status dpcri_writer_put(dpcri_writer *writer, const void *bytes, size_t count, dpcr_error *error);
dpcr_status dpcri_writer_commit(dpcri_writer *writer, dpcr_error *error);
void dpcri_writer_close(dpcri_writer *writer);

// Room for `bytes` more after what was put, which others will write by the file's name, which it has from here on: a
// full disk shows itself now.
dpcr_status dpcri_writer_reserve(dpcri_writer *writer, int64_t bytes, dpcr_error *error);
// The name that others write to.
const char *dpcri_writer_name(const dpcri_writer *writer);
// count bytes at an offset of a file that is there, synced before it returns.
dpcr_status dpcri_file_put(const char *path, int64_t at, const void *bytes, size_t count, dpcr_error *error);

// All three steps for bytes that lie in memory.
dpcr_status dpcri_file_write(const char *path, const void *bytes, size_t count, dpcr_error *error);

// ---- reading ----

// The whole of a file ("-": standard input), with a 0 byte after the last that *count does not count. More than `limit`
// bytes: DPCR_ERROR_FORMAT. *bytes belongs to the caller (dpcri_free).
dpcr_status dpcri_file_read(dpcr_context *context, const char *path, int64_t limit, char **bytes, int64_t *count,
                            dpcr_error *error);

// Where a reader takes its bytes from: a file, memory, or a pipe, which must be read in order.
typedef struct dpcri_source {
    const char *name;             // for error texts; the caller's
    const unsigned char *memory;  // NULL: the descriptor
    int fd;                       // -1: none
    bool owned;                   // close it: it is not standard input
    bool seekable;
    int64_t size;           // INT64_MAX for a pipe, whose size nobody knows
    dpcr_context *context;  // whose cancel function is asked where a signal comes while a pipe is waited for; or NULL
} dpcri_source;

// "-" is standard input. Anything but a regular file is refused (DPCR_ERROR_IO) where `need_seek` is set.
dpcr_status dpcri_source_open(dpcri_source *source, const char *path, bool need_seek, dpcr_error *error);
dpcri_source dpcri_source_memory(const char *name, const void *bytes, size_t count);
void dpcri_source_close(dpcri_source *source);

// count bytes from offset `at`; *got < count only where the data end. A pipe ignores `at`.
dpcr_status dpcri_source_read_some(const dpcri_source *source, int64_t at, void *to, size_t count, size_t *got,
                                   dpcr_error *error);
// Exactly count bytes, else DPCR_ERROR_FORMAT that says what was cut short.
dpcr_status dpcri_source_read(const dpcri_source *source, int64_t at, void *to, size_t count, const char *what,
                              dpcr_error *error);

// DPCR_ERROR_FORMAT with the text and "; file NAME".
dpcr_status dpcri_source_bad(const dpcri_source *source, dpcr_error *error, const char *format, ...) DPCRI_PRINTF(3, 4);

// DPCR_ERROR_MEMORY, as a constant that whoever reads the caller alone sees too (static analysis).
static inline dpcr_status dpcri_no_memory(dpcr_error *error, const char *what, int64_t bytes) {
    dpcri_fail(error, DPCR_ERROR_MEMORY, "%s: no memory for %lld bytes", what, (long long)bytes);
    return DPCR_ERROR_MEMORY;
}

// Names out of files, fit for one line of an error text: control characters become '?', long ones are cut. Returns
// buffer.
typedef struct dpcri_quoted {
    char text[96];
} dpcri_quoted;
const char *dpcri_quote(const char *name, dpcri_quoted *buffer);

#endif
