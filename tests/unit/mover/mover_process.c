/* See mover_process.h. */
#include "tests/unit/mover/mover_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/test.h"

void mover_process_start(struct mover_process *o)
{
    const char *elsewhere = getenv("KVC_MOVER"); /* where the tests are not in the folder of their build */
    int pair[2];

    assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    o->pid = fork();
    assert(o->pid >= 0);
    if (o->pid == 0) {
        (void) dup2(pair[1], MOVER_SOCKET_FD);
        (void) fcntl(MOVER_SOCKET_FD, F_SETFD, 0);
        (void) dup2(STDERR_FILENO, 77); /* a descriptor of the daemon, which the mover must close */
        (void) execl(elsewhere ? elsewhere : MOVER, "kvcobra-mover", (char *) NULL);
        _exit(99);
    }
    (void) close(pair[1]);
    o->socket = pair[0];
}

int mover_process_wait(struct mover_process *o)
{
    int status;

    assert(waitpid(o->pid, &status, 0) == o->pid);
    if (o->socket >= 0)
        (void) close(o->socket);
    o->socket = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status);
}

int mover_process_stop(struct mover_process *o)
{
    (void) close(o->socket);
    o->socket = -1;
    return mover_process_wait(o);
}

Kvcobra__MoverReply *mover_process_ask(struct mover_process *o, Kvcobra__MoverRequest *m, const int *fds,
                                       size_t n_fds, int *ret_fd)
{
    static uint8_t packet[WIRE_PACKET_BYTES_MAX];
    static uint64_t id;
    Kvcobra__MoverReply *reply = NULL;
    struct wire_packet p;
    ssize_t n;

    m->id = ++id;
    n = mover_request_pack(m, packet);
    assert(n > 0);
    if (wire_send(o->socket, packet, (size_t) n, fds, n_fds) < 0 || wire_receive(o->socket, packet, &p) < 0)
        return NULL;
    CU_ASSERT_EQUAL_FATAL(mover_reply_unpack(packet, p.bytes, &reply), 0);
    CU_ASSERT_EQUAL(reply->id, id);
    CU_ASSERT_EQUAL(p.n_fds, reply->err == 0 && m->body_case == KVCOBRA__MOVER_REQUEST__BODY_CREATE ? 1 : 0);
    if (p.n_fds > 0 && ret_fd)
        *ret_fd = p.fds[0];
    else
        wire_packet_close_fds(&p);
    return reply;
}

/* ---- requests ---- */

struct mover_process mover;
char reply_message[WIRE_TEXT_BYTES_MAX + 1];

int reply_err(Kvcobra__MoverReply *reply)
{
    int err = reply ? reply->err : -ENOTCONN;

    (void) snprintf(reply_message, sizeof(reply_message), "%s", reply ? reply->message : "");
    mover_reply_free(reply);
    return err;
}

Kvcobra__MoverReply *ask_open(uint32_t number, const char *uuid, uint64_t bytes)
{
    Kvcobra__MoverOpen open = KVCOBRA__MOVER_OPEN__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;

    open.device = number;
    open.uuid = (char *) uuid; /* packing only reads it */
    open.bytes = bytes;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_OPEN;
    m.open = &open;
    return mover_process_ask(&mover, &m, NULL, 0, NULL);
}

int ask_create(uint64_t bytes, int *ret_fd)
{
    Kvcobra__MoverCreate c = KVCOBRA__MOVER_CREATE__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;

    c.bytes = bytes;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_CREATE;
    m.create = &c;
    return reply_err(mover_process_ask(&mover, &m, NULL, 0, ret_fd));
}

int ask_check(const int *fds, size_t n_fds, uint64_t extent_bytes, const uint64_t (*ranges)[2], size_t n,
              uint32_t *ret_crc)
{
    Kvcobra__MoverRange storage[8], *list[8];
    Kvcobra__MoverCheck c = KVCOBRA__MOVER_CHECK__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;
    Kvcobra__MoverReply *reply;

    for (size_t i = 0; i < n; i++) {
        kvcobra__mover_range__init(&storage[i]);
        storage[i].offset = ranges[i][0];
        storage[i].bytes = ranges[i][1];
        list[i] = &storage[i];
    }
    c.extent_bytes = extent_bytes;
    c.ranges = list;
    c.n_ranges = n;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_CHECK;
    m.check = &c;
    reply = mover_process_ask(&mover, &m, fds, n_fds, NULL);
    if (reply && reply->err == 0) {
        CU_ASSERT_EQUAL_FATAL(reply->check->n_crc32c, n);
        memcpy(ret_crc, reply->check->crc32c, n * sizeof(*ret_crc));
    }
    return reply_err(reply);
}

int ask_copy(int extent, int file, uint64_t offset, uint64_t bytes, bool to_extent)
{
    Kvcobra__MoverCopy c = KVCOBRA__MOVER_COPY__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;
    int fds[] = {extent, file};

    c.extent_bytes = EXTENT_BYTES;
    c.offset = offset;
    c.bytes = bytes;
    c.to_extent = to_extent;
    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_COPY;
    m.copy = &c;
    return reply_err(mover_process_ask(&mover, &m, fds, 2, NULL));
}

int ask_lists(pid_t pid)
{
    Kvcobra__MoverProcesses p = KVCOBRA__MOVER_PROCESSES__INIT;
    Kvcobra__MoverRequest m = KVCOBRA__MOVER_REQUEST__INIT;
    Kvcobra__MoverReply *reply;
    int found = 0;

    m.body_case = KVCOBRA__MOVER_REQUEST__BODY_PROCESSES;
    m.processes = &p;
    reply = mover_process_ask(&mover, &m, NULL, 0, NULL);
    if (!reply || reply->err < 0)
        return reply_err(reply);
    for (size_t i = 0; i < reply->processes->n_pids; i++)
        found |= reply->processes->pids[i] == (uint32_t) pid;
    mover_reply_free(reply);
    return found;
}

void start_open(void)
{
    mover_process_start(&mover);
    CU_ASSERT_EQUAL_FATAL(reply_err(ask_open(0, "", EXTENT_BYTES)), 0);
}
