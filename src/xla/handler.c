// SPDX-License-Identifier: MIT
// XLA's call frames by what they say: text, dtypes and shapes make a key, whatever memory they lie in, and calls wait
// under it. A look costs some hundred nanoseconds; one lock, held for a look at a list, keeps threads apart.
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "deeppcr/chain.h"
#include "deeppcr/filter.h"
#include "deeppcr/recurrent.h"
#include "deeppcr/xla.h"
#include "xla/frame.h"

typedef dpcri_xla_frame frame;
typedef dpcri_xla_buffer buffer;

enum { KEY_WORDS = 512, KINDS = 256, BUCKETS = 256, DECLINED = 1 };
enum { TAKEN = 1, NEVER = 0, FULL = -1 };  // of dpcr_xla_keep

// ---- what frames look like ----

typedef struct key {
    int64_t words;
    uint64_t hash;
    uint64_t word[KEY_WORDS];
} key;

static bool add(key *k, const void *from, size_t bytes) {
    const size_t words = bytes / 8 + (bytes % 8 != 0);
    if (words > (size_t)(KEY_WORDS - k->words)) return false;
    if (!words) return true;
    k->word[k->words + (int64_t)words - 1] = 0;
    memcpy(k->word + k->words, from, bytes);
    k->words += (int64_t)words;
    return true;
}

static bool add_number(key *k, int64_t number) { return add(k, &number, sizeof number); }

static const buffer *array_of(const frame *f, int64_t i) {
    return i < f->given.count ? f->given.items[i] : f->found.items[i - f->given.count];
}

// False where a frame is none of ours, or too large: text's length, text, arrays in and out; of each dtype and rank,
// shape. So no key is the beginning of another, nor one of other arrays.
static bool look(key *k, const frame *f) {
    k->words = 0;
    if (f->said.count != 1 || f->said.types[0] != DPCRI_XLA_TEXT) return false;
    const dpcri_xla_text *said = f->said.items[0];
    if (said->size > KEY_WORDS || !add_number(k, (int64_t)said->size) || !add(k, said->first, said->size)) return false;
    if (!add_number(k, f->given.count) || !add_number(k, f->found.count)) return false;
    for (int64_t i = 0; i < f->given.count + f->found.count; i++) {
        const buffer *b = array_of(f, i);
        if (b->rank < 0 || b->rank > KEY_WORDS || !add_number(k, (int64_t)b->dtype << 32 | b->rank)) return false;
        if (b->rank && !add(k, b->shape, (size_t)b->rank * 8)) return false;
    }
    k->hash = 0;
    for (int64_t i = 0; i < k->words; i++) {
        k->hash = (k->hash ^ k->word[i]) * 0x9e3779b97f4a7c15u;
        k->hash ^= k->hash >> 32;
    }
    return true;
}

// Whether the numbers lie at multiples of their size, as plans' kernels want them.
static bool in_place(const frame *f) {
    for (int64_t i = 0; i < f->given.count + f->found.count; i++) {
        const buffer *b = array_of(f, i);
        if ((uintptr_t)b->numbers % (b->dtype == DPCRI_XLA_FLOAT64 || b->dtype == DPCRI_XLA_INT64 ? 8 : 4))
            return false;
    }
    return true;
}

// ---- calls by key ----

typedef struct kind {
    struct kind *next;
    dpcr_xla_call *calls;
    uint64_t hash;
    int64_t words;
    uint64_t word[];
} kind;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static kind *bucket[BUCKETS];
static int kinds;
static dpcr_xla_host *host;
static void (*interrupt)(void);  // the host's
static int (*interrupted)(void *user);
static void *interrupted_user;
static int within;           // calls of the handler that have not returned
static uint64_t generation;  // forks since the first process
static pthread_cond_t nobody_within = PTHREAD_COND_INITIALIZER;

static void lock_table(void) { pthread_mutex_lock(&lock); }
static void unlock_table(void) { pthread_mutex_unlock(&lock); }
// A child finds the table whole, the lock free, and its parent's other threads gone, those that waited too. The one
// that forked may be within; it is not counted any more.
static void begin_child(void) {
    within = 0;
    generation++;
    pthread_cond_init(&nobody_within, NULL);
    pthread_mutex_unlock(&lock);
}
static void survive_forks(void) { pthread_atfork(lock_table, unlock_table, begin_child); }

static kind *find(const key *k) {
    kind *at = bucket[k->hash % BUCKETS];
    while (at && (at->hash != k->hash || at->words != k->words || memcmp(at->word, k->word, (size_t)k->words * 8) != 0))
        at = at->next;
    return at;
}

static dpcr_xla_call *take(const key *k) {
    const kind *known = find(k);
    dpcr_xla_call *call = known ? known->calls : NULL;
    while (call && call->busy) call = call->next;
    if (call) call->busy = 1;
    return call;
}

static void give_back(dpcr_xla_call *call) {
    lock_table();
    call->busy = 0;
    unlock_table();
}

static kind *make_kind(const key *k) {
    if (kinds == KINDS) return NULL;
    kind *made = malloc(sizeof *made + (size_t)k->words * 8);
    if (!made) return NULL;
    *made = (kind){.next = bucket[k->hash % BUCKETS], .hash = k->hash, .words = k->words};
    memcpy(made->word, k->word, (size_t)k->words * 8);
    bucket[k->hash % BUCKETS] = made;
    kinds++;
    return made;
}

int dpcr_xla_keep(const void *like, dpcr_xla_call *call) {
    key k;
    if (call->size < sizeof *call || !look(&k, like) || !in_place(like)) return NEVER;
    pthread_once(&once, survive_forks);
    lock_table();
    kind *home = find(&k);
    if (!home) home = make_kind(&k);
    if (home) {
        call->next = home->calls;
        call->busy = 0;
        home->calls = call;
    }
    unlock_table();
    return home ? TAKEN : FULL;
}

void dpcr_xla_forget(void) {
    lock_table();
    for (int i = 0; i < BUCKETS; i++)
        while (bucket[i]) {
            kind *gone = bucket[i];
            bucket[i] = gone->next;
            free(gone);
        }
    kinds = 0;
    unlock_table();
}

int dpcr_xla_busy(const dpcr_xla_call *call) {
    lock_table();
    const int busy = call->busy;
    unlock_table();
    return busy;
}

// ---- steps ----

// *filter of the coefficients in numbers [bytes], made anew where they are not the kept ones. A filter of none is the
// host's to refuse.
static int renew(const dpcr_xla_step *s, bool sections, dpcr_error *error) {
    const double *numbers = s->given[1];
    const size_t bytes = (size_t)(sections ? 6 * s->count : s->count + s->more) * sizeof *numbers;
    if (memcmp(numbers, s->given[2], bytes) == 0) return DPCR_OK;
    dpcr_filter *made = NULL, **filter = (dpcr_filter **)s->given[3];
    for (int64_t i = 0; sections && i < s->count; i++)
        if (!(numbers[6 * i + 3] == 1)) return DECLINED;
    const dpcr_status status =
        sections ? dpcr_filter_create_sos(s->given[0], s->count, numbers, &made, error)
                 : dpcr_filter_create_ba(s->given[0], s->count, numbers, s->more, numbers + s->count, &made, error);
    if (status == DPCR_ERROR_ARGUMENT) return DECLINED;
    if (status != DPCR_OK) return status;
    dpcr_filter_destroy(*filter);
    *filter = made;
    memcpy(s->given[2], numbers, bytes);
    return DPCR_OK;
}

static void of_sections(const dpcr_xla_step *s) {
    const double *gb = s->given[0], *ga = s->given[1];
    double *out = s->given[2];
    for (int64_t i = 0; i < s->count; i++) {
        memcpy(out + 6 * i, gb + 3 * i, 3 * sizeof *out);
        memcpy(out + 6 * i + 3, ga + 3 * i, 3 * sizeof *out);
    }
}

// Divided b' = b / a_0, a' = a / a_0 have the gradients gb, ga: db = gb / a_0, da = ga / a_0, and
// da_0 = -(db . b + da_1.. . a_1..) / a_0.
static void of_coefficients(const dpcr_xla_step *s) {
    const double *gb = s->given[0], *ga = s->given[1], *b = s->given[2], *a = b + s->count;
    double *db = s->given[3], *da = db + s->count, sum = 0;
    for (int64_t i = 0; i < s->count; i++) sum += (db[i] = gb[i] / a[0]) * b[i];
    for (int64_t i = 1; i < s->more; i++) sum += (da[i] = ga[i] / a[0]) * a[i];
    da[0] = -sum / a[0];
}

static void apart(const dpcr_xla_step *s) {
    void **at = s->given[0];
    if (*at != s->given[1]) return;
    memcpy(s->given[2], s->given[1], (size_t)s->count);
    *at = s->given[2];
}

static int backward(const dpcr_xla_step *s, dpcr_error *error) {
    void *const *p = s->given;
    dpcr_recurrent_zero_gradients(p[0]);
    const dpcr_status status = dpcr_recurrent_backward(p[2], p[3], p[4], p[5], p[6], (size_t)s->count, NULL, error);
    if (status == DPCR_OK) dpcr_recurrent_get_gradients(p[0], p[1]);
    return status;
}

static int filter_gradient(const dpcr_xla_step *s, dpcr_error *error) {
    void *const *p = s->given;
    memset(p[5], 0, (size_t)s->count * sizeof(double));
    memset(p[6], 0, (size_t)s->count * sizeof(double));
    const dpcr_filter *const *filter = p[0];
    return dpcr_filter_gradient(*filter, p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], error);
}

static int run_step(const dpcr_xla_step *s, dpcr_error *error) {
    void *const *p = s->given;
    const size_t bytes = (size_t)s->count;
    switch (s->what) {
        case DPCR_XLA_CHAIN: return dpcr_chain_execute(p[0], p[1], p[2], p[3], p[4], p[5], bytes, NULL, error);
        case DPCR_XLA_CHAIN_VJP:
            return dpcr_chain_vjp(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], bytes, error);
        case DPCR_XLA_PARAMETERS: dpcr_recurrent_set_parameters(p[0], p[1]); return DPCR_OK;
        case DPCR_XLA_FORWARD: return dpcr_recurrent_execute(p[0], p[1], p[2], p[3], bytes, p[4], error);
        case DPCR_XLA_BACKWARD: return backward(s, error);
        case DPCR_XLA_SECTIONS: return renew(s, true, error);
        case DPCR_XLA_COEFFICIENTS: return renew(s, false, error);
        case DPCR_XLA_FILTER:
            return dpcr_filter_execute(*(const dpcr_filter *const *)p[0], p[1], p[2], p[3], p[4], error);
        case DPCR_XLA_FILTER_GRADIENT: return filter_gradient(s, error);
        case DPCR_XLA_OF_SECTIONS: of_sections(s); return DPCR_OK;
        case DPCR_XLA_OF_COEFFICIENTS: of_coefficients(s); return DPCR_OK;
        case DPCR_XLA_ZERO: memset(p[0], 0, bytes); return DPCR_OK;
        case DPCR_XLA_COPY: memcpy(p[1], p[0], bytes); return DPCR_OK;
        case DPCR_XLA_WIDEN:
            for (int64_t i = 0; i < s->count; i++) ((double *)p[1])[i] = ((const float *)p[0])[i];
            return DPCR_OK;
        case DPCR_XLA_NARROW:
            for (int64_t i = 0; i < s->count; i++) ((float *)p[1])[i] = (float)((const double *)p[0])[i];
            return DPCR_OK;
        case DPCR_XLA_APART: apart(s); return DPCR_OK;
    }
    return dpcri_fail(error, DPCR_ERROR_ARGUMENT, "xla_run: step.what is %d, wanted one of dpcr_xla_what",
                      (int)s->what);
}

static int check_size(dpcr_xla_call *call) {
    if (call->size >= sizeof *call) return DPCR_OK;
    return dpcri_fail(call->size < offsetof(dpcr_xla_call, next) ? NULL : &call->error, DPCR_ERROR_ARGUMENT,
                      "xla_run: call.size is %zu, wanted sizeof(dpcr_xla_call)", call->size);
}

static int run_steps(dpcr_xla_call *call) {
    int status = DPCR_OK;
    for (int64_t i = 0; i < call->steps && status == DPCR_OK; i++) status = run_step(call->step + i, &call->error);
    return status;
}

int dpcr_xla_run(const void *like, dpcr_xla_call *call) {
    const frame *f = like;
    if (check_size(call) != DPCR_OK) return DPCR_ERROR_ARGUMENT;
    for (int64_t i = 0; i < call->places; i++) *call->place[i].at = array_of(f, call->place[i].array)->numbers;
    return run_steps(call);
}

int dpcr_xla_run_at(void *const *addresses, dpcr_xla_call *call) {
    if (check_size(call) != DPCR_OK) return DPCR_ERROR_ARGUMENT;
    for (int64_t i = 0; i < call->places; i++) *call->place[i].at = addresses[call->place[i].array];
    return run_steps(call);
}

// ---- XLA's side ----

void dpcr_xla_set_host(dpcr_xla_host *asked, void (*raise)(void), int (*taken)(void *user), void *user) {
    pthread_once(&once, survive_forks);
    lock_table();
    host = asked;
    interrupt = raise;
    interrupted = taken;
    interrupted_user = user;
    while (!asked && within > 0) pthread_cond_wait(&nobody_within, &lock);
    unlock_table();
}

// Whom a frame may ask.
typedef struct visit {
    dpcr_xla_host *host;
    int (*interrupted)(void *user);
    void *user;
    uint64_t entered;
} visit;

// A call for this key, taken, where there is one; false where all is over.
static bool enter(const key *k, dpcr_xla_call **call, visit *v) {
    lock_table();
    *v = (visit){host, interrupted, interrupted_user, generation};
    *call = host && k ? take(k) : NULL;
    if (host) within++;
    unlock_table();
    return v->host != NULL;
}

static void ask(const visit *v, void *given, dpcr_xla_call *failed, int status, dpcr_xla_answer *answer) {
    if (!v->interrupted || !v->interrupted(v->user)) v->host(given, failed, (dpcr_status)status, answer);
}

// The host's language hears of an interruption while that is still waited for.
static void leave(const visit *v, bool torn) {
    lock_table();
    void (*const tell)(void) = torn ? interrupt : NULL;
    if (tell) {
        unlock_table();
        tell();
        lock_table();
    }
    if (v->entered == generation && --within == 0) pthread_cond_broadcast(&nobody_within);
    unlock_table();
}

static void *cancelled(const frame *f, const char *why) {
    dpcri_xla_error error = {sizeof error, NULL, why, DPCRI_XLA_CANCELLED};
    return f->api->make_error(&error);
}

// A frame with an extension is a question about the handler; what comes before execution wants nothing of it.
void *dpcr_xla_handler(void *given) {
    const frame *f = given;
    key k;
    const bool readable =
        f->size >= offsetof(frame, said) + sizeof f->said && !f->extension && f->stage == DPCRI_XLA_EXECUTE;
    dpcr_xla_call *call;
    visit v;
    if (!enter(readable && look(&k, f) && in_place(f) ? &k : NULL, &call, &v))
        return cancelled(f, "deeppcr: no host, it has ended");
    const int status = call ? dpcr_xla_run(f, call) : DECLINED;
    dpcr_xla_answer answer = {.finished = status == DPCR_OK};
    if (status < 0) ask(&v, given, call, status, &answer);
    if (call) give_back(call);
    if (status == DECLINED) ask(&v, given, NULL, DPCR_OK, &answer);
    if (!answer.finished && !answer.error) answer.error = cancelled(f, "deeppcr: the host was interrupted");
    leave(&v, answer.interrupted || !answer.finished);
    return answer.error;
}
