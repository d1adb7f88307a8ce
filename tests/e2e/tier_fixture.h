/* A daemon with a disk tier whose memory is too small for ten texts, for tests of the tier by the library. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/kvcobra-tiers.h"
#include "tests/e2e/client_fixture.h"

enum {
    TIER_TEXTS = 10,
    TIER_TOKENS = 25 * 64,
    TIER_SHARED = 24 * 64, /* the newest chunk stays private */
};

struct tier {
    struct scene scene;
    char folder[64], keys[80], disk_arg[96], key_arg[112];
    const char *args[10];
    bool is_mounted; /* the folder of the disk is a file system of its own */
};

/* ---- the daemon ---- */

/* Replaces the key file. @index, @seal: digits that the keys consist of. */
void tier_write_keys(const struct tier *t, char index, char seal, unsigned seal_id);

/* Makes the folder and the arguments; tier_begin() does so and starts the daemon. Failures are asserted. */
void tier_prepare(struct tier *t);
void tier_start(struct tier *t);
void tier_begin(struct tier *t);

void tier_remove_files(struct tier *t);
void tier_finish(struct tier *t); /* ends the daemon, removes the files */

void tier_start_again(struct tier *t);
void tier_restart(struct tier *t);

/* As scene_tier(). */
const Kvcobra__ControlTierReply *tier_ask(struct tier *t, Kvcobra__TierAction action);

/* Waits for a state of the tier. False: it does not come. */
bool tier_reaches(struct tier *t, const char *state);

/* Waits until the disk has all pages. */
const Kvcobra__ControlTierReply *tier_write_all(struct tier *t);

/* ---- texts ---- */

void tier_publish(const struct embedded *m, uint32_t text);

/* Each text is on the disk before the next one takes its place in memory. */
void tier_publish_all(struct tier *t);

/* Whether the first @n tokens of @s have the vectors of @want, a sequence of @alone, bit for bit. */
bool tier_has_same_bits(const struct embedded *m, kvc_seq *s, const struct embedded *alone, kvc_seq *want,
                        size_t n);

/* Matches @text. Return: how many tokens. Asserts that they are the right ones. */
size_t tier_match_with(const struct scene *sc, const struct embedded *m, uint32_t text,
                       const kvc_seq_options *o);
size_t tier_match(const struct scene *sc, const struct embedded *m, uint32_t text, uint32_t fetch_ms);
