// SPDX-License-Identifier: MIT
#include "train/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/tensors.h"
#include "model/model_internal.h"
#include "solve/solve_internal.h"

// ---- strings ----

void dpcri_strings_add(dpcri_strings *strings, const char *key, const char *format, ...) {
    if (strings->count == DPCRI_STRINGS) return;
    const int i = strings->count++;
    va_list arguments;
    va_start(arguments, format);
    snprintf(strings->keys[i], DPCRI_KEY_BYTES, DPCRI_TRAIN_PREFIX "%s", key);
    vsnprintf(strings->values[i], DPCRI_VALUE_BYTES, format, arguments);
    va_end(arguments);
}

void dpcri_strings_add_number(dpcri_strings *strings, const char *key, double value) {
    dpcri_strings_add(strings, key, "%s", dpcri_number_text(value).text);
}

static void add_integer(dpcri_strings *strings, const char *key, int64_t value) {
    dpcri_strings_add(strings, key, "%" PRId64, value);
}

static void add_optimiser(dpcri_strings *s, const dpcr_optimiser_options *o) {
    static const char *const kinds[] = {"", "sgd", "adam", "adamw"};
    dpcri_strings_add(s, "optimiser.kind", "%s", kinds[o->kind]);
    dpcri_strings_add_number(s, "optimiser.rate", o->rate);
    dpcri_strings_add_number(s, "optimiser.momentum", o->momentum);
    dpcri_strings_add_number(s, "optimiser.beta1", o->beta1);
    dpcri_strings_add_number(s, "optimiser.beta2", o->beta2);
    dpcri_strings_add_number(s, "optimiser.epsilon", o->epsilon);
    dpcri_strings_add_number(s, "optimiser.weight_decay", o->weight_decay);
    add_integer(s, "optimiser.warm_up", o->warm_up);
    add_integer(s, "optimiser.total", o->total);
}

static void add_solve(dpcri_strings *s, const dpcr_solve_options *o) {
    dpcri_strings_add(s, "solve.method", "%s", dpcr_method_name(o->method));
    dpcri_strings_add(s, "solve.scheme", "%s", dpcr_scheme_name(o->scheme));
    dpcri_strings_add(s, "solve.backward", "%s", dpcr_scheme_name(o->backward));
    add_integer(s, "solve.guess", o->guess);
    dpcri_strings_add_number(s, "solve.atol", o->atol);
    dpcri_strings_add_number(s, "solve.rtol", o->rtol);
    add_integer(s, "solve.window", o->window);
    add_integer(s, "solve.chunk", o->chunk);
    add_integer(s, "solve.backward_chunk", o->backward_chunk);
    add_integer(s, "solve.warm_up", o->warm_up);
    add_integer(s, "solve.backward_warm_up", o->backward_warm_up);
    dpcri_strings_add_number(s, "solve.join_tolerance", o->join_tolerance);
    add_integer(s, "solve.block", o->block);
    dpcri_strings_add_number(s, "solve.damping", o->damping);
    add_integer(s, "solve.max_sweeps", o->max_sweeps);
    dpcri_strings_add(s, "solve.memory_limit", "%zu", o->memory_limit);
}

void dpcri_agreement_add(dpcri_strings *strings, const dpcri_data_figures *figures, const dpcr_dataset *data,
                         const dpcr_train_options *options) {
    add_integer(strings, "data.count", data->count);
    dpcri_strings_add(strings, "data.hash", "%016" PRIx64, figures->hash);
    dpcri_agreement_add_options(strings, options);
}

const char *dpcri_denormals(void) {
    const int flushed = dpcr_flush_denormals(1);
    if (flushed < 0) return NULL;
    dpcr_flush_denormals(flushed);
    return flushed ? "flush" : "keep";
}

void dpcri_agreement_add_options(dpcri_strings *strings, const dpcr_train_options *options) {
    const char *const denormals = dpcri_denormals();
    if (denormals) dpcri_strings_add(strings, "denormals", "%s", denormals);
    add_integer(strings, "batch", options->batch);
    dpcri_strings_add(strings, "seed", "%" PRIu64, options->seed);
    add_optimiser(strings, &options->optimiser);
    dpcri_strings_add_number(strings, "clip", options->clip);
    add_solve(strings, &options->solve);
}

static const char *choice_key(char buffer[DPCRI_KEY_BYTES], int size, const char *name) {
    snprintf(buffer, DPCRI_KEY_BYTES, "plan%d.%s", size, name);
    return buffer;
}

void dpcri_choices_add(dpcri_strings *strings, int size, const dpcr_solve_plan *plan) {
    if (plan) dpcri_choices_add_options(strings, size, &plan->pinned);  // asked for again it is the same plan
}

void dpcri_choices_add_options(dpcri_strings *strings, int size, const dpcr_solve_options *o) {
    char key[DPCRI_KEY_BYTES];
    const bool loop = o->method == DPCR_METHOD_SEQUENTIAL && o->backward == DPCR_SCHEME_SEQUENTIAL;
    dpcri_strings_add(strings, choice_key(key, size, "method"), "%s", dpcr_method_name(o->method));
    dpcri_strings_add(strings, choice_key(key, size, "scheme"), "%s",
                      dpcr_scheme_name(loop ? DPCR_SCHEME_SEQUENTIAL : o->scheme));
    dpcri_strings_add(strings, choice_key(key, size, "backward"), "%s", dpcr_scheme_name(o->backward));
    if (loop) return;  // nothing is cut
    add_integer(strings, choice_key(key, size, "chunk"), o->chunk);
    add_integer(strings, choice_key(key, size, "backward_chunk"), o->backward_chunk);
    add_integer(strings, choice_key(key, size, "warm_up"), o->warm_up);
    if (o->backward == DPCR_SCHEME_OVERLAP)
        add_integer(strings, choice_key(key, size, "backward_warm_up"), o->backward_warm_up);
    if (o->join_tolerance != 0)
        dpcri_strings_add_number(strings, choice_key(key, size, "join_tolerance"), o->join_tolerance);
    add_integer(strings, choice_key(key, size, "max_sweeps"), o->max_sweeps);  // AUTO's follows from timings
}

// ---- writing ----

int64_t dpcri_first_not_finite(dpcr_dtype dtype, const void *vector, int64_t count) {
    const bool wide = dtype == DPCR_F64;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(wide ? ((const double *)vector)[i] : (double)((const float *)vector)[i])) return i;
    return -1;
}

static dpcr_tensor state_tensor(const dpcr_optimiser *optimiser, const char *name, void *data) {
    return (dpcr_tensor){.name = (char *)(uintptr_t)name,
                         .array = dpcr_array_make(data, optimiser->dtype, 1, &optimiser->count)};
}

static void add_position(dpcri_strings *strings, const dpcri_position *position) {
    add_integer(strings, "epoch", position->epoch);
    add_integer(strings, "epoch_batch", position->batch);
    add_integer(strings, "step", position->step);
    add_integer(strings, "epoch_rows", position->rows);
    add_integer(strings, "epoch_correct", position->correct);
    dpcri_strings_add_number(strings, "epoch_loss", position->loss);
}

void dpcri_checkpoint_start(dpcri_checkpoint *c, const dpcri_strings *fixed, const dpcri_position *position) {
    c->strings = *fixed;
    add_position(&c->strings, position);
    for (int i = 0; i < c->strings.count; i++) {
        c->keys[i] = c->strings.keys[i];
        c->values[i] = c->strings.values[i];
    }
    c->extra = (dpcr_tensors){
        .items = c->items, .metadata_count = c->strings.count, .metadata_keys = c->keys, .metadata_values = c->values};
}

void dpcri_checkpoint_optimiser(dpcri_checkpoint *c, const dpcr_optimiser *optimiser, const char *first,
                                const char *second) {
    if (optimiser->first) c->items[c->extra.count++] = state_tensor(optimiser, first, optimiser->first);
    if (optimiser->second) c->items[c->extra.count++] = state_tensor(optimiser, second, optimiser->second);
}

dpcr_status dpcri_refuse_not_finite(const dpcri_position *position, int64_t parameter, dpcr_error *error) {
    return dpcri_fail(
        error, DPCR_ERROR_UNSUPPORTED,
        "train: after step %lld parameter %lld is not finite; no checkpoint is written, a lower rate may help",
        (long long)position->step, (long long)parameter);
}

dpcr_status dpcri_parameters_check(dpcr_model *model, const dpcri_position *position, dpcr_error *error) {
    int64_t count = 0;
    const void *parameters = dpcr_model_vector(model, &count);
    const int64_t bad = dpcri_first_not_finite(dpcr_model_get_options(model)->dtype, parameters, count);
    return bad < 0 ? DPCR_OK : dpcri_refuse_not_finite(position, bad, error);
}

dpcr_status dpcri_checkpoint_write(const char *path, dpcr_model *model, const dpcr_optimiser *optimiser,
                                   const dpcri_strings *fixed, const dpcri_position *position, dpcr_error *error) {
    const dpcr_status status = dpcri_parameters_check(model, position, error);
    if (status != DPCR_OK) return status;
    dpcri_checkpoint checkpoint;
    dpcri_checkpoint_start(&checkpoint, fixed, position);
    dpcri_checkpoint_optimiser(&checkpoint, optimiser, "optimiser.first", "optimiser.second");
    return dpcri_model_save_with(model, path, &checkpoint.extra, error);
}

// ---- reading ----

static const char *string_of(const dpcri_saved *saved, const char *key) {
    char whole[sizeof DPCRI_TRAIN_PREFIX + DPCRI_KEY_BYTES];
    snprintf(whole, sizeof whole, DPCRI_TRAIN_PREFIX "%s", key);
    return dpcr_tensors_metadata(&saved->tensors, whole);
}

static dpcr_status bad_string(const dpcri_saved *saved, const char *key, const char *got, const char *wanted,
                              dpcr_error *error) {
    return dpcri_fail(error, DPCR_ERROR_FORMAT,
                      "train: %s is no checkpoint to go on from: '" DPCRI_TRAIN_PREFIX "%s' is %.40s, wanted %s",
                      saved->path, key, got ? got : "absent", wanted);
}

static dpcr_status read_integer(const dpcri_saved *saved, const char *key, int64_t *value, dpcr_error *error) {
    const char *text = string_of(saved, key);
    char *end = NULL;
    errno = 0;
    const long long number = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || number < 0)
        return bad_string(saved, key, text, "a whole number", error);
    *value = number;
    return DPCR_OK;
}

static dpcr_status read_position(dpcri_saved *saved, dpcr_error *error) {
    dpcr_status status;
    dpcri_position *p = &saved->position;
    DPCR_TRY(read_integer(saved, "epoch", &p->epoch, error));
    DPCR_TRY(read_integer(saved, "epoch_batch", &p->batch, error));
    DPCR_TRY(read_integer(saved, "step", &p->step, error));
    DPCR_TRY(read_integer(saved, "epoch_rows", &p->rows, error));
    DPCR_TRY(read_integer(saved, "epoch_correct", &p->correct, error));
    const char *loss = string_of(saved, "epoch_loss");
    if (!loss || !dpcri_number_parse(loss, &p->loss) || !isfinite(p->loss))
        DPCR_TRY(bad_string(saved, "epoch_loss", loss, "a number", error));
done:
    return status;
}

dpcr_status dpcri_saved_open(dpcri_saved *saved, dpcr_context *context, const char *path, dpcr_error *error) {
    *saved = (dpcri_saved){.context = context, .path = path};
    dpcr_status status = dpcr_safetensors_read(context, path, &saved->tensors, error);
    if (status == DPCR_OK && saved->tensors.other_count > 0) {  // the next checkpoint often takes this one's place
        dpcri_quoted quoted;
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "train: %s is no checkpoint to go on from: tensor '%s' is of dtype %s, which none has", path,
                          dpcri_quote(saved->tensors.other_names[0], &quoted), saved->tensors.other_dtypes[0]);
    }
    if (status == DPCR_OK) status = dpcr_tensors_sum_agrees(&saved->tensors, path, error);
    if (status == DPCR_OK && !string_of(saved, "epoch"))
        return dpcri_fail(error, DPCR_ERROR_FORMAT,
                          "train: %s is no checkpoint to go on from: '" DPCRI_TRAIN_PREFIX
                          "epoch' is absent, it "
                          "holds a network alone, such as SWAP leaves at its end",
                          path);
    return status == DPCR_OK ? read_position(saved, error) : status;
}

dpcr_status dpcri_saved_read(dpcri_saved *saved, dpcr_context *context, const char *path, dpcr_error *error) {
    dpcr_status status;
    DPCR_TRY(dpcri_saved_open(saved, context, path, error));
    DPCR_TRY(dpcri_model_of_tensors(context, &saved->tensors, path, &saved->model, error));
done:
    return status;
}

void dpcri_saved_free(dpcri_saved *saved) {
    if (!saved->context) return;
    dpcr_model_destroy(saved->model);
    dpcr_tensors_free(saved->context, &saved->tensors);
    *saved = (dpcri_saved){0};
}

// The seed is not compared: it only made the parameters that the checkpoint replaces.
static dpcr_status model_agrees(const dpcri_saved *saved, const dpcr_model *model, dpcr_error *error) {
    const dpcr_model_options *got = dpcr_model_get_options(model), *wanted = dpcr_model_get_options(saved->model);
    const struct {
        const char *name, *got, *wanted;
    } names[] = {
        {"dtype", dpcr_dtype_name(got->dtype), dpcr_dtype_name(wanted->dtype)},
        {"activation", dpcr_activation_name(got->activation), dpcr_activation_name(wanted->activation)},
    };
    const struct {
        const char *name;
        double got, wanted;
    } fields[] = {
        {"architecture", got->architecture, wanted->architecture},
        {"inputs", (double)got->inputs, (double)wanted->inputs},
        {"outputs", (double)got->outputs, (double)wanted->outputs},
        {"layers", (double)got->layers, (double)wanted->layers},
        {"width", (double)got->width, (double)wanted->width},
        {"hidden", (double)got->hidden, (double)wanted->hidden},
        {"branch", got->branch, wanted->branch},
        {"layer_norm", got->layer_norm, wanted->layer_norm},
        {"scale", got->scale, wanted->scale},
        {"tie", (double)got->tie, (double)wanted->tie},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].got, names[i].wanted) != 0)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "train: resume from %s: the model's %s is %s, wanted %s, the checkpoint's", saved->path,
                              names[i].name, names[i].got, names[i].wanted);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].got != fields[i].wanted)
            return dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                              "train: resume from %s: the model's %s is %g, wanted %g, the checkpoint's", saved->path,
                              fields[i].name, fields[i].got, fields[i].wanted);
    return DPCR_OK;
}

dpcr_status dpcri_saved_agrees(const dpcri_saved *saved, const dpcr_model *model, dpcri_strings *agreement,
                               dpcr_error *error) {
    const dpcr_status status = model_agrees(saved, model, error);
    return status == DPCR_OK ? dpcri_saved_strings_agree(saved, agreement, error) : status;
}

// Which older checkpoints have none of, where they are 0; who says no word of them takes the checkpoint's.
static bool is_younger(const char *key) {
    static const char *const keys[] = {"solve.backward_chunk", "solve.backward_warm_up", "solve.join_tolerance"};
    bool found = false;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) found = found || strcmp(key, keys[k]) == 0;
    return found;
}

dpcr_status dpcri_saved_strings_agree(const dpcri_saved *saved, dpcri_strings *agreement, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    for (int i = 0; i < agreement->count; i++) {
        const char *key = agreement->keys[i] + strlen(DPCRI_TRAIN_PREFIX), *wanted = string_of(saved, key);
        const bool younger = is_younger(key);
        if (!wanted && (!strcmp(key, "clip") || !strcmp(key, "denormals"))) continue;  // older checkpoints do not tell
        if (!wanted && (younger || !strcmp(key, "segment"))) wanted = "0";  // whose run has none says nothing of them
        if (!wanted) DPCR_TRY(bad_string(saved, key, NULL, "a value", error));
        if (younger && strcmp(agreement->values[i], "0") == 0)
            snprintf(agreement->values[i], DPCRI_VALUE_BYTES, "%s", wanted);
        if (strcmp(wanted, agreement->values[i]) != 0)
            DPCR_TRY(dpcri_fail(error, DPCR_ERROR_ARGUMENT,
                                "train: resume from %s: %s is %s, wanted %.40s, the checkpoint's", saved->path, key,
                                agreement->values[i], wanted));
    }
done:
    return status;
}

void dpcri_saved_keep(const dpcri_saved *saved, const char *key, const char *value, dpcri_strings *agreement) {
    const char *text = string_of(saved, key);
    if (!text || strcmp(text, value) != 0) return;
    for (int i = 0; i < agreement->count; i++)
        if (!strcmp(agreement->keys[i] + strlen(DPCRI_TRAIN_PREFIX), key))
            snprintf(agreement->values[i], DPCRI_VALUE_BYTES, "%s", value);
}

void dpcri_saved_keep_loop(const dpcri_saved *saved, const char *name, dpcri_strings *agreement) {
    char key[DPCRI_KEY_BYTES], choice[DPCRI_KEY_BYTES];
    bool chosen = false, others = false;
    for (int size = 0; size < DPCRI_SIZES; size++) {
        const char *text = string_of(saved, choice_key(choice, size, name));
        chosen = chosen || text;
        others = others || (text && strcmp(text, "sequential") != 0);
    }
    snprintf(key, sizeof key, "solve.%s", name);
    for (int i = 0; i < agreement->count && chosen && !others; i++)
        if (!strcmp(agreement->keys[i] + strlen(DPCRI_TRAIN_PREFIX), key) &&
            !strcmp(agreement->values[i], "sequential"))
            dpcri_saved_keep(saved, key, "auto", agreement);
}

static dpcr_status scheme_of(const dpcri_saved *saved, const char *key, dpcr_scheme *scheme, dpcr_error *error) {
    const char *text = string_of(saved, key);
    if (text && dpcr_scheme_find(text, scheme, NULL) == DPCR_OK) return DPCR_OK;
    return bad_string(saved, key, text, "the name of a scheme", error);
}

dpcr_status dpcri_saved_choices(const dpcri_saved *saved, int size, dpcr_solve_options *solve, dpcr_error *error) {
    dpcr_status status;
    char key[DPCRI_KEY_BYTES];
    const char *method = string_of(saved, choice_key(key, size, "method"));
    if (!method || dpcr_method_find(method, &solve->method, NULL) != DPCR_OK)
        DPCR_TRY(bad_string(saved, key, method, "the name of a method", error));
    DPCR_TRY(scheme_of(saved, choice_key(key, size, "scheme"), &solve->scheme, error));
    DPCR_TRY(scheme_of(saved, choice_key(key, size, "backward"), &solve->backward, error));
    // The loop needs no more, and older checkpoints have none.
    if (string_of(saved, choice_key(key, size, "chunk"))) DPCR_TRY(read_integer(saved, key, &solve->chunk, error));
    if (string_of(saved, choice_key(key, size, "backward_chunk")))
        DPCR_TRY(read_integer(saved, key, &solve->backward_chunk, error));
    if (string_of(saved, choice_key(key, size, "warm_up"))) DPCR_TRY(read_integer(saved, key, &solve->warm_up, error));
    if (string_of(saved, choice_key(key, size, "backward_warm_up")))
        DPCR_TRY(read_integer(saved, key, &solve->backward_warm_up, error));
    const char *joins = string_of(saved, choice_key(key, size, "join_tolerance"));
    if (joins && !dpcri_number_parse(joins, &solve->join_tolerance))
        DPCR_TRY(bad_string(saved, key, joins, "a number", error));
    int64_t sweeps = solve->max_sweeps;
    if (string_of(saved, choice_key(key, size, "max_sweeps"))) DPCR_TRY(read_integer(saved, key, &sweeps, error));
    solve->max_sweeps = sweeps < INT_MAX ? (int)sweeps : INT_MAX;
done:
    return status;
}

void dpcri_saved_tell(const dpcr_solve_options *asked, bool on_device, char *sentence, size_t bytes) {
    const bool forward = asked->method == DPCR_METHOD_AUTO, backward = asked->backward == DPCR_SCHEME_AUTO;
    const char *said = on_device ? "asked for" : "as asked", *has = "as in the checkpoint";
    char after[DPCRI_SENTENCE], *at = strstr(sentence, said);
    if (!at || !(forward || (backward && !on_device))) return;  // a device has one way back
    if (!on_device && forward != backward)
        has = forward ? "the latter as asked, the former as in the checkpoint"
                      : "the former as asked, the latter as in the checkpoint";
    snprintf(after, sizeof after, "%s", at + strlen(said));
    snprintf(at, bytes - (size_t)(at - sentence), "%s%s", has, after);
}

dpcr_status dpcri_saved_numbers(const dpcri_saved *saved, const char *name, dpcr_dtype dtype, int64_t count,
                                const dpcr_tensor **tensor, dpcr_error *error) {
    char text[96];
    *tensor = dpcr_tensors_find(&saved->tensors, name);
    const dpcr_array *array = *tensor ? &(*tensor)->array : NULL;
    int64_t numbers = 1;
    for (int32_t d = 0; array && d < array->ndim; d++) numbers *= array->shape[d];
    if (array && array->dtype == dtype && numbers == count) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_FORMAT,
                      "train: %s is no checkpoint to go on from: tensor '%s' is %s, wanted [%lld] %s", saved->path,
                      name, array ? dpcri_array_text(array, text, sizeof text) : "absent", (long long)count,
                      dpcr_dtype_name(dtype));
}

dpcr_status dpcri_saved_optimiser(const dpcri_saved *saved, dpcr_optimiser *optimiser, const char *first_name,
                                  const char *second_name, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    const dpcr_tensor *first = NULL, *second = NULL;
    const dpcr_dtype dtype = optimiser->dtype;
    const int64_t count = optimiser->count;
    const size_t bytes = (size_t)count * dpcr_dtype_size(dtype);
    if (optimiser->first) DPCR_TRY(dpcri_saved_numbers(saved, first_name, dtype, count, &first, error));
    if (optimiser->second) DPCR_TRY(dpcri_saved_numbers(saved, second_name, dtype, count, &second, error));
    if (first) memcpy(optimiser->first, first->array.data, bytes);
    if (second) memcpy(optimiser->second, second->array.data, bytes);
    optimiser->step = saved->position.step;
done:
    return status;
}

void dpcri_saved_parameters(const dpcri_saved *saved, dpcr_model *model) {
    int64_t count = 0;
    const void *from = dpcr_model_vector(saved->model, NULL);
    void *to = dpcr_model_vector(model, &count);
    memcpy(to, from, (size_t)count * dpcr_dtype_size(dpcr_model_get_options(model)->dtype));
}
