/* Structs with their size in front; see options.h. */
#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

enum { STRUCT_BYTES_MAX = 65536 }; /* more is a pointer or garbage, not a size */

int options_check(size_t struct_bytes, size_t oldest, const char *name, struct errmsg *e)
{
    if (struct_bytes < oldest || struct_bytes > STRUCT_BYTES_MAX)
        return fail(e, -EINVAL, "the size of a %s is given as %zu: set it to sizeof(%s), at least %zu", name,
                    struct_bytes, name, oldest);

    return 0;
}

/* The first member of every struct. */
static size_t options_struct_bytes(const void *s)
{
    size_t bytes;

    memcpy(&bytes, s, sizeof(bytes));
    return bytes;
}

int options_read(void *ret, size_t bytes, const void *from, size_t oldest, const char *name, struct errmsg *e)
{
    size_t theirs = options_struct_bytes(from);
    int r;

    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;

    for (size_t i = bytes; i < theirs; i++)
        if (((const uint8_t *) from)[i] != 0)
            return fail(e, -EINVAL, "%s has a member that this library does not know: update the library",
                        name);

    memset(ret, 0, bytes);
    memcpy(ret, from, theirs < bytes ? theirs : bytes);
    return 0;
}

int options_read_items(const void *items, size_t n, size_t bytes, size_t oldest, const char *name,
                       void **ret_copy, struct errmsg *e)
{
    _cleanup_(freep) uint8_t *copy = NULL;
    size_t theirs = options_struct_bytes(items);
    int r;

    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;

    if (theirs != bytes) {
        copy = calloc(n, bytes);
        if (!copy)
            return fail(e, -ENOMEM, "out of memory for %zu items", n);
    }

    for (size_t i = 0; i < n; i++) {
        const uint8_t *item = (const uint8_t *) items + i * theirs;

        if (options_struct_bytes(item) != theirs)
            return fail(e, -EINVAL, "item %zu: %s.struct_bytes is %zu, but %zu in the first item", i, name,
                        options_struct_bytes(item), theirs);

        r = copy ? options_read(copy + i * bytes, bytes, item, oldest, name, e) : 0;
        if (r < 0)
            return r;
    }

    *ret_copy = take_ptr(copy);
    return 0;
}

int options_write(void *ret, const void *from, size_t bytes, size_t oldest, const char *name,
                  struct errmsg *e)
{
    size_t theirs = options_struct_bytes(ret);
    int r;

    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;

    memset(ret, 0, theirs); /* what both sides know, then zeros */
    memcpy(ret, from, theirs < bytes ? theirs : bytes);
    memcpy(ret, &theirs, sizeof(theirs));
    return 0;
}
