/* Second half of the demonstration: process A answers a question about a text, process B finds A's pages and
 * answers earlier, and the table is swapped while a third one writes. */
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/human.h"
#include "tools/command/terminal.h"
#include "tools/demo/demo.h"

/* All are watched together from the start: none blocks on a full pipe. */
enum { DAEMON, A, B, C, N_CHILDREN };

struct demo_children {
    const struct demo *d;
    struct process daemon, a, b, c; /* A and B share a prompt, C runs during the swap */
};

/* What a process answered, from its JSON. */
struct demo_answer {
    char text[512];
    double seconds; /* to the first token */
    double prompt_tokens, found;
};

static void demo_share_deinit(struct demo_children *c)
{
    process_deinit(&c->c);
    process_deinit(&c->b); /* clients first, so that they do not lose their daemon */
    process_deinit(&c->a);
    process_deinit(&c->daemon);
}

static int demo_share_wait_for(struct demo_children *c, size_t which, enum process_event event,
                               struct errmsg *e)
{
    struct process *const ps[N_CHILDREN] = {&c->daemon, &c->a, &c->b, &c->c};

    return process_wait(ps, N_CHILDREN, which, event, c->d->signal_fd, e);
}

/* The daemon writes one byte when its sockets listen. */
static int demo_share_start_daemon(struct demo_children *c, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "kvcobra.sock"),
                     operator_socket = demo_path(c->d, "operator.sock");
    const char *argv[] = {"kvcobrad",
                          "--socket",
                          socket.text,
                          "--operator-socket",
                          operator_socket.text,
                          "--pool-bytes",
                          "512M",
                          "--quota-bytes",
                          "512M",
                          "--log-level",
                          "4",
                          "--ready-fd",
                          "3",
                          NULL};
    int r;

    terminal_print(stdout, 2,
                   "$ kvcobrad --socket %s --operator-socket %s --pool-bytes 512M --quota-bytes 512M &\n",
                   socket.text, operator_socket.text);
    (void) fflush(stdout);
    r = process_start(&c->daemon, c->d->daemon, argv, PROCESS_READY, e);
    if (r == 0)
        r = demo_share_wait_for(c, DAEMON, PROCESS_WRITES, e);
    if (r == 0 && c->daemon.n_out == 0) {
        (void) process_succeeded(&c->daemon, e);
        r = -ECANCELED;
    }

    return r;
}

/* Stages and activates the table of a budget. */
static int demo_share_use_table(struct demo_children *c, const char *budget, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "operator.sock"), table;
    char name[32];
    int r = 0;

    (void) snprintf(name, sizeof(name), "model-%s.table", budget);
    table = demo_path(c->d, name);
    for (int i = 0; i < 2 && r == 0; i++) {
        _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra table");
        const char *args[] = {"table", i == 0 ? "stage" : "activate", table.text, "--socket", socket.text,
                              NULL};

        r = demo_run(c->d, &p, PROCESS_SHOW, args, e);
    }

    return r;
}

static int demo_share_finish(struct demo_children *c, size_t which, const struct process *p, struct errmsg *e)
{
    int r = demo_share_wait_for(c, which, PROCESS_EXITS, e);

    if (r == 0 && !process_succeeded(p, e))
        return -ECANCELED;

    return r;
}

/* Asks the question, and waits for the answer. */
static int demo_share_ask(struct demo_children *c, size_t which, struct process *p, struct demo_answer *ret,
                          struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "kvcobra.sock"), prompt = demo_path(c->d, "prompt.txt");
    const char *args[] = {"generate",   c->d->model,   "--prompt-file", prompt.text,
                          "--question", demo_question, "--socket",      socket.text,
                          "--tokens",   "48",          "--repeatable",  "--json",
                          NULL};
    const char *text = "";
    json_t *json;
    int r = demo_start(c->d, p, PROCESS_CAPTURE, args, e);

    if (r == 0)
        r = demo_share_finish(c, which, p, e);
    if (r < 0)
        return r;

    json = json_loads(p->out ? p->out : "", 0, NULL);
    r = json_unpack(json, "{s:s, s:F, s:F, s:F}", "text", &text, "first_token_seconds", &ret->seconds,
                    "prompt_tokens", &ret->prompt_tokens, "matched_tokens", &ret->found);
    (void) snprintf(ret->text, sizeof(ret->text), "%s", text + strspn(text, " \n"));
    json_decref(json);
    return r < 0 ? fail(e, -EBADMSG, "cannot read what kvcobra generate --json printed") : 0;
}

/* Waits for the first token on stdout: the prompt is then read and published. */
static int demo_share_first_token(struct demo_children *c, size_t which, const struct process *p,
                                  struct errmsg *e)
{
    int r = demo_share_wait_for(c, which, PROCESS_WRITES, e);

    if (r == 0 && p->n_out == 0) {
        (void) process_succeeded(p, e);
        return -ECANCELED;
    }

    return r;
}

static void demo_share_print_answer(const struct process *p, const struct demo_answer *a)
{
    char took[HUMAN_BYTES];

    terminal_print(stdout, 2, "%s found %.0f of %.0f tokens and answers after %s: %s\n", p->label, a->found,
                   a->prompt_tokens, human_seconds(a->seconds, took), a->text);
}

static int demo_share_show(struct demo_children *c, const char *const *args, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra");

    return demo_run(c->d, &p, PROCESS_SHOW, args, e);
}

static int demo_share_prompt(struct demo_children *c, struct errmsg *e)
{
    bool is_terminal = terminal_width(stdout) > 0;
    struct demo_answer a, b;
    char saved[HUMAN_BYTES];
    int r;

    demo_heading("Share: process A reads a text of %s bytes, publishes it, and answers a question",
                 c->d->prompt_bytes);
    r = demo_share_ask(c, A, &c->a, &a, e);
    if (r < 0)
        return r;

    demo_share_print_answer(&c->a, &a);
    demo_heading("Process B is asked the same: it finds A's pages");
    r = demo_share_ask(c, B, &c->b, &b, e);
    if (r < 0)
        return r;

    demo_share_print_answer(&c->b, &b);
    terminal_print(stdout, 0, "\n%sB answered %s earlier than A.%s\n", is_terminal ? "\033[1m" : "",
                   human_seconds(a.seconds > b.seconds ? a.seconds - b.seconds : 0, saved),
                   is_terminal ? "\033[0m" : "");
    terminal_print(
        stdout, 0,
        "\nWith --repeatable both read codes of the text, so their answers are the same. Without it A "
        "reads exact keys and values, and the answers may differ by the error of the codes.\n");
    return 0;
}

/* C writes a long text meanwhile. */
static int demo_share_start_writer(struct demo_children *c, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "kvcobra.sock"), prompt = demo_path(c->d, "prompt.txt");
    const char *args[] = {"generate",     c->d->model, "--prompt-file", prompt.text,
                          "--socket",     socket.text, "--tokens",      c->d->generate_tokens,
                          "--ignore-eos", "--label",   c->c.label,      NULL};
    int r = demo_start(c->d, &c->c, PROCESS_CAPTURE, args, e);

    return r < 0 ? r : demo_share_first_token(c, C, &c->c, e);
}

static int demo_share_swap(struct demo_children *c, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "operator.sock");
    const char *tables[] = {"table", "list", "--socket", socket.text, NULL};
    int r;

    demo_heading("Swap: while process C writes %s tokens, new sequences get a table of %s bits",
                 c->d->generate_tokens, demo_budgets[DEMO_BUDGETS - 1]);
    r = demo_share_start_writer(c, e);
    if (r == 0)
        r = demo_share_use_table(c, demo_budgets[DEMO_BUDGETS - 1], e);
    if (r == 0)
        r = demo_share_show(c, tables, e);
    if (r < 0)
        return r;

    terminal_print(stdout, 0, "\nC %s; a sequence uses one table from beginning to end\n\n",
                   process_running(&c->c) ? "is still writing" : "has finished");
    (void) fflush(stdout);
    r = demo_share_finish(c, C, &c->c, e);
    if (r == 0)
        printf("All of its %s tokens were written\n", c->d->generate_tokens);
    return r;
}

int demo_share(const struct demo *d, struct errmsg *e)
{
    _cleanup_(demo_share_deinit) struct demo_children c = {
        .d = d,
        .daemon = PROCESS_INIT("kvcobrad"),
        .a = PROCESS_INIT("A"),
        .b = PROCESS_INIT("B"),
        .c = PROCESS_INIT("C"),
    };
    int r;

    demo_heading("Serve: a daemon on a private socket, with the table of %s bits", demo_budgets[0]);
    r = demo_share_start_daemon(&c, e);
    if (r < 0)
        return r;

    r = demo_share_use_table(&c, demo_budgets[0], e);
    if (r < 0)
        return r;

    r = demo_share_prompt(&c, e);
    if (r < 0)
        return r;

    r = demo_share_swap(&c, e);
    if (r < 0)
        return r;
    if (!process_stop(&c.daemon))
        return fail(e, -ECANCELED, "kvcobrad did not end cleanly");

    return 0;
}
