/* See id_lookup.h. */
#include "daemon/config/id_lookup.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

#define DIGITS "0123456789"

enum { BUFFER_BYTES_FIRST = 4096, BUFFER_BYTES_MAX = 1 << 24 /* a group has all its members */ };

/* A number up to 2^32 - 2: (uid_t) -1 is no id. Return: whether all of the @n bytes are one. */
static bool id_lookup_number(const char *text, size_t n, uint32_t *ret)
{
    uint64_t v = 0;

    if (n == 0 || n > 10 || strspn(text, DIGITS) < n)
        return false;

    for (size_t i = 0; i < n; i++)
        v = v * 10 + (uint64_t) (text[i] - '0');
    if (v >= UINT32_MAX)
        return false;

    *ret = (uint32_t) v;
    return true;
}

static int id_lookup_fail(const char *what, const char *text, int r, struct errmsg *e)
{
    if (r == 0 || r == ENOENT || r == ESRCH) /* getpwnam(3) lists the values for a missing name */
        return fail(e, -EINVAL, "there is no %s \"%.60s\" on this host", what, text);
    return fail(e, r == ENOMEM ? -ENOMEM : -EAGAIN, "cannot look up the %s \"%.60s\": %s", what, text,
                strerror(r));
}

static int id_lookup_passwd(const char *name, char *buffer, size_t bytes, uint32_t *ret, bool *ret_found)
{
    struct passwd entry, *found = NULL;
    int r = getpwnam_r(name, &entry, buffer, bytes, &found);

    *ret_found = found != NULL;
    if (found)
        *ret = entry.pw_uid;
    return r;
}

static int id_lookup_group_entry(const char *name, char *buffer, size_t bytes, uint32_t *ret, bool *ret_found)
{
    struct group entry, *found = NULL;
    int r = getgrnam_r(name, &entry, buffer, bytes, &found);

    *ret_found = found != NULL;
    if (found)
        *ret = entry.gr_gid;
    return r;
}

typedef int id_lookup_fn(const char *name, char *buffer, size_t bytes, uint32_t *ret, bool *ret_found);

static int id_lookup(const char *what, id_lookup_fn *lookup, const char *text, uint32_t *ret,
                     struct errmsg *e)
{
    int r = ERANGE;

    if (id_lookup_number(text, strlen(text), ret))
        return 0;

    for (size_t bytes = BUFFER_BYTES_FIRST; r == ERANGE && bytes <= BUFFER_BYTES_MAX; bytes *= 4) {
        _cleanup_(freep) char *buffer = malloc(bytes);
        bool found = false;

        if (!buffer)
            return fail(e, -ENOMEM, "out of memory");

        do
            r = lookup(text, buffer, bytes, ret, &found);
        while (r == EINTR);
        if (found)
            return 0;
    }

    return id_lookup_fail(what, text, r, e);
}

int id_lookup_user(const char *text, uint32_t *ret_uid, struct errmsg *e)
{
    return id_lookup("user", id_lookup_passwd, text, ret_uid, e);
}

int id_lookup_group(const char *text, uint32_t *ret_gid, struct errmsg *e)
{
    return id_lookup("group", id_lookup_group_entry, text, ret_gid, e);
}

int id_lookup_users(const char *text, uint32_t *ret_first, uint32_t *ret_last, struct errmsg *e)
{
    size_t n = strspn(text, DIGITS);
    uint32_t first = 0, last;
    int r;

    if (n > 0 && text[n] == '-' && strspn(text + n + 1, DIGITS) == strlen(text + n + 1)) {
        if (!id_lookup_number(text, n, &first) ||
            !id_lookup_number(text + n + 1, strlen(text + n + 1), &last) || first > last)
            return fail(e, -EINVAL, "\"%.60s\" is not a range of user ids, such as 100000-165535", text);

        *ret_first = first;
        *ret_last = last;
        return 0;
    }

    r = id_lookup_user(text, &first, e);
    if (r == 0)
        *ret_first = *ret_last = first;
    return r;
}
