// SPDX-License-Identifier: MIT
// Plain and inflating streams over a source.
#include "data/stream.h"

#include <string.h>

// Deflate's best is 258 bytes from 2 bits.
enum { MOST_EXPANSION = 1032 };

static voidpf zlib_alloc(voidpf context, uInt count, uInt bytes) { return dpcri_alloc(context, (size_t)count * bytes); }

static void zlib_free(voidpf context, voidpf memory) { dpcri_free(context, memory); }

dpcr_status dpcri_stream_open(dpcri_stream *stream, dpcr_context *context, const dpcri_source *source, int64_t at,
                              int64_t end, dpcri_coding coding, dpcr_error *error) {
    stream->source = source;
    stream->context = context;
    stream->at = at;
    stream->end = end;
    stream->coding = coding;
    stream->ended = false;
    stream->given = 0;
    stream->crc = 0;
    stream->want_crc = false;
    if (coding == DPCRI_PLAIN) return DPCR_OK;
    stream->z = (z_stream){.zalloc = zlib_alloc, .zfree = zlib_free, .opaque = context};
    // 16: gzip's header and trailer, with its checksum; negative: bare deflate.
    const int code = inflateInit2(&stream->z, coding == DPCRI_GZIP ? 16 + MAX_WBITS : -MAX_WBITS);
    if (code == Z_OK) return DPCR_OK;
    stream->coding = DPCRI_PLAIN;
    if (code == Z_MEM_ERROR) return dpcri_fail(error, DPCR_ERROR_MEMORY, "no memory to decompress %s", source->name);
    return dpcri_fail(error, DPCR_ERROR_SYSTEM, "zlib refused to start (code %d)", code);
}

void dpcri_stream_close(dpcri_stream *stream) {
    if (stream->coding != DPCRI_PLAIN) inflateEnd(&stream->z);
    stream->coding = DPCRI_PLAIN;
}

int64_t dpcri_stream_most(const dpcri_stream *stream) {
    const int64_t left = stream->end - stream->at;
    if (stream->coding == DPCRI_PLAIN) return left;
    // Input that waits in the buffer counts too; one byte more because a symbol may straddle.
    int64_t most = 0;
    return dpcri_mul(left + stream->z.avail_in + 1, MOST_EXPANSION, &most) ? most : INT64_MAX;
}

static dpcr_status read_plain(dpcri_stream *stream, unsigned char *to, size_t count, size_t *got, dpcr_error *error) {
    if ((uint64_t)(stream->end - stream->at) < count) count = (size_t)(stream->end - stream->at);
    const dpcr_status status = dpcri_source_read_some(stream->source, stream->at, to, count, got, error);
    stream->at += (int64_t)*got;
    return status;
}

static dpcr_status fill(dpcri_stream *stream, dpcr_error *error) {
    size_t got = 0;
    const dpcr_status status = read_plain(stream, stream->buffer, sizeof stream->buffer, &got, error);
    stream->z.next_in = stream->buffer;
    stream->z.avail_in = (uInt)got;
    return status;
}

static dpcr_status inflate_some(dpcri_stream *stream, dpcr_error *error) {
    const char *name = stream->coding == DPCRI_GZIP ? "gzip" : "deflate";
    const int code = inflate(&stream->z, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
        stream->ended = true;
        return DPCR_OK;
    }
    if (code == Z_OK || code == Z_BUF_ERROR) return DPCR_OK;
    if (code == Z_MEM_ERROR)
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "no memory to decompress %s", stream->source->name);
    return dpcri_source_bad(stream->source, error, "%s data are damaged: %s", name,
                            stream->z.msg ? stream->z.msg : "no reason given");
}

static dpcr_status read_compressed(dpcri_stream *stream, unsigned char *to, size_t count, size_t *got,
                                   dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    while (*got < count) {
        if (stream->z.avail_in == 0) {
            status = fill(stream, error);
            if (status != DPCR_OK) return status;
        }
        if (stream->z.avail_in == 0 && stream->ended) return DPCR_OK;
        if (stream->ended) {
            if (stream->coding == DPCRI_DEFLATE) return DPCR_OK;
            inflateReset(&stream->z);
            stream->ended = false;
        }
        const size_t left = count - *got;
        const uInt room = left < 1u << 30 ? (uInt)left : 1u << 30;
        const uInt input = stream->z.avail_in;
        stream->z.next_out = to + *got;
        stream->z.avail_out = room;
        status = inflate_some(stream, error);
        if (status != DPCR_OK) return status;
        *got += room - stream->z.avail_out;
        // Neither input nor output moved: the compressed data stop in the middle.
        if (!stream->ended && input == 0 && stream->z.avail_out == room)
            return dpcri_source_bad(stream->source, error, "compressed data are cut short");
    }
    return DPCR_OK;
}

static dpcr_status read_some(dpcri_stream *stream, void *to, size_t count, size_t *got, dpcr_error *error) {
    *got = 0;
    const dpcr_status status = stream->coding == DPCRI_PLAIN ? read_plain(stream, to, count, got, error)
                                                             : read_compressed(stream, to, count, got, error);
    stream->given += (int64_t)*got;
    if (stream->want_crc && *got) stream->crc = (uint32_t)crc32_z(stream->crc, to, *got);
    return status;
}

dpcr_status dpcri_stream_read(dpcri_stream *stream, void *to, size_t count, const char *what, dpcr_error *error) {
    size_t got = 0;
    const dpcr_status status = read_some(stream, to, count, &got, error);
    if (status == DPCR_OK && got < count)
        return dpcri_source_bad(stream->source, error, "%s cut short: got %zu bytes, wanted %zu", what, got, count);
    return status;
}

dpcr_status dpcri_stream_finish(dpcri_stream *stream, const char *what, dpcr_error *error) {
    unsigned char more;
    size_t got = 0;
    // Asking for one byte more makes zlib read the end of the data and check it.
    const dpcr_status status = read_some(stream, &more, 1, &got, error);
    if (status != DPCR_OK) return status;
    if (got > 0 || (stream->coding != DPCRI_PLAIN && (stream->z.avail_in > 0 || stream->at < stream->end)))
        return dpcri_source_bad(stream->source, error, "%s: there are more bytes than its header says", what);
    return DPCR_OK;
}
