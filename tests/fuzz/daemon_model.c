/* See daemon_model.h. */
#include "tests/fuzz/daemon_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/loop/work.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/span.h"
#include "daemon/store/store.h"
#include "gpu/page_layout.h"

struct chunk_key model_key(uint8_t key)
{
    struct chunk_key k = {{0}};

    k.bytes[0] = k.bytes[8] = (uint8_t) (key * 37 + 1);
    k.bytes[15] = key;
    return k;
}

/* ---- sessions ---- */

static bool lease_is_held(const struct model_lease *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->items[i].held)
            return true;
    return false;
}

static bool session_holds(const struct model_session *x)
{
    for (unsigned i = 0; i < MODEL_LEASES_MAX; i++)
        if (x->leases[i].id != 0)
            return true;
    return false;
}

static void end_session(struct model_session *x)
{
    if (x->client)
        x->client->session = NULL;
    closep(&x->arena_fd);
    *x = (struct model_session){.arena_fd = -1};
}

static void detach(struct model_session *x)
{
    x->client = NULL;
    x->n_reservations = 0;
    if (!session_holds(x))
        end_session(x);
}

void model_process_exits(struct model *m, struct model_session *x)
{
    (void) m;
    end_session(x);
}

static struct model_session *new_session(struct model *m, struct model_client *c)
{
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++) {
        struct model_session *x = &m->sessions[i];

        if (x->exists)
            continue;
        *x = (struct model_session){
            .exists = true, .tenant = c->tenant, .pid = c->pid, .client = c, .arena_fd = -1};
        memcpy(x->token, c->token, sizeof(x->token));
        return x;
    }
    rig_check(false); /* the configuration allows fewer sessions */
    return NULL;
}

static struct model_session *find_session(struct model *m, const uint8_t *token)
{
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++)
        if (m->sessions[i].exists && memcmp(m->sessions[i].token, token, SESSION_TOKEN_BYTES) == 0)
            return &m->sessions[i];
    return NULL;
}

static void close_client(struct model_client *c)
{
    if (c->session && c->session->client == c)
        detach(c->session);
    c->link = rig_link_free(c->link);
    c->session = NULL;
    c->open = false;
    c->n_pending = 0;
}

/* ---- pages ---- */

static struct store *model_store(const struct model *m)
{
    return &m->server->devices->list[0].store;
}

const struct model_item *model_find_held(const struct model *m, unsigned tenant, uint8_t key)
{
    for (unsigned s = 0; s < MODEL_SESSIONS_MAX; s++) {
        const struct model_session *x = &m->sessions[s];

        for (unsigned i = 0; x->exists && x->tenant == tenant && i < MODEL_LEASES_MAX; i++)
            for (uint32_t k = 0; x->leases[i].id != 0 && k < x->leases[i].n; k++)
                if (x->leases[i].items[k].held && x->leases[i].items[k].page.key == key)
                    return &x->leases[i].items[k];
    }
    return NULL;
}

/* Checks that the page is of @tenant and of the client's key, and holds what a client wrote. Its checksum. */
static uint32_t check_page(const struct model *m, unsigned tenant, const struct model_page *p)
{
    struct store *st = model_store(m);
    struct page_header header;
    struct errmsg e;
    struct page_handle h;
    const uint8_t *bytes;

    if (m->unknown)
        return 0;
    rig_check(pool_resolve(&st->pool, p->slot, &h));
    rig_check(h.slot->state == SLOT_COMMITTED && h.slot->generation == p->generation);
    rig_check(h.group->tenant->account->uid == MODEL_UID + tenant);
    bytes = pool_slot_data(&st->pool, &h);
    rig_check(page_header_load(bytes, &header, &e) == 0);
    if (p->key != MODEL_KEY_UNKNOWN) {
        struct chunk_key key = model_key(p->key);

        rig_check(memcmp(&header.key, &key, sizeof(key)) == 0);
        rig_check(memcmp(&h.slot->key, &key, sizeof(key)) == 0);
        rig_check(bytes[PAGE_HEADER_BYTES] >> 4 == tenant);
        /* all bytes of the payload are the same */
        rig_check(memcmp(bytes + PAGE_HEADER_BYTES, bytes + PAGE_HEADER_BYTES + 1,
                         h.group->page_bytes - PAGE_HEADER_BYTES - 1) == 0);
    }
    return crc32c(bytes, h.group->page_bytes);
}

static struct model_page page_of(const Kvcobra__PageRef *ref, uint8_t key)
{
    return (struct model_page){.key = key, .slot = ref->slot, .generation = ref->generation};
}

static struct model_lease *find_lease(struct model_session *x, uint64_t id)
{
    for (unsigned i = 0; i < MODEL_LEASES_MAX; i++)
        if (x->leases[i].id == id)
            return &x->leases[i];
    return NULL;
}

static struct model_lease *new_lease(struct model_session *x, uint64_t id, uint32_t n)
{
    struct model_lease *l = find_lease(x, 0);

    rig_check(id != 0 && !find_lease(x, id) && l && n <= MODEL_ITEMS_MAX);
    *l = (struct model_lease){.id = id, .n = n};
    return l;
}

static void add_item(const struct model *m, const struct model_session *x, struct model_lease *l, uint32_t i,
                     struct model_page page)
{
    l->items[i] = (struct model_item){.page = page, .held = true, .crc = check_page(m, x->tenant, &page)};
}

/* Whether the session had reserved the slot. */
static bool drop_reservation(struct model_session *x, const struct model_page *p)
{
    for (uint32_t i = 0; i < x->n_reservations; i++)
        if (x->reservations[i].slot == p->slot && x->reservations[i].generation == p->generation) {
            x->reservations[i] = x->reservations[--x->n_reservations];
            return true;
        }
    return false;
}

/* No other session has reserved the slot: what one reserves, another must not publish. */
static void check_not_reserved(const struct model *m, const struct model_page *p)
{
    for (unsigned s = 0; s < MODEL_SESSIONS_MAX; s++)
        for (uint32_t i = 0; i < m->sessions[s].n_reservations; i++)
            rig_check(m->sessions[s].reservations[i].slot != p->slot ||
                      m->sessions[s].reservations[i].generation != p->generation);
}

/* ---- replies ---- */

static void on_confirm(struct model *m, struct model_client *c, const Kvcobra__Reply *r)
{
    struct model_session *x;

    c->open = true;
    if (c->is_operator)
        return;
    if (!r->confirm->resumed || m->unknown) {
        c->session = new_session(m, c);
        return;
    }
    x = find_session(m, c->token);
    rig_check(x && x->tenant == c->tenant && x->pid == c->pid);
    if (x->client && x->client != c)
        x->client->session = NULL;
    x->client = c;
    c->session = x;
}

static void on_open_model(struct model_session *x, struct rig_reply *r)
{
    rig_check(x && r->n_fds == 4);
    if (x->arena_fd < 0)
        x->arena_fd = take_fd(&r->fds[3]);
    x->handle = r->message->open_model->model;
}

static void on_reserve(const struct model *m, struct model_session *x, const struct model_pending *p,
                       const Kvcobra__ReserveReply *r)
{
    rig_check(r->n_slots <= p->n && r->n_exists == r->n_slots && (r->n_slots == p->n) == (r->end_err == 0));
    for (size_t i = 0; i < r->n_slots; i++) {
        struct model_page page = page_of(r->slots[i], p->pages[i].key);
        const struct model_item *held = model_find_held(m, x->tenant, page.key);

        if (held)
            rig_check(r->exists[i] && held->page.slot == page.slot &&
                      held->page.generation == page.generation);
        if (r->exists[i]) {
            (void) check_page(m, x->tenant, &page);
            continue;
        }
        if (x->n_reservations == MODEL_RESERVATIONS_MAX) /* ended by silence without notice */
            memmove(x->reservations, x->reservations + 1, --x->n_reservations * sizeof(x->reservations[0]));
        x->reservations[x->n_reservations++] = page;
    }
}

static void on_commit(const struct model *m, struct model_session *x, const struct model_pending *p,
                      const Kvcobra__CommitReply *r)
{
    struct model_lease *l = NULL;
    bool any = false;

    rig_check(r->n_pages == p->n && r->n_errs == p->n);
    for (size_t i = 0; i < p->n; i++)
        any |= r->errs[i] == 0;
    rig_check(any == (r->lease != 0));
    if (any)
        l = new_lease(x, r->lease, p->n);
    for (uint32_t i = 0; i < p->n; i++) {
        if (r->errs[i] != 0)
            continue;
        (void) drop_reservation(x, &p->pages[i]);
        add_item(m, x, l, i, page_of(r->pages[i], p->pages[i].key));
        check_not_reserved(m, &l->items[i].page);
    }
}

static void on_lease(const struct model *m, struct model_session *x, const struct model_pending *p,
                     const Kvcobra__LeaseReply *r)
{
    struct model_lease *l = NULL;
    const struct model_item *held;

    rig_check(r->n_pages <= p->n && (r->n_pages > 0) == (r->lease != 0));
    if (r->n_pages < p->n) {
        held = model_find_held(m, x->tenant, p->pages[r->n_pages].key);
        rig_check(!held || held->page.slot != p->pages[r->n_pages].slot ||
                  held->page.generation != p->pages[r->n_pages].generation);
    }
    if (r->n_pages > 0)
        l = new_lease(x, r->lease, (uint32_t) r->n_pages);
    for (uint32_t i = 0; i < r->n_pages; i++) {
        rig_check(r->pages[i]->slot == p->pages[i].slot && r->pages[i]->generation == p->pages[i].generation);
        add_item(m, x, l, i, p->pages[i]);
    }
}

static void on_release(struct model_session *x, const struct model_pending *p, int err)
{
    struct model_lease *l = p->leases[0] != 0 ? find_lease(x, p->leases[0]) : NULL;

    rig_check(l ? err == 0 : err < 0);
    for (uint32_t i = 0; l && i < l->n; i++)
        if (p->whole || p->bitmap >> i & 1)
            l->items[i].held = false;
    if (l && !lease_is_held(l))
        l->id = 0;
}

static void on_keep_leases(struct model_session *x, const struct model_pending *p)
{
    for (unsigned i = 0; i < MODEL_LEASES_MAX; i++) {
        bool kept = false;

        for (uint32_t k = 0; k < p->n; k++)
            kept |= p->leases[k] == x->leases[i].id;
        if (!kept)
            x->leases[i].id = 0;
    }
}

static void on_append_raw(const struct model *m, struct model_session *x, const Kvcobra__AppendRawReply *r)
{
    struct model_lease *l = new_lease(x, r->lease, 1);

    add_item(m, x, l, 0, page_of(r->page, MODEL_KEY_UNKNOWN));
}

/* Requests that change what a session has, and that succeeded. */
static void on_success(struct model *m, struct model_client *c, const struct model_pending *p,
                       struct rig_reply *reply)
{
    const Kvcobra__Reply *r = reply->message;
    struct model_session *x = c->session;

    switch (p->body_case) {
    case KVCOBRA__REQUEST__BODY_HELLO:
        memcpy(c->token, r->hello->session_token.data, sizeof(c->token));
        break;
    case KVCOBRA__REQUEST__BODY_CONFIRM:
        on_confirm(m, c, r);
        break;
    case KVCOBRA__REQUEST__BODY_BYE:
        if (x)
            end_session(x);
        c->open = false;
        break;
    case KVCOBRA__REQUEST__BODY_OPEN_MODEL:
        on_open_model(x, reply);
        break;
    case KVCOBRA__REQUEST__BODY_RESERVE:
        on_reserve(m, x, p, r->reserve);
        break;
    case KVCOBRA__REQUEST__BODY_COMMIT:
        on_commit(m, x, p, r->commit);
        break;
    case KVCOBRA__REQUEST__BODY_ABORT:
        rig_check(drop_reservation(x, &p->pages[0]));
        break;
    case KVCOBRA__REQUEST__BODY_LEASE:
        on_lease(m, x, p, r->lease);
        break;
    case KVCOBRA__REQUEST__BODY_KEEP_LEASES:
        on_keep_leases(x, p);
        break;
    case KVCOBRA__REQUEST__BODY_APPEND_RAW:
        on_append_raw(m, x, r->append_raw);
        break;
    default:
        break;
    }
}

static void on_reply(struct model *m, struct rig_reply *r)
{
    for (unsigned i = 0; i < MODEL_CLIENTS; i++) {
        struct model_client *c = &m->clients[i];

        for (uint32_t k = 0; c->link && c->link == r->link && k < c->n_pending; k++) {
            struct model_pending p = c->pending[k];

            if (p.id != r->message->id)
                continue;
            c->pending[k] = c->pending[--c->n_pending];
            rig_check(r->message->err == 0 || (r->message->err < 0 && r->message->message[0] != '\0'));
            if (m->unknown && p.body_case != KVCOBRA__REQUEST__BODY_HELLO &&
                p.body_case != KVCOBRA__REQUEST__BODY_CONFIRM &&
                p.body_case != KVCOBRA__REQUEST__BODY_OPEN_MODEL &&
                p.body_case != KVCOBRA__REQUEST__BODY_RESERVE)
                return;
            if (p.body_case == KVCOBRA__REQUEST__BODY_RELEASE && c->session)
                on_release(c->session, &p, r->message->err);
            else if (r->message->err == 0)
                on_success(m, c, &p, r);
            return;
        }
    }
}

void model_write_page(const struct model *m, const struct model_session *x, uint8_t key, uint32_t at,
                      uint8_t variant)
{
    unsigned class = model_class(key);
    size_t n_payload = m->layout->payload_bytes[class];
    uint8_t page[MODEL_PAGE_ROOM];
    struct page_header h = {
        .format_version = PAGE_FORMAT_VERSION,
        .codec_id = PAGE_CODEC_HALF_TILES,
        .key = model_key(key),
        .n_heads = 1,
        .first_position = class == 0 ? 0 : 64u * key,
        .n_tokens = CHUNK_TOKENS,
        .flags = class == 0 ? PAGE_FLAG_FIRST : 0,
        .payload_bytes = n_payload,
    };

    if (x->arena_fd < 0)
        return;
    memcpy(h.table_digest, m->table_digest, DIGEST_BYTES);
    memcpy(h.model_digest, m->model_digest, DIGEST_BYTES);
    memset(page + PAGE_HEADER_BYTES, model_payload(x->tenant, variant), n_payload);
    h.payload_crc32c = crc32c(page + PAGE_HEADER_BYTES, n_payload);
    page_header_store(&h, page);
    if (variant & 0x80) /* damaged: refused */
        page[variant % (PAGE_HEADER_BYTES + n_payload)] ^= 1;
    rig_check(pwrite(x->arena_fd, page, PAGE_HEADER_BYTES + n_payload, (off_t) at * MODEL_PAGE_ROOM) > 0);
}

struct model_pending *model_request(struct model *m, struct model_client *c, unsigned body_case)
{
    struct model_pending *p;

    if (c->n_pending == MODEL_PENDING_MAX)
        return NULL;
    p = &c->pending[c->n_pending++];
    *p = (struct model_pending){.id = ++m->next_id, .body_case = body_case};
    return p;
}

/* ---- the whole ---- */

static void count_holds(void *ctx, const struct page_handle *p)
{
    uint64_t *n = ctx;

    *n += p->slot->holds;
}

static void check_holds(const struct model *m)
{
    uint64_t n = 0, n_held = 0;

    for (const struct tenant *t = model_store(m)->tenants; t; t = t->next)
        for (struct group *g = t->groups; g; g = g->next)
            span_visit_slots(g, count_holds, &n_held);
    for (unsigned s = 0; s < MODEL_SESSIONS_MAX; s++) {
        const struct model_session *x = &m->sessions[s];

        for (unsigned i = 0; x->exists && i < MODEL_LEASES_MAX; i++)
            for (uint32_t k = 0; x->leases[i].id != 0 && k < x->leases[i].n; k++) {
                const struct model_item *item = &x->leases[i].items[k];

                if (!item->held)
                    continue;
                rig_check(check_page(m, x->tenant, &item->page) == item->crc);
                n++;
            }
    }
    rig_check(n == n_held);
}

static void check_sessions(struct model *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->server->sessions->n_max; i++)
        if (m->server->sessions->list[i])
            rig_check(find_session(m, m->server->sessions->list[i]->token) != NULL);
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++)
        n += m->sessions[i].exists;
    rig_check(n == m->server->sessions->n);
}

static void settle_unknown(struct model *m)
{
    struct rig_reply r;

    while (rig_take_reply(&r)) {
        on_reply(m, &r);
        rig_reply_free(&r);
    }
    for (unsigned i = 0; i < MODEL_CLIENTS; i++)
        if (m->clients[i].link && m->clients[i].link->closed)
            close_client(&m->clients[i]);
}

void model_settle(struct model *m)
{
    struct work_metrics work;
    struct errmsg e = {""};
    struct rig_reply r;

    if (m->unknown) {
        settle_unknown(m);
        return;
    }
    while (rig_take_reply(&r)) {
        on_reply(m, &r);
        rig_reply_free(&r);
    }
    for (unsigned i = 0; i < MODEL_CLIENTS; i++)
        if (m->clients[i].link && m->clients[i].link->closed)
            close_client(&m->clients[i]);

    if (!devices_are_valid(m->server->devices, &e) &&
        !(m->quota_was_lowered && strstr(e.text, "above its quota"))) {
        fprintf(stderr, "%s\n", e.text);
        rig_check(false);
    }
    check_sessions(m);
    work_metrics(m->server->work, &work);
    if (work.n_waiting == 0) /* a thread's job takes holds of its own */
        check_holds(m);
}

void model_restart(struct model *m)
{
    for (unsigned i = 0; i < MODEL_CLIENTS; i++)
        if (m->clients[i].link)
            close_client(&m->clients[i]);
}
