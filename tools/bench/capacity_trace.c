/* See capacity_trace.h. */
#include "tools/bench/capacity_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"

enum { BLOCKS_MAX = 1 << 26 };

/* The file as it is read, with the numbers of the file. */
struct capacity_reader {
    const char *path;
    struct capacity_trace *trace;
    int64_t *ids;
    size_t room, requests_room;
};

static int capacity_trace_reserve(struct capacity_reader *x, size_t n_more, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;

    if (n_more > BLOCKS_MAX - t->n_blocks)
        return fail(e, -EFBIG, "%s has more than %d blocks: use --requests", x->path, BLOCKS_MAX);

    if (t->n_blocks + n_more > x->room) {
        size_t room = 2 * (t->n_blocks + n_more);
        int64_t *ids = reallocarray(x->ids, room, sizeof(*ids));

        if (!ids)
            return fail(e, -ENOMEM, "out of memory");
        x->ids = ids;
        x->room = room;
    }

    if (t->n_requests + 2 > x->requests_room) {
        size_t room = 2 * x->requests_room + 1024;
        size_t *first = reallocarray(t->first, room, sizeof(*first));

        if (!first)
            return fail(e, -ENOMEM, "out of memory");
        first[0] = 0;
        t->first = first;
        x->requests_room = room;
    }
    return 0;
}

static int capacity_trace_add(struct capacity_reader *x, const char *line, uint32_t number, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    json_error_t why;
    json_t *request = json_loads(line, 0, &why), *ids, *id;
    size_t i;
    int r = 0;

    ids = json_object_get(request, "hash_ids");
    if (!request)
        r = fail(e, -EINVAL, "%s, line %" PRIu32 ": no JSON: %s", x->path, number, why.text);
    else if (!json_is_array(ids))
        r = fail(e, -EINVAL, "%s, line %" PRIu32 ": no array \"hash_ids\"", x->path, number);
    if (r == 0)
        r = capacity_trace_reserve(x, json_array_size(ids), e);

    json_array_foreach(ids, i, id)
    {
        if (r == 0 && (!json_is_integer(id) || json_integer_value(id) < 0))
            r = fail(e, -EINVAL,
                     "%s, line %" PRIu32 ": \"hash_ids\" has something else than numbers from 0 on", x->path,
                     number);
        if (r < 0)
            break;
        x->ids[t->n_blocks + i] = json_integer_value(id);
    }

    if (r == 0) {
        t->n_blocks += json_array_size(ids);
        t->first[++t->n_requests] = t->n_blocks;
    }
    json_decref(request);
    return r;
}

static int capacity_trace_compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;

    return (x > y) - (x < y);
}

/* Numbers the distinct blocks from 0 on. */
static int capacity_trace_number(struct capacity_reader *x, struct errmsg *e)
{
    struct capacity_trace *t = x->trace;
    _cleanup_(freep) int64_t *sorted = calloc(t->n_blocks, sizeof(*sorted));

    t->blocks = calloc(t->n_blocks, sizeof(*t->blocks));
    if (!sorted || !t->blocks)
        return fail(e, -ENOMEM, "out of memory");

    memcpy(sorted, x->ids, t->n_blocks * sizeof(*sorted));
    qsort(sorted, t->n_blocks, sizeof(*sorted), capacity_trace_compare);
    for (size_t i = 0; i < t->n_blocks; i++)
        if (i == 0 || sorted[i] != sorted[t->n_distinct - 1])
            sorted[t->n_distinct++] = sorted[i];
    for (size_t i = 0; i < t->n_blocks; i++) {
        const int64_t *at =
            bsearch(&x->ids[i], sorted, t->n_distinct, sizeof(*sorted), capacity_trace_compare);

        t->blocks[i] = (uint32_t) (at - sorted);
    }
    return 0;
}

static int capacity_trace_read_lines(struct capacity_reader *x, FILE *f, uint32_t n_max, struct errmsg *e)
{
    _cleanup_(freep) char *line = NULL;
    size_t room = 0;
    int r = 0;

    for (uint32_t number = 1; r == 0 && x->trace->n_requests < n_max; number++) {
        ssize_t n = getline(&line, &room, f);

        if (n < 0)
            break;
        if (line[strspn(line, " \t\r\n")] != '\0')
            r = capacity_trace_add(x, line, number, e);
    }

    if (r == 0 && ferror(f))
        return fail(e, -errno, "cannot read %s: %s", x->path, strerror(errno));
    if (r == 0 && x->trace->n_blocks == 0)
        return fail(e, -EINVAL, "%s has no request", x->path);
    return r;
}

int capacity_trace_read(const char *path, uint32_t n_max, struct capacity_trace *ret, struct errmsg *e)
{
    struct capacity_reader x = {.path = path, .trace = ret};
    _cleanup_(fclosep) FILE *f = fopen(path, "re");
    int r;

    if (!f)
        return fail(e, -errno, "cannot open %s: %s", path, strerror(errno));

    r = capacity_trace_read_lines(&x, f, n_max, e);
    if (r == 0)
        r = capacity_trace_number(&x, e);
    free(x.ids);
    return r;
}

void capacity_trace_deinit(struct capacity_trace *t)
{
    free(t->first);
    free(t->blocks);
    *t = (struct capacity_trace) CAPACITY_TRACE_INIT;
}
