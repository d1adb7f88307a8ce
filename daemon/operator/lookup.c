/*
 * LOOKUP: where the pages of a prompt's chunks are, and why not; a client may ask for its own tenant. Nothing
 * is fetched, leased or counted, so a look-up changes no eviction.
 *
 * Memory is looked at when the request arrives. For pages that a filter of the disk tier promises, the disk
 * is asked. The cluster is asked for pages that neither has. The reply waits for the answers.
 *
 * On request, LOOKUP also says which pages are shared: others than that of the prompt's next chunk continue
 * them, in memory or on the disk. Chunk keys have a mark of their parent, so the keys tell.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload.h"
#include "daemon/operator/prefix.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/job.h"
#include "daemon/requests/request.h"
#include "daemon/requests/request_row.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/store/kept.h"

enum {
    LOOKUP_PLACES_MAX = WIRE_ITEMS_MAX / CHUNK_TOKENS * PREFIX_KEYS,
    LOOK_MS = 1000 /* for the cluster's answer, or less by the configuration */
};
_Static_assert(LOOKUP_PLACES_MAX <= REPLY_PLACES_MAX, "places fit the scratch");

struct lookup_place {
    bool in_memory, on_disk, in_cluster, is_shared;
    uint32_t n_holds;
    uint64_t pinned_ms;
    enum ghost_reason reason;
};

struct lookup_job;

struct lookup_question { /* to the disk */
    struct lookup_job *job;
    uint32_t place;
};

struct lookup {
    struct prefix prefix;
    size_t n;
    struct lookup_place places[LOOKUP_PLACES_MAX];
};

struct lookup_job { /* waits for the disk and the cluster */
    struct job job;
    struct lookup lookup;
    struct lookup_question questions[LOOKUP_PLACES_MAX], others[LOOKUP_PLACES_MAX];
    struct index_family families[LOOKUP_PLACES_MAX]; /* of the pages, for is_shared */
    struct offload_look look;
    _Alignas(max_align_t) uint8_t look_memory[OFFLOAD_LOOK_BYTES(LOOKUP_PLACES_MAX)];
    uint32_t look_places[LOOKUP_PLACES_MAX]; /* places of the pages in @look */
    unsigned n_pending;
    int err; /* of a question */
};

/* ---- the answer ---- */

static Kvcobra__MissReason lookup_reason(enum ghost_reason reason)
{
    switch (reason) {
    case GHOST_EVICTED:
        return KVCOBRA__MISS_REASON__MISS_EVICTED;
    case GHOST_RETIRED_TABLE:
        return KVCOBRA__MISS_REASON__MISS_RETIRED_TABLE;
    case GHOST_NONE:
        break;
    }
    return KVCOBRA__MISS_REASON__MISS_UNKNOWN;
}

static int lookup_reply(struct request *rq, const struct lookup *l, int tier_err)
{
    struct reply_scratch *scratch = rq->server->scratch;
    Kvcobra__LookupReply *reply = scratch->body;

    kvcobra__lookup_reply__init(reply);
    reply->keys = prefix_keys(rq, &l->prefix);
    for (size_t i = 0; i < l->n; i++) {
        const struct lookup_place *from = &l->places[i];
        Kvcobra__ChunkPlace *to = &scratch->places[i];

        kvcobra__chunk_place__init(to);
        to->in_memory = from->in_memory;
        to->on_disk = from->on_disk;
        to->in_cluster = from->in_cluster;
        to->holds = from->n_holds;
        to->pinned_ms = from->pinned_ms;
        to->is_shared = from->is_shared;
        if (!from->in_memory && !from->on_disk && !from->in_cluster)
            to->reason = lookup_reason(from->reason);
        scratch->place_pointers[i] = to;
    }

    reply->n_places = l->n;
    reply->places = scratch->place_pointers;
    reply->tier_err = tier_err;
    rq->reply.body_case = KVCOBRA__REPLY__BODY_LOOKUP;
    rq->reply.lookup = reply;
    return 0;
}

/* ---- memory ---- */

static void lookup_memory(const struct request *rq, const struct prefix *p, int key, struct lookup_place *ret)
{
    const struct store *st = store_of(p->tenant);
    struct page_handle h;

    if (!store_find(st, p->tenant, &p->keys[key], &h)) {
        ret->reason = ghosts_find(&p->tenant->ghosts, &p->keys[key]);
        return;
    }

    ret->in_memory = true;
    ret->pinned_ms = kept_left_ms(&h, ev_now_ms(rq->server->ev));
    ret->n_holds = h.slot->holds - (ret->pinned_ms > 0);
}

/* ---- slower tiers ---- */

static int lookup_conclude(struct job *job, struct request *rq)
{
    const struct lookup_job *j = (const struct lookup_job *) job;

    return rq ? lookup_reply(rq, &j->lookup, j->err) : 0;
}

static void lookup_note_answer(struct lookup_job *j)
{
    if (--j->n_pending == 0)
        job_end(&j->job);
}

static void lookup_on_asked(void *ctx, int err)
{
    const struct lookup_question *q = ctx;
    struct lookup_job *j = q->job;

    if (err == 0)
        j->lookup.places[q->place].on_disk = true;
    else if (err != -ENOENT)
        j->err = err;
    lookup_note_answer(j);
}

static void lookup_on_others(void *ctx, int err)
{
    const struct lookup_question *q = ctx;
    struct lookup_job *j = q->job;

    if (err == 0)
        j->lookup.places[q->place].is_shared = true;
    else if (err != -ENOENT)
        j->err = err;
    lookup_note_answer(j);
}

static void lookup_on_looked(struct offload_look *look)
{
    struct lookup_job *j = (struct lookup_job *) ((char *) look - offsetof(struct lookup_job, look));

    for (uint32_t i = 0; i < look->n; i++)
        j->lookup.places[j->look_places[i]].in_cluster = look->found[i] != NULL;
    if (look->result < 0)
        j->err = look->result;
    lookup_note_answer(j);
}

/*
 * Asks the disk for the page of a key of the present chunk, if its filter promises it; else notes the page
 * for the cluster, if @may_look. Return: whether the disk was asked.
 */
static bool lookup_ask(struct request *rq, struct lookup_job *j, int key, bool may_look)
{
    struct offload *o = rq->server->offload;
    struct lookup *l = &j->lookup;
    struct lookup_question *q = &j->questions[l->n];
    struct offload_subject s;
    int r = prefix_subject(rq, &l->prefix, key, &s);

    if (r < 0) {
        j->err = r;
        return false;
    }

    *q = (struct lookup_question){j, (uint32_t) l->n};
    r = offload_ask(o, l->prefix.tenant, &s, lookup_on_asked, q);
    if (r == -ENOENT && may_look && !l->places[l->n].in_memory) {
        j->look_places[j->look.n] = (uint32_t) l->n;
        offload_look_add_page(o, &j->look, &s);
    } else if (r < 0 && r != -ENOENT) {
        j->err = r;
    }
    return r == 0;
}

/* Return: how many answers of the disk are awaited; they come later, on the loop. */
static unsigned lookup_walk(struct request *rq, struct lookup_job *j)
{
    const Kvcobra__Prefix *m = rq->message->lookup->prefix;
    struct lookup *l = &j->lookup;
    bool has_tiers = prefix_has_tiers(rq, &l->prefix);
    bool may_look = has_tiers && offload_may_look(rq->server->offload, l->prefix.tenant);
    unsigned n_asked = 0;

    for (size_t i = 0; i < l->prefix.n_chunks; i++) {
        prefix_next(&l->prefix, m, i);
        for (int k = 0; k < PREFIX_KEYS; k++) {
            lookup_memory(rq, &l->prefix, k, &l->places[l->n]);
            n_asked += has_tiers && lookup_ask(rq, j, k, may_look);
            j->families[l->n].parent = l->prefix.keys[k];
            l->n++;
        }
    }

    return n_asked;
}

/* Asks the cluster for the pages that were noted. Return: how many answers are awaited, 0 or 1. */
static unsigned lookup_look(struct request *rq, struct lookup_job *j)
{
    int r;

    if (j->look.n == 0)
        return 0;

    j->look.ended = lookup_on_looked;
    r = offload_look(rq->server->offload, &j->look, LOOK_MS);
    if (r < 0)
        j->err = r;
    return r == 0;
}

/* ---- shared pages ---- */

/* Notes the known continuation of each page: that of the prompt's next chunk, if it has one. */
static void lookup_prepare_families(const struct request *rq, struct lookup_job *j)
{
    const Kvcobra__Lookup *m = rq->message->lookup;
    const struct lookup *l = &j->lookup;

    for (size_t i = 0; i + PREFIX_KEYS < l->n; i++) {
        j->families[i].known = j->families[i + PREFIX_KEYS].parent;
        j->families[i].has_known = true;
    }
    if (m->n_next_tokens > 0) {
        struct prefix next = l->prefix; /* the reply has the keys of the chunk before */

        prefix_step(&next, m->prefix, m->next_tokens, false);
        for (size_t k = 0; k < PREFIX_KEYS; k++) {
            struct index_family *f = &j->families[l->n - PREFIX_KEYS + k];

            f->known = next.keys[k];
            f->has_known = true;
        }
    }
}

/* Return: whether the disk was asked. */
static bool lookup_ask_others(struct request *rq, struct lookup_job *j, size_t place)
{
    struct offload_subject s;
    int r = prefix_subject(rq, &j->lookup.prefix, (int) (place % PREFIX_KEYS), &s);

    if (r == 0) {
        s.family = j->families[place];
        j->others[place] = (struct lookup_question){j, (uint32_t) place};
        r = offload_ask_others(rq->server->offload, &s, lookup_on_others, &j->others[place]);
    }
    if (r < 0 && r != -ENODEV)
        j->err = r;
    return r == 0;
}

/* Return: how many answers of the disk are awaited. */
static unsigned lookup_find_others(struct request *rq, struct lookup_job *j)
{
    struct lookup *l = &j->lookup;
    bool has_tiers = prefix_has_tiers(rq, &l->prefix);
    unsigned n_asked = 0;

    if (!rq->message->lookup->with_shared)
        return 0;

    lookup_prepare_families(rq, j);
    index_find_others(&l->prefix.tenant->index, j->families, l->n);
    for (size_t i = 0; i < l->n; i++) {
        l->places[i].is_shared = j->families[i].has_other;
        n_asked += !l->places[i].is_shared && has_tiers && lookup_ask_others(rq, j, i);
    }

    return n_asked;
}

static int lookup_handle(struct request *rq)
{
    _cleanup_(freep) struct lookup_job *j = calloc(1, sizeof(*j));
    const Kvcobra__Lookup *m = rq->message->lookup;
    unsigned n_asked;
    int r;

    if (!j)
        return fail(&rq->error, -ENOMEM, "out of memory for a request");

    r = prefix_read(rq, m->prefix, &j->lookup.prefix);
    if (r < 0)
        return r;
    if (m->with_shared && !rq->conn->is_operator)
        return fail(&rq->error, -EPERM, "only operators ask which pages are shared");
    if (m->n_next_tokens != 0 && m->n_next_tokens != CHUNK_TOKENS)
        return fail(&rq->error, -EINVAL, "%zu tokens of the next chunk, which has %d", m->n_next_tokens,
                    CHUNK_TOKENS);

    j->job.finish = lookup_conclude;
    r = job_begin(&j->job, rq);
    if (r < 0)
        return r;

    offload_look_init(&j->look, LOOKUP_PLACES_MAX, j->look_memory);
    n_asked = lookup_walk(rq, j);
    n_asked += lookup_look(rq, j);
    n_asked += lookup_find_others(rq, j);
    if (n_asked == 0) {
        job_cancel(&j->job);
        errmsg_clear(&rq->error);
        return lookup_reply(rq, &j->lookup, j->err);
    }

    j->n_pending = n_asked;
    (void) take_ptr(j);
    return REQUEST_PENDING;
}
REQUEST(request_lookup) = {
    .body = KVCOBRA__REQUEST__BODY_LOOKUP, .run = lookup_handle, .needs = CONN_OPEN, .sockets = ON_BOTH};
