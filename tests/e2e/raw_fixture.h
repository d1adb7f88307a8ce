/*
 * The protocol without the library: what a client in another language, or a hostile one, sends. Every wait
 * has a limit by a socket timeout, so a daemon that does not answer fails the test instead of blocking it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/page.h"
#include "proto/wire.h"

struct table;
struct geometry;

int raw_connect(const char *path); /* a descriptor; asserts */

/*
 * For children of a test that kills the daemon: losing the daemon ends this process with status 0,
 * or calls this function.
 */
extern bool raw_exits_on_loss;
extern void (*raw_on_loss)(void); /* does not return */

/* Sends @m (its id is set) with @fds; receives the reply. NULL if the daemon closed the connection. */
Kvcobra__Reply *raw_request(int fd, Kvcobra__Request *m, const int *fds, size_t n_fds,
                            struct wire_packet *ret_packet);

/* raw_request() for callers that need only the errno of the reply; 1 if the connection was closed. */
int raw_errno(int fd, Kvcobra__Request *m);

int raw_hello(int fd); /* errno of the reply */
int raw_confirm(int fd);

/*
 * HELLO for a device. @token: [SESSION_TOKEN_BYTES] of the session to resume, replaced by that of
 * the reply; or NULL.
 */
int raw_hello_on(int fd, const char *device, bool resume, uint8_t *token);
int raw_open(const char *path); /* connect, hello, confirm; asserts */
/* raw_open() on a device, repeated while the mover opens the device, or until the daemon has room. */
int raw_open_on(const char *path, const char *device);

/*
 * Receives the refusal of a new connection, and the end of the connection. Return: its errno; 0: no refusal
 * came. @ret_text: [n], the sentence.
 */
int raw_refusal(int fd, char *ret_text, size_t n);

/* True if the daemon closes @fd without sending anything more. */
bool raw_is_closed(int fd);

/* Requests that carry one message, ready to be filled in. */
Kvcobra__Request raw_of(Kvcobra__Request__BodyCase body, void *message);

/* ---- publishing and finding ---- */

/* Stages and activates a table on the operator socket; asserts. */
int raw_try_activate(const char *operator_path, const void *bytes, size_t n_bytes,
                     uint8_t ret_digest[static 32]); /* errno */
void raw_activate(const char *operator_path, const void *bytes, size_t n_bytes,
                  uint8_t ret_digest[static 32]);

struct raw_model {
    int fd;
    uint32_t handle;
    uint8_t table_digest[32];
    uint8_t model_digest[32];
    uint8_t index_key[INDEX_KEY_BYTES];
    uint8_t *control, *index, *session, *arena; /* mapped */
    size_t control_bytes, index_bytes, session_bytes, arena_bytes;
    uint64_t index_object;
};

/* OPEN_MODEL and mapping. Return: errno of the reply. */
int raw_open_model(int fd, const struct geometry *g, const uint8_t *model_digest, struct raw_model *ret);
void raw_close_model(struct raw_model *m); /* unmaps and closes the connection, without BYE */

struct raw_slot {
    int err; /* errno of the item, or of the whole message */
    bool exists;
    uint32_t slot;
    uint64_t generation, extent, offset, bytes;
};

struct raw_slot raw_reserve(struct raw_model *m, const struct chunk_key *key, unsigned page_class);

/* Writes a valid page for @key into the arena at @offset: header, and a random payload without infinities. */
void raw_write_page(struct raw_model *m, const struct table *t, const struct chunk_key *key,
                    unsigned page_class, size_t offset, unsigned seed);

/* Return: errno of the item (or message); *ret_lease may be NULL. */
int raw_commit(struct raw_model *m, const struct raw_slot *s, const struct chunk_key *key, size_t offset,
               uint64_t *ret_lease);
/* raw_commit() on a GPU, where the payload is in the slot already. */
int raw_commit_crc(struct raw_model *m, const struct raw_slot *s, const struct chunk_key *key,
                   uint32_t crc32c, uint64_t *ret_lease);
int raw_abort(struct raw_model *m, const struct raw_slot *s);

/* Return: errno of the message; *ret_granted pages, *ret_reason why it ended. */
int raw_lease(struct raw_model *m, const struct chunk_key *keys, const struct raw_slot *slots, size_t n,
              size_t *ret_granted, uint64_t *ret_lease, int *ret_reason);
int raw_release(struct raw_model *m, uint64_t lease);

/* KEEP_LEASES as a single message. */
int raw_keep(struct raw_model *m, const uint64_t *leases, size_t n);

/* GET_EXTENT. Return: errno; *ret_fd is the caller's. */
int raw_get_extent(struct raw_model *m, uint64_t extent, int *ret_fd, size_t *ret_bytes);

/* Maps an extent read-only; asserts. */
uint8_t *raw_map_extent(struct raw_model *m, uint64_t extent, size_t *ret_bytes);
