// SPDX-License-Identifier: MIT
// A stand-in for the CUDA module, on host memory: what stands above it is tested without a device. It is stricter than
// one: its memory can be read and written only while something of its streams runs, and nothing put into a stream
// happens before that stream is waited for. So code that looks at device memory from the host, or waits where it must
// not, does not pass.
//
//   DEEPPCR_FAKE_DEVICES=N   devices (default 1; 0: as without a driver)
//   DEEPPCR_FAKE_MEMORY=N    bytes of each (default 256 MiB)
//   DEEPPCR_FAKE_COPY=N      copy N from when this was set last is refused
//   DEEPPCR_FAKE_LAUNCH=1    a launch fails when it is put into its stream
//   DEEPPCR_FAKE_WAIT=1      a launch that is put into its stream fails later, so that the wait tells it
//   DEEPPCR_FAKE_LOCKED=N    the outcome of sequence 0 of a nonlinear chain: N steps locked, not finite where N is 0
//   DEEPPCR_FAKE_CLOCK=1     events tell no time but that of copies, a microsecond a byte, and of barriers, three each,
//                            which are refused else: what is measured should follow from no clock
//   DEEPPCR_FAKE_OLD=1       compute capability 7.0: refused
//
// FAKE_ABI, FAKE_VERSION, FAKE_SIZE and FAKE_KERNELS_SIZE build modules that the library has to refuse.
#include "fake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef FAKE_ABI
#define FAKE_ABI DPCRI_DEVICE_ABI
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION DPCR_VERSION_STRING
#endif

#ifndef FAKE_SIZE
#define FAKE_SIZE sizeof(dpcri_device_table)
#endif
#ifndef FAKE_KERNELS_SIZE
#define FAKE_KERNELS_SIZE sizeof(dpcri_device_kernels)
#endif

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- memory that only streams reach ----

enum { PAGE = 4096, ALIGNMENT = 256, UNWRITTEN = 0xff };

// It ends, but for its alignment, where a page begins that nobody may touch.
typedef struct piece {
    struct piece *next;
    unsigned char *pages, *memory;
    size_t bytes, paged;  // asked for; of the pages, without the last
} piece;

enum {
    COPY,
    FILL,
    LINEAR,
    CELL,
    RECURRENT,
    UPDATE,
    CLIP,
    TIE,
    AFFINE,
    LOSS,
    SHUFFLE,
    GATHER,
    SEQUENCES,
    EMBEDDING,
    READOUT,
    DROP,
    DENSE,
    DENOISE,
    MOVE,
    SWEEP,
    BARRIERS,
    RECORD
};

typedef struct operation {
    struct operation *next;
    int kind, id, byte;
    bool fails;
    void *stream, *to, *workspace;
    const void *from;
    size_t bytes;
    union {
        dpcri_device_linear chain;
        dpcri_device_cell cell;
        dpcri_device_recurrent layer;
        dpcri_device_update update;
        dpcri_device_clip clip;
        dpcri_device_tie tie;
        dpcri_device_affine affine;
        dpcri_device_loss loss;
        dpcri_device_shuffle shuffle;
        dpcri_device_gather gather;
        dpcri_device_sequences sequences;
        dpcri_device_embedding embedding;
        dpcri_device_readout readout;
        dpcri_device_drop drop;
        dpcri_device_dense dense;
        dpcri_device_denoise denoise;
        dpcri_device_move move;
        dpcri_device_sweep sweep;
    };
} operation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static piece *pieces;
static operation *first, **last = &first;
static size_t used;
static double copied;  // seconds of all copies, by DEEPPCR_FAKE_CLOCK

static void protect(int how) {
    for (piece *p = pieces; p; p = p->next) mprotect(p->pages, p->paged, how);
}

// What lies around a piece was nobody's to write.
static void hold_fences(const piece *p) {
    mprotect(p->pages, p->paged, PROT_READ);
    for (const unsigned char *at = p->pages; at < p->pages + p->paged; at++) {
        if (at == p->memory) at += p->bytes;
        if (at < p->pages + p->paged && *at != UNWRITTEN) {
            fprintf(stderr, "stand-in: something was written beside %zu bytes of the device's memory\n", p->bytes);
            abort();
        }
    }
}

static dpcr_status run(const operation *o, dpcr_error *error) {
    switch (o->kind) {
        case COPY:
            memmove(o->to, o->from, o->bytes);
            copied += 1e-6 * (double)o->bytes;
            return DPCR_OK;
        case FILL: memset(o->to, o->byte, o->bytes); return DPCR_OK;
        case BARRIERS: copied += 3e-6 * (double)o->bytes; return DPCR_OK;
        case RECORD: *(double *)o->to = setting("DEEPPCR_FAKE_CLOCK", 0) ? copied : seconds_now(); return DPCR_OK;
        default: break;
    }
    if (o->fails)
        return dpcri_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: an illegal memory access was encountered", o->id);
    if (o->kind == CELL) return fake_kernels.cell(o->id, &o->cell, o->workspace, o->bytes, o->stream, error);
    if (o->kind == RECURRENT) return fake_kernels.recurrent(o->id, &o->layer, o->workspace, o->bytes, o->stream, error);
    if (o->kind == LINEAR) return fake_kernels.linear(o->id, &o->chain, o->workspace, o->bytes, o->stream, error);
#define RUN(what, field) \
    if (o->kind == (what)) return fake_kernels.field(o->id, &o->field, o->stream, error)
    RUN(UPDATE, update);
    RUN(CLIP, clip);
    RUN(TIE, tie);
    RUN(AFFINE, affine);
    RUN(LOSS, loss);
    RUN(SHUFFLE, shuffle);
    RUN(GATHER, gather);
    RUN(SEQUENCES, sequences);
    RUN(EMBEDDING, embedding);
    RUN(READOUT, readout);
    RUN(DROP, drop);
    RUN(DENSE, dense);
    RUN(DENOISE, denoise);
    RUN(MOVE, move);
    RUN(SWEEP, sweep);
#undef RUN
    return dpcri_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: an unknown operation", o->id);
}

// What lies in the stream (every: in all of them), in order; what comes after a failure is dropped, as a device does.
static dpcr_status drain(const void *stream, bool every, dpcr_error *error) {
    dpcr_status status = DPCR_OK;
    operation **at = &first;
    protect(PROT_READ | PROT_WRITE);
    while (*at) {
        operation *o = *at;
        if (!every && o->stream != stream) {
            at = &o->next;
            continue;
        }
        if (status == DPCR_OK) status = run(o, error);
        *at = o->next;
        free(o);
    }
    last = at;
    protect(PROT_NONE);
    return status;
}

static dpcr_status put(operation o, dpcr_error *error) {
    operation *made = malloc(sizeof *made);
    if (!made) return dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: no memory for what is in a stream", o.id);
    *made = o;
    made->next = NULL;
    pthread_mutex_lock(&lock);
    *last = made;
    last = &made->next;
    pthread_mutex_unlock(&lock);
    return DPCR_OK;
}

// ---- the table ----

static dpcr_status fake_count(int *count, dpcr_error *error) {
    *count = (int)setting("DEEPPCR_FAKE_DEVICES", 1);
    if (*count > 0) return DPCR_OK;
    return dpcri_tell(error, DPCR_ERROR_DEVICE, "no NVIDIA driver on this machine (as the stand-in was told)");
}

static size_t memory_bytes(void) { return (size_t)setting("DEEPPCR_FAKE_MEMORY", 256L << 20); }

static dpcr_status fake_describe(int id, dpcr_device_info *info, dpcr_error *error) {
    if (setting("DEEPPCR_FAKE_OLD", 0))
        return dpcri_tell(error, DPCR_ERROR_DEVICE,
                          "cuda:%d (stand-in) has compute capability 7.0, wanted 7.5 or newer", id);
    *info = (dpcr_device_info){.size = sizeof *info, .name = "stand-in on the host", .major = 9, .processors = 1};
    info->memory_bytes = memory_bytes();
    pthread_mutex_lock(&lock);
    info->free_bytes = info->memory_bytes - used;
    pthread_mutex_unlock(&lock);
    info->bandwidth = 1e12;
    info->driver = info->runtime = 13000;
    return DPCR_OK;
}

static dpcr_status fake_allocate(int id, size_t bytes, void **memory, dpcr_error *error) {
    *memory = NULL;
    dpcr_status status = DPCR_OK;
    const size_t kept = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, rounded = (kept + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    const size_t left = memory_bytes() - used;
    piece *p = bytes > 0 && rounded >= bytes && rounded <= left ? malloc(sizeof *p) : NULL;
    void *mapped = p ? mmap(NULL, rounded + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        free(p);
        status = dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: %zu bytes were refused, %zu of %zu are free", id, bytes,
                            left, memory_bytes());
    } else {
        *p = (piece){.next = pieces,
                     .pages = mapped,
                     .memory = (unsigned char *)mapped + (rounded - kept),
                     .bytes = bytes,
                     .paged = rounded};
        pieces = p;
        used += rounded;
        *memory = p->memory;
        protect(PROT_READ | PROT_WRITE);
        memset(mapped, UNWRITTEN, rounded);  // NaN: nobody may rely on zeros
        protect(PROT_NONE);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static void fake_release(int id, void *memory) {
    (void)id;
    pthread_mutex_lock(&lock);
    drain(NULL, true, NULL);
    for (piece **at = &pieces; *at; at = &(*at)->next) {
        if ((*at)->memory != memory) continue;
        piece *p = *at;
        *at = p->next;
        used -= p->paged;
        hold_fences(p);
        munmap(p->pages, p->paged + PAGE);
        free(p);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static dpcr_status fake_copy(int id, void *to, const void *from, size_t bytes, dpcri_direction direction, void *stream,
                             dpcr_error *error) {
    static long copies, refused;
    const long told = setting("DEEPPCR_FAKE_COPY", 0);
    (void)direction;
    copies = told == refused ? copies + 1 : 1;
    refused = told;
    if (copies == refused) return dpcri_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: copy %ld was refused", id, copies);
    return put((operation){.kind = COPY, .id = id, .stream = stream, .to = to, .from = from, .bytes = bytes}, error);
}

static dpcr_status fake_fill(int id, void *memory, int byte, size_t bytes, void *stream, dpcr_error *error) {
    return put((operation){.kind = FILL, .id = id, .stream = stream, .to = memory, .byte = byte, .bytes = bytes},
               error);
}

static dpcr_status fake_stream_create(int id, void **stream, dpcr_error *error) {
    *stream = malloc(1);
    return *stream ? DPCR_OK : dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: no stream", id);
}

static void fake_stream_destroy(int id, void *stream) {
    (void)id;
    pthread_mutex_lock(&lock);
    drain(stream, false, NULL);
    pthread_mutex_unlock(&lock);
    free(stream);
}

static dpcr_status fake_stream_wait(int id, void *stream, dpcr_error *error) {
    (void)id;
    pthread_mutex_lock(&lock);
    const dpcr_status status = drain(stream, false, error);
    pthread_mutex_unlock(&lock);
    return status;
}

static dpcr_status fake_event_create(int id, void **event, dpcr_error *error) {
    *event = calloc(1, sizeof(double));
    return *event ? DPCR_OK : dpcri_tell(error, DPCR_ERROR_MEMORY, "cuda:%d: no event", id);
}

static void fake_event_destroy(int id, void *event) {
    (void)id;
    free(event);
}

static dpcr_status fake_event_record(int id, void *event, void *stream, dpcr_error *error) {
    return put((operation){.kind = RECORD, .id = id, .stream = stream, .to = event}, error);
}

static dpcr_status fake_event_seconds(int id, void *from, void *to, double *seconds, dpcr_error *error) {
    (void)id;
    (void)error;
    *seconds = *(double *)to - *(double *)from;
    return DPCR_OK;
}

static dpcr_status fake_last_error(int id, dpcr_error *error) {
    (void)id;
    (void)error;
    return DPCR_OK;
}

static dpcr_status linear_workspace(int id, const dpcri_device_linear *chain, size_t *bytes, dpcr_error *error) {
    return fake_kernels.linear_workspace(id, chain, bytes, error);
}

static dpcr_status put_launch(operation o, dpcr_error *error) {
    if (setting("DEEPPCR_FAKE_LAUNCH", 0))
        return dpcri_tell(error, DPCR_ERROR_DEVICE, "cuda:%d: too many resources requested for launch", o.id);
    o.fails = setting("DEEPPCR_FAKE_WAIT", 0) != 0;
    return put(o, error);
}

#define LAUNCHED(what, field, of)                                                                                      \
    put_launch(                                                                                                        \
        (operation){.kind = what, .id = id, .stream = stream, .workspace = workspace, .bytes = bytes, .field = *(of)}, \
        error)

static dpcr_status linear(int id, const dpcri_device_linear *chain, void *workspace, size_t bytes, void *stream,
                          dpcr_error *error) {
    return LAUNCHED(LINEAR, chain, chain);
}

static dpcr_status cell_workspace(int id, const dpcri_device_cell *cell, size_t *bytes, dpcr_error *error) {
    return fake_kernels.cell_workspace(id, cell, bytes, error);
}

static dpcr_status cell(int id, const dpcri_device_cell *given, void *workspace, size_t bytes, void *stream,
                        dpcr_error *error) {
    return LAUNCHED(CELL, cell, given);
}

static dpcr_status cell_share(int id, const dpcri_device_cell *cell, int64_t *blocks, int *whole, dpcr_error *error) {
    return fake_kernels.cell_share(id, cell, blocks, whole, error);
}

static dpcr_status barriers(int id, int64_t count, void *stream, dpcr_error *error) {
    if (!setting("DEEPPCR_FAKE_CLOCK", 0))
        return dpcri_tell(error, DPCR_ERROR_UNSUPPORTED, "cuda:%d: no barriers without their clock", id);
    return put_launch((operation){.kind = BARRIERS, .id = id, .stream = stream, .bytes = (size_t)count}, error);
}

static dpcr_status recurrent_workspace(int id, const dpcri_device_recurrent *layer, size_t *bytes, dpcr_error *error) {
    return fake_kernels.recurrent_workspace(id, layer, bytes, error);
}

static dpcr_status recurrent_share(int id, const dpcri_device_recurrent *layer, int64_t *blocks, dpcr_error *error) {
    return fake_kernels.recurrent_share(id, layer, blocks, error);
}

static dpcr_status recurrent(int id, const dpcri_device_recurrent *layer, void *workspace, size_t bytes, void *stream,
                             dpcr_error *error) {
    return LAUNCHED(RECURRENT, layer, layer);
}

#define DEFINE_CALL(what, field, form)                                                                    \
    static dpcr_status field(int id, const form *given, void *stream, dpcr_error *error) {                \
        return put_launch((operation){.kind = what, .id = id, .stream = stream, .field = *given}, error); \
    }
DEFINE_CALL(UPDATE, update, dpcri_device_update)
DEFINE_CALL(CLIP, clip, dpcri_device_clip)
DEFINE_CALL(TIE, tie, dpcri_device_tie)
DEFINE_CALL(AFFINE, affine, dpcri_device_affine)
DEFINE_CALL(LOSS, loss, dpcri_device_loss)
DEFINE_CALL(SHUFFLE, shuffle, dpcri_device_shuffle)
DEFINE_CALL(GATHER, gather, dpcri_device_gather)
DEFINE_CALL(SEQUENCES, sequences, dpcri_device_sequences)
DEFINE_CALL(EMBEDDING, embedding, dpcri_device_embedding)
DEFINE_CALL(READOUT, readout, dpcri_device_readout)
DEFINE_CALL(DROP, drop, dpcri_device_drop)
DEFINE_CALL(DENSE, dense, dpcri_device_dense)
DEFINE_CALL(DENOISE, denoise, dpcri_device_denoise)
DEFINE_CALL(MOVE, move, dpcri_device_move)
DEFINE_CALL(SWEEP, sweep, dpcri_device_sweep)
#undef DEFINE_CALL

static const dpcri_device_kernels deferred = {.size = FAKE_KERNELS_SIZE,
                                              .linear_workspace = linear_workspace,
                                              .linear = linear,
                                              .cell_workspace = cell_workspace,
                                              .cell = cell,
                                              .cell_share = cell_share,
                                              .recurrent_workspace = recurrent_workspace,
                                              .recurrent = recurrent,
                                              .recurrent_share = recurrent_share,
                                              .update = update,
                                              .clip = clip,
                                              .tie = tie,
                                              .affine = affine,
                                              .loss = loss,
                                              .shuffle = shuffle,
                                              .gather = gather,
                                              .sequences = sequences,
                                              .embedding = embedding,
                                              .readout = readout,
                                              .drop = drop,
                                              .dense = dense,
                                              .denoise = denoise,
                                              .move = move,
                                              .sweep = sweep,
                                              .barriers = barriers};

static const dpcri_device_table table = {.abi = FAKE_ABI,
                                         .version = FAKE_VERSION,
                                         .name = "cuda",
                                         .size = FAKE_SIZE,
                                         .count = fake_count,
                                         .describe = fake_describe,
                                         .allocate = fake_allocate,
                                         .release = fake_release,
                                         .copy = fake_copy,
                                         .fill = fake_fill,
                                         .stream_create = fake_stream_create,
                                         .stream_destroy = fake_stream_destroy,
                                         .stream_wait = fake_stream_wait,
                                         .event_create = fake_event_create,
                                         .event_destroy = fake_event_destroy,
                                         .event_record = fake_event_record,
                                         .event_seconds = fake_event_seconds,
                                         .last_error = fake_last_error,
                                         .kernels = &deferred};

__attribute__((visibility("default"))) const dpcri_device_table *dpcr_device_module(void);
const dpcri_device_table *dpcr_device_module(void) { return &table; }
