// SPDX-License-Identifier: MIT
// --device: what was asked for against what there is.
#include <stdarg.h>
#include <string.h>

#include "cli.h"

static char sentence[400];

const char *cli_device_sentence(void) { return sentence[0] ? sentence : NULL; }

void cli_device_decide(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
}

// A library's text without the name of its call.
static const char *words(const dpcr_error *error) {
    const char *colon = strstr(error->text, ": ");
    const bool named = !strncmp(error->text, "device_", 7) && colon;
    return named ? colon + 2 : error->text;
}

static bool settle_auto(cli_common *c) {
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    const dpcr_device first = {.type = DPCR_CUDA};
    if (dpcr_device_describe(first, &info, &error) != DPCR_OK) {
        cli_device_decide("cpu: %.380s", words(&error));
    } else if (!c->serves_devices) {
        cli_device_decide("cpu: '%s' does not run on devices yet", cli_get_verb());
    } else {
        c->device = first;
        c->device_auto = true;
        cli_device_decide("cuda:0 (%.100s)", info.name);
    }
    return true;
}

void cli_device_leave_auto(cli_common *c, const char *what) {
    if (!c->device_auto) return;
    c->device_auto = false;
    c->device = (dpcr_device){0};
    cli_device_decide("cpu: what %s take on devices is not measured; --device cuda asks for one", what);
}

bool cli_device_settle(cli_common *c) {
    dpcr_device device = {0};
    dpcr_device_info info = {.size = sizeof info};
    dpcr_error error = {0};
    if (!c->device_given) return true;
    if (!strcmp(c->device_given, "auto")) return settle_auto(c);
    if (dpcr_device_find(c->device_given, &device, NULL) != DPCR_OK) {
        cli_fail(CLI_USAGE, "--device '%.60s': wanted cpu, cuda, cuda:N or auto", c->device_given);
        return false;
    }
    if (device.type == DPCR_HOST) {
        cli_device_decide("cpu: asked for");
        return true;
    }
    if (dpcr_device_describe(device, &info, &error) != DPCR_OK) {
        cli_fail(CLI_RESOURCES, "--device %.20s: %s", c->device_given, words(&error));
        return false;
    }
    if (!c->serves_devices) {
        cli_fail(CLI_USAGE,
                 "--device %.20s: '%s' as given does not run on devices yet; 'solve' (linear, recurrent networks), "
                 "'check', 'plan', 'eval', 'generate' and 'train' (mlp, resnet, recurrent networks) do",
                 c->device_given, cli_get_verb());
        return false;
    }
    c->device = device;
    cli_device_decide("cuda:%d (%.100s): asked for", (int)device.id, info.name);
    return true;
}
