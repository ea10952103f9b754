// SPDX-License-Identifier: MIT
// Numbers as text that is kept: in files they have a point, whatever the locale of the program.
#ifndef DPCRI_BASE_TEXT_H
#define DPCRI_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__GNUC__)
#define DPCRI_TEXT_FORMAT(kind, f, a) __attribute__((format(kind, f, a)))
#else
#define DPCRI_TEXT_FORMAT(kind, f, a)
#endif

// snprintf and sscanf in the C locale, which the calling thread has meanwhile; the process's stays.
int dpcri_text_print(char *text, size_t bytes, const char *format, ...) DPCRI_TEXT_FORMAT(printf, 3, 4);
int dpcri_text_scan(const char *text, const char *format, ...) DPCRI_TEXT_FORMAT(scanf, 2, 3);

// A number that reads back as the same.
typedef struct dpcri_number {
    char text[32];
} dpcri_number;
dpcri_number dpcri_number_text(double value);
// The whole of `text` as a number; false where it is none.
bool dpcri_number_parse(const char *text, double *value);

#endif
