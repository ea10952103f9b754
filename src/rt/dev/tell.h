// SPDX-License-Identifier: MIT
// base's dpcri_fail for modules, which do not link to the library.
#ifndef DPCRI_RT_DEV_TELL_H
#define DPCRI_RT_DEV_TELL_H

#include <stdarg.h>
#include <stdio.h>

#include "deeppcr/status.h"

__attribute__((format(printf, 3, 4))) static inline dpcr_status dpcri_tell(dpcr_error *error, dpcr_status status,
                                                                           const char *format, ...) {
    if (!error) return status;
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    error->code = 0;
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

#endif
