// SPDX-License-Identifier: MIT
#include "base/text.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

// What the thread had, to be given back; 0 where there was no memory for another.
static locale_t enter(locale_t *c) {
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

static void leave(locale_t c, locale_t kept) {
    if (!c) return;
    uselocale(kept);
    freelocale(c);
}

int dpcri_text_print(char *text, size_t bytes, const char *format, ...) {
    locale_t c;
    const locale_t kept = enter(&c);
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    leave(c, kept);
    return length;
}

int dpcri_text_scan(const char *text, const char *format, ...) {
    locale_t c;
    const locale_t kept = enter(&c);
    va_list arguments;
    va_start(arguments, format);
    const int read = vsscanf(text, format, arguments);
    va_end(arguments);
    leave(c, kept);
    return read;
}

dpcri_number dpcri_number_text(double value) {
    dpcri_number made;
    dpcri_text_print(made.text, sizeof made.text, "%.17g", value);
    return made;
}

bool dpcri_number_parse(const char *text, double *value) {
    char *end = NULL;
    locale_t c;
    const locale_t kept = enter(&c);
    *value = strtod(text, &end);
    leave(c, kept);
    return end != text && *end == '\0';
}
