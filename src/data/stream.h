// SPDX-License-Identifier: MIT
// A range of a source read in order, plain or compressed, with a bound on what it can yet yield.
#ifndef DPCRI_DATA_STREAM_H
#define DPCRI_DATA_STREAM_H

#include <zlib.h>

#include "data/file.h"

typedef enum dpcri_coding { DPCRI_PLAIN, DPCRI_GZIP, DPCRI_DEFLATE } dpcri_coding;

typedef struct dpcri_stream {
    const dpcri_source *source;
    dpcr_context *context;
    int64_t at, end;  // unread bytes of the source
    dpcri_coding coding;
    bool ended;     // the compressed data are complete
    int64_t given;  // bytes given out
    uint32_t crc;   // their CRC-32, where want_crc is set
    bool want_crc;
    z_stream z;
    unsigned char buffer[1 << 14];
} dpcri_stream;

// Bytes at..end-1 of the source (end: at most its size). Several gzip members in a row count as one, as gzip has it.
// zlib's memory comes from the context's allocator.
dpcr_status dpcri_stream_open(dpcri_stream *stream, dpcr_context *context, const dpcri_source *source, int64_t at,
                              int64_t end, dpcri_coding coding, dpcr_error *error);
void dpcri_stream_close(dpcri_stream *stream);

// No more than this can still come out: a header that claims more lies, and is refused before anything is allocated.
int64_t dpcri_stream_most(const dpcri_stream *stream);

// Exactly count bytes, else DPCR_ERROR_FORMAT that says that `what` is cut short.
dpcr_status dpcri_stream_read(dpcri_stream *stream, void *to, size_t count, const char *what, dpcr_error *error);

// The data must end here, checksums included.
dpcr_status dpcri_stream_finish(dpcri_stream *stream, const char *what, dpcr_error *error);

#endif
