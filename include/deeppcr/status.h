// SPDX-License-Identifier: MIT
// Status codes and error text. Every call that can fail returns a dpcr_status and takes, as its last argument, an
// optional dpcr_error of the caller's that receives one line of text: what failed, what was got, what was wanted.
// A handle that is NULL is DPCR_ERROR_ARGUMENT there; calls without a status answer 0, NULL or "" for it, or do
// nothing, but for dpcr_cancel_locked and those of xla.h, which take what they are given on trust.
#ifndef DEEPPCR_STATUS_H
#define DEEPPCR_STATUS_H

#include "export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dpcr_status {
    DPCR_OK = 0,
    DPCR_ERROR_ARGUMENT = -1,     // an argument is out of its documented range
    DPCR_ERROR_UNSUPPORTED = -2,  // a combination that cannot work; the text names what would
    DPCR_ERROR_MEMORY = -3,       // an allocation was refused, or a workspace or limit is too small
    DPCR_ERROR_OVERFLOW = -4,     // a size does not fit its type
    DPCR_ERROR_IO = -5,           // a file cannot be opened, read, written, synced or renamed
    DPCR_ERROR_FORMAT = -6,       // a file's content is not what its format allows
    DPCR_ERROR_CALLBACK = -7,     // a callback of the caller's aborted (returned a negative code)
    DPCR_ERROR_CANCELLED = -8,    // the caller's cancel function asked to stop
    DPCR_ERROR_SYSTEM = -9,       // the operating system refused something else (threads, time)
    DPCR_ERROR_DEVICE = -10       // a device is not there or too old, or something failed on it
} dpcr_status;

// Written only on failure. `code` is the callback's own code for DPCR_ERROR_CALLBACK, errno for IO and SYSTEM, what
// another rank's cancel function returned for DPCR_ERROR_CANCELLED of training over a transport, else 0.
typedef struct dpcr_error {
    dpcr_status status;
    int code;
    char text[512];
} dpcr_error;

// The constant's name in words, such as "unsupported"; never NULL.
DPCR_API const char *dpcr_status_name(dpcr_status status);

#ifdef __cplusplus
}
#endif
#endif
