/* Requests and replies; see serve.h. */
#include "mover/serve.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "mover/mover_devices.h"
#include "proto/mover_wire.h"

/* One request and its reply. */
struct serve_call {
    const Kvcobra__MoverRequest *request;
    struct wire_packet *packet; /* received descriptors; those taken over are -1 */
    struct mover_devices *devices;
    struct errmsg error;
    int fd; /* sent with the reply; -1: none */
    Kvcobra__MoverReply reply;
    union {
        Kvcobra__MoverOpened open;
        Kvcobra__MoverCreated create;
        Kvcobra__MoverChecked check;
        Kvcobra__MoverCopied copy;
        Kvcobra__MoverListed processes;
    } body;
    char uuid[CUDA_UUID_CHARS];
    uint32_t values[WIRE_ITEMS_MAX]; /* checksums, processes */
};

/* Refuses a request with another number of descriptors than @n. */
static int serve_expect_fds(struct serve_call *c, size_t n)
{
    if (c->packet->n_fds != n)
        return fail(&c->error, -EINVAL, "%zu descriptors came with the request, %zu belong to it",
                    c->packet->n_fds, n);

    return 0;
}

static int serve_open_device(struct serve_call *c)
{
    const Kvcobra__MoverOpen *m = c->request->open;
    Kvcobra__MoverOpened *o = &c->body.open;
    struct mover_device *device;
    size_t n;
    int r = serve_expect_fds(c, 0);

    if (r < 0)
        return r;

    r = mover_devices_open(c->devices, m->device, m->uuid, m->bytes, &device, &c->error);
    if (r < 0)
        return r;

    cuda_uuid_format(&device->info.uuid, c->uuid);
    kvcobra__mover_opened__init(o);
    o->uuid = c->uuid;
    o->name = device->info.name;
    o->bytes = device->info.bytes;
    o->granularity = device->info.granularity;
    o->compute = (uint32_t) device->info.compute;
    o->driver_version = (uint32_t) c->devices->driver->version;
    o->is_shared = mover_devices_is_shared(c->devices, device);
    o->lists_processes =
        mover_devices_list_processes(c->devices, device, c->values, WIRE_ITEMS_MAX, &n, NULL) == 0;
    c->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_OPEN;
    c->reply.open = o;
    return 0;
}

static int serve_create(struct serve_call *c)
{
    const Kvcobra__MoverCreate *m = c->request->create;
    struct mover_device *device;
    int r = serve_expect_fds(c, 0);

    if (r < 0)
        return r;

    r = mover_devices_find(c->devices, m->device, &device, &c->error);
    if (r < 0)
        return r;

    r = move_create(device, m->bytes, &c->fd, &c->error);
    if (r < 0)
        return r;

    kvcobra__mover_created__init(&c->body.create);
    c->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_CREATE;
    c->reply.create = &c->body.create;
    return 0;
}

static int serve_check(struct serve_call *c)
{
    const Kvcobra__MoverCheck *m = c->request->check;
    struct range ranges[WIRE_ITEMS_MAX]; /* mover_request_unpack() allows no more */
    struct mover_device *device;
    int r = serve_expect_fds(c, 1);

    if (r < 0)
        return r;

    r = mover_devices_find(c->devices, m->device, &device, &c->error);
    if (r < 0)
        return r;

    for (size_t i = 0; i < m->n_ranges; i++)
        ranges[i] = (struct range){m->ranges[i]->offset, m->ranges[i]->bytes};
    r = move_check(device, take_fd(&c->packet->fds[0]), m->extent_bytes, ranges, m->n_ranges, c->values,
                   &c->error);
    if (r < 0)
        return r;

    kvcobra__mover_checked__init(&c->body.check);
    c->body.check.crc32c = c->values;
    c->body.check.n_crc32c = m->n_ranges;
    c->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_CHECK;
    c->reply.check = &c->body.check;
    return 0;
}

static int serve_copy(struct serve_call *c)
{
    const Kvcobra__MoverCopy *m = c->request->copy;
    const struct range range = {m->offset, m->bytes};
    struct mover_device *device;
    int r = serve_expect_fds(c, 2);

    if (r < 0)
        return r;

    r = mover_devices_find(c->devices, m->device, &device, &c->error);
    if (r < 0)
        return r;

    r = move_copy(device, take_fd(&c->packet->fds[0]), m->extent_bytes, &range, c->packet->fds[1],
                  m->to_extent, &c->error);
    if (r < 0)
        return r;

    kvcobra__mover_copied__init(&c->body.copy);
    c->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_COPY;
    c->reply.copy = &c->body.copy;
    return 0;
}

static int serve_list_processes(struct serve_call *c)
{
    const Kvcobra__MoverProcesses *m = c->request->processes;
    struct mover_device *device;
    size_t n;
    int r = serve_expect_fds(c, 0);

    if (r < 0)
        return r;

    r = mover_devices_find(c->devices, m->device, &device, &c->error);
    if (r < 0)
        return r;

    r = mover_devices_list_processes(c->devices, device, c->values, WIRE_ITEMS_MAX, &n, &c->error);
    if (r < 0)
        return r;

    kvcobra__mover_listed__init(&c->body.processes);
    c->body.processes.pids = c->values;
    c->body.processes.n_pids = n;
    c->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_PROCESSES;
    c->reply.processes = &c->body.processes;
    return 0;
}

static int serve_handle(struct serve_call *c)
{
    switch (c->request->body_case) {
    case KVCOBRA__MOVER_REQUEST__BODY_OPEN:
        return serve_open_device(c);
    case KVCOBRA__MOVER_REQUEST__BODY_CREATE:
        return serve_create(c);
    case KVCOBRA__MOVER_REQUEST__BODY_CHECK:
        return serve_check(c);
    case KVCOBRA__MOVER_REQUEST__BODY_COPY:
        return serve_copy(c);
    case KVCOBRA__MOVER_REQUEST__BODY_PROCESSES:
        return serve_list_processes(c);
    default:
        return fail(&c->error, -EOPNOTSUPP, "unknown request");
    }
}

/* Return: 0; errno of the socket. */
static int serve_send_reply(int socket, struct serve_call *c, int err, uint8_t *packet)
{
    ssize_t n;

    c->reply.id = c->request->id;
    c->reply.err = err;
    if (err < 0)
        c->reply.message = c->error.text;
    n = mover_reply_pack(&c->reply, packet);
    if (n < 0)
        return (int) n;

    return wire_send(socket, packet, (size_t) n, &c->fd, c->fd >= 0 ? 1 : 0);
}

/* Return: 0; -EIO: the context is lost; errno of the socket. */
static int serve_request(int socket, struct mover_devices *devices, const Kvcobra__MoverRequest *request,
                         struct wire_packet *p, uint8_t *packet, struct errmsg *e)
{
    struct serve_call c = {
        .request = request, .packet = p, .devices = devices, .fd = -1, .reply = KVCOBRA__MOVER_REPLY__INIT};
    int err = serve_handle(&c), r;

    r = serve_send_reply(socket, &c, err, packet);
    closep(&c.fd);
    if (r < 0)
        return fail(e, r, "cannot send a reply: %s", strerror(-r));

    return err == -EIO ? fail(e, err, "%s", c.error.text) : 0;
}

static void serve_request_freep(Kvcobra__MoverRequest **request)
{
    mover_request_free(*request);
}

/* Whether a driver that failed to start stays loaded: it may not start a second time in the same process. */
static bool serve_has_failed_driver(const struct mover_devices *d)
{
    void *library = d->driver ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (library)
        (void) dlclose(library);
    return library;
}

/*
 * Return: 0; 1: the caller must end this process, since the driver cannot start a second time in it;
 * -EBADMSG; -EIO: the context is lost; errno of the socket.
 */
static int serve_one(int socket, struct mover_devices *devices, struct errmsg *e)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    _cleanup_(serve_request_freep) Kvcobra__MoverRequest *request = NULL;
    _cleanup_(wire_packet_close_fds) struct wire_packet p = {0};
    int r;

    r = wire_receive(socket, packet, &p);
    if (r < 0)
        return fail(e, r, "cannot read a request: %s", strerror(-r));

    r = mover_request_unpack(packet, p.bytes, &request);
    if (r < 0)
        return fail(e, r, "a packet of kvcobrad is refused: %s", wire_refusal(r));

    r = serve_request(socket, devices, request, &p, packet, e);
    if (r < 0)
        return r;

    return serve_has_failed_driver(devices);
}

int serve(int socket, struct errmsg *e)
{
    struct mover_devices devices = {0};
    int r;

    do
        r = serve_one(socket, &devices, e);
    while (r == 0);

    if (r != -EIO) /* the kernel cleans up after a lost context */
        mover_devices_close(&devices);
    return r == -EPIPE || r == -ECONNRESET || r > 0 ? 0 : r;
}
