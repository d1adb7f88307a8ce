/* One request of kvcobra.proto; see operator_call.h. */
#include "tools/command/operator_call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"

void operator_message_freep(void *message)
{
    int saved = errno;

    protobuf_c_message_free_unpacked(*(ProtobufCMessage **) message, NULL);
    errno = saved;
}

/* Unpacks @reply into *ret, whose type is a pointer to the struct of the message. */
static int operator_unpack(uint32_t kind, const kvc_reply *reply, void *ret, struct errmsg *e)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(&kvcobra__reply__descriptor, kind);
    const ProtobufCMessageDescriptor *d = f->descriptor;
    ProtobufCMessage *message = protobuf_c_message_unpack(d, NULL, reply->n_bytes, reply->bytes);

    if (!message)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: %zu bytes are no %s", reply->n_bytes,
                    d->short_name);

    memcpy(ret, &message, sizeof(message));
    return 0;
}

int operator_call_fd(kvc_client *c, uint32_t kind, const ProtobufCMessage *request, int fd, void *ret,
                     int *ret_fd, struct errmsg *e)
{
    size_t n = protobuf_c_message_get_packed_size(request);
    kvc_reply reply = {.struct_bytes = sizeof(reply), .fd = -1};
    _cleanup_(freep) void *bytes = malloc(n + 1); /* a message may have no byte */
    _cleanup_(closep) int got_fd = -1;
    int r;

    if (!bytes)
        return fail(e, -ENOMEM, "out of memory for a request of %zu bytes", n);

    (void) protobuf_c_message_pack(request, bytes);
    r = kvc_call(c, kind, bytes, n, fd, &reply);
    if (r < 0)
        return fail(e, r, "%s", kvc_last_error(c));

    got_fd = reply.fd;
    r = operator_unpack(kind, &reply, ret, e);
    free(reply.bytes);
    if (r == 0 && ret_fd)
        *ret_fd = take_fd(&got_fd);
    return r;
}

int operator_call(kvc_client *c, uint32_t kind, const ProtobufCMessage *request, void *ret, struct errmsg *e)
{
    return operator_call_fd(c, kind, request, -1, ret, NULL, e);
}

/* @to, @from: fields of a message: how many pointers to messages, and their array. */
static int operator_merge_list(size_t *n_to, void ***to, size_t *n_from, void **from, struct errmsg *e)
{
    void **all;

    if (*n_from == 0)
        return 0;

    all = reallocarray(*to, *n_to + *n_from, sizeof(*all));
    if (!all)
        return fail(e, -ENOMEM, "out of memory for %zu items of a list", *n_to + *n_from);

    memcpy(all + *n_to, from, *n_from * sizeof(*all));
    *to = all;
    *n_to += *n_from;
    *n_from = 0;
    return 0;
}

int operator_merge(ProtobufCMessage *to, ProtobufCMessage *from, struct errmsg *e)
{
    for (unsigned i = 0; i < to->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &to->descriptor->fields[i];
        int r;

        if (f->label != PROTOBUF_C_LABEL_REPEATED || f->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;

        r = operator_merge_list(
            (size_t *) ((char *) to + f->quantifier_offset), (void ***) ((char *) to + f->offset),
            (size_t *) ((char *) from + f->quantifier_offset), *(void ***) ((char *) from + f->offset), e);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The member that says where the next part begins; 0: this is the last one. */
static uint64_t *operator_next_cursor(ProtobufCMessage *m)
{
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "next_cursor");

    return (uint64_t *) ((char *) m + f->offset);
}

int operator_get_parts(kvc_client *c, operator_part *get, const char *what, void *ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) ProtobufCMessage *all = NULL;
    uint64_t cursor;
    int r = get(c, 0, &all, e);

    while (r == 0 && (cursor = *operator_next_cursor(all)) != 0) {
        _cleanup_(operator_message_freep) ProtobufCMessage *more = NULL;

        r = get(c, cursor, &more, e);
        if (r == 0 && *operator_next_cursor(more) == cursor)
            r = fail(e, -EPROTO, "kvcobrad's answer is not valid: %s does not end", what);
        if (r == 0)
            r = operator_merge(all, more, e);
        if (r == 0)
            *operator_next_cursor(all) = *operator_next_cursor(more);
    }
    if (r < 0)
        return r;

    *(ProtobufCMessage **) ret = take_ptr(all);
    return 0;
}

int operator_outcome(Kvcobra__Outcome outcome, struct errmsg *e)
{
    if (outcome != KVCOBRA__OUTCOME__OUTCOME_APPLIED && outcome != KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: outcome %d", (int) outcome);
    return outcome == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
}

ProtobufCBinaryData operator_digest(const uint8_t *digest)
{
    return (ProtobufCBinaryData){digest ? KVC_DIGEST_BYTES : 0, (uint8_t *) digest}; /* packing only reads */
}

int operator_check_is_digest(ProtobufCBinaryData b, const char *what, struct errmsg *e)
{
    if (b.len != KVC_DIGEST_BYTES)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: %s without a digest", what);
    return 0;
}

int operator_read_fd(int fd, uint64_t bytes, uint64_t bytes_max, void **ret_image, struct errmsg *e)
{
    _cleanup_(freep) void *image = NULL;
    int r;

    if (fd < 0 || bytes == 0 || bytes > bytes_max)
        return fail(e, -EPROTO,
                    "kvcobrad's answer is not valid: %" PRIu64 " bytes, or no descriptor for them", bytes);

    image = malloc((size_t) bytes);
    if (!image)
        return fail(e, -ENOMEM, "out of memory for %" PRIu64 " bytes", bytes);

    r = fd_pread_all(fd, image, (size_t) bytes, 0);
    if (r < 0)
        return fail(e, r == -ENODATA ? -EPROTO : r, "cannot read %" PRIu64 " bytes from kvcobrad: %s", bytes,
                    strerror(-r));

    *ret_image = take_ptr(image);
    return 0;
}
