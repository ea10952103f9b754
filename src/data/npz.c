// SPDX-License-Identifier: MIT
// npz: a zip file of npy members, stored or deflated. Sizes and places come from the central directory alone, so data
// descriptors do not matter; only the length of a member's local header is read there. Sources: PKWARE
// APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3 (zip64); numpy.lib.npyio.
//
//   member 1: local header, name, extra, data   ..   member n   central directory   [zip64 end, locator]   end, comment
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/npy.h"

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    MAX_COMMENT = 0xffff,
    MAX_NAME = 0xffff,
    ZIP64_TAG = 1,  // of the extra field
    METHOD_STORED = 0,
    METHOD_DEFLATED = 8,
    FLAG_ENCRYPTED = 1,
    FLAG_UTF8 = 1 << 11,
    VERSION = 20,
    VERSION_ZIP64 = 45,
    DOS_DATE = 0x21  // 1980-01-01: the same arrays give the same file
};

static const uint32_t local_magic = 0x04034b50, central_magic = 0x02014b50, end_magic = 0x06054b50,
                      locator_magic = 0x07064b50, end64_magic = 0x06064b50;
static const uint32_t full32 = 0xffffffff;  // "see the zip64 field"
static const uint16_t full16 = 0xffff;

static uint64_t little_endian(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}
static uint16_t get16(const unsigned char *bytes) { return (uint16_t)little_endian(bytes, 2); }
static uint32_t get32(const unsigned char *bytes) { return (uint32_t)little_endian(bytes, 4); }
// Larger than any file: refused by whatever bounds it.
static int64_t get64(const unsigned char *bytes) {
    const uint64_t value = little_endian(bytes, 8);
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

// ---- reading ----

typedef struct directory {
    int64_t at, bytes, count;
} directory;

typedef struct member {
    const unsigned char *raw_name;  // in the directory's bytes
    size_t name_length;
    int method;
    uint32_t crc;
    int64_t packed, unpacked, local_at;
} member;

// From the end backwards: the end record stands before a comment that must reach to the last byte of the file.
static dpcr_status find_end(dpcr_context *context, const dpcri_source *source, unsigned char end[END_BYTES],
                            int64_t *end_at, dpcr_error *error) {
    const int64_t window = source->size < END_BYTES + MAX_COMMENT ? source->size : END_BYTES + MAX_COMMENT;
    const int64_t window_at = source->size - window;
    dpcr_status status;
    unsigned char *tail = dpcri_alloc(context, (size_t)window);
    if (!tail) return dpcri_no_memory(error, "npz directory", window);
    DPCR_TRY(dpcri_source_read(source, window_at, tail, (size_t)window, "npz directory", error));
    for (int64_t i = window - END_BYTES; i >= 0; i--) {
        if (get32(tail + i) != end_magic || i + END_BYTES + get16(tail + i + 20) != window) continue;
        memcpy(end, tail + i, END_BYTES);
        *end_at = window_at + i;
        goto done;
    }
    status = dpcri_source_bad(source, error, "npz: there is no zip directory at the end (cut short?)");
done:
    dpcri_free(context, tail);
    return status;
}

// Is a full field one of 64 bits, said elsewhere? A count of members may be just as large.
static dpcr_status is_zip64(const dpcri_source *source, int64_t end_at, const directory *said, bool *is,
                            dpcr_error *error) {
    unsigned char magic[4] = {0};
    *is = said->bytes == full32 || said->at == full32;
    if (*is || said->count != full16 || end_at < LOCATOR_BYTES) return DPCR_OK;
    const dpcr_status status =
        dpcri_source_read(source, end_at - LOCATOR_BYTES, magic, sizeof magic, "npz zip64 locator", error);
    *is = get32(magic) == locator_magic;
    return status;
}

static dpcr_status read_end64(const dpcri_source *source, int64_t end_at, directory *found, dpcr_error *error) {
    unsigned char locator[LOCATOR_BYTES] = {0}, end[END64_BYTES];
    dpcr_status status;
    DPCR_TRY(dpcri_source_read(source, end_at - LOCATOR_BYTES, locator, sizeof locator, "npz zip64 locator", error));
    if (get32(locator) != locator_magic || get32(locator + 4) != 0 || get32(locator + 16) > 1)
        DPCR_TRY(
            dpcri_source_bad(source, error, "npz: the zip64 locator is missing, or the archive has several parts"));
    DPCR_TRY(dpcri_source_read(source, get64(locator + 8), end, sizeof end, "npz zip64 directory", error));
    if (get32(end) != end64_magic || get32(end + 16) != 0 || get32(end + 20) != 0 || get64(end + 24) != get64(end + 32))
        DPCR_TRY(dpcri_source_bad(source, error,
                                  "npz: the zip64 directory record is damaged, or the archive has several parts"));
    *found = (directory){.count = get64(end + 32), .bytes = get64(end + 40), .at = get64(end + 48)};
done:
    return status;
}

static dpcr_status find_directory(dpcr_context *context, const dpcri_source *source, directory *found,
                                  dpcr_error *error) {
    unsigned char end[END_BYTES] = {0};
    int64_t end_at = 0, last = 0;
    bool wide = false;
    dpcr_status status;
    DPCR_TRY(find_end(context, source, end, &end_at, error));
    *found = (directory){.count = get16(end + 10), .bytes = get32(end + 12), .at = get32(end + 16)};
    DPCR_TRY(is_zip64(source, end_at, found, &wide, error));
    if (wide) {
        DPCR_TRY(read_end64(source, end_at, found, error));
    } else if (get16(end + 4) != 0 || get16(end + 6) != 0 || get16(end + 8) != get16(end + 10)) {
        DPCR_TRY(dpcri_source_bad(source, error, "npz: the archive has several parts, wanted one"));
    }
    if (!dpcri_add(found->at, found->bytes, &last) || last > end_at)
        DPCR_TRY(dpcri_source_bad(source, error,
                                  "npz: got a directory of %lld bytes at %lld, wanted it before byte %lld",
                                  (long long)found->bytes, (long long)found->at, (long long)end_at));
    if (found->count > found->bytes / CENTRAL_BYTES)
        DPCR_TRY(dpcri_source_bad(source, error, "npz: got %lld members in a directory of %lld bytes",
                                  (long long)found->count, (long long)found->bytes));
done:
    return status;
}

// The 64-bit forms of those of (unpacked, packed, local_at) that are full, in this order, in the extra field of tag 1.
static bool read_zip64_extra(const unsigned char *extra, size_t length, member *m) {
    int64_t *const fields[] = {&m->unpacked, &m->packed, &m->local_at};
    size_t field_bytes = 0;
    const unsigned char *at = NULL;
    while (length >= 4 && !at) {
        field_bytes = get16(extra + 2);
        if (field_bytes > length - 4) return false;
        if (get16(extra) == ZIP64_TAG) at = extra + 4;
        extra += 4 + field_bytes;
        length -= 4 + field_bytes;
    }
    for (int i = 0; i < 3; i++) {
        if (*fields[i] != full32) continue;
        if (!at || field_bytes < 8) return false;
        *fields[i] = get64(at);
        at += 8;
        field_bytes -= 8;
    }
    return true;
}

static dpcr_status check_member(const dpcri_source *source, const unsigned char *central, const member *m,
                                const char *name, dpcr_error *error) {
    if (get16(central + 8) & FLAG_ENCRYPTED)
        return dpcri_source_bad(source, error, "npz member '%s' is encrypted", name);
    if (m->method != METHOD_STORED && m->method != METHOD_DEFLATED)
        return dpcri_source_bad(source, error,
                                "npz member '%s': got compression method %d, wanted 0 (stored) or 8 (deflated)", name,
                                m->method);
    if (m->method == METHOD_STORED && m->packed != m->unpacked)
        return dpcri_source_bad(source, error, "npz member '%s': got %lld bytes stored as %lld, wanted the same", name,
                                (long long)m->unpacked, (long long)m->packed);
    if (m->name_length < 4 || memcmp(m->raw_name + m->name_length - 4, ".npy", 4) != 0)
        return dpcri_source_bad(source, error, "npz member '%s': wanted a name that ends in .npy", name);
    if (memchr(m->raw_name, 0, m->name_length))
        return dpcri_source_bad(source, error, "npz member '%s': its name holds a zero byte", name);
    return DPCR_OK;
}

// For error texts, before the name is checked.
static const char *quote_member(const member *m, dpcri_quoted *quoted) {
    char text[sizeof quoted->text + 1];
    const size_t n = m->name_length < sizeof text - 1 ? m->name_length : sizeof text - 1;
    memcpy(text, m->raw_name, n);
    text[n] = 0;
    return dpcri_quote(text, quoted);
}

// Of all members, or of those that somebody asked for.
static bool is_wanted(const member *m, const dpcri_names *wanted) {
    if (!wanted) return true;
    for (int64_t i = 0; i < wanted->count; i++) {
        const size_t length = strlen(wanted->names[i]);
        if (m->name_length == length + 4 && !memcmp(m->raw_name, wanted->names[i], length) &&
            !memcmp(m->raw_name + length, ".npy", 4))
            return true;
    }
    return false;
}

// Whether the member itself bears another name of that length: a damaged one would be missed where nobody has to give
// it.
static bool bears_another(const dpcri_source *source, const member *m) {
    unsigned char local[LOCAL_BYTES], part[256];
    if (m->local_at > source->size - LOCAL_BYTES - (int64_t)m->name_length ||
        dpcri_source_read(source, m->local_at, local, sizeof local, "npz member", NULL) != DPCR_OK ||
        get32(local) != local_magic || get16(local + 26) != m->name_length)
        return false;  // told of members that are wanted
    for (size_t done = 0, count; done < m->name_length; done += count) {
        count = m->name_length - done < sizeof part ? m->name_length - done : sizeof part;
        if (dpcri_source_read(source, m->local_at + LOCAL_BYTES + (int64_t)done, part, count, "npz member", NULL) !=
            DPCR_OK)
            return false;
        if (memcmp(part, m->raw_name + done, count) != 0) return true;
    }
    return false;
}

static dpcr_status check_own_name(const dpcri_source *source, const member *m, dpcr_error *error) {
    dpcri_quoted quoted;
    if (!bears_another(source, m)) return DPCR_OK;
    return dpcri_source_bad(source, error, "npz member '%s' bears another name itself (damaged)",
                            quote_member(m, &quoted));
}

// One entry of the directory at *at; steps over it. Of members that nobody wants the name alone is looked at.
static dpcr_status read_member(const dpcri_source *source, const unsigned char **at, const unsigned char *end,
                               const dpcri_names *wanted, member *m, bool *take, dpcr_error *error) {
    const unsigned char *central = *at;
    if (end - central < CENTRAL_BYTES || get32(central) != central_magic)
        return dpcri_source_bad(source, error, "npz: an entry of the directory is damaged");
    const size_t name_length = get16(central + 28), extra_length = get16(central + 30),
                 comment_length = get16(central + 32);
    if ((size_t)(end - central) - CENTRAL_BYTES < name_length + extra_length + comment_length)
        return dpcri_source_bad(source, error, "npz: an entry of the directory is cut short");
    *m = (member){.raw_name = central + CENTRAL_BYTES,
                  .name_length = name_length,
                  .method = get16(central + 10),
                  .crc = get32(central + 16),
                  .packed = get32(central + 20),
                  .unpacked = get32(central + 24),
                  .local_at = get32(central + 42)};
    *at = central + CENTRAL_BYTES + name_length + extra_length + comment_length;
    *take = is_wanted(m, wanted);
    if (!*take) return m->local_at < full32 ? check_own_name(source, m, error) : DPCR_OK;
    dpcri_quoted quoted;
    if (!read_zip64_extra(m->raw_name + name_length, extra_length, m))
        return dpcri_source_bad(source, error, "npz member '%s': its zip64 field is damaged", quote_member(m, &quoted));
    const dpcr_status status = check_member(source, central, m, quote_member(m, &quoted), error);
    return status == DPCR_OK ? check_own_name(source, m, error) : status;
}

static dpcr_status copy_name(dpcr_context *context, const member *m, char **name, dpcr_error *error) {
    const size_t length = m->name_length - 4;  // without .npy
    *name = dpcri_alloc(context, length + 1);
    if (!*name) return dpcri_no_memory(error, "npz name", (int64_t)length + 1);
    memcpy(*name, m->raw_name, length);
    (*name)[length] = 0;
    return DPCR_OK;
}

static dpcr_status find_data(const dpcri_source *source, const member *m, const char *name, int64_t *data_at,
                             int64_t *end, dpcr_error *error) {
    unsigned char local[LOCAL_BYTES] = {0};
    dpcr_status status;
    DPCR_TRY(dpcri_source_read(source, m->local_at, local, sizeof local, "npz member", error));
    if (get32(local) != local_magic)
        DPCR_TRY(dpcri_source_bad(source, error, "npz member '%s': there is no local header at byte %lld", name,
                                  (long long)m->local_at));
    *data_at = m->local_at + LOCAL_BYTES + get16(local + 26) + get16(local + 28);
    if (!dpcri_add(*data_at, m->packed, end) || *end > source->size)
        DPCR_TRY(dpcri_source_bad(source, error,
                                  "npz member '%s' cut short: got %lld bytes up to the file's end, wanted %lld", name,
                                  (long long)(source->size - *data_at), (long long)m->packed));
done:
    return status;
}

// Puts the member's name before what was told of its contents.
static void name_member(dpcr_error *error, const char *name) {
    if (error) dpcri_fail_code(error, error->status, error->code, "npz member '%s': %s", name, error->text);
}

static dpcr_status load_member(dpcr_context *context, const dpcri_source *source, const member *m, dpcr_tensor *tensor,
                               dpcr_error *error) {
    dpcri_stream stream;
    dpcri_quoted quoted;
    dpcr_status status;
    int64_t data_at = 0, end = 0;
    stream.coding = DPCRI_PLAIN;  // nothing to close yet
    const char *name = dpcri_quote(tensor->name, &quoted);
    DPCR_TRY(find_data(source, m, name, &data_at, &end, error));
    const dpcri_coding coding = m->method == METHOD_DEFLATED ? DPCRI_DEFLATE : DPCRI_PLAIN;
    DPCR_TRY(dpcri_stream_open(&stream, context, source, data_at, end, coding, error));
    stream.want_crc = true;
    status = dpcri_npy_read_stream(&stream, &tensor->array, error);
    if (status != DPCR_OK) {
        name_member(error, name);
        goto done;
    }
    if (stream.given != m->unpacked)
        DPCR_TRY(dpcri_source_bad(source, error, "npz member '%s': got %lld bytes, wanted %lld of its directory entry",
                                  name, (long long)stream.given, (long long)m->unpacked));
    if (stream.crc != m->crc)
        DPCR_TRY(dpcri_source_bad(source, error, "npz member '%s': got checksum %08lx, wanted %08lx (damaged)", name,
                                  (unsigned long)stream.crc, (unsigned long)m->crc));
done:
    dpcri_stream_close(&stream);
    return status;
}

// Members that share their bytes could unpack to far more than a file of this size may: their sum is bounded.
static dpcr_status read_members(dpcr_context *context, const dpcri_source *source, const unsigned char *bytes,
                                const directory *found, const dpcri_names *wanted, member *members,
                                dpcr_tensors *tensors, dpcr_error *error) {
    const unsigned char *at = bytes, *end = bytes + found->bytes;
    int64_t packed = 0;
    dpcr_status status = DPCR_OK;
    for (int64_t i = 0; i < found->count; i++) {
        member *m = &members[tensors->count];
        bool take = false;
        DPCR_TRY(read_member(source, &at, end, wanted, m, &take, error));
        if (!take) continue;
        DPCR_TRY(copy_name(context, m, &tensors->items[tensors->count++].name, error));
        if (!dpcri_add(packed, m->packed, &packed) || packed > source->size)
            DPCR_TRY(dpcri_source_bad(
                source, error, "npz: the members' sizes exceed the file's %lld bytes (cut short, or they overlap)",
                (long long)source->size));
    }
    if (at != end)
        DPCR_TRY(dpcri_source_bad(source, error, "npz: got %lld bytes after the last directory entry",
                                  (long long)(end - at)));
done:
    return status;
}

static dpcr_status check_names(dpcr_context *context, const dpcri_source *source, const dpcr_tensors *tensors,
                               dpcr_error *error) {
    const char **names = dpcri_alloc(context, (size_t)tensors->count * sizeof(const char *));
    if (!names) return dpcri_no_memory(error, "npz names", tensors->count * (int64_t)sizeof *names);
    for (int64_t i = 0; i < tensors->count; i++) names[i] = tensors->items[i].name;
    const char *twice = dpcri_names_twice(names, tensors->count);
    dpcri_quoted quoted;
    dpcri_free(context, names);
    if (!twice) return DPCR_OK;
    return dpcri_source_bad(source, error, "npz member '%s' stands twice", dpcri_quote(twice, &quoted));
}

static dpcr_status read_directory(dpcr_context *context, const dpcri_source *source, const directory *found,
                                  const dpcri_names *wanted, dpcr_tensors *tensors, dpcr_error *error) {
    dpcr_status status;
    unsigned char *bytes = dpcri_alloc(context, (size_t)found->bytes);
    member *members = dpcri_alloc(context, (size_t)found->count * sizeof *members);
    tensors->items = dpcri_alloc_zero(context, (size_t)found->count * sizeof *tensors->items);
    if (!bytes || !members || !tensors->items) DPCR_TRY(dpcri_no_memory(error, "npz directory", found->bytes));
    DPCR_TRY(dpcri_source_read(source, found->at, bytes, (size_t)found->bytes, "npz directory", error));
    DPCR_TRY(read_members(context, source, bytes, found, wanted, members, tensors, error));
    if (tensors->count > 0) DPCR_TRY(check_names(context, source, tensors, error));
    for (int64_t i = 0; i < tensors->count; i++)
        DPCR_TRY(load_member(context, source, &members[i], &tensors->items[i], error));
done:
    dpcri_free(context, members);
    dpcri_free(context, bytes);
    return status;
}

dpcr_status dpcri_npz_read_source(dpcr_context *context, const dpcri_source *source, const dpcri_names *wanted,
                                  dpcr_tensors *tensors, dpcr_error *error) {
    directory found = {0};
    dpcr_status status;
    *tensors = (dpcr_tensors){0};
    if (source->size < END_BYTES)
        return dpcri_source_bad(source, error, "npz cut short: got %lld bytes, wanted %d or more",
                                (long long)source->size, END_BYTES);
    DPCR_TRY(find_directory(context, source, &found, error));
    if (found.count == 0 && found.bytes != 0)
        DPCR_TRY(dpcri_source_bad(source, error, "npz: got a directory of %lld bytes for no members",
                                  (long long)found.bytes));
    if (found.count > 0) DPCR_TRY(read_directory(context, source, &found, wanted, tensors, error));
done:
    if (status != DPCR_OK) dpcr_tensors_free(context, tensors);
    return status;
}

// ---- writing ----

// Little-endian fields one after the other.
typedef struct record {
    unsigned char bytes[128];
    size_t used;
} record;

static void put(record *r, uint64_t value, int count) {
    for (int i = 0; i < count; i++) r->bytes[r->used++] = (unsigned char)(value >> (8 * i));
}

typedef struct placed {
    uint32_t crc;
    int64_t bytes, at;
} placed;

static bool needs_zip64(int64_t value, bool always) { return always || value >= full32; }

static int name_flags(const char *name) {
    for (; *name; name++)
        if ((unsigned char)*name >= 0x80) return FLAG_UTF8;
    return 0;
}

// The fields that the local header and the directory's entry share, from "version needed" to the lengths.
static void put_common(record *r, const char *name, const placed *p, bool big, size_t extra) {
    put(r, big ? VERSION_ZIP64 : VERSION, 2);
    put(r, (uint64_t)name_flags(name), 2);
    put(r, METHOD_STORED, 2);
    put(r, 0, 2);  // time of day
    put(r, DOS_DATE, 2);
    put(r, p->crc, 4);
    put(r, big ? full32 : (uint64_t)p->bytes, 4);
    put(r, big ? full32 : (uint64_t)p->bytes, 4);
    put(r, strlen(name) + 4, 2);
    put(r, extra, 2);
}

static dpcr_status crc_block(void *user, const void *bytes, size_t count, dpcr_error *error) {
    uint32_t *crc = user;
    (void)error;
    *crc = (uint32_t)crc32_z(*crc, bytes, count);
    return DPCR_OK;
}

// The checksum stands before the data and nothing is written twice: so the data are walked twice.
static dpcr_status put_member(dpcri_writer *writer, const dpcr_tensor *tensor, placed *p, bool zip64, int64_t *at,
                              dpcr_error *error) {
    char header[DPCRI_NPY_HEADER];
    const size_t header_bytes = dpcri_npy_header(&tensor->array, header);
    dpcr_status status;
    record local = {0};
    int64_t count = 0;
    if (!dpcri_shape_bytes(tensor->array.dtype, tensor->array.ndim, tensor->array.shape, &count, &p->bytes) ||
        !dpcri_add(p->bytes, (int64_t)header_bytes, &p->bytes) || !dpcri_add(*at, p->bytes, &count))
        return dpcri_fail(error, DPCR_ERROR_OVERFLOW, "npz_write: the file's size does not fit 63 bits");
    p->at = *at;
    p->crc = (uint32_t)crc32_z(0, (const unsigned char *)header, header_bytes);
    DPCR_TRY(dpcri_array_stream(&tensor->array, crc_block, &p->crc, error));
    const bool big = needs_zip64(p->bytes, zip64);
    put(&local, local_magic, 4);
    put_common(&local, tensor->name, p, big, big ? 20 : 0);
    DPCR_TRY(dpcri_writer_put(writer, local.bytes, local.used, error));
    DPCR_TRY(dpcri_writer_put(writer, tensor->name, strlen(tensor->name), error));
    DPCR_TRY(dpcri_writer_put(writer, ".npy", 4, error));
    *at += (int64_t)(local.used + strlen(tensor->name) + 4) + p->bytes + (big ? 20 : 0);
    local.used = 0;
    if (big) {
        put(&local, ZIP64_TAG, 2);
        put(&local, 16, 2);
        put(&local, (uint64_t)p->bytes, 8);
        put(&local, (uint64_t)p->bytes, 8);
    }
    DPCR_TRY(dpcri_writer_put(writer, local.bytes, local.used, error));
    DPCR_TRY(dpcri_writer_put(writer, header, header_bytes, error));
    DPCR_TRY(dpcri_writer_put_array(writer, &tensor->array, error));
done:
    return status;
}

static dpcr_status put_entry(dpcri_writer *writer, const char *name, const placed *p, bool zip64, int64_t *at,
                             dpcr_error *error) {
    record entry = {0}, extra = {0};
    dpcr_status status;
    const bool big = needs_zip64(p->bytes, zip64), far = needs_zip64(p->at, zip64);
    if (big || far) {
        put(&extra, ZIP64_TAG, 2);
        put(&extra, (big ? 16 : 0) + (far ? 8 : 0), 2);
        if (big) put(&extra, (uint64_t)p->bytes, 8);
        if (big) put(&extra, (uint64_t)p->bytes, 8);
        if (far) put(&extra, (uint64_t)p->at, 8);
    }
    put(&entry, central_magic, 4);
    put(&entry, big || far ? VERSION_ZIP64 : VERSION, 2);  // made by
    put_common(&entry, name, p, big, extra.used);
    put(&entry, 0, 2);  // comment
    put(&entry, 0, 2);  // part
    put(&entry, 0, 2);  // internal attributes
    put(&entry, 0, 4);  // external attributes
    put(&entry, far ? full32 : (uint64_t)p->at, 4);
    DPCR_TRY(dpcri_writer_put(writer, entry.bytes, entry.used, error));
    DPCR_TRY(dpcri_writer_put(writer, name, strlen(name), error));
    DPCR_TRY(dpcri_writer_put(writer, ".npy", 4, error));
    DPCR_TRY(dpcri_writer_put(writer, extra.bytes, extra.used, error));
    *at += (int64_t)(entry.used + strlen(name) + 4 + extra.used);
done:
    return status;
}

static dpcr_status put_end(dpcri_writer *writer, int64_t count, int64_t directory_at, int64_t end_at, bool zip64,
                           dpcr_error *error) {
    const int64_t bytes = end_at - directory_at;
    const bool big = zip64 || count >= full16 || bytes >= full32 || directory_at >= full32;
    record end = {0};
    if (big) {
        put(&end, end64_magic, 4);
        put(&end, END64_BYTES - 12, 8);  // bytes that follow
        put(&end, VERSION_ZIP64, 2);
        put(&end, VERSION_ZIP64, 2);
        put(&end, 0, 4);
        put(&end, 0, 4);
        put(&end, (uint64_t)count, 8);
        put(&end, (uint64_t)count, 8);
        put(&end, (uint64_t)bytes, 8);
        put(&end, (uint64_t)directory_at, 8);
        put(&end, locator_magic, 4);
        put(&end, 0, 4);
        put(&end, (uint64_t)end_at, 8);
        put(&end, 1, 4);
    }
    put(&end, end_magic, 4);
    put(&end, 0, 2);
    put(&end, 0, 2);
    put(&end, big ? full16 : (uint64_t)count, 2);
    put(&end, big ? full16 : (uint64_t)count, 2);
    put(&end, big ? full32 : (uint64_t)bytes, 4);
    put(&end, big ? full32 : (uint64_t)directory_at, 4);
    put(&end, 0, 2);  // comment
    return dpcri_writer_put(writer, end.bytes, end.used, error);
}

// names: room for tensors->count.
static dpcr_status check_write_names(const dpcr_tensors *tensors, const char **names, dpcr_error *error) {
    dpcri_quoted quoted;
    for (int64_t i = 0; i < tensors->count; i++) {
        names[i] = tensors->items[i].name;
        if (strlen(names[i]) > MAX_NAME - 4)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npz_write: a name has %zu bytes, wanted at most %d",
                              strlen(names[i]), MAX_NAME - 4);
    }
    const char *twice = dpcri_names_twice(names, tensors->count);
    if (!twice) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npz_write: name '%s' stands twice", dpcri_quote(twice, &quoted));
}

static dpcr_status write_file(const char *path, const dpcr_tensors *tensors, placed *places, bool zip64,
                              dpcr_error *error) {
    dpcri_writer writer;
    dpcr_status status;
    int64_t at = 0;
    DPCR_TRY(dpcri_writer_open(&writer, path, error));
    for (int64_t i = 0; i < tensors->count; i++)
        DPCR_TRY(put_member(&writer, &tensors->items[i], &places[i], zip64, &at, error));
    const int64_t directory_at = at;
    for (int64_t i = 0; i < tensors->count; i++)
        DPCR_TRY(put_entry(&writer, tensors->items[i].name, &places[i], zip64, &at, error));
    DPCR_TRY(put_end(&writer, tensors->count, directory_at, at, zip64, error));
    DPCR_TRY(dpcri_writer_commit(&writer, error));
done:
    dpcri_writer_close(&writer);
    return status;
}

dpcr_status dpcri_npz_write(const char *path, const dpcr_tensors *tensors, bool zip64, dpcr_error *error) {
    if (!path) return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "npz_write: path is NULL");
    dpcr_status status = dpcri_tensors_check_writable(tensors, error);
    if (status != DPCR_OK) return status;
    // The writers take no context: these come from malloc.
    const char **names = calloc((size_t)tensors->count + 1, sizeof(const char *));
    placed *places = calloc((size_t)tensors->count + 1, sizeof *places);
    if (!names || !places)
        DPCR_TRY(dpcri_no_memory(error, "npz directory to write", tensors->count * (int64_t)sizeof *places));
    DPCR_TRY(check_write_names(tensors, names, error));
    DPCR_TRY(write_file(path, tensors, places, zip64, error));
done:
    free(places);
    free(names);
    return status;
}

dpcr_status dpcr_npz_write(const char *path, const dpcr_tensors *tensors, dpcr_error *error) {
    return dpcri_npz_write(path, tensors, false, error);
}
