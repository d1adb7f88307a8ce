/* See disk_tier.h. */
#include "daemon/tier/disk_tier.h"

#include "daemon/tier/disk.h"

static int disk_tier_submit(void *tier, struct tier_share *s, struct tier_request *r)
{
    return disk_submit(tier, s, r);
}

static uint8_t *disk_tier_take(void *tier, uint64_t page_bytes)
{
    return disk_buffer_take(tier, page_bytes);
}

static void disk_tier_give_back(void *tier, uint8_t *data)
{
    disk_buffer_give_back(tier, data);
}

static bool disk_tier_fits(void *tier, uint64_t page_bytes)
{
    return disk_fits(tier, page_bytes);
}

static bool disk_tier_has(void *tier, const char *tenant, const struct chunk_key *key)
{
    return disk_has_probably(tier, tenant, key);
}

const struct tier_ops disk_tier_ops = {
    .name = "disk",
    .submit = disk_tier_submit,
    .take = disk_tier_take,
    .give_back = disk_tier_give_back,
    .fits = disk_tier_fits,
    .has = disk_tier_has,
};
