/*
 * The memory of a daemon, by operator_call(): its status, evicting pages, limits of tenants. Used by several
 * commands and by tests. Every function returns 0, or a negative errno with a sentence.
 */
#pragma once

#include "tools/command/operator_call.h"

/*
 * The whole status, with all tenants and tables; the digests of tables are digests. On the socket of clients:
 * the version, draining and the own tenant, all else is 0. Free as operator_message_freep().
 */
int operator_get_status(kvc_client *c, Kvcobra__StatusReply **ret, struct errmsg *e);

/**
 * operator_get_tenant() - one tenant, of the operators' socket
 * @tenant: as GetStatus of kvcobra.proto names it; -ENOENT: not a tenant's name
 * @ret:    a status with this tenant and its device alone; free as operator_message_freep()
 */
int operator_get_tenant(kvc_client *c, const char *tenant, Kvcobra__StatusReply **ret, struct errmsg *e);

/**
 * operator_evict() - evict pages that no client holds
 * @tenant, @digest: of this tenant, of this table; NULL: of all
 * @ret:             the pages and bytes that were evicted; may be NULL
 */
int operator_evict(kvc_client *c, const char *tenant, const uint8_t *digest, Kvcobra__EvictReply *ret,
                   struct errmsg *e);

#define OPERATOR_QUOTA_KEEP UINT64_MAX /* leaves a limit as it is */

/**
 * operator_set_quota() - change the limits of a tenant
 * @tenant: as SetQuota of kvcobra.proto names it; -ENOENT: not a tenant's name
 * @ret:    the limits before and after; untouched on failure; may be NULL
 *
 * -EINVAL: both limits are OPERATOR_QUOTA_KEEP.
 */
int operator_set_quota(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                       Kvcobra__SetQuotaReply *ret, struct errmsg *e);
