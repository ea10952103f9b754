// SPDX-License-Identifier: MIT
// Chunks in windows: memory is read once and written once.
//
// Windows go in groups. A group is summarised into its buffers, waits for the state that enters it, carries that
// through its chunks (a few operations each), hands the state after it on, and only then runs its chunks again, from
// the buffers. So on several threads nothing but the carry is in order, and it is far ahead of the rest:
//
//   thread 1   summarise 0 | carry 0 | finish 0 | summarise 2 | carry 2 | finish 2 | ...
//   thread 2   summarise 1 |         carry 1 | finish 1 | summarise 3 | carry 3 | ...
//
// Groups are taken in order, by who is free (by the threads in turn, so that a call finds its part of the arrays where
// the call before left it, was not faster). A group waits for the one before it, which somebody has taken and which
// waits for nothing that is not taken, so any number of threads comes to the end, one too. Work, depth and bits are
// those of chunked.c, whatever the groups.
//
// A state that is not finite after a carry: a product left the finite numbers, which the loop may not do. Nothing of
// the chunk that it comes out of is written yet, nor of those after it, so the loop goes on from that chunk's start.
//
// A chunk that ends elsewhere than the carry has it (joins.h): all groups end, then the loop goes on from the first
// such end. The kernels leave their lanes' ends side by side, so nobody reads them out of z.
//
// Where differences at the joints may grow (joins.h), every window keeps its maps, starts and ends until all groups are
// done; then they are carried on in order, and where some start does not hold all windows run once more from their
// starts with what the differences grew to.
//
// Far beyond the caches a window is asked for by loads while the one before it finishes, and states go past the caches,
// which would read what is about to be written.
//
// Where kern/squares.h serves, a window is DPCRI_SIDE chunks, read twice from where they lie: the second time the
// caches have them. Those serve any strides, lengths and chunks.
#include <stdatomic.h>
#include <string.h>

#include "chain/joins.h"
#include "chain/windows.h"
#include "kern/chunked.h"
#include "kern/squares.h"

enum {
    MOST_SLOTS = 16,          // groups in work at a time
    GROUP_BYTES = 24 * 1024,  // buffers of a group on several threads: they stay near the first-level cache
    MOST_WINDOWS = 8,         // windows of a group
    MOST_WIDTH = 8,           // of the kernels that there are
    WAIT_PAUSES = 4000        // about 40 us: a window before another takes as long
};

static const double far_bytes = 24e6;   // arrays that no cache holds
static const double late_bytes = 16e6;  // arrays whose matrices come late: 2^16 steps of w = 8 28 to 17 ns a step
static const double region_ns = 1500;   // what a parallel region has to save

// Bytes of the pieces of a slot. Each is a multiple of a vector.
typedef struct sizes {
    int64_t buffer, maps, starts;  // of a window
    int64_t windows;               // of a group
    int64_t slots;
    int64_t kept;  // windows that have maps and starts of their own: all, or those of the slots
} sizes;

typedef struct job {
    const dpcri_flow *flow;
    const dpcri_chunked_kernels *kernels;  // NULL where there is
    dpcri_summary_kernel *summary;
    int64_t lanes;  // chunks of a window
    dpcri_chunks chunks;
    int64_t chunk, full, start_step;  // steps a chunk; chunks that lanes take, from that step on
    bool head;                        // the first of them starts the chain
    int64_t row, windows, groups;
    sizes s;
    char *slots, *start;      // start: copy of the first chunk's A, and its first state
    char *maps, *starts;      // of every window that is kept
    bool carries;             // every window keeps its own
    double *rounding;         // of a sequence (joins.h)
    char *errors, *error;     // where they do: e that enters and leaves the lanes of a window, and the next one
    bool again;               // the windows run once more, from the starts that they have
    char *stage_a, *stage_b;  // the window that does not fill its lanes
    void *state;              // that enters the next group, [w]
    int64_t finished;         // the first step that the loop had to finish; n: none
    int64_t group_windows, tasks;
    bool far;
    // Threads write these all the time: apart from what they read.
    _Alignas(64) _Atomic int64_t next;  // group to take
    _Alignas(64) _Atomic int64_t done;  // groups that the state has passed
    _Atomic bool broken;  // a product left the finite numbers: from step broken_at on the loop goes on, from `state`
    int64_t broken_at, broken_window, broken_lane;
    _Atomic int64_t apart_at;  // the first step whose chunk does not start where the one before it ends; n: none
    _Atomic bool grows;        // some summary does not shrink what it is given
    char apart[64];
} job;

typedef struct group {
    char *place;   // its buffers
    int64_t slot;  // of them
    int64_t number, count;
    dpcri_window windows[MOST_WINDOWS];
    int64_t lanes[MOST_WINDOWS];  // in use
    bool joined[MOST_WINDOWS];    // as far as its kernel tells
    bool halves[MOST_WINDOWS];    // and whether its maps all halve what they are given
} group;

static dpcr_dtype dtype_of(const dpcri_flow *f) {
    if (f->kernels == dpcri_kernels_ref(DPCR_U32)) return DPCR_U32;
    return f->size == 8 ? DPCR_F64 : DPCR_F32;
}

static dpcri_summary_kernel *summary_of(const dpcri_flow *f) {
    return dpcri_summary_at(dpcri_isa_level(), dtype_of(f), f->form, f->w, f->transposed);
}

// The kernels for chunks of that many steps, or NULL.
static const dpcri_chunked_kernels *kernels_of(const dpcri_flow *f, int64_t chunk) {
    const dpcri_chunked_kernels *k =
        dpcri_chunked_at(dpcri_isa_level(), dtype_of(f), f->form, f->w, f->block, f->transposed);
    return k && k->steps == chunk ? k : NULL;
}

bool dpcri_windows_serve(const dpcri_flow *f, int64_t chunk) {
    const int64_t way = f->transposed ? -1 : 1;
    if (summary_of(f)) return f->a_step != 0;
    return f->n >= 2 * chunk && f->a_step == way * f->values && f->b_step == way * f->w && f->z_step == way * f->w &&
           kernels_of(f, chunk);
}

// Of one sequence.
static double bytes_of(const dpcri_flow *f) { return (double)f->n * (double)(f->values + 2 * f->w) * (double)f->size; }

int64_t dpcri_windows_ahead(const dpcri_flow *f) { return bytes_of(f) * (double)f->rows > late_bytes ? 4 : 1; }

static sizes sizes_of(const job *j) {
    const dpcri_flow *f = j->flow;
    const int64_t vector = j->lanes * (int64_t)f->size, read = j->chunk * (f->values + f->w) * vector;
    sizes s = {.buffer = j->summary ? 0 : read, .maps = (f->values + f->w) * vector, .starts = f->w * vector};
    s.starts += j->summary ? (f->w * (int64_t)f->size + 63) / 64 * 64 : s.starts;
    s.windows = GROUP_BYTES / read;
    s.windows = s.windows < 1 ? 1 : s.windows > MOST_WINDOWS ? MOST_WINDOWS : s.windows;
    const int64_t windows = dpcri_chunks_most(f->n, j->chunk) / j->lanes + 1, groups = windows / s.windows + 1;
    s.slots = groups < MOST_SLOTS ? groups : MOST_SLOTS;
    s.kept = s.slots * s.windows;
    if (dpcri_mixes(f) && windows > s.kept) s.kept = windows;
    return s;
}

static int64_t slot_bytes(const sizes *s) { return s->windows * s->buffer; }

// The pieces of a job but for the slots: copies of a chunk and of two states.
static int64_t start_bytes(const dpcri_flow *f, int64_t chunk) { return (chunk * f->values + f->w) * (int64_t)f->size; }

static void take(job *j, dpcri_arena *arena) {
    const dpcri_flow *f = j->flow;
    j->s = sizes_of(j);
    j->slots = dpcri_arena_take(arena, j->s.slots, (size_t)slot_bytes(&j->s));
    j->maps = dpcri_arena_take(arena, j->s.kept, (size_t)j->s.maps);
    j->starts = dpcri_arena_take(arena, j->s.kept, (size_t)j->s.starts);
    j->errors = dpcri_arena_take(arena, 1, (size_t)j->s.starts);
    j->error = dpcri_arena_take(arena, f->w, f->size);
    j->rounding = dpcri_arena_take(arena, DPCRI_ROUNDING_NUMBERS * f->w, sizeof *j->rounding);
    j->state = dpcri_arena_take(arena, f->w, f->size);
    j->start = j->stage_a = j->stage_b = NULL;
    if (j->summary) return;
    j->start = dpcri_arena_take(arena, start_bytes(f, j->chunk), 1);
    j->stage_a = dpcri_arena_take(arena, j->lanes * j->chunk * f->values, f->size);
    j->stage_b = dpcri_arena_take(arena, j->lanes * j->chunk * f->w, f->size);
}

static void start_job(job *j, const dpcri_flow *f, int64_t chunk) {
    j->flow = f, j->chunk = chunk, j->summary = summary_of(f);
    j->kernels = j->summary ? NULL : kernels_of(f, chunk);
    j->lanes = j->kernels ? j->kernels->lanes : DPCRI_SIDE;
    j->carries = dpcri_carries(f);
}

void dpcri_windows_carve(const dpcri_flow *f, int64_t chunk, dpcri_arena *arena) {
    job j;
    start_job(&j, f, chunk);
    if (j.kernels || j.summary) take(&j, arena);
}

// Place of the lowest address of chunk number i of those that lanes take; the next one lies chunk * step further.
static char *lowest(const job *j, const void *base, int64_t step, int64_t row, int64_t i) {
    const int64_t m = j->start_step + i * j->chunk, at = step < 0 ? m + j->chunk - 1 : m;
    return (char *)(uintptr_t)base + (at * step + j->row * row) * (int64_t)j->flow->size;
}

// All that window i reads, if its lanes are full.
static dpcri_ahead ahead_of(const job *j, int64_t i) {
    const dpcri_flow *f = j->flow;
    const int64_t lanes = j->lanes, c = i * lanes + (f->transposed ? lanes - 1 : 0);
    if ((i + 1) * lanes > j->full) return (dpcri_ahead){0};
    return (dpcri_ahead){lowest(j, f->a, f->a_step, f->a_row, c), lowest(j, f->b, f->b_step, f->b_row, c)};
}

// A window that does not fill its lanes works on copies; its states take the place of b.
static void stage(const job *j, dpcri_window *w, int64_t count) {
    const dpcri_flow *f = j->flow;
    const int64_t idle = j->lanes - count, first = f->transposed ? 0 : count, used = f->transposed ? idle : 0;
    const int64_t lane0 = f->transposed ? j->lanes - 1 : 0, back = f->transposed ? count - 1 : 0;
    const int64_t state = j->chunk * f->w * (int64_t)f->size, values = j->chunk * f->values * (int64_t)f->size;
    memset(j->stage_a + first * values, 0, (size_t)(idle * values));
    memset(j->stage_b + first * state, 0, (size_t)(idle * state));
    // Lane 0 may have its values elsewhere, and none here that may be read.
    const int64_t apart = w->first_a ? 1 : 0, skip = f->transposed ? 0 : apart;
    memcpy(j->stage_a + (used + skip) * values, (const char *)w->a + (skip - back) * values,
           (size_t)((count - apart) * values));
    memcpy(j->stage_b + used * state, (const char *)w->b - back * state, (size_t)(count * state));
    w->a = j->stage_a + lane0 * values;
    w->z = j->stage_b + lane0 * state;
    w->b = w->z;
    w->stream = false;
}

static void unstage(const job *j, const group *g, int64_t i) {
    const dpcri_flow *f = j->flow;
    const int64_t count = g->lanes[i], lanes = j->lanes, state = j->chunk * f->w * (int64_t)f->size;
    if (count == lanes) return;
    const int64_t used = f->transposed ? lanes - count : 0, last = f->transposed ? count - 1 : 0;
    char *const z = lowest(j, f->z, f->z_step, f->z_row, (g->number * j->group_windows + i) * lanes + last);
    memcpy(z, j->stage_b + used * state, (size_t)(count * state));
}

// Maps and starts of a window of a group; `slot`, its slot's number, where they are not kept.
static void set_kept(const job *j, const group *g, int64_t place, dpcri_window *w) {
    const int64_t i = j->carries ? g->number * j->group_windows + place : g->slot * j->s.windows + place;
    w->maps = j->maps + i * j->s.maps;
    w->starts = j->starts + i * j->s.starts;
}

static void set_window(const job *j, group *g, int64_t place) {
    const dpcri_flow *f = j->flow;
    const int64_t i = g->number * j->group_windows + place, lanes = j->lanes, left = j->full - i * lanes;
    dpcri_window *w = &g->windows[place];
    g->lanes[place] = left < lanes ? left : lanes;
    w->a = lowest(j, f->a, f->a_step, f->a_row, i * lanes);
    w->b = lowest(j, f->b, f->b_step, f->b_row, i * lanes);
    w->z = lowest(j, f->z, f->z_step, f->z_row, i * lanes);
    w->head = i == 0 && j->head;
    w->first = w->head && f->z0 ? j->start + f->values * j->chunk * (int64_t)f->size : NULL;
    w->buffer = g->place + place * j->s.buffer;
    set_kept(j, g, place, w);
    w->first_a = w->head && !f->z0 ? j->start : NULL;
    w->ahead = (dpcri_ahead){0};
    if (j->group_windows == 1) w->ahead = ahead_of(j, i + j->tasks);  // likely this thread's next
    w->far = j->far;
    w->stream = j->far && f->z != f->b && (uintptr_t)w->z % 64 == 0;
    if (left < lanes) stage(j, w, left);
    if (!w->first_a) w->first_a = w->a;
}

// False where nobody goes on.
static bool await(const job *j, int64_t number) {
    for (int i = 0; atomic_load_explicit(&j->done, memory_order_acquire) < number; i++) {
        if (i >= WAIT_PAUSES) {
            if (dpcri_watch_stopped(j->flow->watch)) return false;
            dpcri_wait_longer(i - WAIT_PAUSES);
            continue;
        }
        dpcri_pause();
    }
    return true;
}

// ---- windows by rows of matrices ----

static int64_t first_step(const job *j, const group *g, int64_t place) {
    return j->start_step + (g->number * j->group_windows + place) * j->lanes * j->chunk;
}

static void summarise_rows(const job *j, group *g, int64_t place) {
    const dpcri_flow *f = j->flow;
    const int64_t m = first_step(j, g, place), left = (j->start_step + j->full * j->chunk - m) / j->chunk;
    dpcri_window *w = &g->windows[place];
    g->lanes[place] = left < j->lanes ? left : j->lanes;
    set_kept(j, g, place, w);
    j->summary(&(dpcri_summary){.n = j->chunk,
                                .count = g->lanes[place],
                                .a = dpcri_at(f, f->a, m * f->a_step + j->row * f->a_row),
                                .a_step = f->a_step,
                                .a_row = j->chunk * f->a_step,
                                .b = dpcri_at(f, f->b, m * f->b_step + j->row * f->b_row),
                                .b_step = f->b_step,
                                .b_row = j->chunk * f->b_step,
                                .m = w->maps,
                                .v = dpcri_at_out(f, w->maps, j->lanes * f->values),
                                .ahead = dpcri_windows_ahead(f)});
}

static void carry_rows(const job *j, const dpcri_window *w, int64_t count, void *state) {
    const dpcri_flow *f = j->flow;
    dpcri_span span = dpcri_flow_span(f, count, 1);
    memcpy(w->starts, state, (size_t)f->w * f->size);
    span.a = w->maps;
    span.a_step = f->values;
    span.x = state;
    span.r = dpcri_at(f, w->maps, j->lanes * f->values);
    span.y = dpcri_at_out(f, w->starts, f->w);
    span.r_step = span.y_step = f->w;
    dpcri_flow_serial(f, &span);
    memcpy(state, dpcri_at(f, w->starts, count * f->w), (size_t)f->w * f->size);
}

static void finish_rows(const job *j, const group *g, int64_t place) {
    const dpcri_flow *f = j->flow;
    const int64_t m = first_step(j, g, place);
    dpcri_span span = dpcri_flow_span(f, j->chunk, g->lanes[place]);
    span.a = dpcri_at(f, f->a, m * f->a_step + j->row * f->a_row);
    span.a_step = f->a_step;
    span.a_row = j->chunk * f->a_step;
    span.x = g->windows[place].starts;
    span.x_row = f->w;
    span.r = dpcri_at(f, f->b, m * f->b_step + j->row * f->b_row);
    span.r_step = f->b_step;
    span.r_row = j->chunk * f->b_step;
    span.y = dpcri_at_out(f, f->z, m * f->z_step + j->row * f->z_row);
    span.y_step = f->z_step;
    span.y_row = j->chunk * f->z_step;
    dpcri_flow_serial(f, &span);
}

// ---- either kind ----

static void summarise(const job *j, group *g, int64_t place) {
    if (j->summary) {
        summarise_rows(j, g, place);
        g->halves[place] = false;
        return;
    }
    set_window(j, g, place);
    g->halves[place] = j->kernels->summarise(&g->windows[place]);
}

static void carry(const job *j, const group *g, int64_t place) {
    if (j->summary)
        carry_rows(j, &g->windows[place], g->lanes[place], j->state);
    else
        j->kernels->carry(&g->windows[place], g->lanes[place], j->state);
}

static void finish(const job *j, group *g, int64_t place) {
    if (j->summary) {
        finish_rows(j, g, place);
        g->joined[place] = false;
        return;
    }
    g->joined[place] = j->kernels->finish(&g->windows[place]);
    unstage(j, g, place);
}

static const void *start_of(const job *j) {
    const dpcri_flow *f = j->flow;
    return f->z0 ? dpcri_at(f, f->z0, j->row * f->z0_row) : NULL;
}

static int64_t chunk_step(const job *j, const group *g, int64_t place, int64_t lane) {
    return first_step(j, g, place) + lane * j->chunk;
}

// The state that enters a lane.
static void copy_start(const job *j, const group *g, int64_t place, int64_t lane, void *to) {
    const dpcri_flow *f = j->flow;
    const char *const starts = g->windows[place].starts;
    for (int64_t i = 0; i < f->w; i++) {
        const int64_t at = j->summary ? lane * f->w + i : i * j->lanes + lane;
        memcpy((char *)to + (size_t)i * f->size, starts + (size_t)at * f->size, f->size);
    }
}

// The first chunk of a group out of which no finite state comes, and in *lane where it lies in its window; the last one
// where all others' are finite.
static int64_t first_broken(const job *j, const group *g, int64_t *lane) {
    double state[MOST_WIDTH];
    for (int64_t i = 0; i < g->count; i++)
        for (int64_t c = 0; c < g->lanes[i]; c++) {
            const bool last = c + 1 == g->lanes[i];
            if (last && i + 1 == g->count) break;
            copy_start(j, g, last ? i + 1 : i, last ? 0 : c + 1, state);
            if (dpcri_flow_finite(j->flow, state, j->flow->w)) continue;
            *lane = c;
            return i;
        }
    *lane = g->lanes[g->count - 1] - 1;
    return g->count - 1;
}

static void break_off(job *j, const group *g, int64_t place, int64_t lane) {
    j->broken_at = chunk_step(j, g, place, lane);
    j->broken_window = g->number * j->group_windows + place;
    j->broken_lane = lane;
    copy_start(j, g, place, lane, j->state);
    j->broken = true;
    j->next = j->groups;
}

// The chunks of a window before the one that is left to the loop.
static void finish_lanes(const job *j, const group *g, int64_t place, int64_t lanes) {
    double state[MOST_WIDTH];
    for (int64_t c = 0; c < lanes; c++) {
        const int64_t m = chunk_step(j, g, place, c);
        copy_start(j, g, place, c, state);
        dpcri_flow_loop(j->flow, m, j->chunk, j->row, m == 0 ? start_of(j) : state);
    }
}

// Whether the first `count` lanes of a window, which have run, end where the carry had those after them start. kept:
// the kernels did, and left their ends where v was.
static void look(job *j, const group *g, int64_t place, bool kept, int64_t count) {
    const dpcri_flow *f = j->flow;
    const dpcri_window *w = &g->windows[place];
    const int64_t each = j->summary ? 1 : j->lanes, step = j->summary ? f->w : 1;
    dpcri_joint joint = {
        .first = first_step(j, g, place),
        .chunk = j->chunk,
        .count = count,
        .row = j->row,
        .next = {dpcri_at(f, w->starts, j->summary ? f->w : f->w * j->lanes), step, each},
        .start = {w->starts, step, each},  // what lies before the window others may be writing still
    };
    joint.end =
        kept ? (dpcri_chunk_states){dpcri_at(f, w->maps, f->values * each), step, each} : dpcri_joint_ends(f, &joint);
    if (dpcri_joins_at_once(f, &joint)) return;
    for (int64_t c = 0; c < count; c++) {
        if (dpcri_joins(f, &joint, c)) continue;
        dpcri_joint_first(&j->apart_at, chunk_step(j, g, place, c + 1));
        return;
    }
}

// Whether summaries of window i, of the first `chunks` chunks, let differences grow. That of the chain's first chunk
// serves nobody.
static bool window_grows(const job *j, int64_t i, int64_t chunks) {
    const dpcri_flow *f = j->flow;
    const int64_t skip = i == 0 && j->head ? 1 : 0, left = chunks - i * j->lanes;
    const int64_t count = (left < j->lanes ? left : j->lanes) - skip, step = j->summary ? f->values : 1;
    const dpcri_chunk_maps maps = {dpcri_at(f, j->maps + i * j->s.maps, skip * step), j->summary ? 1 : j->lanes, step,
                                   j->summary && f->transposed};
    return count > 0 && !dpcri_chunks_halve(f, &maps, count);
}

// Chunks that ran from a carried state, up to step `from`; of the chain's last nobody starts.
static int64_t carried_chunks(const job *j, int64_t from) {
    return (from - j->start_step) / j->chunk - (from == j->flow->n);
}

// From the starts that the windows have, which are known all.
static void run_group_again(job *j, group *g) {
    for (int64_t i = 0; i < g->count; i++) {
        const int64_t window = g->number * j->group_windows + i;
        const bool broken = j->broken && window == j->broken_window;
        if (j->broken && window > j->broken_window) return;
        summarise(j, g, i);
        if (broken)
            finish_lanes(j, g, i, j->broken_lane);
        else
            finish(j, g, i);
        if (broken || !g->joined[i]) look(j, g, i, !broken && !j->summary, broken ? j->broken_lane : g->lanes[i]);
    }
}

static void run_group(job *j, group *g) {
    const int64_t lo = g->number * j->group_windows, left = j->windows - lo;
    g->count = left < j->group_windows ? left : j->group_windows;
    if (j->again) {
        run_group_again(j, g);
        return;
    }
    for (int64_t i = 0; i < g->count; i++) summarise(j, g, i);
    const int64_t chunks = carried_chunks(j, j->start_step + j->full * j->chunk), window = g->number * j->group_windows;
    for (int64_t i = 0; i < g->count && j->carries; i++)
        if (!g->halves[i] && !j->grows && window_grows(j, window + i, chunks)) j->grows = true;
    if (!await(j, g->number) || j->broken) return;
    for (int64_t i = 0; i < g->count; i++) carry(j, g, i);
    // What is not finite stays so, whatever it is multiplied by: the last state tells of all.
    const bool sound = dpcri_flow_finite(j->flow, j->state, j->flow->w);
    int64_t lanes = 0;
    const int64_t bad = sound ? g->count : first_broken(j, g, &lanes);
    if (!sound) break_off(j, g, bad, lanes);
    atomic_store_explicit(&j->done, sound ? g->number + 1 : INT64_MAX, memory_order_release);
    for (int64_t i = 0; i < bad; i++) finish(j, g, i);
    if (!sound) finish_lanes(j, g, bad, lanes);
    for (int64_t i = 0; i < bad; i++)
        if (!g->joined[i]) look(j, g, i, !j->summary, g->lanes[i]);
    if (!sound) look(j, g, bad, false, lanes);
}

static void run_slot(void *argument, int64_t slot) {
    job *j = argument;
    group g;  // what is read of it is written before: to clear it takes as long as 300 steps
    g.place = j->slots + slot * slot_bytes(&j->s);
    g.slot = slot;
    while ((g.number = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->groups) {
        if (dpcri_watch_stopped(j->flow->watch)) return;
        run_group(j, &g);
    }
}

// The chain starts with a whole chunk: its lane starts from z0; or, without, from -0 with A_0 = 0, which leaves b as it
// is.
static void start_in_lane(job *j) {
    const dpcri_flow *f = j->flow;
    const size_t state = (size_t)f->w * f->size, values = (size_t)f->values * f->size;
    if (f->z0) {
        memcpy(j->state, dpcri_at(f, f->z0, j->row * f->z0_row), state);
        dpcri_span span = dpcri_flow_span(f, 1, 1);
        span.a = dpcri_at(f, f->a, j->row * f->a_row);
        span.x = j->state;
        span.r = dpcri_at(f, f->b, j->row * f->b_row);
        span.y = j->start + (size_t)j->chunk * values;
        dpcri_flow_apply(f, &span);
        return;
    }
    for (int64_t i = 0; i < f->w; i++) {
        if (f->size == 8)
            ((double *)j->state)[i] = -0.0;
        else
            ((float *)j->state)[i] = -0.0f;
    }
    // In the memory of a transposed chain the first step comes last.
    char *const rest = f->transposed ? j->start : j->start + values;
    const void *const from = dpcri_at(f, f->a, (f->transposed ? j->chunk - 1 : 1) * f->a_step + j->row * f->a_row);
    memset(f->transposed ? j->start + (size_t)(j->chunk - 1) * values : j->start, 0, values);
    memcpy(rest, from, (size_t)(j->chunk - 1) * values);
}

bool dpcri_windows_alone(int64_t n, int64_t values, int64_t w, int threads) {
    const int64_t k = values / w, products = values * (k > 1 ? k : w);      // of blocks; of diagonals as measured
    const double step_ns = 0.02 * (double)(2 * values + products + 3 * w);  // sixteen lanes a cycle or two
    return threads == 1 || (double)n * step_ns < 2 * region_ns;
}

// ---- what differences at the joints grow to ----

static dpcri_window kept_window(const job *j, int64_t i) {
    return (dpcri_window){
        .maps = j->maps + i * j->s.maps, .starts = j->starts + i * j->s.starts, .head = i == 0 && j->head};
}

// The states that leave a window's lanes, or e of them: component i of lane c at i each + c, or + c w.
static void *leaving(const job *j, void *starts) {
    return dpcri_at_out(j->flow, starts, j->summary ? j->flow->w : j->flow->w * j->lanes);
}

// Lanes of window i among the first `chunks` chunks.
static int64_t lanes_of(const job *j, int64_t i, int64_t chunks) {
    const int64_t left = chunks - i * j->lanes;
    return left < 0 ? 0 : left < j->lanes ? left : j->lanes;
}

// Puts end - s of a window's lanes where v was, which nobody needs any more: of kernels their ends lie there, but in
// the window that broke off.
static void find_differences(const job *j, int64_t i, int64_t count) {
    dpcri_flow f = *j->flow;
    const bool kept = !j->summary && i != j->broken_window;
    const dpcri_window w = kept_window(j, i);
    void *const v = dpcri_at_out(&f, w.maps, j->lanes * f.values), *const next = leaving(j, w.starts);
    if (kept) {
        f.w *= j->lanes;  // all as one state
        dpcri_difference(&f, v, next, v);
        return;
    }
    const int64_t each = j->summary ? 1 : j->lanes, step = j->summary ? f.w : 1;
    const int64_t w_each = f.w;
    f.w = 1;
    for (int64_t c = 0; c < count; c++) {
        const int64_t last = j->start_step + (i * j->lanes + c + 1) * j->chunk - 1;
        const void *const z = dpcri_at(&f, f.z, last * f.z_step + j->row * f.z_row);
        for (int64_t k = 0; k < w_each; k++)
            dpcri_difference(&f, dpcri_at(&f, z, k), dpcri_at(&f, next, k * each + c * step),
                             dpcri_at_out(&f, v, k * each + c * step));
    }
}

// Takes the chunks up to number c of those that lanes have.
static void take_roundings(const job *j, dpcri_chunk_rounding *r, int64_t c) {
    const dpcri_flow *f = j->flow;
    const int64_t before = j->head ? 0 : 1;  // the chain's first chunk is nobody's
    if (before && r->chunks == 0) dpcri_rounding_take(f, r, NULL, 0, j->start_step, j->row);
    while (r->chunks <= c + before) {
        const int64_t at = r->chunks - before, lane = at % j->lanes, m = j->start_step + at * j->chunk;
        const dpcri_window w = kept_window(j, at / j->lanes);
        const dpcri_chunk_maps map = {dpcri_at(f, w.maps, j->summary ? lane * f->values : lane),
                                      j->summary ? 1 : j->lanes, 0, j->summary && f->transposed};
        dpcri_rounding_take(f, r, r->chunks ? &map : NULL, m, m + j->chunk, j->row);
    }
}

// Of the first `count` lanes of window i, which lane's leaving state does not hold within the bound; count: all do.
// r: nor may be off by rounding, or NULL.
static int64_t first_moved(const job *j, int64_t i, int64_t count, double bound, dpcri_chunk_rounding *r) {
    const int64_t each = j->summary ? 1 : j->lanes, step = j->summary ? j->flow->w : 1;
    const void *const s = leaving(j, kept_window(j, i).starts), *const e = leaving(j, j->errors);
    if (!j->summary && dpcri_carried_holds(j->flow, s, e, each, count, bound)) return count;
    for (int64_t c = 0; c < count; c++) {
        const void *const of_lane = dpcri_at(j->flow, e, c * step);
        if (dpcri_carried_holds(j->flow, dpcri_at(j->flow, s, c * step), of_lane, each, 1, bound)) continue;
        if (!r) return c;
        take_roundings(j, r, i * j->lanes + c);
        if (!dpcri_is_rounding(j->flow, r, of_lane, each)) return c;
    }
    return count;
}

// s + e, of what enters the window's lanes and leaves them.
static void add_errors(const job *j, const dpcri_window *w, int64_t count) {
    const dpcri_flow *f = j->flow;
    const int64_t states = j->summary ? count + 1 : j->lanes, step = j->summary ? f->w : 1,
                  each = j->summary ? 1 : j->lanes;
    for (int64_t c = 0; c < states; c++) {
        void *const s = dpcri_at_out(f, w->starts, c * step);
        dpcri_carried_add(f, s, dpcri_at(f, j->errors, c * step), each, s);
    }
    for (int64_t c = 0; c < count && !j->summary; c++) {
        void *const s = dpcri_at_out(f, leaving(j, w->starts), c);
        dpcri_carried_add(f, s, dpcri_at(f, leaving(j, j->errors), c), each, s);
    }
}

// e that enters and leaves the lanes of window i, to j->errors, from j->error, which becomes that of the next window.
static void carry_errors(job *j, int64_t i, int64_t count) {
    dpcri_window e = kept_window(j, i);
    e.starts = j->errors;
    if (j->summary)
        carry_rows(j, &e, count, j->error);
    else
        j->kernels->carry(&e, count, j->error);
}

// The first of the first `chunks` chunks, which ran from a carried state, whose leaving state does not hold within the
// bound, nor, if that excuses it, may be off by rounding; then e of its window lies in j->errors. `chunks`: all do.
static int64_t first_of_all(job *j, int64_t chunks, double bound, bool rounding_excuses) {
    dpcri_chunk_rounding rounding;
    dpcri_rounding_begin(j->flow, &rounding, j->rounding);
    memset(j->error, 0, (size_t)j->flow->w * j->flow->size);
    for (int64_t i = 0; i * j->lanes < chunks; i++) {
        const int64_t count = lanes_of(j, i, chunks);
        carry_errors(j, i, count);
        const int64_t c = first_moved(j, i, count, bound, rounding_excuses ? &rounding : NULL);
        if (c < count) return i * j->lanes + c;
    }
    return chunks;
}

// The starts after the first `chunks` chunks become s + e, the last one in j->state.
static void correct_starts(job *j, int64_t chunks) {
    memset(j->error, 0, (size_t)j->flow->w * j->flow->size);
    for (int64_t i = 0; i < j->windows && i * j->lanes <= chunks; i++) {
        const dpcri_window w = kept_window(j, i);
        const int64_t count = lanes_of(j, i, chunks);
        carry_errors(j, i, count);
        add_errors(j, &w, count);
    }
    dpcri_carried_add(j->flow, j->state, j->error, 1, j->state);
}

static void find_all_differences(const job *j, int64_t chunks) {
    for (int64_t i = 0; i * j->lanes < chunks; i++) find_differences(j, i, lanes_of(j, i, chunks));
}

static void run_tasks(job *j) {
    atomic_init(&j->next, 0);
    atomic_init(&j->done, 0);
    atomic_init(&j->apart_at, j->flow->n);
    dpcri_parallel(j->flow->context, j->tasks, run_slot, j);
}

// Whether the chunks that ran, up to step `from`, join as the loop would have it; else it goes on from *at, with
// j->state.
static bool held(job *j, int64_t from, int64_t *at) {
    const dpcri_flow *f = j->flow;
    const int64_t chunks = carried_chunks(j, from);
    int64_t apart = j->apart_at, moved = chunks;
    bool grows = j->carries && j->grows;
    if (grows && j->broken) {  // what lies behind the chunk that broke may or may not have been asked
        grows = false;
        for (int64_t i = 0; i * j->lanes < chunks && !grows; i++) grows = window_grows(j, i, chunks);
    }
    if (grows && chunks > 0 && !dpcri_watch_stopped(f->watch)) {
        const double bound = DPCRI_CARRIED(f->size);
        find_all_differences(j, chunks);
        moved = first_of_all(j, chunks, bound, false);  // rounding may grow too: it excuses what cannot be bettered
        if (moved < chunks && f->z != f->b && !(apart < f->n && apart <= from) &&
            first_of_all(j, chunks, DPCRI_REFINED(f->size), true) == chunks) {
            correct_starts(j, chunks);
            j->again = true;
            run_tasks(j);
            j->again = false;
            apart = j->apart_at;
            find_all_differences(j, chunks);
            moved = first_of_all(j, chunks, bound, true);
        } else if (moved < chunks) {
            first_of_all(j, chunks, bound, false);  // e of that chunk's window
        }
    }
    if (moved < chunks && j->start_step + (moved + 1) * j->chunk < apart) {
        const int64_t c = moved % j->lanes, each = j->summary ? 1 : j->lanes, place = j->summary ? c * f->w : c;
        void *const e = dpcri_at_out(f, j->errors, place);  // of what enters that chunk, which holds
        dpcri_carried_add(f, dpcri_at(f, kept_window(j, moved / j->lanes).starts, place), e, each, e);
        for (int64_t i = 0; i < f->w; i++) memcpy(dpcri_at_out(f, j->state, i), dpcri_at(f, e, i * each), f->size);
        *at = j->start_step + moved * j->chunk;
        return false;
    }
    *at = apart;
    if (apart >= f->n || apart > from) return true;
    memcpy(j->state, dpcri_at(f, f->z, (apart - 1) * f->z_step + j->row * f->z_row), (size_t)f->w * f->size);
    return false;
}

static void run_row(job *j) {
    const dpcri_flow *f = j->flow;
    const int64_t threads = dpcr_context_threads(f->context);
    atomic_init(&j->broken, false);
    atomic_init(&j->grows, false);
    j->broken_window = -1;
    if (j->head) {
        start_in_lane(j);
    } else {
        dpcri_flow_loop(f, 0, j->chunks.head, j->row, f->z0 ? dpcri_at(f, f->z0, j->row * f->z0_row) : NULL);
        memcpy(j->state, dpcri_at(f, f->z, (j->chunks.head - 1) * f->z_step + j->row * f->z_row),
               (size_t)f->w * f->size);
    }
    const bool alone = dpcri_windows_alone(f->n, f->values, f->w, (int)threads);
    j->far = bytes_of(f) > far_bytes;
    j->group_windows = alone || j->far ? 1 : j->s.windows;
    j->groups = (j->windows + j->group_windows - 1) / j->group_windows;
    j->tasks = alone ? 1 : threads < j->s.slots ? threads : j->s.slots;
    j->tasks = j->tasks < j->groups ? j->tasks : j->groups;
    run_tasks(j);
    const int64_t past = j->start_step + j->full * j->chunk, from = j->broken ? j->broken_at : past;
    int64_t at;
    if (!held(j, from, &at)) {
        if (f->z == f->b && at < from) {
            *f->lost = true;
            return;
        }
        dpcri_flow_loop(f, at, f->n - at, j->row, j->state);
        j->finished = at < j->finished ? at : j->finished;
        return;
    }
    if (from < f->n) dpcri_flow_loop(f, from, f->n - from, j->row, from == 0 ? start_of(j) : j->state);
    const int64_t in_order = from > 0 ? from : j->chunk;  // the chain's first chunk always is
    if (j->broken && from + j->chunk < f->n && in_order < j->finished) j->finished = in_order;
}

int64_t dpcri_windows_run(const dpcri_flow *f, int64_t chunk, dpcri_arena *arena) {
    job j;
    start_job(&j, f, chunk);
    j.finished = f->n, j.again = false;
    take(&j, arena);
    j.chunks = dpcri_chunks_of(f, chunk);
    j.head = !j.summary && j.chunks.head == chunk;
    j.start_step = j.head ? 0 : j.chunks.head;
    j.full = (f->n - j.start_step) / chunk;
    j.windows = (j.full + j.lanes - 1) / j.lanes;
    for (j.row = 0; j.row < f->rows; j.row++) run_row(&j);
    return j.finished;
}
