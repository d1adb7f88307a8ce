/* Structs with their size in front; see options.h. */
#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
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

/* @to gets @to_bytes: what both sides know, then zeros. */
static void options_copy(void *to, size_t to_bytes, const void *from, size_t bytes)
{
    memset(to, 0, to_bytes);
    memcpy(to, from, to_bytes < bytes ? to_bytes : bytes);
    memcpy(to, &to_bytes, sizeof(to_bytes));
}

int options_write(void *ret, const void *from, size_t bytes, size_t oldest, const char *name,
                  struct errmsg *e)
{
    size_t theirs = options_struct_bytes(ret);
    int r;

    r = options_check(theirs, oldest, name, e);
    if (r < 0)
        return r;

    options_copy(ret, theirs, from, bytes);
    return 0;
}

int options_list_reserve(struct options_list *l, size_t n)
{
    size_t n_items, bytes;
    void *more;

    if (!checked_add(l->n, n, &n_items) || !checked_add(n_items, 1, &n_items) ||
        !checked_mul(n_items, l->item_bytes, &bytes))
        return -ENOMEM;

    more = realloc(l->items, bytes); /* at least one item: an empty list is not NULL */
    if (!more)
        return -ENOMEM;

    l->items = more;
    return 0;
}

void options_list_add(struct options_list *l, const void *item, size_t bytes)
{
    options_copy((uint8_t *) l->items + l->n * l->item_bytes, l->item_bytes, item, bytes);
    l->n++;
}

void options_list_deinit(struct options_list *l)
{
    free(l->items);
    *l = (struct options_list){.item_bytes = l->item_bytes};
}
