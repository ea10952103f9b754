// SPDX-License-Identifier: MIT
// Whole files of bytes, raw or gzipped.
#include <errno.h>
#include <string.h>
#include <zlib.h>

#include "base/base.h"
#include "data/file.h"
#include "deeppcr/data.h"

enum { FIRST_ROOM = 1 << 16 };

static dpcr_status fail(gzFile file, const char *path, dpcr_error *error) {
    int code = Z_OK;
    const char *text = file ? gzerror(file, &code) : NULL;
    const bool bad = code == Z_DATA_ERROR || code == Z_BUF_ERROR;
    if (code == Z_MEM_ERROR || (!bad && (errno == ENOMEM || (errno == 0 && !file))))
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "text_read: no memory to read %s", path);
    const char *why = bad ? "damaged or cut short" : errno ? strerror(errno) : text;
    return dpcri_fail_code(error, bad ? DPCR_ERROR_FORMAT : DPCR_ERROR_IO, bad ? 0 : errno,
                           "text_read: cannot read %s: %s", path, why);
}

// Room for twice as much, at most INT64_MAX / 2.
static bool grow(dpcr_context *context, uint8_t **bytes, int64_t used, int64_t *room) {
    const int64_t more = *room ? 2 * *room : FIRST_ROOM;
    uint8_t *made = *room < INT64_MAX / 4 ? dpcri_alloc(context, (size_t)more) : NULL;
    if (!made) return false;
    if (used) memcpy(made, *bytes, (size_t)used);
    dpcri_free(context, *bytes);
    *bytes = made;
    *room = more;
    return true;
}

dpcr_status dpcr_text_read(dpcr_context *context, const char *path, uint8_t **bytes, int64_t *count,
                           dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    int64_t room = 0, used = 0;
    uint8_t *made = NULL;
    if (!context || !path || !bytes || !count)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "text_read: context, path or a place is NULL");
    *bytes = NULL;
    *count = 0;
    errno = 0;
    gzFile file = gzopen(path, "rbe");  // e: children do not get it
    if (!file) DPCR_TRY(fail(NULL, path, error));
    for (int got = 1; got > 0; used += got) {
        if (used == room && !grow(context, &made, used, &room))
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_MEMORY, "text_read: no memory for %s beyond %lld bytes", path,
                                (long long)used));
        const int64_t left = room - used;
        got = gzread(file, made + used, left < (1 << 30) ? (unsigned)left : 1u << 30);
        // What is cut short ends like a whole file, and zlib 1.3.2 forgets at the next call that it was.
        int code = Z_OK;
        gzerror(file, &code);
        if (got < 0 || code == Z_BUF_ERROR) DPCR_TRY(fail(file, path, error));
    }
    const int closed = gzclose(file);
    file = NULL;
    if (closed != Z_OK)
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "text_read: cannot read %s: damaged or cut short", path));
    *bytes = made;
    *count = used;
    made = NULL;
done:
    if (file) gzclose(file);
    dpcri_free(context, made);
    return status;
}

void dpcr_text_free(dpcr_context *context, uint8_t *bytes) {
    if (context) dpcri_free(context, bytes);
}

dpcr_status dpcr_text_write(const char *path, const void *bytes, int64_t count, dpcr_error *error) {
    if (!path || (!bytes && count) || count < 0)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "text_write: path or bytes are NULL, or there are %lld of them",
                          (long long)count);
    return dpcri_file_write(path, bytes, (size_t)count, error);
}
