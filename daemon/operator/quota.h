/*
 * What tenants may have, beyond what the configuration gives everybody: an operator says it (SET_QUOTA), and
 * with a state folder it is remembered.
 *
 *   DIR/quotas   "kvcobra quotas 1", then per tenant that differs: <uid>[@<device>] <quota bytes or ->
 * <guarantee bytes or ->
 */
#pragma once

struct errmsg;
struct server;
struct tenant;

/*
 * At the start, before pages come back: makes the tenants of the file and gives them what it says. A line
 * that cannot be honoured (a guarantee that does not fit the pool any more) is logged and left.
 */
void quota_load(struct server *s);

/* The configuration was read again: tenants without a quota of their own get the new one. */
void quota_reload(struct server *s);
