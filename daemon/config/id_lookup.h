/*
 * Users and groups by name or number. A name may be looked up over the network and take long, so this is
 * called at the start and by the thread that reads the configuration again (reload.h), never on the loop.
 */
#pragma once

#include <stdint.h>

struct errmsg;

/*
 * @text: a name or a number. Return: 0; -EINVAL: no such user or group; -EAGAIN: the look-up failed, so this
 * is not known; -ENOMEM.
 */
int id_lookup_user(const char *text, uint32_t *ret_uid, struct errmsg *e);
int id_lookup_group(const char *text, uint32_t *ret_gid, struct errmsg *e);

/* "1000-1999", both included, or what id_lookup_user() accepts. */
int id_lookup_users(const char *text, uint32_t *ret_first, uint32_t *ret_last, struct errmsg *e);
