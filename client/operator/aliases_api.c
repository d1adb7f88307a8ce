/* Aliases of models: declare, end, list. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options.h"
#include "client/kvcobra-operator.h"
#include "client/operator/operator_call.h"

int kvc_model_alias(kvc_client *c, const uint8_t alias[KVC_DIGEST_BYTES],
                    const uint8_t model[KVC_DIGEST_BYTES])
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__AliasModel declare = KVCOBRA__ALIAS_MODEL__INIT;
    int r;

    r = operator_enter(c, alias && model, "kvc_model_alias: alias or model is NULL");
    if (r < 0)
        return r;

    declare.alias = operator_bytes(alias);
    declare.model = operator_bytes(model);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_ALIAS_MODEL, &declare.base, -1, &reply);
    if (r < 0)
        return r;

    return operator_end_change(c, reply.message->alias_model->outcome, 0, NULL);
}

int kvc_model_unalias(kvc_client *c, const uint8_t alias[KVC_DIGEST_BYTES],
                      uint8_t ret_model[KVC_DIGEST_BYTES])
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__UnaliasModel end = KVCOBRA__UNALIAS_MODEL__INIT;
    const ProtobufCBinaryData *model;
    int r;

    r = operator_enter(c, alias != NULL, "kvc_model_unalias: alias is NULL");
    if (r < 0)
        return r;

    end.alias = operator_bytes(alias);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_UNALIAS_MODEL, &end.base, -1, &reply);
    if (r < 0)
        return r;

    model = &reply.message->unalias_model->model;
    if (!bytes_are(*model, KVC_DIGEST_BYTES))
        return fail(&c->error, -EPROTO,
                    "kvcobrad's answer is not valid: an alias of a model without a digest");

    if (ret_model)
        memcpy(ret_model, model->data, KVC_DIGEST_BYTES);
    return 0;
}

int kvc_model_alias_list(kvc_client *c, size_t item_bytes, kvc_model_alias_info **ret_aliases, size_t *ret_n)
{
    _cleanup_(options_list_deinit) struct options_list aliases = {.item_bytes = item_bytes};
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ListAliases list = KVCOBRA__LIST_ALIASES__INIT;
    const Kvcobra__ListAliasesReply *got;
    int r;

    r = operator_enter(c, ret_aliases && ret_n, "kvc_model_alias_list: ret_aliases or ret_n is NULL");
    if (r < 0)
        return r;

    r = options_check(item_bytes, sizeof(**ret_aliases), "kvc_model_alias_info", &c->error);
    if (r < 0)
        return r;

    r = operator_request(c, KVCOBRA__REQUEST__BODY_LIST_ALIASES, &list.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->list_aliases;
    if (options_list_reserve(&aliases, got->n_aliases) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu aliases", got->n_aliases);

    for (size_t i = 0; i < got->n_aliases; i++) {
        const Kvcobra__ModelAlias *from = got->aliases[i];
        kvc_model_alias_info info = {.struct_bytes = sizeof(info)};

        if (!bytes_are(from->alias, KVC_DIGEST_BYTES) || !bytes_are(from->model, KVC_DIGEST_BYTES))
            return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: an alias without a digest");

        memcpy(info.alias, from->alias.data, KVC_DIGEST_BYTES);
        memcpy(info.model, from->model.data, KVC_DIGEST_BYTES);
        options_list_add(&aliases, &info, sizeof(info));
    }

    *ret_n = aliases.n;
    *ret_aliases = take_ptr(aliases.items);
    return 0;
}
