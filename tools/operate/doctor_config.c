/* See doctor_config.h. */
#include "tools/operate/doctor_config.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/find_daemon.h"

enum { LINES_MAX = 8 }; /* with an error each */

/* A warning, or an error, without the program's name in front. The other lines describe what is set. */
static void doctor_config_add_line(struct doctor *d, const char *line, bool failed)
{
    static const char name[] = "kvcobrad: ";

    if (strncmp(line, name, strlen(name)) == 0)
        line += strlen(name);
    if (failed)
        doctor_add(d, DOCTOR_WRONG, DOCTOR_CONFIG, "%s", line);
    else if (strstr(line, ": warning: "))
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "%s", line);
}

/* @program and @path go through the environment: no shell reads them as its own words. */
static FILE *doctor_config_run(const char *program, const char *path)
{
    if (setenv("KVCOBRA_DOCTOR_PROGRAM", program, 1) < 0 || setenv("KVCOBRA_DOCTOR_CONFIG", path, 1) < 0)
        return NULL;
    /* NOLINTNEXTLINE(cert-env33-c): a constant */
    return popen("exec \"$KVCOBRA_DOCTOR_PROGRAM\" --check-config \"$KVCOBRA_DOCTOR_CONFIG\" 2>&1", "re");
}

static void doctor_config_read(struct doctor *d, const char *program, const char *path)
{
    _cleanup_(freep) char *line = NULL;
    char *lines[LINES_MAX] = {NULL};
    FILE *f = doctor_config_run(program, path);
    size_t room = 0, n = 0;
    int status;

    if (!f) {
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "cannot run %s: %s", program, strerror(errno));
        return;
    }

    while (getline(&line, &room, f) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        if (n < LINES_MAX && (lines[n] = strdup(line)))
            n++;
    }
    status = pclose(f);
    for (size_t i = 0; i < n; i++) {
        doctor_config_add_line(d, lines[i], status != 0);
        free(lines[i]);
    }
    if (status == 0)
        doctor_add(d, DOCTOR_OK, DOCTOR_CONFIG, "%s can be read", path);
}

void doctor_check_config(struct doctor *d, const char *path)
{
    char self[PATH_MAX], program[PATH_MAX];
    bool is_given = path != NULL;
    struct errmsg e = {""};

    path = is_given ? path : DOCTOR_CONFIG_PATH;
    if (!is_given && access(path, F_OK) < 0)
        return;
    if (access(path, R_OK) < 0) {
        doctor_add(d, errno == EACCES ? DOCTOR_NOTE : DOCTOR_WRONG, DOCTOR_CONFIG,
                   "this user cannot read %s: %s", path, strerror(errno));
        return;
    }
    if (find_daemon(NULL, self, program, &e) == 0)
        doctor_config_read(d, program, path);
    else if (is_given)
        doctor_add(d, DOCTOR_NOTE, DOCTOR_CONFIG, "%s was not checked: %s", path, e.text);
}
