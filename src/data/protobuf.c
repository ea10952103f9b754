// SPDX-License-Identifier: MIT
// Fields of protobuf messages, one after the other.
#include "data/protobuf.h"

#include <string.h>

bool dpcri_varint_next(dpcri_span *rest, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && rest->at < rest->end; shift += 7) {
        const unsigned char byte = *rest->at++;
        if (shift == 63 && byte > 1) return false;  // bits beyond the 64th
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool read_field(dpcri_span *rest, dpcri_field *field) {
    uint64_t key, length;
    if (!dpcri_varint_next(rest, &key)) return false;
    *field = (dpcri_field){.number = key >> 3, .wire = (dpcri_wire)(key & 7)};
    if (field->number == 0 || field->number >= (uint64_t)1 << 29) return false;
    switch (field->wire) {
        case DPCRI_VARINT: return dpcri_varint_next(rest, &field->value);
        case DPCRI_FIXED64: length = 8; break;
        case DPCRI_FIXED32: length = 4; break;
        case DPCRI_BYTES:
            if (!dpcri_varint_next(rest, &length)) return false;
            break;
        default: return false;
    }
    if (length > dpcri_span_bytes(*rest)) return false;
    field->bytes = (dpcri_span){rest->at, rest->at + length};
    rest->at += length;
    return true;
}

bool dpcri_field_next(dpcri_span *rest, dpcri_field *field, const unsigned char **fault) {
    if (*fault || rest->at == rest->end) return false;
    const unsigned char *const start = rest->at;
    if (read_field(rest, field)) return true;
    *fault = start;
    return false;
}

bool dpcri_span_is(dpcri_span s, const char *text) {
    const size_t length = strlen(text);
    return dpcri_span_bytes(s) == length && (length == 0 || memcmp(s.at, text, length) == 0);
}

int dpcri_span_compare(dpcri_span a, dpcri_span b) {
    const size_t n = dpcri_span_bytes(a), m = dpcri_span_bytes(b), least = n < m ? n : m;
    const int order = least ? memcmp(a.at, b.at, least) : 0;
    return order ? order : (n > m) - (n < m);
}
