/* A table for kvcobra up --model; see own_table.h. */
#include "tools/operate/own_table.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/command.h"
#include "tools/command/find_daemon.h"
#include "tools/command/operator_call.h"
#include "tools/command/operator_tables.h"
#include "tools/command/process.h"
#include "tools/command/temp_folder.h"
#include "tools/command/terminal.h"
#include "tools/operate/own_job.h"

/* The interpreter that has the Python package: set by the command that pip installs. */
#define PYTHON_VARIABLE "KVCOBRA_PYTHON"

/* ---- the model ---- */

/* The folder of hub models: the variables of huggingface_hub, in its order. */
static bool own_table_hub(char ret[static PATH_MAX])
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};

    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        const char *value = getenv(places[i].variable);

        if (value && *value)
            return snprintf(ret, PATH_MAX, "%s%s", value, places[i].below) < PATH_MAX;
    }
    return false;
}

/* ORGANISATION/MODEL, as in the hub: models--ORGANISATION--MODEL/snapshots/REVISION, named by refs/main. */
static int own_table_find_hub(struct own_table *t, struct errmsg *e)
{
    const char *slash = strchr(t->name, '/');
    char hub[PATH_MAX], model[PATH_MAX], revision[128] = "";
    _cleanup_(fclosep) FILE *f = NULL;
    struct stat st;

    if (!slash || slash == t->name || !slash[1] || strchr(slash + 1, '/') || t->name[0] == '.' ||
        !own_table_hub(hub))
        return fail(e, -ENOENT, "there is no model at %s", t->name);

    if (snprintf(model, sizeof(model), "%s/models--%.*s--%s", hub, (int) (slash - t->name), t->name,
                 slash + 1) >= (int) sizeof(model))
        return fail(e, -ENAMETOOLONG, "the path of %s in %s is too long", t->name, hub);
    if (snprintf(t->path, sizeof(t->path), "%s/refs/main", model) < (int) sizeof(t->path))
        f = fopen(t->path, "re");
    if (!f || fscanf(f, "%127[0-9a-zA-Z]", revision) != 1 ||
        snprintf(t->path, sizeof(t->path), "%s/snapshots/%s", model, revision) >= (int) sizeof(t->path) ||
        stat(t->path, &st) < 0 || !S_ISDIR(st.st_mode))
        return fail(e, -ENOENT,
                    "there is neither a file %s nor a model of that name in %s: 'hf download %s' fetches it",
                    t->name, hub, t->name);
    t->is_folder = true;
    return 0;
}

int own_table_find_model(struct own_table *t, const char *name, struct errmsg *e)
{
    const char *python = getenv(PYTHON_VARIABLE);
    struct stat st;
    int r = 0;

    *t = (struct own_table){.name = name};
    if (stat(name, &st) == 0) {
        t->is_folder = S_ISDIR(st.st_mode);
        if (snprintf(t->path, sizeof(t->path), "%s", name) >= (int) sizeof(t->path))
            r = fail(e, -ENAMETOOLONG, "the path %.80s... is too long", name);
    } else {
        r = own_table_find_hub(t, e);
    }
    if (r == 0 && t->is_folder && (!python || !*python))
        r = fail(e, -ENOPKG,
                 "%s is a folder, which the Python package reads: pip install 'kvcobra[transformers]', and "
                 "run the kvcobra "
                 "that this installs; or set " PYTHON_VARIABLE " to a Python that has it",
                 name);
    return r;
}

/* ---- the steps ---- */

struct own_table_steps {
    char self[PATH_MAX], folder[PATH_MAX], stats[PATH_MAX], table[PATH_MAX];
    char model_id[DIGEST_HEX_BYTES]; /* own_table_is_active() asks for it */
    int signal_fd;
    bool silent; /* the steps print nothing: standard output is for JSON */
};

/* @ret_out: what it printed, for the caller to free; NULL: it is shown. */
static int own_table_run_step(const struct own_table_steps *s, const char *step, const char *program,
                              const char *const *argv, char **ret_out, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT(step);
    struct process *const ps[] = {&p};
    enum process_output output = ret_out || s->silent ? PROCESS_CAPTURE : PROCESS_SHOW;
    int r = process_start(&p, program, argv, output, e);

    if (r == 0)
        r = process_wait(ps, 1, 0, PROCESS_EXITS, s->signal_fd, e);
    if (r == -EINTR)
        return fail(e, r, "interrupted: the daemon runs on, without a table of this model");
    if (r < 0)
        return r;
    if (!process_succeeded(&p, e))
        return -ECANCELED;
    if (ret_out)
        *ret_out = take_ptr(p.out);
    return 0;
}

/* A command of this program. */
static int own_table_run(const struct own_table_steps *s, const char *const *argv, char **ret_out,
                         struct errmsg *e)
{
    return own_table_run_step(s, argv[1], s->self, argv, ret_out, e);
}

/* Whether the daemon has an active table of the model; its digest is then in @ret. */
static int own_table_is_active(const struct own_table *t, struct own_table_steps *s, kvc_client *c,
                               bool *ret_active, struct errmsg *e)
{
    const char *const argv[] = {"kvcobra", "model-id", "--quiet", t->path, NULL};
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *tables = NULL;
    _cleanup_(freep) char *out = NULL;
    char text[DIGEST_HEX_BYTES];
    int r = own_table_run(s, argv, &out, e);

    if (r == 0)
        r = operator_list_tables(c, &tables, e);
    if (r < 0)
        return r;

    *ret_active = false;
    (void) snprintf(s->model_id, sizeof(s->model_id), "%s", out ? out : "");
    for (size_t i = 0; i < tables->n_tables; i++) {
        if (tables->tables[i]->model_digest.len != KVC_DIGEST_BYTES)
            continue;
        (void) digest_hex(tables->tables[i]->model_digest.data, text);
        if (tables->tables[i]->state == KVCOBRA__TABLE_STATE__TABLE_ACTIVE && tables->tables[i]->exact == 0 &&
            strcmp(s->model_id, text) == 0)
            *ret_active = true;
    }
    return 0;
}

static int own_table_calibrate(const struct own_table *t, const struct own_table_steps *s, struct errmsg *e)
{
    const char *python = getenv(PYTHON_VARIABLE);
    const char *const of_file[] = {"kvcobra", "calibrate", "--quick", t->path, "-o", s->stats, NULL};
    /* as --quick; an interpreter finds the packages of its environment by the path that is its name */
    const char *const of_folder[] = {python, "-m",         "kvcobra",   "calibrate", t->path,
                                     "-o",   s->stats,     "--tokens",  "3072",      "--window",
                                     "256",  "--model-id", s->model_id, NULL};
    const char *const solve[] = {"kvcobra", "solve", s->stats, "--bpd", "3", "-o", s->table, NULL};
    int r;

    if (!s->silent && printf("calibrating with %s\n", t->path) > 0) /* before the first line of progress */
        (void) fflush(stdout);
    if (!t->is_folder)
        return own_table_run(s, of_file, NULL, e);
    r = own_table_run_step(s, "calibrate", python, of_folder, NULL, e);
    return r < 0 ? r : own_table_run(s, solve, NULL, e);
}

static int own_table_make_in(const struct own_table *t, struct own_table_steps *s, const char *operators,
                             struct errmsg *e)
{
    const char *const stage[] = {"kvcobra", "table", "stage", s->table, "--socket", operators, NULL};
    const char *const activate[] = {"kvcobra", "table", "activate", s->table, "--socket", operators, NULL};
    int r;

    if (snprintf(s->stats, sizeof(s->stats), "%s/model.stats", s->folder) >= (int) sizeof(s->stats) ||
        snprintf(s->table, sizeof(s->table), "%s/model.table", s->folder) >= (int) sizeof(s->table))
        return fail(e, -ENAMETOOLONG, "the path of the temporary folder is too long");

    r = own_table_calibrate(t, s, e);
    if (r == 0)
        r = own_table_run(s, stage, NULL, e);
    return r < 0 ? r : own_table_run(s, activate, NULL, e);
}

/* From here on signals end the step that runs, and then this command. */
static int own_table_take_signals(struct own_table_steps *s, struct errmsg *e)
{
    sigset_t stop;

    (void) sigemptyset(&stop);
    (void) sigaddset(&stop, SIGINT);
    (void) sigaddset(&stop, SIGTERM);
    (void) sigaddset(&stop, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &stop, NULL) < 0)
        return fail(e, -errno, "cannot block signals: %s", strerror(errno));
    s->signal_fd = signalfd(-1, &stop, SFD_CLOEXEC);
    return s->signal_fd < 0 ? fail(e, -errno, "cannot watch for signals: %s", strerror(errno)) : 0;
}

int own_table_make(const struct own_table *t, kvc_client *c, const char *operators,
                   const struct common_options *o)
{
    struct own_table_steps s = {.signal_fd = -1, .silent = o->json};
    struct errmsg e = {""};
    bool active = false;
    int r = own_table_take_signals(&s, &e);

    if (r == 0)
        r = find_kvcobra(s.self, &e);
    if (r == 0)
        r = own_table_is_active(t, &s, c, &active, &e);
    if (r == 0 && !active) {
        r = temp_folder_make(NULL, "up", s.folder, sizeof(s.folder), &e);
        if (r == 0)
            r = own_table_make_in(t, &s, operators, &e);
        temp_folder_remove(s.folder);
    }
    closep(&s.signal_fd);
    if (r < 0)
        return command_fail("%s", e.text);
    if (!o->json)
        terminal_print(stdout, 2, OWN_JOB_DONE "%s is active%s\n", t->name, active ? " already" : "");
    return COMMAND_OK;
}
