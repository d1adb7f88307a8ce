/* See extension.h. */
#include "tools/command/extension.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"

int extension_run(const struct extension *x, const char *command, int argc, char **argv)
{
    _cleanup_(freep) char **args = calloc((size_t) argc + 4, sizeof(*args));
    char path[PATH_MAX];
    size_t n = 0;

    if (!args)
        return command_fail("out of memory");
    if (command_is_completing() && !x->word) { /* a program of another language */
        puts(COMPLETION_FILES);
        return COMMAND_OK;
    }

    if (find_command(x->program, x->built, path, NULL) < 0)
        return command_fail("'%s' is run by %s, which is not here: install %s", command, x->program,
                            x->package);

    args[n++] = (char *) x->program; /* execv() changes none of them */
    if (command_is_completing())
        args[n++] = (char *) "--complete";
    if (x->word)
        args[n++] = (char *) x->word;
    for (int i = 1; i < argc; i++)
        args[n++] = argv[i];
    (void) execv(path, args);
    return command_fail("cannot run %s: %s", path, strerror(errno));
}
