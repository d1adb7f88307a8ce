/* Requests and answers; see serve.h. */
#include "mover/serve.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "mover/mover_devices.h"
#include "mover/move.h"
#include "proto/mover_wire.h"

/* One request while it is answered. */
struct serve_turn {
    const Kvcobra__MoverRequest *request;
    struct wire_packet *packet; /* descriptors that came; those taken are -1 */
    struct mover_devices *devices;
    struct errmsg error;
    int fd; /* goes with the answer; -1: none */
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

/* How many descriptors a request brings. */
static int serve_expect_fds(struct serve_turn *t, size_t n)
{
    if (t->packet->n_fds != n)
        return fail(&t->error, -EINVAL, "%zu descriptors came where %zu belong", t->packet->n_fds, n);

    return 0;
}

static int serve_open_device(struct serve_turn *t)
{
    const Kvcobra__MoverOpen *m = t->request->open;
    Kvcobra__MoverOpened *o = &t->body.open;
    struct mover_device *device;
    size_t n;
    int r = serve_expect_fds(t, 0);

    if (r == 0)
        r = mover_devices_open(t->devices, m->device, m->uuid, m->bytes, &device, &t->error);
    if (r < 0)
        return r;

    cuda_uuid_format(&device->info.uuid, t->uuid);
    kvcobra__mover_opened__init(o);
    o->uuid = t->uuid;
    o->name = device->info.name;
    o->bytes = device->info.bytes;
    o->granularity = device->info.granularity;
    o->compute = (uint32_t) device->info.compute;
    o->driver_version = (uint32_t) t->devices->driver->version;
    o->is_shared = mover_devices_is_shared(t->devices, device);
    o->lists_processes =
        mover_devices_list_processes(t->devices, device, t->values, WIRE_ITEMS_MAX, &n, NULL) == 0;
    t->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_OPEN;
    t->reply.open = o;
    return 0;
}

static int serve_create(struct serve_turn *t)
{
    const Kvcobra__MoverCreate *m = t->request->create;
    struct mover_device *device;
    int r = serve_expect_fds(t, 0);

    if (r == 0)
        r = mover_devices_find(t->devices, m->device, &device, &t->error);
    if (r == 0)
        r = move_create(device, m->bytes, &t->fd, &t->error);
    if (r < 0)
        return r;

    kvcobra__mover_created__init(&t->body.create);
    t->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_CREATE;
    t->reply.create = &t->body.create;
    return 0;
}

static int serve_check(struct serve_turn *t)
{
    const Kvcobra__MoverCheck *m = t->request->check;
    struct range ranges[WIRE_ITEMS_MAX]; /* unpacking allows no more */
    struct mover_device *device;
    int r = serve_expect_fds(t, 1);

    if (r == 0)
        r = mover_devices_find(t->devices, m->device, &device, &t->error);
    if (r < 0)
        return r;

    for (size_t i = 0; i < m->n_ranges; i++)
        ranges[i] = (struct range){m->ranges[i]->offset, m->ranges[i]->bytes};
    r = move_check(device, take_fd(&t->packet->fds[0]), m->extent_bytes, ranges, m->n_ranges, t->values,
                   &t->error);
    if (r < 0)
        return r;

    kvcobra__mover_checked__init(&t->body.check);
    t->body.check.crc32c = t->values;
    t->body.check.n_crc32c = m->n_ranges;
    t->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_CHECK;
    t->reply.check = &t->body.check;
    return 0;
}

static int serve_copy(struct serve_turn *t)
{
    const Kvcobra__MoverCopy *m = t->request->copy;
    const struct range range = {m->offset, m->bytes};
    struct mover_device *device;
    int r = serve_expect_fds(t, 2);

    if (r == 0)
        r = mover_devices_find(t->devices, m->device, &device, &t->error);
    if (r == 0)
        r = move_copy(device, take_fd(&t->packet->fds[0]), m->extent_bytes, &range, t->packet->fds[1],
                      m->to_extent, &t->error);
    if (r < 0)
        return r;

    kvcobra__mover_copied__init(&t->body.copy);
    t->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_COPY;
    t->reply.copy = &t->body.copy;
    return 0;
}

static int serve_list_processes(struct serve_turn *t)
{
    const Kvcobra__MoverProcesses *m = t->request->processes;
    struct mover_device *device;
    size_t n;
    int r = serve_expect_fds(t, 0);

    if (r == 0)
        r = mover_devices_find(t->devices, m->device, &device, &t->error);
    if (r == 0)
        r = mover_devices_list_processes(t->devices, device, t->values, WIRE_ITEMS_MAX, &n, &t->error);
    if (r < 0)
        return r;

    kvcobra__mover_listed__init(&t->body.processes);
    t->body.processes.pids = t->values;
    t->body.processes.n_pids = n;
    t->reply.body_case = KVCOBRA__MOVER_REPLY__BODY_PROCESSES;
    t->reply.processes = &t->body.processes;
    return 0;
}

static int serve_handle(struct serve_turn *t)
{
    switch (t->request->body_case) {
    case KVCOBRA__MOVER_REQUEST__BODY_OPEN:
        return serve_open_device(t);
    case KVCOBRA__MOVER_REQUEST__BODY_CREATE:
        return serve_create(t);
    case KVCOBRA__MOVER_REQUEST__BODY_CHECK:
        return serve_check(t);
    case KVCOBRA__MOVER_REQUEST__BODY_COPY:
        return serve_copy(t);
    case KVCOBRA__MOVER_REQUEST__BODY_PROCESSES:
        return serve_list_processes(t);
    default:
        return fail(&t->error, -EOPNOTSUPP, "this mover does not know the request");
    }
}

/* Return: 0; errno of the socket. */
static int serve_send_reply(int socket, struct serve_turn *t, int err, uint8_t *packet)
{
    ssize_t n;

    t->reply.id = t->request->id;
    t->reply.err = err;
    if (err < 0)
        t->reply.message = t->error.text;
    n = mover_reply_pack(&t->reply, packet);
    return n < 0 ? (int) n : wire_send(socket, packet, (size_t) n, &t->fd, t->fd >= 0 ? 1 : 0);
}

/* Return: 0; -EIO: the context is lost; errno of the socket. */
static int serve_take_turn(int socket, struct mover_devices *devices, const Kvcobra__MoverRequest *request,
                           struct wire_packet *p, uint8_t *packet, struct errmsg *e)
{
    struct serve_turn t = {
        .request = request, .packet = p, .devices = devices, .fd = -1, .reply = KVCOBRA__MOVER_REPLY__INIT};
    int err = serve_handle(&t), r;

    r = serve_send_reply(socket, &t, err, packet);
    closep(&t.fd);
    if (r < 0)
        return fail(e, r, "cannot answer: %s", strerror(-r));

    return err == -EIO ? fail(e, err, "%s", t.error.text) : 0;
}

/* Whether a driver that failed to start stays in this process: such a one may not start again here. */
static bool serve_has_failed_driver(const struct mover_devices *d)
{
    void *library = d->driver ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (library)
        (void) dlclose(library);
    return library;
}

int serve(int socket, struct errmsg *e)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    struct mover_devices devices = {0};
    int r;

    do {
        Kvcobra__MoverRequest *request = NULL;
        struct wire_packet p = {0};

        r = wire_receive(socket, packet, &p);
        if (r < 0) {
            (void) fail(e, r, "cannot read a request: %s", strerror(-r));
            break;
        }
        r = mover_request_unpack(packet, p.bytes, &request);
        if (r < 0)
            (void) fail(e, -EBADMSG, "what came is no request");
        else
            r = serve_take_turn(socket, &devices, request, &p, packet, e);
        mover_request_free(request);
        wire_packet_close_fds(&p);
        if (r == 0 && serve_has_failed_driver(&devices))
            break;
    } while (r == 0);
    if (r != -EIO)
        mover_devices_close(&devices); /* a lost context is the kernel's to clean up */
    return r == -EPIPE || r == -ECONNRESET ? 0 : r;
}
