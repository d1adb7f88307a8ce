/*
 * Connecting with options, and kvc_call(): requests of kvcobra.proto as bytes, so that programs in any
 * language can operate a daemon, and no header of this library needs protobuf-c.
 */
#include "client/kvcobra-call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/options.h"
#include "client/connection/client.h"
#include "client/connection/reply.h"

enum { TIMEOUT_MS_MAX = 3600 * 1000 };

/* ---- connecting ---- */

static int call_read_connect_options(kvc_client *c, const kvc_connect_options *from, kvc_connect_options *ret)
{
    int r = options_read(ret, sizeof(*ret), from, sizeof(*ret), "kvc_connect_options", &c->error);

    if (r < 0)
        return r;
    if (ret->timeout_ms > TIMEOUT_MS_MAX || ret->unused != 0)
        return fail(&c->error, -EINVAL,
                    "kvc_connect_options: timeout_ms is %u, it must be at most %d, and unused must be 0",
                    ret->timeout_ms, TIMEOUT_MS_MAX);

    return 0;
}

int kvc_client_connect_with(kvc_client *c, const kvc_connect_options *options)
{
    kvc_connect_options o = {.path = NULL};
    int r;

    if (!c)
        return -EINVAL;

    r = client_enter(c);
    if (r == 0 && options)
        r = call_read_connect_options(c, options, &o);
    if (r < 0)
        return r;

    connection_check(&c->connection, true);
    if (o.timeout_ms > 0 && !connection_is_open(&c->connection))
        connection_set_timeout(&c->connection, o.timeout_ms);
    return kvc_client_connect(c, o.path);
}

/* ---- requests ---- */

/* Requests that change what this client knows of its session: its own calls send them. */
static bool call_is_of_session(uint32_t kind)
{
    switch (kind) {
    case KVCOBRA__REQUEST__BODY_REF_TABLE:
    case KVCOBRA__REQUEST__BODY_UNREF_TABLE:
    case KVCOBRA__REQUEST__BODY_KEEP_LEASES:
    case KVCOBRA__REQUEST__BODY_REPORT:
        return true;
    default:
        return kind < KVCOBRA__REQUEST__BODY_LIST_TABLES ||
               (kind >= KVCOBRA__REQUEST__BODY_RESERVE && kind <= KVCOBRA__REQUEST__BODY_READ_RAW);
    }
}

/* The message of field @kind in a Request or Reply; NULL: there is none. */
static const ProtobufCMessageDescriptor *call_message_of(const ProtobufCMessageDescriptor *envelope,
                                                         uint32_t kind)
{
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(envelope, kind);

    return f && f->type == PROTOBUF_C_TYPE_MESSAGE ? f->descriptor : NULL;
}

static int call_unpack(kvc_client *c, uint32_t kind, const void *bytes, size_t n_bytes,
                       ProtobufCMessage **ret)
{
    const ProtobufCMessageDescriptor *d = call_message_of(&kvcobra__request__descriptor, kind);

    if (!d || call_is_of_session(kind))
        return fail(&c->error, -EINVAL, "kvc_call: request %" PRIu32 " %s", kind,
                    d ? "belongs to the session of this client, which sends it by its own calls"
                      : "is none that this version of libkvcobra knows");
    if ((n_bytes > 0 && !bytes) || n_bytes > WIRE_PACKET_BYTES_MAX)
        return fail(&c->error, -EINVAL, "kvc_call: %zu bytes are no request: it is NULL, or larger than %d",
                    n_bytes, WIRE_PACKET_BYTES_MAX);

    *ret = protobuf_c_message_unpack(d, NULL, n_bytes, bytes);
    return *ret ? 0 : fail(&c->error, -EINVAL, "kvc_call: the %zu bytes are no message %s", n_bytes, d->name);
}

/* Copies the body of @from and takes its descriptor. */
static int call_pack(kvc_client *c, struct reply *from, kvc_reply *ret)
{
    const ProtobufCMessage *body = (const void *) from->message->hello; /* every member is a message */
    size_t n = protobuf_c_message_get_packed_size(body);
    kvc_reply reply = {.bytes = malloc(n + 1), .n_bytes = n};
    int r;

    if (!reply.bytes)
        return fail(&c->error, -ENOMEM, "out of memory for a reply of %zu bytes", n);

    (void) protobuf_c_message_pack(body, reply.bytes);
    reply.fd = reply_take_fd(from, 0);
    r = options_write(ret, &reply, sizeof(reply), sizeof(reply), "kvc_reply", &c->error);
    if (r < 0) {
        free(reply.bytes);
        closep(&reply.fd);
    }
    return r;
}

int kvc_call(kvc_client *c, uint32_t kind, const void *request, size_t n_bytes, int fd, kvc_reply *ret_reply)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__Request message = KVCOBRA__REQUEST__INIT;
    ProtobufCMessage *body = NULL;
    int r = client_enter_connected(c);

    if (r == 0 && ret_reply) /* before the request: a wrong argument must not leave a change */
        r = options_check(ret_reply->struct_bytes, sizeof(*ret_reply), "kvc_reply", &c->error);
    if (r == 0)
        r = call_unpack(c, kind, request, n_bytes, &body);
    if (r < 0)
        return r;

    message.body_case = (Kvcobra__Request__BodyCase) kind;
    message.hello = (void *) body; /* every member of this union is a pointer to a message */
    r = connection_request(&c->connection, &message, &fd, fd >= 0, (Kvcobra__Reply__BodyCase) kind, &reply,
                           &c->error);
    protobuf_c_message_free_unpacked(body, NULL);
    return r < 0 || !ret_reply ? r : call_pack(c, &reply, ret_reply);
}
