/*
 * Checks the sizes inside a message by a walk over the wire format, before anything is allocated: two bytes
 * on the wire can make a submessage of fifty bytes in memory, or a block for a field that the schema does not
 * have. The walk follows the generated descriptors with an explicit stack, whose depth is that of the schema
 * (which has no recursion). It counts repeated items and unknown fields against the limits of
 * proto/protocol.h, limits strings, and refuses forms that our encoders never write: groups, field number 0,
 * a second body, a field twice that is not repeated.
 */
#include "proto/wire_limits.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/checked.h"
#include "proto/protocol.h"

enum {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_LENGTH = 2,
    WIRE_FIXED32 = 5,

    DEPTH_MAX = 4, /* Request > OpenModel > Geometry, Reply > StatusReply > TenantStatus, and one more */
    FIELDS_PER_MESSAGE = 64,
    FREQ_ITEMS_MAX = 128, /* rotary planes of the largest head dimension */
};

struct frame {
    const ProtobufCMessageDescriptor *type;
    const uint8_t *p, *end;
    uint32_t counts[FIELDS_PER_MESSAGE]; /* by index in type->fields */
    uint32_t n_bodies;                   /* members of the oneof found so far */
    uint32_t n_unknown;                  /* fields that @type does not have */
};

struct walk {
    struct frame stack[DEPTH_MAX];
    unsigned depth;     /* of the frame on top */
    uint32_t n_unknown; /* of all messages of the packet */
};

static int wire_limits_read_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte;

        if (*p == end)
            return -EBADMSG;

        byte = *(*p)++;
        v |= (uint64_t) (byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = v;
            return 0;
        }
    }

    return -EBADMSG;
}

/* Moves over one field's value; *ret_value, *ret_bytes are set for length-delimited fields. */
static int wire_limits_read_value(struct frame *f, unsigned wire_type, const uint8_t **ret_value,
                                  size_t *ret_bytes)
{
    uint64_t n = 0;
    int r = 0;

    switch (wire_type) {
    case WIRE_VARINT:
        r = wire_limits_read_varint(&f->p, f->end, &n);
        n = 0;
        break;
    case WIRE_FIXED64:
        n = 8;
        break;
    case WIRE_FIXED32:
        n = 4;
        break;
    case WIRE_LENGTH:
        r = wire_limits_read_varint(&f->p, f->end, &n);
        break;
    default:
        r = -EBADMSG; /* groups */
    }

    if (r < 0 || n > (uint64_t) (f->end - f->p))
        return -EBADMSG;

    *ret_value = f->p;
    *ret_bytes = (size_t) n;
    f->p += n;
    return 0;
}

static uint32_t wire_limits_items_max(const ProtobufCFieldDescriptor *field)
{
    if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        return FREQ_ITEMS_MAX;
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return WIRE_LIST_ITEMS_MAX;
    if (field->type == PROTOBUF_C_TYPE_BYTES)
        return WIRE_TABLES_MAX;
    if (field->descriptor == &kvcobra__table_info__descriptor ||
        field->descriptor == &kvcobra__tenant_status__descriptor ||
        field->descriptor == &kvcobra__space_status__descriptor)
        return WIRE_LIST_ITEMS_MAX;
    if (field->descriptor == &kvcobra__device_status__descriptor)
        return WIRE_DEVICES_MAX;
    if (field->descriptor == &kvcobra__session_info__descriptor)
        return WIRE_SESSIONS_MAX;
    if (field->descriptor == &kvcobra__log_event__descriptor)
        return WIRE_EVENTS_MAX;
    if (field->descriptor == &kvcobra__model_alias__descriptor)
        return WIRE_ALIASES_MAX;

    return WIRE_ITEMS_MAX;
}

/* Items of a packed array: doubles have eight bytes, fixed numbers four, every varint ends with a byte whose
 * top bit is clear. */
static size_t wire_limits_packed_items(const ProtobufCFieldDescriptor *field, const uint8_t *p, size_t bytes)
{
    size_t n = 0;

    if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        return bytes / 8;
    if (field->type == PROTOBUF_C_TYPE_FIXED32)
        return bytes / 4;

    for (size_t i = 0; i < bytes; i++)
        n += !(p[i] & 0x80);
    return n;
}

static int wire_limits_count_repeated(struct frame *f, const ProtobufCFieldDescriptor *field,
                                      unsigned wire_type, const uint8_t *value, size_t bytes)
{
    uint32_t *count = &f->counts[field - f->type->fields];
    size_t items = 1;

    if (wire_type == WIRE_LENGTH && field->type != PROTOBUF_C_TYPE_MESSAGE &&
        field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_BYTES)
        items = wire_limits_packed_items(field, value, bytes);
    if (items == 0)
        items = 1; /* a piece without items costs the decoder as much as one with an item */
    if (items > wire_limits_items_max(field) - *count)
        return -E2BIG;

    *count += (uint32_t) items;
    return 0;
}

/*
 * A field of a newer version. The decoder keeps each in a block of its own, so few are allowed: in one
 * message, and in all messages of a packet.
 */
static int wire_limits_count_unknown(struct walk *w, struct frame *f)
{
    if (++f->n_unknown > WIRE_UNKNOWN_FIELDS_MAX || ++w->n_unknown > WIRE_ITEMS_MAX)
        return -EOPNOTSUPP;
    return 0;
}

/* A field of the schema. A field twice that is not repeated is legal protobuf, but no encoder writes it, and
 * the decoder works for each. */
static int wire_limits_count_known(struct frame *f, const ProtobufCFieldDescriptor *field, unsigned wire_type,
                                   const uint8_t *value, size_t bytes)
{
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && ++f->n_bodies > 1)
        return -EBADMSG;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return wire_limits_count_repeated(f, field, wire_type, value, bytes);
    return ++f->counts[field - f->type->fields] > 1 ? -EBADMSG : 0;
}

/* One field of the frame on top. A submessage becomes the frame on top. */
static int wire_limits_walk_field(struct walk *w)
{
    struct frame *f = &w->stack[w->depth];
    const ProtobufCFieldDescriptor *field;
    const uint8_t *value = NULL;
    size_t bytes = 0;
    uint64_t tag;
    int r;

    r = wire_limits_read_varint(&f->p, f->end, &tag);
    if (r < 0 || tag >> 3 == 0 || tag >> 3 > 0x1fffffff)
        return -EBADMSG;

    r = wire_limits_read_value(f, tag & 7, &value, &bytes);
    if (r < 0)
        return r;

    field = protobuf_c_message_descriptor_get_field(f->type, (unsigned) (tag >> 3));
    if (!field)
        return wire_limits_count_unknown(w, f);

    r = wire_limits_count_known(f, field, tag & 7, value, bytes);
    if (r < 0)
        return r;
    if (field->type == PROTOBUF_C_TYPE_STRING && bytes > WIRE_TEXT_BYTES_MAX)
        return -E2BIG;
    if (field->type != PROTOBUF_C_TYPE_MESSAGE || (tag & 7) != WIRE_LENGTH)
        return 0;
    if (w->depth + 1 == DEPTH_MAX)
        return -EBADMSG;

    w->stack[++w->depth] = (struct frame){.type = field->descriptor, .p = value, .end = value + bytes};
    return 0;
}

int wire_limits_check(const ProtobufCMessageDescriptor *type, const uint8_t *packet, size_t bytes)
{
    struct walk w = {.depth = 0, .n_unknown = 0};

    w.stack[0] = (struct frame){.type = type, .p = packet, .end = packet + bytes};
    for (;;) {
        const struct frame *f = &w.stack[w.depth];
        int r;

        if (f->type->n_fields > FIELDS_PER_MESSAGE)
            return -EBADMSG; /* the schema has grown beyond counts[]; test_wire.c would fail */
        if (f->p == f->end) {
            if (w.depth == 0)
                return 0;

            w.depth--;
            continue;
        }

        r = wire_limits_walk_field(&w);
        if (r < 0)
            return r;
    }
}
