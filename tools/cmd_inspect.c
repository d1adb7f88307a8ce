/*
 * kvcobra inspect FILE: what an allocation table or a statistics file holds. The first bytes say which it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/table.h"
#include "base/atomic_file.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command.h"
#include "tools/inspect.h"

struct inspect_options {
    struct common_options common;
    const char *path;
};

static const char doc[] =
    "Show what an allocation table or a statistics file holds.\v"
    "Of a table: what it was made from and how, what it costs per token and per page, and how the bits are spread over "
    "layers and heads (number of stored coordinates, then bits per original number). The file is checked completely "
    "first, as the daemon does.\n\n"
    "Example:\n\n"
    "  kvcobra inspect model-3.table\n"
    "  kvcobra inspect model-3.table --json | jq .bpd_code";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct inspect_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        return 0;
    case ARGP_KEY_ARG:
        if (o->path)
            argp_error(state, "inspect looks at one file at a time");
        o->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            argp_error(state, "a file is needed");
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = { NULL, parse, "FILE", doc, common_children, NULL, NULL };

/* The first 8 bytes of a file; zeros where it is shorter. Non-blocking, or a FIFO would wait for its writer. */
static int read_magic(const char *path, char ret[8], struct errmsg *e)
{
    _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char magic[8] = { 0 };
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fail(e, -EINVAL, "%s is not a regular file", path);
    if (read(fd, magic, sizeof(magic)) < 0)
        return fail(e, -errno, "cannot read %s: %s", path, strerror(errno));
    memcpy(ret, magic, sizeof(magic));
    return 0;
}

static int run(int argc, char **argv)
{
    struct inspect_options o = { 0 };
    _cleanup_(freep) void *bytes = NULL;
    struct errmsg e = { "" };
    char magic[8];
    size_t n_bytes;

    command_parse(&argp, argc, argv, &o);
    if (read_magic(o.path, magic, &e) < 0)
        return command_fail("%s", e.text);
    if (memcmp(magic, "KVCSTATS", sizeof(magic)) == 0)
        return inspect_stats(o.path, o.common.json);
    if (memcmp(magic, "KVCTABLE", sizeof(magic)) != 0)
        return command_fail("%s is neither an allocation table nor a statistics file", o.path);
    if (atomic_file_read(o.path, TABLE_FILE_BYTES_MAX, &bytes, &n_bytes, &e) < 0)
        return command_fail("%s", e.text);
    return inspect_table(o.path, bytes, n_bytes, o.common.json);
}

const struct command cmd_inspect = { "inspect", "what a table or a statistics file holds", run };
