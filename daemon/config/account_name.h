/*
 * Names of accounts. A user whom the configuration does not mention has the account "uid-N"; the others are
 * the names of its sections [tenant NAME]. The part before "@" of a tenant's name is the name of its account.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

#define ACCOUNT_UID_PREFIX "uid-"

/*
 * Whether a section may have this name: 1 to ACCOUNT_NAME_BYTES - 1 letters, digits, ".", "_" and "-", a
 * letter first, and not "uid-" and more. Return: 0; -EINVAL with a sentence.
 */
int account_name_check(const char *name, struct errmsg *e);

/* "uid-1000" -> 1000. False: another name. */
bool account_name_uid(const char *name, uint32_t *ret_uid);
