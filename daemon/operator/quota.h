/*
 * Quotas and guarantees that an operator sets for single tenants (SET_QUOTA). They go before those of the
 * configuration: of the tenant's section, else of all tenants. With a state folder the operator's settings
 * survive a restart:
 *
 *     DIR/quotas   "kvcobra quotas 2", then one line per tenant:
 *                  <account>[@<device>] <quota bytes or -> <guarantee bytes or ->
 *
 * In version 1, which is read too, the account is a uid without "uid-".
 */
#pragma once

#include "daemon/store/device.h"

struct errmsg;
struct server;

/*
 * Called at the start, before pages are restored: creates the tenants of the file with their quotas, and
 * those with a guarantee in the configuration. Logs and ignores a line that cannot be applied: a guarantee
 * that no longer fits the pool, a tenant that the configuration no longer has.
 */
int quota_load(struct server *s, struct errmsg *e); /* 0; an error of the machine */

/*
 * Whether the guarantees of @fresh fit the pools beside those that operators set. Return: 0; -ENOSPC with a
 * sentence.
 */
int quota_check_reload(const struct server *s, const struct config *fresh, struct errmsg *e);

/* A tenant by its name, with its limits. */
struct quota_subject {
    struct tenant *tenant; /* NULL: no client of it has connected yet */
    struct device *device;
    struct tenant_limit limit; /* those that it has, or would get */
};

/* Changes and creates nothing. @text: as of SET_QUOTA. Return: 0; -ENOENT with a sentence: no such name. */
int quota_find(struct server *s, const char *text, struct quota_subject *ret, struct errmsg *e);

/* Called after a reload of the configuration: changes what no operator set, and creates tenants. */
void quota_reload(struct server *s);
