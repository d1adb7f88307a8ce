/*
 * Names of pages in the cluster: keyed hashes, so that the cluster learns neither tenants nor chunk keys. Two
 * hosts of a fleet give a page the same name if tenant, table, shard, class and chunk key are the same.
 */
#pragma once

#include <stdint.h>

#include "proto/cluster_wire.h"
#include "proto/page.h"

struct tier_group;
struct keyring;

#define CLUSTER_NAME_KEY_BYTES 32

/* The key of the hashes, from the index secret of the fleet. */
void cluster_name_key(const struct keyring *k, uint8_t ret[static CLUSTER_NAME_KEY_BYTES]);

void cluster_name(const uint8_t name_key[static CLUSTER_NAME_KEY_BYTES], const struct tier_group *group,
                  const struct chunk_key *key, uint8_t ret[static CLUSTER_NAME_BYTES]);
