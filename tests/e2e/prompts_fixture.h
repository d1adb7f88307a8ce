/*
 * A daemon that can be restarted, a client with prompts in it, and the beginning of a prompt as operators
 * name it: for the tests of flushing, looking up and pinning.
 */
#pragma once

#include "tests/e2e/client_fixture.h"

/* More tokens than one message has (WIRE_ITEMS_MAX): keys go from message to message. */
enum { TOKENS = 21 * 64, SHARED = 20 * 64, PREFIX = 17 * 64 }; /* the newest chunk stays private */

struct prompts {
    struct scene sc;
    struct embedded m;
    uint8_t digest[KVC_DIGEST_BYTES];
    char tenant[32];
    uint32_t *tokens; /* of text 0 */
};

extern const char *const prompts_args[]; /* of the daemon */

void prompts_begin(struct prompts *p);
void prompts_finish(struct prompts *p);
/* A client of the daemon of p->sc. */
void prompts_open_client(struct prompts *p);

/* The prefix of text 0 without its tokens. @salt: may be NULL. */
Kvcobra__Prefix prompts_prefix(const struct prompts *p, const char *salt);

kvc_seq *prompts_new_seq(const struct embedded *m, const char *salt, uint32_t flags);
/* A sequence with the first SHARED tokens published at least. */
kvc_seq *prompts_publish(const struct embedded *m, const uint32_t *tokens, const char *salt, uint32_t flags);
/* How many tokens a new sequence finds. */
size_t prompts_found(const struct embedded *m, const uint32_t *tokens, const char *salt, uint32_t flags);
