// SPDX-License-Identifier: MIT
// One npy array, from a stream and to a writer: what npz is made of.
#ifndef DPCRI_DATA_NPY_H
#define DPCRI_DATA_NPY_H

#include "data/half.h"
#include "data/stream.h"
#include "data/tensors.h"

enum { DPCRI_NPY_HEADER = 256 };  // bytes of the longest header that is written

// What a header says.
typedef struct dpcri_npy_facts {
    dpcr_dtype dtype;  // that they are read as: of whole numbers float64, of f2 float32
    int narrow;        // bytes of a whole number, a truth value or an f2 as it lies there; 0: elements are of dtype
    dpcri_half half;   // f2
    bool is_signed;    // whole numbers
    bool big_endian, fortran_order;
    int32_t ndim;
    int64_t shape[DPCR_MAX_DIMS];
    int64_t data_at;  // offset of the elements
} dpcri_npy_facts;

// From the stream's beginning.
dpcr_status dpcri_npy_read_facts(dpcri_stream *stream, dpcri_npy_facts *facts, dpcr_error *error);

// The stream's whole content as one array; array->data is owned by the caller, also on failure (then NULL or junk to
// free).
dpcr_status dpcri_npy_read_stream(dpcri_stream *stream, dpcr_array *array, dpcr_error *error);

// Magic, version 1.0, length and dictionary; returns its bytes, a multiple of 64.
size_t dpcri_npy_header(const dpcr_array *array, char header[DPCRI_NPY_HEADER]);

#endif
