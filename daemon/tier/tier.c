/* See tier.h. */
#include "daemon/tier/tier.h"

#include <assert.h>
#include <string.h>

const char *const tier_state_names[] = {
    [TIER_OPENING] = "opening", [TIER_READY] = "ready", [TIER_OFF] = "off"};

void tier_group_init(struct tier_group *g, const char *tenant)
{
    size_t n = strlen(tenant);

    assert(n < TIER_TENANT_BYTES);
    memset(g, 0, sizeof(*g)); /* padding, too */
    memcpy(g->tenant, tenant, n);
}

bool tier_group_equal(const struct tier_group *a, const struct tier_group *b)
{
    return strcmp(a->tenant, b->tenant) == 0 &&
           memcmp(a->table_digest, b->table_digest, sizeof(a->table_digest)) == 0 &&
           a->first_head == b->first_head && a->n_heads == b->n_heads && a->page_class == b->page_class &&
           a->page_bytes == b->page_bytes;
}
