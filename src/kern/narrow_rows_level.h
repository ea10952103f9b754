// SPDX-License-Identifier: MIT
// The narrow kernels for batches of one instruction set level: narrow_rows.inc for float and for double. Included once
// by one source a level, whose flags choose the level.
#ifndef DPCRI_NARROW_ROWS_LEVEL_H
#define DPCRI_NARROW_ROWS_LEVEL_H

#include "kern/interleave.h"
#include "kern/narrow_rows.h"
#include "kern/narrow_values.h"

#define JOIN(a, b) JOINED(a, b)
#define JOINED(a, b) a##b

#include "kern/number_f32.inc"
#define VA(name) name##_vf
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f32)
#include "kern/narrow_rows.inc"
#include "kern/number_none.inc"
#undef VA
#undef ROWS

#include "kern/number_f64.inc"
#define VA(name) name##_vd
#define ROWS DPCRI_LEVEL(dpcri_narrow_rows_f64)
#include "kern/narrow_rows.inc"

#endif
