/* See tenant_name.h. */
#include "tools/command/tenant_name.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/command.h"

static const char uid_prefix[] = "uid-";

/* "alice@gpu0" -> "uid-1000@gpu0". Return: whether there is such a user. */
static int tenant_name_of_user(const char *text, char ret[static TENANT_NAME_BYTES])
{
    char user[TENANT_NAME_BYTES];
    size_t n = strcspn(text, "@");
    const struct passwd *found;

    if (n == 0 || n >= sizeof(user))
        return 0;

    memcpy(user, text, n);
    user[n] = '\0';
    found = getpwnam(user);
    return found && (size_t) snprintf(ret, TENANT_NAME_BYTES, "%s%ju%s", uid_prefix,
                                      (uintmax_t) found->pw_uid, text + n) < TENANT_NAME_BYTES;
}

int tenant_name_find(kvc_client *c, const char *text, char ret[static TENANT_NAME_BYTES],
                     Kvcobra__StatusReply **ret_status)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *status = NULL;
    struct errmsg e = {""};
    int r;

    if (strlen(text) >= TENANT_NAME_BYTES)
        return command_fail("'%.40s...' is too long for the name of a tenant", text);

    memcpy(ret, text, strlen(text) + 1);
    r = operator_get_tenant(c, ret, &status, &e);
    if (r == -ENOENT && tenant_name_of_user(text, ret))
        r = operator_get_tenant(c, ret, &status, &e);
    if (r == 0) {
        if (ret_status)
            *ret_status = take_ptr(status);
        return COMMAND_OK;
    }

    if (r == -ENOENT)
        return command_fail(
            "there is no tenant '%s': a tenant is the name of a user, uid-N, or the name of a "
            "section [tenant NAME] of kvcobrad.conf; 'kvcobra status' lists those in use",
            text);
    return command_fail("%s", e.text);
}

int tenant_names_find(kvc_client *c, const struct operator_tenants *typed, struct tenant_names *ret)
{
    for (size_t i = 0; i < typed->n; i++) {
        int code = tenant_name_find(c, typed->names[i], ret->text[i], NULL);

        if (code != COMMAND_OK)
            return code;
        ret->names[i] = ret->text[i];
    }
    return COMMAND_OK;
}

const char *tenant_name_show(const char *name, char ret[static TENANT_NAME_BYTES])
{
    size_t n = strlen(name), at = strlen(uid_prefix);
    const struct passwd *found = NULL;
    char digits[16] = "";

    if (n > at && strncmp(name, uid_prefix, at) == 0) {
        size_t n_digits = strspn(name + at, "0123456789");

        if (n_digits > 0 && n_digits < sizeof(digits) && (at + n_digits == n || name[at + n_digits] == '@')) {
            memcpy(digits, name + at, n_digits);
            found = getpwuid((uid_t) strtoul(digits, NULL, 10));
        }
    }

    if (found)
        (void) snprintf(ret, TENANT_NAME_BYTES, "%s (%s)", name, found->pw_name);
    else
        (void) snprintf(ret, TENANT_NAME_BYTES, "%s", name);
    return ret;
}
