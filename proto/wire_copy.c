/* See wire_copy.h. The schema has no recursion, so the depth of calls is that of the schema. */
#include "proto/wire_copy.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { WIRE_COPY_ALIGN = 8 }; /* of everything that a message has: pointers, doubles, 64-bit numbers */

struct wire_block {
    uint8_t *to; /* NULL: the bytes are only counted */
    size_t used;
};

static ProtobufCMessage *wire_copy_message(struct wire_block *b, const ProtobufCMessage *m);

/* The place of @bytes copied bytes; NULL while the bytes are counted. */
static void *wire_copy_bytes_of(struct wire_block *b, const void *from, size_t bytes)
{
    uint8_t *at = b->to ? b->to + b->used : NULL;

    if (at && bytes > 0)
        memcpy(at, from, bytes);
    b->used += (bytes + WIRE_COPY_ALIGN - 1) / WIRE_COPY_ALIGN * WIRE_COPY_ALIGN;
    return at;
}

/* What the value @from points at, for its copy at @to; NULL, as all copies, while the bytes are counted. */
static void wire_copy_value(struct wire_block *b, const ProtobufCFieldDescriptor *f, const void *from,
                            void *to)
{
    if (f->type == PROTOBUF_C_TYPE_STRING) {
        const char *text = *(char *const *) from;
        bool is_static = !text || text == f->default_value || text == protobuf_c_empty_string;
        char *copy = is_static ? NULL : wire_copy_bytes_of(b, text, strlen(text) + 1);

        if (copy && to)
            *(char **) to = copy;
    } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
        const ProtobufCBinaryData *data = from;
        uint8_t *copy = wire_copy_bytes_of(b, data->data, data->len);

        if (copy && to)
            ((ProtobufCBinaryData *) to)->data = data->len > 0 ? copy : NULL;
    } else if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessage *sub = *(ProtobufCMessage *const *) from;
        ProtobufCMessage *copy = sub ? wire_copy_message(b, sub) : NULL;

        if (copy && to)
            *(ProtobufCMessage **) to = copy;
    }
}

static size_t wire_copy_element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default: /* numbers of 32 bits, enumerators and bool: protobuf_c_boolean is an int */
        return 4;
    }
}

static void wire_copy_list(struct wire_block *b, const ProtobufCFieldDescriptor *f, size_t n,
                           const uint8_t *items, uint8_t **ret_copy)
{
    size_t bytes = wire_copy_element_bytes(f);
    uint8_t *copy = wire_copy_bytes_of(b, items, n * bytes);

    for (size_t i = 0; i < n; i++)
        wire_copy_value(b, f, items + i * bytes, copy ? copy + i * bytes : NULL);
    if (copy && ret_copy)
        *ret_copy = n > 0 ? copy : NULL;
}

/* Whether the message has the member of a oneof. */
static bool wire_copy_is_set(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    uint32_t set;

    if (!(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
        return true;
    memcpy(&set, (const uint8_t *) m + f->quantifier_offset, sizeof(set));
    return set == f->id;
}

static ProtobufCMessage *wire_copy_message(struct wire_block *b, const ProtobufCMessage *m)
{
    const ProtobufCMessageDescriptor *d = m->descriptor;
    ProtobufCMessage *copy = wire_copy_bytes_of(b, m, d->sizeof_message);

    if (copy) {
        copy->n_unknown_fields = 0;
        copy->unknown_fields = NULL;
    }
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const uint8_t *from = (const uint8_t *) m + f->offset;
        uint8_t *to = copy ? (uint8_t *) copy + f->offset : NULL;

        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n;

            memcpy(&n, (const uint8_t *) m + f->quantifier_offset, sizeof(n));
            wire_copy_list(b, f, n, *(uint8_t *const *) from, (uint8_t **) to);
        } else if (wire_copy_is_set(m, f)) {
            wire_copy_value(b, f, from, to);
        }
    }

    return copy;
}

size_t wire_copy_bytes(const ProtobufCMessage *m)
{
    struct wire_block b = {.to = NULL, .used = 0};

    (void) wire_copy_message(&b, m);
    return b.used;
}

ProtobufCMessage *wire_copy(const ProtobufCMessage *m, void *to)
{
    struct wire_block b = {.to = to, .used = 0};

    assert((uintptr_t) to % WIRE_COPY_ALIGN == 0);
    return wire_copy_message(&b, m);
}
