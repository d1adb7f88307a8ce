/*
 * Reader of GGUF files; see gguf.h. A file is
 *
 *     "GGUF" u32:version u64:n_tensors u64:n_keys
 *     n_keys    x { string:key u32:type value }          string = u64:bytes, bytes
 *     n_tensors x { string:name u32:n_dims u64:dims[n_dims] u32:type u64:offset }
 *     padding to general.alignment (32), then tensor data; offsets count from here
 *
 * One cursor reads the front of the file. Every read is bounded by the remaining bytes, so that counts cannot
 * cause allocations or loops beyond a multiple of the file's size. Entries are sorted afterwards, to find
 * duplicates and for binary search.
 */
#include "tools/engine/gguf.h"

#include "base/atomic_file.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/file_kind.h"
#include "tools/engine/gguf_file.h"
#include "tools/engine/mapped_file.h"
#include "tools/engine/quants.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are copied from a little-endian file");

enum {
    KEY_BYTES_MIN = 8 + 1 + 4 + 1, /* the shortest entry a key can have */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 4 + 8,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    SHOWN_MAX = 80, /* bytes of a key shown in a sentence */
};

size_t gguf_scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
        [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };

    return type < sizeof(bytes) ? bytes[type] : 0;
}

/* Names are printed in sentences on terminals: no control characters, no NUL. */
static bool gguf_printable(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] > 0x7e)
            return false;
    return n > 0;
}

static int gguf_shown(size_t n)
{
    return n < SHOWN_MAX ? (int) n : SHOWN_MAX;
}

/* Skips one value. False: truncated, an unknown type, or arrays nested too deep. */
static bool gguf_skip_value(struct gguf_cursor *c, uint32_t type, unsigned depth)
{
    const uint8_t *p;
    const char *text;
    uint32_t element;
    uint64_t n;
    size_t bytes;

    if (type == GGUF_STRING)
        return gguf_take_string(c, &text, &bytes);
    if (type != GGUF_ARRAY)
        return gguf_scalar_bytes(type) > 0 && gguf_take(c, gguf_scalar_bytes(type), &p);

    if (depth >= GGUF_ARRAY_DEPTH_MAX || !gguf_take_u32(c, &element) || !gguf_take_u64(c, &n))
        return false;
    if (gguf_scalar_bytes(element) > 0)
        return n <= c->left / gguf_scalar_bytes(element) &&
               gguf_take(c, (size_t) n * gguf_scalar_bytes(element), &p);
    if (element != GGUF_STRING && element != GGUF_ARRAY)
        return false;

    /* every element has at least 8 bytes: a huge @n ends at the end of the file */
    for (uint64_t i = 0; i < n; i++)
        if (!gguf_skip_value(c, element, depth + 1))
            return false;
    return true;
}

static int gguf_parse_keys(struct gguf *g, struct gguf_cursor *c, struct errmsg *e)
{
    for (size_t i = 0; i < g->n_entries; i++) {
        struct gguf_entry *en = &g->entries[i];

        if (!gguf_take_string(c, &en->key, &en->key_bytes))
            return fail(e, -EBADMSG, "%s: ends inside key %zu of %zu", g->label, i, g->n_entries);
        if (en->key_bytes > GGUF_KEY_MAX || !gguf_printable(en->key, en->key_bytes))
            return fail(e, -EBADMSG, "%s: key %zu has no printable name of at most %d bytes", g->label, i,
                        GGUF_KEY_MAX);
        if (!gguf_take_u32(c, &en->type))
            return fail(e, -EBADMSG, "%s: ends inside key \"%.*s\"", g->label, gguf_shown(en->key_bytes),
                        en->key);

        en->value = c->p;
        if (!gguf_skip_value(c, en->type, 0))
            return fail(e, -EBADMSG,
                        "%s: the value of key \"%.*s\" (%s) is longer than the file or malformed", g->label,
                        gguf_shown(en->key_bytes), en->key, gguf_type_name(en->type));

        en->bytes = (size_t) (c->p - en->value);
    }

    return 0;
}

static int gguf_parse_tensor(struct gguf *g, struct gguf_cursor *c, size_t i, struct errmsg *e)
{
    struct gguf_tensor *t = &g->tensors[i];

    if (!gguf_take_string(c, &t->name, &t->name_bytes))
        return fail(e, -EBADMSG, "%s: ends inside the entry of tensor %zu of %zu", g->label, i, g->n_tensors);
    if (t->name_bytes > GGUF_NAME_MAX || !gguf_printable(t->name, t->name_bytes))
        return fail(e, -EBADMSG, "%s: tensor %zu has no printable name of at most %d bytes", g->label, i,
                    GGUF_NAME_MAX);
    if (!gguf_take_u32(c, &t->n_dims))
        return fail(e, -EBADMSG, "%s: ends inside the entry of tensor \"%.*s\"", g->label,
                    (int) t->name_bytes, t->name);
    if (t->n_dims == 0 || t->n_dims > GGUF_DIMS_MAX)
        return fail(e, -EBADMSG, "%s: tensor \"%.*s\" has %u dimensions, not 1 to %d", g->label,
                    (int) t->name_bytes, t->name, t->n_dims, GGUF_DIMS_MAX);

    for (unsigned k = 0; k < GGUF_DIMS_MAX; k++) {
        t->dims[k] = 1;
        if (k < t->n_dims && !gguf_take_u64(c, &t->dims[k]))
            return fail(e, -EBADMSG, "%s: ends inside the entry of tensor \"%.*s\"", g->label,
                        (int) t->name_bytes, t->name);
    }

    if (!gguf_take_u32(c, &t->type) || !gguf_take_u64(c, &g->offsets[i]))
        return fail(e, -EBADMSG, "%s: ends inside the entry of tensor \"%.*s\"", g->label,
                    (int) t->name_bytes, t->name);

    return 0;
}

/* Bytes of a tensor. False: a dimension is zero, a row is no whole number of blocks, or the size
 * overflows. */
static bool gguf_tensor_bytes(const struct gguf_tensor *t, const struct quant_type *q, size_t *ret_bytes)
{
    size_t n;

    if (t->dims[0] == 0 || t->dims[0] % q->block_weights != 0)
        return false;

    n = (size_t) (t->dims[0] / q->block_weights);
    for (unsigned k = 1; k < GGUF_DIMS_MAX; k++)
        if (t->dims[k] == 0 || !checked_mul(n, (size_t) t->dims[k], &n))
            return false;
    return checked_mul(n, q->block_bytes, ret_bytes);
}

static int gguf_place_tensors(struct gguf *g, const struct gguf_cursor *c, struct errmsg *e)
{
    uint32_t alignment;
    size_t start;
    int r;

    r = gguf_get_u32_or(g, "general.alignment", ALIGNMENT_DEFAULT, &alignment, e);
    if (r < 0)
        return r;
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return fail(e, -EBADMSG, "%s: general.alignment is %u, not a power of two from 8 to %d", g->label,
                    alignment, ALIGNMENT_MAX);
    if (!checked_align((size_t) (c->p - g->data), alignment, &start) ||
        (g->n_tensors > 0 && start > g->bytes))
        return fail(e, -EBADMSG, "%s: ends before its tensor data", g->label);

    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        const struct quant_type *q = quant_type_of(t->type);

        if (!q) /* whether the type can be read is checked when the tensor is used */
            continue;
        if (!gguf_tensor_bytes(t, q, &t->bytes))
            return fail(e, -EBADMSG, "%s: tensor \"%.*s\" (%s) has impossible dimensions", g->label,
                        (int) t->name_bytes, t->name, q->name);
        if (g->offsets[i] % alignment != 0 || !range_inside(g->offsets[i], t->bytes, g->bytes - start))
            return fail(e, -EBADMSG,
                        "%s: tensor \"%.*s\" lies outside the file or is not aligned: is the file complete?",
                        g->label, (int) t->name_bytes, t->name);

        t->data = g->data + start + (size_t) g->offsets[i];
    }

    return 0;
}

static int gguf_by_name(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;

    return gguf_order(x->name, x->name_bytes, y->name, y->name_bytes);
}

static int gguf_refuse_duplicates(const struct gguf *g, struct errmsg *e)
{
    for (size_t i = 1; i < g->n_entries; i++)
        if (gguf_by_key(&g->entries[i - 1], &g->entries[i]) == 0)
            return fail(e, -EBADMSG, "%s: key \"%.*s\" is there twice", g->label,
                        gguf_shown(g->entries[i].key_bytes), g->entries[i].key);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (gguf_by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return fail(e, -EBADMSG, "%s: tensor \"%.*s\" is there twice", g->label,
                        (int) g->tensors[i].name_bytes, g->tensors[i].name);
    return 0;
}

static int gguf_parse_header(struct gguf *g, struct gguf_cursor *c, struct errmsg *e)
{
    const uint8_t *magic;
    uint32_t version;
    uint64_t n_tensors, n_keys;

    if (!gguf_take(c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0)
        return fail(e, -EBADMSG, "%s: not a GGUF file but %s", g->label, file_kind_of(g->data, g->bytes));
    if (!gguf_take_u32(c, &version) || !gguf_take_u64(c, &n_tensors) || !gguf_take_u64(c, &n_keys))
        return fail(e, -EBADMSG, "%s: ends inside its header", g->label);
    if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
        return fail(e, -EOPNOTSUPP, "%s: is a big-endian GGUF file; convert it to little-endian", g->label);
    if (version != 2 && version != 3)
        return fail(e, -EOPNOTSUPP, "%s: GGUF version %u; this program reads 2 and 3", g->label, version);
    if (n_keys > GGUF_ENTRIES_MAX || n_keys > c->left / KEY_BYTES_MIN)
        return fail(e, -EBADMSG, "%s: claims %" PRIu64 " keys, more than it can hold", g->label, n_keys);
    if (n_tensors > GGUF_ENTRIES_MAX || n_tensors > c->left / TENSOR_BYTES_MIN)
        return fail(e, -EBADMSG, "%s: claims %" PRIu64 " tensors, more than it can hold", g->label,
                    n_tensors);

    g->n_entries = (size_t) n_keys;
    g->n_tensors = (size_t) n_tensors;
    g->entries = calloc(g->n_entries + 1, sizeof(*g->entries));
    g->tensors = calloc(g->n_tensors + 1, sizeof(*g->tensors));
    g->offsets = calloc(g->n_tensors + 1, sizeof(*g->offsets));
    if (!g->entries || !g->tensors || !g->offsets)
        return fail(e, -ENOMEM, "%s: no memory for its %zu tensor entries", g->label, g->n_tensors);

    return 0;
}

static int gguf_parse_file(struct gguf *g, struct errmsg *e)
{
    struct gguf_cursor c = {g->data, g->bytes};
    int r;

    r = gguf_parse_header(g, &c, e);
    if (r < 0)
        return r;

    r = gguf_parse_keys(g, &c, e);
    if (r < 0)
        return r;

    for (size_t i = 0; i < g->n_tensors; i++) {
        r = gguf_parse_tensor(g, &c, i, e);
        if (r < 0)
            return r;
    }

    /* before gguf_place_tensors(), which looks up the alignment */
    qsort(g->entries, g->n_entries, sizeof(*g->entries), gguf_by_key);
    r = gguf_place_tensors(g, &c, e);
    if (r < 0)
        return r;

    qsort(g->tensors, g->n_tensors, sizeof(*g->tensors), gguf_by_name);
    return gguf_refuse_duplicates(g, e);
}

static int gguf_new(const char *label, struct gguf **ret_gguf, struct errmsg *e)
{
    _cleanup_(gguf_freep) struct gguf *g = calloc(1, sizeof(*g));

    if (g)
        g->label = strdup(label);
    if (!g || !g->label)
        return fail(e, -ENOMEM, "%s: no memory to open it", label);

    *ret_gguf = take_ptr(g);
    return 0;
}

int gguf_parse(const void *data, size_t bytes, const char *label, struct gguf **ret_gguf, struct errmsg *e)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    int r;

    r = gguf_new(label, &g, e);
    if (r < 0)
        return r;

    g->data = data;
    g->bytes = bytes;
    r = gguf_parse_file(g, e);
    if (r < 0)
        return r;

    *ret_gguf = take_ptr(g);
    return 0;
}

static int gguf_map_file(struct gguf *g, struct errmsg *e)
{
    _cleanup_(closep) int fd = -1;
    struct stat st;
    int r = atomic_file_check_input(g->label, e);

    if (r < 0)
        return r;

    fd = open(g->label, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not block */
    if (fd < 0)
        return fail(e, -errno, "cannot open %s: %s", g->label, strerror(errno));
    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", g->label, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail(e, -EISDIR,
                    "%s: is a folder: name a GGUF file ('python -m kvcobra calibrate' and 'kvcobra model-id' "
                    "take the folder of a model)",
                    g->label);
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s: not a regular file", g->label);
    if (st.st_size == 0)
        return fail(e, -EBADMSG, "%s: not a GGUF file: it is empty", g->label);

    g->bytes = (size_t) st.st_size;
    g->mapping = mmap(NULL, g->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (g->mapping == MAP_FAILED) {
        g->mapping = NULL;
        return fail(e, -errno, "%s: cannot map it: %s", g->label, strerror(errno));
    }

    mapped_file_watch(g->mapping, g->bytes, g->label);
    g->data = g->mapping;
    return 0;
}

int gguf_open(const char *path, struct gguf **ret_gguf, struct errmsg *e)
{
    _cleanup_(gguf_freep) struct gguf *g = NULL;
    int r;

    r = gguf_new(path, &g, e);
    if (r < 0)
        return r;

    r = gguf_map_file(g, e);
    if (r < 0)
        return r;

    r = gguf_parse_file(g, e);
    if (r < 0)
        return r;

    *ret_gguf = take_ptr(g);
    return 0;
}

struct gguf *gguf_free(struct gguf *g)
{
    if (!g)
        return NULL;
    if (g->mapping) {
        mapped_file_forget(g->mapping);
        (void) munmap(g->mapping, g->bytes);
    }
    free(g->offsets);
    free(g->tensors);
    free(g->entries);
    free(g->label);
    free(g);
    return NULL;
}

const char *gguf_label(const struct gguf *g)
{
    return g->label;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor wanted = {.name = name, .name_bytes = strlen(name)};

    return bsearch(&wanted, g->tensors, g->n_tensors, sizeof(*g->tensors), gguf_by_name);
}
