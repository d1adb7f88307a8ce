/* See daemon_history.h. */
#include "tests/fuzz/daemon_history.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/config_keys.h"
#include "daemon/loop/log.h"
#include "daemon/requests/conn.h"
#include "daemon/requests/state.h"
#include "daemon/session/session.h"
#include "daemon/session/session_types.h"
#include "daemon/store/device.h"
#include "daemon/store/space.h"
#include "daemon/tables/tables.h"
#include "daemon/tables/tables_activate.h"
#include "daemon/tables/tables_stage.h"
#include "tests/fuzz/daemon_model.h"
#include "tests/lib/random_table.h"

enum {
    OPERATOR = MODEL_CLIENTS - 1,
    ARENA_BYTES = 1 << 16,
    VECTOR_BYTES = 64 * 32 * 2, /* of one chunk: 64 tokens of one head of 32 binary16 numbers */
};

struct input {
    const uint8_t *data;
    size_t n_bytes;
};

static struct model m;
static struct config config;
static struct geometry geometry;
static struct input in;

/* ---- the input ---- */

static uint8_t take(void)
{
    uint8_t b;

    if (in.n_bytes == 0)
        return 0;
    b = in.data[0];
    in.data++;
    in.n_bytes--;
    return b;
}

static unsigned choose(unsigned n)
{
    return take() % n;
}

/* ---- requests ---- */

static void send_request(struct model_client *c, struct model_pending *p, Kvcobra__Request *q)
{
    uint8_t packet[WIRE_PACKET_BYTES_MAX];
    ssize_t n;

    q->id = p->id;
    q->body_case = (Kvcobra__Request__BodyCase) p->body_case;
    n = wire_request_pack(q, packet);
    rig_check(n > 0);
    rig_send(c->link, packet, (size_t) n, NULL, 0);
}

/* Sends a request whose body is @body, a pointer to the message of @body_case. */
static void request(struct model_client *c, struct model_pending *p, void *body)
{
    Kvcobra__Request q = KVCOBRA__REQUEST__INIT;

    q.hello = body; /* the members of the union are pointers */
    send_request(c, p, &q);
}

static ProtobufCBinaryData bytes_of(const void *data, size_t n)
{
    return (ProtobufCBinaryData){.data = (uint8_t *) data, .len = n};
}

static ProtobufCBinaryData table_bytes(void)
{
    return bytes_of(m.table_digest, sizeof(m.table_digest));
}

static struct model_session *choose_session(void)
{
    return &m.sessions[choose(MODEL_SESSIONS_MAX)];
}

/* ---- steps ---- */

static void step_hello(struct model_client *c)
{
    struct model_pending *p;
    Kvcobra__Hello hello = KVCOBRA__HELLO__INIT;
    Kvcobra__Confirm confirm = KVCOBRA__CONFIRM__INIT;
    unsigned how = take();

    if (!c->link) {
        c->is_operator = c == &m.clients[OPERATOR];
        c->tenant = how % MODEL_TENANTS;
        c->pid = rig_process(how / MODEL_TENANTS % 2);
        c->link = rig_connect(m.server, c->is_operator ? 0 : MODEL_UID + c->tenant, c->pid, c->is_operator);
    }
    hello.version_min = hello.version_max = PROTO_VERSION;
    hello.client_name = (char *) "fuzz";
    if (how & 0x40) {
        const struct model_session *x = choose_session();

        hello.session_token = bytes_of(x->token, sizeof(x->token));
    }
    p = model_request(&m, c, KVCOBRA__REQUEST__BODY_HELLO);
    if (p)
        request(c, p, &hello);
    model_settle(&m);
    if (how & 0x80 || !c->link) /* another step confirms */
        return;
    p = model_request(&m, c, KVCOBRA__REQUEST__BODY_CONFIRM);
    if (p)
        request(c, p, &confirm);
}

static void step_open_model(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Geometry g = KVCOBRA__GEOMETRY__INIT;
    Kvcobra__OpenModel open = KVCOBRA__OPEN_MODEL__INIT;

    g.n_layers = geometry.n_layers;
    g.n_heads = geometry.n_heads;
    g.n_kv_heads = geometry.n_kv_heads;
    g.d = geometry.d;
    g.n_rot = geometry.n_rot;
    g.attn_scale = geometry.attn_scale;
    g.n_freq = geometry.n_rot / 2;
    g.freq = geometry.freq;
    open.geometry = &g;
    open.model_digest = bytes_of(m.model_digest, sizeof(m.model_digest));
    request(c, p, &open);
}

static void step_reserve(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Reserve reserve = KVCOBRA__RESERVE__INIT;
    Kvcobra__ReserveItem items[MODEL_ITEMS_MAX], *pointers[MODEL_ITEMS_MAX];
    struct chunk_key keys[MODEL_ITEMS_MAX];

    p->n = 1 + choose(MODEL_ITEMS_MAX);
    for (uint32_t i = 0; i < p->n; i++) {
        p->pages[i].key = (uint8_t) choose(MODEL_KEYS);
        keys[i] = model_key(p->pages[i].key);
        kvcobra__reserve_item__init(&items[i]);
        items[i].key = bytes_of(&keys[i], sizeof(keys[i]));
        items[i].page_class = model_class(p->pages[i].key);
        pointers[i] = &items[i];
    }
    reserve.model = c->session ? c->session->handle : 1;
    reserve.table_digest = table_bytes();
    reserve.n_items = p->n;
    reserve.items = pointers;
    request(c, p, &reserve);
}

/* Commits reservations of the session, or of another one, or the page that RESERVE found. */
static void step_commit(struct model_client *c, struct model_pending *p)
{
    const struct model_session *from = c->session;
    Kvcobra__Commit commit = KVCOBRA__COMMIT__INIT;
    Kvcobra__CommitItem items[MODEL_ITEMS_MAX], *pointers[MODEL_ITEMS_MAX];
    struct chunk_key keys[MODEL_ITEMS_MAX];
    unsigned how = take();

    p->n = 1 + how % MODEL_ITEMS_MAX;
    if (how & 0x80)
        from = choose_session();
    for (uint32_t i = 0; i < p->n; i++) {
        uint8_t variant = take();

        if (from && from->n_reservations > 0)
            p->pages[i] = from->reservations[(how / 4 + i) % from->n_reservations];
        keys[i] = model_key(p->pages[i].key);
        if (c->session)
            model_write_page(&m, c->session, p->pages[i].key, i, variant);
        kvcobra__commit_item__init(&items[i]);
        items[i].slot = p->pages[i].slot;
        items[i].generation = p->pages[i].generation;
        items[i].key = bytes_of(&keys[i], sizeof(keys[i]));
        items[i].arena_offset = (uint64_t) i * MODEL_PAGE_ROOM;
        pointers[i] = &items[i];
    }
    commit.model = c->session ? c->session->handle : 1;
    commit.n_items = p->n;
    commit.items = pointers;
    request(c, p, &commit);
}

static void step_abort(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Abort abort_all = KVCOBRA__ABORT__INIT;
    Kvcobra__AbortItem item = KVCOBRA__ABORT_ITEM__INIT, *pointer = &item;
    const struct model_session *from = choose(4) == 0 ? choose_session() : c->session;

    if (from && from->n_reservations > 0) {
        p->pages[0] = from->reservations[take() % from->n_reservations];
        p->pages[0].generation = from->reservations[take() % from->n_reservations].generation;
    }
    item.slot = p->pages[0].slot;
    item.generation = p->pages[0].generation;
    abort_all.n_items = 1;
    abort_all.items = &pointer;
    request(c, p, &abort_all);
}

/* Leases pages that sessions of this tenant or of another one hold, and places that are in no index. */
static void step_lease(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Lease lease = KVCOBRA__LEASE__INIT;
    Kvcobra__LeaseItem items[MODEL_ITEMS_MAX], *pointers[MODEL_ITEMS_MAX];
    struct chunk_key keys[MODEL_ITEMS_MAX];
    unsigned tenant = c->tenant;

    p->n = 1 + choose(MODEL_ITEMS_MAX);
    if (choose(4) == 0)
        tenant = choose(MODEL_TENANTS);
    for (uint32_t i = 0; i < p->n; i++) {
        uint8_t key = (uint8_t) choose(MODEL_KEYS);
        const struct model_item *held = model_find_held(&m, tenant, key);

        p->pages[i] =
            held ? held->page : (struct model_page){.key = key, .slot = take(), .generation = take()};
        keys[i] = model_key(key);
        kvcobra__lease_item__init(&items[i]);
        items[i].key = bytes_of(&keys[i], sizeof(keys[i]));
        items[i].slot = p->pages[i].slot;
        items[i].generation = p->pages[i].generation;
        pointers[i] = &items[i];
    }
    lease.model = c->session ? c->session->handle : 1;
    lease.table_digest = table_bytes();
    lease.n_items = p->n;
    lease.items = pointers;
    request(c, p, &lease);
}

static void step_release(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Release release = KVCOBRA__RELEASE__INIT;
    const struct model_session *from = choose(8) == 0 ? choose_session() : c->session;

    if (from)
        p->leases[0] = from->leases[choose(MODEL_LEASES_MAX)].id;
    p->bitmap = take();
    p->whole = p->bitmap == 0;
    release.lease = p->leases[0];
    if (!p->whole)
        release.bitmap = bytes_of(&p->bitmap, 1);
    request(c, p, &release);
}

static void step_keep_leases(struct model_client *c, struct model_pending *p)
{
    Kvcobra__KeepLeases keep = KVCOBRA__KEEP_LEASES__INIT;

    p->n = choose(MODEL_ITEMS_MAX + 1);
    for (uint32_t i = 0; c->session && i < p->n; i++)
        p->leases[i] = c->session->leases[choose(MODEL_LEASES_MAX)].id;
    keep.n_leases = p->n;
    keep.leases = p->leases;
    keep.last = true;
    request(c, p, &keep);
}

/* Raw vectors: numbers that the arena happens to hold, of which NaN is refused. */
static void step_append_raw(struct model_client *c, struct model_pending *p)
{
    Kvcobra__AppendRaw append = KVCOBRA__APPEND_RAW__INIT;
    uint32_t tokens[CHUNK_TOKENS] = {take()};
    struct chunk_key parent = model_key(take() % 4);
    uint8_t numbers[2 * VECTOR_BYTES];

    memset(numbers, 0x31, sizeof(numbers));
    if (c->session && c->session->arena_fd >= 0)
        rig_check(pwrite(c->session->arena_fd, numbers, sizeof(numbers), ARENA_BYTES / 2) > 0);
    append.model = c->session ? c->session->handle : 1;
    append.table_digest = table_bytes();
    append.tokens = tokens;
    append.n_tokens = CHUNK_TOKENS;
    append.type = KVCOBRA__NUMBER_TYPE__NUMBER_F16;
    append.k_offset = ARENA_BYTES / 2;
    append.v_offset = ARENA_BYTES / 2 + VECTOR_BYTES;
    append.only_find = choose(4) == 0;
    if (tokens[0] & 1) {
        append.parent_key = bytes_of(&parent, sizeof(parent));
        append.first_position = CHUNK_TOKENS;
    }
    request(c, p, &append);
}

static void step_read_raw(struct model_client *c, struct model_pending *p)
{
    Kvcobra__ReadRaw read_raw = KVCOBRA__READ_RAW__INIT;

    if (c->session)
        read_raw.lease = c->session->leases[choose(MODEL_LEASES_MAX)].id;
    read_raw.item = choose(2);
    read_raw.side = choose(3);
    read_raw.type = KVCOBRA__NUMBER_TYPE__NUMBER_F16;
    read_raw.arena_offset = ARENA_BYTES / 2 - (take() & 1);
    request(c, p, &read_raw);
}

static void step_bye(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Bye bye = KVCOBRA__BYE__INIT;

    request(c, p, &bye);
}

static void step_get_extent(struct model_client *c, struct model_pending *p)
{
    Kvcobra__GetExtent get = KVCOBRA__GET_EXTENT__INIT;

    get.extent = take();
    request(c, p, &get);
}

static void step_unref_table(struct model_client *c, struct model_pending *p)
{
    Kvcobra__UnrefTable unref = KVCOBRA__UNREF_TABLE__INIT;

    unref.model = 1;
    unref.digest = table_bytes();
    request(c, p, &unref);
}

/* ---- steps of the operator ---- */

static void step_evict(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Evict evict = KVCOBRA__EVICT__INIT;
    char name[16];

    (void) snprintf(name, sizeof(name), "uid-%u", MODEL_UID + choose(MODEL_TENANTS));
    evict.tenant = take() & 1 ? name : (char *) "";
    request(c, p, &evict);
}

static void step_set_quota(struct model_client *c, struct model_pending *p)
{
    Kvcobra__SetQuota set = KVCOBRA__SET_QUOTA__INIT;
    char name[16];

    (void) snprintf(name, sizeof(name), "uid-%u", MODEL_UID + choose(MODEL_TENANTS));
    set.tenant = name;
    set.quota_bytes = (uint64_t) take() << 12;
    set.set_guarantee = take() & 1;
    set.guarantee_bytes = (uint64_t) choose(4) << 18;
    m.quota_was_lowered = true;
    request(c, p, &set);
}

static void step_status(struct model_client *c, struct model_pending *p)
{
    Kvcobra__GetStatus status = KVCOBRA__GET_STATUS__INIT;

    request(c, p, &status);
}

static void step_drain(struct model_client *c, struct model_pending *p)
{
    Kvcobra__Drain drain = KVCOBRA__DRAIN__INIT;

    drain.off = choose(4) != 0;
    drain.ask = choose(2);
    request(c, p, &drain);
}

static void step_retire(struct model_client *c, struct model_pending *p)
{
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;

    if (choose(8) != 0) { /* seldom: nothing can be stored afterwards */
        step_status(c, p);
        return;
    }
    p->body_case = KVCOBRA__REQUEST__BODY_RETIRE_TABLE;
    retire.digest = table_bytes();
    request(c, p, &retire);
}

static const struct {
    unsigned body_case;
    void (*run)(struct model_client *c, struct model_pending *p);
} requests[] =
    {
        {KVCOBRA__REQUEST__BODY_OPEN_MODEL, step_open_model},
        {KVCOBRA__REQUEST__BODY_RESERVE, step_reserve},
        {KVCOBRA__REQUEST__BODY_COMMIT, step_commit},
        {KVCOBRA__REQUEST__BODY_LEASE, step_lease},
        {KVCOBRA__REQUEST__BODY_RELEASE, step_release},
        {KVCOBRA__REQUEST__BODY_RESERVE, step_reserve},
        {KVCOBRA__REQUEST__BODY_COMMIT, step_commit},
        {KVCOBRA__REQUEST__BODY_ABORT, step_abort},
        {KVCOBRA__REQUEST__BODY_KEEP_LEASES, step_keep_leases},
        {KVCOBRA__REQUEST__BODY_APPEND_RAW, step_append_raw},
        {KVCOBRA__REQUEST__BODY_READ_RAW, step_read_raw},
        {KVCOBRA__REQUEST__BODY_GET_EXTENT, step_get_extent},
        {KVCOBRA__REQUEST__BODY_UNREF_TABLE, step_unref_table},
        {KVCOBRA__REQUEST__BODY_BYE, step_bye},
},
  operations[] = {
      {KVCOBRA__REQUEST__BODY_EVICT, step_evict},       {KVCOBRA__REQUEST__BODY_SET_QUOTA, step_set_quota},
      {KVCOBRA__REQUEST__BODY_GET_STATUS, step_status}, {KVCOBRA__REQUEST__BODY_DRAIN, step_drain},
      {KVCOBRA__REQUEST__BODY_GET_STATUS, step_retire},
};

enum {
    N_REQUESTS = sizeof(requests) / sizeof(requests[0]),
    N_OPERATIONS = sizeof(operations) / sizeof(operations[0])
};

static void step_request(unsigned which, struct model_client *c)
{
    unsigned body_case =
        c->is_operator ? operations[which % N_OPERATIONS].body_case : requests[which].body_case;
    struct model_pending *p = c->link ? model_request(&m, c, body_case) : NULL;

    if (!p)
        return;
    if (c->is_operator)
        operations[which % N_OPERATIONS].run(c, p);
    else
        requests[which].run(c, p);
}

/* ---- steps without a request ---- */

static void step_packet(struct model_client *c)
{
    size_t n = take();

    n = n < in.n_bytes ? n : in.n_bytes;
    if (c->link && n > 0)
        rig_send(c->link, in.data, n, NULL, 0);
    in.data += n;
    in.n_bytes -= n;
}

static void process_exits(struct model_session *x)
{
    struct ev_source *watch = NULL;

    for (uint32_t i = 0; x->exists && i < m.server->sessions->n_max; i++) {
        const struct session *s = m.server->sessions->list[i];

        if (s && memcmp(s->token, x->token, sizeof(x->token)) == 0)
            watch = s->exit_watch;
    }
    if (!watch)
        return;
    model_process_exits(&m, x);
    rig_wake(watch);
}

static void step(void)
{
    unsigned what = take();
    struct model_client *c = &m.clients[what / 32 % MODEL_CLIENTS];

    what %= 32;
    if (what < N_REQUESTS)
        step_request(what, c);
    else if (what < 24)
        step_hello(c);
    else if (what == 24 && c->link)
        rig_close(c->link);
    else if (what == 25)
        step_packet(c);
    else if (what == 26)
        process_exits(choose_session());
    else if (what == 27)
        rig_pass_time(take());
    else if (what == 28)
        rig_pass_time(config.lease_ms + 1);
    else
        (void) rig_work();
    model_settle(&m);
}

/* ---- start and end ---- */

static void start_daemon(unsigned how, const char *state_dir)
{
    static void *table;
    static size_t n_table;
    enum table_outcome outcome;
    struct table_entry *t;
    struct space *space;

    if (!table) {
        log_open(LOG_EMERG);
        geometry = random_table_geometry(1, 1, 1, 32);
        rig_check(random_table_bytes(&geometry, 1, 2, PREDICT_NONE, &table, &n_table) == 0);
    }
    config_init(&config);
    config.pool_bytes = 1 << 20;
    config.extent_bytes = 1 << 18;
    config.span_bytes = 1 << 16;
    config.spare_extents = 4; /* all: no request waits for one */
    config.arena_bytes = ARENA_BYTES;
    config.quota_bytes = 1 << 19;
    config.ghosts_per_tenant = 16;
    config.connections_max = 8;
    config.connections_per_tenant_max = 4;
    config.sessions_per_tenant_max = 4;
    config.tenants_max = 4;
    config.leases_per_session_max = MODEL_LEASES_MAX;
    config.reservations_per_session_max = MODEL_RESERVATIONS_MAX;
    config.work_queue_max = 4;
    config.work_inline_bytes = how & 1 ? 0 : 1 << 16;
    config.state_dir = state_dir;
    m = (struct model){.server = rig_start(&config, state_dir != NULL)};
    while (rig_work())
        ;
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++)
        m.sessions[i].arena_fd = -1;

    rig_check(tables_stage(m.server->tables, table, n_table, 0, &outcome, &t, NULL) == 0);
    memcpy(m.table_digest, t->digest, DIGEST_BYTES);
    memcpy(m.model_digest, t->model_digest, DIGEST_BYTES);
    rig_check(
        tables_activate(m.server->tables, &(struct table_activation){.digest = t->digest}, 1, 0, NULL) == 0);
    rig_check(tables_space(m.server->tables, t, (struct shard){0, 1}, &space, NULL) == 0);
    m.layout = &space->layout;
}

void history_begin(const uint8_t *data, size_t n_bytes, const char *state_dir)
{
    in = (struct input){.data = data, .n_bytes = n_bytes};
    start_daemon(take(), state_dir);
}

bool history_step(void)
{
    if (in.n_bytes == 0)
        return false;
    step();
    return true;
}

struct model *history_model(void)
{
    return &m;
}

void history_stop(void)
{
    rig_stop(m.server);
    m.server = NULL;
    for (unsigned i = 0; i < MODEL_CLIENTS; i++)
        m.clients[i].link = rig_link_free(m.clients[i].link);
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++)
        closep(&m.sessions[i].arena_fd);
    config_deinit(&config);
}

void history_end(void)
{
    while (rig_work())
        ;
    model_settle(&m);
    for (unsigned i = 0; i < MODEL_CLIENTS; i++)
        if (m.clients[i].link)
            rig_close(m.clients[i].link);
    model_settle(&m);
    for (unsigned i = 0; i < MODEL_SESSIONS_MAX; i++)
        process_exits(&m.sessions[i]);
    while (rig_work())
        ;
    model_settle(&m);
    rig_check(m.server->sessions->n == 0 && m.server->conns->n_clients == 0);
    for (const struct tenant *t = m.server->devices->list[0].store.tenants; t; t = t->next)
        rig_check(t->held_bytes == 0 && t->arena_bytes == 0 && t->n_sessions == 0);
    history_stop();
}
