/* See safetensors.h. */
#include "tools/identify/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"

bool safetensors_is_printable(const char *text)
{
    for (const char *p = text; *p; p++) {
        unsigned char byte = (unsigned char) *p, next = (unsigned char) p[1];

        if (byte < ' ' || byte == 0x7f || (byte == 0xc2 && next < 0xa0)) /* U+0080 to U+009F: two bytes */
            return false;
    }
    return true;
}

/* ---- one tensor ---- */

/* Bits of a number; 0: unknown type. */
static unsigned safetensors_type_bits(const char *type)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {
        {"BOOL", 8},    {"U8", 8},   {"I8", 8},      {"F8_E4M3", 8}, {"F8_E5M2", 8},
        {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U16", 16},
        {"I16", 16},    {"F16", 16}, {"BF16", 16},   {"U32", 32},    {"I32", 32},
        {"F32", 32},    {"U64", 64}, {"I64", 64},    {"F64", 64},    {"C64", 64},
    };

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i].name) == 0)
            return types[i].bits;
    return 0;
}

static bool safetensors_read_size(const json_t *json, uint64_t *ret)
{
    json_int_t v = json_integer_value(json);

    if (!json_is_integer(json) || v < 0)
        return false;

    *ret = (uint64_t) v;
    return true;
}

/* Shape and type give the number of bytes. False: it overflows, or is no whole number of bytes. */
static bool safetensors_count_bytes(const struct safetensors_tensor *t, unsigned type_bits, uint64_t *ret)
{
    size_t bits = type_bits;

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!checked_mul(bits, t->dims[i], &bits))
            return false;

    *ret = bits / 8;
    return bits % 8 == 0;
}

static bool safetensors_read_shape(const json_t *shape, struct safetensors_tensor *t)
{
    size_t n = json_array_size(shape);

    if (!json_is_array(shape) || n > SAFETENSORS_DIMS_MAX)
        return false;

    t->n_dims = (uint32_t) n;
    for (size_t i = 0; i < n; i++)
        if (!safetensors_read_size(json_array_get(shape, i), &t->dims[i]))
            return false;
    return true;
}

static int safetensors_read_tensor(const char *name, const json_t *json, uint64_t data_offset,
                                   uint64_t data_bytes, const char *label, struct safetensors_tensor *ret,
                                   struct errmsg *e)
{
    const json_t *place = json_object_get(json, "data_offsets");
    const char *type = json_string_value(json_object_get(json, "dtype"));
    struct safetensors_tensor t = {.name = name, .type = type};
    uint64_t begin, end, bytes;

    if (!safetensors_is_printable(name) || (type && !safetensors_is_printable(type)))
        return fail(e, -EBADMSG, "%s: the name or the type of a tensor has control characters", label);
    if (!*name || !type || json_object_size(json) != 3 ||
        !safetensors_read_shape(json_object_get(json, "shape"), &t) || json_array_size(place) != 2 ||
        !safetensors_read_size(json_array_get(place, 0), &begin) ||
        !safetensors_read_size(json_array_get(place, 1), &end))
        return fail(e, -EBADMSG,
                    "%s: tensor \"%.80s\" does not have exactly a dtype, a shape of at most %d sizes and two "
                    "data_offsets",
                    label, name, SAFETENSORS_DIMS_MAX);
    if (safetensors_type_bits(type) == 0)
        return fail(e, -EOPNOTSUPP,
                    "%s: tensor \"%.80s\" has type \"%.20s\", which this program does not know", label, name,
                    type);
    if (begin > end || end > data_bytes)
        return fail(e, -EBADMSG,
                    "%s: tensor \"%.80s\" has bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64
                    ": the file is damaged or incomplete",
                    label, name, begin, end, data_bytes);
    if (!safetensors_count_bytes(&t, safetensors_type_bits(type), &bytes) || bytes != end - begin)
        return fail(e, -EBADMSG,
                    "%s: tensor \"%.80s\" has %" PRIu64 " bytes, not those of its type and shape", label,
                    name, end - begin);

    t.offset = data_offset + begin;
    t.bytes = bytes;
    *ret = t;
    return 0;
}

/* ---- all tensors ---- */

static int safetensors_by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Sorts the tensors by place, and checks that each begins where the one before ends. */
static int safetensors_check_places(struct safetensors *s, uint64_t data_offset, uint64_t file_bytes,
                                    const char *label, struct errmsg *e)
{
    uint64_t at = data_offset;

    qsort(s->tensors, s->n_tensors, sizeof(*s->tensors), safetensors_by_place);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct safetensors_tensor *t = &s->tensors[i];

        if (t->offset != at)
            return fail(e, -EBADMSG, "%s: %s before tensor \"%.80s\"", label,
                        t->offset < at ? "tensors overlap" : "there are bytes of no tensor", t->name);
        at += t->bytes;
    }

    if (at != file_bytes)
        return fail(e, -EBADMSG, "%s: %" PRIu64 " bytes at the end belong to no tensor", label,
                    file_bytes - at);
    return 0;
}

/* "__metadata__" is an object of strings, which no digest covers. */
static int safetensors_check_metadata(const json_t *metadata, const char *label, struct errmsg *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return fail(e, -EBADMSG, "%s: __metadata__ is not an object", label);
    json_object_foreach((json_t *) metadata, key, value)
    {
        if (!json_is_string(value))
            return fail(e, -EBADMSG, "%s: a value in __metadata__ is not a string", label);
    }
    return 0;
}

static int safetensors_read_tensors(struct safetensors *s, uint64_t data_offset, uint64_t file_bytes,
                                    const char *label, struct errmsg *e)
{
    const char *name;
    json_t *value;

    json_object_foreach(s->header, name, value)
    {
        int r;

        if (strcmp(name, "__metadata__") == 0)
            r = safetensors_check_metadata(value, label, e);
        else
            r = safetensors_read_tensor(name, value, data_offset, file_bytes - data_offset, label,
                                        &s->tensors[s->n_tensors++], e);
        if (r < 0)
            return r;
    }

    return safetensors_check_places(s, data_offset, file_bytes, label, e);
}

/* ---- the file ---- */

int safetensors_header_bytes(const uint8_t *first, uint64_t file_bytes, const char *label, size_t *ret_bytes,
                             struct errmsg *e)
{
    uint64_t n = 0;

    if (file_bytes < SAFETENSORS_LENGTH_BYTES)
        return fail(e, -EBADMSG, "%s is not a safetensors file: it has %" PRIu64 " bytes", label, file_bytes);

    for (unsigned i = SAFETENSORS_LENGTH_BYTES; i-- > 0;)
        n = n << 8 | first[i];
    if (n > SAFETENSORS_HEADER_MAX || n > file_bytes - SAFETENSORS_LENGTH_BYTES)
        return fail(e, -EBADMSG,
                    "%s is not a safetensors file, or incomplete: a header of %" PRIu64
                    " bytes in a file of %" PRIu64 " (at most %d)",
                    label, n, file_bytes, SAFETENSORS_HEADER_MAX);

    *ret_bytes = (size_t) n;
    return 0;
}

int safetensors_parse(const void *json, size_t json_bytes, uint64_t file_bytes, const char *label,
                      struct safetensors *ret, struct errmsg *e)
{
    _cleanup_(safetensors_deinit) struct safetensors s = {.header = NULL};
    json_error_t why;
    int r;

    s.header = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(s.header))
        return fail(e, -EBADMSG,
                    "%s: the header is not a JSON object with different keys (line %d, column %d)", label,
                    s.header ? 1 : why.line, s.header ? 1 : why.column);

    s.tensors = calloc(json_object_size(s.header) + 1, sizeof(*s.tensors));
    if (!s.tensors)
        return fail(e, -ENOMEM, "out of memory for the tensors of %s", label);

    r = safetensors_read_tensors(&s, SAFETENSORS_LENGTH_BYTES + (uint64_t) json_bytes, file_bytes, label, e);
    if (r < 0)
        return r;

    *ret = s;
    s = (struct safetensors){.header = NULL};
    return 0;
}

void safetensors_deinit(struct safetensors *s)
{
    json_decref(s->header);
    free(s->tensors);
    *s = (struct safetensors){.header = NULL};
}

int safetensors_read(int fd, const char *label, struct safetensors *ret, struct errmsg *e)
{
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {0};
    _cleanup_(freep) void *json = NULL;
    struct stat st;
    size_t n;
    int r;

    if (fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", label, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s is not a regular file", label);

    r = st.st_size < SAFETENSORS_LENGTH_BYTES ? 0 : fd_pread_all(fd, first, sizeof(first), 0);
    if (r < 0)
        return fail(e, r, "cannot read %s: %s", label, strerror(-r));

    r = safetensors_header_bytes(first, (uint64_t) st.st_size, label, &n, e);
    if (r < 0)
        return r;

    json = malloc(n + 1);
    if (!json)
        return fail(e, -ENOMEM, "out of memory for the header of %s", label);

    r = fd_pread_all(fd, json, n, SAFETENSORS_LENGTH_BYTES);
    if (r < 0)
        return fail(e, r, "cannot read the header of %s: %s", label, strerror(-r));

    return safetensors_parse(json, n, (uint64_t) st.st_size, label, ret, e);
}
