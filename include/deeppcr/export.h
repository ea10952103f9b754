// SPDX-License-Identifier: MIT
// Version and symbol visibility.
#ifndef DEEPPCR_EXPORT_H
#define DEEPPCR_EXPORT_H

#define DPCR_VERSION_MAJOR 0
#define DPCR_VERSION_MINOR 1
#define DPCR_VERSION_PATCH 0
#define DPCR_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define DPCR_API __attribute__((visibility("default")))
#else
#define DPCR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// The version of the library that runs, which may differ from DPCR_VERSION_STRING of the headers that were compiled
// against.
DPCR_API const char *dpcr_version(void);

#ifdef __cplusplus
}
#endif
#endif
