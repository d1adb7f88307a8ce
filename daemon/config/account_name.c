/* See account_name.h. */
#include "daemon/config/account_name.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/errmsg.h"
#include "daemon/config/limits.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

int account_name_check(const char *name, struct errmsg *e)
{
    size_t length = strlen(name);

    if (length == 0 || strspn(name, LETTERS) == 0 || strspn(name, LETTERS DIGITS "._-") != length)
        return fail(e, -EINVAL,
                    "\"%.60s\" is not a name of a tenant: use letters, digits, \".\", \"_\" and \"-\", and a "
                    "letter first",
                    name);
    if (length >= ACCOUNT_NAME_BYTES)
        return fail(e, -EINVAL, "the name \"%.60s\" of a tenant is longer than %d bytes", name,
                    ACCOUNT_NAME_BYTES - 1);
    if (strncmp(name, ACCOUNT_UID_PREFIX, strlen(ACCOUNT_UID_PREFIX)) == 0)
        return fail(e, -EINVAL,
                    "\"%.60s\": names that begin with " ACCOUNT_UID_PREFIX
                    " are those of users without a tenant in the configuration",
                    name);
    return 0;
}

bool account_name_uid(const char *name, uint32_t *ret_uid)
{
    const char *digits = name + strlen(ACCOUNT_UID_PREFIX);
    uint64_t uid;

    if (strncmp(name, ACCOUNT_UID_PREFIX, strlen(ACCOUNT_UID_PREFIX)) != 0)
        return false;
    if (strspn(digits, DIGITS) != strlen(digits) || strlen(digits) > 10 || digits[0] == '\0' ||
        (digits[0] == '0' && digits[1] != '\0'))
        return false;

    uid = strtoull(digits, NULL, 10);
    if (uid >= UINT32_MAX) /* (uid_t) -1 is no user */
        return false;

    *ret_uid = (uint32_t) uid;
    return true;
}
