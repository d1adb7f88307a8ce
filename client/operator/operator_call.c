/* One operator call; see operator_call.h. */
#include "client/operator/operator_call.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"

enum { TENANTS_MAX = 64 };

int operator_request(kvc_client *c, Kvcobra__Request__BodyCase kind, ProtobufCMessage *body, int fd,
                     struct reply *ret)
{
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;

    request.body_case = kind;
    request.hello = (void *) body; /* every member of this union is a pointer to a message */
    return connection_request(&c->connection, &request, &fd, fd >= 0, (Kvcobra__Reply__BodyCase) kind, ret,
                              &c->error);
}

int operator_end_change(kvc_client *c, Kvcobra__Outcome outcome, uint64_t revision, uint64_t *ret_revision)
{
    if (outcome != KVCOBRA__OUTCOME__OUTCOME_APPLIED && outcome != KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: outcome %d", (int) outcome);

    if (ret_revision)
        *ret_revision = revision;
    return outcome == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
}

ProtobufCBinaryData operator_bytes(const uint8_t *digest)
{
    return (ProtobufCBinaryData){digest ? KVC_DIGEST_BYTES : 0, (uint8_t *) digest};
}

int operator_check_tenants(kvc_client *c, const char *const *tenants, size_t n)
{
    if (n > TENANTS_MAX || (n > 0 && !tenants))
        return fail(&c->error, -EINVAL, "%zu tenants, at most %d, or their names are NULL", n, TENANTS_MAX);

    for (size_t i = 0; i < n; i++)
        if (!tenants[i])
            return fail(&c->error, -EINVAL, "the name of tenant %zu is NULL", i);

    return 0;
}

int operator_read_image(kvc_client *c, struct reply *reply, uint64_t bytes, uint64_t bytes_max,
                        void **ret_image)
{
    _cleanup_(closep) int fd = reply_take_fd(reply, 0);
    _cleanup_(freep) void *image = NULL;
    int r;

    if (fd < 0 || bytes == 0 || bytes > bytes_max)
        return fail(&c->error, -EPROTO,
                    "kvcobrad's answer is not valid: %" PRIu64 " bytes, or no descriptor for them", bytes);

    image = malloc((size_t) bytes);
    if (!image)
        return fail(&c->error, -ENOMEM, "out of memory for %" PRIu64 " bytes", bytes);

    r = fd_pread_all(fd, image, (size_t) bytes, 0);
    if (r < 0)
        return fail(&c->error, r == -ENODATA ? -EPROTO : r, "cannot read %" PRIu64 " bytes from kvcobrad: %s",
                    bytes, strerror(-r));

    *ret_image = take_ptr(image);
    return 0;
}
