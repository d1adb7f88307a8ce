/* Structs with their size in front; see options.h. */
#include "client/connection/options.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/errmsg.h"

enum { STRUCT_BYTES_MAX = 65536 }; /* more is a pointer or garbage, not a size */

static int options_check(size_t bytes, size_t oldest, const char *name, struct errmsg *e)
{
    if (bytes < oldest || bytes > STRUCT_BYTES_MAX)
        return fail(e, -EINVAL, "%s.struct_bytes is %zu: set it to sizeof(%s) = %zu", name, bytes, name,
                    oldest);
    return 0;
}

int options_read(void *ret, size_t bytes, const void *from, size_t oldest, const char *name, struct errmsg *e)
{
    size_t theirs;
    int r;

    memcpy(&theirs, from, sizeof(theirs));
    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;
    for (size_t i = bytes; i < theirs; i++)
        if (((const uint8_t *) from)[i] != 0)
            return fail(e, -EINVAL, "%s uses an option that this library does not know: update the library",
                        name);
    memset(ret, 0, bytes);
    memcpy(ret, from, theirs < bytes ? theirs : bytes);
    return 0;
}

int options_write(void *ret, const void *from, size_t bytes, size_t oldest, const char *name,
                  struct errmsg *e)
{
    size_t theirs, common;
    int r;

    memcpy(&theirs, ret, sizeof(theirs));
    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;
    common = theirs < bytes ? theirs : bytes;
    memset(ret, 0, theirs);
    memcpy(ret, from, common);
    memcpy(ret, &theirs, sizeof(theirs));
    return 0;
}
