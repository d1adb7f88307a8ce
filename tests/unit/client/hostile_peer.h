/*
 * A peer that uses the protocol like a daemon with one published chunk, and sends the one wrong reply that a
 * test selects. It runs in a process of its own.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"
#include "proto/wire.h"
#include "tests/unit/client/embedded.h"

#define PEER_GPU "GPU-c0c0c0c0-c0c0-c0c0-c0c0-c0c0c0c0c0c0" /* the stand-in's first */

enum wrong_reply {
    CORRECT = 0,
    HELLO_VERSION,
    HELLO_OTHER_ID,
    HELLO_POSITIVE_ERRNO,
    HELLO_WRONG_BODY,
    HELLO_SHORT_BOOT_ID,
    HELLO_SILENT_CLOSE,
    HELLO_SHORT_TOKEN,
    CONFIRM_OTHER_BOOT_ID,
    CONFIRM_NO_POOL,
    CONFIRM_NO_BODY,
    OPEN_FEW_FDS,
    OPEN_CONTROL_SLOT,
    OPEN_SHORT_KEY,
    OPEN_SHORT_DIGESTS,
    OPEN_UNSEALED,
    OPEN_CONTROL_SIZE,
    OPEN_INDEX_HEAD,
    OPEN_SESSION_SIZE,
    OPEN_SHORT_MODEL,
    OPEN_OTHER_MODEL,
    FETCH_NO_FD,
    FETCH_SIZE,
    FETCH_OTHER_TABLE,
    FETCH_UNSEALED,
    CONTROL_ENTRY,
    CONTROL_NONE,
    LEASE_OFFSET,
    LEASE_UNALIGNED,
    LEASE_BYTES,
    LEASE_DAMAGED,
    LEASE_OTHER_POSITION,
    LEASE_MORE,
    LEASE_NO_DESCRIPTOR,
    LEASE_OTHER_ID,
    LEASE_NO_BODY,
    LEASE_ERRNO,
    LEASE_TWICE,
    INDEX_CLASS,
    LIST_NO_END,
    LIST_SHORT_DIGEST,
    LEASE_GONE, /* last: the client connects again, and the next peer would accept that */
    N_WRONG_REPLIES,

    /* replies of a daemon with a GPU */
    GPU_CORRECT = N_WRONG_REPLIES,
    GPU_NO_DEVICE,
    GPU_OTHER_DEVICE,
    GPU_ON_HOST,
    GPU_FRACTION,
    GPU_SHORT,
    GPU_NO_DESCRIPTOR,
    GPU_LEASE_OFFSET,
    GPU_LEASE_UNALIGNED,
    GPU_LEASE_BYTES,
    GPU_SLOT_OFFSET,
    GPU_SLOT_UNALIGNED,
    GPU_SLOT_BYTES,
    GPU_COMMIT_FEW,
    GPU_GONE,
    GPU_END,
};

struct peer {
    enum wrong_reply wrong;
    int fd;
    const void *table;
    size_t n_table;
    uint8_t digest[32];
    size_t page_bytes;    /* of class first */
    struct chunk_key key; /* of the chunk in the index */
    uint8_t packet[WIRE_PACKET_BYTES_MAX];
};

/* Tokens of the chunk in the peer's index, and one more, which a client computes. */
extern const uint32_t peer_tokens[65];

/* Prepares @p to send the reply @wrong, with the table of @m. */
void peer_init(struct peer *p, const struct embedded *m, enum wrong_reply wrong);

/* A listening socket in a folder of its own, @dir "/tmp/...XXXXXX"; writes its path to @path. Asserts. */
int peer_listen(char *dir, char *path, size_t path_bytes);
void peer_unlisten(int listener, const char *dir, const char *path);

/* Replies to one connection until it ends; then exits. */
_Noreturn void peer_serve(int listener, struct peer *p);
