/*
 * Quotas and guarantees that an operator sets for single tenants (SET_QUOTA). All other tenants have those of
 * the configuration. With a state folder the operator's settings survive a restart:
 *
 *     DIR/quotas   "kvcobra quotas 1", then one line per tenant:
 *                  <uid>[@<device>] <quota bytes or -> <guarantee bytes or ->
 */
#pragma once

struct errmsg;
struct server;
struct tenant;

/*
 * Called at the start, before pages are restored: creates the tenants of the file with their quotas. A line
 * that cannot be applied (a guarantee that no longer fits the pool) is logged and ignored.
 */
void quota_load(struct server *s);

/* Called after a reload of the configuration: tenants without a quota of their own get the new one. */
void quota_reload(struct server *s);
