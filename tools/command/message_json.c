/* See message_json.h. */
#include "tools/command/message_json.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tools/command/command.h"
#include "tools/command/report.h"
#include "tools/command/utf8_json.h"

static json_t *message_json_bytes(const ProtobufCBinaryData *b)
{
    static const char digits[] = "0123456789abcdef";
    _cleanup_(freep) char *hex = command_allocated(calloc(b->len + 1, 2));

    for (size_t i = 0; i < b->len; i++) {
        hex[2 * i] = digits[b->data[i] >> 4];
        hex[2 * i + 1] = digits[b->data[i] & 15];
    }
    return json_string(hex);
}

static json_t *message_json_enum(const ProtobufCFieldDescriptor *f, int value)
{
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(f->descriptor, value);

    return v ? json_string(v->name) : json_integer(value); /* of a newer daemon */
}

/* @at: where the value is, in a message or in an array. @ret_bytes: how many the value has there. */
static json_t *message_json_value(const ProtobufCFieldDescriptor *f, const void *at, size_t *ret_bytes)
{
    *ret_bytes = sizeof(uint64_t);
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        return utf8_json(*(const char *const *) at, strlen(*(const char *const *) at));
    case PROTOBUF_C_TYPE_MESSAGE:
        return *(void *const *) at ? message_json(*(ProtobufCMessage *const *) at) : json_null();
    case PROTOBUF_C_TYPE_DOUBLE:
        return report_json_real(*(const double *) at);
    case PROTOBUF_C_TYPE_BYTES:
        *ret_bytes = sizeof(ProtobufCBinaryData);
        return message_json_bytes(at);
    case PROTOBUF_C_TYPE_BOOL:
        *ret_bytes = sizeof(protobuf_c_boolean);
        return json_boolean(*(const protobuf_c_boolean *) at);
    case PROTOBUF_C_TYPE_ENUM:
        *ret_bytes = sizeof(int);
        return message_json_enum(f, *(const int *) at);
    case PROTOBUF_C_TYPE_SINT32:
        *ret_bytes = sizeof(int32_t);
        return json_integer(*(const int32_t *) at);
    case PROTOBUF_C_TYPE_UINT32:
        *ret_bytes = sizeof(uint32_t);
        return json_integer(*(const uint32_t *) at);
    default: /* uint64: kvcobra.proto has no other types, as the test of this file sees */
        return json_integer((json_int_t) * (const uint64_t *) at);
    }
}

json_t *message_json_field(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    const char *at = (const char *) m + f->offset;
    size_t n, bytes;
    json_t *all;

    if (f->label != PROTOBUF_C_LABEL_REPEATED)
        return message_json_value(f, at, &bytes);

    all = json_array();
    n = *(const size_t *) ((const char *) m + f->quantifier_offset);
    at = *(const char *const *) at;
    for (; all && n > 0; n--, at += bytes)
        if (json_array_append_new(all, message_json_value(f, at, &bytes)) < 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

json_t *message_json(const ProtobufCMessage *m)
{
    json_t *all = json_object();

    for (unsigned i = 0; all && i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];

        if (json_object_set_new(all, f->name, message_json_field(m, f)) < 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

int message_json_report(json_t *more, const ProtobufCMessage *m)
{
    json_t *fields = message_json(m);

    if (!more || !fields || json_object_update_missing(more, fields) < 0) {
        json_decref(more);
        more = NULL;
    }
    json_decref(fields);
    return report_json(more);
}
