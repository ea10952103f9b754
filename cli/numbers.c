// SPDX-License-Identifier: MIT
// Strict readers of option values: the whole text counts, ranges are checked, and the message says what was wanted.
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static bool wrong(const char *option, const char *text, const char *wanted) {
    cli_fail(CLI_USAGE, "%s '%.100s': wanted %s", option, text, wanted);
    return false;
}

// strtoll and its kin skip spaces and take an empty text for 0, and strtod reads hexadecimal numbers; we do not.
static bool begins_number(const char *text) {
    if (text[0] == '+' || text[0] == '-') text++;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return false;
    if (text[0] == '.') text++;
    return isalnum((unsigned char)text[0]);
}

char *cli_next_item(char **rest) {
    char *item = strsep(rest, ",");
    if (!item) return NULL;
    item += strspn(item, " \t");
    for (size_t n = strlen(item); n > 0 && (item[n - 1] == ' ' || item[n - 1] == '\t'); n--) item[n - 1] = 0;
    return item;
}

bool cli_read_int64(const char *option, const char *text, int64_t low, int64_t high, int64_t *value) {
    char *end = NULL;
    errno = 0;
    const long long number = begins_number(text) ? strtoll(text, &end, 10) : 0;
    if (!end || end == text || *end) return wrong(option, text, "a whole number");
    const bool overflow = errno == ERANGE;
    if (overflow || number < low || number > high) {
        char range[96];
        if (high == INT64_MAX && !overflow)
            snprintf(range, sizeof range, "at least %lld", (long long)low);
        else
            snprintf(range, sizeof range, "%lld to %lld%s", (long long)low, (long long)high,
                     overflow ? " (overflow)" : "");
        return wrong(option, text, range);
    }
    *value = number;
    return true;
}

bool cli_read_int(const char *option, const char *text, int low, int high, int *value) {
    int64_t wide;
    if (!cli_read_int64(option, text, low, high, &wide)) return false;
    *value = (int)wide;
    return true;
}

bool cli_read_double(const char *option, const char *text, double low, double high, double *value) {
    char *end = NULL;
    errno = 0;
    const double number = begins_number(text) ? strtod(text, &end) : 0;
    if (!end || end == text || *end || !isfinite(number)) {
        if (end && end != text && !*end && errno == ERANGE)
            return wrong(option, text, "a number that fits a double (overflow)");
        return wrong(option, text, end || !*text ? "a finite number" : "a finite number, in decimal");
    }
    if (number < low || number > high) {
        char range[96];
        if (high == HUGE_VAL)
            snprintf(range, sizeof range, "at least %g", low);
        else
            snprintf(range, sizeof range, "%g to %g", low, high);
        return wrong(option, text, range);
    }
    if (number == 0 && errno == ERANGE)
        return wrong(option, text, "0, or a number that a double tells from it (underflow)");
    *value = number;
    return true;
}

bool cli_read_bytes(const char *option, const char *text, size_t *value) {
    static const char wanted[] = "a number of bytes, such as 500M (suffixes K, M, G)";
    char *end = NULL;
    errno = 0;
    const unsigned long long number = isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : 0;
    if (!end) return wrong(option, text, wanted);
    const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) end++;
    if (*end) return wrong(option, text, wanted);
    if (errno == ERANGE || number > (unsigned long long)(SIZE_MAX >> shift))
        return wrong(option, text, "a number that fits 64 bits (overflow)");
    if (number == 0) return wrong(option, text, "at least 1 byte");
    *value = (size_t)number << shift;
    return true;
}

bool cli_read_prefix(const char *option, const char *text, const char **value) {
    enum { MOST = 255 };  // dpcr_recurrent_load's
    const size_t bytes = strlen(text);
    if (bytes <= MOST) {
        *value = text;
        return true;
    }
    cli_fail(CLI_USAGE, "%s '%.40s...': has %zu bytes, wanted at most %d", option, text, bytes, MOST);
    return false;
}

void cli_join_words(const char *const *words, int count, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < count && used < bytes; i++) {
        const int n = snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", words[i]);
        used += n > 0 ? (size_t)n : 0;
    }
}

bool cli_read_word(const char *option, const char *text, const char *const *words, int count, int *index) {
    for (int i = 0; i < count; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *index = i;
        return true;
    }
    char list[512], wanted[540];
    cli_join_words(words, count, list, sizeof list);
    snprintf(wanted, sizeof wanted, "one of %s", list);
    return wrong(option, text, wanted);
}

bool cli_read_dtype(const char *option, const char *text, dpcr_dtype *dtype) {
    const char *const words[] = {dpcr_dtype_name(DPCR_F32), dpcr_dtype_name(DPCR_F64)};
    int index = 0;
    if (!cli_read_word(option, text, words, 2, &index)) return false;
    *dtype = index ? DPCR_F64 : DPCR_F32;
    return true;
}

bool cli_read_method(const char *option, const char *text, dpcr_method *method) {
    const char *words[DPCR_METHOD_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_METHOD_COUNT; i++) words[i] = dpcr_method_name((dpcr_method)i);
    if (!cli_read_word(option, text, words, DPCR_METHOD_COUNT, &index)) return false;
    *method = (dpcr_method)index;
    return true;
}

bool cli_read_scheme(const char *option, const char *text, dpcr_scheme *scheme) {
    const char *words[DPCR_SCHEME_COUNT];
    int index = 0;
    for (int i = 0; i < DPCR_SCHEME_COUNT; i++) words[i] = dpcr_scheme_name((dpcr_scheme)i);
    if (!cli_read_word(option, text, words, DPCR_SCHEME_COUNT, &index)) return false;
    *scheme = (dpcr_scheme)index;
    return true;
}

bool cli_read_structure(const char *option, const char *text, dpcr_structure *structure) {
    enum { CHAINS = DPCR_CSR };  // those that linear chains take come first
    const char *words[CHAINS];
    int index = 0;
    for (int i = 0; i < CHAINS; i++) words[i] = dpcr_structure_name((dpcr_structure)i);
    if (!cli_read_word(option, text, words, CHAINS, &index)) return false;
    *structure = (dpcr_structure)index;
    return true;
}

bool cli_read_activation(const char *option, const char *text, dpcr_activation *activation) {
    enum { FIRST = DPCR_ACT_DEFAULT + 1 };
    const char *words[DPCR_ACT_COUNT - FIRST];
    int index = 0;
    for (int i = FIRST; i < DPCR_ACT_COUNT; i++) words[i - FIRST] = dpcr_activation_name((dpcr_activation)i);
    if (!cli_read_word(option, text, words, DPCR_ACT_COUNT - FIRST, &index)) return false;
    *activation = (dpcr_activation)(index + FIRST);
    return true;
}
