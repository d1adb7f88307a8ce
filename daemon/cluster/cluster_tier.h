/* The cluster as a tier (daemon/tier/tier.h): requests by name become calls to kvcobra-cluster. */
#pragma once

#include <stdint.h>

#include "daemon/cluster/cluster_link.h"
#include "daemon/tier/tier.h"

struct cluster_tier;
struct keyring;

extern const struct tier_ops cluster_tier_ops; /* of a struct cluster_tier */

/* @options: for the link. @ttl_ms: of pages. Return: see cluster_link_new(); -ENOMEM. */
int cluster_tier_new(struct ev *ev, const struct cluster_link_options *options, const struct keyring *ring,
                     uint64_t ttl_ms, struct cluster_tier **ret, struct errmsg *e);

struct cluster_link *cluster_tier_link(const struct cluster_tier *t);
