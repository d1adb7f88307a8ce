/*
 * Quotas and guarantees of single tenants, which an operator sets (SET_QUOTA). All other tenants have those
 * of the configuration. With a state folder they survive a restart:
 *
 *     DIR/quotas   "kvcobra quotas 1", then one line per tenant:
 *                  <uid>[@<device>] <quota bytes or -> <guarantee bytes or ->
 */
#pragma once

struct errmsg;
struct server;
struct tenant;

/*
 * At the start, before pages are restored: creates the tenants of the file with their quotas. A line that
 * cannot be applied (a guarantee that no longer fits the pool) is logged and ignored.
 */
void quota_load(struct server *s);

/* After a reload of the configuration: tenants without a quota of their own get the new one. */
void quota_reload(struct server *s);
