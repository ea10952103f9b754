// SPDX-License-Identifier: MIT
// Profiles: memory, JSON, groups of layers.
#include "pipe/profile.h"
#include "pipe/pipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { MOST_LAYERS = 1 << 20 };

void dpcr_profile_free(dpcr_context *context, dpcr_profile *profile) {
    if (!profile) return;
    for (int64_t l = 0; profile->names && l < profile->layers; l++) dpcri_free(context, profile->names[l]);
    dpcri_free(context, profile->names);
    dpcri_free(context, profile->forward);  // the arrays lie in one piece
    *profile = (dpcr_profile){0};
}

dpcr_status dpcri_profile_alloc(dpcr_context *context, int64_t layers, dpcr_profile *profile, dpcr_error *error) {
    *profile = (dpcr_profile){.layers = layers};
    if (layers < 1 || layers > MOST_LAYERS)
        return dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: %lld layers; wanted 1 to %d", (long long)layers,
                          (int)MOST_LAYERS);
    const size_t n = (size_t)layers;
    profile->names = dpcri_alloc_zero(context, n * sizeof *profile->names);
    double *numbers = dpcri_alloc_zero(context, 5 * n * sizeof *numbers);
    profile->forward = numbers;
    if (!profile->names || !numbers) {
        dpcr_profile_free(context, profile);
        return dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory for %lld layers", (long long)layers);
    }
    profile->input = numbers + n;
    profile->weight = numbers + 2 * n;
    profile->activation_bytes = numbers + 3 * n;
    profile->parameter_bytes = numbers + 4 * n;
    return DPCR_OK;
}

dpcr_status dpcri_profile_set_name(dpcr_context *context, dpcr_profile *profile, int64_t layer, const char *name,
                                   dpcr_error *error) {
    char *const copy = profile->names[layer] = dpcri_strdup(context, name);
    if (!copy) return dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory for a name");
    for (char *c = copy; *c; c++)  // names are told: one line, and nothing that a terminal obeys
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return DPCR_OK;
}

// ---- JSON ----

static dpcr_status read_field(const json_t *layer, int64_t l, const char *key, bool needed, double *value,
                              dpcr_error *error) {
    const json_t *field = json_object_get(layer, key);
    if (!field && !needed) return DPCR_OK;
    *value = json_number_value(field);
    if (json_is_number(field) && isfinite(*value) && *value >= 0) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: layer %lld: wanted \"%s\", a number of at least 0",
                      (long long)l, key);
}

static dpcr_status read_layer(dpcr_context *context, const json_t *layer, int64_t l, dpcr_profile *profile,
                              dpcr_error *error) {
    char number[32];
    dpcr_status status;
    const char *name = json_string_value(json_object_get(layer, "name"));
    snprintf(number, sizeof number, "layer %lld", (long long)l);
    if (!json_is_object(layer))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: layer %lld is no object", (long long)l));
    DPCR_TRY(dpcri_profile_set_name(context, profile, l, name ? name : number, error));
    DPCR_TRY(read_field(layer, l, "forward", true, &profile->forward[l], error));
    DPCR_TRY(read_field(layer, l, "input", true, &profile->input[l], error));
    DPCR_TRY(read_field(layer, l, "weight", true, &profile->weight[l], error));
    DPCR_TRY(read_field(layer, l, "activation_bytes", false, &profile->activation_bytes[l], error));
    DPCR_TRY(read_field(layer, l, "parameter_bytes", false, &profile->parameter_bytes[l], error));
done:
    return status;
}

static dpcr_status read_json(dpcr_context *context, const char *text, size_t bytes, dpcr_profile *profile,
                             dpcr_error *error) {
    json_error_t where;
    json_t *root = dpcri_json_parse(text, bytes, &where);
    if (!root && !where.text[0]) return dpcri_fail(error, DPCR_ERROR_MEMORY, "profile: no memory to read it");
    if (!root) return dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: line %d: %s", where.line, where.text);
    const json_t *layers = json_object_get(root, "layers");
    dpcr_status status;
    if (!json_is_array(layers))
        DPCR_TRY(dpcri_fail(error, DPCR_ERROR_FORMAT, "profile: wanted an object with an array \"layers\""));
    DPCR_TRY(dpcri_profile_alloc(context, (int64_t)json_array_size(layers), profile, error));
    for (int64_t l = 0; l < profile->layers; l++)
        DPCR_TRY(read_layer(context, json_array_get(layers, (size_t)l), l, profile, error));
done:
    json_decref(root);
    return status;
}

// What schedules count with.
static dpcr_status check_range(const dpcr_profile *p, dpcr_error *error) {
    const double *const arrays[] = {p->forward, p->input, p->weight, p->activation_bytes, p->parameter_bytes};
    for (int64_t l = 0; l < p->layers; l++)
        for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
            if (arrays[i][l] > DPCRI_MOST_COST)
                return dpcri_fail(error, DPCR_ERROR_FORMAT,
                                  "profile: layer %lld: %g; wanted times and bytes of at most %g", (long long)l,
                                  arrays[i][l], DPCRI_MOST_COST);
    return DPCR_OK;
}

dpcr_status dpcr_profile_read(dpcr_context *context, const char *text, size_t bytes, dpcr_profile *profile,
                              dpcr_error *error) {
    if (profile) *profile = (dpcr_profile){0};
    if (!context || !text || !profile)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "profile_read: context, text or profile is NULL");
    size_t at = 0;
    while (at < bytes && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) at++;
    const bool is_json = at < bytes && (text[at] == '{' || text[at] == '[');
    dpcr_status status = is_json ? read_json(context, text, bytes, profile, error)
                                 : dpcri_profile_read_graph(context, text, bytes, profile, error);
    if (status == DPCR_OK) status = check_range(profile, error);
    if (status != DPCR_OK) dpcr_profile_free(context, profile);
    return status;
}

// ---- groups ----

dpcr_status dpcr_profile_group(dpcr_context *context, const dpcr_profile *profile, const int64_t *first, int64_t stages,
                               dpcr_profile *grouped, dpcr_error *error) {
    if (!context || !profile || !first || !grouped || stages < 1 || first[0] != 0 || first[stages] != profile->layers)
        return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "profile_group: stages do not cover the layers");
    for (int64_t s = 0; s < stages; s++)
        if (first[s] >= first[s + 1])
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "profile_group: stage %lld has no layers", (long long)s);
    dpcr_status status;
    DPCR_TRY(dpcri_profile_alloc(context, stages, grouped, error));
    for (int64_t s = 0; s < stages; s++) {
        for (int64_t l = first[s]; l < first[s + 1]; l++) {
            grouped->forward[s] += profile->forward[l];
            grouped->input[s] += profile->input[l];
            grouped->weight[s] += profile->weight[l];
            grouped->parameter_bytes[s] += profile->parameter_bytes[l];
        }
        grouped->activation_bytes[s] = profile->activation_bytes[first[s + 1] - 1];
        DPCR_TRY(dpcri_profile_set_name(context, grouped, s, profile->names[first[s]], error));
    }
done:
    if (status != DPCR_OK) dpcr_profile_free(context, grouped);
    return status;
}

dpcr_schedule_costs dpcr_profile_costs(const dpcr_profile *profile) {
    if (!profile) return (dpcr_schedule_costs){.size = sizeof(dpcr_schedule_costs)};
    return (dpcr_schedule_costs){.size = sizeof(dpcr_schedule_costs),
                                 .stage_forward = profile->forward,
                                 .stage_input = profile->input,
                                 .stage_weight = profile->weight,
                                 .activation_bytes = profile->activation_bytes,
                                 .parameter_bytes = profile->parameter_bytes};
}
