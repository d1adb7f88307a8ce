/* kvcobra model list|alias|unalias: the models of a running daemon, and which digests are one model. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/errmsg.h"
#include "tools/command/operator.h"
#include "tools/command/report.h"
#include "tools/operate/model_list.h"

struct model_options;

struct model_action {
    const char *name;
    int (*run)(kvc_client *c, const struct model_options *o);
    int n_digests; /* arguments that it takes */
};

struct model_options {
    struct operator_options operator;
    const struct model_action *action;
    const char *digests[2]; /* as typed; the first n_digests */
    int n_digests;
};

/* ---- digests ---- */

static bool cmd_model_is_whole(const char *text)
{
    return strlen(text) == 2 * (size_t) KVC_DIGEST_BYTES;
}

static unsigned cmd_model_digit(char c)
{
    return c <= '9' ? (unsigned) (c - '0') : (unsigned) ((c | 0x20) - 'a') + 10;
}

/* @hex: 64 digits, checked by operator_is_digest() */
static void cmd_model_read_whole(const char *hex, uint8_t ret[static KVC_DIGEST_BYTES])
{
    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++)
        ret[i] = (uint8_t) (cmd_model_digit(hex[2 * i]) << 4 | cmd_model_digit(hex[2 * i + 1]));
}

/* The model whose digest is @text or begins with it. */
static int cmd_model_find(kvc_client *c, const char *text, uint8_t ret[static KVC_DIGEST_BYTES])
{
    _cleanup_(model_list_deinit) struct model_list l = {.rows = NULL};
    const uint8_t *found = NULL;
    size_t n = 0;
    int code;

    if (cmd_model_is_whole(text)) {
        cmd_model_read_whole(text, ret);
        return COMMAND_OK;
    }

    code = model_list_get(c, &l);
    if (code != COMMAND_OK)
        return code;

    for (size_t i = 0; i < l.n_rows; i++)
        if (operator_digest_matches(l.rows[i].digest, text)) {
            found = l.rows[i].digest;
            n++;
        }
    if (!found)
        return command_fail(
            "the daemon knows no model %s; 'kvcobra model list' shows its models, and a model "
            "without tables needs all 64 digits",
            text);
    if (n > 1)
        return command_fail("%zu models begin with %s; give more digits", n, text);

    memcpy(ret, found, KVC_DIGEST_BYTES);
    return COMMAND_OK;
}

/* The alias that @text begins or is. */
static int cmd_model_find_alias(kvc_client *c, const char *text, uint8_t ret[static KVC_DIGEST_BYTES])
{
    _cleanup_(operator_message_freep) Kvcobra__ListAliasesReply *list = NULL;
    const uint8_t *found = NULL;
    size_t n_matches = 0;
    int code = model_list_get_aliases(c, &list);

    if (code != COMMAND_OK)
        return code;

    for (size_t i = 0; i < list->n_aliases; i++)
        if (operator_digest_matches(list->aliases[i]->alias.data, text)) {
            found = list->aliases[i]->alias.data;
            n_matches++;
        }
    if (!found)
        return command_fail("the daemon has no alias %s; 'kvcobra model list' shows its aliases", text);
    if (n_matches > 1)
        return command_fail("%zu aliases begin with %s; give more digits", n_matches, text);

    memcpy(ret, found, KVC_DIGEST_BYTES);
    return COMMAND_OK;
}

/* ---- actions ---- */

static int cmd_model_list(kvc_client *c, const struct model_options *o)
{
    _cleanup_(model_list_deinit) struct model_list l = {.rows = NULL};
    int code = model_list_get(c, &l);

    if (code != COMMAND_OK)
        return code;

    model_list_find_names(c, &l);
    return o->operator.common.json ? model_list_print_json(&l) : model_list_print_text(&l);
}

static int cmd_model_alias(kvc_client *c, const struct model_options *o)
{
    char alias_hex[DIGEST_HEX_BYTES], model_hex[DIGEST_HEX_BYTES];
    _cleanup_(operator_message_freep) Kvcobra__AliasModelReply *reply = NULL;
    Kvcobra__AliasModel declare = KVCOBRA__ALIAS_MODEL__INIT;
    uint8_t alias[KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES];
    struct errmsg e = {""};
    int code, r;

    cmd_model_read_whole(o->digests[0], alias);
    code = cmd_model_find(c, o->digests[1], model);
    if (code != COMMAND_OK)
        return code;

    (void) digest_hex(alias, alias_hex);
    (void) digest_hex(model, model_hex);
    if (!operator_confirm(
            &o->operator,
            "Clients that open model %.12s use the tables and pages of model %.12s from then on. "
            "If the models differ, these clients read wrong keys and values.",
            alias_hex, model_hex))
        return COMMAND_FAILED;

    declare.alias = operator_digest(alias);
    declare.model = operator_digest(model);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_ALIAS_MODEL, &declare.base, &reply, &e);
    if (r == 0)
        r = operator_outcome(reply->outcome, &e);
    if (r < 0)
        return command_fail("cannot make %.12s an alias: %s", alias_hex, e.text);

    if (o->operator.common.json)
        return report_json(
            json_pack("{s:s, s:s, s:b}", "alias", alias_hex, "model", model_hex, "already", r > 0));

    printf("%s %s of %s\n", r > 0 ? "already an alias:" : "alias", alias_hex, model_hex);
    return COMMAND_OK;
}

static int cmd_model_unalias(kvc_client *c, const struct model_options *o)
{
    char alias_hex[DIGEST_HEX_BYTES], model_hex[DIGEST_HEX_BYTES];
    _cleanup_(operator_message_freep) Kvcobra__UnaliasModelReply *reply = NULL;
    Kvcobra__UnaliasModel end = KVCOBRA__UNALIAS_MODEL__INIT;
    uint8_t alias[KVC_DIGEST_BYTES];
    struct errmsg e = {""};
    int code = cmd_model_find_alias(c, o->digests[0], alias);

    if (code != COMMAND_OK)
        return code;

    (void) digest_hex(alias, alias_hex);
    if (!operator_confirm(&o->operator,
                          "Model %.12s is no longer an alias: clients that open it need a table of its own. "
                          "Clients that have it open keep the model that they opened.",
                          alias_hex))
        return COMMAND_FAILED;

    end.alias = operator_digest(alias);
    if (operator_call(c, KVCOBRA__REQUEST__BODY_UNALIAS_MODEL, &end.base, &reply, &e) < 0 ||
        operator_check_is_digest(reply->model, "the model of an alias", &e) < 0)
        return command_fail("%s", e.text);

    (void) digest_hex(reply->model.data, model_hex);
    if (o->operator.common.json)
        return report_json(json_pack("{s:s, s:s}", "unaliased", alias_hex, "model", model_hex));

    printf("%s is no longer an alias of %s\n", alias_hex, model_hex);
    return COMMAND_OK;
}

static const struct model_action actions[] = {
    {"list", cmd_model_list, 0},
    {"alias", cmd_model_alias, 2},
    {"unalias", cmd_model_unalias, 1},
};

#define ACTIONS "list, alias, unalias"

/* ---- command line ---- */

static const char doc[] =
    "List the models of a daemon, or declare that two digests are the same model.\v"
    "  list             print the digests of models that have tables, their names\n"
    "                   as far as tables have them, and their aliases\n"
    "  alias A B        digest A is the same model as B: clients that open A use\n"
    "                   the tables of B, and share pages with clients of B\n"
    "  unalias A        end this\n\n"
    "Quantised and original weights never have the same digest, nor have a GGUF file and a folder of "
    "safetensors. 'kvcobra model-id' prints the digest of a file. A has all 64 digits, and no tables of its "
    "own. B is a model and no alias; at least its first six digits, or all 64 if the daemon has no table of "
    "it.\n\n"
    "The daemon cannot check that the models are the same. An alias applies when a client opens the model "
    "next; clients that have it open are not affected. A daemon with a state folder keeps its aliases over a "
    "restart.\n\n"
    "Example:\n\n"
    "  kvcobra model alias $(kvcobra model-id SmolLM2-135M-Instruct) \\\n"
    "    $(kvcobra model-id SmolLM2-135M-Instruct.Q4_1.gguf)";

static void cmd_model_check(const struct model_options *o, const struct argp_state *state)
{
    if (!o->action) {
        argp_error(state, "one of " ACTIONS " is needed");
        return;
    }

    if (o->n_digests != o->action->n_digests)
        argp_error(state, "%s takes %d digests, not %d", o->action->name, o->action->n_digests, o->n_digests);
    if (o->n_digests == 2 && !cmd_model_is_whole(o->digests[0]))
        argp_error(state, "the alias needs all 64 digits of the digest, not '%s'", o->digests[0]);
}

static void cmd_model_take_argument(struct model_options *o, const char *arg, const struct argp_state *state)
{
    if (!o->action) {
        for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
            if (strcmp(arg, actions[i].name) == 0)
                o->action = &actions[i];
        if (!o->action)
            option_unknown(state, arg, ACTIONS);
        return;
    }

    if (o->n_digests == o->action->n_digests) {
        argp_error(state, "'%s' is one argument too many", arg);
        return;
    }

    operator_check_digest(state, o->action->name, arg);
    o->digests[o->n_digests++] = arg;
}

static error_t cmd_model_parse(int key, char *arg, struct argp_state *state)
{
    struct model_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->operator;
        return 0;
    case ARGP_KEY_ARG:
        cmd_model_take_argument(o, arg, state);
        return 0;
    case ARGP_KEY_END:
        cmd_model_check(o, state);
        return 0;
    }

    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {NULL, cmd_model_parse,   "list\nalias MODEL-ID MODEL-ID\nunalias MODEL-ID",
                                 doc,  operator_children, NULL,
                                 NULL};

static int cmd_model_request(kvc_client *c, void *ctx)
{
    const struct model_options *o = ctx;

    return o->action->run(c, o);
}

static int cmd_model_run(int argc, char **argv)
{
    struct model_options o = {.action = NULL};

    command_parse(&argp, argc, argv, &o);
    return operator_run(&o.operator, cmd_model_request, &o);
}

COMMAND(cmd_model) = {
    .name = "model",
    .summary = "list a daemon's models, declare digests to be one model",
    .run = cmd_model_run,
    .rank = 90,
    .related = "model-id table",
};
