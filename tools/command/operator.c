/* Options, connection, digests and questions of operators; see operator.h. */
#include "tools/command/operator.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_tables.h"
#include "tools/command/terminal.h"

enum { OPT_SOCKET = 0x1101, OPT_TIMEOUT, OPT_YES };

enum { DIGITS_MIN = 6 };

#define SOCKET_OPTION                                                                                        \
    {                                                                                                        \
        "socket", OPT_SOCKET, "PATH", 0,                                                                     \
            "The daemon's operator socket (default: $KVCOBRA_OPERATOR_SOCKET; else the socket of your "      \
            "kvcobrad --user, if it runs; else /run/kvcobra/operator.sock)",                                 \
            80                                                                                               \
    }

static const struct argp_option view_options[] = {
    SOCKET_OPTION,
    OPTION_TIMEOUT(OPT_TIMEOUT, 80),
    {0},
};

static const struct argp_option change_options[] = {
    SOCKET_OPTION,
    OPTION_TIMEOUT(OPT_TIMEOUT, 80),
    {"yes", OPT_YES, NULL, 0, "Do not ask before the change", 80},
    {0},
};

/* ---- options ---- */

/* Without common_children: argp has no child input to set. */
static error_t operator_parse_own(int key, char *arg, struct argp_state *state)
{
    struct operator_options *o = state->input;

    switch (key) {
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    case OPT_YES:
        o->yes = true;
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static error_t operator_parse(int key, char *arg, struct argp_state *state)
{
    struct operator_options *o = state->input;

    if (key != ARGP_KEY_INIT)
        return operator_parse_own(key, arg, state);

    state->child_inputs[0] = &o->common;
    return 0;
}

static const struct argp socket_argp = {view_options, operator_parse_own, NULL, NULL, NULL, NULL, NULL};
const struct argp operator_view_argp = {view_options,    operator_parse, NULL, NULL,
                                        common_children, NULL,           NULL};
const struct argp operator_argp = {change_options, operator_parse, NULL, NULL, common_children, NULL, NULL};

const struct argp_child operator_socket_children[] = {{&socket_argp, 0, NULL, 0}, {0}};
const struct argp_child operator_view_children[] = {{&operator_view_argp, 0, NULL, 0}, {0}};
const struct argp_child operator_children[] = {{&operator_argp, 0, NULL, 0}, {0}};

void operator_add_tenant(const struct argp_state *state, struct operator_tenants *tenants, const char *name)
{
    if (tenants->n == OPERATOR_TENANTS_MAX) {
        argp_error(state, "at most %d --tenant", OPERATOR_TENANTS_MAX);
        return;
    }

    tenants->names[tenants->n++] = name;
}

/* ---- connection ---- */

/* The socket of clients, of the same daemon: --socket or the environment name another one. */
static int operator_open_own(struct operator_options *o, kvc_client **ret_client)
{
    int r = client_open_at(KVC_SOCKET_CLIENTS, NULL, o->timeout_ms, ret_client, NULL);

    if (r < 0)
        return r;

    command_note(&o->common, "this user is no operator: only what is its own is shown");
    return 0;
}

/* --socket may name the socket of clients, too. Return: an exit code. */
static int operator_ask_whose(kvc_client *c, bool *ret_is_own)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;
    const Kvcobra__GetStatus get = KVCOBRA__GET_STATUS__INIT;
    struct errmsg e = {""};

    if (operator_call(c, KVCOBRA__REQUEST__BODY_GET_STATUS, &get.base, &s, &e) < 0)
        return command_fail("%s", e.text);

    *ret_is_own = s->pid == 0; /* only operators learn it */
    return COMMAND_OK;
}

int operator_run(struct operator_options *o, int (*request)(kvc_client *c, void *ctx), void *ctx)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    struct errmsg e = {""};
    int r;

    r = client_open_at(KVC_SOCKET_OPERATORS, o->socket, o->timeout_ms, &c, &e);
    if (r == -EACCES && o->may_be_own && !o->socket && operator_open_own(o, &c) == 0)
        r = 0;
    if (r < 0)
        return command_fail("%s", e.text);

    if (o->may_be_own) {
        int code = operator_ask_whose(c, &o->is_own);

        if (code != COMMAND_OK)
            return code;
    }
    return request(c, ctx);
}

/* ---- questions ---- */

static bool operator_read_yes(void)
{
    char answer[16] = "";

    if (!fgets(answer, sizeof(answer), stdin))
        return false;

    answer[strcspn(answer, "\n")] = '\0';
    return strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0;
}

bool operator_confirm(const struct operator_options *o, const char *fmt, ...)
{
    _cleanup_(freep) char *text = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        text = NULL;
        (void) command_fail("out of memory, so nothing was changed");
        return false;
    }
    terminal_print(stderr, 0, "%s\n", text);

    if (o->yes)
        return true;

    if (!isatty(STDIN_FILENO)) {
        (void) command_fail(
            "standard input is not a terminal, so nothing was changed; --yes answers in advance");
        return false;
    }

    (void) fputs("Continue? [y/N] ", stderr);
    if (operator_read_yes())
        return true;

    (void) command_fail("nothing was changed");
    return false;
}

/* ---- digests ---- */

bool operator_is_digest(const char *text)
{
    size_t n = strlen(text);

    return n >= DIGITS_MIN && n < DIGEST_HEX_BYTES && strspn(text, "0123456789abcdefABCDEF") == n;
}

bool operator_is_short_digest(const char *text)
{
    size_t n = strlen(text);

    return n > 0 && n < DIGITS_MIN && strspn(text, "0123456789abcdefABCDEF") == n;
}

void operator_check_digest(const struct argp_state *state, const char *option, const char *text)
{
    if (!operator_is_digest(text))
        argp_error(state, "%s takes %d to %d hexadecimal digits of a digest, not '%s'", option, DIGITS_MIN,
                   DIGEST_HEX_BYTES - 1, text);
}

bool operator_digest_matches(const uint8_t digest[static KVC_DIGEST_BYTES], const char *text)
{
    char hex[DIGEST_HEX_BYTES];

    return strncasecmp(digest_hex(digest, hex), text, strlen(text)) == 0;
}

int operator_find_table(kvc_client *c, const char *text, uint8_t ret_digest[static KVC_DIGEST_BYTES])
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    const Kvcobra__TableInfo *match = NULL;
    struct errmsg e = {""};
    size_t n_matches = 0;

    if (operator_list_tables(c, &list, &e) < 0)
        return command_fail("%s", e.text);

    for (size_t i = 0; i < list->n_tables; i++) {
        if (!operator_digest_matches(list->tables[i]->digest.data, text))
            continue;

        match = list->tables[i];
        n_matches++;
    }

    if (!match)
        return command_fail("the daemon has no table %s; 'kvcobra table list' shows its tables", text);
    if (n_matches > 1)
        return command_fail("%zu tables begin with %s; give more digits", n_matches, text);

    memcpy(ret_digest, match->digest.data, KVC_DIGEST_BYTES);
    return COMMAND_OK;
}
