/* kvcobra import: publishes the pages of a file that kvcobra export wrote. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "base/stream_file.h"
#include "client/kvcobra-tiers.h"
#include "tools/command/client_model.h"
#include "tools/command/command.h"
#include "tools/command/report.h"
#include "tools/command/terminal.h"

enum { OPT_SOCKET = 1, OPT_TIMEOUT };

struct import_options {
    struct common_options common;
    const char *file, *socket;
    uint32_t timeout_ms;
};

static const char doc[] =
    "Publish the pages of a file that 'kvcobra export' wrote: programs of this user find the prompt then as "
    "if "
    "one of them had computed it here. FILE - is standard input.\v"
    "kvcobrad checks each page as it checks those that programs publish, and charges it to this user's "
    "quota. "
    "A page that it does not take ends the command, with status 1: what was taken before stays, and is the "
    "beginning of the prompt. The table of the pages must be active here.\n\n"
    "Example:\n\n"
    "  kvcobra import manual.pages";

static const struct argp_option options[] = {
    {"socket", OPT_SOCKET, "PATH", 0,
     "The daemon's socket (default: $KVCOBRA_SOCKET; else the socket of your kvcobrad --user, if it runs; "
     "else "
     "/run/kvcobra/kvcobra.sock)",
     80},
    OPTION_TIMEOUT(OPT_TIMEOUT, 80),
    {0},
};

static error_t cmd_import_parse(int key, char *arg, struct argp_state *state)
{
    struct import_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case OPT_SOCKET:
        o->socket = arg;
        return 0;
    case OPT_TIMEOUT:
        o->timeout_ms = option_timeout_ms(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->file)
            argp_error(state, "one FILE only; '%s' is one argument too many", arg);
        o->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->file)
            argp_error(state, "a FILE is needed");
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, cmd_import_parse, "FILE", doc, common_children, NULL, NULL};

static int cmd_import_print(const struct import_options *o, const kvc_import *i, const char *why)
{
    char table[DIGEST_HEX_BYTES];

    if (o->common.json) {
        int code =
            report_json(json_pack("{s:I, s:I, s:I, s:I, s:s, s:s}", "pages", (json_int_t) i->n_pages, "taken",
                                  (json_int_t) i->n_taken, "present", (json_int_t) i->n_present, "tokens",
                                  (json_int_t) i->n_taken * KVC_CHUNK_TOKENS, "table",
                                  digest_hex(i->table_digest, table), "ended_because", why));

        return code == COMMAND_OK && i->end_err < 0 ? COMMAND_FAILED : code;
    }

    terminal_print(stdout, 2, "%" PRIu64 " of %" PRIu64 " pages were taken (%" PRIu64 " tokens)", i->n_taken,
                   i->n_pages, i->n_taken * KVC_CHUNK_TOKENS);
    if (i->n_present > 0)
        terminal_print(stdout, 2, ", %" PRIu64 " of them were here before", i->n_present);
    terminal_print(stdout, 2, "\n");
    return i->end_err < 0 ? command_fail("%s: %s", stream_file_name(o->file), why) : COMMAND_OK;
}

static int cmd_import_run(int argc, char **argv)
{
    _cleanup_(kvc_client_freep) kvc_client *c = NULL;
    _cleanup_(closep) int fd = -1;
    struct import_options o = {.file = NULL};
    kvc_import result = {.struct_bytes = sizeof(result)};
    struct errmsg e = {""};

    command_parse(&argp, argc, argv, &o);
    fd = stream_file_open(o.file, &e);
    if (fd < 0 || client_open_at(KVC_SOCKET_CLIENTS, o.socket, o.timeout_ms, &c, &e) < 0)
        return command_fail("%s", e.text);
    if (kvc_client_import(c, fd, &result) < 0)
        return command_fail("%s: %s", stream_file_name(o.file), kvc_last_error(c));
    return cmd_import_print(&o, &result, result.end_err < 0 ? kvc_last_error(c) : "");
}

COMMAND(cmd_import) = {
    .name = "import",
    .summary = "publish the pages of a file",
    .run = cmd_import_run,
    .rank = 240,
    .related = "export",
};
