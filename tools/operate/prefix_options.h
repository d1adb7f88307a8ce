/*
 * The beginning of a prompt as the commands flush, lookup, pin and unpin take it: options --tenant, --table,
 * and those of prompt_options.h; its tokens; and whose it is.
 */
#pragma once

#include <argp.h>
#include <stdint.h>

#include "tools/command/operator.h"
#include "tools/command/operator_prefix.h"
#include "tools/command/tenant_name.h"
#include "tools/operate/prompt_options.h"

struct prefix_options {
    struct operator_options operator;
    struct prompt_options prompt;
    const char *tenant, *table;
    bool may_be_own; /* set by the command: without --tenant it is the user's own */
};

/*
 * For the children member of a command's struct argp, with operator_children or, for commands that change
 * nothing, operator_view_children; child input 0 is a struct prefix_options.
 */
extern const struct argp_child prefix_options_children[], prefix_options_view_children[];

/**
 * prefix_options_run() - load the tokens, then operator_run()
 * Return: an exit code; COMMAND_FAILED with a sentence: no tokens, fewer than a page has.
 */
int prefix_options_run(struct prefix_options *p, int (*request)(kvc_client *c, void *ctx), void *ctx);

/* Whose prefix it is, without its tokens; it points at the other members. Not to be copied. */
struct prefix_subject {
    Kvcobra__Prefix prefix;
    uint8_t digest[KVC_DIGEST_BYTES];
    char tenant[TENANT_NAME_BYTES];
};

/* Finds tenant and table. Return: an exit code; COMMAND_FAILED with a sentence. */
int prefix_options_find(const struct prefix_options *p, kvc_client *c, struct prefix_subject *ret);
