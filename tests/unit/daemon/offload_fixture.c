/* See offload_fixture.h. */
#include "tests/unit/daemon/offload_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/splitmix64.h"
#include "daemon/loop/ev.h"
#include "daemon/store/evict_queue.h"
#include "daemon/store/reserve.h"
#include "daemon/tier/keyring.h"
#include "gpu/device.h"
#include "proto/page.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"
#include "tests/unit/daemon/faulty_engine.h"

enum { PAGES_IN_MEMORY = 64, SLOTS_PER_SPAN = 8, RUN_MS = 1, PAGE_HEAD = PAGE_HEADER_BYTES };

/* ---- memory ---- */

static int offload_fixture_take(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    struct offload_fixture *f = ctx;
    const struct pool *p = &f->devices.list[0].store.pool;

    (void) e;
    *ret = POOL_MEMORY_NONE;
    ret->id = f->devices.serials.next_extent++;
    assert(slot_records_init(&ret->records, (uint32_t) (p->extent_bytes / p->unit_bytes), p->unit_bytes,
                             NULL) == 0);
    return extent_new("kvc-test", p->extent_bytes, EXTENT_READ, &ret->memory, NULL);
}

static void offload_fixture_make_pool(struct offload_fixture *f, unsigned n_tenants)
{
    struct device *d = &f->devices.list[0];
    uint64_t unit = (f->space.layout.slot_bytes[PAGE_REST] * SLOTS_PER_SPAN + 65535) / 65536 * 65536;
    uint64_t n_spans = PAGES_IN_MEMORY / SLOTS_PER_SPAN + 2 * (uint64_t) n_tenants;

    f->devices.n = 1;
    f->devices.config = &f->config;
    f->devices.serials.next_extent = 1;
    assert(pool_init(&d->store.pool, &f->devices.serials, n_spans * unit, unit, unit, NULL) == 0);
    f->source = (struct pool_source){offload_fixture_take, f};
    d->store.pool.source = &f->source;
}

static void offload_fixture_add_tenant(struct offload_fixture *f)
{
    static const uint8_t secret[32] = {1}, boot_id[BOOT_ID_BYTES] = {2};
    struct device *d = &f->devices.list[0];
    struct account *account;
    struct tenant_options o = {
        .device = d, .quota_bytes = UINT64_C(1) << 40, .secret = secret, .boot_id = boot_id, .n_ghosts = 64};
    struct tenant **t = &f->tenants[f->n_tenants];

    assert(accounts_get(&f->devices.accounts, 1000 + f->n_tenants, &account, NULL) == 0);
    o.account = account;
    assert(tenant_new(&o, t, NULL) == 0);
    (void) account_unref(account); /* the tenant has a reference */
    (*t)->n_sessions = 1;          /* so that it has a filter */
    (*t)->next = d->store.tenants;
    d->store.tenants = *t;
    d->store.n_tenants++;
    f->n_tenants++;
}

static void offload_fixture_make_space(struct offload_fixture *f, size_t page_bytes)
{
    memset(f->table.digest, 3, sizeof(f->table.digest));
    memset(f->entry.model_digest, 4, sizeof(f->entry.model_digest));
    f->entry.table = &f->table;
    f->space = (struct space){.table = &f->entry,
                              .layout = {.table = &f->table, .shard = {0, 2}, .sinks_off = page_bytes}};
    for (unsigned class = 0; class < 2; class ++) {
        f->space.layout.payload_bytes[class] = page_bytes - PAGE_HEAD;
        f->space.layout.page_bytes[class] = page_bytes;
        f->space.layout.slot_bytes[class] = (page_bytes + PAGE_ALIGN - 1) / PAGE_ALIGN * PAGE_ALIGN;
    }
    memcpy(f->space.table_digest, f->table.digest, DIGEST_BYTES);
}

/* ---- start and end ---- */

void offload_fixture_init(struct offload_fixture *f, unsigned n_tenants, size_t page_bytes)
{
    static const uint8_t secret[KEYRING_SECRET_BYTES] = {7};

    assert(n_tenants <= OFFLOAD_TENANTS_MAX);
    memset(f, 0, sizeof(*f));
    (void) snprintf(f->folder, sizeof(f->folder), "/tmp/kvcobra-offload-XXXXXX");
    assert(mkdtemp(f->folder));
    config_init(&f->config);
    f->config.disk_dir = f->folder;
    f->config.disk_bytes = OFFLOAD_SEGMENTS * (uint64_t) OFFLOAD_SEGMENT_BYTES;
    f->config.disk_quota_bytes = f->config.disk_bytes;
    f->config.disk_buffer_bytes = UINT64_C(8) << 20;
    assert(ev_new(&f->ev, NULL) == 0);
    assert(keyring_of_host(secret, &f->ring, NULL) == 0);
    offload_fixture_make_space(f, page_bytes);
    offload_fixture_make_pool(f, n_tenants);
    while (f->n_tenants < n_tenants)
        offload_fixture_add_tenant(f);
    faulty_reset();
}

static bool offload_fixture_has_opened(struct offload_fixture *f)
{
    return f->offload->state != TIER_OPENING;
}

void offload_fixture_open(struct offload_fixture *f)
{
    struct offload_rooms rooms = {&f->config, f->ev, NULL, &f->devices, faulty_engines};
    struct errmsg e = {""};

    if (!f->work)
        assert(work_new(f->ev, 1, f->n_work_items > 0 ? f->n_work_items : 64, &f->work, NULL) == 0);
    rooms.work = f->work;
    if (offload_new(&rooms, f->ring, &f->offload, &e) < 0) {
        (void) fprintf(stderr, "%s\n", e.text);
        abort();
    }
    offload_fixture_run(f, offload_fixture_has_opened);
}

void offload_fixture_close(struct offload_fixture *f)
{
    offload_stop(f->offload);
    f->work = work_free(f->work);
    f->offload = offload_free(f->offload, WAIT_LIMIT_S * 1000);
    for (unsigned i = 0; i < f->n_tenants; i++) {
        const struct account *a = f->tenants[i]->account;

        CU_ASSERT(a->tier_shares[0].n_requests == 0 && a->work_share.n_items == 0 && a->n_refs == 1);
    }
}

void offload_fixture_deinit(struct offload_fixture *f)
{
    static const char *const files[] = {"records", "records.new", "pages"};
    struct errmsg e = {""};
    char path[128];

    offload_fixture_close(f);
    if (!store_is_valid(&f->devices.list[0].store, &e)) {
        (void) fprintf(stderr, "%s\n", e.text);
        CU_FAIL("the store is damaged");
    }
    CU_ASSERT_EQUAL_FATAL(f->space.n_busy, 0);
    store_drop_space(&f->devices.list[0].store, &f->space, GHOST_EVICTED);
    for (unsigned i = 0; i < f->n_tenants; i++) {
        CU_ASSERT_EQUAL(f->tenants[i]->page_bytes, 0);
        (void) tenant_free(f->tenants[i]);
    }
    pool_deinit(&f->devices.list[0].store.pool);
    f->ev = ev_free(f->ev);
    f->ring = keyring_unref(f->ring);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void) snprintf(path, sizeof(path), "%s/%s", f->folder, files[i]);
        (void) unlink(path);
    }
    (void) rmdir(f->folder);
}

/* ---- pages ---- */

struct chunk_key offload_fixture_key(uint64_t number)
{
    struct chunk_key k;
    uint64_t words[2] = {splitmix64_mix(number + 1), splitmix64_mix(number + (UINT64_C(1) << 32))};

    memcpy(k.bytes, words, sizeof(words));
    return k;
}

struct group *offload_fixture_group(struct offload_fixture *f, unsigned tenant)
{
    struct group *g;

    assert(tenant_group(f->tenants[tenant], &f->space, PAGE_REST, &g) == 0);
    return g;
}

/* Return: the checksum of the payload. */
static uint32_t offload_fixture_make_page(const struct offload_fixture *f, unsigned tenant, uint64_t number,
                                          uint8_t *ret)
{
    size_t payload_bytes = f->space.layout.payload_bytes[PAGE_REST];
    struct page_header h = {.format_version = PAGE_FORMAT_VERSION,
                            .codec_id = PAGE_CODEC_HALF_TILES,
                            .key = offload_fixture_key(number),
                            .n_heads = 2,
                            .first_position = CHUNK_TOKENS,
                            .n_tokens = CHUNK_TOKENS,
                            .payload_bytes = payload_bytes};
    uint64_t state = number << 8 | tenant;

    for (size_t i = 0; i < payload_bytes; i += 8) {
        uint64_t v = splitmix64_next(&state);

        memcpy(ret + PAGE_HEAD + i, &v, 8);
    }
    memcpy(h.table_digest, f->table.digest, sizeof(h.table_digest));
    memcpy(h.model_digest, f->entry.model_digest, sizeof(h.model_digest));
    h.payload_crc32c = crc32c(ret + PAGE_HEAD, payload_bytes);
    page_header_store(&h, ret);
    return h.payload_crc32c;
}

uint32_t offload_fixture_publish(struct offload_fixture *f, unsigned tenant, uint64_t number)
{
    struct store *st = &f->devices.list[0].store;
    struct chunk_key key = offload_fixture_key(number);
    struct page_handle h;
    uint32_t crc;

    assert(reserve_slot(st, offload_fixture_group(f, tenant), 0, &h, NULL) == 0);
    crc = offload_fixture_make_page(f, tenant, number, pool_slot_data(&st->pool, &h));
    assert(store_publish(st, &h, &key, crc, NULL) == 0);
    return h.number;
}

bool offload_fixture_is_page(struct offload_fixture *f, unsigned tenant, uint64_t number, uint32_t slot)
{
    struct store *st = &f->devices.list[0].store;
    size_t bytes = f->space.layout.page_bytes[PAGE_REST];
    uint8_t *expected = malloc(bytes);
    struct page_handle h;
    bool is_page;

    assert(expected);
    (void) offload_fixture_make_page(f, tenant, number, expected);
    is_page = pool_resolve(&st->pool, slot, &h) && h.slot->state == SLOT_COMMITTED &&
              h.group->tenant == f->tenants[tenant] &&
              memcmp(pool_slot_data(&st->pool, &h), expected, bytes) == 0;
    free(expected);
    return is_page;
}

struct slot *offload_fixture_slot(struct offload_fixture *f, unsigned tenant, uint64_t number)
{
    struct store *st = &f->devices.list[0].store;
    struct chunk_key key = offload_fixture_key(number);
    struct page_handle h;

    return store_find(st, f->tenants[tenant], &key, &h) ? h.slot : NULL;
}

void offload_fixture_drop(struct offload_fixture *f, unsigned tenant, uint64_t number)
{
    struct store *st = &f->devices.list[0].store;
    struct chunk_key key = offload_fixture_key(number);
    struct page_handle h;

    assert(store_find(st, f->tenants[tenant], &key, &h));
    store_drop(st, &h, GHOST_EVICTED);
}

void offload_fixture_write_out(struct offload_fixture *f, unsigned tenant, uint64_t first, unsigned n)
{
    for (unsigned done = 0; done < n;) {
        unsigned part = n - done < SLOTS_PER_SPAN ? n - done : SLOTS_PER_SPAN;

        for (unsigned i = 0; i < part; i++) {
            uint32_t slot = offload_fixture_publish(f, tenant, first + done + i);

            evict_queue_note_use(pool_slot(&f->devices.list[0].store.pool, slot));
            store_unhold(&f->devices.list[0].store, PAGE(&f->devices.list[0].store, slot));
        }
        offload_fixture_run(f, offload_fixture_is_idle);
        for (unsigned i = 0; i < part; i++) {
            CU_ASSERT(offload_fixture_slot(f, tenant, first + done + i)->is_on_disk);
            offload_fixture_drop(f, tenant, first + done + i);
        }
        done += part;
    }
}

/* ---- running ---- */

struct offload_status offload_fixture_status(const struct offload_fixture *f)
{
    struct offload_status s;

    offload_status(f->offload, &s);
    return s;
}

struct offload_run {
    struct offload_fixture *f;
    bool (*is_done)(struct offload_fixture *f);
    struct wait wait;
    bool was_done;
};

static void offload_fixture_on_tick(void *ctx)
{
    struct offload_run *r = ctx;

    offload_note_requests(r->f->offload);
    r->was_done = r->is_done(r->f);
    if (r->was_done || !wait_again(&r->wait))
        ev_stop(r->f->ev);
}

void offload_fixture_run(struct offload_fixture *f, bool (*is_done)(struct offload_fixture *f))
{
    struct offload_run r = {.f = f, .is_done = is_done, .wait = wait_begin()};

    ev_tick_every(f->ev, RUN_MS, offload_fixture_on_tick, &r);
    CU_ASSERT_EQUAL_FATAL(ev_run(f->ev), 0);
    ev_tick_every(f->ev, 0, offload_fixture_on_tick, &r);
    CU_ASSERT_TRUE_FATAL(r.was_done);
}

bool offload_fixture_is_idle(struct offload_fixture *f)
{
    const struct offload *o = f->offload;

    return o->state == TIER_READY && o->pass.rests && o->pass.n_entered == o->store->pool.n_entered &&
           !o->sweep.runs && o->host->n_puts == 0;
}

bool offload_fixture_is_off(struct offload_fixture *f)
{
    return f->offload->state == TIER_OFF;
}

/* ---- fetches ---- */

static void offload_fixture_on_ended(struct offload_waiter *w, const struct page_handle *page)
{
    struct offload_arrival *a = (struct offload_arrival *) w;

    a->n_ended++;
    a->slot = page->number;
    if (page->slot)
        store_hold(&a->fixture->devices.list[0].store, page);
}

int offload_fixture_fetch(struct offload_fixture *f, struct offload_arrival *a, unsigned tenant,
                          uint64_t number)
{
    struct chunk_key key = offload_fixture_key(number);

    *a = (struct offload_arrival){.fixture = f,
                                  .slot = SLOT_NONE,
                                  .waiter = {.ended = offload_fixture_on_ended, .deadline_ms = UINT64_MAX}};
    return offload_fetch(f->offload, offload_fixture_group(f, tenant), &key, NULL, &a->waiter, NULL);
}

static const struct offload_arrival *awaited;

static bool offload_fixture_has_ended(struct offload_fixture *f)
{
    (void) f;
    return awaited->n_ended > 0;
}

void offload_fixture_await(struct offload_arrival *a)
{
    awaited = a;
    offload_fixture_run(a->fixture, offload_fixture_has_ended);
    CU_ASSERT_EQUAL(a->n_ended, 1);
}

bool offload_fixture_finds(struct offload_fixture *f, unsigned tenant, uint64_t number)
{
    struct offload_arrival a;

    if (offload_fixture_fetch(f, &a, tenant, number) < 0)
        return false;

    offload_fixture_await(&a);
    if (a.slot == SLOT_NONE)
        return false;

    CU_ASSERT(offload_fixture_is_page(f, tenant, number, a.slot));
    store_unhold(&f->devices.list[0].store, PAGE(&f->devices.list[0].store, a.slot));
    return true;
}
