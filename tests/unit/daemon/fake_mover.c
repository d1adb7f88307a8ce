/*
 * A mover without a GPU, for test_mover.c. It answers like the real mover; PROCESSES lists the numbers of the
 * devices that it opened. FAKE_MOVER may name another behaviour:
 *
 *     die         exits at PROCESSES
 *     last-words  answers PROCESSES with an error, then exits
 *     refuse      refuses the first OPEN
 *     slow        never answers PROCESSES
 *     garbage     answers PROCESSES with bytes that are no message
 *     other-id    answers PROCESSES with the id of another request
 *     other-kind  answers PROCESSES with the body of CREATE
 *     no-body     answers PROCESSES without a body
 *     above-zero  answers PROCESSES with a positive errno
 *     stray-fd    answers PROCESSES with a descriptor
 *     no-fd       answers CREATE without a descriptor
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/mover_wire.h"

static uint8_t packet[WIRE_PACKET_BYTES_MAX];
static uint32_t opened[64];
static size_t n_opened, n_refused;

static bool is(const char *behaviour)
{
    const char *text = getenv("FAKE_MOVER");

    return text && strcmp(text, behaviour) == 0;
}

static uint32_t open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        (void) closedir(d);
    return n - 3; /* ".", "..", and the folder's own */
}

static void send_reply(const Kvcobra__MoverReply *reply, const int *fds, size_t n_fds)
{
    ssize_t n = mover_reply_pack(reply, packet);

    if (n <= 0 || wire_send(MOVER_SOCKET_FD, packet, (size_t) n, fds, n_fds) < 0)
        _exit(3);
}

static void answer_create(Kvcobra__MoverReply *reply)
{
    Kvcobra__MoverCreated created = KVCOBRA__MOVER_CREATED__INIT;
    int fd = memfd_create("fake", MFD_CLOEXEC);

    reply->body_case = KVCOBRA__MOVER_REPLY__BODY_CREATE;
    reply->create = &created;
    send_reply(reply, &fd, is("no-fd") ? 0 : 1);
    (void) close(fd);
}

/* The first byte of the received descriptor, and how many descriptors are open. */
static void answer_check(Kvcobra__MoverReply *reply, const struct wire_packet *p)
{
    Kvcobra__MoverChecked checked = KVCOBRA__MOVER_CHECKED__INIT;
    uint32_t values[2] = {0, open_descriptors()};
    uint8_t byte;

    if (p->n_fds == 1 && pread(p->fds[0], &byte, 1, 0) == 1)
        values[0] = byte;
    reply->body_case = KVCOBRA__MOVER_REPLY__BODY_CHECK;
    reply->check = &checked;
    checked.n_crc32c = 2;
    checked.crc32c = values;
    send_reply(reply, NULL, 0);
}

static void answer_processes(Kvcobra__MoverReply *reply)
{
    Kvcobra__MoverListed listed = KVCOBRA__MOVER_LISTED__INIT;
    Kvcobra__MoverCreated created = KVCOBRA__MOVER_CREATED__INIT;
    char text[] = "an answer before the end";
    int fds[] = {0};

    if (is("die"))
        _exit(1);
    if (is("slow"))
        return;
    if (is("garbage")) {
        (void) wire_send(MOVER_SOCKET_FD, "\xff\xff", 2, fds, 1);
        return;
    }
    reply->body_case = KVCOBRA__MOVER_REPLY__BODY_PROCESSES;
    reply->processes = &listed;
    listed.n_pids = n_opened;
    listed.pids = opened;
    if (is("other-id"))
        reply->id++;
    if (is("other-kind")) {
        reply->body_case = KVCOBRA__MOVER_REPLY__BODY_CREATE;
        reply->create = &created;
    }
    if (is("no-body"))
        reply->body_case = KVCOBRA__MOVER_REPLY__BODY__NOT_SET;
    if (is("above-zero"))
        reply->err = 1;
    if (is("last-words")) {
        reply->err = -EIO;
        reply->message = text;
        reply->body_case = KVCOBRA__MOVER_REPLY__BODY__NOT_SET;
    }
    send_reply(reply, fds, is("stray-fd") ? 1 : 0);
    if (is("last-words"))
        _exit(1);
}

static void answer(const Kvcobra__MoverRequest *m, const struct wire_packet *p)
{
    Kvcobra__MoverReply reply = KVCOBRA__MOVER_REPLY__INIT;
    Kvcobra__MoverOpened o = KVCOBRA__MOVER_OPENED__INIT;
    char text[] = "as asked";

    reply.id = m->id;
    switch (m->body_case) {
    case KVCOBRA__MOVER_REQUEST__BODY_OPEN:
        if (m->open->bytes == 0 || (is("refuse") && n_refused++ == 0)) {
            reply.err = -ENODEV;
            reply.message = text;
        } else {
            opened[n_opened < 64 ? n_opened++ : 63] = m->open->device;
            reply.body_case = KVCOBRA__MOVER_REPLY__BODY_OPEN;
            reply.open = &o;
        }
        send_reply(&reply, NULL, 0);
        break;
    case KVCOBRA__MOVER_REQUEST__BODY_CREATE:
        answer_create(&reply);
        break;
    case KVCOBRA__MOVER_REQUEST__BODY_CHECK:
        answer_check(&reply, p);
        break;
    default:
        answer_processes(&reply);
    }
}

int main(void)
{
    struct wire_packet p;

    while (wire_receive(MOVER_SOCKET_FD, packet, &p) == 0) {
        Kvcobra__MoverRequest *m = NULL;

        if (mover_request_unpack(packet, p.bytes, &m) < 0)
            return 2;
        answer(m, &p);
        wire_packet_close_fds(&p);
        mover_request_free(m);
    }
    return 0;
}
