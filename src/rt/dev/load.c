// SPDX-License-Identifier: MIT
// The module of a backend, found at run time. In this order, and the first file that is there decides:
//
//   1. the file that DEEPPCR_CUDA_MODULE names in the environment; empty or "off": no module at all
//   2. libdeeppcr_cuda.so.0 beside the library, or beside the program that holds the library
//   3. the installation's library folder as seen from the program's (../lib)
//   4. libdeeppcr_cuda.so.0 where the loader looks (LD_LIBRARY_PATH, ld.so.conf)
//
// A file that is there but cannot serve is not passed over for another one: its reason is the answer.
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "rt/dev/device.h"

#ifndef DPCRI_LIBRARY_FOLDER
#define DPCRI_LIBRARY_FOLDER "../lib"  // from the folder of programs to that of libraries
#endif

static const char module_name[] = "libdeeppcr_cuda.so.0";
enum { PATH_BYTES = 4096 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const dpcri_device_table *cuda;
static dpcr_error why;  // there is no table

static dpcr_status check_table(const char *path, const dpcri_device_table *t, dpcr_error *error) {
    if (!t) return dpcri_fail(error, DPCR_ERROR_DEVICE, "'%.200s' gives no table of a device", path);
    if (t->abi != DPCRI_DEVICE_ABI)
        return dpcri_fail(error, DPCR_ERROR_DEVICE, "'%.200s' speaks interface %d of modules, this library %d", path,
                          t->abi, DPCRI_DEVICE_ABI);
    if (!t->version || strcmp(t->version, DPCR_VERSION_STRING) != 0)
        return dpcri_fail(error, DPCR_ERROR_DEVICE, "'%.200s' is of deeppcr %.40s, this library %s", path,
                          t->version ? t->version : "(unknown)", DPCR_VERSION_STRING);
    if (t->size != sizeof *t)
        return dpcri_fail(error, DPCR_ERROR_DEVICE,
                          "'%.200s' has a table of %zu bytes, this library's has %zu: built from other sources", path,
                          t->size, sizeof *t);
    return DPCR_OK;
}

dpcr_status dpcri_device_open(const char *path, const dpcri_device_table **table, dpcr_error *error) {
    *table = NULL;
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *text = dlerror();
        return dpcri_fail(error, DPCR_ERROR_DEVICE, "'%.200s' cannot be loaded: %.240s", path, text ? text : "unknown");
    }
    dpcri_device_entry *entry = NULL;
    *(void **)&entry = dlsym(module, DPCRI_DEVICE_ENTRY);
    const dpcr_status status =
        entry ? check_table(path, entry(), error)
              : dpcri_fail(error, DPCR_ERROR_DEVICE, "'%.200s' is no module of deeppcr: it has no %s", path,
                           DPCRI_DEVICE_ENTRY);
    if (status != DPCR_OK) {
        dlclose(module);
        return status;
    }
    *table = entry();
    return DPCR_OK;
}

// The folder, without the last '/', of the file that this code lies in, as the kernel lists it: the loader's name for
// it may be relative to a folder that was left since. False where the system does not tell.
static bool own_folder(char *path) {
    char line[PATH_BYTES + 128];
    const uintptr_t here = (uintptr_t)&dpcri_device_open;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        uintptr_t from = 0, to = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2 || here < from || here >= to) continue;
        char *first = strchr(line, '/'), *last = strrchr(line, '/');
        if (!first || (size_t)(last - first) >= PATH_BYTES) break;
        *last = 0;
        memcpy(path, first, (size_t)(last - first) + 1);
        found = true;
    }
    if (maps) fclose(maps);
    return found;
}

// Opens FOLDER/[BELOW/]name where there is such a file; false: there is none.
static bool open_in(const char *folder, const char *below, dpcr_status *status) {
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s%s%s", folder, below, below[0] ? "/" : "", module_name);
    if (access(path, F_OK) != 0) return false;
    *status = dpcri_device_open(path, &cuda, &why);
    return true;
}

static void look_for_module(void) {
    dpcr_status status = DPCR_OK;
    const char *named = secure_getenv("DEEPPCR_CUDA_MODULE");
    if (named && (!named[0] || !strcmp(named, "off"))) {
        dpcri_fail(&why, DPCR_ERROR_DEVICE, "the CUDA backend is switched off by DEEPPCR_CUDA_MODULE");
        return;
    }
    if (named) {
        dpcri_device_open(named, &cuda, &why);
        return;
    }
    char folder[PATH_BYTES] = "";
    if (own_folder(folder) && (open_in(folder, "", &status) || open_in(folder, DPCRI_LIBRARY_FOLDER, &status))) return;
    if (dpcri_device_open(module_name, &cuda, &why) == DPCR_OK) return;
    // The loader's words say only that the last place has none; not that one is there and lacks what it needs.
    char missing[sizeof module_name + 64];
    snprintf(missing, sizeof missing, "loaded: %s: cannot open shared object file: No such file", module_name);
    if (strstr(why.text, missing))
        dpcri_fail(&why, DPCR_ERROR_DEVICE,
                   "no CUDA backend: %s lies neither in %.200s nor where the loader looks (built without CUDA?)",
                   module_name, folder[0] ? folder : "the library's folder");
}

// An error is one line, whatever a path holds.
static void find_module(void) {
    look_for_module();
    for (char *c = why.text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

const dpcri_device_table *dpcri_device_table_of(dpcr_device_type type, dpcr_error *error) {
    if (type == DPCR_HOST) return &dpcri_host_table;
    if (type != DPCR_CUDA) {
        dpcri_fail(error, DPCR_ERROR_ARGUMENT, "device: type is %d, wanted %d (cpu) or %d (cuda)", (int)type,
                   (int)DPCR_HOST, (int)DPCR_CUDA);
        return NULL;
    }
    pthread_once(&once, find_module);
    if (!cuda && error) *error = why;
    return cuda;
}

dpcr_status dpcri_device_ready(dpcr_device device, const char *function, const dpcri_device_table **table,
                               dpcr_error *error) {
    int count = 0;
    dpcr_error own = {0};
    char text[32];
    *table = dpcri_device_table_of(device.type, &own);
    dpcr_status status = *table ? (*table)->count(&count, &own) : own.status;
    if (status != DPCR_OK) return dpcri_fail(error, status, "%s: %.440s", function, own.text);
    if (device.id >= 0 && device.id < count) return DPCR_OK;
    return dpcri_fail(error, DPCR_ERROR_DEVICE, "%s: there is no %s; there %s %d, from 0", function,
                      dpcri_device_text(device, text, sizeof text), count == 1 ? "is" : "are", count);
}

const char *dpcri_device_text(dpcr_device device, char *buffer, size_t bytes) {
    if (device.type == DPCR_HOST)
        snprintf(buffer, bytes, "cpu");
    else
        snprintf(buffer, bytes, "%s:%d", dpcr_device_type_name(device.type), (int)device.id);
    return buffer;
}
