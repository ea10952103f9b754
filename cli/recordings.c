// SPDX-License-Identifier: MIT
// Folders of recordings: which there are, what is for testing, features of all of them in memory.
#include "recordings.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CLASSES = 256, HELD = 5 };

// What hashes here begin with: checkpoints hold them.
#define HASH UINT64_C(1469598103934665603)

typedef struct file_id {
    dev_t device;
    ino_t inode;
} file_id;

typedef struct entry {
    char *path;  // of the file
    file_id id;
    int64_t order;      // in which it was found
    const char *name;   // within the class's folder, without ending
    size_t name_bytes;  // pieces of one recording have one name
    int label;
    uint64_t samples;  // hash
    int64_t first, length;
    bool out;
} entry;

typedef struct listing {
    entry *entries;
    int64_t count, room;
    // Of the class that is listed: its number, the bytes of its path, folders listed so far, links to be followed yet.
    int label;
    size_t bytes;
    file_id *folders;
    char **links;
    int64_t folder_count, link_count;
} listing;

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool cli_recordings_named(const char *data) { return !strcmp(data, CLI_SPEAKERS) || is_folder(data); }

// ---- what there is ----

// All that stands in a class's folder comes first, then what links lead to: a file has its first name, and no second
// one under which it would be tested on where it is trained on by the first.

static bool is_same(const file_id *a, const file_id *b) { return a->device == b->device && a->inode == b->inode; }

static bool add(listing *l, char *path, file_id id) {
    if (l->count == l->room) {
        const int64_t room = l->room ? 2 * l->room : 256;
        entry *made = realloc(l->entries, (size_t)room * sizeof *made);
        if (!made) return false;
        l->entries = made;
        l->room = room;
    }
    const char *name = path + l->bytes + 1, *end = strrchr(name, '.');
    size_t bytes = end ? (size_t)(end - name) : strlen(name), digits = bytes;
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') digits--;
    if (digits < bytes && digits > 2 && name[digits - 1] == '_' && name[digits - 2] == '_') bytes = digits - 2;
    l->entries[l->count] =
        (entry){.path = path, .id = id, .order = l->count, .name = name, .name_bytes = bytes, .label = l->label};
    l->count++;
    return true;
}

static bool add_link(listing *l, char *path) {
    char **made = realloc(l->links, (size_t)(l->link_count + 1) * sizeof *made);
    if (!made) return false;
    l->links = made;
    l->links[l->link_count++] = path;
    return true;
}

// *again: the folder was listed.
static bool add_folder(listing *l, file_id id, bool *again) {
    *again = false;
    for (int64_t i = 0; i < l->folder_count && !*again; i++) *again = is_same(&l->folders[i], &id);
    if (*again) return true;
    file_id *made = realloc(l->folders, (size_t)(l->folder_count + 1) * sizeof *made);
    if (!made) return false;
    l->folders = made;
    l->folders[l->folder_count++] = id;
    return true;
}

static int take(listing *l, char *path, bool follow);

static int is_visible(const struct dirent *e) { return e->d_name[0] != '.'; }
static int by_bytes(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static int list(listing *l, const char *path, file_id id) {
    bool again;
    struct dirent **found = NULL;
    if (!add_folder(l, id, &again)) return cli_fail_memory("names of folders");
    if (again) return CLI_DONE;
    if (cli_signal()) return cli_fail_stopped();
    const int count = scandir(path, &found, is_visible, by_bytes);
    if (count < 0) return cli_fail_reading("the folder", path, errno);
    int status = CLI_DONE;
    for (int i = 0; i < count; free(found[i++])) {
        char *at = NULL;
        if (!status && asprintf(&at, "%s/%s", path, found[i]->d_name) < 0)
            status = cli_fail_memory("names of recordings");
        if (!status) status = take(l, at, false);
    }
    free(found);
    return status;
}

// Lists a folder, notes a recording, puts a link off that is not to be followed yet; takes `path` over. What leads
// nowhere is nothing, unless it is called like a recording.
static int take(listing *l, char *path, bool follow) {
    struct stat info;
    int status = CLI_DONE;
    bool kept = false;
    if ((follow ? stat(path, &info) : lstat(path, &info)) != 0) {
        if ((errno != ENOENT && errno != ELOOP) || cli_sound_name(path))
            status = cli_fail(CLI_INPUT, "cannot read '%s': %s", path, strerror(errno));
        free(path);
        return status;
    }
    const file_id id = {info.st_dev, info.st_ino};
    if (S_ISDIR(info.st_mode)) {
        status = list(l, path, id);
    } else if (S_ISLNK(info.st_mode) || cli_sound_name(path)) {
        kept = S_ISLNK(info.st_mode) ? add_link(l, path) : add(l, path, id);
        if (!kept) status = cli_fail_memory("names of recordings");
    }
    if (!kept) free(path);
    return status;
}

static int by_file(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->id.device != b->id.device) return a->id.device < b->id.device ? -1 : 1;
    if (a->id.inode != b->id.inode) return a->id.inode < b->id.inode ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static void drop_second_names(listing *l, int64_t from) {
    int64_t kept = from;
    qsort(l->entries + from, (size_t)(l->count - from), sizeof *l->entries, by_file);
    for (int64_t i = from; i < l->count; i++)
        if (kept > from && is_same(&l->entries[kept - 1].id, &l->entries[i].id))
            free(l->entries[i].path);
        else
            l->entries[kept++] = l->entries[i];
    l->count = kept;
}

static int list_class(listing *l, const char *path, int label) {
    const int64_t before = l->count;
    char *const top = strdup(path);
    l->label = label;
    l->bytes = strlen(path);
    l->folder_count = l->link_count = 0;
    int status = top ? take(l, top, true) : cli_fail_memory("names of folders");
    for (int64_t i = 0; i < l->link_count; i++) {
        if (status)
            free(l->links[i]);
        else
            status = take(l, l->links[i], true);
    }
    if (!status && l->count == before) return cli_fail(CLI_INPUT, "'%s' has no recordings", path);
    if (!status) drop_second_names(l, before);
    return status;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_speaker(const char *name) {
    static const char *const languages[] = {"en_", "es_", "fr_", "it_", "ru_"};
    for (int i = 0; i < 5; i++)
        if (!strncmp(name, languages[i], 3)) return true;
    return false;
}

// A model keeps names of classes in UTF-8, one a line.
static bool can_be_kept(const char *name) {
    json_t *text = json_string(name);
    const bool kept = text && !strchr(name, '\n');
    json_decref(text);
    return kept;
}

// The classes: sub-folders, sorted.
static int list_classes(cli_recordings *r, const char *folder, bool speakers) {
    DIR *d = opendir(folder);
    int status = CLI_DONE;
    if (!d) return cli_fail_reading("the folder", folder, errno);
    r->names = calloc(MOST_CLASSES, sizeof *r->names);
    if (!r->names) {
        closedir(d);
        return cli_fail_memory("names of classes");
    }
    for (struct dirent *e; !status && (e = readdir(d));) {
        char path[4096];
        const int used = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || used >= (int)sizeof path || !is_folder(path)) continue;
        if (speakers && !is_speaker(e->d_name)) continue;
        if (r->classes == MOST_CLASSES)
            status = cli_fail(CLI_INPUT, "'%s' has more than %d folders, each a class", folder, MOST_CLASSES);
        else if (!can_be_kept(e->d_name))
            status = cli_fail(CLI_INPUT, "'%s': wanted the name of a class in UTF-8 and without a line break", path);
        else if (!(r->names[r->classes] = strdup(e->d_name)))
            status = cli_fail_memory("names of classes");
        else
            r->classes++;
    }
    closedir(d);
    if (!status) qsort(r->names, (size_t)r->classes, sizeof *r->names, by_text);
    return status;
}

static int check_classes(const cli_recordings *r, const char *folder, bool speakers) {
    if (speakers && r->classes != 5)
        return cli_fail(CLI_INPUT,
                        "'%s' has %d of the five languages; the Debian packages asterisk-core-sounds-{en,es,fr,it,ru}-"
                        "wav have them (scripts/install-deps speakers)",
                        folder, r->classes);
    if (r->classes >= 2) return CLI_DONE;
    return cli_fail(CLI_INPUT, "'%s' has %d folders of recordings, wanted two or more, each a class", folder,
                    r->classes);
}

// By name, then by class, then by file: any first part has all classes.
static int by_name(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    const size_t least = a->name_bytes < b->name_bytes ? a->name_bytes : b->name_bytes;
    int order = memcmp(a->name, b->name, least);
    if (!order) order = (a->name_bytes > b->name_bytes) - (a->name_bytes < b->name_bytes);
    if (!order) order = a->label - b->label;
    return order ? order : strcmp(a->path, b->path);
}

// ---- their features ----

static bool is_silent(const dpcr_array *x) {
    const float *p = x->data;
    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++)
        if (fabsf(p[i]) > 1e-3f) return false;
    return true;
}

static int keep(cli_recordings *r, entry *e, const dpcr_array *features) {
    const int64_t frames = features->shape[0];
    if (r->total + frames > r->room) {
        const int64_t room = 2 * r->room + frames, most = (int64_t)(cli_memory_budget() / sizeof(float)) / 2;
        if (room > most / r->width)
            return cli_fail(
                CLI_RESOURCES,
                "the recordings' features, %lld numbers a frame, have more than %lld frames: more than half "
                "of the memory; wanted a larger --hop or fewer --seconds",
                (long long)r->width, (long long)r->total + frames);
        float *made = realloc(r->rows, (size_t)(room * r->width) * sizeof *made);
        if (!made) return cli_fail_memory("the recordings' features");
        r->rows = made;
        r->room = room;
    }
    memcpy(r->rows + r->total * r->width, features->data, (size_t)(frames * r->width) * sizeof(float));
    e->first = r->total;
    e->length = frames;
    r->total += frames;
    return CLI_DONE;
}

static int check_sound(cli_recordings *r, const entry *e, const dpcr_array *x, int rate) {
    if (!r->rate) {
        r->rate = rate;
        r->channels = (int)x->shape[1];
        const int status = cli_features_settle(&r->options, rate);
        r->width = r->channels * (r->options.coefficients - 1);
        return status;
    }
    if (rate == r->rate && x->shape[1] == r->channels) return CLI_DONE;
    return cli_fail(CLI_INPUT, "'%s' has %lld channel%s at %d Hz, those before it %d at %d", e->path,
                    (long long)x->shape[1], cli_s(x->shape[1]), rate, r->channels, r->rate);
}

static int read_one(cli_recordings *r, entry *e) {
    dpcr_array x = {0}, features = {0};
    int rate = 0, status = cli_sound_read(e->path, &x, &rate);
    if (status) return status;
    status = cli_sound_check(e->path, &x);
    if (!status) status = check_sound(r, e, &x, rate);
    e->samples = cli_hash(HASH, x.data, (size_t)(x.shape[0] * x.shape[1]) * sizeof(float));
    e->out = is_silent(&x);
    r->silent += e->out;
    if (!status && !e->out) {
        status = cli_features_of(&r->options, &x, rate, &features);
        if (!status) {
            status = keep(r, e, &features);
            cli_array_destroy(&features);
        }
    }
    cli_array_destroy(&x);
    return status;
}

typedef struct sample_hash {
    uint64_t samples;
    int label;
    entry *of;
} sample_hash;

static int by_samples(const void *pa, const void *pb) {
    const sample_hash *a = pa, *b = pb;
    return a->samples != b->samples ? (a->samples > b->samples) - (a->samples < b->samples) : a->label - b->label;
}

// A tone that stands under several classes belongs to none.
static int leave_out_repeated(cli_recordings *r, listing *l) {
    sample_hash *sorted = calloc((size_t)l->count + 1, sizeof *sorted);
    int64_t count = 0;
    if (!sorted) return cli_fail_memory("the recordings' order");
    for (int64_t i = 0; i < l->count; i++) {
        entry *e = &l->entries[i];
        if (!e->out) sorted[count++] = (sample_hash){e->samples, e->label, e};
    }
    qsort(sorted, (size_t)count, sizeof *sorted, by_samples);
    for (int64_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && sorted[end].samples == sorted[i].samples;) end++;
        const bool several = sorted[end - 1].label != sorted[i].label;
        for (int64_t k = i; several && k < end; k++, r->repeated++) sorted[k].of->out = true;
    }
    free(sorted);
    return CLI_DONE;
}

static bool is_held(const entry *e) { return cli_hash(HASH, e->name, e->name_bytes) / 7 % HELD == 0; }

static int split(cli_recordings *r, const listing *l) {
    for (int p = 0; p < 2; p++) {
        cli_part *part = &r->part[p];
        part->first = malloc((size_t)(l->count + 1) * sizeof *part->first);
        part->length = malloc((size_t)(l->count + 1) * sizeof *part->length);
        part->label = malloc((size_t)(l->count + 1));
        if (!part->first || !part->length || !part->label) return cli_fail_memory("the recordings' order");
    }
    r->hash = HASH;
    for (int64_t i = 0; i < l->count; i++) {
        const entry *e = &l->entries[i];
        if (e->out) continue;
        const bool held = is_held(e);
        cli_part *part = &r->part[held];
        part->first[part->count] = e->first;
        part->length[part->count] = e->length;
        part->label[part->count++] = (uint8_t)e->label;
        if (e->length > r->longest) r->longest = e->length;
        const uint64_t what[] = {e->samples, (uint64_t)e->label, held};
        r->hash = cli_hash(r->hash, what, sizeof what);
    }
    const int64_t numbers[] = {r->options.frame, r->options.hop, r->options.coefficients, r->longest};
    r->hash = cli_hash(r->hash, numbers, sizeof numbers);
    return CLI_DONE;
}

// Of a mean of numbers that are all one: millions of sums in double leave less.
static bool is_rounding(double mean, double deviation) { return deviation <= 1e-9 * fabs(mean); }

double cli_deviation(double mean, double variance) {
    const double deviation = sqrt(variance);
    return is_rounding(mean, deviation) ? 1 : deviation;
}

// Mean and deviation of each number over the frames of the training part.
static int measure(cli_recordings *r) {
    const cli_part *part = &r->part[0];
    double frames = 0;
    r->mean = calloc((size_t)r->width, sizeof *r->mean);
    r->deviation = calloc((size_t)r->width, sizeof *r->deviation);
    if (!r->mean || !r->deviation) return cli_fail_memory("the features' scale");
    for (int64_t i = 0; i < part->count; i++) frames += (double)part->length[i];
    for (int64_t i = 0; i < part->count; i++)
        for (int64_t k = 0; k < part->length[i] * r->width; k++)
            r->mean[k % r->width] += r->rows[part->first[i] * r->width + k] / frames;
    for (int64_t i = 0; i < part->count; i++)
        for (int64_t k = 0; k < part->length[i] * r->width; k++) {
            const double d = r->rows[part->first[i] * r->width + k] - r->mean[k % r->width];
            r->deviation[k % r->width] += d * d / frames;
        }
    for (int64_t j = 0; j < r->width; j++) r->deviation[j] = cli_deviation(r->mean[j], r->deviation[j]);
    return CLI_DONE;
}

static int read_listed(cli_recordings *r, listing *l, const char *folder) {
    int status = CLI_DONE;
    if (l->entries) qsort(l->entries, (size_t)l->count, sizeof *l->entries, by_name);
    for (int64_t i = 0; !status && i < l->count; i++)
        status = cli_signal() ? cli_fail_stopped() : read_one(r, &l->entries[i]);
    if (!status) status = leave_out_repeated(r, l);
    if (!status) status = split(r, l);
    if (!status && (!r->part[0].count || !r->part[1].count))
        status = cli_fail(CLI_INPUT,
                          "'%s' is too little: %lld recordings to train on and %lld to test (one name in %d), wanted "
                          "some of each",
                          folder, (long long)r->part[0].count, (long long)r->part[1].count, HELD);
    if (!status) status = measure(r);
    return status;
}

int cli_recordings_read(const char *data, const cli_features *options, cli_recordings *r) {
    const bool speakers = !strcmp(data, CLI_SPEAKERS);
    const char *folder = speakers ? CLI_SPEAKERS_FOLDER : data;
    listing l = {0};
    *r = (cli_recordings){.options = *options};
    if (speakers && !is_folder(folder)) return check_classes(r, folder, true);
    int status = list_classes(r, folder, speakers);
    if (!status) status = check_classes(r, folder, speakers);
    for (int c = 0; !status && c < r->classes; c++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, r->names[c]);
        status = list_class(&l, path, c);
    }
    if (!status) status = read_listed(r, &l, folder);
    for (int64_t i = 0; i < l.count; i++) free(l.entries[i].path);
    free(l.entries), free(l.folders), free(l.links);
    if (status) cli_recordings_free(r);
    return status;
}

void cli_recordings_scale(cli_recordings *r) {
    for (int64_t i = 0; i < r->total * r->width; i++)
        r->rows[i] = (float)((r->rows[i] - r->mean[i % r->width]) / r->deviation[i % r->width]);
}

void cli_recordings_free(cli_recordings *r) {
    for (int p = 0; p < 2; p++) free(r->part[p].first), free(r->part[p].length), free(r->part[p].label);
    for (int c = 0; r->names && c < r->classes; c++) free(r->names[c]);
    free(r->names), free(r->rows), free(r->mean), free(r->deviation);
    *r = (cli_recordings){0};
}

// ---- as sequences ----

void cli_recordings_sequence(void *user, int64_t index, float *x, int64_t *length, uint8_t *label) {
    const cli_reader *reader = user;
    const cli_recordings *r = reader->recordings;
    const cli_part *part = &r->part[reader->part];
    *length = part->length[index];
    *label = part->label[index];
    memcpy(x, r->rows + part->first[index] * r->width, (size_t)(*length * r->width) * sizeof *x);
}

dpcr_sequence_data cli_recordings_data(cli_reader *reader) {
    const cli_recordings *r = reader->recordings;
    return (dpcr_sequence_data){.size = sizeof(dpcr_sequence_data),
                                .count = r->part[reader->part].count,
                                .longest = r->longest,
                                .features = r->width,
                                .hash = r->hash,
                                .read = cli_recordings_sequence,
                                .user = reader};
}

// ---- what a model keeps ----

static char *join_numbers(const double *values, int64_t count) {
    char *text = malloc((size_t)count * 32 + 1);
    size_t at = 0;
    for (int64_t i = 0; text && i < count; i++)
        at += (size_t)snprintf(text + at, 32, i ? ",%.17g" : "%.17g", values[i]);
    return text;
}

static bool split_numbers(const char *text, double *values, int64_t count) {
    char *end = NULL;
    for (int64_t i = 0; i < count; i++, text = end + 1) {
        values[i] = text ? strtod(text, &end) : 0;
        if (!text || end == text || *end != (i + 1 < count ? ',' : 0) || !isfinite(values[i])) return false;
    }
    return true;
}

static char *join_names(const cli_recordings *r) {
    cli_buffer text;
    FILE *file = cli_buffer_open(&text);
    if (!file) return NULL;
    for (int c = 0; c < r->classes; c++) fprintf(file, c ? "\n%s" : "%s", r->names[c]);
    return cli_buffer_close(&text) ? text.text : NULL;
}

int cli_recordings_note(const cli_recordings *r, dpcr_sequence *model) {
    const cli_features *o = &r->options;
    dpcr_error error = {0};
    char features[160];
    snprintf(features, sizeof features, "%d,%d,%lld,%lld,%lld,%.17g", r->rate, r->channels, (long long)o->frame,
             (long long)o->hop, (long long)o->coefficients, o->seconds);
    char *const values[] = {features, join_numbers(r->mean, r->width), join_numbers(r->deviation, r->width),
                            join_names(r)};
    static const char *const keys[] = {"audio.features", "audio.mean", "audio.deviation", "audio.classes"};
    int status = CLI_DONE;
    for (int i = 0; i < 4; i++) {
        if (!status && !values[i])
            status = cli_fail_memory("the model's metadata");
        else if (!status && dpcr_sequence_set_metadata(model, keys[i], values[i], &error) != DPCR_OK)
            status = cli_fail_error(&error, CLI_COMPUTING);
        if (i) free(values[i]);
    }
    return status;
}

// Sampling rate, channels, frame, hop, coefficients, seconds, as the options allow them.
static bool noted_numbers(const dpcr_sequence *model, double numbers[6]) {
    static const double least[6] = {1, 1, 16, 1, 2, 0};
    static const double most[6] = {1 << 24, 1 << 10, CLI_MOST_FRAME, CLI_MOST_FRAME, CLI_MEL_FILTERS, CLI_MOST_SECONDS};
    if (!split_numbers(dpcr_sequence_metadata(model, "audio.features"), numbers, 6)) return false;
    for (int i = 0; i < 6; i++)
        if (!(numbers[i] >= least[i] && numbers[i] <= most[i]) || (i < 5 && numbers[i] != floor(numbers[i])))
            return false;
    return fmod(numbers[2], 2) == 0 &&
           numbers[1] * (numbers[4] - 1) == (double)dpcr_sequence_get_options(model)->network.inputs;
}

bool cli_recordings_are(const dpcr_sequence *model) { return dpcr_sequence_metadata(model, "audio.features") != NULL; }

int cli_recordings_noted(const dpcr_sequence *model, const char *path, cli_features *options) {
    double n[6];
    if (!noted_numbers(model, n))
        return cli_fail(CLI_INPUT,
                        "'%s': 'audio.features' is %.60s; wanted rate, channels, frame (16 to %d, even), hop, "
                        "coefficients (2 to %d) and seconds that make the network's %lld inputs",
                        path, dpcr_sequence_metadata(model, "audio.features"), CLI_MOST_FRAME, CLI_MEL_FILTERS,
                        (long long)dpcr_sequence_get_options(model)->network.inputs);
    *options =
        (cli_features){.frame = (int64_t)n[2], .hop = (int64_t)n[3], .coefficients = (int64_t)n[4], .seconds = n[5]};
    return CLI_DONE;
}

int cli_recordings_scale_as(cli_recordings *r, const dpcr_sequence *model, const char *path) {
    const char *const names = dpcr_sequence_metadata(model, "audio.classes");
    double n[6];
    char *own = join_names(r);
    const bool same = own && names && !strcmp(own, names);
    free(own);
    if (!noted_numbers(model, n) || !names) return cli_fail(CLI_INPUT, "'%s' says not what it was trained on", path);
    if ((int)n[0] != r->rate || (int)n[1] != r->channels)
        return cli_fail(CLI_INPUT, "the recordings have %d channel%s at %d Hz; '%s' was trained on %d at %d",
                        r->channels, cli_s(r->channels), r->rate, path, (int)n[1], (int)n[0]);
    if (!same) return cli_fail(CLI_INPUT, "the folder's classes are not those that '%s' was trained on", path);
    if (r->width != dpcr_sequence_get_options(model)->network.inputs ||
        !split_numbers(dpcr_sequence_metadata(model, "audio.mean"), r->mean, r->width) ||
        !split_numbers(dpcr_sequence_metadata(model, "audio.deviation"), r->deviation, r->width))
        return cli_fail(CLI_INPUT, "'%s' has no scale of its %lld features", path, (long long)r->width);
    for (int64_t j = 0; j < r->width; j++) {
        if (!(r->deviation[j] > 0)) return cli_fail(CLI_INPUT, "'%s' has a scale that is not positive", path);
        if (is_rounding(r->mean[j], r->deviation[j])) r->deviation[j] = 1;  // of a model from before that was looked at
    }
    cli_recordings_scale(r);
    return CLI_DONE;
}
