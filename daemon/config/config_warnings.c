/* See config_warnings.h. */
#include "daemon/config/config_warnings.h"

#include <inttypes.h>

#include "base/errmsg.h"
#include "daemon/config/config.h"

enum { CLIENTS_FEW = 4 };

static double config_gib(uint64_t bytes)
{
    return (double) bytes / (double) (UINT64_C(1) << 30);
}

uint64_t config_clients_per_tenant(const struct config *c)
{
    return (c->quota_bytes - 1) / c->arena_bytes;
}

/* Memory is allocated as the pool fills, so this shows long after the start. */
static void config_warn_of_memory(const struct config *c, uint64_t memory_bytes, config_warn_fn *warn,
                                  void *ctx)
{
    struct errmsg e;

    if (memory_bytes == 0 || c->pool_bytes <= memory_bytes)
        return;
    errmsg_set(
        &e,
        "--pool-bytes is %.2f GiB, and this machine or control group has %.2f GiB: when the pool grows "
        "beyond that, requests fail or the kernel kills processes. Lower --pool-bytes",
        config_gib(c->pool_bytes), config_gib(memory_bytes));
    warn(ctx, "pool-exceeds-memory", e.text);
}

static void config_warn_of_arenas(const struct config *c, config_warn_fn *warn, void *ctx)
{
    uint64_t n = config_clients_per_tenant(c);
    struct errmsg e;

    if (c->arena_bytes > c->pool_bytes) {
        errmsg_set(&e,
                   "one client's arena (--arena-bytes %" PRIu64
                   ") is larger than the pool (--pool-bytes %" PRIu64
                   "): the arena is memory for pages on their way to the pool. Lower --arena-bytes",
                   c->arena_bytes, c->pool_bytes);
        warn(ctx, "arena-exceeds-pool", e.text);
    } else if (n < CLIENTS_FEW) {
        errmsg_set(&e,
                   "a tenant has room for %" PRIu64 " clients: the arena of each (--arena-bytes %" PRIu64
                   ") counts in the tenant's --quota-bytes %" PRIu64
                   ". Lower --arena-bytes or raise --quota-bytes",
                   n, c->arena_bytes, c->quota_bytes);
        warn(ctx, "few-clients", e.text);
    }
}

void config_warnings(const struct config *c, uint64_t memory_bytes, config_warn_fn *warn, void *ctx)
{
    struct errmsg e;

    if (config_has_few_extents(c, &e))
        warn(ctx, "few-extents", e.text);
    config_warn_of_memory(c, memory_bytes, warn, ctx);
    config_warn_of_arenas(c, warn, ctx);
}
