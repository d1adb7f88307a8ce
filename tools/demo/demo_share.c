/* Second half of the demonstration: process A reads a prompt, process B finds its pages, and the table is
 * swapped while both run. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "tools/command/terminal.h"
#include "tools/demo/demo.h"

/* All three are watched together from the start: none blocks on a full pipe. */
enum { DAEMON, A, B, N_CHILDREN };

struct demo_children {
    const struct demo *d;
    struct process daemon, a, b;
};

static void demo_share_deinit(struct demo_children *c)
{
    process_deinit(&c->b); /* clients first, so that they do not lose their daemon */
    process_deinit(&c->a);
    process_deinit(&c->daemon);
}

static int demo_share_wait_for(struct demo_children *c, size_t which, enum process_event event,
                               struct errmsg *e)
{
    struct process *const ps[N_CHILDREN] = {&c->daemon, &c->a, &c->b};

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

static int demo_share_start_client(struct demo_children *c, struct process *p, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "kvcobra.sock"), prompt = demo_path(c->d, "prompt.txt");
    const char *args[] = {"generate",     c->d->model, "--prompt-file", prompt.text,
                          "--socket",     socket.text, "--tokens",      c->d->generate_tokens,
                          "--ignore-eos", "--label",   p->label,        NULL};

    return demo_start(c->d, p, PROCESS_CAPTURE, args, e);
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

static int demo_share_finish(struct demo_children *c, size_t which, const struct process *p, struct errmsg *e)
{
    int r = demo_share_wait_for(c, which, PROCESS_EXITS, e);

    if (r == 0 && !process_succeeded(p, e))
        return -ECANCELED;

    return r;
}

/* Prints the beginning of the output of @p: its answer, up to the first empty line. */
static void demo_share_print_answer(const struct process *p)
{
    enum { ANSWER_BYTES = 320 };
    size_t n = p->n_out < ANSWER_BYTES ? p->n_out : ANSWER_BYTES;
    const char *end = p->n_out > 0 ? memmem(p->out, n, "\n\n", 2) : NULL;
    char text[ANSWER_BYTES + 1];

    n = end ? (size_t) (end - p->out) : n;
    while (n < p->n_out && n > 0 && ((unsigned char) p->out[n] & 0xc0) == 0x80)
        n--; /* not in the middle of a character */
    for (size_t i = 0; i < n; i++)
        text[i] = p->out[i];
    text[n] = '\0';
    for (char *c = text; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    terminal_print(stdout, 2, "%s answers: ...%s%s\n", p->label, text, n < p->n_out ? " ..." : "");
}

static void demo_share_print_answers(const struct demo_children *c)
{
    const char *question = demo_question + strspn(demo_question, "\n");

    terminal_print(stdout, 2, "The prompt: %s bytes of %s, then\n", c->d->prompt_bytes, c->d->text[1]);
    terminal_print(stdout, 0, "%s ...\n\n", question);
    demo_share_print_answer(&c->a);
    demo_share_print_answer(&c->b);
    terminal_print(
        stdout, 0,
        "\nWhat a hit changes: A computed the prompt from exact keys and values; B found it and read their "
        "codes, so the two answers may differ by the error of the codes. With 'kvcobra generate "
        "--repeatable' both read codes and answer the same.\n");
}

static int demo_share_show(struct demo_children *c, const char *const *args, struct errmsg *e)
{
    _cleanup_(process_deinit) struct process p = PROCESS_INIT("kvcobra");

    return demo_run(c->d, &p, PROCESS_SHOW, args, e);
}

static int demo_share_show_state(struct demo_children *c, struct errmsg *e)
{
    struct demo_path socket = demo_path(c->d, "operator.sock");
    const char *tables[] = {"table", "list", "--socket", socket.text, NULL};
    const char *status[] = {"status", "--socket", socket.text, NULL};
    int r = demo_share_show(c, tables, e);

    return r < 0 ? r : demo_share_show(c, status, e);
}

static int demo_share_prompt(struct demo_children *c, struct errmsg *e)
{
    int r;

    demo_heading("Share: process A reads a prompt and publishes it");
    r = demo_share_start_client(c, &c->a, e);
    if (r < 0)
        return r;

    r = demo_share_first_token(c, A, &c->a, e);
    if (r < 0)
        return r;

    demo_heading("Process B has the same prompt: it finds A's pages and starts to generate at once");
    r = demo_share_start_client(c, &c->b, e);
    return r < 0 ? r : demo_share_first_token(c, B, &c->b, e);
}

static const char *demo_share_activity(const struct process *p)
{
    return process_running(p) ? "is still generating" : "has finished";
}

static int demo_share_swap(struct demo_children *c, struct errmsg *e)
{
    int r;

    demo_heading("Swap: while both generate, new sequences get a table of %s bits",
                 demo_budgets[DEMO_BUDGETS - 1]);
    r = demo_share_use_table(c, demo_budgets[DEMO_BUDGETS - 1], e);
    if (r < 0)
        return r;

    r = demo_share_show_state(c, e);
    if (r < 0)
        return r;

    terminal_print(stdout, 0, "\nA %s, B %s; a sequence uses one table from beginning to end\n\n",
                   demo_share_activity(&c->a), demo_share_activity(&c->b));
    (void) fflush(stdout);
    r = demo_share_finish(c, A, &c->a, e);
    if (r < 0)
        return r;

    r = demo_share_finish(c, B, &c->b, e);
    if (r < 0)
        return r;

    demo_share_print_answers(c);
    printf("All of their 2 x %s tokens were generated\n", c->d->generate_tokens);
    return 0;
}

int demo_share(const struct demo *d, struct errmsg *e)
{
    _cleanup_(demo_share_deinit) struct demo_children c = {
        .d = d,
        .daemon = PROCESS_INIT("kvcobrad"),
        .a = PROCESS_INIT("A"),
        .b = PROCESS_INIT("B"),
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
