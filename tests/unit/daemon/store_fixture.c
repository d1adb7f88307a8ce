/* See store_fixture.h. */
#include "tests/unit/daemon/store_fixture.h"

#include <string.h>

#include "gpu/device.h"
#include "tests/lib/test.h"

/* Bytes of a slot by space and class: sizes that share no common multiple below a span, so that ends are
 * wasted. */
static const size_t slot_bytes[FIXTURE_SPACES][2] = {{1536, 1024}, {3072, 2176}, {40960, 36864}};

int store_fixture_memory(struct store_fixture *f, int gpu_fd, struct pool_memory *ret)
{
    const struct pool *p = &f->device.store.pool;

    *ret = POOL_MEMORY_NONE;
    ret->id = f->serials.next_extent++;
    ret->gpu_fd = gpu_fd;
    assert(slot_records_init(&ret->records, (uint32_t) (p->extent_bytes / p->unit_bytes), p->unit_bytes,
                             NULL) == 0);
    return gpu_fd < 0 ? extent_new("kvc-test", p->extent_bytes, EXTENT_READ, &ret->memory, NULL) : 0;
}

static int take_from_host(void *ctx, struct pool_memory *ret, struct errmsg *e)
{
    (void) e;
    return store_fixture_memory(ctx, -1, ret);
}

void store_fixture_init(struct store_fixture *f, uint64_t pool_bytes, uint64_t extent_bytes,
                        uint64_t unit_bytes, uint64_t quota_bytes)
{
    uint8_t secret[32] = {1}, boot_id[BOOT_ID_BYTES] = {2};

    memset(f, 0, sizeof(*f));
    f->serials.next_extent = 1;
    assert(pool_init(&f->device.store.pool, &f->serials, pool_bytes, extent_bytes, unit_bytes, NULL) == 0);
    f->source = (struct pool_source){take_from_host, f};
    f->device.store.pool.source = &f->source;
    for (unsigned i = 0; i < FIXTURE_TENANTS; i++) {
        struct account *account;
        struct tenant_options o;

        assert(accounts_get(&f->accounts, 1000 + i, &account, NULL) == 0);
        o = (struct tenant_options){
            .account = account,
            .device = &f->device,
            .quota_bytes = quota_bytes,
            .secret = secret,
            .boot_id = boot_id,
            .n_ghosts = 64,
        };

        assert(tenant_new(&o, &f->tenants[i], NULL) == 0);
        (void) account_unref(account); /* the tenant has a reference */
        f->tenants[i]->next = f->device.store.tenants;
        f->device.store.tenants = f->tenants[i];
        f->device.store.n_tenants++;
    }
    for (unsigned i = 0; i < FIXTURE_SPACES; i++) {
        for (unsigned c = 0; c < 2; c++) {
            f->spaces[i].layout.slot_bytes[c] = slot_bytes[i][c];
            f->spaces[i].layout.page_bytes[c] = slot_bytes[i][c] - 64;
        }
        f->spaces[i].layout.shard = (struct shard){0, 2};
        f->spaces[i].id = i;
        memset(f->spaces[i].table_digest, (int) i + 1, DIGEST_BYTES);
    }
}

void store_fixture_deinit(struct store_fixture *f)
{
    for (unsigned i = 0; i < FIXTURE_SPACES; i++)
        store_drop_space(&f->device.store, &f->spaces[i], GHOST_EVICTED);
    for (unsigned i = 0; i < FIXTURE_TENANTS; i++) {
        CU_ASSERT_EQUAL(f->tenants[i]->page_bytes, 0);
        CU_ASSERT_EQUAL(f->tenants[i]->n_pages, 0);
        (void) tenant_free(f->tenants[i]);
    }
    pool_deinit(&f->device.store.pool);
}

struct group *store_fixture_group(struct store_fixture *f, unsigned tenant, unsigned space,
                                  unsigned page_class)
{
    struct group *g;

    assert(tenant_group(f->tenants[tenant], &f->spaces[space], page_class, &g) == 0);
    return g;
}

struct chunk_key store_fixture_key(uint64_t n)
{
    struct chunk_key k = {{0}};
    uint64_t h = (n + 1) * 0x9e3779b97f4a7c15u,
             g = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u; /* both halves spread, as hashes do */

    memcpy(k.bytes, &h, sizeof(h));
    memcpy(k.bytes + 8, &g, sizeof(g));
    return k;
}

uint32_t store_fixture_publish(struct store_fixture *f, struct group *g, uint64_t n, int *ret_err)
{
    struct chunk_key key = store_fixture_key(n);
    struct page_handle h;
    int r = reserve_slot(&f->device.store, g, 0, &h, NULL);

    if (ret_err)
        *ret_err = r;
    if (r < 0)
        return SLOT_NONE;
    assert(store_publish(&f->device.store, &h, &key, 0, NULL) == 0);
    return h.number;
}
