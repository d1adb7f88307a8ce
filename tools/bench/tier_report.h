/* What `kvcobra bench tier` measured, and how it is printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "tools/bench/tier_peer.h"

enum { TIER_REPEAT_MAX = 100 };

/* A rate of kvcobrad beside that of another program, measured in turns. */
struct tier_rate {
    const char *name, *peer; /* NULL: the row was not measured */
    size_t n;
    double ours[TIER_REPEAT_MAX], theirs[TIER_REPEAT_MAX]; /* [n] bytes per second; theirs[0] 0: none */
    char command[TIER_COMMAND_BYTES];                      /* of the other program */
    struct errmsg skipped;                                 /* why there is no other rate */
};

enum { TIER_WRITE, TIER_ONE_PROMPT, TIER_PROMPTS, TIER_SHARED_ONE, TIER_SHARED_PROMPTS, TIER_RATES };

enum { TIER_FROM_MEMORY, TIER_FROM_DISK, TIER_FROM_CLUSTER, TIER_COMPUTED, TIER_SOURCES };

struct tier_answers {
    size_t n;
    double median_s, p999_s, max_s;
};

struct tier_results {
    const char *folder;                    /* on the disk */
    size_t page_bytes, n_prompts, n_pages; /* pages of a prompt */
    uint32_t depth;
    struct tier_rate rates[TIER_RATES];
    double opening_bytes_per_s;
    unsigned n_threads; /* of kvcobrad, which open pages */
    size_t ready_tokens;
    double ready_s[TIER_SOURCES]; /* until all keys and values are decoded; 0: not measured */
    struct tier_answers quiet, busy;
    size_t restart_pages; /* 0: not measured */
    double restart_serving_s, restart_ready_s;
    const char *model; /* NULL: no first tokens were measured */
    size_t prompt_tokens, matched_tokens[TIER_SOURCES];
    double first_token_s[TIER_SOURCES]; /* 0: not measured */
    struct errmsg no_cluster;           /* why no cluster was measured; or empty */
};

/* Return: an exit code of command.h. */
int tier_report_text(struct tier_results *x);
int tier_report_json(struct tier_results *x);
