/*
 * Scenarios of several processes that use the library: a daemon with an active table, clients, and children
 * that run a part of the scenario while the parent waits for them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/unit/client/embedded.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_prefix.h"
#include "tools/command/operator_tables.h"

struct scene {
    struct daemon daemon;
    struct geometry g;
    void *bytes; /* of the active table */
    size_t n_bytes;
    kvc_client *control;
};

/* The daemon runs and serves a random table of @seed for @g. Asserts. */
void scene_start(struct scene *sc, struct geometry g, double bpd, uint64_t seed, const char *const *args);
/* scene_start() for a daemon that runs already; @d is copied. */
void scene_attach(struct scene *sc, const struct daemon *d, struct geometry g, double bpd, uint64_t seed);
/* Frees the operator's client and the table; the daemon stays. */
void scene_detach(struct scene *sc);
/* Ends the daemon cleanly. */
void scene_end(struct scene *sc);

/* Stages and activates another table. Returns its digest. */
void scene_activate(struct scene *sc, double bpd, uint64_t seed, uint8_t ret_digest[KVC_DIGEST_BYTES]);

/* The same with trellises of 2^@state_bits states: a table of format 3; 0: scalar levels. */
void scene_activate_trellis(struct scene *sc, double bpd, uint64_t seed, unsigned state_bits,
                            uint8_t ret_digest[KVC_DIGEST_BYTES]);

/* A connected client with its model, as a struct of tests/unit/client/embedded.h. */
struct embedded scene_client(const struct scene *sc);
/* The same model without the daemon, to compare with: a private sequence. */
struct embedded scene_private(const struct scene *sc);

/* kvc_client_connect() of a client that lost its daemon. A try takes 100 ms at most, which a busy machine may
 * need for itself, so it is repeated. */
void scene_connect_again(kvc_client *c, const char *path);

/* Notices the loss of a daemon, by a request, and connects to the next one at once. */
void scene_reconnect(kvc_client *c, const char *path);

/* STATUS now. */
Kvcobra__StatusReply *scene_status(struct scene *sc);
static inline Kvcobra__StatusReply *scene_status_free(Kvcobra__StatusReply *s)
{
    operator_message_freep(&s);
    return NULL;
}
/* Evicts what no client holds, of a tenant or, with NULL, of all. Return: the number of pages. Asserts. */
uint64_t scene_evict(kvc_client *control, const char *tenant);
/* The tiers after an action, which must succeed; valid until the next call. */
const Kvcobra__ControlTierReply *scene_tier(kvc_client *control, Kvcobra__TierAction action);
/* An action of the tiers, of pages of @tenant alone, if it is not NULL. */
int scene_control_tier(kvc_client *control, Kvcobra__TierAction action, const char *tenant,
                       Kvcobra__ControlTierReply **ret);
/* Reads STATUS until @is_good accepts it; false after the limit of wait.h. */
bool scene_wait(struct scene *sc, bool (*is_good)(const Kvcobra__StatusReply *s));

/* Token ids of @text: [n], the caller frees. */
uint32_t *scene_tokens(uint32_t text, size_t n);

/* Appends [first, first + n) in pieces of @piece, committing after each. Returns the first error. */
int scene_publish(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n, size_t piece,
                  size_t *ret_published);

/* Attention of the newest token in all layers: [n_layers, query heads, d], the caller frees. Asserts. */
float *scene_attend(const struct embedded *m, kvc_seq *s, uint32_t text);
size_t scene_attend_floats(const struct embedded *m);

/* ---- children ---- */

struct child {
    pid_t pid;
    int to, from; /* pipes */
};

/* Runs @run in a child; it exits with 0 if @run returns true and no assertion failed there. */
struct child child_start(bool (*run)(const struct scene *sc, int from_parent, int to_parent),
                         const struct scene *sc);
bool child_end(struct child *c); /* closes the pipes and waits; true if it exited with 0 */
void child_kill(struct child *c);

/* Whole objects through a pipe; asserts. */
void pipe_send(int fd, const void *data, size_t bytes);
void pipe_receive(int fd, void *data, size_t bytes);
void pipe_signal(int fd); /* one byte */
bool pipe_wait(int fd);   /* waits for a byte; false if the other end is closed */

/*
 * Inodes of the mappings of process @pid whose line has @object and @access in it. One inode in two processes
 * is one memory.
 */
size_t mapped_inodes(pid_t pid, const char *object, const char *access, unsigned long *inodes, size_t max);
