// SPDX-License-Identifier: MIT
// The wire format of Protocol Buffers, read in place: a message is a list of (number << 3 | wire type, value). Nothing
// is copied or allocated; who reads a message descends by calls of their own, so that no input decides the depth.
// Source: protobuf.dev/programming-guides/encoding.
#ifndef DPCRI_DATA_PROTOBUF_H
#define DPCRI_DATA_PROTOBUF_H

#include "base/base.h"

// Bytes of somebody else's, at..end-1: a message, a string, packed numbers.
typedef struct dpcri_span {
    const unsigned char *at, *end;
} dpcri_span;

typedef enum dpcri_wire { DPCRI_VARINT = 0, DPCRI_FIXED64 = 1, DPCRI_BYTES = 2, DPCRI_FIXED32 = 5 } dpcri_wire;

typedef struct dpcri_field {
    uint64_t number;  // 1..2^29 - 1
    dpcri_wire wire;
    uint64_t value;    // of a varint
    dpcri_span bytes;  // of all others
} dpcri_field;

// Takes the next field off `rest`. False at the end, and where the bytes are no field (groups, which nobody writes any
// more, among them): *fault is then the byte, and stays so; once it is set nothing more is read.
bool dpcri_field_next(dpcri_span *rest, dpcri_field *field, const unsigned char **fault);

// Takes a varint off `rest`; false where it is cut short or does not fit 64 bits.
bool dpcri_varint_next(dpcri_span *rest, uint64_t *value);

static inline size_t dpcri_span_bytes(dpcri_span s) { return (size_t)(s.end - s.at); }
bool dpcri_span_is(dpcri_span s, const char *text);
// Order of their bytes, as strcmp's.
int dpcri_span_compare(dpcri_span a, dpcri_span b);

#endif
