// SPDX-License-Identifier: MIT
// info: what this build and this machine offer.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static json_t *names(const char *(*name)(int), int first, int count) {
    json_t *list = json_array();
    for (int i = first; list && i < count; i++) cli_append(&list, json_string(name(i)));
    return list;
}

static const char *dtype_name(int i) { return dpcr_dtype_name((dpcr_dtype)i); }
static const char *method_name(int i) { return dpcr_method_name((dpcr_method)i); }
static const char *scheme_name(int i) { return dpcr_scheme_name((dpcr_scheme)i); }
static const char *structure_name(int i) { return dpcr_structure_name((dpcr_structure)i); }
static const char *activation_name(int i) { return dpcr_activation_name((dpcr_activation)i); }
static const char *network_name(int i) { return cli_architecture_name((dpcr_architecture)i); }

static void set_caches(cli_result *result) {
    static const struct {
        const char *key;
        int name;
    } caches[] = {{"l1_data", _SC_LEVEL1_DCACHE_SIZE}, {"l2", _SC_LEVEL2_CACHE_SIZE}};
    cli_result r = cli_result_create();
    for (int i = 0; i < 2; i++) {
        const long bytes = sysconf(caches[i].name);
        if (bytes > 0) cli_set_int(&r, caches[i].key, bytes);
    }
    dpcr_device_info host = {.size = sizeof host};
    if (dpcr_device_describe((dpcr_device){.type = DPCR_HOST}, &host, NULL) == DPCR_OK && host.cache_bytes > 0)
        cli_set_int(&r, "l3", (json_int_t)host.cache_bytes);
    cli_set(result, "cache_bytes", cli_result_take(&r));
}

static void set_data(cli_result *result) {
    json_t *list = json_array();
    if (list && cli_data_present(CLI_FASHION_MNIST_FOLDER)) cli_append(&list, json_string(CLI_FASHION_MNIST));
    cli_set(result, "data_sets", list);
}

static void set_tolerances(cli_result *result) {
    cli_result r = cli_result_create();
    cli_set_real(&r, dpcr_dtype_name(DPCR_F32), DPCR_TOLERANCE_F32);
    cli_set_real(&r, dpcr_dtype_name(DPCR_F64), DPCR_TOLERANCE_F64);
    cli_set(result, "tolerances", cli_result_take(&r));
}

// Two versions in one number, as CUDA counts them.
static json_t *version(int number) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d", number / 1000, number % 1000 / 10);
    return json_string(text);
}

static json_t *describe_device(int id) {
    const dpcr_device device = {.type = DPCR_CUDA, .id = id};
    dpcr_device_info info = {.size = sizeof info};
    dpcr_device_rates rates = {.size = sizeof rates};
    dpcr_error error = {0};
    char text[32];
    cli_result r = cli_result_create();
    snprintf(text, sizeof text, "cuda:%d", id);
    cli_set_text(&r, "name", text);
    dpcr_status status = dpcr_device_describe(device, &info, &error);
    if (status == DPCR_OK) {
        snprintf(text, sizeof text, "%d.%d", info.major, info.minor);
        cli_set_text(&r, "model", info.name);
        cli_set_text(&r, "compute_capability", text);
        cli_set_int(&r, "processors", info.processors);
        cli_set_int(&r, "memory_bytes", (json_int_t)info.memory_bytes);
        cli_set_int(&r, "free_bytes", (json_int_t)info.free_bytes);
        cli_set_int(&r, "cache_bytes", (json_int_t)info.cache_bytes);
        cli_set(&r, "driver", version(info.driver));
        cli_set(&r, "runtime", version(info.runtime));
        cli_set_real(&r, "bandwidth", info.bandwidth);
        status = dpcr_device_measure(device, &rates, &error);
    }
    if (status == DPCR_OK) {
        cli_set_real(&r, "copy_bandwidth", rates.copy);
        cli_set_real(&r, "to_device_bandwidth", rates.to_device);
        cli_set_real(&r, "to_host_bandwidth", rates.to_host);
        cli_set_real(&r, "launch_seconds", rates.launch);
    } else {
        cli_set_text(&r, "why_not", error.text);
    }
    return cli_result_take(&r);
}

// "cuda": null where it is there, else why it is not.
static void set_devices(cli_result *result) {
    int count = 0;
    dpcr_error error = {0};
    const dpcr_status status = dpcr_device_count(DPCR_CUDA, &count, &error);
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++) cli_append(&list, describe_device(i));
    cli_set(result, "devices", list);
    if (status == DPCR_OK)
        cli_set(result, "devices_absent", json_null());
    else
        cli_set_text(result, "devices_absent", error.text);
}

// Those that DEEPPCR_ISA may name here.
static json_t *isa_levels(void) {
    json_t *list = json_array();
    for (int i = 0; list && dpcr_isa_level_name(i); i++) cli_append(&list, json_string(dpcr_isa_level_name(i)));
    return list;
}

static void fill(cli_result *result, const dpcr_context *context) {
    const char *forced = getenv("DEEPPCR_ISA");
    cli_set_text(result, "version", dpcr_version());
    cli_set_text(result, "processor", dpcr_processor_name());
    cli_set_text(result, "isa", dpcr_isa_name());
    bool lowers = false;  // what it names is one of them; anything else is not heeded
    for (int i = 0; forced && dpcr_isa_level_name(i); i++) lowers |= !strcmp(forced, dpcr_isa_level_name(i));
    if (lowers)
        cli_set_text(result, "isa_forced", forced);
    else
        cli_set(result, "isa_forced", json_null());
    cli_set(result, "isa_levels", isa_levels());
    cli_set_int(result, "threads", dpcr_context_threads(context));
    cli_set_int(result, "memory_bytes", (json_int_t)cli_memory_budget());
    set_caches(result);
    cli_set(result, "dtypes", names(dtype_name, DPCR_F32, DPCR_F64 + 1));
    cli_set(result, "networks", names(network_name, DPCR_MLP, DPCR_RESNET + 1));
    cli_set(result, "activations", names(activation_name, DPCR_ACT_DEFAULT + 1, DPCR_ACT_COUNT));
    cli_set(result, "methods", names(method_name, 0, DPCR_METHOD_COUNT));
    cli_set(result, "schemes", names(scheme_name, 0, DPCR_SCHEME_COUNT));
    cli_set(result, "structures", names(structure_name, 0, DPCR_STRUCTURE_COUNT));
    set_tolerances(result);
    set_data(result);
    set_devices(result);
}

// A line of its own below the key.
static void say_device(const cli_common *common, json_t *device) {
    const char *comma = "\n  ";
    for (void *m = json_object_iter(device); m; m = json_object_iter_next(device, m)) {
        json_t *member = json_object_iter_value(m);
        cli_say(common, "%s%s", comma, json_object_iter_key(m));
        if (json_is_string(member)) cli_say(common, " %s", json_string_value(member));
        if (json_is_number(member)) cli_say(common, " %.4g", json_number_value(member));
        comma = ", ";
    }
}

static void say_value(const cli_common *common, json_t *value) {
    if (json_is_string(value)) cli_say(common, " %s", json_string_value(value));
    if (json_is_integer(value)) cli_say(common, " %lld", (long long)json_integer_value(value));
    if (json_is_array(value) && json_array_size(value) == 0) cli_say(common, " none found");
    for (size_t i = 0; i < json_array_size(value); i++) {
        json_t *item = json_array_get(value, i);
        if (json_is_string(item)) cli_say(common, " %s", json_string_value(item));
        if (json_is_object(item)) say_device(common, item);
    }
    for (void *i = json_object_iter(value); i; i = json_object_iter_next(value, i))
        cli_say(common, " %s %.10g", json_object_iter_key(i), json_number_value(json_object_iter_value(i)));
}

// Every member in a line of its own; lists and objects with their members side by side.
static void say_all(const cli_common *common, const cli_result *result) {
    for (void *i = json_object_iter(result->object); i; i = json_object_iter_next(result->object, i)) {
        json_t *value = json_object_iter_value(i);
        if (json_is_null(value)) continue;
        cli_say(common, "%-14s", json_object_iter_key(i));
        say_value(common, value);
        cli_say(common, "\n");
    }
}

int cli_verb_info(int argc, char **argv) {
    cli_common common = CLI_COMMON_DEFAULTS;
    common.serves_devices = true;
    const cli_syntax syntax = {
        .arguments = "",
        .doc =
            "Tells the version, the instruction set level, threads, memory and caches, the names of networks of "
            "layers, activations, methods, schemes and structures, data sets and devices.\vThe environment variable "
            "DEEPPCR_ISA (portable, avx2, avx512) forces a lower level than the processor's; DEEPPCR_CUDA_MODULE names "
            "the file of the CUDA backend, or switches it off "
            "(off).",
        .groups = {{&cli_common_argp, &common, "Output and resources:"}}};
    const char *positional[CLI_MAX_POSITIONAL];
    int status;
    if (!cli_parse(&syntax, argc, argv, positional, &status)) return status;
    dpcr_context *context = cli_context_create(&common, &status);
    if (!context) return status;
    cli_result result = cli_result_create();
    fill(&result, context);
    if (result.failed) {
        status = cli_fail_memory("what there is to tell");
    } else {
        say_all(&common, &result);
        status = cli_finish(&common, &result, CLI_DONE);
    }
    cli_result_destroy(&result);
    dpcr_context_destroy(context);
    return status;
}
