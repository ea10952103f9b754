// SPDX-License-Identifier: MIT
// Atomic writing (a file without a name, sync, a name, rename, sync of the folder) and reading at checked offsets.
#include "data/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(sizeof(off_t) == 8, "files beyond 2 GiB need 64-bit offsets");

static bool is_dash(const char *path) { return strcmp(path, "-") == 0; }

static dpcr_status fail_errno(dpcr_error *error, const char *doing, const char *path) {
    const int code = errno;
    return dpcri_fail_code(error, DPCR_ERROR_IO, code, "%s: %s; file %s", doing, strerror(code),
                           is_dash(path) ? "- (standard stream)" : path);
}

// ---- writing ----

// Length of the folder part of a path, without the last slash but for "/" itself; 0 when there is none.
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return 0;
    return slash == path ? 1 : (size_t)(slash - path);
}

// Where the file of a descriptor has a name to be linked by.
static void own_name(int fd, char name[32]) { snprintf(name, 32, "/proc/self/fd/%d", fd); }

// Without a name, a file is gone with its process. False: the file system has none such, or there is no /proc.
static bool open_unnamed(dpcri_writer *writer, mode_t mode) {
    char folder[PATH_MAX] = ".", name[32];
    const size_t length = folder_length(writer->target);
    if (length) memcpy(folder, writer->target, length), folder[length] = 0;
    writer->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    if (writer->fd < 0) return false;
    own_name(writer->fd, name);
    if (access(name, F_OK) == 0) return true;
    close(writer->fd);
    writer->fd = -1;
    return false;
}

// Tries temporary names until one is free: for the unnamed file, or, mode >= 0, for a new one. The name does not hold
// the file's own, so that it fits NAME_MAX whenever the file's own does.
static dpcr_status take_name(dpcri_writer *writer, int mode, dpcr_error *error) {
    const int length = (int)folder_length(writer->target);
    const char *folder = length ? writer->target : ".";
    char name[32];
    own_name(writer->fd, name);
    for (unsigned n = 0; n < 10000; n++) {
        const int used = snprintf(writer->temporary, sizeof writer->temporary, "%.*s/.deeppcr-%ld-%u.tmp",
                                  length ? length : 1, folder, (long)getpid(), n);
        if (used < 0 || (size_t)used >= sizeof writer->temporary) {
            writer->temporary[0] = 0;
            errno = ENAMETOOLONG;
            return fail_errno(error, "cannot make a temporary file", writer->path);
        }
        if (mode >= 0) {
            writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
            if (writer->fd >= 0) return DPCR_OK;
        } else if (linkat(AT_FDCWD, name, AT_FDCWD, writer->temporary, AT_SYMLINK_FOLLOW) == 0) {
            return DPCR_OK;
        }
        if (errno != EEXIST) break;
    }
    writer->temporary[0] = 0;
    return fail_errno(error, "cannot make a temporary file beside the file to write", writer->path);
}

static dpcr_status open_temporary(dpcri_writer *writer, mode_t mode, dpcr_error *error) {
    writer->temporary[0] = 0;
    return open_unnamed(writer, mode) ? DPCR_OK : take_name(writer, (int)mode, error);
}

// The process's umask; umask itself would set it, for other threads too. 0 where it is not told.
static mode_t current_umask(void) {
    static const char name[] = "\nUmask:";
    char text[256];
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *at = strstr(text, name);
    return at ? (mode_t)strtoul(at + sizeof name - 1, NULL, 8) & 0777 : 0;
}

// Before Linux 6.0 the umask did not count for unnamed files where the file system has no ACLs.
static void apply_umask(const dpcri_writer *writer, mode_t mode) {
    struct stat about;
    if (fstat(writer->fd, &about) == 0 && (about.st_mode & 0777) == mode)
        if (fchmod(writer->fd, mode & ~current_umask()) != 0) errno = 0;
}

// The descriptor of standard output or error where `file` is what it goes to, which is then written where the stream is
// in it, and not replaced under it; -1: another file.
static int find_stream(const struct stat *file) {
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat own;
        if (fstat(fd, &own) == 0 && own.st_dev == file->st_dev && own.st_ino == file->st_ino &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
            return fd;
    }
    return -1;
}

static dpcr_status open_directly(dpcri_writer *writer, dpcr_error *error) {
    writer->fd = open(writer->path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    return writer->fd >= 0 ? DPCR_OK : fail_errno(error, "cannot open for writing", writer->path);
}

// Follows links of an existing file; a new one, and a dangling link, are taken by their own name. What has none but a
// descriptor's in /proc, since it was deleted or never had one, is no target.
static dpcr_status set_target(dpcri_writer *writer, bool exists, dpcr_error *error) {
    if (exists) {
        if (realpath(writer->path, writer->target)) return DPCR_OK;
        writer->target[0] = 0;
        if (errno == ENOENT) return DPCR_OK;
        return fail_errno(error, "cannot follow the path", writer->path);
    }
    const size_t length = strlen(writer->path);
    if (length == 0 || length >= sizeof writer->target) {
        errno = length ? ENAMETOOLONG : ENOENT;
        return fail_errno(error, "cannot write", writer->path);
    }
    memcpy(writer->target, writer->path, length + 1);
    return DPCR_OK;
}

dpcr_status dpcri_writer_open(dpcri_writer *writer, const char *path, dpcr_error *error) {
    struct stat old;
    const bool exists = !is_dash(path) && stat(path, &old) == 0;
    writer->fd = is_dash(path) ? STDOUT_FILENO : exists ? find_stream(&old) : -1;
    writer->path = path;
    writer->used = 0;
    writer->atomic = false;
    writer->owned = writer->fd < 0;
    if (!writer->owned) return DPCR_OK;
    if (exists && !S_ISREG(old.st_mode)) return open_directly(writer, error);
    dpcr_status status = set_target(writer, exists, error);
    if (status == DPCR_OK && !writer->target[0]) return open_directly(writer, error);
    if (status == DPCR_OK) status = open_temporary(writer, exists ? old.st_mode & 0777 : 0666, error);
    if (status != DPCR_OK) return status;
    writer->atomic = true;
    if (!exists) apply_umask(writer, 0666);
    // Gives back what the umask took; a file system without permissions may refuse, and then nothing is lost.
    if (exists && fchmod(writer->fd, old.st_mode & 07777) != 0) errno = 0;
    return status;
}

static dpcr_status write_all(dpcri_writer *writer, const unsigned char *bytes, size_t count, dpcr_error *error) {
    while (count > 0) {
        const ssize_t wrote = write(writer->fd, bytes, count);
        // A stream of the caller's may be a pipe that does not block.
        if (wrote < 0 && errno == EAGAIN && poll(&(struct pollfd){writer->fd, POLLOUT, 0}, 1, -1) > 0) continue;
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return fail_errno(error, "cannot write", writer->path);
        bytes += wrote;
        count -= (size_t)wrote;
    }
    return DPCR_OK;
}

static dpcr_status flush(dpcri_writer *writer, dpcr_error *error) {
    const size_t used = writer->used;
    writer->used = 0;
    return write_all(writer, writer->buffer, used, error);
}

// The same bytes in a new file that has a name. The buffer is empty.
static dpcr_status copy_to_named(dpcri_writer *writer, dpcr_error *error) {
    const int unnamed = writer->fd;
    struct stat about = {.st_mode = 0600};
    if (fstat(unnamed, &about) != 0) return fail_errno(error, "cannot look at what is written", writer->path);
    dpcr_status status = take_name(writer, (int)(about.st_mode & 0777), error);
    if (status == DPCR_OK && fchmod(writer->fd, about.st_mode & 07777) != 0) errno = 0;
    for (off_t at = 0; status == DPCR_OK;) {
        const ssize_t got = pread(unnamed, writer->buffer, sizeof writer->buffer, at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) status = fail_errno(error, "cannot read back what is written", writer->path);
        if (got <= 0) break;
        status = write_all(writer, writer->buffer, (size_t)got, error);
        at += got;
    }
    if (status == DPCR_OK && fsync(writer->fd) != 0) status = fail_errno(error, "cannot sync", writer->path);
    close(unnamed);
    return status;
}

// To the unnamed file; that there is one does not promise that it can be given a name.
static dpcr_status give_name(dpcri_writer *writer, dpcr_error *error) {
    return take_name(writer, -1, NULL) == DPCR_OK ? DPCR_OK : copy_to_named(writer, error);
}

dpcr_status dpcri_writer_put(dpcri_writer *writer, const void *bytes, size_t count, dpcr_error *error) {
    if (count > sizeof writer->buffer - writer->used) {
        const dpcr_status status = flush(writer, error);
        if (status != DPCR_OK) return status;
    }
    if (count >= sizeof writer->buffer) return write_all(writer, bytes, count, error);
    if (count) memcpy(writer->buffer + writer->used, bytes, count);
    writer->used += count;
    return DPCR_OK;
}

// Without this the new name may be lost in a power cut although the data are safe.
static dpcr_status sync_folder(const dpcri_writer *writer, dpcr_error *error) {
    char folder[PATH_MAX] = ".";
    const size_t length = folder_length(writer->target);
    if (length) {
        memcpy(folder, writer->target, length);
        folder[length] = 0;
    }
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // A folder may be writable and not readable; then there is nothing that can be synced.
    if (fd < 0)
        return errno == EACCES ? DPCR_OK
                               : fail_errno(error, "written, but cannot open its folder to sync it", writer->path);
    dpcr_status status = DPCR_OK;
    // Some file systems know no sync of a folder and say EINVAL.
    if (fsync(fd) != 0 && errno != EINVAL)
        status = fail_errno(error, "written, but cannot sync its folder", writer->path);
    close(fd);
    return status;
}

static dpcr_status close_descriptor(dpcri_writer *writer, dpcr_error *error) {
    const int fd = writer->fd;
    writer->fd = -1;
    return !writer->owned || close(fd) == 0 ? DPCR_OK : fail_errno(error, "cannot close", writer->path);
}

dpcr_status dpcri_writer_commit(dpcri_writer *writer, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(flush(writer, error));
    if (writer->atomic && fsync(writer->fd) != 0) DPCR_TRY(fail_errno(error, "cannot sync", writer->path));
    // No call gives an unnamed file the name of one that is there: it has a temporary one until the rename, which
    // follows at once.
    if (writer->atomic && !writer->temporary[0])
        DPCR_TRY(give_name(writer, error));
    else
        DPCR_TRY(close_descriptor(writer, error));
    if (!writer->atomic) goto done;
    if (rename(writer->temporary, writer->target) != 0) DPCR_TRY(fail_errno(error, "cannot rename onto", writer->path));
    writer->atomic = false;
    if (writer->fd >= 0) DPCR_TRY(close_descriptor(writer, error));
    DPCR_TRY(sync_folder(writer, error));
done:
    dpcri_writer_close(writer);
    return status;
}

void dpcri_writer_close(dpcri_writer *writer) {
    const int keep = errno;
    if (writer->fd >= 0) close_descriptor(writer, NULL);
    if (writer->atomic && writer->temporary[0]) unlink(writer->temporary);
    writer->atomic = false;
    errno = keep;
}

const char *dpcri_writer_name(const dpcri_writer *writer) { return writer->atomic ? writer->temporary : writer->path; }

dpcr_status dpcri_writer_reserve(dpcri_writer *writer, int64_t bytes, dpcr_error *error) {
    dpcr_status status = flush(writer, error);
    if (status == DPCR_OK && writer->atomic && !writer->temporary[0]) status = give_name(writer, error);
    if (status != DPCR_OK || !writer->atomic || bytes == 0) return status;
    const off_t at = lseek(writer->fd, 0, SEEK_CUR);
    if (at < 0) return fail_errno(error, "cannot write", writer->path);
    errno = posix_fallocate(writer->fd, at, (off_t)bytes);
    return errno ? fail_errno(error, "cannot make room", writer->path) : DPCR_OK;
}

dpcr_status dpcri_file_put(const char *path, int64_t at, const void *bytes, size_t count, dpcr_error *error) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(error, "cannot open for writing", path);
    dpcr_status status = DPCR_OK;
    for (const unsigned char *from = bytes; count > 0 && status == DPCR_OK;) {
        const ssize_t wrote = pwrite(fd, from, count, (off_t)at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            status = fail_errno(error, "cannot write", path);
            break;
        }
        from += wrote, at += wrote, count -= (size_t)wrote;
    }
    if (status == DPCR_OK && fsync(fd) != 0 && errno != EINVAL) status = fail_errno(error, "cannot sync", path);
    if (close(fd) != 0 && status == DPCR_OK) status = fail_errno(error, "cannot close", path);
    return status;
}

dpcr_status dpcri_file_write(const char *path, const void *bytes, size_t count, dpcr_error *error) {
    dpcri_writer writer;
    dpcr_status status;
    DPCR_TRY(dpcri_writer_open(&writer, path, error));
    DPCR_TRY(dpcri_writer_put(&writer, bytes, count, error));
    DPCR_TRY(dpcri_writer_commit(&writer, error));
done:
    dpcri_writer_close(&writer);
    return status;
}

// ---- reading ----

dpcr_status dpcri_source_open(dpcri_source *source, const char *path, bool need_seek, dpcr_error *error) {
    *source = (dpcri_source){.name = path, .fd = -1, .owned = !is_dash(path)};
    // A pipe that is refused below is not waited for.
    source->fd = source->owned ? open(path, O_RDONLY | O_CLOEXEC | (need_seek ? O_NONBLOCK : 0)) : STDIN_FILENO;
    if (source->fd < 0) return fail_errno(error, "cannot open", path);
    dpcr_status status = DPCR_OK;
    struct stat about = {0};
    if (fstat(source->fd, &about) != 0) {
        status = fail_errno(error, "cannot look at", path);
    } else if (S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        status = fail_errno(error, "cannot read", path);
    } else if (need_seek && !S_ISREG(about.st_mode)) {
        status = dpcri_fail_code(error, DPCR_ERROR_IO, ESPIPE, "cannot read what is not a regular file: %s", path);
    }
    // Standard input may be a file that something was already read from: taken in order, like a pipe.
    source->seekable = status == DPCR_OK && source->owned && S_ISREG(about.st_mode);
    source->size = source->seekable ? (int64_t)about.st_size : INT64_MAX;
    if (status != DPCR_OK) dpcri_source_close(source);
    return status;
}

dpcri_source dpcri_source_memory(const char *name, const void *bytes, size_t count) {
    static const unsigned char nothing = 0;
    return (dpcri_source){
        .name = name, .memory = count ? bytes : &nothing, .fd = -1, .seekable = true, .size = (int64_t)count};
}

void dpcri_source_close(dpcri_source *source) {
    if (source->owned && source->fd >= 0) close(source->fd);
    source->fd = -1;
}

static dpcr_status read_descriptor(const dpcri_source *source, int64_t at, unsigned char *to, size_t count, size_t *got,
                                   dpcr_error *error) {
    while (*got < count) {
        const size_t left = count - *got;
        const ssize_t n = source->seekable ? pread(source->fd, to + *got, left, (off_t)at + (off_t)*got)
                                           : read(source->fd, to + *got, left);
        if (n < 0 && errno == EAGAIN && poll(&(struct pollfd){source->fd, POLLIN, 0}, 1, -1) > 0) continue;
        if (n < 0 && errno == EINTR) {
            if (source->context && dpcri_cancelled(source->context)) return dpcri_fail_stopped(error, "read");
            continue;
        }
        if (n < 0) return fail_errno(error, "cannot read", source->name);
        if (n == 0) break;
        *got += (size_t)n;
    }
    return DPCR_OK;
}

dpcr_status dpcri_source_read_some(const dpcri_source *source, int64_t at, void *to, size_t count, size_t *got,
                                   dpcr_error *error) {
    *got = 0;
    if (at < 0 || at >= source->size) return DPCR_OK;
    if ((uint64_t)(source->size - at) < count) count = (size_t)(source->size - at);
    if (!source->memory) return read_descriptor(source, at, to, count, got, error);
    if (count) memcpy(to, source->memory + at, count);
    *got = count;
    return DPCR_OK;
}

dpcr_status dpcri_source_read(const dpcri_source *source, int64_t at, void *to, size_t count, const char *what,
                              dpcr_error *error) {
    size_t got = 0;
    const dpcr_status status = dpcri_source_read_some(source, at, to, count, &got, error);
    if (status == DPCR_OK && got < count)
        return dpcri_source_bad(source, error, "%s cut short: got %zu bytes, wanted %zu", what, got, count);
    return status;
}

dpcr_status dpcri_source_bad(const dpcri_source *source, dpcr_error *error, const char *format, ...) {
    if (!error) return DPCR_ERROR_FORMAT;
    char text[320];  // whole in the error, however long the name is
    va_list arguments;
    va_start(arguments, format);
    dpcri_line_print(text, sizeof text, format, arguments);
    va_end(arguments);
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "%s; file %s", text, source->name);
}

const char *dpcri_quote(const char *name, dpcri_quoted *buffer) {
    size_t n = 0;
    for (; name[n] && n + 4 < sizeof buffer->text; n++) {
        const unsigned char c = (unsigned char)name[n];
        buffer->text[n] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
    // A cut must not leave half of a UTF-8 sequence.
    if (name[n])
        while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--;
    memcpy(buffer->text + n, name[n] ? "..." : "", name[n] ? 4 : 1);
    return buffer->text;
}

static dpcr_status grow(dpcr_context *context, char **bytes, int64_t used, int64_t capacity, dpcr_error *error) {
    char *larger = dpcri_alloc(context, (size_t)capacity);
    if (!larger) return dpcri_no_memory(error, "content of a file", capacity);
    if (*bytes) memcpy(larger, *bytes, (size_t)used);
    dpcri_free(context, *bytes);
    *bytes = larger;
    return DPCR_OK;
}

dpcr_status dpcri_file_read(dpcr_context *context, const char *path, int64_t limit, char **bytes, int64_t *count,
                            dpcr_error *error) {
    *bytes = NULL;
    *count = 0;
    dpcri_source source;
    dpcr_status status = dpcri_source_open(&source, path, false, error);
    if (status != DPCR_OK) return status;
    source.context = context;
    if (source.seekable && source.size > limit)
        DPCR_TRY(dpcri_source_bad(&source, error, "file size: got %lld bytes, wanted at most %lld",
                                  (long long)source.size, (long long)limit));
    // A file that fits in the first piece, or whose size is known, is read in one go. The last byte is for the 0.
    int64_t capacity = source.seekable && source.size > 4000 ? source.size + 2 : 4096;
    for (;;) {
        size_t got = 0;
        DPCR_TRY(grow(context, bytes, *count, capacity, error));
        const size_t room = (size_t)(capacity - 1 - *count);
        DPCR_TRY(dpcri_source_read_some(&source, *count, *bytes + *count, room, &got, error));
        *count += (int64_t)got;
        if (*count > limit)
            DPCR_TRY(dpcri_source_bad(&source, error, "file size: got more than %lld bytes, wanted at most that",
                                      (long long)limit));
        if (got < room) break;
        capacity *= 2;
    }
    (*bytes)[*count] = 0;
done:
    if (status != DPCR_OK) {
        dpcri_free(context, *bytes);
        *bytes = NULL;
        *count = 0;
    }
    dpcri_source_close(&source);
    return status;
}
