// SPDX-License-Identifier: MIT
// JSON as it is, or not at all.
#ifndef DPCRI_BASE_JSON_H
#define DPCRI_BASE_JSON_H

#include <jansson.h>

// The text's value, no key twice in an object; NULL: where->text says why, and says nothing where memory ended.
json_t *dpcri_json_parse(const char *text, size_t bytes, json_error_t *where);

#endif
