/* Typed values of the keys of a GGUF file; see gguf.h. */
#include "tools/engine/gguf.h"

#include "base/errmsg.h"
#include "tools/engine/gguf_file.h"

#include <errno.h>
#include <stdlib.h>

static const struct gguf_entry *gguf_values_find_key(const struct gguf *g, const char *key)
{
    struct gguf_entry wanted = {.key = key, .key_bytes = strlen(key)};

    return bsearch(&wanted, g->entries, g->n_entries, sizeof(*g->entries), gguf_by_key);
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_values_find_key(g, key) != NULL;
}

static int gguf_values_missing(const struct gguf *g, const char *key, struct errmsg *e)
{
    return fail(e, -ENOENT, "%s: has no key \"%s\"", g->label, key);
}

static int gguf_values_wrong_type(const struct gguf *g, const char *key, const struct gguf_entry *en,
                                  const char *wanted, struct errmsg *e)
{
    return fail(e, -EBADMSG, "%s: key \"%s\" is of type %s, not %s", g->label, key, gguf_type_name(en->type),
                wanted);
}

/* An integer of any width and sign. False: not an integer. */
static bool integer_value(const struct gguf_entry *en, bool *ret_negative, uint64_t *ret_magnitude)
{
    bool is_signed =
        en->type == GGUF_I8 || en->type == GGUF_I16 || en->type == GGUF_I32 || en->type == GGUF_I64;
    bool is_integer = is_signed || en->type == GGUF_U8 || en->type == GGUF_U16 || en->type == GGUF_U32 ||
                      en->type == GGUF_U64;
    uint64_t v = 0;
    unsigned bits;

    if (!is_integer)
        return false;

    memcpy(&v, en->value, en->bytes);
    bits = 8 * (unsigned) en->bytes;
    *ret_negative = is_signed && v >> (bits - 1) != 0;
    if (*ret_negative) /* two's complement of that width */
        v = bits == 64 ? -v : (UINT64_C(1) << bits) - v;
    *ret_magnitude = v;
    return true;
}

/* @en: of the key, or an element of its array. */
static int gguf_values_u32(const struct gguf *g, const char *key, const struct gguf_entry *en,
                           uint32_t *ret_value, struct errmsg *e)
{
    bool negative;
    uint64_t v;

    if (!integer_value(en, &negative, &v))
        return gguf_values_wrong_type(g, key, en, "an integer", e);
    if (negative || v > UINT32_MAX)
        return fail(e, -EBADMSG, "%s: key \"%s\" is out of range", g->label, key);

    *ret_value = (uint32_t) v;
    return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret_value, struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);

    return en ? gguf_values_u32(g, key, en, ret_value, e) : gguf_values_missing(g, key, e);
}

int gguf_get_u32_of_all(const struct gguf *g, const char *key, uint32_t n, uint32_t *ret_value,
                        struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);
    struct gguf_entry element = {0};
    struct gguf_cursor c;
    uint32_t first = 0, v;
    uint64_t n_elements;
    int r = 0;

    if (!en || en->type != GGUF_ARRAY)
        return gguf_get_u32(g, key, ret_value, e);

    c = (struct gguf_cursor){en->value, en->bytes};
    if (!gguf_take_u32(&c, &element.type) || !gguf_take_u64(&c, &n_elements))
        return fail(e, -EBADMSG, "%s: key \"%s\" changed while it was read", g->label, key);
    if (n_elements != n)
        return fail(e, -EBADMSG, "%s: key \"%s\" does not have %u values, one for each layer", g->label, key,
                    n);

    element.bytes = gguf_scalar_bytes(element.type);
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        if (!gguf_take(&c, element.bytes, &element.value))
            return fail(e, -EBADMSG, "%s: key \"%s\" changed while it was read", g->label, key);
        r = gguf_values_u32(g, key, &element, &v, e);
        if (r == 0 && i > 0 && v != first)
            return fail(e, -EOPNOTSUPP,
                        "%s: key \"%s\" is %u in layer 0 and %u in layer %u; layers must be alike", g->label,
                        key, first, v, i);
        first = r == 0 ? v : first;
    }
    if (r == 0)
        *ret_value = first;
    return r;
}

int gguf_get_id_or_none(const struct gguf *g, const char *key, uint32_t *ret_value, struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);
    bool negative;
    uint64_t v;

    *ret_value = UINT32_MAX;
    if (!en || (integer_value(en, &negative, &v) && negative && v == 1))
        return 0;
    return gguf_values_u32(g, key, en, ret_value, e);
}

int gguf_get_u32_or(const struct gguf *g, const char *key, uint32_t fallback, uint32_t *ret_value,
                    struct errmsg *e)
{
    if (gguf_has(g, key))
        return gguf_get_u32(g, key, ret_value, e);

    *ret_value = fallback;
    return 0;
}

int gguf_get_f64(const struct gguf *g, const char *key, double *ret_value, struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);
    uint64_t magnitude;
    bool negative;
    double v;

    if (!en)
        return gguf_values_missing(g, key, e);
    if (en->type == GGUF_F32) {
        float f;

        memcpy(&f, en->value, sizeof(f));
        v = (double) f;
    } else if (en->type == GGUF_F64) {
        memcpy(&v, en->value, sizeof(v));
    } else if (integer_value(en, &negative, &magnitude)) {
        v = negative ? -(double) magnitude : (double) magnitude;
    } else {
        return gguf_values_wrong_type(g, key, en, "a number", e);
    }

    if (!__builtin_isfinite(v))
        return fail(e, -EBADMSG, "%s: key \"%s\" is not a finite number", g->label, key);

    *ret_value = v;
    return 0;
}

int gguf_get_f64_or(const struct gguf *g, const char *key, double fallback, double *ret_value,
                    struct errmsg *e)
{
    if (gguf_has(g, key))
        return gguf_get_f64(g, key, ret_value, e);

    *ret_value = fallback;
    return 0;
}

int gguf_get_bool_or(const struct gguf *g, const char *key, bool fallback, bool *ret_value, struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);

    if (en && en->type != GGUF_BOOL)
        return gguf_values_wrong_type(g, key, en, "bool", e);

    *ret_value = en ? *en->value != 0 : fallback;
    return 0;
}

int gguf_get_string(const struct gguf *g, const char *key, const char **ret_text, size_t *ret_bytes,
                    struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);
    struct gguf_cursor c;

    if (!en)
        return gguf_values_missing(g, key, e);
    if (en->type != GGUF_STRING)
        return gguf_values_wrong_type(g, key, en, "string", e);

    c = (struct gguf_cursor){en->value, en->bytes};
    if (!gguf_take_string(&c, ret_text, ret_bytes))
        return fail(e, -EBADMSG, "%s: key \"%s\" changed while it was read", g->label, key);

    return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type element,
                   struct gguf_array *ret_array, struct errmsg *e)
{
    const struct gguf_entry *en = gguf_values_find_key(g, key);
    struct gguf_cursor c;
    uint32_t type;
    uint64_t n;

    if (!en)
        return gguf_values_missing(g, key, e);
    if (en->type != GGUF_ARRAY)
        return gguf_values_wrong_type(g, key, en, "array", e);

    c = (struct gguf_cursor){en->value, en->bytes};
    if (!gguf_take_u32(&c, &type) || !gguf_take_u64(&c, &n))
        return fail(e, -EBADMSG, "%s: key \"%s\" changed while it was read", g->label, key);
    if (type != element)
        return fail(e, -EBADMSG, "%s: key \"%s\" is an array of %s, not of %s", g->label, key,
                    gguf_type_name(type), gguf_type_name(element));

    *ret_array = (struct gguf_array){.type = element, .n = n, .data = c.p, .bytes = c.left};
    return 0;
}

bool gguf_array_next_string(struct gguf_array *a, const char **ret_text, size_t *ret_bytes)
{
    struct gguf_cursor c = {a->data, a->bytes};

    if (a->type != GGUF_STRING || a->n == 0 || !gguf_take_string(&c, ret_text, ret_bytes))
        return false;

    a->data = c.p;
    a->bytes = c.left;
    a->n--;
    return true;
}
